"""Tabulate: a runs table in, the same rows out with answers as added columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from forerun import packaged
from forerun.advisor import answer
from forerun.advisor.given_runs import fill_resources
from forerun.arrays import BoolArray, FloatArray, alike
from forerun.catalog.frameworks import cannot_run, framework_of, framework_slip, having
from forerun.contracts import Predictor
from forerun.domain.estimate import Estimates
from forerun.domain.forecast import QUANTITIES, Forecasts, is_none, sure_at_most
from forerun.domain.job import precision_notes
from forerun.domain.objective import Preemption
from forerun.domain.plan import NAMES, PlanColumns, plan_problems
from forerun.domain.workload import Length, Workload
from forerun.errors import ForerunError, RequestError
from forerun.predictors.options import known_by
from forerun.progress import report_progress
from forerun.search.score import best_plan, on_spot, priced_runs, throughput
from forerun.tables import COLUMNS, MEASURED, Jobs, Table
from forerun.tables.own_columns import read_as
from forerun.tables.table import iter_rows
from forerun.units import GIGA, SECONDS_PER_HOUR, TERA
from forerun.workloads.columns import read_otherwise
from forerun.workloads.own_labels import meant_note
from forerun.workloads.rows import NO_BATCH, NO_DP, jobs_from_table

if TYPE_CHECKING:
    from forerun.advisor.advisor import Advisor

Texts = NDArray[np.object_]

# The columns that are added, and what they mean.
ADDED = {row["column"]: row["meaning"] for row in packaged.table(__file__, "added_columns.csv")}
OUTPUT_COLUMNS = tuple(ADDED)


def predict_table(
    advisor: Advisor, table: Table | Any, length: Length | None, market: str, lost: Preemption
) -> Any:
    """Return the table (or data frame) with `OUTPUT_COLUMNS` added; see `Advisor.predict_table`.

    Raises:
        RequestError: an unknown market, wrong columns, or a table that has answers already.
    """
    from forerun.tables.files import from_frame, to_frame

    answer.checked_market(market)
    if length is not None:
        answer.checked_length(length)
    if not isinstance(table, Table) and not hasattr(table, "columns"):
        raise RequestError(
            f"a table of type {type(table).__name__}", "it is no Table and no data frame",
            "give what forerun.read_table returns, or a pandas DataFrame",
        )  # fmt: skip
    predictor = advisor.predictor
    rows = table if isinstance(table, Table) else from_frame(table)
    rows = rows if advisor.made is None else read_as(rows, advisor.made.own)
    rows, filled = fill_resources(rows, advisor.made)
    jobs = jobs_from_table(rows, advisor.catalog, advisor.labels.read)
    jobs, chosen, how = planned(predictor, jobs, rows)
    forecasts = [Forecasts.blank(0, predictor.name)]
    if len(jobs):
        several = getattr(predictor, "every_quantity", None)
        forecasts = [predictor.predict(jobs)] if several is None else list(several(jobs))
    answers = answer_columns(jobs, forecasts, length, market, lost)
    meant = np.array([*map(meant_note, jobs.workloads), ""], dtype=object)[jobs.workload_index]
    # What does not fit with the plan that blank cells mean was run with another one, which nobody states.
    other = (how == _AS_RUN) & (answers["predicted_fit_probability"] < 0.5)
    how[(how == _AS_RUN) & ~other] = ""
    for name in ("predicted_memory_gb", "predicted_fit_probability"):
        answers[name][other] = np.nan
    doomed = _doomed(answers["predicted_fit_probability"], answers["declined"])
    target = getattr(predictor, "target", None)
    outside = np.full(len(jobs), "", dtype=object) if target is None else target.samples(jobs)[2]
    chosen[answers["declined"] != ""] = how[answers["declined"] != ""] = ""
    answers["predicted_plan"] = chosen
    answers["predicted_note"] = np.array(
        [
            "; ".join(filter(None, row))
            for row in zip(
                meant, _doubts(jobs), _plan_doubts(jobs), filled, how, doomed, outside, strict=True
            )
        ],
        dtype=object,
    )
    answers = {name: answers[name] for name in OUTPUT_COLUMNS}
    if isinstance(table, Table):
        return table.with_columns(**answers)
    added = to_frame(Table(answers, len(table)))
    added.index = table.index
    return table.assign(**{name: added[name] for name in OUTPUT_COLUMNS})


def _doubts(jobs: Jobs) -> Texts:
    """Return what is doubtful of each row's workload, framework, precision, interconnect and price, (n,)."""
    pair, first = alike([jobs.workload_index + 1, jobs.cluster_index + 1])
    notes = []
    for w, c in zip(jobs.workload_index[first], jobs.cluster_index[first], strict=True):
        framework = jobs.workloads[w].framework if w >= 0 else ""
        near, words = framework_slip(framework), list[str]()
        words += read_otherwise(jobs.workloads[w]) if w >= 0 else []
        words += [f"framework {framework!r} is not known: did you mean {near}?"] * bool(near)
        software, job = framework_of(framework), vars(jobs.workloads[w]) if w >= 0 else {}
        if unfit := software and software.refusal(job):
            words.append(f"{framework} does not run {unfit[0].removeprefix('task=')}: {unfit[1]}")
        if c >= 0:
            place = jobs.clusters[c]
            unfit = software and software.refusal({"device": place.device.generation})
            words += [f"{framework} does not run on {place.device.id}: {unfit[1]}"] if unfit else []
            words += precision_notes(jobs.workloads[w].precision, place) if w >= 0 else []
            words += [
                t for t in place.warnings if t.startswith(("the interconnect ", "the price "))
            ]
        notes.append("; ".join(words))
    return np.asarray(np.array([*notes, ""], dtype=object)[pair])


