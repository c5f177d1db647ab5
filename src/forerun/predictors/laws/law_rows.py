"""LawRows: what laws read of jobs: devices, sizes, placements, resources, and the kind of each job."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.domain.forecast import QUANTITIES
from forerun.domain.plan import SYNC
from forerun.tables import Jobs, Runs, Table
from forerun.tables.jobs import CUT
from forerun.tables.table import label_key

# Workload and device; then what else changes a time and is neither a size nor a number of devices.
Kind = tuple[str, ...]
# The distinct texts of a column, and which each of n jobs has, (n,).
Words = tuple[list[str], IntArray]
GROUP = ("workload", "device")
SETTINGS = ("framework", "precision", "seq_len", "image_size", "instance_type", "sync",
            "cpus_per_worker", "node_gbps")  # fmt: skip
# Settings that are numbers: the cores and the network rate that a worker has.
RESOURCES = ("cpus_per_worker", "node_gbps")
# The time of a whole run also depends on how it trains.
RUN_SETTINGS = ("optimizer", "learning_rate", "target")
# What a run can time, and the columns that can be its size, the usual first.
SIZES: Mapping[str, tuple[str, ...]] = {
    "step": ("global_batch", "dataset_size"), "epoch": ("dataset_size",), "run": ("dataset_size",),
}  # fmt: skip
_OF_WORKLOADS = ("workload", "framework", "precision", "seq_len", "image_size", "optimizer")
_BITS = 8.0  # in a byte
# Speed goes by these powers with a part of a core and with whole cores (Amdahl, 1967: some of the
# work is not divided), and with the cores beside an accelerator.
SHARE_POWER, CORES_POWER, BESIDE_POWER = 1.0, 0.85, 0.1


@dataclass(frozen=True)
class Placements:
    """Nodes of n jobs, and the most and the fewest devices on one of them, (n,); NaN where not stated."""

    nodes: FloatArray
    most: FloatArray
    fewest: FloatArray


def placement_counts(text: str, machines: float = np.nan) -> tuple[float, float, float]:
    """Return nodes, most and fewest devices on one, of `134`, `4-4-2` or `[4, 4]`; else NaN.

    Without a separator each digit is a node, but for the number of `machines` itself.
    """
    plain = text.strip().strip("[]()")
    mark = next((mark for mark in "-,;/ " if mark in plain), "")
    if mark:
        parts = [part for part in plain.split(mark) if part.strip()]
    else:
        parts = [plain] if plain == f"{machines:g}" else list(plain)
    if not all(part.strip().isdecimal() for part in parts):
        return np.nan, np.nan, np.nan
    devices = [int(part) for part in parts if int(part) > 0]
    if not devices:
        return np.nan, np.nan, np.nan
    return float(len(devices)), float(max(devices)), float(min(devices))


@dataclass(frozen=True)
class LawRows:
    """n jobs by size, devices and kind, unknown names by label.

    apart: other `RESOURCES` are other kinds. own_apart: other own columns are other workloads.
    """

    jobs: Jobs
    quantity: str = "step"
    apart: bool = True
    own_apart: bool = True

    @cached_property
    def labels(self) -> Table:
        """The rows as given, with no column where the jobs have no labels."""
        labels = self.jobs.labels
        return Table({}, len(self.jobs)) if labels is None else labels

    @cached_property
    def machines(self) -> FloatArray:
        """Devices of each job, (n,): of its cluster, else as the row states; NaN where neither."""
        known = self.jobs.per_cluster("devices", np.nan)
        return np.where(self.jobs.cluster_index >= 0, known, self._positive("devices"))

    def size(self, column: str) -> FloatArray:
        """Return the size of each job (n,), NaN where it is not stated; 1 for the column ""."""
        if not column:
            return np.ones(len(self.jobs))
        stated = self.micro_batch if column == "micro_batch" else self.labels.numbers(column)
        if column == "dataset_size":
            known = self.jobs.per_workload("dataset_size", 0.0)
            stated = np.where(np.isnan(stated), known, stated)
        elif column == "global_batch":
            # A batch that a plan has by default is no size.
            planned = self.jobs.plans.global_batch.astype(np.float64)
            if self.jobs.labels is not None:
                states = self.jobs.resolved & ~np.isnan(self.labels.numbers("micro_batch"))
                planned = np.where(states, planned, np.nan)
            stated = np.where(np.isnan(stated), planned, stated)
        return np.where(stated > 0, stated, np.nan)

    @cached_property
    def problems(self) -> NDArray[np.object_]:
        """Why each job's plan is illegal or no law speaks of it, or None, (n,). One that nobody stated is not illegal."""
        found = np.full(len(self.jobs), None, dtype=object)
        if self.jobs.plan_problem is not None:
            # Rows of tables may state no batch at all, and so not how they split it.
            batches = [self.labels.numbers(name) for name in ("global_batch", "micro_batch")]
            stated = np.isfinite(batches).any(axis=0) | (self.jobs.labels is None)
            found[stated] = self.jobs.plan_problem[stated]
        found[self.jobs.plans.partitions > 1] = CUT
        return found

    @cached_property
    def placements(self) -> Placements:
        """Where each job is: by its placement as text, else its cluster, `nodes` or `devices_per_node`."""
        known = []
        for cluster in self.jobs.clusters:
            used = [c for c in cluster.placement if c] or [cluster.devices_per_node] * cluster.nodes
            known.append((len(used), max(used), min(used)))
        table = np.array([*known, (np.nan,) * 3], dtype=np.float64)
        counts = table[self.jobs.cluster_index]
        if "placement" in self.labels:
            texts = self.labels.texts("placement").tolist()
            pairs = list(zip(texts, self.machines.tolist(), strict=True))
            read = {pair: placement_counts(*pair) for pair in dict.fromkeys(pairs)}
            stated = np.array([read[pair] for pair in pairs]).reshape(-1, 3)
            counts = np.where(np.isnan(stated), counts, stated)
        nodes, each = self._positive("nodes"), self._positive("devices_per_node")
        nodes = np.where(np.isnan(nodes), np.ceil(self.machines / each), nodes)
        share = self.machines / nodes
        most = np.where(np.isnan(each), np.ceil(share), each)
        fewest = np.where(np.isnan(each), np.floor(share), each)
        counts = np.where(np.isnan(counts), np.stack([nodes, most, fewest], axis=1), counts)
        counts = np.where((self.machines == 1)[:, None], 1.0, counts)
        return Placements(counts[:, 0], counts[:, 1], counts[:, 2])

    @cached_property
    def replicas(self) -> FloatArray:
        """Data-parallel replicas of each job (n,): dp where it is stated, else its devices."""
        if self.jobs.labels is None:
            return self.jobs.plans.dp.astype(np.float64)
        stated = self.labels.numbers("dp")
        return np.where(stated > 0, stated, self.machines)

    @cached_property
    def micro_batch(self) -> FloatArray:
        """Samples of a device's forward-backward pass (n,), NaN where not known."""
        if self.jobs.labels is None:
            return self.jobs.plans.micro_batch.astype(np.float64)
        stated = self.labels.numbers("micro_batch")
        passes = self.labels.numbers("grad_accum")
        shared = self.size("global_batch") / (self.replicas * np.where(passes > 0, passes, 1.0))
        return np.where(stated > 0, stated, shared)

    @cached_property
    def accumulation(self) -> FloatArray:
        """Forward-backward passes of a step (n,), 1 at least; tables are known to err in grad_accum."""
        passes = self.size("global_batch") / (self.micro_batch * self.replicas)
        passes = np.where(np.isnan(passes), self.labels.numbers("grad_accum"), passes)
        return np.where(passes > 1, passes, 1.0)

    @cached_property
    def servers(self) -> FloatArray:
        """Parameter servers of each job (n,); NaN where not stated."""
        planned = self.jobs.plans.parameter_servers.astype(np.float64)
        known = planned if self.jobs.labels is None else self.labels.numbers("parameter_servers")
        return np.where(known > 0, known, np.nan)

    @property
    def sync(self) -> IntArray:
        """How replicas agree, as positions in `domain.plan.SYNC`, (n,)."""
        return self.jobs.plans.sync.astype(np.int64)

    @cached_property
    def log_cores(self) -> FloatArray:
        """Log of the cores that a worker can use, (n,): no more than its threads; NaN if not stated."""
        given, threads = self._positive("cpus_per_worker"), self._positive("threads")
        return np.log(np.where(threads < given, threads, given))

    @cached_property
    def log_wire(self) -> FloatArray:
        """Log of the stated GB/s of a machine's network, (n,)."""
        return np.log(self._positive("node_gbps") / _BITS)

    @cached_property
    def log_speed(self) -> FloatArray:
        """Log of the speed of a worker over that of one core, (n,), by prior powers of its cores."""
        share, cores = np.minimum(self.log_cores, 0.0), np.maximum(self.log_cores, 0.0)
        alone = SHARE_POWER * share + CORES_POWER * cores
        return np.where(self.processors == -1, BESIDE_POWER * (share + cores), alone)

    @cached_property
    def processors(self) -> IntArray:
        """1 for jobs that compute on a processor, -1 on another device, 0 where not known, (n,)."""
        known = [1 if cluster.device.kind == "cpu" else -1 for cluster in self.jobs.clusters]
        return np.array([*known, 0])[self.jobs.cluster_index]

    def _positive(self, name: str) -> FloatArray:
        values = self.labels.numbers(name)
        return np.where(values > 0, values, np.nan)

    def stated(self, name: str) -> Words:
        """Return the distinct texts of a column of the rows, by `label_key`, and which each job has, (n,)."""
        if name not in self.labels:
            return [""], np.zeros(len(self.jobs), dtype=np.int64)
        code, first = codes(self.labels.columns[name])
        texts = [label_key(name, text) for text in self.labels.take(first).texts(name).tolist()]
        place = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        return list(place), np.array([place[text] for text in texts], dtype=np.int64)[code]

    def words(self, name: str, row_first: bool = False) -> Words:
        """Return the distinct texts of a column, and which each job has, (n,).

        That of its workload, cluster or plan, else as the row states; the other way round with `row_first`.
        """
        (known, index), (texts, own) = self._resolved(name), self.stated(name)
        place = {text: i for i, text in enumerate(dict.fromkeys([*known, "", *texts]))}
        found = np.array([place[text] for text in (*known, "")], dtype=np.int64)[index]
        stated = np.array([place[text] for text in texts], dtype=np.int64)[own]
        states = stated != place[""] if row_first else index < 0
        result = list(place), np.where(states, stated, found)
        if name != GROUP[0] or not self.own_apart or not self.labels.own.factors:
            return result
        pairs, place_of = combined([result, self.own_words])
        return [f"{one} [{more}]" if more else one for one, more in pairs], place_of

    @cached_property
    def own_words(self) -> Words:
        """The distinct texts of the user's own columns, `kernel=3, filters=64`, and which each job has, (n,)."""
        factors = self.labels.own.factors
        if not factors:
            return [""], np.zeros(len(self.jobs), dtype=np.int64)
        cells, index = combined([self.stated(name) for name in factors])
        rows = [zip(factors, row, strict=True) for row in cells]
        return [", ".join(f"{name}={c}" for name, c in row if c) for row in rows], index

    def _resolved(self, name: str) -> tuple[list[str], IntArray | NDArray[np.int32]]:
        jobs = self.jobs
        if name == "sync":
            return list(SYNC), self.sync
        if name in ("device", "instance_type"):
            texts = [c.device.id if name == "device" else c.instance_type for c in jobs.clusters]
            return texts, jobs.cluster_index
        if name in _OF_WORKLOADS:
            found = [getattr(w, "name" if name == "workload" else name) for w in jobs.workloads]
            texts = [f"{v:g}" if v and not isinstance(v, str) else v or "" for v in found]
            return texts, jobs.workload_index
        return [], np.full(len(jobs), -1, dtype=np.int64)

    @cached_property
    def kinds(self) -> tuple[list[Kind], IntArray]:
        """Distinct kinds of job, `GROUP`, `SETTINGS` and those of a run, and which each job is, (n,)."""
        blank = [""], np.zeros(len(self.jobs), dtype=np.int64)
        columns = [
            self.words(name) if name not in RESOURCES else self.stated(name) if self.apart else blank
            for name in (*GROUP, *SETTINGS)
        ]  # fmt: skip
        if self.quantity == "run" and any(name in self.labels for name in RUN_SETTINGS):
            columns += [self.stated(name) for name in RUN_SETTINGS]
        return combined(columns)


