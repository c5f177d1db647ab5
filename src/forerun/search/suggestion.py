"""Suggestion: the next runs of a predictor: which, at what price, and what each would tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.contracts import Predictor
from forerun.domain import quantiles
from forerun.domain.forecast import Forecasts, is_none
from forerun.errors import RequestError, UnsatisfiedError
from forerun.predictors.laws.law_rows import SIZES, LawRows
from forerun.search.landscape import dollars_per_hour
from forerun.tables import Jobs, Runs
from forerun.units import SECONDS_PER_HOUR, counted, format_seconds

# Repeats of a job on one machine differ by 1-2 %, on another of its kind by up to 2 %.
REPEAT_SIGMA = 0.02
# How alike errors are where nothing says it: log2 of devices and of a device's batch, and what a
# different workload, device, or the step from one node to several leaves.
_LENGTH, _OTHER = 2.0, 0.5


@dataclass(frozen=True)
class Beliefs:
    """What is believed of n jobs.

    middle: log of the median seconds, (n,); NaN where declined. covariance: of log seconds, (n, n).
    noise: log variance of a measurement. causes: log variance by cause, (n,) each. common: by scope,
    which jobs share it, (n, n).
    """

    middle: FloatArray
    covariance: FloatArray
    noise: float
    source: str
    causes: Mapping[str, FloatArray] = field(default_factory=dict)
    common: Mapping[str, BoolArray] = field(default_factory=dict)

    def after(self, i: int) -> Beliefs:
        """Return what is believed once job i was run, whatever it took: errors that are left."""
        column = self.covariance[:, i]
        left = self.covariance - np.outer(column, column) / (column[i] + self.noise)
        return replace(self, covariance=left)

    def shift(self, rows: IntArray, of: IntArray) -> FloatArray:
        """Return the standard deviations by which runs of rows would move logs, (rows, of)."""
        own = np.maximum(np.diag(self.covariance)[rows] + self.noise, 1e-300)
        return np.asarray(self.covariance[np.ix_(rows, of)] / np.sqrt(own)[:, None])

    def shared(self, row: int, of: IntArray) -> dict[str, float]:
        """Return by scope what share of the log variance of `of` a job has in common with them."""
        whole = float(sum(column[of].sum() for column in self.causes.values()))
        found: Counter[str] = Counter()
        for cause, column in self.causes.items():
            scope = quantiles.scope_of(cause)
            same = self.common[scope][row, of] if scope in self.common else True
            both = np.where(same, np.minimum(column[row], column[of]), 0.0).sum()
            found[scope] += float(both) / max(whole, 1e-300)  # type: ignore[assignment]
        return dict(found.most_common())


def beliefs_of(predictor: Predictor, jobs: Jobs) -> Beliefs:
    """Return what a predictor believes of n jobs; see `joint_beliefs`.

    `auto` has its own bands, and the correlations of the candidate that answers most of the jobs.
    """
    own, leader = joint_beliefs(predictor, jobs), leading(predictor, jobs)
    if not leader:
        return own
    chosen: Any = predictor
    member = joint_beliefs(chosen.chosen[0].members.fitted[leader], jobs)
    variance, theirs = np.diag(own.covariance), np.diag(member.covariance)
    sigma = np.sqrt(np.where(theirs > 0, theirs, np.nan))
    rho = np.nan_to_num(member.covariance / np.outer(sigma, sigma))
    np.fill_diagonal(rho, 1.0)
    return replace(
        own,
        covariance=rho * np.sqrt(np.outer(variance, variance)),
        causes={name: column * variance / theirs for name, column in member.causes.items()},
        common=member.common,
        source=f"the bands of {predictor.name}; errors go together as those of {leader}, which answers"
        f" most of these jobs ({member.source})",
    )


def leading(predictor: Predictor, jobs: Jobs) -> str:
    """Return which candidate of `auto` answers most of the jobs; "" for none."""
    by = predictor.predict(jobs).by if getattr(predictor, "chosen", ()) else None
    words = [] if by is None else [str(text).partition(": ")[2] for text in by if text]
    names = Counter(text.partition(" (")[0] for text in words)  # in brackets: the kind of question
    return next((name for name, _ in names.most_common(1)), "")


def joint_beliefs(predictor: Predictor, jobs: Jobs) -> Beliefs:
    """Return a predictor's beliefs: by its `log_covariance`, its causes of error, or `likeness`.

    Raises:
        RequestError: it answers some job without a band.
    """
    name, forecasts = predictor.name, predictor.predict(jobs)
    answered = is_none(forecasts.declined)
    with np.errstate(divide="ignore", invalid="ignore"):
        middle = np.where(answered, np.log(forecasts.seconds[:, 1]), np.nan)
        variance = np.where(answered, quantiles.log_sigma(forecasts.seconds) ** 2, np.nan)
    known = variance[answered]
    if len(known) and not (np.isfinite(known).all() and (known > 0).any()):
        raise RequestError(
            f"the next runs for {name}",
            "it answers without a band, so the value of a run cannot be computed",
            "name a predictor with bands (see `forerun predictors`)",
        )  # fmt: skip
    causes: dict[str, FloatArray] = {}
    common: dict[str, BoolArray] = {}
    if hasattr(predictor, "log_covariance"):
        covariance = np.asarray(predictor.log_covariance(jobs), dtype=np.float64)
        source = f"the joint errors that {name} states"
    elif forecasts.causes:
        kinds, index = LawRows(jobs).kinds
        labels = [
            quantiles.scope_labels(jobs[i])
            if resolved
            else {
                scope: (kinds[index[i]][:2], i if scope == "plan" else 0)
                for scope in quantiles.SCOPES
            }
            for i, resolved in enumerate(jobs.resolved)
        ]
        causes, common = dict(forecasts.causes), quantiles.pairs_in_common(labels)
        rho = quantiles.correlation_matrix(causes, common)
        np.fill_diagonal(rho, 1.0)
        covariance = rho * np.sqrt(np.outer(variance, variance))
        source = f"the causes of error that {name} names"
    else:
        covariance = likeness(jobs) * np.sqrt(np.outer(variance, variance))
        source = f"the bands of {name}; that jobs alike in devices and batch err alike is assumed"
    return Beliefs(middle, covariance, REPEAT_SIGMA**2, source, causes, common)


def likeness(jobs: Jobs) -> FloatArray:
    """Return how alike n jobs are, as correlations of their errors, (n, n): an assumption."""
    rows = LawRows(jobs)
    kinds, index = rows.kinds
    machines = np.where(rows.machines > 0, rows.machines, 1.0)
    batch = rows.size("global_batch")
    share = np.where(np.isfinite(batch), batch, 1.0) / machines
    rho = np.ones((len(jobs), len(jobs)))
    for values in (np.log2(machines), np.log2(share)):
        rho *= np.exp(-0.5 * ((values[:, None] - values[None, :]) / _LENGTH) ** 2)
    names = (np.unique([kind[i] for kind in kinds], return_inverse=True)[1][index] for i in (0, 1))
    for labels in (*names, jobs.per_cluster("nodes", 1) > 1):
        rho *= np.where(labels[:, None] == labels[None, :], 1.0, _OTHER)
    return rho


_NODES = 48  # of the outcome of one run
_SCENARIOS = 128  # of the outcomes of the runs that were picked before
_SEED = 0
_SAME = 1e-6
_MOST_LOG = 600.0  # of an expected objective: what costs more is as bad
_MOST_CELLS = 4_000_000  # of the outcomes that are looked at together
# A run that takes less than this part of the mean log variance away adds nothing to speak of;
# one that changes the choice less often than this is not worth a look.
LEAST_GAIN, LEAST_CHANGE = 0.005, 0.01


@dataclass(frozen=True)
class Options:
    """What is chosen among: m rows of the beliefs.

    scale: the objective for a second of each. latest: seconds at which each misses the deadline.
    """

    rows: IntArray
    scale: FloatArray
    latest: FloatArray

    def expected(self, middle: FloatArray, variance: FloatArray) -> FloatArray:
        """Return the expected objective for logs (..., m) and variances, a late run counted twice."""
        plain = np.exp(np.minimum(middle + variance / 2, _MOST_LOG)) * self.scale
        if not np.isfinite(self.latest).any():
            return np.asarray(plain)
        sigma = np.sqrt(np.maximum(variance, 1e-300))
        with np.errstate(divide="ignore"):
            late = 1.0 - quantiles.normal_cdf((np.log(self.latest) - middle) / sigma)
        return np.asarray(plain * (1.0 + late))


class Worth(NamedTuple):
    """How much a run of each candidate lowers the objective, and P(it changes the choice), (c,) each."""

    value: FloatArray
    changes: FloatArray


@dataclass(frozen=True)
class NextRun:
    """One run to make: the job of a row.

    Attributes:
        gain: by how much it lowers the mean log variance of the wanted jobs, or the expected objective.
        changes: probability that it changes the choice; NaN without a choice.
        left: log variance after it and those before: of the chosen job, else the mean of the wanted.
        of_chosen: by what part the log variance of the chosen job falls; NaN without a choice.
        tells: scopes of error in common with the wanted jobs, or the chosen one, as shares of variance.
        term: of a design, the law's term that is known worst without it, and how many times its variance.
    """

    row: int
    price: float
    gain: float = np.nan
    changes: float = np.nan
    left: float = np.nan
    of_chosen: float = np.nan
    tells: Mapping[str, float] = field(default_factory=dict)
    term: tuple[str, float] = ("", np.nan)

    @property
    def error(self) -> float:
        """The log standard deviation that is left; NaN for a design."""
        return float(np.sqrt(np.maximum(self.left, 0.0)))


def chosen_now(beliefs: Beliefs, options: Options) -> int:
    """Return which of the options has the least expected objective."""
    variance = np.diag(beliefs.covariance)[options.rows]
    return int(np.argmin(options.expected(beliefs.middle[options.rows], variance)))


def accuracy_gains(beliefs: Beliefs, candidates: IntArray, wanted: IntArray) -> FloatArray:
    """Return by how much a run of each candidate lowers the mean log variance of the wanted, (c,)."""
    return np.asarray((beliefs.shift(candidates, wanted) ** 2).mean(axis=1))


def decision_worth(
    beliefs: Beliefs, candidates: IntArray, options: Options, before: Beliefs | None = None
) -> Worth:
    """Return what a run of each candidate is worth, after the runs picked since `before`."""
    rows = options.rows
    variance = np.diag(beliefs.covariance)[rows]
    middle = beliefs.middle[rows] + _scenarios(beliefs, before, rows)
    held = options.expected(middle, variance).argmin(axis=1)
    z = np.array([quantiles.normal_quantile((i + 0.5) / _NODES) for i in range(_NODES)])
    z /= np.sqrt(np.mean(z**2))
    value, changes = np.zeros(len(candidates)), np.zeros(len(candidates))
    step = max(1, _MOST_CELLS // (middle.size * _NODES))
    for start in range(0, len(candidates), step):
        now = slice(start, start + step)
        shift = beliefs.shift(candidates[now], rows)[:, None, None, :]
        left = np.maximum(variance - shift**2, 0.0)
        # Axes: candidates, scenarios, outcomes of the run, options.
        later = options.expected(middle[:, None, :] + z[:, None] * shift, left)
        # Keeping what is held costs on average what it costs now, so that the difference to it is
        # what learning gains: of the right sign, whatever the rule of integration.
        kept = np.take_along_axis(later, held[None, :, None, None], axis=3)[..., 0]
        gain = kept - later.min(axis=3)
        value[now] = gain.mean(axis=(1, 2))
        # Options that cost the same, because nothing known tells them apart, are no change.
        changes[now] = (gain > _SAME * kept).mean(axis=(1, 2))
    return Worth(value, changes)


def _scenarios(beliefs: Beliefs, before: Beliefs | None, rows: IntArray) -> FloatArray:
    """Return how far the runs picked since may have moved the options' logs, (s, m)."""
    if before is None or before is beliefs:
        return np.zeros((1, len(rows)))
    learned = (before.covariance - beliefs.covariance)[np.ix_(rows, rows)]
    values, vectors = np.linalg.eigh(learned)
    half = np.random.default_rng(_SEED).standard_normal((_SCENARIOS // 2, len(rows)))
    drawn = (half * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    return np.concatenate([drawn, -drawn])


# Of beliefs: the gain and the change of each candidate (c,), and its merit, -inf where not worth it.
_Appraisal = Callable[[Beliefs], tuple[FloatArray, FloatArray, FloatArray]]


def _picked(
    beliefs: Beliefs, candidates: IntArray, wanted: IntArray, cost: FloatArray, budget: float,
    count: int | None, appraised: _Appraisal, enough: float = -np.inf, chosen: int = -1,
) -> list[NextRun]:  # fmt: skip
    """Return the candidates of most merit, one after another, each after those before it."""
    most = count if count is not None else 1 if np.isinf(budget) else len(candidates)
    runs: list[NextRun] = []
    open_to = np.isfinite(beliefs.middle[candidates])
    about = wanted if chosen < 0 else np.array([chosen])
    left = float(np.diag(beliefs.covariance)[about].mean())
    while len(runs) < most and left > enough:
        gain, changes, merit = appraised(beliefs)
        merit = np.where(open_to & (cost <= budget * (1 + 1e-12)), merit, -np.inf)
        best = int(np.argmax(merit))
        if np.isneginf(merit[best]):
            break
        row, price = int(candidates[best]), float(cost[best])
        tells, before = beliefs.shared(row, about), left
        beliefs = beliefs.after(row)
        left = float(np.diag(beliefs.covariance)[about].mean())
        of_chosen = 1.0 - left / max(before, 1e-300) if chosen >= 0 else np.nan
        runs.append(
            NextRun(row, price, float(gain[best]), float(changes[best]), left, of_chosen, tells)
        )
        budget -= price
        open_to[best] = False
    return runs


def answered(beliefs: Beliefs, rows: IntArray) -> IntArray:
    """Return those of the rows that the predictor answers; nothing is known of the others."""
    return np.asarray(rows[np.isfinite(beliefs.middle[rows])])


def most_accurate(
    beliefs: Beliefs, candidates: IntArray, wanted: IntArray, prices: FloatArray | None = None,
    budget: float = np.inf, count: int | None = None, enough: float = 0.0,
) -> list[NextRun]:  # fmt: skip
    """Return the runs that make the answers of the wanted jobs surest.

    Each time the most informative run for its price is taken. count: the most runs; by default 1
    without a budget, else as many as it pays for. enough: mean log variance at which no more is made.
    """
    wanted = answered(beliefs, wanted)
    if not len(wanted):
        return []
    cost = np.ones(len(candidates)) if prices is None else prices
    least = LEAST_GAIN * float(np.diag(beliefs.covariance)[wanted].mean())

    def appraised(now: Beliefs) -> tuple[FloatArray, FloatArray, FloatArray]:
        gains = accuracy_gains(now, candidates, wanted)
        merit = np.where(gains > least, gains / cost, -np.inf)
        return gains, np.full(len(gains), np.nan), merit

    return _picked(beliefs, candidates, wanted, cost, budget, count, appraised, enough)


def most_decisive(
    beliefs: Beliefs, candidates: IntArray, options: Options, prices: FloatArray | None = None,
    budget: float = np.inf, count: int | None = None, net: bool = False, times: float = 1.0,
) -> list[NextRun]:  # fmt: skip
    """Return the runs after which the best choice among the options costs least; often none.

    net: a run must be worth its price, by what a better choice saves, `times` times.
    """
    cost = np.ones(len(candidates)) if prices is None else prices

    def appraised(now: Beliefs) -> tuple[FloatArray, FloatArray, FloatArray]:
        worth = decision_worth(now, candidates, options, beliefs)
        saved = worth.value * times - cost if net else worth.value
        good = (worth.changes >= LEAST_CHANGE) & (saved > 0)
        merit = np.where(good, saved if net else saved / cost, -np.inf)
        return worth.value, worth.changes, merit

    rows, chosen = options.rows, int(options.rows[chosen_now(beliefs, options)])
    return _picked(beliefs, candidates, rows, cost, budget, count, appraised, chosen=chosen)


DOLLARS, DEVICE_HOURS, SMALLEST_RUNS = "dollars", "device-hours", "smallest runs"
# A short run of slow steps has fewer of them, but enough to time.
LEAST_STEPS = 20
ASSUMED_SECONDS = 1.0  # of a step, where no time is known


@dataclass(frozen=True)
class RunPrices:
    """Prices of n runs, NaN where one is not known; steps are NaN where it is an epoch or the whole job.

    unit: dollars; device-hours without prices; smallest runs without times: (s / s_min) / m (Ernest).
    """

    amount: FloatArray
    seconds: FloatArray
    steps: FloatArray
    unit: str
    notes: tuple[str, ...]

    def only(self, kept: BoolArray) -> RunPrices:
        """Return the prices of some of the runs, by a mask (n,)."""
        parts = self.amount[kept], self.seconds[kept], self.steps[kept]
        return RunPrices(*parts, self.unit, self.notes)


def run_prices(
    jobs: Jobs, forecasts: Forecasts, run_steps: int, startup_seconds: float = 0.0,
    most_seconds: float = np.inf,
) -> RunPrices:  # fmt: skip
    """Return what runs of n jobs cost: `run_steps` each, or an epoch or all where that is forecast.

    A run of slow steps has fewer, so that they take `most_seconds`, but `LEAST_STEPS` at least.
    """
    each, quantity, rate = forecasts.seconds[:, 1], forecasts.quantity, dollars_per_hour(jobs)
    rows, priced, steps = LawRows(jobs), np.isfinite(rate), np.full(len(jobs), np.nan)
    notes = []
    if not np.isfinite(each).any():
        if not priced.any():
            size = np.full(len(jobs), np.nan)
            for name in (*SIZES[quantity], ""):
                size = np.where(np.isnan(size), rows.size(name), size)
            smallest = np.nanmin(size) if np.isfinite(size).any() else 1.0
            work = size / np.where(rows.machines > 0, rows.machines, np.nan) / smallest
            note = "no time is known before the first runs: a price is the work of a machine"
            return RunPrices(work, each, steps, SMALLEST_RUNS, (note,))
        each, quantity = np.full(len(jobs), ASSUMED_SECONDS), "step"
        assumed = f"a step is assumed to take {format_seconds(ASSUMED_SECONDS)}"
        notes.append(f"no time is known before the first runs: {assumed}")
    long = {"epoch": "one epoch", "run": "the whole job"}.get(quantity)
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
    unpriced = int((np.isfinite(each) & ~priced).sum())
    if unpriced == np.isfinite(each).sum():
        notes.append("no candidate has a price by the hour, so that devices x time counts")
        return RunPrices(hours * rows.machines, seconds, steps, DEVICE_HOURS, tuple(notes))
    if unpriced:
        notes.append(f"{counted(unpriced, 'candidate')} without a price by the hour left out")
    return RunPrices(hours * rate, seconds, steps, DOLLARS, tuple(notes))


@dataclass(frozen=True)
class Suggestion:
    """The next runs, in the order in which to make them; none where none would help, and `stop` says why.

    Attributes:
        error: log standard deviation now: of the chosen job, or of the wanted, root mean square.
        chosen: row of the option that would be chosen now, -1 where no choice is made.
        efficiency: of a design, how its criterion compares to a bound that none can pass, 0 to 1.
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
    """What a suggestion is made from; candidates and wanted are positions in the jobs, in order.

    prices: of the candidates. count: the most runs; by default 1 without a budget, else what it pays.
    runs: what the predictor was fitted on. made: jobs that were run, by default those of `runs`.
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
        return replace(self, candidates=self.candidates[kept], prices=self.prices.only(kept))

    def why_declined(self, rows: IntArray) -> str:
        """Return the predictor's first reason to decline any of the jobs, "" where it has none."""
        reasons: Sequence[str | None] = self.predictor.declines(self.jobs.take(rows))
        return next((f": {reason}" for reason in reasons if reason), "")


def affordable(request: Request) -> Request:
    """Return the request with the candidates that have a price, some of which can be paid.

    Raises:
        RequestError: none has a price.
        UnsatisfiedError: the cheapest costs more than the budget.
    """
    title, prices = f"the next runs of {request.predictor.name}", request.prices
    priced = np.isfinite(prices.amount)
    if not priced.any():
        why = request.why_declined(request.candidates)
        raise RequestError(
            title, f"none of {len(priced)} candidates has a time or price{why}",
            "give runs (--runs) to learn from, or a predictor that answers without any",
        )  # fmt: skip
    first = int(np.nanargmin(prices.amount))
    least = prices.amount[first]
    if least > request.budget:
        raise UnsatisfiedError(
            f"{title} for at most {request.budget:g} {prices.unit}",
            f"the cheapest candidate (number {first + 1}) costs {least:.3g} {prices.unit}",
            f"raise the budget to {least:.3g}, make runs shorter, or add smaller candidates",
        )  # fmt: skip
    paid = replace(prices, amount=np.maximum(prices.amount, 1e-9))
    return replace(request, prices=paid).only(priced)


def _believed(request: Request) -> tuple[Request, Beliefs, IntArray]:
    """Return the request with answered candidates, what is believed, and the answered wanted jobs."""
    request = affordable(request)
    beliefs = beliefs_of(request.predictor, request.jobs)
    wanted = answered(beliefs, request.wanted)
    if not len(wanted):
        why = request.why_declined(request.wanted)
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
        why = request.why_declined(unknown[:1])
        notes.append(f"{len(unknown)} of {len(request.wanted)} jobs are not answered{why}")
    return Suggestion(
        tuple(picks), "accuracy", request.prices.unit, beliefs.source,
        tuple(notes), float(np.sqrt(now)), stop=stop,
    )  # fmt: skip


def suggest_for_decision(
    request: Request, scale: FloatArray, latest: FloatArray, objective: str = DOLLARS,
    times: float = 1.0,
) -> Suggestion:  # fmt: skip
    """Return the runs after which the best of the wanted jobs costs least on average.

    scale, latest: see `Options`. objective: dollars, of which a run must save its price, or seconds.

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
    stop = "there is one option only, and no run changes that" if len(options.rows) < 2 else ""
    if not (picks or stop):
        value, changes = decision_worth(beliefs, request.candidates, options)
        likeliest = float(changes.max(initial=0.0))
        stop = "no run within the budget would change the choice"
        if likeliest < LEAST_CHANGE or not (value > 0).any():
            stop = f"no run would change the choice with a probability above {likeliest:.2g}"
        elif net:
            top = int(np.argmax(value * times - cost))
            stop = (
                f"no run is worth its price: the best saves ${value[top] * times:.3g} on average and"
                f" costs ${cost[top]:.3g}; jobs that are run often save more (--times)"
            )
    return Suggestion(
        tuple(picks), "decision", request.prices.unit,
        beliefs.source, request.prices.notes, float(np.sqrt(beliefs.covariance[chosen, chosen])),
        chosen, stop, objective=objective,
    )  # fmt: skip
