"""Jobs and Runs: questions and facts as columns, with distinct workloads and clusters interned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, ColumnRows, FloatArray
from forerun.domain import plan
from forerun.domain.forecast import is_none
from forerun.domain.hardware import Cluster
from forerun.domain.job import Job, problem_text
from forerun.domain.workload import Workload
from forerun.errors import RequestError
from forerun.tables.table import COLUMNS, OwnColumns, Table, joined_lines, sortable
from forerun.units import GIGA


def row_step_samples(table: Table) -> FloatArray:
    """Return the samples of each row's step, (n,), NaN where not stated; see `Plan.step_samples`."""
    workers = table.numbers("dp")
    workers = np.where(np.isnan(workers), table.numbers("devices"), workers)
    alone = np.char.lower(table.texts("sync").astype(str)) == plan.SYNC[plan.PS_ASYNC]
    return plan.step_samples(table.numbers("global_batch"), workers, alone * plan.PS_ASYNC)


def throughput_seconds(table: Table) -> FloatArray:
    """Return a step's samples / samples_per_s, else the same of tokens, NaN where not stated, (n,)."""
    batch = row_step_samples(table)
    with np.errstate(divide="ignore", invalid="ignore"):
        samples = batch / table.numbers("samples_per_s")
        tokens = batch * table.numbers("seq_len") / table.numbers("tokens_per_s")
    return np.where(np.isnan(samples), tokens, samples)


def flop_rate_seconds(jobs: Jobs, table: Table) -> FloatArray:
    """Return the step that tflops_per_device implies, NaN where the FLOPs are not known, (n,).

    With full recompute a stated rate counts the second forward too, by Narayanan et al. 2021, equation 3,
    where the row states its shape, else by the workload's own FLOPs.
    """
    rate = table.numbers("tflops_per_device") * 1e12 * table.numbers("devices")
    full = jobs.plans.recompute == plan.RECOMPUTE.index("full")
    forward, backward = (
        jobs.per_workload(f"graph.{phase}_flops", np.nan) for phase in ("forward", "backward")
    )
    own = forward * (1 + full) + backward
    s, layers, h, vocab = (table.numbers(name) for name in ("seq_len", "layers", "hidden", "vocab"))
    with np.errstate(divide="ignore", invalid="ignore"):
        published = 96 * s * layers * h * h * (1 + s / (6 * h) + vocab / (16 * layers * h))
        counted = np.where(full & np.isfinite(published), published, own)
        return np.asarray(counted * row_step_samples(table) / rate)


Reasons = NDArray[np.object_]
# Why laws and fits have no part in a row with `partitions` above 1.
CUT = (
    "its layers are cut over workers, which physics alone times and no fit learns from; use"
    " --predictor analytic, or partitions=1"
)


