"""Suggesting: the next runs among the rows of a table, or for a recommendation, with their reasons."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from forerun.advisor.advisor import Advisor
from forerun.advisor.answer import MAY_FIT
from forerun.advisor.explaining import CAUSE_WORDS
from forerun.advisor.given_runs import IDENTITY, MadeRuns
from forerun.advisor.recommending import node_counts
from forerun.advisor.tabular import answer_columns, planned, row_lengths
from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.catalog import Catalog
from forerun.contracts import LinearPredictor, Predictor
from forerun.domain.forecast import Forecasts
from forerun.domain.job import Job, job_problem
from forerun.domain.recommendation import Option, Recommendation
from forerun.domain.workload import Length
from forerun.errors import RequestError, UnsatisfiedError, one_of
from forerun.predictors.laws.ernest import Ernest
from forerun.predictors.laws.law_rows import LawRows
from forerun.search.beliefs import runs_behind
from forerun.search.design import suggest_by_design
from forerun.search.suggestion import (
    DOLLARS,
    NextRun,
    Request,
    Suggestion,
    dollars_per_hour,
    run_prices,
    suggest_for_accuracy,
    suggest_for_decision,
)
from forerun.tables import COLUMNS, Jobs, Runs, Table
from forerun.tables.jobs import job_columns, join_tables
from forerun.units import SECONDS_PER_HOUR, counted, format_dollars, format_percent, format_seconds
from forerun.workloads.own_labels import OwnLabels
from forerun.workloads.rows import jobs_from_table

GOALS = ("accuracy", "decision")
RUN_STEPS = 100
MOST_SECONDS = 600.0
# Machines that start, containers, data and compilation: minutes, whatever the job.
STARTUP_SECONDS = 180.0
_MOST = 1500  # candidates, and wanted jobs, whose errors are looked at together
_MOST_OPTIONS = 24
_FEW = 20
_FIRST_COUNT = re.compile(r"^\d+x", re.IGNORECASE)
# What tells jobs apart beside workload, cluster and batch, and how much of it a label shows.
_TELL_APART, _MOST_SHOWN = (
    "dataset_size", "sync", "parameter_servers", "learning_rate", "precision", "framework",
    "seq_len", "image_size", "micro_batch", "tp", "pp", "zero_stage", "recompute",
), 3  # fmt: skip
_TELLING = 0.1  # of the doubt: what a run tells less of is not shown
_ADDED = ("suggested_order", "suggested_price", "suggested_price_unit", "suggested_run_s",
          "suggested_run_steps", "suggested_reason")  # fmt: skip


@dataclass(frozen=True)
class SuggestOptions:
    """What next runs are for, and what they may cost.

    Attributes:
        budget: in dollars where candidates have prices; infinite for none.
        count: the most runs; None for one without a budget, else what it pays for.
        goal: accuracy or decision. criterion: V, A or D, of designs.
        run_steps: optimizer steps in a run, where a step is predicted.
        startup_seconds: paid for before the first of them.
        most_seconds: of steps in a run, which has fewer of slow ones; infinite for no fewer.
        minimize: of the choice: time or cost. deadline_seconds: of the job; infinite for none.
        times: how often the chosen job will be run.
        length: of the jobs that are chosen among.
    """

    budget: float = np.inf
    count: int | None = None
    goal: str = "accuracy"
    criterion: str = ""
    run_steps: int = RUN_STEPS
    startup_seconds: float = STARTUP_SECONDS
    most_seconds: float = MOST_SECONDS
    minimize: str = "cost"
    deadline_seconds: float = np.inf
    times: float = 1.0
    length: Length | None = None
    market: str = "on-demand"

    def refuse_criterion(self, why: str, instead: str) -> None:
        """Raise RequestError where a criterion is named and no design is made."""
        if self.criterion:
            found = f"it applies to optimal designs, and {why}"
            raise RequestError(f"--criterion {self.criterion}", found, instead)


@dataclass(frozen=True)
class Suggested:
    """Next runs as a door shows them.

    Attributes:
        suggestion: what was found.
        labels, reasons: of each run, as text.
        chosen: what would be chosen now, as text; "" where no choice is made.
        table: the runs as rows of a runs table, with order, price and reason added.
        predictor: its name. considered: candidates that were looked at.
        notes: what was assumed, and what was left out.
    """

    suggestion: Suggestion
    labels: tuple[str, ...]
    reasons: tuple[str, ...]
    chosen: str
    table: Table
    predictor: str
    considered: int
    notes: tuple[str, ...]


def suggest_from_table(
    predictor: Predictor,
    catalog: Catalog,
    candidates: Table,
    runs: Runs | None,
    wanted: Table | None,
    options: SuggestOptions,
    made: Table | None = None,
) -> Suggested:
    """Return the next runs among the rows of a table.

    Args:
        predictor: fitted on `runs`, or one that answers without any.
        catalog: where devices are looked up.
        candidates: jobs that could be run; measured columns are not read.
        runs: what was run already.
        wanted: the jobs whose answers matter; the candidates by default.
        options: goal, budget and length of runs.
        made: jobs that were run besides, whose times are not at hand.

    Raises:
        RequestError: no candidates, or none that the predictor can speak of; a criterion is named,
            and no design is made.
        UnsatisfiedError: all were run already, or none can be paid for.
    """
    for name, table in (("candidates", candidates), ("asked jobs", wanted)):
        if table is not None and not len(table):
            raise RequestError("the next runs", f"the table of {name} has no rows", "give some")
    done = np.zeros(len(candidates), dtype=bool)
    for had in (None if runs is None else runs.jobs.labels, made):
        done |= _made_already(candidates, had)
    if done.all():
        raise UnsatisfiedError(
            f"the next runs among {counted(len(candidates), 'candidate')}",
            "every one of them was run already", "give other candidates",
        )  # fmt: skip
    rows, notes = _open_rows(candidates, done)
    n = len(rows)
    both = candidates.take(rows)
    if wanted is not None:
        both = join_tables([both, wanted.take(_evenly(np.arange(len(wanted))))])
        if len(wanted) > _MOST:
            notes.append(f"{_MOST:,} of {len(wanted):,} asked jobs looked at, evenly spread")
    known = None if made is None or not len(made) else jobs_from_table(made, catalog)
    labels = OwnLabels.of(known if runs is None else runs.jobs)
    plans = planned(predictor, jobs_from_table(both, catalog, labels.read), both)
    jobs, both = plans.jobs, both.with_columns(suggested_plan=plans.chosen)
    forecasts = predictor.predict(jobs)
    request = _request(predictor, jobs, forecasts, n, runs, options)
    prices, notes_of_prices = request.prices, []
    if np.isfinite(options.budget) and prices.unit != DOLLARS:
        notes_of_prices.append(
            f"the budget of {options.budget:g} counts {prices.unit}, not dollars: no candidate has a"
            " price (price_usd_per_hour)"
        )
    doomed = forecasts.fit_probability[:n] < MAY_FIT
    if doomed.any():
        notes_of_prices.append(
            f"{counted(int(doomed.sum()), 'candidate')} left out: too little memory"
        )
        prices = replace(prices, amount=np.where(doomed, np.nan, prices.amount))
    request = replace(request, prices=prices, made=known)
    if wanted is None:
        request = replace(request, wanted=request.candidates)
    found = _by_goal(request, forecasts, options)
    return _shown(found, request, both, (*notes, *notes_of_prices))


def _request(
    predictor: Predictor, jobs: Jobs, forecasts: Forecasts, n: int, runs: Runs | None,
    options: SuggestOptions,
) -> Request:  # fmt: skip
    """Return the request of jobs whose first n are candidates, and the others wanted."""
    first = np.arange(n)
    prices = run_prices(
        jobs.take(first), forecasts.take(first), options.run_steps, options.startup_seconds,
        options.most_seconds,
    )  # fmt: skip
    return Request(
        predictor, jobs, first, np.arange(n, len(jobs)), prices, options.budget, options.count, runs
    )


def _made_already(candidates: Table, runs: Table | None) -> BoolArray:
    """Return which candidates equal a run in every column that says what a job is, (n,)."""
    nothing = np.zeros(len(candidates), dtype=bool)
    if runs is None or not len(runs) or "workload" not in candidates or "workload" not in runs:
        return nothing
    names = [name for name in IDENTITY if name in candidates and name in runs]
    # Two tables may say in other columns where a job runs: one that says it otherwise is another
    # job. A candidate of so many devices, which leaves open on how many nodes, was run on any.
    for name in ("cluster", "device", "nodes", "devices"):
        lacking = name not in names and (name in candidates or name in runs)
        placed = {"device", "devices"} <= {*names} and name == "nodes" not in candidates
        if lacking and not placed:
            names.append(name)
    had = set(_keys(runs, names))
    return np.array([key in had for key in _keys(candidates, names)], dtype=bool)


def _open_rows(table: Table, done: BoolArray) -> tuple[IntArray, list[str]]:
    """Return the rows of candidates that are looked at, (m,), and notes on the others."""
    notes = [f"{counted(int(done.sum()), 'candidate')} left out: run already"] if done.any() else []
    seen: dict[tuple[Any, ...], int] = {}
    for i, key in enumerate(_keys(table, [name for name in IDENTITY if name in table])):
        if not done[i]:
            seen.setdefault(key, i)
    rows = np.array(sorted(seen.values()), dtype=np.int64)
    again = int((~done).sum()) - len(rows)
    if again:
        notes.append(f"{counted(again, 'candidate')} left out: the same job as another")
    if len(rows) > _MOST:
        notes.append(f"{_MOST:,} of {len(rows):,} candidates looked at, evenly spread")
    return _evenly(rows), notes


def _evenly(rows: IntArray, most: int = _MOST) -> IntArray:
    """Return at most so many of the rows, evenly spread."""
    if len(rows) <= most:
        return rows
    return np.asarray(rows[np.linspace(0, len(rows) - 1, most).astype(np.int64)])


def _keys(table: Table, names: list[str]) -> list[tuple[Any, ...]]:
    columns = [
        np.nan_to_num(table.numbers(name), nan=-1.0).tolist()
        if COLUMNS[name].kind == "number"
        else [text.strip().lower() for text in table.texts(name)]
        for name in names
    ]
    return list(zip(*columns, strict=True))


def _by_goal(request: Request, forecasts: Forecasts, options: SuggestOptions) -> Suggestion:
    """Return what is found for the goal; a linear law's accuracy is a matter of design."""
    if options.goal not in GOALS:
        raise RequestError(
            f"a goal of {options.goal!r}", "no such goal", one_of(options.goal, GOALS)
        )
    if options.goal == "decision":
        options.refuse_criterion("a choice is made", "leave it out, or use --goal accuracy")
        scale, latest = _objective(request, forecasts, options)
        unit = "seconds" if options.minimize == "time" else DOLLARS
        return suggest_for_decision(request, scale, latest, unit, options.times)
    name = request.predictor.name
    why, instead = (
        f"{name} offers no linear features to design by",
        "name a predictor that does (--predictor ernest)",
    )
    if isinstance(request.predictor, LinearPredictor):
        fitted = bool(getattr(request.predictor, "laws", {}))
        if request.runs is not None or request.made is not None or not fitted:
            return suggest_by_design(request, options.criterion or "V")
        why = "the model was saved without the jobs of the runs it was fitted to"
        instead = "give them with --runs, or fit it again"
    options.refuse_criterion(why, instead)
    return suggest_for_accuracy(request)


