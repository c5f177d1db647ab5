"""Tabulate: a runs table in, the same rows out with answers as added columns.

Lengths of a table's rows: how much training each is, by its own cells or by what was asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.advisor.answer import HOPELESS, MAY_FIT
from forerun.advisor.given_runs import Meanings
from forerun.advisor.request import LONGEST, batch_for, checked_length
from forerun.arrays import FloatArray
from forerun.catalog import Catalog
from forerun.contracts import Predictor
from forerun.domain.estimate import preemption_factor
from forerun.domain.forecast import QUANTITIES, Forecasts, is_none
from forerun.domain.objective import MARKETS, Preemption
from forerun.domain.plan import NAMES, Plan, PlanColumns, plan_problems
from forerun.domain.workload import Length, Workload
from forerun.errors import ForerunError, RequestError, one_of
from forerun.search.best_plan import best_plan
from forerun.tables import COLUMNS, MEASURED, Jobs, Table
from forerun.units import GIGA, SECONDS_PER_HOUR
from forerun.workloads.own_labels import meant_note
from forerun.workloads.rows import NO_BATCH

Reasons = NDArray[np.object_]


@dataclass(frozen=True)
class RowLengths:
    """How long n jobs are: in steps where somebody said steps, else in samples; NaN elsewhere.

    `reasons` are of rows whose own length cannot be: they are declined.
    """

    stated_steps: FloatArray
    samples: FloatArray
    reasons: Reasons

    def steps(self, batch: FloatArray) -> FloatArray:
        """Return optimizer steps (n,) at each row's global batch, the last one counted whole."""
        counted = np.ceil(self.samples / batch)
        return np.where(np.isnan(self.stated_steps), counted, self.stated_steps)


def row_lengths(jobs: Jobs, length: Length | None, datasets: FloatArray) -> RowLengths:
    """Return the rows' lengths.

    A row's own steps, samples, tokens or epochs come first, then the length that was asked, then
    its samples_to_target or epochs_to_target, then the usual length of its workload.

    Args:
        jobs: n rows.
        length: what was asked for the whole table.
        datasets: samples in an epoch (n,), NaN where not known.
    """
    n = len(jobs)
    reasons: Reasons = np.full(n, None, dtype=object)
    stated_steps = np.full(n, np.nan)
    if length is not None and length.unit == "steps":
        stated_steps[:] = length.count
    samples = _usual(jobs, length)
    if jobs.labels is None:
        return RowLengths(stated_steps, samples, reasons)
    table = jobs.labels
    tokens = _each(jobs, lambda workload: workload.seq_len or np.nan)
    if length is None:
        for name, each in (("epochs_to_target", datasets), ("samples_to_target", np.ones(n))):
            cells = _cells(table, name, LONGEST["samples"], reasons)
            samples = np.where(np.isnan(cells * each), samples, cells * each)
    _one_length(table, reasons)
    for unit, each, lacking in (
        ("samples", np.ones(n), ""),
        ("tokens", 1.0 / tokens, "its samples have no tokens"),
        ("epochs", datasets, "the size of its dataset is not known; fill dataset_size"),
    ):
        cells = _cells(table, unit, LONGEST[unit], reasons)
        given = ~np.isnan(cells)
        _blame(reasons, given & np.isnan(each) & (jobs.workload_index >= 0),
               f"a length in {unit}, but {lacking}")  # fmt: skip
        samples = np.where(given, cells * each, samples)
        stated_steps = np.where(given, np.nan, stated_steps)
    steps = _cells(table, "steps", LONGEST["steps"], reasons)
    return RowLengths(np.where(np.isnan(steps), stated_steps, steps), samples, reasons)


