"""Questions: how a job lies to the runs that were learned from: among them, beyond them, apart.

A predictor that is good between runs may be bad beyond them, and a law of one workload is silent of
the next. So each row is asked as a question of its kind, and only trials of like questions speak
of who should answer it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.predictors.choice.columns import JobColumns
from forerun.predictors.laws.law_rows import GROUP, Kind

# Kinds of question, and what they are called.
INSIDE, SETTINGS, PLAN, SIZE, DEVICES, NODES, CLUSTER, DEVICE, WORKLOAD, BOTH, GIVEN = range(11)
WORDS: Sequence[str] = (
    "among the runs", "in another setting", "with another plan", "beyond the runs in size",
    "beyond the runs in devices", "on several nodes, where the runs had one", "on another cluster",
    "on a device without runs of the workload", "of a workload without runs",
    "of a workload and a device without runs",
    "beyond the runs in what a worker is given",
)  # fmt: skip
# Those of which no run of the workload on the device tells.
APART = (DEVICE, WORKLOAD, BOTH)
_BEYOND = 0.05  # doublings: less is not beyond
_NAMED = 4


@dataclass(frozen=True)
class Extent:
    """What the runs of one workload on one device span: least and most of each number."""

    configurations: int
    machines: tuple[float, float]
    nodes: tuple[float, float]
    share: tuple[float, float]
    dataset: tuple[float, float]
    cores: tuple[float, float]
    wire: tuple[float, float]
    kinds: frozenset[Kind]
    clusters: frozenset[str]
    layouts: frozenset[bytes]


@dataclass(frozen=True)
class Questions:
    """n questions: kind, doublings beyond the runs, log2 of how much is known, next of kin.

    `kin` is a position in `kins`: among whom trials speak most: the workload and device where these
    have runs, else the device of a new workload, or the workload on a new device. Doublings are
    whole quarters, what is known whole numbers, so that like questions are equal.
    """

    kind: NDArray[np.int8]
    doublings: FloatArray
    known: FloatArray
    kin: IntArray
    kins: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.kind)

    def take(self, rows: NDArray[np.int64] | BoolArray) -> Questions:
        """Return some of them."""
        return Questions(
            self.kind[rows], self.doublings[rows], self.known[rows], self.kin[rows], self.kins
        )

    def distinct(self) -> tuple[IntArray, IntArray]:
        """Return the first of each distinct question, and which each row is, (n,)."""
        away = np.minimum(4 * self.doublings, 99).astype(np.int64)
        code = (self.kind.astype(np.int64) * 100 + away) * 100 + self.known.astype(np.int64)
        code = code * max(len(self.kins), 1) + self.kin
        _, first, index = np.unique(code, return_index=True, return_inverse=True)
        return first.astype(np.int64), index.reshape(-1).astype(np.int64)


@dataclass(frozen=True)
class Seen:
    """What runs were learned from, by workload and device."""

    extents: Mapping[Kind, Extent]

    @staticmethod
    def of(columns: JobColumns, config: IntArray) -> Seen:
        """Return what runs span. config: the number of each run's question, (n,)."""
        groups, index = columns.groups
        kinds, kind = columns.kinds
        layouts, layout = columns.layout
        extents = {}
        order = np.argsort(index, kind="stable")
        bounds = np.searchsorted(index[order], np.arange(len(groups) + 1))
        for g, group in enumerate(groups):
            rows = order[bounds[g] : bounds[g + 1]]
            extents[group] = Extent(
                configurations=len(np.unique(config[rows])),
                machines=_span(columns.machines[rows]), nodes=_span(columns.nodes[rows]),
                share=_span(columns.share[rows]), dataset=_span(columns.dataset[rows]),
                cores=_span(columns.given[0][rows]), wire=_span(columns.given[1][rows]),
                kinds=frozenset(kinds[k] for k in np.unique(kind[rows])),
                clusters=frozenset(columns.cluster[rows].tolist()),
                layouts=frozenset(layouts[p] for p in np.unique(layout[rows])),
            )  # fmt: skip
        return Seen(extents)

    def questions(self, columns: JobColumns) -> Questions:
        """Return how jobs lie to the runs."""
        n = len(columns.jobs)
        groups, index = columns.groups
        made = _Making(n)
        workloads: dict[str, int] = {}
        devices: dict[str, int] = {}
        for (workload, device), extent in self.extents.items():
            workloads[workload] = workloads.get(workload, 0) + extent.configurations
            devices[device] = devices.get(device, 0) + 1
        order = np.argsort(index, kind="stable")
        bounds = np.searchsorted(index[order], np.arange(len(groups) + 1))
        for g, group in enumerate(groups):
            rows = order[bounds[g] : bounds[g + 1]]
            if not len(rows):
                continue
            known = self.extents.get(group)
            if known is not None:
                self._within(made, columns, rows, known, " on ".join(group))
                continue
            workload, device = group
            if workload in workloads:
                made.say(rows, DEVICE, workloads[workload], workload)
            elif device in devices:
                made.say(rows, WORKLOAD, devices[device], device)
            else:
                made.say(rows, BOTH, len(self.extents), "")
        return made.done()

    def _within(
        self, made: _Making, columns: JobColumns, rows: IntArray, extent: Extent, kin: str
    ) -> None:
        """Fill in the questions of jobs whose workload and device have runs."""
        made.say(rows, INSIDE, extent.configurations, kin)
        kinds, kind = columns.kinds
        layouts, layout = columns.layout
        machines = _beyond(columns.machines[rows], extent.machines)
        size = np.maximum(
            _beyond(columns.share[rows], extent.share),
            _beyond(columns.dataset[rows], extent.dataset),
        )
        several = (extent.nodes[1] <= 1) & (columns.nodes[rows] > 1)
        new_layout = np.array([text not in extent.layouts for text in layouts], dtype=bool)
        new_kind = np.array([one not in extent.kinds for one in kinds], dtype=bool)[kind[rows]]
        given = np.zeros(len(rows))
        for values, span in zip(columns.given, (extent.cores, extent.wire), strict=True):
            given += _beyond(values[rows], span)
            # Nobody knows what the runs were given.
            new_kind |= np.isfinite(values[rows]) & np.isnan(span[0])
        labels = columns.cluster[rows]
        known = np.isin(labels.astype(str), [*extent.clusters, ""]) | (extent.clusters <= {""})
        for which, where, away in (
            (PLAN, new_layout[layout[rows]], None), (SIZE, size > _BEYOND, size),
            (DEVICES, machines > _BEYOND, machines), (GIVEN, given > _BEYOND, given + machines),
            (NODES, several, machines), (SETTINGS, new_kind, machines), (CLUSTER, ~known, machines),
        ):  # fmt: skip
            made.kind[rows[where]] = which
            if away is not None:
                made.doublings[rows[where]] = away[where]


