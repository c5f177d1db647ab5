"""GroupedLaws: a law for each kind of job, and one for its workload and device over all settings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import ColumnRows, FloatArray, IntArray, distinct_rows
from forerun.domain.forecast import Forecasts, is_none
from forerun.domain.plan import SYNC
from forerun.domain.quantiles import Z95
from forerun.errors import RequestError
from forerun.predictors.laws.law_rows import (
    GROUP,
    SIZES,
    Kind,
    LawRows,
    Span,
    chosen_size,
    filled,
    most_timed,
)
from forerun.predictors.saved import SavedPredictor
from forerun.tables import Jobs, Runs, sorted_runs
from forerun.units import counted

Columns = Mapping[str, FloatArray]

# Distance beside a law's own runs, beside those of other settings, and for each doubling beyond.
NEAR, OTHER_SETTINGS, A_DOUBLING = 0.1, 0.3, 0.2
MOST_NOTES, MOST_LISTED = 5, 3
# A half-width of a band that is larger than this, as a log, is no number.
_MOST_REACH = 300.0
ALONE = "its runs are all on one number of devices, and this is another; run it on a second"
# Log standard deviation of a law a doubling away before any run shows it, which counts as much as
# this many kinds that do; and the largest that one kind can show.
PRIOR_SIGMA, PRIOR_KINDS, MOST_SIGMA = 0.08, 2.0, 1.0
# A band from residuals alone is too narrow by this.
BAND_SCALE = 1.15
LEAST_RUNS_NEAR = 3
# Kinds that calibrate bands, those with most runs: more add little, and each takes two fits.
MOST_KINDS = 24
_TIMES = ("step_time_s", "epoch_time_s", "time_to_train_s")


@dataclass(frozen=True)
class LawForecasts:
    """Quantiles of n jobs (n, 3), parts of the medians (n, terms), doublings outside the runs (n,)."""

    seconds: FloatArray
    parts: FloatArray
    beyond: FloatArray


@dataclass(frozen=True, kw_only=True)
class Law(ABC):
    """What the runs of one kind of job gave. `GroupedLaws.fit` fills in what stands after `notes`.

    reach: how far below and above a fit the 5 % and 95 % of new runs lie, as logs. bounds: least and most of
    each column. largest: a run on the most devices. size: the size's column, "" where runs state none.
    """

    reach: Span
    notes: tuple[str, ...] = ()
    bounds: Mapping[str, Span] = field(default_factory=dict)
    largest: Mapping[str, float] = field(default_factory=dict)
    size: str = ""
    runs: int = 0

    @abstractmethod
    def formula(self, quantity: str) -> str:
        """Return the right-hand side of `seconds of a step = ...`, with units and intervals."""

    def doublings(self, **columns: FloatArray) -> FloatArray:
        """Return by how many doublings, added up, positive columns (n,) are outside their bounds."""
        total = np.zeros(len(next(iter(columns.values()))))
        for name, values in columns.items():
            low, high = np.log2(self.bounds[name])
            value = np.log2(values)
            total += np.maximum(np.maximum(value - high, low - value), 0.0)
        return total

    def forecasts(
        self, parts: FloatArray, variance: FloatArray | float, beyond: FloatArray
    ) -> LawForecasts:
        """Return forecasts whose medians, of a log variance, are the sums of parts (n, terms)."""
        middle = parts.sum(axis=1)
        reach = np.sqrt(np.square(self.reach)[:, None] + Z95**2 * variance)
        below, above = np.minimum(np.broadcast_to(reach, (2, len(middle))), _MOST_REACH)
        seconds = np.stack([middle * np.exp(-below), middle, middle * np.exp(above)], axis=1)
        return LawForecasts(seconds, parts, beyond)


@dataclass(frozen=True, kw_only=True)
class ParametricLaw(Law):
    """A law of k parameters theta, (k,), and their covariance, (k, k)."""

    theta: FloatArray
    covariance: FloatArray

    parameters: ClassVar[tuple[str, ...]] = ()
    # The right-hand side: {size}, and each parameter by name where its value is printed.
    equation: ClassVar[str] = ""

    def __post_init__(self) -> None:
        k = self.constants
        if self.theta.shape != (k,) or self.covariance.shape != (k, k):
            raise ValueError("a field has another shape")

    @property
    def constants(self) -> int:
        """How many parameters it has."""
        return len(self.parameters)

    @property
    def half_widths(self) -> FloatArray:
        """How far the 5 % and the 95 % of each parameter lie from it, (k,)."""
        return np.asarray(Z95 * np.sqrt(np.maximum(np.diag(self.covariance), 0.0)))

    def printed(self, theta: FloatArray) -> FloatArray:
        """Return parameters (k,) as `equation` prints them: a law of logs gives their exponentials."""
        return theta

    def formula(self, quantity: str) -> str:
        """Return the equation with the parameters and their intervals."""
        ends = [self.printed(self.theta + side * self.half_widths) for side in (0.0, -1.0, 1.0)]
        texts = [interval(*row) for row in np.transpose(ends).tolist()]
        named = dict(zip(self.parameters, texts, strict=True))
        return self.equation.format(size=self.size or "1", **named)

    def variance(self, slopes: FloatArray) -> FloatArray:
        """Return the variance that the covariance and slopes by the parameters (n, k) give, (n,)."""
        return np.asarray(np.einsum("ni,ni->n", slopes @ self.covariance, slopes))


LawT = TypeVar("LawT", bound=Law)


@dataclass(frozen=True)
class RunGroup(ColumnRows):
    """n runs of one kind, what the law reads of them finite; "size" is of the column `size`, 1 where "".

    sync_seconds: measured exposed communication, NaN where blank, (n,).
    """

    columns: Columns
    seconds: FloatArray
    size: str
    sync_seconds: FloatArray
    kind: Kind = ()

    @property
    def bounds(self) -> dict[str, Span]:
        """The least and the most of each column."""
        return {name: (float(v.min()), float(v.max())) for name, v in self.columns.items()}

    @property
    def largest(self) -> dict[str, float]:
        """The columns of a run on the most devices, of several that of middle time."""
        devices = self.columns["devices"]
        rows = np.flatnonzero(devices == devices.max())
        middle = rows[np.argsort(self.seconds[rows], kind="stable")[len(rows) // 2]]
        return {name: float(values[middle]) for name, values in self.columns.items()}

    def points(self, names: Sequence[str] = ()) -> IntArray:
        """Return which distinct point of the columns each run was made at, (n,)."""
        return distinct_rows([self.columns[name] for name in names or self.columns])[1]


def reach_of(logs: FloatArray, parameters: int, least_sigma: float) -> Span:
    """Return how far below and above a fit the 5 % and 95 % of new runs lie, as logs.

    logs: of measured over fitted, (n,). least_sigma: log standard deviation that repeats have anyway.
    """
    free = max(len(logs) - parameters, 1)
    # Runs lie nearer to a law fitted to them than new ones do; few of them leave more doubt
    # (Student's quantile over the normal one, Abramowitz and Stegun 26.7.5).
    z = Z95
    student = (
        z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    ) / z  # fmt: skip
    wider = student * float(np.sqrt(len(logs) / free))
    low, high = np.quantile(logs, (0.05, 0.95))
    least = Z95 * max(least_sigma, 0.5 * float(np.sqrt(np.mean(logs**2))))
    return wider * max(-float(low), least), wider * max(float(high), least)


@dataclass(frozen=True)
class GroupedLaws(SavedPredictor, Generic[LawT]):
    """A predictor that has a law for each kind of job.

    quantity: the time that most runs have. laws: by kind, `law_rows.GROUP` and `SETTINGS`, or `GROUP` alone.
    lacking: why kinds with runs have no law. notes: warnings of every forecast. doubling_sigma: log standard
    deviation for each doubling beyond the runs.
    """

    quantity: str = "step"
    laws: Mapping[Kind, LawT] = field(default_factory=dict)
    lacking: Mapping[Kind, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    doubling_sigma: float = PRIOR_SIGMA

    name: ClassVar[str] = ""
    law: ClassVar[type[Law]]
    # The parts of the median, which add up to it; what is needed to fit one law, in words.
    terms: ClassVar[tuple[str, ...]] = ()
    needed: ClassVar[str] = ""
    # Runs that a law needs at different values of the columns of `point_columns`.
    least_points: ClassVar[int] = 1
    version: ClassVar[int] = 7
    # Whether runs on one number of devices say anything of another.
    one_count_suffices: ClassVar[bool] = False
    # Whether other resources make another kind; False for a law that reads them as numbers.
    apart: ClassVar[bool] = True
    # Whether other columns of a user's own make another workload; False for a law that reads them.
    own_apart: ClassVar[bool] = True
    # Whether the size of a step is the micro-batch, and epochs and runs must state it.
    reads_micro_batch: ClassVar[bool] = False
    # A column whose name does not say what a row must state, and that in words.
    unstated: ClassVar[tuple[str, str]] = ("", "")
    # Log standard deviation a doubling away: before runs show it, and at most.
    prior_sigma: ClassVar[float] = PRIOR_SIGMA
    most_sigma: ClassVar[float] = MOST_SIGMA

    def columns(self, rows: LawRows) -> dict[str, FloatArray]:
        """Return what the law reads beside devices, size and micro-batch, (n,) each; NaN declines a job."""
        return {}

    @abstractmethod
    def fitted(self, groups: Sequence[RunGroup]) -> list[LawT]:
        """Return the law of each group of runs, all of which have enough different points."""

    @abstractmethod
    def evaluate(self, law: LawT, columns: Columns) -> LawForecasts:
        """Return the forecasts of a law for n jobs that it answers, of their columns."""

    @property
    def point_columns(self) -> tuple[str, ...]:
        """Columns in which runs must differ to count as `least_points`; all (and size) where empty."""
        return ()

    def size_of(self, sizes: Columns) -> str:
        """Return which column is the size of runs of one kind, "" where all are of size 1."""
        return chosen_size(sizes)

    @property
    def micro_batch(self) -> str:
        """The column of the micro-batch, where the law reads it."""
        return "size" if self.quantity == "step" else "micro_batch"

    def missing(self, column: str) -> str:
        """Return why a job is declined that does not state a column."""
        name, words = self.unstated
        plain = column.replace("devices", "the number of devices")
        return f"the row does not state {words if column == name else plain}"

    def works_alone(self, law: LawT) -> bool:
        """Return whether each device has work of its own, so that more of them do more."""
        return False

    def why_not(self, law: LawT, columns: Columns) -> NDArray[np.object_]:
        """Return why a law does not answer n jobs, or None, (n,), from their columns."""
        reasons = np.full(len(columns["devices"]), None, dtype=object)
        few, most = law.bounds["devices"]
        if few == most and not self.one_count_suffices:
            reasons[columns["devices"] != few] = ALONE
        for name in reversed([*columns]):  # the first has the last word
            lacks = ~np.isfinite(columns[name])
            reasons[lacks] = self.missing(law.size if name == "size" else name)
        return reasons

    def fit(self, runs: Runs) -> Self:
        """Return a predictor with the laws of these runs alone; those that did not end are left out.

        Raises:
            RequestError: no run has a time, or no workload and device has enough of them.
        """
        runs = sorted_runs(runs)
        quantity, seconds = most_timed(runs)
        rows = np.flatnonzero(np.isfinite(seconds))
        times = [runs.table.numbers(name) for name in _TIMES]
        stated = np.any([np.isfinite(column) for column in times], axis=0)
        wrong = np.any([column <= 0 for column in times], axis=0)
        left_out = {
            "did not end (their times are lower bounds)": stated & (runs.status != "ok"),
            "have a time of 0 or below": wrong & (runs.status == "ok"),
        }
        unused = [f"{out.sum()} {words}" for words, out in left_out.items() if out.any()]
        action = f"fitting {self.name} on {len(runs)} runs"
        if not len(rows):
            raise RequestError(
                action,
                "; ".join(["none that ended has a time of a step, an epoch or a whole run", *unused]),
                "give runs with step_time_s, samples_per_s, epoch_time_s or time_to_train_s above 0",
            )  # fmt: skip
        made = replace(self, quantity=quantity)._with_laws(
            runs.jobs.take(rows), seconds[rows], runs.table.numbers("sync_time_s")[rows]
        )
        if not made.laws:
            shown = {k: why for k, why in made.lacking.items() if len(k) == len(GROUP)}
            texts = [f"{' on '.join(kind)}: {why}" for kind, why in shown.items()]
            raise RequestError(
                action, "; ".join(texts[:MOST_LISTED]), f"give {self.needed} for each"
            )
        notes = [f"of {len(runs)} runs {note} and are left out" for note in unused]
        return replace(made, notes=tuple(dict.fromkeys([*notes, *made.notes]))[:MOST_NOTES])

    def _with_laws(self, jobs: Jobs, seconds: FloatArray, sync_seconds: FloatArray) -> Self:
        rows = self._rows(jobs)
        columns, micro = self._columns(rows), self.reads_micro_batch and self.quantity == "step"
        sizes = {n: rows.size(n) for n in (("micro_batch",) if micro else SIZES[self.quantity])}
        every = RunGroup(columns, seconds, "", sync_seconds)
        groups: dict[bytes, RunGroup | str] = {}
        members = [(kind, of, of.tobytes()) for kind, of in _by_kind(*rows.kinds)]
        for kind, of, key in members:  # pooled runs of a workload with one setting are those of it
            if key not in groups:
                own = {name: values[of] for name, values in sizes.items()}
                groups[key] = self._group(replace(every.take(of), kind=kind), own)
        ready = {key: group for key, group in groups.items() if isinstance(group, RunGroup)}
        made = {**groups, **dict(zip(ready, self._laws_of(list(ready.values())), strict=True))}
        found: dict[Kind, Any] = {kind: made[key] for kind, _, key in members}
        lacking = {kind: why for kind, why in found.items() if isinstance(why, str)}
        laws = {kind: law for kind, law in found.items() if kind not in lacking}
        sigma = self._doubling_sigma(list(ready.values())) if laws else PRIOR_SIGMA
        notes = [f"{kind_words(k)}: {note}" for k, law in laws.items() for note in law.notes]
        notes += [f"{kind_words(k)} has no law: {why}" for k, why in lacking.items()]
        return replace(
            self, laws=laws, lacking=lacking, doubling_sigma=sigma, notes=tuple(notes),
        )  # fmt: skip

    def _group(self, runs: RunGroup, sizes: Columns) -> RunGroup | str:
        count, size = len(runs.seconds), self.size_of(sizes)
        columns = {**runs.columns, "size": sizes[size] if size else np.ones(count)}
        usable = np.logical_and.reduce([np.isfinite(values) for values in columns.values()])
        if not usable.any():
            most = max(columns, key=lambda name: int((~np.isfinite(columns[name])).sum()))
            why = self.missing(most).replace("the row does not state", "none states")
            return f"of {count} runs {why}"
        return replace(runs, columns=columns, size=size).take(usable)

    def _laws_of(self, groups: Sequence[RunGroup]) -> list[LawT | str]:
        points = [int(group.points(self.point_columns).max()) + 1 for group in groups]
        able = self.able(groups, points)
        enough = [group for group, one in zip(groups, able, strict=True) if one]
        made = iter([
            replace(
                law, bounds={**group.bounds, **law.bounds}, largest=group.largest, size=group.size,
                runs=len(group.seconds),
            )
            for group, law in zip(enough, self.fitted(enough) if enough else (), strict=True)
        ])  # fmt: skip
        return [
            next(made) if one else f"only {counted(n, 'different run')}"
            for n, one in zip(points, able, strict=True)
        ]

    def able(self, groups: Sequence[RunGroup], points: Sequence[int]) -> list[bool]:
        """Return which groups can be fitted that were made at so many different points each."""
        return [n >= self.least_points for n in points]

    def _doubling_sigma(self, groups: Sequence[RunGroup]) -> float:
        """Return the log sigma of a doubling beyond the runs, by laws of the smaller half of devices."""
        groups = sorted(groups, key=lambda group: -len(group.seconds))[:MOST_KINDS]
        far = [group.columns["devices"] > group.columns["devices"].max() / 2 for group in groups]
        both = [
            (group.take(~of), group.take(of))
            for group, of in zip(groups, far, strict=True) if (~of).sum() >= LEAST_RUNS_NEAR
        ]  # fmt: skip
        squares = [PRIOR_KINDS * self.prior_sigma**2]
        laws = self._laws_of([near for near, _ in both])
        for law, (_, held) in zip(laws, both, strict=True):
            if isinstance(law, str):
                continue
            held = held.take(is_none(self.why_not(law, held.columns)))
            found = self.evaluate(law, held.columns)
            fine = (np.isfinite(found.seconds) & (found.seconds > 0)).all(axis=1)
            fine &= found.beyond > 0
            if fine.any():
                low, middle, high = found.seconds[fine].T
                error = np.log(held.seconds[fine] / middle)
                reach = BAND_SCALE * np.log(np.where(error < 0, low, high) / middle)
                missing = np.sqrt(np.maximum(error**2 - reach**2, 0.0)) / found.beyond[fine]
                shown = float(np.quantile(missing / Z95, 0.9))
                squares.append(min(shown, self.most_sigma) ** 2)
        return float(np.sqrt(sum(squares) / (PRIOR_KINDS + len(squares) - 1)))

    def predict(self, jobs: Jobs) -> Forecasts:
        """Return seconds of n jobs and the terms as parts; memory is not answered (NaN)."""
        rows, laws = self._rows(jobs), [*self.laws.items()]
        blank = Forecasts.blank(len(jobs), self.name, self.quantity)
        parts = np.full((len(self.terms), len(jobs)), np.nan)
        chosen, columns = self._chosen(rows), self._columns(rows)
        sizes = {name: rows.size(name) for name in {law.size for _, law in laws}}
        kinds, index = rows.kinds
        none = np.array([self._why_none(kind) for kind in kinds] + [""], dtype=object)
        reasons = np.full(len(jobs), None, dtype=object)
        reasons[chosen < 0] = none[index[chosen < 0]]
        order = np.argsort(chosen, kind="stable")
        edges = np.searchsorted(chosen[order], np.arange(len(laws)))
        for (kind, law), now in zip(laws, np.split(order, edges)[1:], strict=True):
            near = OTHER_SETTINGS if len(kind) == len(GROUP) else NEAR
            own = {name: values[now] for name, values in columns.items()}
            own["size"] = sizes[law.size][now]
            reasons[now] = self.why_not(law, own)
            ready = is_none(reasons[now])
            own, now = {name: values[ready] for name, values in own.items()}, now[ready]
            found = self.evaluate(law, own)
            middle = found.seconds[:, 1:2]
            more = (Z95 * self.doubling_sigma * found.beyond[:, None]) ** 2
            with np.errstate(divide="ignore", invalid="ignore"):
                reach = BAND_SCALE * np.log(found.seconds / middle)
                wide: FloatArray = middle * np.exp([-1.0, 0.0, 1.0] * np.sqrt(reach**2 + more))
            blank.seconds[now], parts[:, now] = wide, found.parts.T
            blank.distance[now] = near + A_DOUBLING * found.beyond
        seconds = blank.seconds
        lost = is_none(reasons) & ~(np.isfinite(seconds) & (seconds > 0)).all(axis=1)
        reasons[lost] = "the law of its runs gives no time above 0 here"
        reasons = np.where(is_none(rows.problems), reasons, rows.problems)
        closed = ~is_none(reasons)
        seconds[closed], blank.distance[closed], parts[:, closed] = np.nan, np.nan, np.nan
        named = dict(zip(self.terms, parts, strict=True))
        return replace(blank, declined=reasons, parts=named, warnings=self.notes)

    @property
    def formulas(self) -> dict[str, str]:
        """Each law as a formula with units, and what limits it, by the name of its kind."""
        texts = {}
        for kind, law in self.laws.items():
            formula = f"seconds of {article(self.quantity)} = {law.formula(self.quantity)}"
            reading = "[ ] hold 90 % (5 to 95 %); " * ("[" in formula)
            reading += "log is natural; " * ("log" in formula)
            texts[kind] = f"{formula} ({law.runs} runs; {reading}{self.limit(law)})"
        # The law over all settings is left out where it is that of one.
        own = {(kind[: len(GROUP)], text) for kind, text in texts.items() if len(kind) > len(GROUP)}
        return {
            kind_words(kind): text
            for kind, text in texts.items()
            if len(kind) > len(GROUP) or (kind, text) not in own
        }

    def limit(self, law: LawT) -> str:
        """Return how a law scales, and what takes most of the time at the most devices measured."""
        few, most = law.bounds["devices"]
        if few == most and not self.one_count_suffices:
            return f"all runs are on {counted(int(most), 'device')}, so nothing is known of scaling"
        counts = np.unique([few, most, 2.0 * most, 4.0 * most])
        columns = {name: np.full(len(counts), value) for name, value in law.largest.items()}
        columns["devices"] = counts
        if "nodes" in columns:
            columns["nodes"] = np.minimum(columns["nodes"], counts)
        found = self.evaluate(law, columns)
        seconds, at = found.seconds[:, 1], int(np.searchsorted(counts, most))
        if not (seconds > 0).all():
            return "it says nothing of scaling"
        gain = seconds[0] / seconds * (counts / counts[0] if self.works_alone(law) else 1.0)
        kept = gain * counts[0] / counts
        rates = ", ".join(
            f"{times:.2f} x on {n:g} ({100 * share:.0f} % of perfect)"
            for n, times, share in zip(counts[1:], gain[1:], kept[1:], strict=True)
        )
        term = int(found.parts[at].argmax())
        share = 100.0 * float(found.parts[at, term] / seconds[at])
        return (
            f"rate over that on {counted(int(counts[0]), 'device')}: {rates}; "
            f"at {counted(int(most), 'device')} {share:.0f} % of the time is {self.terms[term]}"
        )

    def _rows(self, jobs: Jobs) -> LawRows:
        return LawRows(jobs, self.quantity, self.apart, self.own_apart)

    def _columns(self, rows: LawRows) -> Columns:
        more = self.reads_micro_batch and self.quantity != "step"
        micro = {"micro_batch": rows.size("micro_batch")} if more else {}
        return {"devices": rows.machines, **self.columns(rows), **micro}

    def _chosen(self, rows: LawRows) -> IntArray:
        kinds, index = rows.kinds
        place = {kind: i for i, kind in enumerate(self.laws)}
        of = [place.get(k, place.get(k[: len(GROUP)], -1)) for k in filled(kinds, self.laws)]
        return np.array([*of, -1], dtype=np.int64)[index]

    def _why_none(self, kind: Kind) -> str:
        if not self.laws:
            return f"{self.name} answers from runs alone and was given none; give {self.needed}"
        what = " on ".join(text or "(blank)" for text in kind[: len(GROUP)])
        why = self.lacking.get(kind, self.lacking.get(kind[: len(GROUP)], ""))
        why = f"no law of {what}: {why}" if why else f"no runs of {what}"
        return f"{self.name} has {why}; give {self.needed}"

    @classmethod
    def _types(cls) -> dict[str, Any]:
        return {"laws": Mapping[Kind, cls.law]}  # type: ignore[name-defined]


def _by_kind(names: list[Kind], index: IntArray) -> Iterator[tuple[Kind, IntArray]]:
    leads: dict[Kind, list[int]] = {}
    for i, kind in enumerate(names):
        leads.setdefault(kind[: len(GROUP)], []).append(i)
    for lead, of in leads.items():
        yield lead, np.flatnonzero(np.isin(index, of))
        yield from ((names[i], np.flatnonzero(index == i)) for i in of)


def kind_words(kind: Kind) -> str:
    """Return a kind of job in words: `resnet50 on t4 (pytorch, fp32)`; all-reduce is the usual."""
    lead = " on ".join(text or "(blank)" for text in kind[: len(GROUP)])
    rest = ", ".join(text for text in kind[len(GROUP) :] if text not in ("", SYNC[0]))
    return f"{lead} ({rest})" if rest else lead + ", all settings" * (len(kind) == len(GROUP))


def article(quantity: str) -> str:
    """Return `a step`, `an epoch` or `a run`."""
    return f"an {quantity}" if quantity == "epoch" else f"a {quantity}"


def interval(value: float, low: float, high: float) -> str:
    """Return a parameter with its 5 to 95 % interval: `0.012 [0.011, 0.013]`."""
    return f"{value:.3g} [{low:.3g}, {high:.3g}]"
