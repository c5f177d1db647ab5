"""Questions: how a job lies to the runs that a predictor learned from; each kind has its own trials."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray, taken
from forerun.domain.plan import NAMES
from forerun.predictors.laws.law_rows import GROUP, Kind, LawRows
from forerun.tables import Jobs

INSIDE, PLAN, SIZE, DEVICES, GIVEN, NODES, SETTING, FEW, NETWORK, UNSEEN, OWN = range(11)
WORDS = (
    "among the runs", "with another plan", "beyond the runs in size", "beyond the runs in devices",
    "beyond the runs in what a worker is given", "on several nodes, where the runs had one",
    "in another setting", "with few runs of the workload on the device",
    "of a workload without runs, on a device with some",
    "of a workload without runs on the device", "beyond the runs in columns of your own",
)  # fmt: skip
# Numbers beyond whose range a job is a question of this kind; of several kinds the last one counts.
NUMBERS: Mapping[str, int] = {
    "samples a device": SIZE, "samples of an epoch": SIZE, "devices": DEVICES,
    "cores of a worker": GIVEN, "rates of the network": GIVEN,
}  # fmt: skip
_BEYOND = 0.05  # doublings: less is not beyond
MOST_FEW = 5  # configurations of a workload on a device that are few
# What a law of sizes and devices does not see of a plan.
_LAYOUT = tuple(name for name in NAMES if name not in ("dp", "micro_batch", "global_batch", "sync"))
_TEXTS = ("plan", "setting", "cluster")


@dataclass(frozen=True)
class JobColumns:
    """n jobs by what tells questions apart; names that nobody knows go by their labels.

    groups: distinct pairs of workload and device; group: which of them each job is of, (n,). numbers:
    `NUMBERS`, `nodes` and the user's own, (n,), NaN where not stated. texts: `plan`, `setting` and `cluster`, (n,).
    """

    groups: list[Kind]
    group: IntArray
    numbers: Mapping[str, FloatArray]
    texts: Mapping[str, NDArray[np.object_]]

    @staticmethod
    def of(jobs: Jobs, quantity: str = "step") -> JobColumns:
        """Return the columns of jobs whose step, epoch or run is asked about."""
        # What a worker is given, and columns of a user's own, are numbers and settings here.
        rows = LawRows(jobs, quantity, apart=False, own_apart=False)
        kinds, kind = rows.kinds
        groups = list(dict.fromkeys(one[: len(GROUP)] for one in kinds))
        place = {one: i for i, one in enumerate(groups)}
        group = np.array([place[one[: len(GROUP)]] for one in kinds] + [0])[kind]
        labels, plans, index = rows.labels, jobs.plans, jobs.cluster_index
        # A row may state what a device does alone: its micro-batch, and how many it accumulates.
        passes, replicas = labels.numbers("grad_accum"), labels.numbers("dp")
        with np.errstate(divide="ignore", invalid="ignore"):
            shared = rows.size("global_batch") / rows.machines
            split = np.where(replicas > 0, rows.machines / replicas, plans.world_size / plans.dp)
            alone = labels.numbers("micro_batch") * np.where(passes > 1, passes, 1.0) / split
        known = np.array([float(c.nodes) for c in jobs.clusters] + [np.nan])
        numbers = (
            np.where(np.isnan(shared), alone, shared), rows.size("dataset_size"), rows.machines,
            np.exp(rows.log_cores), np.exp(rows.log_wire),
            np.where(index >= 0, known[index], labels.numbers("nodes")),
        )  # fmt: skip
        layouts = np.stack([getattr(plans, name) for name in _LAYOUT], axis=1)
        layouts, layout = np.unique(layouts, axis=0, return_inverse=True)
        texts = (
            _texts([",".join(map(str, one)) for one in layouts.tolist()])[layout.reshape(-1)],
            _texts(["|".join(one) for one in kinds])[kind], labels.texts("cluster"),
        )  # fmt: skip
        own = {
            f"own {name}": labels.numbers(name) for name in labels.own.factors
            if labels.columns[name].dtype != object
        }  # fmt: skip
        return JobColumns(
            groups, group, {**dict(zip((*NUMBERS, "nodes"), numbers, strict=True)), **own},
            dict(zip(_TEXTS, texts, strict=True)),
        )  # fmt: skip


def _texts(texts: list[str]) -> NDArray[np.object_]:
    return np.array([*texts, ""], dtype=object)


@dataclass(frozen=True)
class GroupSpan:
    """What the runs of one workload on one device span; ranges: least and most of each stated number."""

    configurations: int
    ranges: Mapping[str, tuple[float, float]]
    texts: Mapping[str, tuple[str, ...]]

    def kinds(self, columns: JobColumns) -> IntArray:
        """Return which kind of question each of n jobs of the group is, (n,)."""
        numbers, texts = columns.numbers, columns.texts
        kind = np.full(len(columns.group), INSIDE)
        if self.configurations <= MOST_FEW:
            return np.full(len(kind), FEW)
        other = {name: ~np.isin(texts[name], self.texts[name]) for name in _TEXTS}
        # Where runs have no cluster's name, they may have been made on the one that is asked about.
        elsewhere = other["cluster"] & (texts["cluster"] != "") & any(self.texts["cluster"])
        kind[other["plan"]] = PLAN
        own = {name: OWN for name in numbers if name.startswith("own ")}
        for name, which in {**NUMBERS, **own}.items():
            low, high = self.ranges.get(name, (np.nan, np.nan))
            with np.errstate(divide="ignore", invalid="ignore"):
                off = np.maximum(np.log2(numbers[name] / high), np.log2(low / numbers[name]))
            kind[off > _BEYOND] = which
            if which == GIVEN and name not in self.ranges:  # nobody knows what the runs were given
                elsewhere |= np.isfinite(numbers[name])
        if "nodes" in self.ranges and self.ranges["nodes"][1] <= 1:
            kind[numbers["nodes"] > 1] = NODES
        kind[other["setting"] | elsewhere] = SETTING
        return kind


@dataclass(frozen=True)
class RunSpan:
    """What runs span, by workload and device."""

    groups: Mapping[Kind, GroupSpan]

    @staticmethod
    def of(columns: JobColumns, config: IntArray) -> RunSpan:
        """Return what runs span. config: the number of each run's configuration, (n,)."""
        spans = {}
        for i, group in enumerate(columns.groups):
            rows = np.flatnonzero(columns.group == i)
            mine = taken(columns, rows)
            stated = {name: values[values > 0] for name, values in mine.numbers.items()}
            spans[group] = GroupSpan(
                len(np.unique(config[rows])),
                {k: (float(v.min()), float(v.max())) for k, v in stated.items() if len(v)},
                {name: tuple(sorted(set(values.tolist()))) for name, values in mine.texts.items()},
            )
        return RunSpan(spans)

    def kinds(self, columns: JobColumns) -> IntArray:
        """Return which kind of question each of n jobs is, (n,)."""
        workloads, devices = ({group[i] for group in self.groups} for i in range(2))
        new = [
            NETWORK if workload not in workloads and device in devices else UNSEEN
            for workload, device in columns.groups
        ]
        kind = np.array([*new, UNSEEN])[columns.group]
        for i, group in enumerate(columns.groups):
            if group in self.groups:
                rows = np.flatnonzero(columns.group == i)
                kind[rows] = self.groups[group].kinds(taken(columns, rows))
        return kind