def _plan_doubts(jobs: Jobs) -> Texts:
    """Return what of each row's plan its framework does not run, and whether its batch multiplies out, (n,)."""
    notes, plans = np.full(len(jobs), "", dtype=object), jobs.plans
    labels = np.array([*(w.framework for w in jobs.workloads), ""], dtype=object)
    for label in dict.fromkeys(labels):
        own = labels[jobs.workload_index] == label
        for feature, why in [*cannot_run(label).items()][::-1]:  # the first is said
            notes[own & having(plans, feature)] = f"{label} runs no plan with {feature}: {why}"
    each = plans.micro_batch.astype(np.int64) * plans.dp
    for i in np.flatnonzero((plans.global_batch % np.maximum(each, 1) > 0) & jobs.resolved):
        whole = f"global batch {plans.global_batch[i]:,} is no multiple of micro_batch x dp = {each[i]:,}"
        notes[i] = "; ".join(filter(None, (notes[i], whole)))
    return notes


def summary_of(advisor: Advisor, answered: Table, out: str | None = None) -> dict[str, Any]:
    """Return what is said of a table with answers, as plain values: counts, reasons, notes, and the rows.

    out: the file that holds the rows, which are then left out.
    """
    reasons, who = (Counter(filter(None, answered.texts(n))) for n in ("declined", "predictor"))
    predictor, declined = advisor.predictor, sum(reasons.values())
    doomed = _doomed(
        *(answered.columns[name] for name in ("predicted_fit_probability", "declined"))
    )
    choice: dict[str, Any] = {}  # who answered how many rows, and why, where none was named
    if (verdicts := getattr(predictor, "verdicts", None)) is not None:
        choice = {"answered_by": dict(who.most_common()), "choice": verdicts,
                  "reasons_of_choice": list(getattr(predictor, "reasons", ()))}  # fmt: skip
    return {
        "answered": len(answered) - declined, "declined": declined,
        "reasons": dict(reasons.most_common()),
        **({"rows": list(iter_rows(answered))} if out is None else {"out": out}),
        "not_fitting": int((doomed != "").sum()), **known_by(predictor),
        **({} if advisor.flags is None else {"runs": advisor.flags.as_dict()}),
        "notes": list(getattr(predictor, "notes", ())), **choice,
    }  # fmt: skip


def _doomed(fits: FloatArray, declined: NDArray[Any]) -> Texts:
    notes = np.full(len(fits), "", dtype=object)
    with np.errstate(invalid="ignore"):
        notes[fits < answer.MAY_FIT] = "it probably does not fit in a device's memory"
        notes[fits < answer.HOPELESS] = "it does not fit in a device's memory"
    notes[declined != ""] = ""
    return notes


