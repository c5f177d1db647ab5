"""LawRows: what a law of sizes and machines reads of jobs, and what tells one kind of job from another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from forerun.domain.plan import SYNC
from forerun.tables import Jobs, Runs, Table

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# Workload and machine; then what else changes its time and is no size and no number of machines.
Kind = tuple[str, ...]
GROUP = ("workload", "device")
SETTINGS = ("framework", "precision", "seq_len", "image_size", "instance_type", "sync")
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
    """n jobs as sizes, machines and kinds. A workload or device nobody knows goes by its label."""

    jobs: Jobs

    @cached_property
    def _labels(self) -> Table:
        labels = self.jobs.labels
        return Table({}, len(self.jobs)) if labels is None else labels

    @cached_property
    def machines(self) -> FloatArray:
        """Devices of each job, (n,): of its cluster, else as the row says; NaN where neither."""
        stated = self._labels.numbers("devices")
        known = np.array([float(c.devices) for c in self.jobs.clusters] + [np.nan])
        return np.where(self.jobs.cluster_index >= 0, known[self.jobs.cluster_index], stated)

    def size(self, column: str) -> FloatArray:
        """Return the size of each job (n,), NaN where it is not stated; 1 for the column ""."""
        if not column:
            return np.ones(len(self.jobs))
        stated = self._labels.numbers(column)
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
        said = self.jobs.resolved & ~np.isnan(self._labels.numbers("micro_batch"))
        return np.where(said, planned, np.nan)

    @property
    def states_plan(self) -> NDArray[np.bool_]:
        """Which jobs say how they split a batch, (n,): rows of tables may state no batch at all."""
        if self.jobs.labels is None:
            return np.ones(len(self.jobs), dtype=bool)
        said = [self._labels.numbers(name) for name in ("global_batch", "micro_batch")]
        return np.isfinite(said[0]) | np.isfinite(said[1])

    @cached_property
    def kinds(self) -> tuple[list[Kind], IntArray]:
        """Distinct kinds of job, `GROUP` then `SETTINGS`, and which each job is, (n,)."""
        workloads, w = self._workloads
        clusters, c = self._clusters
        sync = self.jobs.plans.sync.astype(np.int64)
        code = (w * max(len(clusters), 1) + c) * len(SYNC) + sync
        distinct, index = np.unique(code, return_inverse=True)
        kinds: list[Kind] = []
        for value in distinct.tolist():
            pair, how = divmod(value, len(SYNC))
            one, other = divmod(pair, max(len(clusters), 1))
            name, *settings = workloads[one]
            device, instance = clusters[other]
            kinds.append((name, device, *settings, instance, SYNC[how]))
        return kinds, index.reshape(-1).astype(np.int64)

    @cached_property
    def _workloads(self) -> tuple[list[Kind], IntArray]:
        known: list[Kind] = [
            (w.name, w.framework, w.precision, _text(w.seq_len), _text(w.image_size))
            for w in self.jobs.workloads
        ]
        return self._completed(known, self.jobs.workload_index, _WORKLOAD_TEXTS)

    @cached_property
    def _clusters(self) -> tuple[list[Kind], IntArray]:
        known: list[Kind] = [(c.device.id, c.instance_type) for c in self.jobs.clusters]
        return self._completed(known, self.jobs.cluster_index, _CLUSTER_TEXTS)

    def _completed(
        self, known: list[Kind], index: NDArray[np.int32], names: tuple[str, ...]
    ) -> tuple[list[Kind], IntArray]:
        """Return the kinds of what is known, and of what is not, as its labels say; equals merged."""
        kinds, index = list(known), index.astype(np.int64)
        rows = np.flatnonzero(index < 0)
        if len(rows):
            texts = [self._labels.texts(name)[rows].tolist() for name in names]
            # A dictionary meets a million texts faster than sorting them does.
            labelled = dict.fromkeys(zip(*texts, strict=True))
            place = {label: len(kinds) + i for i, label in enumerate(labelled)}
            index[rows] = np.fromiter(map(place.__getitem__, zip(*texts, strict=True)), np.int64)
            kinds += [tuple(text.strip() for text in label) for label in labelled]
        merged = list(dict.fromkeys(kinds))
        order = {kind: i for i, kind in enumerate(merged)}
        return merged, np.array([order[kind] for kind in kinds], dtype=np.int64)[index]


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