def filled(kinds: Sequence[Kind], known: Collection[Kind]) -> list[Kind]:
    """Return kinds whose blank resources are those of the one known kind that is alike, else blank."""
    first = len(GROUP) + SETTINGS.index(RESOURCES[0])
    stop = first + len(RESOURCES)

    alike: dict[Kind, list[Kind]] = {}
    for other in known:
        alike.setdefault((*other[:first], *other[stop:]), []).append(other)

    def meant(kind: Kind) -> Kind:
        if "" not in kind[first:stop] or kind in known:
            return kind
        near = [
            other for other in alike.get((*kind[:first], *kind[stop:]), ())
            if all(a in ("", b) for a, b in zip(kind[first:stop], other[first:stop], strict=True))
        ]  # fmt: skip
        return near[0] if len(near) == 1 else kind

    return [meant(kind) for kind in kinds]


def measured(runs: Runs, quantity: str) -> FloatArray:
    """Return seconds of a `step`, `epoch` or `run` (n,), NaN where a run has none, did not end, or cut layers."""
    if quantity == "step":
        return runs.step_seconds()
    seconds = runs.table.numbers("epoch_time_s" if quantity == "epoch" else "time_to_train_s")
    return np.where(runs.ended & (seconds > 0) & np.isfinite(seconds), seconds, np.nan)


