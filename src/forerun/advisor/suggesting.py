"""Suggesting: the next runs from a table of candidates, with their prices and reasons.

SuggestingTables: candidates beside runs: which were made already, and two tables as one.

SuggestingWords: a suggested run in words: which job it is, and why it is worth making.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.advisor.advisor import Advisor
from forerun.advisor.answer import MAY_FIT
from forerun.advisor.explaining import UNKNOWN
from forerun.advisor.given_runs import IDENTITY, MadeRuns
from forerun.advisor.tabular import answer_columns, planned, row_lengths
from forerun.arrays import FloatArray, IntArray
from forerun.catalog import Catalog
from forerun.contracts import Predictor
from forerun.domain.forecast import Forecasts
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
from forerun.units import SECONDS_PER_HOUR, counted, format_dollars, format_percent, format_seconds
from forerun.workloads.rows import jobs_from_table

# What tells jobs apart beside workload, cluster and batch.
_TELL_APART = (
    "dataset_size", "sync", "parameter_servers", "learning_rate", "precision", "framework",
    "seq_len", "image_size", "micro_batch", "tp", "pp", "zero_stage", "recompute",
)  # fmt: skip
_MOST_TOLD = 3
_NOTHING = 0.005
_MOST_LOG = np.log(1000.0)
_TELLING = 0.1  # of the doubt: what a run tells less of is not said


def reason(jobs: Jobs, found: Suggestion, run: NextRun, table: Table) -> str:
    """Return in words why a run is suggested."""
    if found.goal == "design":
        name, times = run.term
        if np.isinf(times):
            return f"without it {name} could not be told from the other terms"
        return f"without it the variance of {name} would be {times:.2g} times as large"
    said = []
    if found.goal == "decision":
        saved = format_dollars(run.gain) if found.objective == DOLLARS else format_seconds(run.gain)
        said.append(
            f"changes the choice in {format_percent(run.changes)} of what it may show, which saves"
            f" {saved} on average"
        )
        said.append(_settles(jobs, found, run, table))
    if found.goal == "accuracy" and not run.tells:
        about, settled = run.about[0], format_percent(run.about[1])
        what = "it" if about == run.row else label(jobs, about, table)
        said.append(f"settles {settled} of the doubt about {what}")
    telling = [(UNKNOWN.get(s, s), v) for s, v in run.tells.items() if v >= _TELLING][:2]
    if telling:
        tells = " and ".join(f"{words} ({format_percent(share)})" for words, share in telling)
        said.append(f"{'' if said else 'of what is asked it '}tells {tells}")
    said.append(
        f"leaves an error of {error_words(run.error)} on"
        f" {'the job chosen now' if found.goal == 'decision' else 'what is asked'}"
    )
    return "; ".join(said)


def error_words(sigma: float) -> str:
    """Return a standard deviation of logs as an error in per cent; none is told beyond x1,000."""
    return format_percent(np.expm1(sigma), 1) if sigma < _MOST_LOG else "x1,000 or more"


def _settles(jobs: Jobs, found: Suggestion, run: NextRun, table: Table) -> str:
    """Return what a run settles of the job chosen now, and of the rival that it tells most of."""
    about, chosen = run.about[0], found.chosen
    share = format_percent(run.of_chosen)
    of_chosen = f"settles {share} of the doubt about the job chosen now"
    if run.row == chosen or _jobs_equal(jobs, run.row, chosen):
        return f"is the job chosen now, and settles {share} of the doubt about it"
    if about == chosen or _jobs_equal(jobs, about, chosen):
        return of_chosen
    settled = format_percent(run.about[1])
    same = run.row == about or _jobs_equal(jobs, run.row, about)
    other = "" if same else f" {label(jobs, about, table)}"
    if run.of_chosen < _NOTHING:
        rest = "of which it tells nothing more"
        if same:
            return f"settles {settled} of the doubt about itself, a rival of the job chosen now, {rest}"
        return f"settles {settled} of the doubt about{other}, a rival of the job chosen now, {rest}"
    return f"{of_chosen} and {settled} of that about {'itself, its rival' if same else f'its rival{other}'}"


def _jobs_equal(jobs: Jobs, a: int, b: int) -> bool:
    """Return whether two rows are one job, so far as they are resolved."""
    return bool(jobs.resolved[[a, b]].all()) and jobs[a] == jobs[b]


def label(jobs: Jobs, i: int, table: Table) -> str:
    """Return a job in a few words: workload, cluster, batch, and what else differs in the table."""
    if jobs.resolved[i]:
        job = jobs[i]
        text = f"{job.workload.name} on {job.cluster.name}, batch {job.plan.global_batch:,}"
    else:
        rows = LawRows(jobs.take(np.array([i])))
        name, device = rows.kinds[0][0][:2]
        machines, size = float(rows.machines[0]), rows.size("global_batch")[0]
        place = f"{machines:g} x {device}" if device else f"{machines:g} devices"
        batch = f", batch {size:,.0f}" if np.isfinite(size) else ""
        text = f"{name or 'a job'} on {place}{batch}"
    return ", ".join(
        (text, *(f"{n} {table.texts(n)[i]}" for n in _varying(table) if table.texts(n)[i]))
    )


def _varying(table: Table) -> list[str]:
    """Return the columns of a few that have more than one value in a table."""
    return [name for name in _TELL_APART if name in table and len(set(table.texts(name))) > 1][
        :_MOST_TOLD
    ]


# Two tables may say in other columns where a job runs: one that says it otherwise is another job.
_PLACE = ("cluster", "device", "nodes", "devices")
# A candidate of so many devices of a kind, which leaves open on how many nodes, was run on any.
_PLACED = {"device", "devices"}


def _made_already(candidates: Table, runs: Table | None) -> NDArray[np.bool_]:
    """Return which candidates equal a run in every column that says what a job is, (n,)."""
    if runs is None or not len(runs):
        return np.zeros(len(candidates), dtype=bool)
    both = [name for name in IDENTITY if name in candidates and name in runs]
    places = [n for n in _PLACE if n not in both and (n in candidates or n in runs)]
    if set(both) >= _PLACED and "nodes" not in candidates:
        places = [n for n in places if n != "nodes"]
    names = [*both, *places]
    if "workload" not in names:
        return np.zeros(len(candidates), dtype=bool)
    had = set(_keys(runs, names))
    return np.array([key in had for key in _keys(candidates, names)], dtype=bool)


def _looked_at(table: Table, made: NDArray[np.bool_], most: int) -> tuple[IntArray, list[str]]:
    """Return the rows of candidates that are looked at, (m,), and what is said of the others."""
    notes = [f"{counted(int(made.sum()), 'candidate')} left out: run already"] if made.any() else []
    names = [name for name in IDENTITY if name in table]
    seen: dict[tuple[Any, ...], int] = {}
    for i, key in enumerate(_keys(table, names)):
        if not made[i]:
            seen.setdefault(key, i)
    rows = np.array(sorted(seen.values()), dtype=np.int64)
    again = int((~made).sum()) - len(rows)
    if again:
        notes.append(f"{counted(again, 'candidate')} left out: the same job as another")
    if len(rows) > most:
        notes.append(
            f"{most:,} of {len(rows):,} candidates looked at, evenly spread over the table"
        )
        rows = _evenly(rows, most)
    return rows, notes


def _evenly(rows: IntArray, most: int) -> IntArray:
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


def joined(first: Table, second: Table | None) -> Table:
    """Return the rows of two tables, one below the other; a column that one lacks is blank there."""
    if second is None:
        return first
    columns: dict[str, NDArray[Any]] = {}
    for name in dict.fromkeys((*first.columns, *second.columns)):
        number = name in COLUMNS and COLUMNS[name].kind == "number"
        columns[name] = np.concatenate([
            table.numbers(name) if number else table.texts(name) for table in (first, second)
        ])  # fmt: skip
    problems = [
        np.full(len(table), None, dtype=object) if table.problems is None else table.problems
        for table in (first, second)
    ]
    return Table(columns, len(first) + len(second), np.concatenate(problems))


GOALS = ("accuracy", "decision")
RUN_STEPS = 100
MOST_SECONDS = 600.0
# Machines that start, containers, data and compilation: minutes, whatever the job.
STARTUP_SECONDS = 180.0
_MOST = 1500  # candidates, and asked jobs, whose errors are looked at together
_ADDED = ("suggested_order", "suggested_price", "suggested_price_unit", "suggested_run_s",
          "suggested_run_steps", "suggested_reason")  # fmt: skip


@dataclass(frozen=True)
class Asking:
    """How next runs are asked for.

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


