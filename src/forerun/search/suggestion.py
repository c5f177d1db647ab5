"""Suggestion: the next runs of a predictor: which, at what price, and what each would tell.

MixedBeliefs: joint errors of a predictor that answers by the mean of others, as `auto` does.

RunPrices: what a short measured run of each candidate costs, in one unit for all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from forerun.arrays import FloatArray, IntArray
from forerun.contracts import Predictor
from forerun.domain.forecast import Forecasts
from forerun.errors import RequestError, UnsatisfiedError
from forerun.predictors.choice.quantities import only
from forerun.predictors.laws.law_rows import SIZES, LawRows
from forerun.search.beliefs import Beliefs, joint_beliefs, likeness, tells_of
from forerun.search.next_runs import (
    LEAST_CHANGE,
    Options,
    Pick,
    chosen_now,
    decision_worth,
    most_accurate,
    most_decisive,
)
from forerun.tables import Jobs, Runs
from forerun.units import SECONDS_PER_HOUR, counted, format_percent, format_seconds

DOLLARS, DEVICE_HOURS, SMALLEST_RUNS = "dollars", "device-hours", "smallest runs"
# A short run of slow steps has fewer of them, but enough to time.
LEAST_STEPS = 20
# A step of the middle candidate, where nobody says what any takes.
ASSUMED_SECONDS = 1.0


@dataclass(frozen=True)
class RunPrices:
    """Prices of n runs.

    Attributes:
        amount: in the unit, (n,); NaN where it is not known.
        seconds: that each takes, (n,); NaN where nobody says.
        unit: dollars; device-hours, where no candidate has a price by the hour; or smallest runs,
            where no time is known either: (s / s_min) / m, for size s on m devices (Ernest's rule).
        notes: what was assumed, in sentences.
        steps: optimizer steps of each run, (n,); NaN where it is an epoch or the whole job.
        assumed: no time is known, and prices rest on one that the notes state.
    """

    amount: FloatArray
    seconds: FloatArray
    unit: str
    notes: tuple[str, ...] = ()
    steps: FloatArray | None = None
    assumed: bool = False


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
    step = forecasts.quantity == "step"
    steps = _steps(forecasts, run_steps, most_seconds)
    seconds = forecasts.seconds[:, 1] * np.where(np.isnan(steps), 1, steps) + startup_seconds
    answered = np.isfinite(seconds)
    fewer = bool((steps < run_steps).any())
    long = (
        f"a run is {counted(run_steps, 'step')}"
        + (
            f", fewer where they are slow ({format_seconds(most_seconds)} of them, but at least {LEAST_STEPS}),"
            if fewer
            else ""
        )
        if step
        else {"epoch": "a run is one epoch", "run": "a run is the whole job"}[forecasts.quantity]
    )
    if startup_seconds:
        long += f" after {format_seconds(startup_seconds)} of starting up"
    rate = dollars_per_hour(jobs)
    if not answered.any() and np.isfinite(rate).any():
        return _assumed(jobs, forecasts.quantity, rate, run_steps, startup_seconds)
    if not answered.any():
        note = "no time is known before the first runs: a price is the work of a machine, in units of the smallest"
        return RunPrices(_relative(jobs, forecasts.quantity), seconds, SMALLEST_RUNS, (note,))
    if (answered & np.isfinite(rate)).any():
        amount = seconds / SECONDS_PER_HOUR * rate
        lacking = int((answered & ~np.isfinite(rate)).sum())
        notes = [f"{long}"]
        if lacking:
            notes.append(f"{counted(lacking, 'candidate')} without a price by the hour left out")
        return RunPrices(amount, seconds, DOLLARS, tuple(notes), steps)
    amount = seconds / SECONDS_PER_HOUR * LawRows(jobs).machines
    note = f"{long}; no candidate has a price by the hour, so that devices x time counts"
    return RunPrices(amount, seconds, DEVICE_HOURS, (note,), steps)


def _steps(forecasts: Forecasts, run_steps: int, most_seconds: float) -> FloatArray:
    """Return the steps of each run, (n,); NaN where a forecast is of no step."""
    steps = np.full(len(forecasts.seconds), float(run_steps))
    if forecasts.quantity != "step":
        return np.full(len(steps), np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        fit = np.floor(most_seconds / forecasts.seconds[:, 1])
    short = np.fmin(run_steps, np.fmax(fit, LEAST_STEPS))
    return np.asarray(np.where(np.isfinite(fit), short, steps))


def _assumed(
    jobs: Jobs, quantity: str, rate: FloatArray, run_steps: int, startup_seconds: float
) -> RunPrices:
    """Return dollars of n runs of which no time is known: steps go by the work of a device."""
    work = _relative(jobs, quantity)
    priced = work[np.isfinite(rate) & np.isfinite(work)]
    step = ASSUMED_SECONDS * work / (np.median(priced) if len(priced) else 1.0)
    seconds = step * run_steps + startup_seconds
    note = (
        f"no time is known before the first runs: that a step of the middle candidate takes"
        f" {format_seconds(ASSUMED_SECONDS)}, and others by their size per device, is assumed for"
        f" prices; a run is {counted(run_steps, 'step')} (--run-steps)"
        + (f" after {format_seconds(startup_seconds)} of starting up" if startup_seconds else "")
    )
    steps = np.full(len(jobs), float(run_steps))
    return RunPrices(seconds / SECONDS_PER_HOUR * rate, seconds, DOLLARS, (note,), steps, True)


def dollars_per_hour(jobs: Jobs) -> FloatArray:
    """Return the price of each job's cluster, (n,): as its row says, else as the catalogue does."""
    known = [np.nan if c.dollars_per_hour is None else c.dollars_per_hour for c in jobs.clusters]
    rate = np.array([*known, np.nan], dtype=np.float64)[jobs.cluster_index]
    if jobs.labels is None:
        return rate
    stated = jobs.labels.numbers("price_usd_per_hour")
    return np.where(np.isfinite(stated), stated, rate)


def _relative(jobs: Jobs, quantity: str) -> FloatArray:
    """Return the work of a machine in units of the smallest, (n,)."""
    rows = LawRows(jobs)
    size = np.full(len(jobs), np.nan)
    for name in (*SIZES[quantity], ""):
        size = np.where(np.isnan(size), rows.size(name), size)
    work = size / np.where(rows.machines > 0, rows.machines, np.nan)
    least = np.nanmin(size) if np.isfinite(size).any() else 1.0
    return np.asarray(work / least)


def beliefs_of(predictor: Predictor, jobs: Jobs, runs: Runs | None = None) -> Beliefs:
    """Return what a predictor believes of n jobs together; arguments and errors as `joint_beliefs`."""
    chosen: Any = getattr(predictor, "chosen", ())
    leader, share = leading(predictor, jobs) if chosen else ("", 0.0)
    if not leader:
        return joint_beliefs(predictor, jobs, runs)
    own = joint_beliefs(predictor, jobs, None)  # its bands
    quantity = chosen[0].quantity
    try:
        member = joint_beliefs(
            chosen[0].members.fitted[leader], jobs, None if runs is None else only(runs, quantity)
        )
    except RequestError:  # it states no bands
        return own
    sigma = np.sqrt(np.diag(own.covariance))
    covariance = _correlation(member.covariance, likeness(jobs)) * np.outer(sigma, sigma)
    causes = {
        name: column * np.diag(own.covariance) / np.diag(member.covariance)
        for name, column in member.causes.items()
    }
    return replace(
        own, covariance=covariance, causes=causes, common=member.common,
        source=f"the bands of {predictor.name}; errors go together as those of {leader}, who leads on"
        f" {format_percent(share)} of these jobs ({member.source})",
    )  # fmt: skip


def leading(predictor: Predictor, jobs: Jobs) -> tuple[str, float]:
    """Return who leads on most of the jobs that are answered, and on what share of these; "" for none."""
    by = predictor.predict(jobs).by
    words = [] if by is None else [str(text).partition(": ")[2] for text in by if text]
    # Behind the names stands, in brackets, which kind of question they answered.
    names = Counter(text.split(" + ")[0].partition(" (")[0] for text in words if text)
    if not names:
        return "", 0.0
    name, count = names.most_common(1)[0]
    return name, count / len(words)


def _correlation(covariance: FloatArray, alike: FloatArray) -> FloatArray:
    """Return correlations (n, n); jobs without any in the covariance go together as they are alike."""
    variance = np.diag(covariance)
    known = np.isfinite(variance) & (variance > 0)
    sigma = np.sqrt(np.where(known, variance, 1.0))
    # Nothing is known across the two sets; without it the whole stays positive semidefinite.
    mixed = np.where(known[:, None] == known[None, :], alike, 0.0)
    both = known[:, None] & known[None, :]
    rho = np.where(both, covariance / np.outer(sigma, sigma), mixed)
    np.fill_diagonal(rho, 1.0)
    return np.asarray(rho)


@dataclass(frozen=True)
class NextRun:
    """One run to make.

    Attributes:
        row: its position among the jobs that were given.
        price: in the suggestion's unit. seconds: that it takes, NaN where nobody says.
        gain: by how much it lowers the mean log variance of the asked jobs, or the expected objective.
        changes: probability that it changes the choice; NaN where accuracy was asked for.
        error: log standard deviation that is left once it was made, of what the suggestion's is.
        about: row of the asked job whose log variance falls most by it, and by what part of it.
        of_chosen: by what part the log variance of the chosen job falls; NaN without a choice.
        tells: scopes of error (`domain.comparison`) that it has in common with that job, or for
            accuracy with all asked, as shares of the log variance there; empty where the predictor
            names no causes.
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
        error: log standard deviation now: of the chosen job, or of the asked jobs, root mean
            square; NaN for a design.
        chosen: row of the option that would be chosen now, -1 where no choice was asked for.
        stop: why no run, or no further one, is suggested; "" where the budget or count ended it.
        efficiency: of a design, how its criterion compares to a bound that none can pass, 0 to 1.
        objective: dollars or seconds of the choice; "" where none was asked for.
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
    """What is asked of a suggestion.

    Attributes:
        predictor: fitted on `runs`, or one that answers without any.
        jobs: candidates and asked jobs together.
        candidates, asked: positions in the jobs.
        prices: of the candidates, in their order.
        budget: in the unit of the prices; infinite for none.
        count: the most runs; by default 1 without a budget, else what it pays for.
        runs: what the predictor was fitted on.
        made: jobs that were run, where their times are not at hand; by default those of `runs`.
    """

    predictor: Predictor
    jobs: Jobs
    candidates: IntArray
    asked: IntArray
    prices: RunPrices
    budget: float = np.inf
    count: int | None = None
    runs: Runs | None = None
    made: Jobs | None = None


def affordable(request: Request) -> Request:
    """Return the request with the candidates that have a price, some of which can be paid.

    Raises:
        RequestError: there is no candidate, or none has a price.
        UnsatisfiedError: the cheapest costs more than the budget; it is named.
    """
    asked = f"the next runs of {request.predictor.name}"
    if not len(request.candidates):
        raise RequestError(asked, "no candidates", "give jobs that could be run")
    priced = np.isfinite(request.prices.amount)
    if not priced.any():
        reasons = [
            r for r in request.predictor.declines(request.jobs.take(request.candidates)) if r
        ]
        found = f"none of {len(priced)} candidates has a time or price"
        raise RequestError(
            asked, f"{found}: {reasons[0]}" if reasons else found,
            "give runs (--runs) that teach the predictor, or one that answers without any",
        )  # fmt: skip
    amount = request.prices.amount[priced]
    unit = request.prices.unit
    if float(amount.min()) > request.budget:
        raise UnsatisfiedError(
            f"{asked} for at most {request.budget:g} {unit}",
            f"the cheapest candidate (number {int(np.flatnonzero(priced)[amount.argmin()]) + 1})"
            f" costs {amount.min():.3g} {unit}",
            f"raise the budget to {amount.min():.3g}, make runs shorter, or add smaller candidates",
        )  # fmt: skip
    seconds = request.prices.seconds[priced]
    prices = RunPrices(np.maximum(amount, 1e-9), seconds, unit, request.prices.notes)
    return replace(request, candidates=request.candidates[priced], prices=prices)


def suggest_for_accuracy(request: Request) -> Suggestion:
    """Return the runs after which the asked jobs are known best.

    Raises:
        RequestError, UnsatisfiedError: as `affordable`; no asked job is answered; no bands.
    """
    request = affordable(request)
    beliefs = beliefs_of(request.predictor, request.jobs, request.runs)
    asked = _answered(request, beliefs)
    known = np.isfinite(beliefs.middle[request.candidates])
    candidates, cost = request.candidates[known], request.prices.amount[known]
    # What is known as well as a repeat of one run tells needs no further run.
    picks = most_accurate(
        beliefs, candidates, asked, cost, request.budget, request.count, beliefs.noise
    )
    now = float(np.diag(beliefs.covariance)[asked].mean())
    stop = "" if picks else "no candidate would make the asked jobs surer to speak of"
    if now <= beliefs.noise:
        stop = "the asked jobs are known as well as a repeat of one run tells"
    notes = [*request.prices.notes]
    more = np.isfinite(request.budget) or (request.count or 0) > len(picks)
    if picks and picks[-1].left <= beliefs.noise and more:
        notes.append(
            "no further run, whatever is paid for: what is asked is then known as well as a repeat"
            " of one run tells"
        )
    if len(asked) < len(request.asked):
        notes.append(_unanswered(request, asked))
    runs = tuple(_next_runs(request, beliefs, picks, asked))
    return Suggestion(
        runs, "accuracy", request.prices.unit, beliefs.source, tuple(notes),
        float(np.sqrt(now)), stop=stop,
    )  # fmt: skip


def suggest_for_decision(
    request: Request,
    scale: FloatArray,
    latest: FloatArray,
    objective: str = DOLLARS,
    times: float = 1.0,
) -> Suggestion:
    """Return the runs after which the best of the asked jobs costs least on average.

    Args:
        request: the asked jobs are what is chosen among.
        scale: objective of each asked job for a second of its forecast, (t,).
        latest: seconds of its forecast at which each is too late, (t,); infinite for none.
        objective: dollars, in which a run that is priced in dollars must be worth its price; or
            seconds.
        times: how often the chosen job will be run.

    Raises:
        RequestError, UnsatisfiedError: as `suggest_for_accuracy`.
    """
    request = affordable(request)
    beliefs = beliefs_of(request.predictor, request.jobs, request.runs)
    fine = np.isfinite(beliefs.middle[request.asked]) & np.isfinite(scale)
    if not fine.any():
        _answered(request, beliefs)
        raise RequestError(
            "a choice by cost",
            "no asked job has a price",
            "give prices in a column price_usd_per_hour, or use --minimize time",
        )
    options = Options(request.asked[fine], scale[fine], latest[fine])
    known = np.isfinite(beliefs.middle[request.candidates])
    candidates, cost = request.candidates[known], request.prices.amount[known]
    net = request.prices.unit == objective == DOLLARS
    picks = most_decisive(
        beliefs, candidates, options, cost, request.budget, request.count, net, times
    )
    chosen = int(options.rows[chosen_now(beliefs, options)])
    now = float(beliefs.covariance[chosen, chosen])
    runs = tuple(_next_runs(request, beliefs, picks, options.rows, chosen))
    stop = "" if picks else _why_stop(beliefs, candidates, options, cost, times if net else 0.0)
    return Suggestion(
        runs, "decision", request.prices.unit, beliefs.source, request.prices.notes,
        float(np.sqrt(now)), chosen, stop, objective=objective,
    )  # fmt: skip


def _why_stop(
    beliefs: Beliefs, candidates: IntArray, options: Options, cost: FloatArray, times: float
) -> str:
    """Return why no run is worth making; `times` is 0 where its price is in another unit."""
    if len(options.rows) < 2:
        return "there is one option only, and no run changes that"
    worth = decision_worth(beliefs, candidates, options)
    best = int(np.argmax(worth.changes))
    if worth.changes[best] < LEAST_CHANGE or not (worth.value > 0).any():
        return (
            "no run would change the choice: the likeliest to do so does in"
            f" {100 * worth.changes[best]:.2g} % of what it may show"
        )
    if not times:
        return "no run within the budget would change the choice"
    top = int(np.argmax(worth.value * times - cost))
    often = "" if times == 1 else f" over {times:g} runs of the job"
    return (
        f"no run is worth its price: the best saves ${worth.value[top] * times:.3g} on average{often}"
        f" by changing the choice ({100 * worth.changes[top]:.0f} %), and costs ${cost[top]:.3g};"
        " jobs that are run often save more (--times)"
    )


def _answered(request: Request, beliefs: Beliefs) -> IntArray:
    """Return the asked jobs that the predictor answers. Raises RequestError where there is none."""
    fine = request.asked[np.isfinite(beliefs.middle[request.asked])]
    if not len(fine):
        reasons: Sequence[str | None] = request.predictor.declines(request.jobs.take(request.asked))
        raise RequestError(
            f"the next runs of {request.predictor.name}",
            f"it answers none of the {len(request.asked)} jobs asked: {next(filter(None, reasons), '')}",
            "give runs (--runs) that teach it, or name another predictor",
        )  # fmt: skip
    return fine


def _unanswered(request: Request, asked: IntArray) -> str:
    rest = np.setdiff1d(request.asked, asked)
    why = next(filter(None, request.predictor.declines(request.jobs.take(rest[:1]))), "")
    return f"{len(rest)} of {len(request.asked)} asked jobs do not count, as nobody answers them: {why}"


def _next_runs(
    request: Request, beliefs: Beliefs, picks: Sequence[Pick], asked: IntArray, chosen: int = -1
) -> Iterator[NextRun]:
    """Yield runs with what each tells: of all asked jobs; or for a choice, of what it tells most of."""
    left = beliefs
    for pick in picks:
        place = int(np.flatnonzero(request.candidates == pick.row)[0])
        variance = np.diag(left.covariance)[asked]
        settled = left.shift(np.array([pick.row]), asked)[0] ** 2 / np.maximum(variance, 1e-300)
        best = int(np.argmax(settled))
        about = (int(asked[best]), float(settled[best]))
        after = left.after(pick.row)
        remaining = pick.left if chosen < 0 else float(after.covariance[chosen, chosen])
        yield NextRun(
            pick.row, pick.price, float(request.prices.seconds[place]), pick.gain, pick.changes,
            float(np.sqrt(max(remaining, 0.0))), about,
            np.nan if chosen < 0 else float(settled[np.flatnonzero(asked == chosen)[0]]),
            tells_of(beliefs, pick.row, asked if chosen < 0 else asked[[best]]),
        )  # fmt: skip
        left = after