def _objective(
    request: Request, forecasts: Forecasts, options: SuggestOptions
) -> tuple[FloatArray, FloatArray]:
    """Return for each wanted job the objective for a second of its forecast, and its latest second."""
    title = "which run would change the choice"
    jobs, part = request.jobs.take(request.wanted), forecasts.take(request.wanted)
    rows, each = LawRows(jobs), part.seconds[:, 1]
    kinds, index = rows.kinds
    names = sorted({kinds[i][0] for i in index[np.isfinite(each)].tolist()})
    if len(names) > 1:
        raise RequestError(
            title, f"{len(names)} workloads: {', '.join(names[:4])}",
            "give jobs of one workload with --asked, or use --goal accuracy",
        )  # fmt: skip
    lengths = row_lengths(jobs, options.length, rows.size("dataset_size"))
    columns = answer_columns(jobs, [part], lengths, options.market)
    with np.errstate(divide="ignore", invalid="ignore"):
        times = columns["predicted_time_to_train_s"] / each
    if np.isfinite(each).any() and not np.isfinite(times).any():
        raise RequestError(
            title, "it is not known how long the jobs are",
            "say it with --steps, --samples or --epochs, or in columns of the table",
        )  # fmt: skip
    times = np.where(part.fit_probability < MAY_FIT, np.nan, times)
    latest = options.deadline_seconds / times
    if options.minimize == "time":
        return times, latest
    return times * dollars_per_hour(jobs) / SECONDS_PER_HOUR, latest


