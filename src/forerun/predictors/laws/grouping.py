"""Groups: the runs of one kind as columns, what a law of them promises, and what no law can use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.domain.quantiles import Z95
from forerun.predictors.laws.law_rows import GROUP, Kind
from forerun.tables.lines import Lines

Columns = Mapping[str, FloatArray]

# A band that reaches further, in logs, is no number.
_MOST_REACH = 300.0
# Milliseconds among seconds, or seconds among minutes, leave a gap that no noise leaves.
UNIT_GAP = 50.0
# What is said of them, and what stands before the lines of the fewer; how many lines are named.
MIXED, AT, MOST_LINES = "as if units were mixed", " in ", 8


class TooFewError(Exception):
    """The runs of a kind cannot teach a law; the text says what was found."""


class Law(Protocol):
    """What is known of one kind of job once its runs were fitted; a frozen dataclass."""

    @property
    def size(self) -> str:
        """The column that is the size, "" where there is none."""
        ...

    @property
    def machines(self) -> tuple[float, float]:
        """Fewest and most devices that a run had."""
        ...

    @property
    def runs(self) -> int:
        """How many taught it."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What was noticed while fitting: not converged, terms that the runs cannot tell apart."""
        ...

    def formula(self, quantity: str) -> str:
        """Return the law with units and the intervals of its parameters."""
        ...

    def limit(self) -> str:
        """Return what limits scaling at the most devices measured and at the next doublings."""
        ...


def too_few(points: int) -> TooFewError:
    """Return what is said of a kind with so few different runs."""
    return TooFewError(f"only {points} different run{'s' if points != 1 else ''}")


LawT = TypeVar("LawT", bound=Law)


def laws_of(
    groups: Sequence[Group], names: Sequence[str], least: int,
    fitted: Callable[[Sequence[Group]], Iterable[LawT]],
) -> list[LawT | TooFewError]:  # fmt: skip
    """Return the law of each kind of runs, or why it has none.

    Args:
        groups: runs by kind.
        names: columns in which runs must differ. least: how many that do, for a law.
        fitted: the laws of those kinds that have enough, all at once.
    """
    points = [group.points(*names) for group in groups]
    enough = [group for group, n in zip(groups, points, strict=True) if n >= least]
    made = iter(fitted(enough) if enough else ())
    return [next(made) if n >= least else too_few(n) for n in points]


@dataclass(frozen=True)
class Group:
    """n runs of one kind.

    Attributes:
        columns: what the law reads of them, finite, by name, each (n,); "size" and "devices" too.
        seconds: positive and finite, (n,).
        size: the column that "size" comes from; "" where the runs state none, and it is 1.
        quantity: what `seconds` times: step, epoch or run.
        measured: further measured columns, NaN where blank, each (n,).
        kind: whose runs they are; of several settings that share them, the first.
    """

    columns: Columns
    seconds: FloatArray
    size: str
    quantity: str
    measured: Columns
    kind: Kind = ()

    def points(self, *names: str) -> int:
        """Return how many runs differ in these columns."""
        return len(np.unique(np.stack([self.columns[name] for name in names]), axis=1).T)

    def bounds(self, name: str) -> tuple[float, float]:
        """Return the least and the most of a column."""
        values = self.columns[name]
        return float(values.min()), float(values.max())


@dataclass(frozen=True)
class Answers:
    """What laws say of n jobs.

    Attributes:
        seconds: quantiles (5 %, median, 95 %), (n, 3).
        parts: of the median by term, which add up to it, (n, terms).
        beyond: by how many doublings the job lies beyond the runs of its law, (n,).
    """

    seconds: FloatArray
    parts: FloatArray
    beyond: FloatArray


def part_of(columns: Columns, rows: NDArray[Any]) -> Columns:
    """Return the columns at the given positions (or where a mask is true)."""
    return {name: values[rows] for name, values in columns.items()}


def by_kind(kinds: tuple[list[Kind], IntArray]) -> Iterator[tuple[Kind, IntArray]]:
    """Yield each workload and device over all settings, and each kind, with its rows."""
    names, index = kinds
    order = np.argsort(index, kind="stable")
    starts = np.searchsorted(index[order], np.arange(len(names) + 1))
    rows = [order[starts[i] : starts[i + 1]] for i in range(len(names))]
    pooled: dict[Kind, list[int]] = {}
    for i, kind in enumerate(names):
        pooled.setdefault(kind[: len(GROUP)], []).append(i)
    for lead, of in pooled.items():
        yield lead, np.sort(np.concatenate([rows[i] for i in of]))
        yield from ((names[i], rows[i]) for i in of)