# Why a length in a unit cannot be counted.
_LACKING = {
    "tokens": "its samples have no tokens",
    "epochs": "the size of its dataset is not known; fill dataset_size",
}


def row_lengths(jobs: Jobs, length: Length | None) -> tuple[FloatArray, FloatArray, Texts]:
    """Return optimizer steps, samples, and why a row's own length cannot be or None, (n,) each.

    A row's own length comes first, then the request's, its *_to_target, and the workload's usual one.
    """
    n, batch = len(jobs), _batches(jobs)
    table = jobs.cells
    reasons: Texts = np.full(n, None, dtype=object)
    tokens = _each(jobs, lambda workload: workload.seq_len or np.nan)
    each = {
        "steps": batch, "samples": np.ones(n), "tokens": 1.0 / tokens, "epochs": _datasets(jobs),
    }  # fmt: skip

    def blame(rows: BoolArray, reason: str) -> None:
        reasons[rows & is_none(reasons)] = reason

    def cells(name: str, most: float) -> FloatArray:
        values = table.numbers(name)
        good = (values > 0) & (values <= most)
        for value in np.unique(values[~good & ~np.isnan(values)]):
            blame(values == value, f"{name}={value:.10g} is no length of training; correct it")
        return np.where(good, values, np.nan)

    def usual(unit: str) -> FloatArray:
        def count(workload: Workload) -> float:
            one = length or workload.length
            return one.count if one is not None and one.unit == unit else np.nan

        return _each(jobs, count)

    counts = [(unit, usual(unit)) for unit in Length.UNITS]
    targets = ("epochs", "samples") if length is None else ()
    counts += [(unit, cells(f"{unit}_to_target", answer.LONGEST["samples"])) for unit in targets]
    given = np.array([~np.isnan(table.numbers(unit)) for unit in Length.UNITS])
    blame(given.sum(axis=0) > 1, f"a job has one length; keep one of {', '.join(Length.UNITS)}")
    own = {unit: cells(unit, answer.LONGEST[unit]) for unit in Length.UNITS}
    for unit, lacking in _LACKING.items():
        unknown = ~np.isnan(own[unit]) & np.isnan(each[unit]) & (jobs.workload_index >= 0)
        blame(unknown, f"a length in {unit}, but {lacking}")
    steps, samples = np.full((2, n), np.nan)
    for unit, count in (*counts, *own.items()):
        amount = count * each[unit]
        rows = ~np.isnan(count if unit == "steps" else amount)
        samples[rows] = amount[rows]
        steps[rows] = (count if unit == "steps" else np.ceil(amount / batch))[rows]
    return steps, samples, reasons


def _states_length(jobs: Jobs) -> BoolArray:
    """Return which rows state how long they train, or took to reach a target, (n,)."""
    names = [*Length.UNITS, *(f"{unit}_to_target" for unit in ("epochs", "samples"))]
    return np.asarray(np.any([jobs.cells.numbers(name) > 0 for name in names], axis=0))


def _each(jobs: Jobs, read: Callable[[Workload], float]) -> FloatArray:
    return np.array([*map(read, jobs.workloads), np.nan], dtype=np.float64)[jobs.workload_index]


def _datasets(jobs: Jobs) -> FloatArray:
    stated, usual = jobs.cells.numbers("dataset_size"), jobs.per_workload("dataset_size", 0.0)
    return np.where(stated > 0, stated, np.where(usual > 0, usual, np.nan))


def _batches(jobs: Jobs) -> FloatArray:
    batch, problem = jobs.plans.step_samples, jobs.plan_problem
    if problem is not None:  # without dp, a micro-batch says no batch either
        stated = np.isfinite(jobs.cells.numbers("global_batch"))
        batch = np.where((problem == NO_BATCH) | ((problem == NO_DP) & ~stated), np.nan, batch)
    return batch