def without(jobs: Jobs, reasons: Reasons) -> Jobs:
    """Return the jobs in which the rows that have a reason have no workload."""
    blamed = ~is_none(reasons)
    if not blamed.any():
        return jobs
    known = jobs.workload_problem
    first = np.full(len(jobs), None, dtype=object) if known is None else known
    return replace(
        jobs,
        workload_index=np.where(blamed, -1, jobs.workload_index).astype(np.int32),
        workload_problem=np.where(is_none(first), reasons, first),
    )


def _usual(jobs: Jobs, length: Length | None) -> FloatArray:
    """Return samples (n,) of the length that was asked, else of each workload's usual one."""

    def count(workload: Workload) -> float:
        asked = length or workload.length
        try:
            if asked is None or asked.unit == "steps":
                return np.nan  # a usual length is never in steps
            return workload.samples(asked)
        except ForerunError:
            return np.nan

    return _each(jobs, count)


def _each(jobs: Jobs, read: Callable[[Workload], float]) -> FloatArray:
    """Return a number of each row's workload (n,), NaN where it has none."""
    return np.array([*map(read, jobs.workloads), np.nan], dtype=np.float64)[jobs.workload_index]


def _cells(table: Table, name: str, most: float, reasons: Reasons) -> FloatArray:
    """Return a length column (n,), NaN where blank or absurd; an absurd one is the row's reason."""
    cells = table.numbers(name)
    good = (cells > 0) & (cells <= most)
    for value in np.unique(cells[~good & ~np.isnan(cells)]):
        _blame(reasons, cells == value, f"{name}={value:.10g} is no length of training; correct it")
    return np.where(good, cells, np.nan)


def _one_length(table: Table, reasons: Reasons) -> None:
    given = np.array([~np.isnan(table.numbers(unit)) for unit in Length.UNITS])
    _blame(reasons, given.sum(axis=0) > 1, "a job has one length; keep one of"
           f" {', '.join(Length.UNITS)}")  # fmt: skip


def _blame(reasons: Reasons, rows: NDArray[np.bool_], reason: str) -> None:
    reasons[rows & is_none(reasons)] = reason


# The columns that are added, and what they mean.
ADDED: Mapping[str, str] = {
    "predicted_step_time_s": "seconds of one optimizer step, median",
    "predicted_step_time_p05_s": "the same, 5 % quantile",
    "predicted_step_time_p95_s": "the same, 95 % quantile",
    "predicted_epoch_time_s": "seconds of one pass over the dataset, median",
    "predicted_epoch_time_p05_s": "the same, 5 % quantile",
    "predicted_epoch_time_p95_s": "the same, 95 % quantile",
    "predicted_samples_per_s": "samples of the whole cluster in a second",
    "predicted_memory_gb": "peak of a device, 1e9 bytes",
    "predicted_fit_probability": "that the peak stays within device memory",
    "predicted_samples_to_target": "samples until the target, where a predictor speaks of it",
    "predicted_time_to_train_s": "seconds of the whole run, median",
    "predicted_time_to_train_p05_s": "the same, 5 % quantile",
    "predicted_time_to_train_p95_s": "the same, 95 % quantile",
    "predicted_cost_usd": "dollars of the whole run, median",
    "predicted_plan": "the plan that the search chose; blank where the row states its own",
    "predicted_note": "what your runs told of the row, how plan and batch were chosen, and whether it"
    " does not fit",
    "predictor": "who answered, of a chosen mean the heaviest first; blank where nobody did",
    "declined": "why there is no answer",
}
OUTPUT_COLUMNS = tuple(ADDED)


