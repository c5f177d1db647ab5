"""Columns: what of a job the choice looks at: its kind of work and machine, its place, its numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.domain.plan import NAMES
from forerun.predictors.laws.law_rows import GROUP, Kind, LawRows
from forerun.tables import Jobs

# What a law of sizes and machines does not see of a plan.
_LAYOUT = tuple(name for name in NAMES if name not in ("dp", "micro_batch", "global_batch", "sync"))


@dataclass(frozen=True)
class JobColumns:
    """n jobs by what tells them apart; names that nobody knows go by their labels.

    Attributes:
        jobs: n of them.
        quantity: that is asked of them; see `law_rows.LawRows`.
    """

    jobs: Jobs
    quantity: str = "step"

    @cached_property
    def rows(self) -> LawRows:
        """The jobs as laws read them; what a worker is given is a number, and makes no kinds."""
        return LawRows(self.jobs, self.quantity, apart=False)

    @cached_property
    def given(self) -> tuple[FloatArray, FloatArray]:
        """Cores that a worker can use, and GB/s of a machine's network, (n,) each, NaN where not said."""
        return np.exp(self.rows.log_cores), np.exp(self.rows.log_wire)

    @cached_property
    def kinds(self) -> tuple[list[Kind], IntArray]:
        """Distinct kinds, and which each job is (n,); see `law_rows.LawRows.kinds`."""
        return self.rows.kinds

    @cached_property
    def groups(self) -> tuple[list[Kind], IntArray]:
        """Distinct pairs of workload and device, and which each job is, (n,)."""
        kinds, index = self.kinds
        distinct = list(dict.fromkeys(kind[: len(GROUP)] for kind in kinds))
        place = {group: i for i, group in enumerate(distinct)}
        of = np.array([place[kind[: len(GROUP)]] for kind in kinds], dtype=np.int64)
        return distinct, of[index] if len(of) else index

    @property
    def machines(self) -> FloatArray:
        """Devices, (n,), NaN where not said."""
        return self.rows.machines

    @cached_property
    def nodes(self) -> FloatArray:
        """Nodes, (n,), NaN where not said."""
        stated = self.rows.labels.numbers("nodes")
        known = np.array([float(c.nodes) for c in self.jobs.clusters] + [np.nan])
        index = self.jobs.cluster_index
        return np.where(index >= 0, known[index], stated)

    @cached_property
    def batch(self) -> FloatArray:
        """Samples of a step, (n,), NaN where not said."""
        return self.rows.size("global_batch")

    @cached_property
    def share(self) -> FloatArray:
        """Samples of a step on one device, (n,), NaN where not said.

        A row may state what a device does alone: its micro-batch, and how many it accumulates.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            shared = np.asarray(self.batch / self.machines)
        labels, plans = self.rows.labels, self.jobs.plans
        passes, replicas = labels.numbers("grad_accum"), labels.numbers("dp")
        split = (plans.tp * plans.pp * plans.cp).astype(np.float64)  # devices of one replica
        with np.errstate(divide="ignore", invalid="ignore"):
            split = np.where(replicas > 0, self.machines / replicas, split)
        stated = labels.numbers("micro_batch") * np.where(passes > 1, passes, 1.0) / split
        return np.where(np.isnan(shared), stated, shared)

    @cached_property
    def dataset(self) -> FloatArray:
        """Samples in an epoch, (n,), NaN where not said."""
        return self.rows.size("dataset_size")

    @cached_property
    def cluster(self) -> NDArray[np.object_]:
        """Label of the machines, (n,), "" where there is none."""
        return self.rows.labels.texts("cluster")

    @cached_property
    def layout(self) -> tuple[list[bytes], IntArray]:
        """Distinct layouts of a plan over devices, and which each job has, (n,)."""
        plans = self.jobs.plans
        table = np.stack([getattr(plans, name) for name in _LAYOUT], axis=1).astype(np.int32)
        distinct, index = np.unique(table, axis=0, return_inverse=True)
        return [row.tobytes() for row in distinct], index.reshape(-1).astype(np.int64)