def answer_columns(
    jobs: Jobs, forecasts: Sequence[Forecasts], length: Length | None, market: str,
    lost: Preemption = Preemption(),  # noqa: B008 - frozen
) -> dict[str, NDArray[Any]]:  # fmt: skip
    """Return the added figures, n rows each: NaN or "" where there is no answer.

    forecasts: the usual quantity first; others follow from it. length: for rows that state none.
    lost: time beside the steps.
    """
    first, batch, dataset = forecasts[0], _batches(jobs), _datasets(jobs)
    steps, samples, wrong = row_lengths(jobs, length)
    target = np.full(len(jobs), np.nan)
    if first.samples_to_target is not None:
        target = first.samples_to_target[:, 1]
    known = {one.quantity: one.seconds for one in forecasts}
    unknown = np.full((len(jobs), 3), np.nan)
    step, epoch, run = (known.get(name, unknown) for name in QUANTITIES)
    with np.errstate(divide="ignore", invalid="ignore"):
        # A length that the row states comes first: its own, then one that it was measured to take.
        steps = np.where(_states_length(jobs) | np.isnan(target), steps, target / batch)
        a_step, a_run, epochs = (
            column[:, None] for column in (dataset / batch, steps, samples / dataset)
        )
        # A whole run has a length that the row or the request states, and not the workload's usual one.
        whole = np.where(_states_length(jobs)[:, None] | (length is not None), run, np.nan)
        step, epoch, run = (
            np.where(np.isnan(a), np.where(np.isnan(b), c, b), a)
            for a, b, c in (
                (step, epoch / a_step, whole / a_run),
                (epoch, step * a_step, whole / epochs),
                (run, step * a_run, epoch * epochs),
            )
        )
    estimates, cost = _priced(jobs, known, run, market, lost)
    wall = estimates.wall_seconds
    figures = throughput(jobs, step[:, 1], steps, wall[:, 1], cost, batch)
    figures["tflops_per_device"] = figures["flops_per_second_per_device"] / TERA
    with np.errstate(divide="ignore", invalid="ignore"):
        columns = {
            **{
                name: values
                for key, values in figures.items()
                if (name := f"predicted_{key.replace('second', 's').replace('dollar', 'usd')}")
                in ADDED
            },
            "predicted_start_s": np.where(np.isnan(wall[:, 1]), np.nan, estimates.start_seconds),
            "predicted_goodput": run[:, 1] / (wall[:, 1] - estimates.start_seconds),
            "predicted_memory_gb": first.peak_bytes[:, 1] / GIGA,
            "predicted_fit_probability": _fits(jobs, first),
            "predicted_samples_to_target": target,
            "predicted_cost_usd": cost,
        }
    spans = {"step_time": step, "epoch_time": epoch, "time_to_train": run, "wall_time": wall}
    for name, rows in spans.items():
        for i, quantile in enumerate(("_p05", "", "_p95")):
            columns[f"predicted_{name}{quantile}_s"] = rows[:, i]
    # A row without the usual quantity may have another one.
    declined = first.declined.copy()
    who = np.full(len(jobs), first.predictor, dtype=object) if first.by is None else first.by.copy()
    for other in forecasts[1:]:
        gained = other.answered & ~is_none(declined)
        declined[gained] = None
        who[gained] = other.predictor if other.by is None else other.by[gained]
    reasons = np.array(["" if why is None else str(why) for why in declined], dtype=object)
    if jobs.workload_problem is not None and jobs.cluster_problem is not None:
        both = ~is_none(jobs.cluster_problem) & (reasons == jobs.workload_problem)
        reasons[both] = reasons[both] + "; and " + jobs.cluster_problem[both]
    blamed = ~is_none(wrong)
    if jobs.workload_problem is not None:
        blamed &= is_none(jobs.workload_problem)
    reasons[blamed] = wrong[blamed]
    out: dict[str, NDArray[Any]] = {
        name: np.where(np.isfinite(values) & ~blamed, values, np.nan)
        for name, values in columns.items()
    }
    out["declined"] = reasons
    out["predictor"] = np.where(reasons == "", who, "").astype(object)
    return out


def _priced(
    jobs: Jobs, known: Mapping[str, FloatArray], run: FloatArray, market: str, lost: Preemption
) -> tuple[Estimates, FloatArray]:
    """Return runs of (n, 3) seconds of steps with their wall times, and their median dollars (n,)."""
    spot = np.append(on_spot(jobs.clusters, market, lost), False)[jobs.cluster_index]
    whole = known.get("run", np.full((len(jobs), 3), np.nan))[:, 1]
    estimates = priced_runs(
        jobs, run, np.full(len(jobs), np.nan), np.ones(len(jobs)), spot, lost, np.isnan(whole)
    )
    cost = estimates.dollars[:, 1]
    if market != "spot":
        stated = jobs.cells.numbers("price_usd_per_hour") / SECONDS_PER_HOUR
        billed = np.maximum(estimates.wall_seconds[:, 1], lost.least_billed_seconds or 0.0)
        cost = np.where(jobs.cluster_index < 0, billed * stated, cost)
    return estimates, cost