def predict_table(
    predictor: Predictor,
    catalog: Catalog,
    table: Table | Any,
    length: Length | None = None,
    market: str = "on-demand",
    meanings: Meanings | None = None,
) -> Any:
    """Return the table (or data frame) with `OUTPUT_COLUMNS` added; see `Advisor.predict_table`.

    Args:
        predictor, catalog, table, length, market: of the request.
        meanings: what rows mean that say less than the runs that taught the predictor.

    Raises:
        RequestError: an unknown market, wrong columns, or a table that has answers already.
    """
    if market not in MARKETS:
        raise RequestError(f"prices {market!r}", "no such market", one_of(market, MARKETS))
    if length is not None:
        checked_length(length)
    if isinstance(table, Table):
        return _answered(predictor, catalog, table, length, market, meanings)
    from forerun.tables.files import from_frame, to_frame

    if not hasattr(table, "columns"):
        raise RequestError(
            f"a table of type {type(table).__name__}", "it is no Table and no data frame",
            "give what forerun.read_table returns, or a pandas DataFrame",
        )  # fmt: skip
    answered = _answered(predictor, catalog, from_frame(table), length, market, meanings)
    added = to_frame(
        Table({name: answered.columns[name] for name in OUTPUT_COLUMNS}, len(answered))
    )
    added.index = table.index
    return table.assign(**{name: added[name] for name in OUTPUT_COLUMNS})


def _answered(
    predictor: Predictor, catalog: Catalog, table: Table, length: Length | None, market: str,
    meanings: Meanings | None,
) -> Table:  # fmt: skip
    from forerun.workloads.rows import jobs_from_table

    given, said = table, np.full(len(table), "", dtype=object)
    if meanings is not None:
        table, said = meanings.cells.filled(table)
    jobs = jobs_from_table(table, catalog, None if meanings is None else meanings.labels.read)
    lengths = row_lengths(jobs, length, _datasets(jobs))
    plans = planned(predictor, without(jobs, lengths.reasons), table)
    jobs = plans.jobs
    answers = answer_columns(jobs, _forecasts(predictor, jobs), lengths, market)
    doomed = _doomed(answers["predicted_fit_probability"], answers["declined"])
    notes = _and(_and(_and(_meant(jobs), said), plans.notes), doomed)
    added = {**answers, "predicted_plan": plans.chosen, "predicted_note": notes}
    if meanings is not None:
        added["declined"] = meanings.cells.explained(answers["declined"], table)
    return given.with_columns(**{name: added[name] for name in OUTPUT_COLUMNS})


def _meant(jobs: Jobs) -> NDArray[np.object_]:
    """Return what is said of rows whose label stands for a workload of the given runs, (n,)."""
    said = [meant_note(workload) for workload in jobs.workloads]
    return np.array([*said, ""], dtype=object)[jobs.workload_index]


def _and(first: NDArray[np.object_], then: NDArray[np.object_]) -> NDArray[np.object_]:
    """Return two notes of each row as one, (n,)."""
    joined: NDArray[np.object_] = np.where((first != "") & (then != ""), first + "; ", first) + then
    return joined


def _forecasts(predictor: Predictor, jobs: Jobs) -> list[Forecasts]:
    """Return a predictor's forecasts of every quantity that it speaks of, its usual one first."""
    if not len(jobs):
        return [Forecasts.blank(0, predictor.name)]
    several = getattr(predictor, "every_quantity", None)
    return [predictor.predict(jobs)] if several is None else list(several(jobs))


def not_fitting(table: Any) -> int:
    """Return how many answered rows of a table with answers do not fit, or probably not."""
    fits, declined = (table.columns[name] for name in ("predicted_fit_probability", "declined"))
    return int((_doomed(fits, declined) != "").sum())


def _doomed(fits: FloatArray, declined: NDArray[Any]) -> NDArray[np.object_]:
    """Return what is said of answered rows that do not fit, (n,); "" of others."""
    said = np.full(len(fits), "", dtype=object)
    with np.errstate(invalid="ignore"):
        said[fits < MAY_FIT] = "it probably does not fit in a device's memory"
        said[fits < HOPELESS] = "it does not fit in a device's memory"
    said[declined != ""] = ""
    return said