def most_timed(runs: Runs) -> tuple[str, FloatArray]:
    """Return the quantity that most runs time, and its seconds, see `measured`."""
    seconds = {quantity: measured(runs, quantity) for quantity in QUANTITIES}
    quantity = max(QUANTITIES, key=lambda name: int(np.isfinite(seconds[name]).sum()))
    return quantity, seconds[quantity]


def chosen_size(sizes: Mapping[str, FloatArray]) -> str:
    """Return which column is the size of runs of one kind, the usual first: "" where most state none.

    The usual one, unless it never changes while another does.
    """
    varies = {}
    for name, values in sizes.items():
        stated = values[~np.isnan(values)]
        if 2 * len(stated) >= len(values):
            varies[name] = len(np.unique(stated)) > 1
    return next((name for name, changes in varies.items() if changes), next(iter(varies), ""))


Span = tuple[float, float]
# Log standard deviation of an answer to a row that states what no run did.
UNREAD_SIGMA = 0.3


def spans(values: FloatArray, group: IntArray, groups: int) -> list[Span | None]:
    """Return least and most of each group's stated values, None where fewer than half are stated."""
    found: list[Span | None] = []
    for i in range(groups):
        mine = values[group == i]
        stated = mine[np.isfinite(mine)]
        many = len(stated) and 2 * len(stated) >= len(mine)
        found.append((float(stated.min()), float(stated.max())) if many else None)
    return found