def suggest_for_workload(
    predictor: Predictor,
    catalog: Catalog,
    found: Recommendation,
    runs: Runs | None,
    options: SuggestOptions,
) -> Suggested:
    """Return the runs that would change which of the options of a recommendation is chosen.

    The options are the best job of each cluster and the Pareto front. The candidates are short
    runs of each option's plan on its own machines, on 1, 2, 4 ... nodes up to its own, the batch of
    each replica as it is.

    Args:
        predictor: who recommended.
        catalog: where smaller clusters are looked up.
        found: the recommendation.
        runs: what the predictor was fitted on.
        options: budget and length of runs; objective and deadline are the recommendation's.

    Raises:
        RequestError: a criterion of designs is named.
        UnsatisfiedError: nothing was recommended; or no run can be paid for.
    """
    options.refuse_criterion(
        "those are of the rows of a table", "leave it out, or give --candidates"
    )
    if found.best is None:
        raise UnsatisfiedError(
            "the runs that would settle a recommendation", "nothing satisfies the limits",
            "see `forerun recommend` for the nearest misses",
        )  # fmt: skip
    among: list[Option] = []
    for option in (found.best, *found.alternatives, *found.front):
        if len(among) < _MOST_OPTIONS and all(option.job != other.job for other in among):
            among.append(option)
    wanted = [option.job for option in among]
    smaller = list(_smaller(catalog, wanted))
    jobs = Jobs.of([*smaller, *wanted])
    request = _request(predictor, jobs, predictor.predict(jobs), len(smaller), runs, options)
    if options.goal == "accuracy":
        answer = suggest_for_accuracy(request)
    else:
        answer = _by_choice(request, found, among, options.times)
    return _shown(answer, request, job_columns(jobs))