def answer_columns(
    jobs: Jobs, forecasts: Sequence[Forecasts], lengths: RowLengths, market: str
) -> Mapping[str, NDArray[Any]]:
    """Return the added figures, n rows each: NaN or "" where there is no answer.

    Args:
        jobs: n rows.
        forecasts: of one or several quantities, the usual one first. A quantity that none of them
            answers comes from another, where the row says how many of these it holds.
        lengths: how long the rows are. market: whose prices count.
    """
    first, batch, dataset = forecasts[0], _batches(jobs), _datasets(jobs)
    steps = lengths.steps(batch)
    with np.errstate(divide="ignore", invalid="ignore"):
        to_target = _to_target(first)
        steps = np.where(np.isnan(to_target), steps, to_target / batch)
        step, epoch, run = _times(forecasts, dataset / batch, steps, lengths.samples / dataset)
        wall, dollars_per_hour = _market(jobs, market)
        run = run * wall[:, None]
        columns = {
            "predicted_step_time_s": step[:, 1],
            "predicted_step_time_p05_s": step[:, 0],
            "predicted_step_time_p95_s": step[:, 2],
            "predicted_epoch_time_s": epoch[:, 1],
            "predicted_epoch_time_p05_s": epoch[:, 0],
            "predicted_epoch_time_p95_s": epoch[:, 2],
            "predicted_samples_per_s": batch / step[:, 1],
            "predicted_memory_gb": first.peak_bytes[:, 1] / GIGA,
            "predicted_fit_probability": _fits(jobs, first),
            "predicted_samples_to_target": to_target,
            "predicted_time_to_train_s": run[:, 1],
            "predicted_time_to_train_p05_s": run[:, 0],
            "predicted_time_to_train_p95_s": run[:, 2],
            "predicted_cost_usd": run[:, 1] / SECONDS_PER_HOUR * dollars_per_hour,
        }
    out: dict[str, NDArray[Any]] = {
        name: np.where(np.isfinite(values), values, np.nan) for name, values in columns.items()
    }
    # Whoever has none of the usual quantity for a row may have another one.
    declined = first.declined.copy()
    who = np.full(len(jobs), first.predictor, dtype=object) if first.by is None else first.by.copy()
    for other in forecasts[1:]:
        gained = other.answered & ~is_none(declined)
        declined[gained] = None
        who[gained] = other.predictor if other.by is None else other.by[gained]
    out["declined"] = _with_clusters(jobs, declined)
    out["predictor"] = np.where(out["declined"] == "", who, "").astype(object)
    return out


def _times(
    forecasts: Sequence[Forecasts], steps_in_epoch: FloatArray, steps: FloatArray,
    epochs: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray]:  # fmt: skip
    """Return quantiles of a step, an epoch and a run, (n, 3) each: as answered, else derived."""
    n = len(steps)
    none = np.full((n, 3), np.nan)
    said = {one.quantity: one.seconds for one in forecasts}
    step, epoch, run = (said.get(name, none) for name in QUANTITIES)

    def first_of(*options: FloatArray) -> FloatArray:
        found = none
        for option in options:
            found = np.where(np.isnan(found), option, found)
        return found

    a_step, a_run, per_run = steps_in_epoch[:, None], steps[:, None], epochs[:, None]
    return (
        first_of(step, epoch / a_step, run / a_run),
        first_of(epoch, step * a_step, run / per_run),
        first_of(run, step * a_run, epoch * per_run),
    )


def _with_clusters(jobs: Jobs, declined: NDArray[np.object_]) -> NDArray[np.object_]:
    """Return each row's reason as text, "" where it is answered."""
    texts = np.array(["" if reason is None else str(reason) for reason in declined], dtype=object)
    if jobs.workload_problem is None or jobs.cluster_problem is None:
        return texts
    both = ~is_none(jobs.cluster_problem) & (texts == jobs.workload_problem)
    texts[both] = texts[both] + "; and " + jobs.cluster_problem[both]
    return texts


