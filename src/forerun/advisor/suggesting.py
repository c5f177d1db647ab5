"""Suggesting: the next runs from a table of candidates, with their prices and reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.advisor.estimating import MAY_FIT
from forerun.advisor.suggesting_tables import evenly, joined, looked_at, made_already
from forerun.advisor.suggesting_words import label, reason
from forerun.advisor.table_lengths import row_lengths
from forerun.advisor.table_plans import planned
from forerun.advisor.tabulate import answer_columns
from forerun.arrays import FloatArray
from forerun.catalog import Catalog
from forerun.contracts import Predictor
from forerun.domain.forecast import Forecasts
from forerun.domain.workload import Length
from forerun.errors import RequestError, UnsatisfiedError, one_of
from forerun.predictors.laws.law_rows import LawRows
from forerun.search.run_prices import DOLLARS, dollars_per_hour, run_prices
from forerun.search.suggest_design import suggest_by_design
from forerun.search.suggestion import (
    Request,
    Suggestion,
    suggest_for_accuracy,
    suggest_for_decision,
)
from forerun.tables import Runs, Table
from forerun.units import SECONDS_PER_HOUR, counted

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
    done = made_already(candidates, told) | made_already(candidates, made)
    if done.all():
        raise UnsatisfiedError(
            f"the next runs among {counted(len(candidates), 'candidate')}",
            "every one of them was run already", "give other candidates",
        )  # fmt: skip
    open_rows, notes = looked_at(candidates, done, _MOST)
    if asked is not None and len(asked) > _MOST:
        notes.append(f"{_MOST:,} of {len(asked):,} asked jobs looked at, evenly spread")
        asked = asked.take(evenly(np.arange(len(asked)), _MOST))
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
    jobs, part = request.jobs.take(request.asked), forecasts.take(request.asked)
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