@dataclass(frozen=True)
class ResourceReading:
    """One resource of n jobs as a law reads it, in logs, (n,).

    values: as stated, else the middle of the group's runs, NaN where they state none. beyond: their span.
    """

    values: FloatArray
    unsure: FloatArray
    beyond: FloatArray

    @staticmethod
    def of(values: FloatArray, group: IntArray, known: Sequence[Span | None]) -> ResourceReading:
        """Return the reading of stated logs (n,), NaN where not; group: -1 for none; known: see `spans`."""
        nothing = (np.nan, np.nan)
        low, high = np.array([*(one or nothing for one in known), nothing])[group].T
        stated, fitted = np.isfinite(values), np.isfinite(low)
        filled_in = np.where(stated, values, (low + high) / 2.0)
        unsure = np.where(stated, np.where(fitted, 0.0, UNREAD_SIGMA), (high - low) / 2.0)
        beyond = np.fmax(np.fmax(filled_in - high, low - filled_in), 0.0)
        return ResourceReading(np.where(fitted, filled_in, np.nan), np.nan_to_num(unsure), beyond)

    @property
    def ambiguous(self) -> BoolArray:
        """Which rows state nothing where the runs of their group differ, (n,)."""
        return np.asarray((self.unsure > 0) & np.isfinite(self.values))


def combined(columns: Sequence[tuple[Sequence[Any], IntArray]]) -> tuple[list[Kind], IntArray]:
    """Return the distinct combinations of the texts of n jobs, and which each job has, (n,)."""
    code, count = np.zeros(len(columns[0][1]), dtype=np.int64), 1
    for texts, index in columns:
        if len(texts) > 1:
            # Made small again at once, so that no product of many columns can overflow.
            distinct, code = np.unique(code * len(texts) + index, return_inverse=True)
            count = len(distinct)
    if not len(code):
        return [], code
    first = _first(code, count)
    picked = [(texts, index[first].tolist()) for texts, index in columns]
    return list(zip(*([texts[i] for i in of] for texts, of in picked), strict=True)), code


def codes(column: NDArray[Any]) -> tuple[IntArray, IntArray]:
    """Return a small number for each distinct cell, (n,), and the first row of each."""
    if column.dtype == object:
        # A dictionary takes a million texts faster than a sort.
        cells = column.tolist()
        place = {cell: i for i, cell in enumerate(dict.fromkeys(cells))}
        code = np.fromiter(map(place.__getitem__, cells), np.int64, len(cells))
        return code, _first(code, len(place))
    _, first, code = np.unique(column, return_index=True, return_inverse=True)
    return code.reshape(-1), first


def _first(code: IntArray, count: int) -> IntArray:
    first = np.empty(count, dtype=np.int64)
    first[code[::-1]] = np.arange(len(code))[::-1]  # of several the last one written stays
    return first
