"""LawRows: what a law of sizes and machines reads of jobs, and what tells one kind of job from another.

Placements: on how many nodes a job's devices lie, and how unevenly.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.domain.plan import SYNC
from forerun.predictors.laws.label_codes import compact, completed
from forerun.tables import Jobs, Runs, Table

Counts = tuple[float, float, float]

_BLANK: Counts = (np.nan, np.nan, np.nan)


@dataclass(frozen=True)
class Placements:
    """Where the devices of n jobs lie; NaN where nothing says so.

    Attributes:
        nodes: with a device of the job on them, (n,).
        most, fewest: devices on one of these nodes, (n,).
    """

    nodes: FloatArray
    most: FloatArray
    fewest: FloatArray


def placements_of(jobs: Jobs, labels: Table, machines: FloatArray) -> Placements:
    """Return where the devices of n jobs lie.

    A placement as text says most, then the cluster, then `nodes`, then `devices_per_node`. One
    device is on one node, whatever is stated.
    """
    counts = _clusters(jobs)
    texts = labels.texts("placement") if "placement" in labels else None
    if texts is not None:
        pairs = list(zip(texts.tolist(), machines.tolist(), strict=True))
        known = {pair: placement_counts(*pair) for pair in dict.fromkeys(pairs)}
        said = np.array([known[pair] for pair in pairs]).reshape(-1, 3)
        counts = np.where(np.isnan(said), counts, said)
    counts = np.where(np.isnan(counts), _stated(labels, machines), counts)
    counts = np.where((machines == 1)[:, None], 1.0, counts)
    return Placements(counts[:, 0], counts[:, 1], counts[:, 2])


def placement_counts(text: str, machines: float = np.nan) -> Counts:
    """Return nodes, most and fewest devices on one, of `134`, `4-4-2` or `[4, 4]`; else NaN.

    Without a separator each digit is a node, unless the text is the number of `machines` itself.
    """
    plain = text.strip().strip("[]()")
    for mark in "-,;/ ":
        if mark in plain:
            parts = [part for part in plain.split(mark) if part.strip()]
            break
    else:
        parts = [plain] if plain == f"{machines:g}" else list(plain)
    try:
        devices = [int(part) for part in parts]
    except ValueError:
        return _BLANK
    devices = [count for count in devices if count > 0]
    if not devices:
        return _BLANK
    return float(len(devices)), float(max(devices)), float(min(devices))


def _clusters(jobs: Jobs) -> FloatArray:
    """Return the counts that resolved clusters say, (n, 3)."""
    rows = []
    for cluster in jobs.clusters:
        used = [count for count in cluster.placement if count > 0]
        each = float(cluster.devices_per_node)
        rows.append(
            (float(len(used)), float(max(used)), float(min(used)))
            if used
            else (float(cluster.nodes), each, each)
        )
    table: FloatArray = np.array([*rows, _BLANK])
    counts: FloatArray = table[jobs.cluster_index]
    return counts


def _stated(labels: Table, machines: FloatArray) -> FloatArray:
    """Return the counts that `nodes` and `devices_per_node` say, (n, 3)."""
    nodes, each = labels.numbers("nodes"), labels.numbers("devices_per_node")
    nodes = np.where(np.isnan(nodes), np.ceil(machines / np.where(each > 0, each, np.nan)), nodes)
    nodes = np.where(nodes >= 1, nodes, np.nan)
    most = np.where(np.isnan(each), np.ceil(machines / nodes), each)
    fewest = np.where(np.isnan(each), np.floor(machines / nodes), each)
    return np.stack([nodes, most, fewest], axis=1)


# Workload and machine; then what else changes its time and is no size and no number of machines.
Kind = tuple[str, ...]
GROUP = ("workload", "device")
SETTINGS = ("framework", "precision", "seq_len", "image_size", "instance_type", "sync",
            "cpus_per_worker", "node_gbps")  # fmt: skip
# Of these, what a worker is given to work with: numbers, for whoever can read them as such.
RESOURCES = ("cpus_per_worker", "node_gbps")
# How long a whole run takes hangs on how it trains, too.
RUN_SETTINGS = ("optimizer", "learning_rate", "target")
# What a run can time, and the columns that can be the size of it, the usual first.
SIZES: Mapping[str, tuple[str, ...]] = {
    "step": ("global_batch", "dataset_size"),
    "epoch": ("dataset_size",),
    "run": ("dataset_size",),
}
_WORKLOAD_TEXTS = ("workload", "framework", "precision", "seq_len", "image_size")
_CLUSTER_TEXTS = ("device", "instance_type")


@dataclass(frozen=True)
class LawRows:
    """n jobs as sizes, machines and kinds. A workload or device nobody knows goes by its label.

    Attributes:
        jobs: n of them.
        quantity: that is to be told; runs are of more kinds than steps (`RUN_SETTINGS`).
        apart: whether other `RESOURCES` make another kind; not for whoever reads them as numbers.
    """

    jobs: Jobs
    quantity: str = "step"
    apart: bool = True

    @cached_property
    def labels(self) -> Table:
        """The rows as they were asked, with no column where nobody says any."""
        labels = self.jobs.labels
        return Table({}, len(self.jobs)) if labels is None else labels

    @cached_property
    def machines(self) -> FloatArray:
        """Devices of each job, (n,): of its cluster, else as the row says; NaN where neither."""
        stated = self.labels.numbers("devices")
        known = np.array([float(c.devices) for c in self.jobs.clusters] + [np.nan])
        return np.where(self.jobs.cluster_index >= 0, known[self.jobs.cluster_index], stated)

    def size(self, column: str) -> FloatArray:
        """Return the size of each job (n,), NaN where it is not stated; 1 for the column ""."""
        if not column:
            return np.ones(len(self.jobs))
        if column == "micro_batch":
            return np.where(self.micro_batch > 0, self.micro_batch, np.nan)
        stated = self.labels.numbers(column)
        if column == "dataset_size":
            known = np.array([w.dataset_size for w in self.jobs.workloads] + [0.0])
            usual = known[self.jobs.workload_index]
            stated = np.where(np.isnan(stated), np.where(usual > 0, usual, np.nan), stated)
        else:
            stated = np.where(np.isnan(stated), self._planned_batch, stated)
        return np.where(stated > 0, stated, np.nan)

    @property
    def _planned_batch(self) -> FloatArray:
        """Return the global batch of plans that say one: no default is taken for a size."""
        planned = self.jobs.plans.global_batch.astype(np.float64)
        if self.jobs.labels is None:
            return planned
        said = self.jobs.resolved & ~np.isnan(self.labels.numbers("micro_batch"))
        return np.where(said, planned, np.nan)

    @property
    def states_plan(self) -> NDArray[np.bool_]:
        """Which jobs say how they split a batch, (n,): rows of tables may state no batch at all."""
        if self.jobs.labels is None:
            return np.ones(len(self.jobs), dtype=bool)
        said = [self.labels.numbers(name) for name in ("global_batch", "micro_batch")]
        return np.isfinite(said[0]) | np.isfinite(said[1])

    @cached_property
    def placements(self) -> Placements:
        """Return nodes, and the most and the fewest devices on one of them, of each job."""
        return placements_of(self.jobs, self.labels, self.machines)

    @cached_property
    def replicas(self) -> FloatArray:
        """Data-parallel replicas of each job (n,): dp where it is stated, else its devices."""
        stated = self.labels.numbers("dp")
        if self.jobs.labels is None:
            return self.jobs.plans.dp.astype(np.float64)
        return np.where(stated > 0, stated, self.machines)

    @cached_property
    def micro_batch(self) -> FloatArray:
        """Samples a device does in one forward-backward pass (n,), NaN where nothing says so."""
        if self.jobs.labels is None:
            return self.jobs.plans.micro_batch.astype(np.float64)
        stated = self.labels.numbers("micro_batch")
        passes = self.labels.numbers("grad_accum")
        shared = self.size("global_batch") / (self.replicas * np.where(passes > 0, passes, 1.0))
        return np.where(stated > 0, stated, shared)

    @cached_property
    def accumulation(self) -> FloatArray:
        """Forward-backward passes of a step (n,): batch / (micro-batch x replicas), 1 at least.

        A stated grad_accum counts only where no batch is stated: tables are known to err in it.
        """
        passes = self.size("global_batch") / (self.micro_batch * self.replicas)
        stated = self.labels.numbers("grad_accum")
        passes = np.where(np.isnan(passes), stated, passes)
        return np.where(passes > 1, passes, 1.0)

    @cached_property
    def servers(self) -> FloatArray:
        """Parameter servers of each job (n,); NaN where nothing says how many."""
        planned = self.jobs.plans.parameter_servers.astype(np.float64)
        stated = self.labels.numbers("parameter_servers")
        known = stated if self.jobs.labels is not None else planned
        return np.where(known > 0, known, np.nan)

    @property
    def sync(self) -> IntArray:
        """How replicas agree, as positions in `domain.plan.SYNC`, (n,)."""
        return self.jobs.plans.sync.astype(np.int64)

    @cached_property
    def kinds(self) -> tuple[list[Kind], IntArray]:
        """Distinct kinds of job, `GROUP` then `SETTINGS`, and which each job is, (n,).

        Of whole runs `RUN_SETTINGS` follow, where a row says any of them.
        """
        workloads, w = self._workloads
        clusters, c = self._clusters
        trainings, t = self._trainings
        given, g = self._given
        counts = (max(len(clusters), 1), len(SYNC), len(given), max(len(trainings), 1))
        code = w
        for count, part in zip(counts, (c, self.sync, g, t), strict=True):
            code = code * count + part
        distinct, index = compact(code, max(len(workloads), 1) * int(np.prod(counts)))
        kinds: list[Kind] = []
        for value in distinct.tolist():
            rest, training = divmod(value, counts[3])
            rest, one_given = divmod(rest, counts[2])
            pair, how = divmod(rest, counts[1])
            one, other = divmod(pair, counts[0])
            name, *settings = workloads[one]
            device, instance = clusters[other]
            kinds.append(
                (name, device, *settings, instance, SYNC[how], *given[one_given],
                 *trainings[training])
            )  # fmt: skip
        return kinds, index

    @cached_property
    def _workloads(self) -> tuple[list[Kind], IntArray]:
        known: list[Kind] = [
            (w.name, w.framework, w.precision, _text(w.seq_len), _text(w.image_size))
            for w in self.jobs.workloads
        ]
        return completed(known, self.jobs.workload_index, self.labels, _WORKLOAD_TEXTS)

    @cached_property
    def _given(self) -> tuple[list[Kind], IntArray]:
        if not self.apart or not any(name in self.labels for name in RESOURCES):
            return [("",) * len(RESOURCES)], np.zeros(len(self.jobs), dtype=np.int64)
        none = np.full(len(self.jobs), -1, dtype=np.int32)
        return completed([], none, self.labels, RESOURCES)

    @cached_property
    def _trainings(self) -> tuple[list[Kind], IntArray]:
        if self.quantity != "run" or not any(name in self.labels for name in RUN_SETTINGS):
            return [()], np.zeros(len(self.jobs), dtype=np.int64)
        none = np.full(len(self.jobs), -1, dtype=np.int32)
        return completed([], none, self.labels, RUN_SETTINGS)

    @cached_property
    def _clusters(self) -> tuple[list[Kind], IntArray]:
        known: list[Kind] = [(c.device.id, c.instance_type) for c in self.jobs.clusters]
        return completed(known, self.jobs.cluster_index, self.labels, _CLUSTER_TEXTS)


def filled(kinds: Sequence[Kind], known: Collection[Kind]) -> list[Kind]:
    """Return kinds with what they say of no resource taken from the one known kind that is alike.

    Whoever asks leaves out what never varied; where known kinds differ in it, it stays blank.
    """
    first = len(GROUP) + SETTINGS.index(RESOURCES[0])
    stop = first + len(RESOURCES)
    alike: dict[Kind, list[Kind]] = {}
    for kind in known:
        alike.setdefault((*kind[:first], *kind[stop:]), []).append(kind)
    found = []
    for kind in kinds:
        given = kind[first:stop]
        near = [
            other for other in alike.get((*kind[:first], *kind[stop:]), ())
            if all(mine in ("", theirs) for mine, theirs in zip(given, other[first:stop], strict=False))
        ] if "" in given and kind not in known else []  # fmt: skip
        found.append(near[0] if len(near) == 1 else kind)
    return found


def _text(value: float) -> str:
    return f"{value:g}" if value else ""


def measured(runs: Runs, quantity: str) -> FloatArray:
    """Return seconds of a `step`, `epoch` or `run` (n,), NaN where a run has none or did not end."""
    if quantity == "step":
        return runs.step_seconds()
    column = "epoch_time_s" if quantity == "epoch" else "time_to_train_s"
    seconds = runs.measured(column)
    return np.where((runs.status == "ok") & (seconds > 0) & np.isfinite(seconds), seconds, np.nan)


def chosen_size(rows: LawRows, quantity: str) -> str:
    """Return which column is the size of these runs of one kind: "" where none is stated.

    The usual one, unless it never changes while the other does, or fewer than half of the runs
    state it.
    """
    stated = {}
    for name in SIZES[quantity]:
        values = rows.size(name)
        values = values[~np.isnan(values)]
        if 2 * len(values) >= len(rows.jobs):
            stated[name] = len(np.unique(values)) > 1
    return next((name for name, varies in stated.items() if varies), next(iter(stated), ""))
