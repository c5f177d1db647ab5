"""Jobs and Runs: questions and facts as columns, with distinct workloads and clusters interned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.domain.forecast import is_none
from forerun.domain.hardware import Cluster
from forerun.domain.job import Job, problem_text
from forerun.domain.plan_columns import Limits, PlanColumns, plan_problems
from forerun.domain.workload import Workload
from forerun.errors import RequestError
from forerun.tables.rates import flop_rate_seconds, throughput_seconds
from forerun.tables.table import Table

Reasons = NDArray[np.object_]
T = TypeVar("T")


@dataclass(frozen=True)
class Jobs:
    """n questions. Rows from a table may be unresolved: each aspect carries its own reason.

    Attributes:
        workloads, clusters: the distinct ones.
        workload_index, cluster_index: (n,) positions in them, -1 where unresolved.
        plans: columns of length n.
        workload_problem, cluster_problem, plan_problem: (n,) of str or None; None for all where
            every row is resolved.
        labels: the rows as they were asked, for predictors that learn by label.
    """

    workloads: tuple[Workload, ...]
    clusters: tuple[Cluster, ...]
    workload_index: NDArray[np.int32]
    cluster_index: NDArray[np.int32]
    plans: PlanColumns
    workload_problem: Reasons | None = None
    cluster_problem: Reasons | None = None
    plan_problem: Reasons | None = None
    labels: Table | None = None

    @staticmethod
    def of(jobs: Sequence[Job]) -> Jobs:
        """Return jobs as columns."""
        workloads, workload_index = _interned([job.workload for job in jobs])
        clusters, cluster_index = _interned([job.cluster for job in jobs])
        plans = PlanColumns.of([job.plan for job in jobs])
        return Jobs(workloads, clusters, workload_index, cluster_index, plans)

    @staticmethod
    def grid(workload: Workload, cluster: Cluster, plans: PlanColumns) -> Jobs:
        """Return one workload on one cluster under many plans."""
        zero = np.zeros(len(plans), dtype=np.int32)
        return Jobs((workload,), (cluster,), zero, zero, plans)

    def __len__(self) -> int:
        return len(self.workload_index)

    def __getitem__(self, i: int) -> Job:
        problem = self.problem(i)
        if problem is not None:
            raise RequestError(f"job {i}", problem, "mend the row")
        return Job(
            self.workloads[self.workload_index[i]],
            self.clusters[self.cluster_index[i]],
            self.plans[i],
        )

    def __iter__(self) -> Iterator[Job]:
        return (self[i] for i in range(len(self)))

    def problem(self, i: int) -> str | None:
        """Return why row i is not a checked job, or None."""
        for reasons in (self.workload_problem, self.cluster_problem, self.plan_problem):
            if reasons is not None and reasons[i] is not None:
                return str(reasons[i])
        return None

    @property
    def resolved(self) -> NDArray[np.bool_]:
        """Which rows have a workload, a cluster and a legal plan, (n,)."""
        ok = (self.workload_index >= 0) & (self.cluster_index >= 0)
        if self.plan_problem is not None:
            ok &= is_none(self.plan_problem)
        return ok

    def take(self, index: NDArray[Any]) -> Jobs:
        """Return the rows at the given positions (or where a mask is true)."""

        def pick(values: Reasons | None) -> Reasons | None:
            return None if values is None else values[index]

        return replace(
            self,
            workload_index=self.workload_index[index],
            cluster_index=self.cluster_index[index],
            plans=self.plans.take(index),
            workload_problem=pick(self.workload_problem),
            cluster_problem=pick(self.cluster_problem),
            plan_problem=pick(self.plan_problem),
            labels=None if self.labels is None else self.labels.take(index),
        )

    def per_workload(self, field: str) -> NDArray[Any]:
        """Return a workload attribute (or LayerShape's, as `shape.layers`) for each row, (n,)."""
        return _gather(self.workloads, field, self.workload_index)

    def per_cluster(self, field: str) -> NDArray[Any]:
        """Return a cluster attribute (or its device's, as `device.watts`) for each row, (n,)."""
        return _gather(self.clusters, field, self.cluster_index)

    def limits(self) -> Limits:
        """Return what the plans must divide, as columns (rows must be resolved)."""
        return Limits(
            layers=self.per_workload("shape.layers"), heads=self.per_workload("shape.heads"),
            kv_heads=self.per_workload("shape.kv_heads"),
            experts=self.per_workload("shape.experts"), seq_len=self.per_workload("seq_len"),
            devices=self.per_cluster("devices"), nodes=self.per_cluster("nodes"),
        )  # fmt: skip

    def checked(self) -> Jobs:
        """Return the jobs with `plan_problem` filled where a resolved row's plan is not legal."""
        known = (self.workload_index >= 0) & (self.cluster_index >= 0)
        reasons = (
            np.full(len(self), None, dtype=object)
            if self.plan_problem is None
            else self.plan_problem.copy()
        )
        rows = np.flatnonzero(known & is_none(reasons))
        part = self.take(rows)
        codes = plan_problems(part.plans, part.limits())
        for j in np.flatnonzero(codes):
            reasons[rows[j]] = problem_text(
                int(codes[j]), self.workloads[part.workload_index[j]],
                self.clusters[part.cluster_index[j]], part.plans[int(j)],
            )  # fmt: skip
        return replace(self, plan_problem=reasons)


def _interned(values: Sequence[T]) -> tuple[tuple[T, ...], NDArray[np.int32]]:
    """Return the distinct objects (by identity) and each value's position among them."""
    seen: dict[int, int] = {}
    distinct: list[T] = []
    index = np.empty(len(values), dtype=np.int32)
    for i, value in enumerate(values):
        if id(value) not in seen:
            seen[id(value)] = len(distinct)
            distinct.append(value)
        index[i] = seen[id(value)]
    return tuple(distinct), index


def _gather(values: Sequence[Any], field: str, index: NDArray[np.int32]) -> NDArray[Any]:
    def read(value: Any) -> Any:
        for name in field.split("."):
            value = getattr(value, name)
        return np.nan if value is None else value

    return np.array([read(v) for v in values])[index]


@dataclass(frozen=True)
class Runs:
    """n facts: the jobs that were run and the table of what was measured.

    Attributes:
        jobs: that were run.
        table: of what was measured of each.
        ordered: whether the rows are known to be as `ordering.sorted_runs` puts them.
    """

    jobs: Jobs
    table: Table
    ordered: bool = field(default=False, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.jobs)

    def take(self, index: NDArray[Any]) -> Runs:
        """Return the rows at the given positions (or where a mask is true)."""
        kept = index.dtype == bool or bool(
            (index[1:] >= index[:-1]).all() and (index[:1] >= 0).all()
        )
        return Runs(self.jobs.take(index), self.table.take(index), self.ordered and kept)

    @property
    def status(self) -> Reasons:
        """ok, oom, failed or timeout for each row; a blank status of a measured row is ok."""
        texts = self.table.texts("status")
        words = {text: text.strip().lower() or "ok" for text in set(texts.tolist())}
        return np.array([words[text] for text in texts], dtype=object)

    def measured(self, name: str) -> FloatArray:
        """Return a measured number column (n,), NaN where it was not measured."""
        return self.table.numbers(name)

    def step_seconds(self) -> FloatArray:
        """Return seconds of one optimizer step (n,), derived from rates where they are given.

        step_time_s, else global_batch / samples_per_s, else the same of tokens, else the FLOPs of
        the step over tflops_per_device; NaN for rows that are not ok.
        """
        step = self.table.numbers("step_time_s").copy()
        for rated in (throughput_seconds(self.table), flop_rate_seconds(self.jobs, self.table)):
            step = np.where(np.isnan(step), rated, step)
        return np.where((self.status == "ok") & (step > 0) & np.isfinite(step), step, np.nan)