@dataclass(frozen=True)
class Jobs(ColumnRows):
    """n questions. Rows from a table may be unresolved: each aspect carries its own reason.

    The indices (n,) are positions among the distinct workloads and clusters, -1 where unresolved; the
    problems (n,) are texts or None; `labels` are the rows as they were given.
    """

    workloads: tuple[Workload, ...]
    clusters: tuple[Cluster, ...]
    workload_index: NDArray[np.int32]
    cluster_index: NDArray[np.int32]
    plans: plan.PlanColumns
    workload_problem: Reasons | None = None
    cluster_problem: Reasons | None = None
    plan_problem: Reasons | None = None
    labels: Table | None = None

    @staticmethod
    def of(jobs: Sequence[Job]) -> Jobs:
        """Return jobs as columns."""
        workloads, workload_index = _interned([job.workload for job in jobs])
        clusters, cluster_index = _interned([job.cluster for job in jobs])
        plans = plan.PlanColumns.of([job.plan for job in jobs])
        return Jobs(workloads, clusters, workload_index, cluster_index, plans)

    @staticmethod
    def grid(workload: Workload, cluster: Cluster, plans: plan.PlanColumns) -> Jobs:
        """Return one workload on one cluster under many plans."""
        zero = np.zeros(len(plans), dtype=np.int32)
        return Jobs((workload,), (cluster,), zero, zero, plans)

    def __len__(self) -> int:
        return len(self.workload_index)

    def __getitem__(self, i: int) -> Job:
        problem = self.problem(i)
        if problem is not None:
            raise RequestError(f"job {i}", problem, "correct the row")
        return Job(
            self.workloads[self.workload_index[i]], self.clusters[self.cluster_index[i]],
            self.plans[i],
        )  # fmt: skip

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

    @property
    def cells(self) -> Table:
        """The rows as they were given; without a column where there are no labels."""
        return Table({}, len(self)) if self.labels is None else self.labels

    def per_workload(self, field: str, *unknown: Any) -> NDArray[Any]:
        """Return a workload attribute (or LayerShape's, as `shape.layers`) for each row, (n,).

        unknown: what stands for a row without a workload, where there may be one.
        """
        return _gather(self.workloads, field, self.workload_index, unknown)

    def per_cluster(self, field: str, *unknown: Any) -> NDArray[Any]:
        """Return a cluster attribute (or its device's, as `device.watts`) as `per_workload` does, (n,)."""
        return _gather(self.clusters, field, self.cluster_index, unknown)

    @property
    def machines_paid(self) -> FloatArray:
        """Machines paid for over those of each job's cluster, (n,): see `Job.machines_paid`."""
        return np.asarray(1.0 + self.plans.server_machines / self.per_cluster("nodes", np.inf))

    def limits(self) -> plan.Divisors:
        """Return what the plans must divide, as columns (rows must be resolved)."""
        return plan.Divisors(
            layers=self.per_workload("shape.layers"), heads=self.per_workload("shape.heads"),
            kv_heads=self.per_workload("shape.kv_heads"),
            experts=self.per_workload("shape.experts"), seq_len=self.per_workload("seq_len"),
            devices=self.per_cluster("devices"), nodes=self.per_cluster("nodes"),
            params=self.per_workload("params"),
        )  # fmt: skip

    def checked(self) -> Jobs:
        """Return the jobs with `plan_problem` filled where a resolved row's plan is not legal."""
        known = (self.workload_index >= 0) & (self.cluster_index >= 0)
        reasons = _reasons([self], "plan_problem").copy()
        rows = np.flatnonzero(known & is_none(reasons))
        part = self.take(rows)
        codes = plan.plan_problems(part.plans, part.limits())
        for j in np.flatnonzero(codes):
            reasons[rows[j]] = problem_text(
                int(codes[j]), self.workloads[part.workload_index[j]],
                self.clusters[part.cluster_index[j]], part.plans[int(j)],
            )  # fmt: skip
        return replace(self, plan_problem=reasons)


def _interned(values: Sequence[T]) -> tuple[tuple[T, ...], NDArray[np.int32]]:
    """Return the distinct objects (by identity) and each value's position among them."""
    distinct = {id(value): value for value in values}
    place = {key: i for i, key in enumerate(distinct)}
    return tuple(distinct.values()), np.array([place[id(v)] for v in values], dtype=np.int32)


def _gather(
    values: Sequence[Any], field: str, index: NDArray[np.int32], unknown: tuple[Any, ...]
) -> NDArray[Any]:
    found = (*map(attrgetter(field), values), *unknown)  # an index of -1 takes the last
    return np.array([np.nan if value is None else value for value in found])[index]


# Figure of a `Run` -> (column of the runs table, units of the figure in one of the column).
RUN_COLUMNS: Mapping[str, tuple[str, float]] = {
    "step_seconds": ("step_time_s", 1.0), "sync_seconds": ("sync_time_s", 1.0),
    "epoch_seconds": ("epoch_time_s", 1.0), "time_to_train_seconds": ("time_to_train_s", 1.0),
    "samples_per_second": ("samples_per_s", 1.0), "samples_to_target": ("samples_to_target", 1.0),
    "peak_bytes": ("memory_gb", GIGA),
}  # fmt: skip


@dataclass(frozen=True)
class Runs:
    """n facts: the jobs that were run and what was measured; `ordered` as `sorted_runs` puts them."""

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

    def step_seconds(self) -> FloatArray:
        """Return seconds of one optimizer step (n,), by step_time_s or a rate; NaN where not ok."""
        step = self.table.numbers("step_time_s").copy()
        for rated in (throughput_seconds(self.table), flop_rate_seconds(self.jobs, self.table)):
            step = np.where(np.isnan(step), rated, step)
        return np.where(self.ended & (step > 0) & np.isfinite(step), step, np.nan)

    @property
    def ended(self) -> BoolArray:
        """Which runs ended, of models that were not cut over workers, (n,)."""
        return np.asarray((self.status == "ok") & ~(self.table.numbers("partitions") > 1))


_LATER = {"measured": 1, "origin": 2}  # after the question; columns of one's own are the last


