"""Questions: how a job lies to the runs that a predictor learned from, and folds that resemble each kind.

A predictor that is good between runs may be bad beyond them, and a law of one workload is silent on
the next. So every row is a question of one kind, and only trials of that kind decide who answers it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.domain.plan import NAMES
from forerun.predictors.laws.law_rows import GROUP, Kind, LawRows
from forerun.tables import Jobs

INSIDE, SETTING, PLAN, SIZE, DEVICES, NODES, GIVEN, DEVICE, WORKLOAD, BOTH = range(10)
WORDS: Sequence[str] = (
    "among the runs", "in another setting", "with another plan", "beyond the runs in size",
    "beyond the runs in devices", "on several nodes, where the runs had one",
    "beyond the runs in what a worker is given", "on a device without runs of the workload",
    "of a workload without runs", "of a workload and a device without runs",
)  # fmt: skip
UNSEEN = (DEVICE, WORKLOAD, BOTH)  # no run of the workload on the device
_BEYOND = 0.05  # doublings: less is not beyond
# What a law of sizes and devices does not see of a plan.
_LAYOUT = tuple(name for name in NAMES if name not in ("dp", "micro_batch", "global_batch", "sync"))
FOLD_PARTS, FEW = 3, 3


# Numbers beyond whose range a job is a question of this kind.
NUMBERS: Mapping[str, int] = {
    "samples a device": SIZE, "samples of an epoch": SIZE, "devices": DEVICES,
    "cores of a worker": GIVEN, "rates of the network": GIVEN,
}  # fmt: skip
CLUSTER, NODE_COUNT = "cluster", "nodes"


@dataclass(frozen=True)
class JobColumns:
    """n jobs by what tells them apart; names that nobody knows go by their labels."""

    jobs: Jobs
    quantity: str = "step"

    @cached_property
    def rows(self) -> LawRows:
        """The jobs as laws read them; what a worker is given is a number here, not a setting."""
        return LawRows(self.jobs, self.quantity, apart=False)

    @cached_property
    def groups(self) -> tuple[list[Kind], IntArray]:
        """Distinct pairs of workload and device, and which each job is, (n,)."""
        kinds, index = self.rows.kinds
        distinct = list(dict.fromkeys(kind[: len(GROUP)] for kind in kinds))
        place = {group: i for i, group in enumerate(distinct)}
        of = np.array([place[kind[: len(GROUP)]] for kind in kinds], dtype=np.int64)
        return distinct, of[index] if len(of) else index

    @cached_property
    def numbers(self) -> Mapping[str, FloatArray]:
        """Each of `NUMBERS`, and nodes, by name, (n,), NaN where not stated."""
        rows, labels, plans = self.rows, self.rows.labels, self.jobs.plans
        # A row may state what a device does alone: its micro-batch, and how many it accumulates.
        passes, replicas = labels.numbers("grad_accum"), labels.numbers("dp")
        with np.errstate(divide="ignore", invalid="ignore"):
            shared = rows.size("global_batch") / rows.machines
            split = np.where(replicas > 0, rows.machines / replicas, plans.tp * plans.pp * plans.cp)
            alone = labels.numbers("micro_batch") * np.where(passes > 1, passes, 1.0) / split
        columns = (
            np.where(np.isnan(shared), alone, shared), rows.size("dataset_size"), rows.machines,
            np.exp(rows.log_cores), np.exp(rows.log_wire),
        )  # fmt: skip
        known = np.array([float(c.nodes) for c in self.jobs.clusters] + [np.nan])
        index = self.jobs.cluster_index
        nodes = np.where(index >= 0, known[index], labels.numbers("nodes"))
        return {**dict(zip(NUMBERS, columns, strict=True)), NODE_COUNT: nodes}

    @cached_property
    def classes(self) -> Mapping[str, NDArray[np.object_]]:
        """By kind of question, the text (n,) that is new of a job of this kind; and its cluster."""
        kinds, kind = self.rows.kinds
        names = np.array(["|".join(one) for one in kinds] + [""], dtype=object)
        table = np.stack([getattr(self.jobs.plans, name) for name in _LAYOUT], axis=1)
        layouts, layout = np.unique(table.astype(np.int64), axis=0, return_inverse=True)
        plans = np.array([",".join(map(str, row)) for row in layouts.tolist()] + [""], dtype=object)
        return {
            str(PLAN): plans[layout.reshape(-1)], str(SETTING): names[kind],
            CLUSTER: self.rows.labels.texts("cluster"),
        }  # fmt: skip


@dataclass(frozen=True)
class Questions:
    """n questions: kind, log2 of how much is known (n,), and the workload and device asked about.

    `group` is a position in `groups`.
    """

    kind: NDArray[np.int8]
    known: FloatArray
    group: IntArray
    groups: tuple[Kind, ...]

    def __len__(self) -> int:
        return len(self.kind)

    def distinct(self) -> tuple[IntArray, IntArray]:
        """Return the first of each distinct question, and which each row is, (n,)."""
        table = np.stack([self.kind, self.known, self.group], axis=1)
        _, first, index = np.unique(table, axis=0, return_index=True, return_inverse=True)
        return first.astype(np.int64), index.reshape(-1).astype(np.int64)


@dataclass(frozen=True)
class RunSpan:
    """What runs span.

    Attributes:
        configurations: distinct ones of each workload and device.
        ranges: least and most of each of `JobColumns.numbers` by group, (2, groups), NaN for none.
        texts: of each of `JobColumns.classes`, pairs of group and text.
    """

    configurations: Mapping[Kind, int]
    ranges: Mapping[str, FloatArray]
    texts: Mapping[str, frozenset[tuple[int, str]]]

    @staticmethod
    def of(columns: JobColumns, config: IntArray) -> RunSpan:
        """Return what runs span. config: the number of each run's configuration, (n,)."""
        groups, index = columns.groups
        pairs = np.unique(np.stack([index, config]), axis=1)
        counts = np.bincount(pairs[0].astype(np.int64), minlength=len(groups))
        ranges = {}
        for name, values in columns.numbers.items():
            ranges[name] = np.full((2, len(groups)), np.nan)
            stated = np.where(np.isfinite(values) & (values > 0), values, np.nan)
            np.fmin.at(ranges[name][0], index, stated)
            np.fmax.at(ranges[name][1], index, stated)
        texts = {
            name: frozenset(zip(index.tolist(), values.tolist(), strict=True))
            for name, values in columns.classes.items()
        }
        return RunSpan(dict(zip(groups, counts.tolist(), strict=True)), ranges, texts)

    def questions(self, columns: JobColumns) -> Questions:
        """Return how jobs lie to the runs."""
        groups, index = columns.groups
        place = {group: i for i, group in enumerate(self.configurations)}
        mine = np.array([place.get(group, -1) for group in groups] + [-1])[index]
        new = [self._new(group) for group in groups]
        kind = np.array([k for k, _ in new] + [BOTH], dtype=np.int8)[index]
        known = np.array([k for _, k in new] + [0.0])[index]
        rows = np.flatnonzero(mine >= 0)
        at = mine[rows]

        def other(which: str) -> BoolArray:
            pairs = zip(at.tolist(), columns.classes[which][rows].tolist(), strict=True)
            return np.array([pair not in self.texts[which] for pair in pairs], dtype=bool)

        labelled = np.isin(at, [g for g, label in self.texts[CLUSTER] if label])
        elsewhere = labelled & (columns.classes[CLUSTER][rows] != "") & other(CLUSTER)
        beyond = {which: np.zeros(len(rows), dtype=bool) for which in NUMBERS.values()}
        for name, which in NUMBERS.items():
            values, (low, high) = columns.numbers[name][rows], self.ranges[name][:, at]
            with np.errstate(divide="ignore", invalid="ignore"):
                off = np.maximum(np.log2(values / high), np.log2(low / values))
            beyond[which] |= off > _BEYOND
            if which == GIVEN:  # nobody knows what the runs were given
                elsewhere |= np.isfinite(values) & np.isnan(low)
        several = self.ranges[NODE_COUNT][1][at] <= 1
        several &= columns.numbers[NODE_COUNT][rows] > 1
        for which, where in (
            (PLAN, other(str(PLAN))), *beyond.items(), (NODES, several),
            (SETTING, other(str(SETTING)) | elsewhere),
        ):  # fmt: skip
            kind[rows[where]] = which
        return Questions(kind, known, index, tuple(groups))

    def _new(self, group: Kind) -> tuple[int, float]:
        """Return what is new of a workload on a device, and log2 of how much is known of it."""
        same = [count for one, count in self.configurations.items() if one[0] == group[0]]
        near = sum(one[1] == group[1] for one in self.configurations)
        if group in self.configurations:
            kind, count = INSIDE, self.configurations[group]
        elif same:
            kind, count = DEVICE, sum(same)
        else:
            kind, count = (WORKLOAD, near) if near else (BOTH, 1)
        return kind, float(np.rint(np.log2(count)))