def _fits(jobs: Jobs, forecasts: Forecasts) -> FloatArray:
    """Return P(fits): 0 where the plan is readable and not legal, whatever the predictor says."""
    fits = np.minimum(forecasts.fit_probability, sure_at_most(forecasts.unmeasured, len(jobs)))
    known = np.flatnonzero((jobs.workload_index >= 0) & (jobs.cluster_index >= 0))
    if jobs.plan_problem is None or not len(known):
        return fits
    part = jobs.take(known)
    broken = plan_problems(part.plans, part.limits()) > 0
    unreadable = np.isnan(_batches(part))
    fits[known] = np.where(unreadable, np.nan, np.where(broken, 0.0, fits[known]))
    return fits


_STATES = tuple(
    name
    for name, column in COLUMNS.items()
    if column.group == "plan" and name not in ("global_batch", "task")
)


_AS_RUN = (
    "as your runs, which state no plan: memory is not forecast (state one, such as zero_stage)"
)


def planned(predictor: Predictor, jobs: Jobs, table: Table) -> tuple[Jobs, Texts, Texts]:
    """Return jobs with plans for rows that state none; each row's chosen plan, and how it was chosen."""
    n = len(jobs)
    chosen, notes = np.full((2, n), "", dtype=object)
    open_rows = (jobs.workload_index >= 0) & (jobs.cluster_index >= 0)
    if jobs.plan_problem is not None:
        # Their blank cells' usual meaning may be illegal; a chosen plan is not.
        given = table.numbers("global_batch")
        readable = np.isnan(given) | ((given >= 1) & (given < 2**31) & (np.floor(given) == given))
        open_rows &= readable | is_none(jobs.plan_problem) | (jobs.plan_problem == NO_BATCH)
    for name in (*_STATES, *MEASURED):
        column = table.columns.get(name)
        if column is not None:
            open_rows &= (column == "") if column.dtype == object else np.isnan(column)
    rows = np.flatnonzero(open_rows)
    if not len(rows):
        return jobs, chosen, notes
    if getattr(predictor, "as_they_were_run", False):
        notes[rows] = _AS_RUN
        return jobs, chosen, notes
    columns = {name: getattr(jobs.plans, name).copy() for name in NAMES}
    problems: Texts = np.full(n, None, dtype=object)
    if jobs.plan_problem is not None:
        problems = jobs.plan_problem.copy()
    batches = np.nan_to_num(table.numbers("global_batch")[rows]).astype(np.int64)
    keys = np.stack([jobs.workload_index[rows], jobs.cluster_index[rows], batches], axis=1)
    groups, group = np.unique(keys, axis=0, return_inverse=True)
    for g, (w, c, batch) in enumerate(groups.tolist()):
        report_progress(f"chooses plans: {g + 1:,} of {len(groups):,}")
        mine = rows[group.reshape(-1) == g]
        asked, place = jobs.workloads[w], jobs.clusters[c]
        try:
            batch, why = answer.batch_for(
                asked, place.devices, {"global_batch": batch} if batch else {}
            )
            choose = partial(best_plan, asked, place, predictor, fixed={}, global_batch=batch)
            try:
                plan, how = choose()
            except RequestError:
                # A row's batch that devices cannot share out is answered with a warning.
                plan, how = choose(exact=False)
        except ForerunError as error:
            problems[mine] = f"{error.found}; {error.next_step.partition(';')[0]}"
            continue
        for name, values in vars(PlanColumns.of([plan])).items():
            columns[name][mine] = values[0]
        problems[mine], chosen[mine] = None, str(plan)
        notes[mine] = "; ".join(filter(None, (*why, how)))
    return replace(jobs, plans=PlanColumns(**columns), plan_problem=problems), chosen, notes