def sorted_runs(runs: Runs) -> Runs:
    """Return the runs by what was asked, then by what was measured, then by where they come from.

    Each row keeps its place in its file. Workloads and clusters are numbered as the rows name them;
    those that none names are left out.
    """
    if runs.ordered:
        return runs
    keys = [key for key in _keys(runs) if len(key) and (key != key[0]).any()]
    if keys:
        order = np.lexsort(keys[::-1])
        if (order[1:] < order[:-1]).any():
            labels, table = runs.jobs.labels, replace(runs.table, lines=runs.table.places())
            if labels is not None:
                labels = replace(labels, lines=labels.places())
            runs = Runs(replace(runs.jobs, labels=labels), table).take(order)
    jobs = runs.jobs
    workloads, workload_index = _by_rows(jobs.workloads, jobs.workload_index)
    clusters, cluster_index = _by_rows(jobs.clusters, jobs.cluster_index)
    jobs = replace(
        jobs, workloads=workloads, clusters=clusters, workload_index=workload_index,
        cluster_index=cluster_index,
    )  # fmt: skip
    return replace(runs, jobs=jobs, ordered=True)


def _keys(runs: Runs) -> Iterator[NDArray[Any]]:
    """Yield what rows are ordered by, the first first, as numbers (n,) each."""
    jobs = runs.jobs
    columns = {**jobs.cells.columns, **runs.table.columns}
    rank = {name: _LATER.get(COLUMNS[name].group, 0) if name in COLUMNS else 3 for name in columns}
    names = sorted(columns, key=lambda name: (rank[name], name))
    for name in names:
        if rank[name] == 0:
            yield sortable(columns[name])
    # What distinguishes workloads and clusters where no label does.
    of_workload = attrgetter("name", "framework", "precision", "seq_len", "dataset_size", "params",
                             "graph.forward_flops", "graph.backward_flops")  # fmt: skip
    of_cluster = attrgetter("name", "device.id", "nodes", "devices_per_node", "intra", "inter")
    yield _ranks([repr(of_workload(w)) for w in jobs.workloads])[jobs.workload_index]
    yield _ranks([repr(of_cluster(c)) for c in jobs.clusters])[jobs.cluster_index]
    for name in plan.NAMES:
        yield getattr(jobs.plans, name)
    for name in names:
        if rank[name] > 0:
            yield sortable(columns[name])


def _ranks(words: Sequence[str]) -> NDArray[np.int64]:
    """Return the rank of each text among the distinct ones, and one more, -1, for what is unknown."""
    return np.append(sortable(np.array(words, dtype=object)), -1)


def _by_rows(
    values: tuple[T, ...], index: NDArray[np.int32]
) -> tuple[tuple[T, ...], NDArray[np.int32]]:
    """Return the values that rows name, in their order, and each row's position, -1 of none."""
    named, first = np.unique(index, return_index=True)
    order = [int(i) for i in named[np.argsort(first)] if i >= 0]
    place = np.full(len(values) + 1, -1, dtype=np.int32)
    place[order] = np.arange(len(order))
    return tuple(values[i] for i in order), place[index]


T = TypeVar("T")
_WORDS: Mapping[str, tuple[str, ...]] = {
    "recompute": plan.RECOMPUTE, "sync": plan.SYNC, "memory_format": plan.MEMORY_FORMATS,
    "sequence_parallel": ("false", "true"), "offload": plan.OFFLOAD,
}  # fmt: skip


_OF_WORKLOAD: Mapping[str, Callable[[Workload], Any]] = {
    "workload": lambda w: w.name, "family": lambda w: w.family,
    "framework": lambda w: w.framework, "dataset": lambda w: w.dataset,
    "precision": lambda w: w.precision, "optimizer": lambda w: w.optimizer,
    "task": lambda w: w.task, "dataset_size": lambda w: w.dataset_size or np.nan,
    "params": lambda w: w.params or np.nan, "seq_len": lambda w: w.seq_len or np.nan,
    "image_size": lambda w: w.image_size or np.nan,
    "gmacs": lambda w: w.graph.forward_flops / 2e9 or np.nan,
}  # fmt: skip
_OF_CLUSTER: Mapping[str, Callable[[Cluster], Any]] = {
    "device": lambda c: c.device.id, "instance_type": lambda c: ":".join(
        [c.provider] * bool(c.provider and c.instance_type) + [c.instance_type]),
    "placement": lambda c: "-".join(map(str, c.placement)),
    "nodes": lambda c: c.nodes, "devices": lambda c: c.devices,
    "devices_per_node": lambda c: c.devices_per_node,
    "price_usd_per_hour": lambda c: np.nan if c.dollars_per_hour is None else c.dollars_per_hour,
}  # fmt: skip


def job_columns(jobs: Jobs) -> Table:
    """Return n whole jobs as rows of a runs table, or raise RequestError if one is not whole."""
    lacking = (jobs.workload_index < 0) | (jobs.cluster_index < 0)
    if lacking.any():
        raise RequestError(
            f"the columns of job {int(np.flatnonzero(lacking)[0])}",
            "it has no workload or no cluster", "give whole jobs",
        )  # fmt: skip
    columns = {
        **_spread(_OF_WORKLOAD, jobs.workloads, jobs.workload_index),
        **_spread(_OF_CLUSTER, jobs.clusters, jobs.cluster_index),
    }
    for name, values in vars(jobs.plans).items():
        words = _WORDS.get(name)
        columns[name] = (
            values.astype(np.float64)
            if words is None
            else np.array(words, dtype=object)[values.astype(np.intp)]
        )
    return Table(columns, len(jobs))