def _gathered(values: list[float], index: NDArray[np.int32]) -> FloatArray:
    """Return each row's value, NaN where the row has none (index -1)."""
    return np.array([*values, np.nan], dtype=np.float64)[index]


def _batches(jobs: Jobs) -> FloatArray:
    """Return each row's global batch; NaN where the row states no readable plan."""
    from forerun.workloads.rows import NO_BATCH

    batch = jobs.plans.global_batch.astype(np.float64)
    if jobs.plan_problem is not None:
        batch = np.where(jobs.plan_problem == NO_BATCH, np.nan, batch)
    return batch


def _datasets(jobs: Jobs) -> FloatArray:
    """Return samples in an epoch: the row's own figure, else the workload's; NaN where unknown."""
    known = _gathered([w.dataset_size or np.nan for w in jobs.workloads], jobs.workload_index)
    if jobs.labels is None:
        return known
    stated = jobs.labels.numbers("dataset_size")
    return np.where(stated > 0, stated, known)


def _to_target(forecasts: Forecasts) -> FloatArray:
    if forecasts.samples_to_target is None:
        return np.full(len(forecasts), np.nan)
    return forecasts.samples_to_target[:, 1]


def _market(jobs: Jobs, market: str) -> tuple[FloatArray, FloatArray]:
    """Return (wall time over undisturbed time, dollars an hour) of each row's cluster."""
    plain = [np.nan if c.dollars_per_hour is None else c.dollars_per_hour for c in jobs.clusters]
    spot = [
        np.nan if c.spot_dollars_per_hour is None else c.spot_dollars_per_hour
        for c in jobs.clusters
    ]
    factor = [float(preemption_factor(c.nodes, Preemption())) for c in jobs.clusters]
    use_spot = [
        market == "spot" or (market == "any" and not p <= s * f and s == s)
        for p, s, f in zip(plain, spot, factor, strict=True)
    ]
    walls = [f if u else 1.0 for f, u in zip(factor, use_spot, strict=True)]
    dollars = [s if u else p for p, s, u in zip(plain, spot, use_spot, strict=True)]
    stated = np.full(len(jobs), np.nan)
    if jobs.labels is not None and market != "spot":
        stated = jobs.labels.numbers("price_usd_per_hour")
    unknown = jobs.cluster_index < 0
    return (
        np.where(unknown, 1.0, _gathered(walls, jobs.cluster_index)),
        np.where(unknown, stated, _gathered(dollars, jobs.cluster_index)),
    )


def _fits(jobs: Jobs, forecasts: Forecasts) -> FloatArray:
    """Return P(fits): 0 where the plan is readable and not legal, whatever the predictor says."""
    fits = forecasts.fit_probability.copy()
    known = np.flatnonzero((jobs.workload_index >= 0) & (jobs.cluster_index >= 0))
    if jobs.plan_problem is None or not len(known):
        return fits
    part = jobs.take(known)
    broken = plan_problems(part.plans, part.limits()) > 0
    unreadable = np.isnan(_batches(part))
    fits[known] = np.where(broken & ~unreadable, 0.0, np.where(unreadable, np.nan, fits[known]))
    return fits


# Distinct jobs of one table that are searched: each takes up to about a second.
MOST_SEARCHES = 200
_STATES = tuple(
    name
    for name, column in COLUMNS.items()
    if column.group == "plan" and name not in ("global_batch", "task")
)


@dataclass(frozen=True)
class TablePlans:
    """Jobs with plans in full.

    `chosen` is each row's chosen plan as text, "" where it states its own; `notes` what is said.
    """

    jobs: Jobs
    chosen: Reasons
    notes: Reasons


def planned(predictor: Predictor, jobs: Jobs, table: Table) -> TablePlans:
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
        return TablePlans(jobs, chosen, notes)
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
    return TablePlans(
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
    plan, note = best_plan(workload, cluster, predictor, fixed={}, global_batch=batch)
    return plan, (*said, *filter(None, [note]))