@dataclass(frozen=True)
class TrialFold:
    """Positions of the runs that are fitted and of those that are judged; `words`: how divided."""

    words: str
    fit: IntArray
    judge: IntArray


def folds_of(columns: JobColumns, config: IntArray, timed: BoolArray) -> list[TrialFold]:
    """Return the folds of n runs; none where fewer than two configurations are timed.

    Args:
        columns: of their jobs.
        config: number of each run's configuration, (n,): repeats share it and stay together.
        timed: which runs can be judged, (n,). The others are fitted only.
    """
    folds = []
    for words, out in _left_out(columns, config, timed):
        judge, fit = np.flatnonzero(out & timed), np.flatnonzero(~out)
        if len(judge) and timed[fit].any():
            folds.append(TrialFold(words, fit, judge))
    return folds


def _left_out(
    columns: JobColumns, config: IntArray, timed: BoolArray
) -> Iterator[tuple[str, BoolArray]]:
    """Yield of each fold (words, which runs are left out)."""
    if len(np.unique(config[timed])) < 2:
        return
    rng = np.random.default_rng(0)
    groups, group = columns.groups

    def parts(words: str, labels: NDArray[Any]) -> Iterator[tuple[str, BoolArray]]:
        """Yield parts of the labels, dealt evenly by chance."""
        distinct, index = np.unique(labels, return_inverse=True)
        part = (rng.permutation(len(distinct)) % FOLD_PARTS)[index.reshape(-1)]
        for i in range(int(part.max()) + 1):
            yield words, part == i

    yield from parts("runs left out by chance", config)
    for name in NUMBERS:
        for words, upper in ((f"the upper half of {name}", True), (f"the most {name}", False)):
            out = _larger(columns.numbers[name], group, upper)
            if out.any():
                yield f"{words} left out", out
    workloads, devices = (np.array([g[i] for g in groups], dtype=str)[group] for i in (0, 1))
    for name, labels in (("workload", workloads), ("device", devices)):
        if len(np.unique(labels)) > 1:
            yield from parts(f"every {name} of a part left out", labels)
    clusters = columns.classes[CLUSTER].astype(str)
    places = np.where(clusters == "", devices, clusters)
    places = places if len(np.unique(places)) > 1 else workloads
    distinct = np.unique(places)
    if len(distinct) > 1:
        dealt = np.array_split(rng.permutation(distinct), min(FOLD_PARTS, len(distinct)))
        for i, some in enumerate(dealt):
            out = np.isin(places, some) & ~_few(columns, config, timed, i)
            yield f"all but {FEW} one-node runs of each workload on a cluster left out", out


