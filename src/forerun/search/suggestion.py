"""Suggestion: the next runs of a predictor: which, at what price, and what each would tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.contracts import Predictor
from forerun.domain.forecast import Forecasts
from forerun.errors import RequestError, UnsatisfiedError
from forerun.predictors.laws.law_rows import SIZES, LawRows
from forerun.search.beliefs import Beliefs, beliefs_of
from forerun.search.next_runs import (
    LEAST_CHANGE,
    Options,
    Pick,
    answered,
    chosen_now,
    decision_worth,
    most_accurate,
    most_decisive,
)
from forerun.tables import Jobs, Runs
from forerun.units import SECONDS_PER_HOUR, counted, format_seconds

DOLLARS, DEVICE_HOURS, SMALLEST_RUNS = "dollars", "device-hours", "smallest runs"
# A short run of slow steps has fewer of them, but enough to time.
LEAST_STEPS = 20
# A step of the middle candidate, where no time is known.
ASSUMED_SECONDS = 1.0


@dataclass(frozen=True)
class RunPrices:
    """Prices of n runs.

    Attributes:
        amount: in the unit, (n,); NaN where it is not known.
        seconds: that each takes, (n,); NaN where not known.
        unit: dollars; device-hours, where no candidate has a price by the hour; or smallest runs,
            where no time is known either: (s / s_min) / m, for size s on m devices (Ernest's rule).
        notes: what was assumed, in sentences.
        steps: optimizer steps of each run, (n,); NaN where it is an epoch or the whole job.
    """

    amount: FloatArray
    seconds: FloatArray
    unit: str
    notes: tuple[str, ...] = ()
    steps: FloatArray | None = None


def run_prices(
    jobs: Jobs,
    forecasts: Forecasts,
    run_steps: int,
    startup_seconds: float = 0.0,
    most_seconds: float = np.inf,
) -> RunPrices:
    """Return what n runs cost.

    Args:
        jobs: the candidates.
        forecasts: of them; where these are of a step, a run takes `run_steps` of it.
        run_steps: optimizer steps in a run, its warm-up among them.
        startup_seconds: what is paid for before the first step.
        most_seconds: of steps in a run, which has fewer of slow ones, `LEAST_STEPS` at least.
    """
    each, quantity, rate = forecasts.seconds[:, 1], forecasts.quantity, dollars_per_hour(jobs)
    known, priced = bool(np.isfinite(each).any()), np.isfinite(rate)
    notes = []
    if not known:
        work = _work(jobs, quantity)
        if not priced.any():
            notes.append(
                "no time is known before the first runs: a price is the work of a machine, in units"
                " of the smallest"
            )
            return RunPrices(work, each, SMALLEST_RUNS, tuple(notes))
        both = work[priced & np.isfinite(work)]
        each = ASSUMED_SECONDS * work / (np.median(both) if len(both) else 1.0)
        quantity = "step"
        notes.append(
            "no time is known before the first runs: that a step of the middle candidate takes"
            f" {format_seconds(ASSUMED_SECONDS)}, and others by their size per device, is assumed"
        )
    long = {"epoch": "one epoch", "run": "the whole job"}.get(quantity)
    steps = np.full(len(each), np.nan)
    if long is None:
        with np.errstate(divide="ignore", invalid="ignore"):
            most = np.fmax(np.floor(most_seconds / each), LEAST_STEPS)
        steps = np.where(np.isnan(each), run_steps, np.fmin(run_steps, most))
        long = f"{counted(run_steps, 'step')} (--run-steps)"
        if (steps < run_steps).any():
            long += f", fewer where they take over {format_seconds(most_seconds)}, at least {LEAST_STEPS}"
    started = f" after {format_seconds(startup_seconds)} of starting up" if startup_seconds else ""
    notes.append(f"a run is {long}{started}")
    seconds = each * np.where(np.isnan(steps), 1.0, steps) + startup_seconds
    hours = seconds / SECONDS_PER_HOUR
    if not (np.isfinite(each) & priced).any():
        notes.append("no candidate has a price by the hour, so that devices x time counts")
        amount = hours * LawRows(jobs).machines
        return RunPrices(amount, seconds, DEVICE_HOURS, tuple(notes), steps)
    lacking = int((np.isfinite(each) & ~priced).sum())
    if lacking:
        notes.append(f"{counted(lacking, 'candidate')} without a price by the hour left out")
    return RunPrices(hours * rate, seconds, DOLLARS, tuple(notes), steps)


def dollars_per_hour(jobs: Jobs) -> FloatArray:
    """Return the price of each job's cluster, (n,): as its row says, else as the catalogue does."""
    known = [np.nan if c.dollars_per_hour is None else c.dollars_per_hour for c in jobs.clusters]
    rate = np.array([*known, np.nan], dtype=np.float64)[jobs.cluster_index]
    if jobs.labels is None:
        return rate
    stated = jobs.labels.numbers("price_usd_per_hour")
    return np.where(np.isfinite(stated), stated, rate)


def _work(jobs: Jobs, quantity: str) -> FloatArray:
    """Return the work of a machine in units of the smallest, (n,)."""
    rows = LawRows(jobs)
    size = np.full(len(jobs), np.nan)
    for name in (*SIZES[quantity], ""):
        size = np.where(np.isnan(size), rows.size(name), size)
    work = size / np.where(rows.machines > 0, rows.machines, np.nan)
    return np.asarray(work / (np.nanmin(size) if np.isfinite(size).any() else 1.0))


@dataclass(frozen=True)
class NextRun:
    """One run to make.

    Attributes:
        row: its position among the jobs that were given.
        price: in the suggestion's unit. seconds: that it takes, NaN where not known.
        gain: by how much it lowers the mean log variance of the wanted jobs, or the expected objective.
        changes: probability that it changes the choice; NaN where accuracy is the goal.
        error: log standard deviation that is left once it was made, of what the suggestion's is.
        about: row of the wanted job whose log variance falls most by it, and by what part of it.
        of_chosen: by what part the log variance of the chosen job falls; NaN without a choice.
        tells: scopes of error (`domain.quantiles`) that it has in common with that job, or for
            accuracy with all wanted ones, as shares of the log variance there; empty where the
            predictor names no causes.
        term: of a design, the law's term that is known worst without it, and how many times the
            variance of it would be.
    """

    row: int
    price: float
    seconds: float
    gain: float = np.nan
    changes: float = np.nan
    error: float = np.nan
    about: tuple[int, float] = (-1, np.nan)
    of_chosen: float = np.nan
    tells: Mapping[str, float] = field(default_factory=dict)
    term: tuple[str, float] = ("", np.nan)


@dataclass(frozen=True)
class Suggestion:
    """The next runs.

    Attributes:
        runs: in the order in which to make them; none where none would help.
        goal: accuracy, decision, or design.
        unit: of prices. notes: what was assumed.
        source: what the errors, or the design, come from.
        error: log standard deviation now: of the chosen job, or of the wanted jobs, root mean
            square; NaN for a design.
        chosen: row of the option that would be chosen now, -1 where no choice is made.
        stop: why no run, or no further one, is suggested; "" where the budget or count ended it.
        efficiency: of a design, how its criterion compares to a bound that none can pass, 0 to 1.
        objective: dollars or seconds of the choice; "" where none is made.
    """

    runs: tuple[NextRun, ...]
    goal: str
    unit: str
    source: str
    notes: tuple[str, ...] = ()
    error: float = np.nan
    chosen: int = -1
    stop: str = ""
    efficiency: float = np.nan
    objective: str = ""

    @property
    def price(self) -> float:
        """What all of the runs cost, in the unit."""
        return float(sum(run.price for run in self.runs))


@dataclass(frozen=True)
class Request:
    """What a suggestion is made from.

    Attributes:
        predictor: fitted on `runs`, or one that answers without any.
        jobs: candidates and wanted jobs together.
        candidates, wanted: positions in the jobs, in order.
        prices: of the candidates, in their order.
        budget: in the unit of the prices; infinite for none.
        count: the most runs; by default 1 without a budget, else what it pays for.
        runs: what the predictor was fitted on.
        made: jobs that were run, where their times are not at hand; by default those of `runs`.
    """

    predictor: Predictor
    jobs: Jobs
    candidates: IntArray
    wanted: IntArray
    prices: RunPrices
    budget: float = np.inf
    count: int | None = None
    runs: Runs | None = None
    made: Jobs | None = None

    def only(self, kept: BoolArray) -> Request:
        """Return the request with some of its candidates, by a mask (c,)."""
        prices = replace(
            self.prices, amount=self.prices.amount[kept], seconds=self.prices.seconds[kept]
        )
        return replace(self, candidates=self.candidates[kept], prices=prices)


def affordable(request: Request) -> Request:
    """Return the request with the candidates that have a price, some of which can be paid.

    Raises:
        RequestError: there is no candidate, or none has a price.
        UnsatisfiedError: the cheapest costs more than the budget; it is named.
    """
    title = f"the next runs of {request.predictor.name}"
    unit, priced = request.prices.unit, np.isfinite(request.prices.amount)
    if not priced.any():
        why = _why_declined(request, request.candidates)
        raise RequestError(
            title, f"none of {len(priced)} candidates has a time or price{why}",
            "give runs (--runs) to learn from, or a predictor that answers without any",
        )  # fmt: skip
    least, first = np.nanmin(request.prices.amount), int(np.nanargmin(request.prices.amount))
    if least > request.budget:
        raise UnsatisfiedError(
            f"{title} for at most {request.budget:g} {unit}",
            f"the cheapest candidate (number {first + 1}) costs {least:.3g} {unit}",
            f"raise the budget to {least:.3g}, make runs shorter, or add smaller candidates",
        )  # fmt: skip
    request = request.only(priced)
    amount = np.maximum(request.prices.amount, 1e-9)
    return replace(request, prices=replace(request.prices, amount=amount))


def _why_declined(request: Request, rows: IntArray) -> str:
    """Return the predictor's first reason to decline any of the jobs, "" where it has none."""
    reasons: Sequence[str | None] = request.predictor.declines(request.jobs.take(rows))
    return next((f": {reason}" for reason in reasons if reason), "")


def _believed(request: Request) -> tuple[Request, Beliefs, IntArray]:
    """Return the request with answered candidates, what is believed, and the answered wanted jobs.

    Raises:
        RequestError, UnsatisfiedError: as `affordable`; no wanted job is answered; no bands.
    """
    request = affordable(request)
    beliefs = beliefs_of(request.predictor, request.jobs, request.runs)
    wanted = answered(beliefs, request.wanted)
    if not len(wanted):
        why = _why_declined(request, request.wanted)
        raise RequestError(
            f"the next runs of {request.predictor.name}",
            f"it answers none of the {len(request.wanted)} jobs{why}",
            "give runs (--runs) to learn from, or name another predictor",
        )  # fmt: skip
    return request.only(np.isfinite(beliefs.middle[request.candidates])), beliefs, wanted


def suggest_for_accuracy(request: Request) -> Suggestion:
    """Return the runs after which the wanted jobs are known best.

    Raises:
        RequestError, UnsatisfiedError: as `affordable`; no wanted job is answered; no bands.
    """
    request, beliefs, wanted = _believed(request)
    enough = beliefs.noise  # what a repeat of one run tells
    picks = most_accurate(
        beliefs, request.candidates, wanted, request.prices.amount, request.budget, request.count,
        enough,
    )  # fmt: skip
    now = float(np.diag(beliefs.covariance)[wanted].mean())
    stop = "" if picks else "no candidate would make the answers noticeably surer"
    if now <= enough:
        stop = "the answers are as sure as a repeat of one run"
    notes = [*request.prices.notes]
    if picks and picks[-1].left <= enough:
        notes.append("after these runs the answers are as sure as a repeat of one run")
    unknown = np.setdiff1d(request.wanted, wanted)
    if len(unknown):
        notes.append(
            f"{len(unknown)} of {len(request.wanted)} jobs do not count, as they are not answered"
            f"{_why_declined(request, unknown[:1])}"
        )
    return Suggestion(
        tuple(_next_runs(request, beliefs, picks, wanted)), "accuracy", request.prices.unit,
        beliefs.source, tuple(notes), float(np.sqrt(now)), stop=stop,
    )  # fmt: skip


def suggest_for_decision(
    request: Request,
    scale: FloatArray,
    latest: FloatArray,
    objective: str = DOLLARS,
    times: float = 1.0,
) -> Suggestion:
    """Return the runs after which the best of the wanted jobs costs least on average.

    Args:
        request: the wanted jobs are what is chosen among.
        scale: objective of each wanted job for a second of its forecast, (t,).
        latest: seconds of its forecast at which each is too late, (t,); infinite for none.
        objective: dollars, in which a run that is priced in dollars must be worth its price; or
            seconds.
        times: how often the chosen job will be run.

    Raises:
        RequestError, UnsatisfiedError: as `suggest_for_accuracy`.
    """
    request, beliefs, wanted = _believed(request)
    fine = np.isin(request.wanted, wanted) & np.isfinite(scale)
    if not fine.any():
        raise RequestError(
            "a choice by cost", "none of the jobs has a price",
            "give prices in a column price_usd_per_hour, or use --minimize time",
        )  # fmt: skip
    options = Options(request.wanted[fine], scale[fine], latest[fine])
    cost = request.prices.amount
    net = request.prices.unit == objective == DOLLARS
    picks = most_decisive(
        beliefs, request.candidates, options, cost, request.budget, request.count, net, times
    )
    chosen = int(options.rows[chosen_now(beliefs, options)])
    stop = ""
    if not picks:
        stop = _why_stop(beliefs, request.candidates, options, cost, times if net else 0.0)
    return Suggestion(
        tuple(_next_runs(request, beliefs, picks, options.rows, chosen)), "decision",
        request.prices.unit, beliefs.source, request.prices.notes,
        float(np.sqrt(beliefs.covariance[chosen, chosen])), chosen, stop, objective=objective,
    )  # fmt: skip


def _why_stop(
    beliefs: Beliefs, candidates: IntArray, options: Options, cost: FloatArray, times: float
) -> str:
    """Return why no run is worth making; `times` is 0 where its price is in another unit."""
    if len(options.rows) < 2:
        return "there is one option only, and no run changes that"
    worth = decision_worth(beliefs, candidates, options)
    likeliest = float(worth.changes.max(initial=0.0))
    if likeliest < LEAST_CHANGE or not (worth.value > 0).any():
        return f"no run would change the choice with more than {100 * likeliest:.2g} % probability"
    if not times:
        return "no run within the budget would change the choice"
    top = int(np.argmax(worth.value * times - cost))
    return (
        f"no run is worth its price: the best saves ${worth.value[top] * times:.3g} on average and"
        f" costs ${cost[top]:.3g}; jobs that are run often save more (--times)"
    )


def _next_runs(
    request: Request, beliefs: Beliefs, picks: Sequence[Pick], wanted: IntArray, chosen: int = -1
) -> Iterator[NextRun]:
    """Yield runs with what each tells: of all wanted jobs; or for a choice, of what it tells most of."""
    left = beliefs
    for pick in picks:
        place = int(np.flatnonzero(request.candidates == pick.row)[0])
        variance = np.maximum(np.diag(left.covariance)[wanted], 1e-300)
        settled = left.shift(np.array([pick.row]), wanted)[0] ** 2 / variance
        best = int(np.argmax(settled))
        left = left.after(pick.row)
        of_chosen, remaining, told = np.nan, pick.left, wanted
        if chosen >= 0:
            of_chosen = float(settled[np.flatnonzero(wanted == chosen)[0]])
            remaining, told = float(left.covariance[chosen, chosen]), wanted[[best]]
        yield NextRun(
            pick.row, pick.price, float(request.prices.seconds[place]), pick.gain, pick.changes,
            float(np.sqrt(max(remaining, 0.0))), (int(wanted[best]), float(settled[best])), of_chosen,
            beliefs.shared(pick.row, told),
        )  # fmt: skip