def _by_choice(
    request: Request, found: Recommendation, among: Sequence[Option], times: float
) -> Suggestion:
    """Return what would change the choice by the recommendation's own aim and limits."""
    aim, deadline = found.compared_by, found.objective.deadline_seconds
    forecasts = [option.estimate.forecast for option in among]
    step = np.array([np.nan if f is None else f.seconds[1] for f in forecasts])
    run, dollars = (
        np.array([getattr(option.estimate, name)[1] for option in among])
        for name in ("run_seconds", "dollars")
    )
    latest = (np.inf if deadline is None else deadline) * step / run
    if aim not in ("cost", "time"):
        raise RequestError(
            f"the runs that would change a choice by {aim}", "it is no sum over the jobs",
            "use --minimize time or cost",
        )  # fmt: skip
    scale, unit = (run, "seconds") if aim == "time" else (dollars, DOLLARS)
    answer = suggest_for_decision(request, scale / step, latest, unit, times)
    best, chosen = among[0].job, among[answer.chosen - len(request.candidates)].job
    if chosen == best:
        return answer
    first, other = _told_apart(chosen, best)
    note = (
        f"by expected {aim}, a late run counted twice, {first} comes first,"
        f" before the recommended {other}"
    )
    return replace(answer, notes=(*answer.notes, note))


