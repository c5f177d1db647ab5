"""Plans of a table's rows: those that state none get the one that the search chooses."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from forerun.advisor.asking import batch_for
from forerun.advisor.planning import chosen_plan, planner_of
from forerun.contracts import Predictor
from forerun.domain.forecast import is_none
from forerun.domain.plan import Plan
from forerun.domain.plan_columns import NAMES, PlanColumns
from forerun.errors import ForerunError
from forerun.tables import COLUMNS, MEASURED, Jobs, Table
from forerun.workloads.row_plans import NO_BATCH

Reasons = NDArray[np.object_]
# Distinct jobs of one table that are searched: each takes up to about a second.
MOST_SEARCHES = 200
_STATES = tuple(
    name
    for name, column in COLUMNS.items()
    if column.group == "plan" and name not in ("global_batch", "task")
)


@dataclass(frozen=True)
class Planned:
    """Jobs with plans in full.

    `chosen` is each row's chosen plan as text, "" where it states its own; `notes` what is said.
    """

    jobs: Jobs
    chosen: Reasons
    notes: Reasons


def planned(predictor: Predictor, jobs: Jobs, table: Table) -> Planned:
    """Return the jobs with a plan for each row that states none and that was not measured.

    Rows that state a part of a plan, and measured runs, keep what their blanks mean (see
    `workloads.row_plans`), and so do all rows where the predictor learned from runs that state no
    plan: its answers are for jobs as they were run. A row of which no plan fits gets that as its
    `plan_problem`.
    """
    n = len(jobs)
    chosen, notes = np.full(n, "", dtype=object), np.full(n, "", dtype=object)
    rows = _open_rows(jobs, table)
    if not len(rows) or getattr(predictor, "as_they_were_run", False):
        return Planned(jobs, chosen, notes)
    predictor = planner_of(predictor)
    columns = {name: getattr(jobs.plans, name).copy() for name in NAMES}
    problems = np.full(n, None, dtype=object) if jobs.plan_problem is None else (
        jobs.plan_problem.copy()
    )  # fmt: skip
    stated = table.numbers("global_batch")[rows]
    batch = np.where(np.isnan(stated), 0, stated).astype(np.int64)
    key = np.stack([jobs.workload_index[rows], jobs.cluster_index[rows], batch])
    groups, group = np.unique(key, axis=1, return_inverse=True)
    group = group.reshape(-1)
    for g in range(groups.shape[1]):
        mine = rows[group == g]
        if g >= MOST_SEARCHES:
            notes[mine] = (
                f"its plan was not searched, as the table has more than {MOST_SEARCHES} such jobs:"
                " blank plan cells have their usual meaning"
            )
            continue
        try:
            plan, said = _chosen(predictor, jobs, int(mine[0]), int(groups[2, g]))
        except ForerunError as error:
            problems[mine] = f"{error.found}; {error.next_step.partition(';')[0]}"
            continue
        for name, values in vars(PlanColumns.of([plan])).items():
            columns[name][mine] = values[0]
        problems[mine], chosen[mine], notes[mine] = None, str(plan), "; ".join(said)
    return Planned(
        replace(jobs, plans=PlanColumns(**columns), plan_problem=problems), chosen, notes
    )


def _open_rows(jobs: Jobs, table: Table) -> NDArray[np.int64]:
    """Return the positions of rows that state no plan, were not measured, and can be jobs."""
    open_rows = (jobs.workload_index >= 0) & (jobs.cluster_index >= 0)
    if jobs.plan_problem is not None:
        # Their blank cells' usual meaning may be illegal; a chosen plan is not.
        batch = table.numbers("global_batch")
        readable = np.isnan(batch) | ((batch >= 1) & (batch < 2**31) & (np.floor(batch) == batch))
        open_rows &= readable | is_none(jobs.plan_problem) | (jobs.plan_problem == NO_BATCH)
    for name in (*_STATES, *MEASURED):
        column = table.columns.get(name)
        if column is not None:
            open_rows &= (column == "") if column.dtype == object else np.isnan(column)
    return np.flatnonzero(open_rows)


def _chosen(predictor: Predictor, jobs: Jobs, row: int, batch: int) -> tuple[Plan, tuple[str, ...]]:
    """Return the plan for a row's workload and cluster at a batch (0: the usual one)."""
    workload = jobs.workloads[jobs.workload_index[row]]
    cluster = jobs.clusters[jobs.cluster_index[row]]
    fields = {"global_batch": batch} if batch else {}
    batch, said = batch_for(workload, cluster.devices, fields)
    plan, how = chosen_plan(predictor, workload, cluster, {}, batch)
    return plan, (*said, *how)