@dataclass(frozen=True)
class Suggested:
    """Next runs as a door shows them.

    Attributes:
        suggestion: what was found.
        labels, reasons: of each run, as text.
        chosen: what would be chosen now, as text; "" where no choice was asked for.
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
    asked: Table | None,
    asking: Asking,
    made: Table | None = None,
) -> Suggested:
    """Return the next runs among the rows of a table.

    Args:
        predictor: fitted on `runs`, or one that answers without any.
        catalog: where devices are looked up.
        candidates: jobs that could be run; measured columns are not read.
        runs: what was run already.
        asked: the jobs whose answers matter; the candidates by default.
        asking: how.
        made: jobs that were run besides, whose times are not at hand.

    Raises:
        RequestError: no candidates, or none that the predictor can speak of; a criterion is named,
            and no design is made.
        UnsatisfiedError: all were run already, or none can be paid for.
    """
    from forerun.workloads.own_labels import OwnLabels
    from forerun.workloads.rows import jobs_from_table

    if not len(candidates):
        raise RequestError("the next runs", "the table of candidates has no rows", "give some")
    if asked is not None and not len(asked):
        raise RequestError("the next runs", "the table of asked jobs has no rows", "give some")
    told = None if runs is None else runs.jobs.labels
    done = _made_already(candidates, told) | _made_already(candidates, made)
    if done.all():
        raise UnsatisfiedError(
            f"the next runs among {counted(len(candidates), 'candidate')}",
            "every one of them was run already", "give other candidates",
        )  # fmt: skip
    open_rows, notes = _looked_at(candidates, done, _MOST)
    if asked is not None and len(asked) > _MOST:
        notes.append(f"{_MOST:,} of {len(asked):,} asked jobs looked at, evenly spread")
        asked = asked.take(_evenly(np.arange(len(asked)), _MOST))
    both = joined(candidates.take(open_rows), asked)
    known = None if made is None or not len(made) else jobs_from_table(made, catalog)
    labels = OwnLabels.of(known if runs is None else runs.jobs)
    plans = planned(predictor, jobs_from_table(both, catalog, labels.read), both)
    jobs, both = plans.jobs, both.with_columns(suggested_plan=plans.chosen)
    n = len(open_rows)
    first = np.arange(n)
    forecasts = predictor.predict(jobs)
    prices = run_prices(
        jobs.take(first), forecasts.take(first), asking.run_steps, asking.startup_seconds,
        asking.most_seconds,
    )  # fmt: skip
    if np.isfinite(asking.budget) and prices.unit != DOLLARS:
        notes.append(
            f"the budget of {asking.budget:g} counts {prices.unit}, not dollars: no candidate has a"
            " price (price_usd_per_hour)"
        )
    doomed = forecasts.fit_probability[:n] < MAY_FIT
    if doomed.any():
        notes.append(
            f"{counted(int(doomed.sum()), 'candidate')} left out: too little memory, probably"
        )
        prices = replace(prices, amount=np.where(doomed, np.nan, prices.amount))
    wanted = first if asked is None else np.arange(n, len(both))
    request = Request(
        predictor, jobs, first, wanted, prices, asking.budget, asking.count, runs, known
    )
    found = _found(request, forecasts, asking)
    return shown(found, request, both, tuple(notes))


def _found(request: Request, forecasts: Forecasts, asking: Asking) -> Suggestion:
    """Return what is found for the goal; a linear law's accuracy is a matter of design."""
    if asking.goal not in GOALS:
        raise RequestError(f"a goal of {asking.goal!r}", "no such goal", one_of(asking.goal, GOALS))
    if asking.goal == "decision":
        no_design(asking, "a better choice (--goal decision) is no matter of one", "leave it out, or"
                  " use --goal accuracy")  # fmt: skip
        scale, latest = _choice(request, forecasts, asking)
        unit = "seconds" if asking.minimize == "time" else DOLLARS
        return suggest_for_decision(request, scale, latest, unit, asking.times)
    if hasattr(request.predictor, "linear_features"):
        fitted = bool(getattr(request.predictor, "laws", {}))
        if request.runs is not None or request.made is not None or not fitted:
            return suggest_by_design(request, asking.criterion or "V")
        no_design(asking, "the model was saved without the jobs that taught its law", "give them with"
                  " --runs, or fit it again")  # fmt: skip
    no_design(asking, f"{request.predictor.name} is no law linear in its parameters", "leave it out, or"
              " name one that is (--predictor ernest)")  # fmt: skip
    return suggest_for_accuracy(request)