def _told_apart(*pair: Job) -> list[str]:
    """Return two jobs by their clusters and what of their plans differs."""
    plans = [job.plan.as_dict() for job in pair]
    differ = [name for name in plans[0] if plans[0][name] != plans[1][name]]
    return [
        " ".join((job.cluster.name, job.cluster.region, *(f"{n}={plan[n]}" for n in differ)))
        for job, plan in zip(pair, plans, strict=True)
    ]


def _smaller(catalog: Catalog, jobs: Sequence[Job]) -> Iterator[Job]:
    """Yield each job on 1, 2, 4 ... nodes up to its own, its replicas fewer and their batch kept."""
    seen: set[tuple[Any, ...]] = set()
    for job in jobs:
        cluster, plan = job.cluster, job.plan
        text = _FIRST_COUNT.sub("", cluster.name)
        whole = cluster.devices // plan.dp
        for nodes in [*node_counts(1, cluster.nodes - 1), cluster.nodes]:
            devices = nodes * cluster.devices_per_node
            batch, rest = divmod(plan.global_batch * devices, cluster.devices)
            if devices % whole or rest:
                continue
            less = replace(plan, dp=devices // whole, global_batch=batch)
            key = (text, nodes, cluster.region, less)
            if key in seen:
                continue
            seen.add(key)
            place = cluster
            if nodes != cluster.nodes:
                place = catalog.cluster(f"{nodes}x{text}", region=cluster.region or None)
            if job_problem(job.workload, place, less) is None:
                yield Job(job.workload, place, less)


def _shown(
    found: Suggestion, request: Request, table: Table, notes: tuple[str, ...] = ()
) -> Suggested:
    """Return a suggestion with its words; `table` has the request's jobs as rows."""
    rows = np.array([run.row for run in found.runs], dtype=np.int64)
    steps = request.prices.steps
    steps = np.full(len(request.candidates), np.nan) if steps is None else steps
    reasons = tuple(_reason(request.jobs, found, run, table) for run in found.runs)
    added = (
        np.arange(1.0, len(rows) + 1),
        np.array([run.price for run in found.runs]),
        np.full(len(rows), found.unit, dtype=object),
        np.array([run.seconds for run in found.runs]),
        steps[np.searchsorted(request.candidates, rows)],
        np.array(reasons, dtype=object),
    )
    return Suggested(
        found,
        tuple(_label(request.jobs, int(i), table) for i in rows),
        reasons,
        _label(request.jobs, found.chosen, table) if found.chosen >= 0 else "",
        table.take(rows).with_columns(**dict(zip(_ADDED, added, strict=True))),
        request.predictor.name,
        len(request.candidates),
        (*notes, *found.notes),
    )


def _reason(jobs: Jobs, found: Suggestion, run: NextRun, table: Table) -> str:
    """Return in words why a run is suggested."""
    if found.goal == "design":
        name, times = run.term
        if np.isinf(times):
            return f"without it {name} could not be separated from the other terms"
        return f"without it the variance of {name} would be {times:.2g} times as large"
    words, (about, settled) = [], run.about
    # A wanted job may be a candidate too, in another row.
    own, rival = _label(jobs, run.row, table), _label(jobs, about, table)
    other = "itself" if rival == own else rival
    if found.goal == "decision":
        saved = format_dollars(run.gain) if found.objective == DOLLARS else format_seconds(run.gain)
        more = f" and {format_percent(settled)} of that about {other}"
        more = "" if rival == _label(jobs, found.chosen, table) else more
        words += [
            f"changes the choice in {format_percent(run.changes)} of what it may show, which saves"
            f" {saved} on average",
            f"settles {format_percent(run.of_chosen)} of the doubt about the job chosen now{more}",
        ]
    elif not run.tells:
        words.append(f"settles {format_percent(settled)} of the doubt about {other}")
    telling = [
        f"{CAUSE_WORDS.get(scope, scope)} ({format_percent(share)})"
        for scope, share in run.tells.items() if share >= _TELLING
    ][:2]  # fmt: skip
    if telling:
        words.append(f"informs on {' and '.join(telling)}")
    of = "the job chosen now" if found.goal == "decision" else "the answers"
    words.append(f"leaves an error of {error_words(run.error)} on {of}")
    return "; ".join(words)


def error_words(sigma: float) -> str:
    """Return a standard deviation of logs as an error in per cent; no figure beyond x1,000."""
    return format_percent(np.expm1(sigma), 1) if sigma < np.log(1000.0) else "x1,000 or more"


def _label(jobs: Jobs, i: int, table: Table) -> str:
    """Return a job in a few words: workload, cluster, batch, and what else differs in the table."""
    if jobs.resolved[i]:
        job = jobs[i]
        words = [f"{job.workload.name} on {job.cluster.name}", f"batch {job.plan.global_batch:,}"]
    else:
        rows = LawRows(jobs.take(np.array([i])))
        name, device = rows.kinds[0][0][:2]
        size = rows.size("global_batch")[0]
        place = f"{rows.machines[0]:g} x {device or 'device'}"
        batch = [f"batch {size:,.0f}"] if np.isfinite(size) else []
        words = [f"{name or 'a job'} on {place}", *batch]
    differ = [name for name in _TELL_APART if name in table and len({*table.texts(name)}) > 1]
    cells = ((name, table.texts(name)[i]) for name in differ[:_MOST_SHOWN])
    return ", ".join((*words, *(f"{name} {text}" for name, text in cells if text)))


def why_unanswered(advisor: Advisor, wanted: Table) -> str:
    """Return why an advisor's predictor answers none of the jobs; "" where it answers any."""
    why = "it declines them"
    for most in (_FEW, _MOST):  # a few mostly show it
        part = wanted.take(_evenly(np.arange(len(wanted)), most))
        jobs = jobs_from_table(part, advisor.catalog, advisor.meanings.labels.read)
        forecasts = advisor.predictor.predict(planned(advisor.predictor, jobs, part).jobs)
        if not len(part) or np.isfinite(forecasts.seconds[:, 1]).any():
            return ""
        why = next((str(reason) for reason in forecasts.declined if reason), why)
    return why


def first_runs(
    catalog_files: Sequence[str], name: str, why: str, candidates: Table
) -> tuple[Advisor, list[str]] | None:
    """Return an advisor that designs the first runs of jobs that nobody answers yet, and notes.

    A design needs no times: Ernest's terms, of devices and size, are what any law of such jobs
    has to learn first.

    Args:
        catalog_files: the user's own devices and prices.
        name: who does not answer, and `why`.
        candidates: that could be run.

    Returns:
        None where no candidate says on how many devices it runs.
    """
    advisor = Advisor(catalog_files, Ernest.name)
    features = Ernest().linear_features(jobs_from_table(candidates, advisor.catalog))
    if not np.isfinite(features).all(axis=1).any():
        return None
    return advisor, [
        f"{name} does not answer yet: {why}",
        f"so these are first runs by the terms of {Ernest.name} (devices and size), which takes"
        f" {Ernest.needed}, for each workload and device",
    ]


def saved_model_notes(predictor: Predictor, made: MadeRuns | None) -> list[str]:
    """Return the notes on a saved model that is given without the runs it was fitted to."""
    known = runs_behind(predictor)
    lead = f"what the model has learned{f' ({known})' if known else ''} counts"
    if made is None:
        return [
            f"{lead}, but it was saved without the jobs that were run: give them with --runs too, or"
            " fit it again, so that none is suggested again"
        ]
    return [lead, *filter(None, [made.note])]