def _larger(values: FloatArray, group: IntArray, upper: bool) -> BoolArray:
    """Return which runs are, in their own group, in the upper half of distinct values, or the most (n,)."""
    out = np.zeros(len(values), dtype=bool)
    for g in np.unique(group):
        mine = np.flatnonzero((group == g) & np.isfinite(values))
        distinct = np.unique(values[mine])
        if len(distinct) > (1 if upper else 2):
            bound = (len(distinct) - 1) // 2 if upper else len(distinct) - 2
            out[mine] = values[mine] > distinct[bound]
    return out


def _few(columns: JobColumns, config: IntArray, timed: BoolArray, seed: int) -> BoolArray:
    """Return which runs stay of each workload and device: a few on one node, each on other devices (n,)."""
    _, group = columns.groups
    machines, nodes = columns.rows.machines, columns.numbers[NODE_COUNT]
    kept = np.zeros(len(group), dtype=bool)
    drawn = np.random.default_rng(seed).permutation(len(group))
    for g in np.unique(group):
        mine = drawn[(group[drawn] == g) & timed[drawn]]
        mine = mine[nodes[mine] <= 1] if (nodes[mine] <= 1).any() else mine
        _, first = np.unique(machines[mine], return_index=True)
        order = np.concatenate([np.sort(first), np.setdiff1d(np.arange(len(mine)), first)])
        configs = list(dict.fromkeys(config[mine[order]].tolist()))[:FEW]
        kept |= (group == g) & np.isin(config, configs)
    return kept