def no_design(asking: Asking, why: str, instead: str) -> None:
    """Refuse a criterion that was named where no design is made.

    Raises:
        RequestError: one was named.
    """
    if asking.criterion:
        raise RequestError(
            f"--criterion {asking.criterion}", f"it is of optimal designs, and {why}", instead
        )


def _choice(
    request: Request, forecasts: Forecasts, asking: Asking
) -> tuple[FloatArray, FloatArray]:
    """Return for each asked job the objective for a second of its forecast, and its latest second."""
    jobs, part = request.jobs.take(request.wanted), forecasts.take(request.wanted)
    kinds, index = LawRows(jobs).kinds
    names = sorted({kinds[i][0] for i in index[np.isfinite(part.seconds[:, 1])].tolist()})
    if len(names) > 1:
        raise RequestError(
            "which run would change the choice", f"{len(names)} workloads: {', '.join(names[:4])}",
            "give jobs of one workload with --asked, or use --goal accuracy",
        )  # fmt: skip
    datasets = LawRows(jobs).size("dataset_size")
    columns = answer_columns(
        jobs, [part], row_lengths(jobs, asking.length, datasets), asking.market
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        times = columns["predicted_time_to_train_s"] / part.seconds[:, 1]
    if np.isfinite(part.seconds[:, 1]).any() and not np.isfinite(times).any():
        raise RequestError(
            "which run would change the choice", "it is not known how long the jobs are",
            "say it with --steps, --samples or --epochs, or in columns of the table",
        )  # fmt: skip
    times = np.where(part.fit_probability < MAY_FIT, np.nan, times)
    latest = asking.deadline_seconds / times
    if asking.minimize == "time":
        return times, latest
    return times * dollars_per_hour(jobs) / SECONDS_PER_HOUR, latest


def shown(
    found: Suggestion, request: Request, table: Table, notes: tuple[str, ...] = ()
) -> Suggested:
    """Return a suggestion with its words; `table` has the request's jobs as rows."""
    rows = np.array([run.row for run in found.runs], dtype=np.int64)
    place = {int(row): i for i, row in enumerate(request.candidates)}
    known = request.prices.steps
    steps = np.full(len(place), np.nan) if known is None else known
    reasons = tuple(reason(request.jobs, found, run, table) for run in found.runs)
    added: Mapping[str, NDArray[Any]] = dict(zip(_ADDED, (
        np.arange(1, len(rows) + 1, dtype=np.float64),
        np.array([run.price for run in found.runs], dtype=np.float64),
        np.array([found.unit] * len(rows), dtype=object),
        np.array([run.seconds for run in found.runs], dtype=np.float64),
        steps[[place[int(i)] for i in rows]] if len(rows) else np.zeros(0),
        np.array(reasons, dtype=object),
    ), strict=True))  # fmt: skip
    return Suggested(
        found,
        tuple(label(request.jobs, int(i), table) for i in rows),
        reasons,
        label(request.jobs, found.chosen, table) if found.chosen >= 0 else "",
        table.take(rows).with_columns(**added),
        request.predictor.name,
        len(request.candidates),
        (*notes, *found.notes),
    )


_FEW, _MANY = 20, 1500


def why_unanswered(advisor: Advisor, asked: Table) -> str:
    """Return why an advisor's predictor answers none of the jobs; "" where it answers any."""
    reasons: list[str] = []
    # A few tell it in most cases.
    for rows in (_evenly(np.arange(len(asked)), _FEW), _evenly(np.arange(len(asked)), _MANY)):
        part = asked.take(rows)
        jobs = jobs_from_table(part, advisor.catalog, advisor.meanings.labels.read)
        plans = planned(advisor.predictor, jobs, part)
        forecasts = advisor.predictor.predict(plans.jobs)
        if not len(part) or np.isfinite(forecasts.seconds[:, 1]).any():
            return ""
        reasons = [str(reason) for reason in forecasts.declined if reason]
    return reasons[0] if reasons else "it declines them"


def first_runs(
    catalog_files: Sequence[str], name: str, why: str, candidates: Table
) -> tuple[Advisor, list[str]] | None:
    """Return who designs the first runs of jobs that nobody answers yet, and what is said of it.

    A design needs no times: Ernest's terms, of devices and size, are what any law of such jobs
    would need to be told first.

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


def saved_words(predictor: Predictor, made: MadeRuns | None) -> list[str]:
    """Return what is said of a saved model that is given without the runs that taught it."""
    known = runs_behind(predictor)
    lead = f"what the model has learned{f' ({known})' if known else ''} counts"
    if made is None:
        return [
            f"{lead}, but it was saved without the jobs that were run: give them with --runs too, or"
            " fit it again, so that none is suggested again"
        ]
    return [lead, *filter(None, [made.note])]


def reason_of(error: RequestError) -> str:
    """Return a refusal as part of a sentence."""
    return f"{error.found}; {error.next_step}"