def in_order(rows: IntArray, chosen: IntArray) -> IntArray:
    """Return the rows in the order of their laws, so that few laws answer a pass of many rows."""
    law = chosen[rows]
    # Whole numbers of 16 bits are sorted by counting them.
    small = law.astype(np.int16) if law.max(initial=0) < 2**15 else law
    return rows[np.argsort(small, kind="stable")]


def mixed_units(columns: Columns, seconds: FloatArray, places: Lines | None = None) -> str:
    """Return why times look like those of two units, and where the fewer stand, or "".

    After what sizes and devices explain (a power law in each), times of one unit lie together;
    milliseconds among seconds leave an empty gap of a factor `UNIT_GAP` and more.
    """
    logs = np.log(seconds)
    if len(logs) < 3 or logs.max() - logs.min() < np.log(UNIT_GAP):
        return ""
    varied = [np.log(v) for v in columns.values() if v.min() > 0 and v.min() < v.max()]
    x = np.stack([np.ones_like(logs), *varied], axis=1)
    left = logs - x @ np.linalg.lstsq(x, logs, rcond=None)[0] if len(logs) > x.shape[1] else logs
    ordered = np.sort(left)
    place = int(np.argmax(np.diff(ordered)))
    if ordered[place + 1] - ordered[place] < np.log(UNIT_GAP):
        return ""
    above = left > ordered[place]
    both = np.column_stack([x, above])
    apart = np.exp(np.linalg.lstsq(both, logs, rcond=None)[0][-1])
    fewer = above if 2 * above.sum() <= len(logs) else ~above
    found = (
        f"{fewer.sum()} of {len(logs)} times are about {apart:.0f} times away "
        f"from the others at like sizes and devices, {MIXED}"
    )
    return found if places is None else f"{found}{AT}{_lines(places, np.flatnonzero(fewer))}"


def _lines(places: Lines, rows: IntArray) -> str:
    """Return where rows stand, the first few: `runs.csv line 3, 5, 7 and 2 more`."""
    rows = rows[np.lexsort((places.line[rows], places.file[rows]))]
    first, *rest = rows[:MOST_LINES].tolist()
    same = [places.file[i] == places.file[first] for i in rest]
    more = [f", {places.line[i] if s else places.text(i)}" for i, s in zip(rest, same, strict=True)]
    left = len(rows) - MOST_LINES
    return places.text(first) + "".join(more) + (f" and {left} more" if left > 0 else "")


def reach_of(logs: FloatArray, terms: int, least_sigma: float) -> tuple[float, float]:
    """Return how far below and above a fit the 5 % and 95 % of new runs lie, as logs.

    Args:
        logs: log of measured over fitted of the runs that made the fit, (n,).
        terms: free parameters that they were spent on.
        least_sigma: log standard deviation that repeats have anyway.
    """
    free = max(len(logs) - terms, 1)
    # Runs lie nearer to a law that they made than new ones will; few of them say so less surely
    # (Student's quantile over the normal one, Abramowitz and Stegun 26.7.5).
    z = Z95
    student = (
        z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    ) / z  # fmt: skip
    wider = student * float(np.sqrt(len(logs) / free))
    low, high = np.quantile(logs, (0.05, 0.95))
    least = Z95 * max(least_sigma, 0.5 * float(np.sqrt(np.mean(logs**2))))
    return wider * max(-float(low), least), wider * max(float(high), least)


def doublings(bounds: FloatArray, index: IntArray, values: FloatArray) -> FloatArray:
    """Return by how many doublings n values lie outside what was measured, (n,).

    Args:
        bounds: least and most of each law, (laws, 2), positive.
        index: which law each value belongs to, (n,).
        values: positive, (n,).
    """
    logs = np.log2(bounds)
    value = np.log2(values)
    outside: FloatArray = np.maximum(value - logs[:, 1][index], logs[:, 0][index] - value)
    return np.maximum(outside, 0.0)


def banded(middle: FloatArray, reach: FloatArray, variance: FloatArray) -> FloatArray:
    """Return quantiles (n, 3) about n medians.

    Args:
        middle: the medians, (n,).
        reach: how far below and above the medians runs lie anyway, as logs, (n, 2).
        variance: of the log of the median itself, (n,).
    """
    unsure = Z95**2 * variance
    below, above = np.minimum(np.sqrt(reach**2 + unsure[:, None]), _MOST_REACH).T
    seconds = np.empty((len(middle), 3))
    seconds[:, 0] = middle * np.exp(-below)
    seconds[:, 1] = middle
    seconds[:, 2] = middle * np.exp(above)
    return seconds