class _Making:
    """Questions in the making; all start as those of which nothing is known."""

    def __init__(self, n: int) -> None:
        self.kind = np.full(n, BOTH, dtype=np.int8)
        self.doublings, self.known = np.zeros(n), np.zeros(n)
        self.kin = np.zeros(n, dtype=np.int64)
        self.kins: dict[str, int] = {"": 0}

    def say(self, rows: IntArray, kind: int, known: int, kin: str) -> None:
        """Set what some rows are."""
        self.kind[rows], self.known[rows] = kind, np.rint(np.log2(max(known, 1)))
        self.kin[rows] = self.kins.setdefault(kin, len(self.kins))

    def done(self) -> Questions:
        """Return the questions."""
        quarters = np.rint(4 * np.minimum(self.doublings, 24)) / 4
        return Questions(self.kind, quarters, self.known, self.kin, tuple(self.kins))


def _span(values: FloatArray) -> tuple[float, float]:
    told = values[np.isfinite(values) & (values > 0)]
    return (float(told.min()), float(told.max())) if len(told) else (np.nan, np.nan)


def _beyond(values: FloatArray, span: tuple[float, float]) -> FloatArray:
    """Return doublings by which values (n,) lie outside a span, 0 within it or where unknown."""
    with np.errstate(divide="ignore", invalid="ignore"):
        off = np.maximum(np.log2(values / span[1]), np.log2(span[0] / values))
    return np.where(np.isfinite(off), np.maximum(off, 0.0), 0.0)


def missing(seen: Seen, group: Kind, every: int, law: str) -> str:
    """Return what runs lack to tell of a workload on a device, and what to do.

    Args:
        seen: what runs were learned from. group: workload and device.
        every: how many runs there were.
        law: why a law that learned from them does not answer.
    """
    if group in seen.extents:
        return law
    workload, device = (text or "(blank)" for text in group[: len(GROUP)])
    had = [known for known in seen.extents if known[0] == group[0]]
    if had:
        what, others = f"{workload} on {device}", [pair[1] or "(blank)" for pair in had]
        where = f"{workload} ran on {shortly(others)}"
    else:
        what, where = workload, f"they are of {shortly([pair[0] for pair in seen.extents])}"
    advice = law.partition("; ")[2] or "give runs of it"
    return f"no run of {what} among the {every:,} that taught it: {where}; {advice}"


def shortly(names: Iterable[str]) -> str:
    """Return the first few of the distinct names, and how many more there are."""
    distinct = sorted(dict.fromkeys(name or "(blank)" for name in names))
    rest = len(distinct) - _NAMED
    return ", ".join(distinct[:_NAMED]) + (f" and {rest:,} more" if rest > 0 else "")