def described(table: Table, jobs: Jobs) -> Table:
    """Return n rows with the columns of their n whole jobs; a cell stays, but for the plan's."""
    whole = (jobs.workload_index >= 0) & (jobs.cluster_index >= 0)
    if not whole.any():
        return table
    own = job_columns(jobs.take(np.flatnonzero(whole)))
    columns = {}
    for name, cells in own.columns.items():
        text = cells.dtype == object
        column = (table.texts(name) if text else table.numbers(name)).copy()
        rows = whole & ((column == "" if text else np.isnan(column)) | (name in plan.NAMES))
        column[rows] = cells[rows[whole]]
        columns[name] = column
    unread = {
        name: np.where(whole, "", texts).astype(object) if name in plan.NAMES else texts
        for name, texts in table.unread.items()
    }
    return replace(table.with_columns(**columns), unread=unread)


def _spread(
    readers: Mapping[str, Callable[[T], Any]], values: Sequence[T], index: NDArray[np.int32]
) -> dict[str, NDArray[Any]]:
    """Return each reader's answer of the distinct values, at the rows that have them."""
    columns = {}
    for name, read in readers.items():
        answers = [read(value) for value in values]
        kind = object if any(isinstance(a, str) for a in answers) else np.float64
        columns[name] = np.array(answers, dtype=kind)[index]
    return columns


def join_runs(parts: Sequence[Runs]) -> Runs:
    """Return the runs of all parts, in order. Raises RequestError where there are none."""
    if not parts:
        raise RequestError("joining runs", "no tables were given", "give at least one")
    if len(parts) == 1:
        return parts[0]
    return Runs(join_jobs([p.jobs for p in parts]), join_tables([p.table for p in parts]))


def join_jobs(parts: Sequence[Jobs]) -> Jobs:
    """Return the jobs of all parts; workloads and clusters keep their part's positions."""
    return Jobs(
        workloads=tuple(w for p in parts for w in p.workloads),
        clusters=tuple(c for p in parts for c in p.clusters),
        workload_index=_shifted([(p.workload_index, len(p.workloads)) for p in parts]),
        cluster_index=_shifted([(p.cluster_index, len(p.clusters)) for p in parts]),
        plans=plan.concatenate([p.plans for p in parts]),
        workload_problem=_reasons(parts, "workload_problem"),
        cluster_problem=_reasons(parts, "cluster_problem"),
        plan_problem=_reasons(parts, "plan_problem"), labels=join_tables([p.cells for p in parts]),
    )  # fmt: skip


def join_tables(parts: Sequence[Table]) -> Table:
    """Return the rows of all parts; a column that a part lacks is blank there."""
    names = dict.fromkeys(name for p in parts for name in p.columns)
    columns: dict[str, NDArray[Any]] = {}
    for name in names:
        numeric = all(p.columns[name].dtype != object for p in parts if name in p)
        columns[name] = np.concatenate(
            [p.numbers(name) if numeric else p.texts(name) for p in parts]
        )
    read = all(p.problems is None for p in parts)
    problems = None if read else _reasons(parts, "problems")
    lines = joined_lines([p.places() for p in parts])
    factors = tuple(dict.fromkeys(name for p in parts for name in p.own.factors))
    left_out = {n: why for p in parts for n, why in p.own.left_out.items() if n not in factors}
    words = tuple(dict.fromkeys(name for p in parts for name in p.own.words))
    own = OwnColumns(factors, left_out, words)
    return Table(columns, sum(len(p) for p in parts), problems, lines, own=own)


def _shifted(parts: Sequence[tuple[NDArray[np.int32], int]]) -> NDArray[np.int32]:
    """Return the positions of all parts, each behind the values of the parts before; -1 stays."""
    starts = np.cumsum([0, *(count for _, count in parts)])[:-1]
    moved = [np.where(i >= 0, i + at, -1) for (i, _), at in zip(parts, starts, strict=True)]
    return np.concatenate(moved).astype(np.int32)


def _reasons(parts: Sequence[Jobs] | Sequence[Table], name: str) -> NDArray[np.object_]:
    columns = [(getattr(p, name), len(p)) for p in parts]
    return np.concatenate([
        np.full(rows, None, dtype=object) if column is None else column for column, rows in columns
    ])  # fmt: skip
