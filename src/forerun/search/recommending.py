"""Exhaustive search: all plans scored in chunks, reduced as they come, the winners explained.

Fixed: when no cluster can take the plan fields that a person fixed, say which and why.

Choose: from what the search kept, the best option, the front and the words that go with them.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.contracts import Predictor
from forerun.domain import recommendation as chances
from forerun.domain.comparison import (
    SCOPES,
    correlation,
    log_sigma,
    probability_above_zero,
    probability_less,
    scope_labels,
    widened,
)
from forerun.domain.hardware import Cluster
from forerun.domain.objective import Objective, Preemption
from forerun.domain.recommendation import ALL, Option, Recommendation, Refusal, limit_chances
from forerun.domain.workload import Length, Workload
from forerun.search.pareto import knee, pareto_front
from forerun.search.reduction import (
    BUDGET,
    DEADLINE,
    ENDLESS,
    MAX_ALTERNATIVES,
    MEMORY,
    TOGETHER,
    Judged,
    Reduction,
    joined,
    judge,
)
from forerun.search.score import (
    SKIPPED,
    Scored,
    burden,
    estimates_for,
    score_space,
    simplest,
    usable_bytes,
)
from forerun.search.space import Space, refuse_fixed
from forerun.units import format_bytes, format_dollars, format_seconds

_EXAMPLES = 4


def misses(one: Scored, objective: Objective) -> dict[str, str]:
    """Return the limits that one row breaks, each with by how much."""
    judged = judge(one, objective)
    return {
        reason: _reason_words(one, judged, reason, objective)
        for reason, mask in judged.reasons.items()
        if mask[0]
    }


def _reason_words(one: Scored, judged: Judged, reason: str, objective: Objective) -> str:
    """Return by how much one row breaks a limit; the reason alone where there is no figure."""
    sure = f"at {_percent(objective.confidence)} confidence"
    if reason == MEMORY:
        return _memory(one, objective)
    if reason == DEADLINE:
        limit = objective.deadline_seconds or 0.0
        chance = _chances(one, objective)[chances.DEADLINE][0]
        return (
            f"takes {_over(judged.seconds[0], limit, format_seconds)} {sure}, the deadline is"
            f" {format_seconds(limit)}; {_chance('in time', chance)}"
        )
    if reason == BUDGET:
        limit = objective.budget_dollars or 0.0
        chance = _chances(one, objective)[chances.BUDGET][0]
        return (
            f"costs {_over(judged.dollars[0], limit, format_dollars)} {sure}, the budget is"
            f" {format_dollars(limit)}; {_chance('in budget', chance)}"
        )
    if reason == TOGETHER:
        return f"{_chance('all, and it fits', _chances(one, objective)[ALL][0])}, {_percent(objective.confidence)} is asked"
    if reason == ENDLESS:
        return _endless(one.jobs.clusters[one.jobs.cluster_index[0]].nodes, objective.preemption)
    return reason


def _memory(one: Scored, objective: Objective) -> str:
    """Return what a row needs; where that would do, that its fitting is less sure than asked."""
    device = one.jobs.clusters[one.jobs.cluster_index[0]].device
    peak, usable = (
        float(one.forecasts.peak_bytes[0, 1]),
        float(usable_bytes(one.jobs, one.forecasts)[0]),
    )
    near = 0.01 * device.memory_bytes < usable and peak <= usable
    unsure = f", not surely enough: {_percent(objective.fit_confidence)} is asked" if near else ""
    return (
        f"{'probably ' * near}needs {format_bytes(peak)} of"
        f" {_memory_words(usable, device.memory_bytes)} a device;"
        f" {_chance('fits', one.estimates.fit_probability[0])}{unsure}"
    )


def _memory_words(usable: float, memory: float) -> str:
    """Return what of a device's memory can be filled: `the 72 GB usable of 80 GB`."""
    if not usable > 0.01 * memory:
        return format_bytes(memory)
    # Cards hold GiB where data sheets say GB, so that more may be usable than is stated.
    whole = f" of {format_bytes(memory)}" if usable < memory else ""
    return f"the {format_bytes(usable)} usable{whole}"


def _over(value: float, limit: float, write: Callable[[float], str]) -> str:
    """Return what is above a limit so that it does not read as if it were the limit."""
    text = write(value)
    return f"just over {text}" if text == write(limit) else text


def _chances(one: Scored, objective: Objective) -> dict[str, NDArray[np.float64]]:
    estimates = one.estimates
    return limit_chances(
        estimates.run_seconds,
        estimates.dollars,
        estimates.fit_probability,
        objective.limits,
    )


def _percent(probability: float) -> str:
    return f"{100 * probability:.3g} %"


def _chance(what: str, probability: float) -> str:
    """Return whole per cent, rounded down: what misses a limit must not seem to reach it."""
    whole = math.floor(100 * probability)
    return f"P({what}) = {whole} %" if whole or not probability else f"P({what}) < 1 %"


def _endless(nodes: int, preemption: Preemption) -> str:
    between = 3600 / (nodes * preemption.rate_per_node_hour)
    return (
        f"{nodes:,} spot nodes lose one every {format_seconds(between)}, and a checkpoint comes"
        f" every {format_seconds(preemption.checkpoint_interval_seconds)}"
    )


def _refusals(
    reduction: Reduction, objective: Objective, illegal: dict[str, int]
) -> tuple[Refusal, ...]:
    """Return the refused plans: a few examples for each limit, the nearest first."""
    rows: list[Refusal] = []
    for reason, examples in reduction.refused.items():
        count = reduction.refused_counts[reason]
        seen: set[str] = set()
        for _, one in examples:
            job = one.jobs[0]
            if job.cluster.name in seen or len(seen) >= _EXAMPLES:
                continue
            seen.add(job.cluster.name)
            words = _reason_words(one, judge(one, objective), reason, objective)
            shown = words if words == reason else f"{reason}: {words}"
            rows.append(Refusal(job.cluster.name, str(job.plan), shown, count, reason))
            count = 0
    rows += [
        Refusal("any", "", reason, count, reason)
        for reason, count in sorted(illegal.items(), key=lambda item: -item[1])
    ]
    return tuple(rows)


def _win_probabilities(scored: Scored, front: IntArray) -> list[dict[str, float]]:
    """Return for each row (n) the probability that row 0 beats it, by what is compared."""
    estimates, rho = scored.estimates, run_correlation(scored)
    table: dict[str, FloatArray] = {
        name: probability_less(rows[:1], rows, rho[0])
        for name, rows in (
            ("time", estimates.run_seconds), ("cost", estimates.dollars),
            ("energy", estimates.kilowatt_hours),
        )
    }  # fmt: skip
    table["knee"] = knee_win_probability(estimates.run_seconds, estimates.dollars, front, rho)
    return [
        {name: float(column[i]) for name, column in table.items() if np.isfinite(column[i])}
        for i in range(len(scored))
    ]


def run_correlation(scored: Scored) -> FloatArray:
    """Return the correlations of the log errors of n runs, (n, n).

    Losses of spot machines are each run's own.
    """
    labels = [scope_labels(scored.jobs[i]) for i in range(len(scored))]
    common = {
        scope: np.array([[a[scope] == b[scope] for b in labels] for a in labels], dtype=bool)
        for scope in SCOPES
    }
    causes: Mapping[str, FloatArray] = scored.forecasts.causes
    down = {name: column[:, None] for name, column in causes.items()}
    across = {name: column[None, :] for name, column in causes.items()}
    rho = np.broadcast_to(correlation(down, across, common), (len(scored), len(scored)))
    step, run = scored.forecasts.seconds, scored.estimates.run_seconds
    return widened(rho, (step[:, None], step[None, :]), (run[:, None], run[None, :]))


def knee_win_probability(
    run_seconds: FloatArray,
    dollars: FloatArray,
    front: IntArray,
    rho: FloatArray,
) -> FloatArray:
    """Return P(row 0 lies nearer the knee than row j), (n,); NaN where the front has no knee.

    Args:
        run_seconds, dollars: rows of quantiles (n, 3).
        front: positions of the Pareto front's rows.
        rho: correlations of the log errors, (n, n).

    The knee is the least of h = t/T + c/C, T and C being the ranges of time and cost over the front
    (`pareto.knee`). Time and cost of a row have one log error e, so that to first order
    dh_0 - dh_j = sum_k g_k e_k, where k runs over row 0, row j and both ends of the front: an error
    that all rows share moves the ranges too, and nothing else.
    """
    time, cost = run_seconds[:, 1], dollars[:, 1]
    sigma = log_sigma(run_seconds)
    unknown = np.full(len(time), np.nan)
    if len(front) < 3 or not np.isfinite([time[front], cost[front], sigma[front]]).all():
        return unknown
    ends = front[np.argmin(time[front])], front[np.argmin(cost[front])]
    time_range, cost_range = time[ends[1]] - time[ends[0]], cost[ends[0]] - cost[ends[1]]
    if time_range <= 0 or cost_range <= 0:
        return unknown
    points = np.stack([time / time_range, cost / cost_range])
    covariance = rho * sigma[:, None] * sigma[None, :]
    np.fill_diagonal(covariance, sigma**2)
    return _nearer(points[:, 0], points, points[:, ends], ends, covariance)


def _nearer(
    first: FloatArray,
    rows: FloatArray,
    ends: FloatArray,
    where: tuple[np.int64, np.int64],
    covariance: FloatArray,
) -> FloatArray:
    """Return P(a point's time and cost together are less than those of each row), (n,)."""
    fast, cheap = where
    slope = -np.diag(rows.sum(axis=0))  # of h_0 - h_j (rows) by each log error (columns)
    slope[:, 0] += first.sum()
    longer, dearer = first[:, None] - rows
    slope[:, cheap] += dearer * ends[1, 1] - longer * ends[0, 1]
    slope[:, fast] += longer * ends[0, 0] - dearer * ends[1, 0]
    variance = np.einsum("jk,kl,jl->j", slope, covariance, slope)
    middle = rows.sum(axis=0) - first.sum()
    return probability_above_zero(middle, np.sqrt(np.maximum(variance, 0.0)))


_LAYOUT = ("dp", "tp", "pp", "cp", "ep")


def next_layout(
    space: Space, predictor: Predictor, objective: Objective, length: Length, best: Scored
) -> Scored | None:
    """Return the best qualified row on the best row's cluster and market with other degrees.

    Args:
        best: one row.

    Plans of the same degrees differ in what is switched by a flag, and are often as good as equal;
    None where no other degrees qualify.
    """
    job, on_spot = best.jobs[0], bool(best.estimates.spot[0])
    market = "spot" if on_spot else "on-demand"
    here, limits = replace(space, clusters=(job.cluster,)), replace(objective, market=market)
    found: Scored | None = None
    least = np.inf
    for scored in score_space(here, predictor, limits, length, {}):
        judged = judge(scored, limits)
        plans = scored.jobs.plans
        same = np.all([getattr(plans, n) == getattr(job.plan, n) for n in _LAYOUT], axis=0)
        rows = np.flatnonzero(judged.qualified & ~same)
        if not len(rows):
            continue
        row = rows[simplest(judged.aim[rows], burden(scored.jobs.plans)[rows])]
        if judged.aim[row] < least:
            found, least = scored.take(np.array([row])), judged.aim[row]
    return found


MAX_NEAR = 5


@dataclass(frozen=True)
class ShownOptions:
    """What is shown of the plans that qualify; see `Recommendation`."""

    best: Option | None = None
    front: tuple[Option, ...] = ()
    alternatives: tuple[Option, ...] = ()
    runner_up: Option | None = None
    next_layout: Option | None = None


def choose(
    space: Space, reduction: Reduction, predictor: Predictor, objective: Objective,
    length: Length, refused: dict[str, int], max_front: int, started: float, energy: bool,
) -> Recommendation:  # fmt: skip
    """Return the recommendation from a finished reduction."""
    chosen = ShownOptions()
    near: tuple[Option, ...] = ()
    if reduction.kept:
        kept, judged = _rejudged(joined(reduction.kept), predictor, objective, length)
        rows = _front(judged, energy)
        position = _best(kept, judged, rows, objective)
        rival = next_layout(space, predictor, objective, length, kept.take(np.array([position])))
        shown = _thin(rows, position, max_front), _one_per_cluster(kept, judged, position)
        chosen = _chosen(kept, position, *shown, rival, predictor, objective, length)
    elif reduction.missed:
        missed = joined(reduction.missed)
        order = np.argsort(judge(missed, objective).distance, kind="stable")
        rows = _distinct_clusters(missed, order)[:MAX_NEAR]
        near = _options(_detailed(missed.take(rows), predictor, objective, length), objective)
    counts = {**reduction.refused_counts, **refused}
    return Recommendation(
        objective=objective,
        best=chosen.best,
        front=chosen.front,
        refused=_refusals(reduction, objective, refused),
        near_misses=near,
        assumptions=assumptions(space, objective, length),
        prices_as_of=_prices_as_of(space),
        considered=reduction.considered + sum(refused.values()),
        legal=reduction.considered + refused.get(SKIPPED, 0),
        fitting=reduction.fitting,
        qualified=reduction.qualified,
        refused_counts=dict(sorted(counts.items(), key=lambda item: -item[1])),
        alternatives=chosen.alternatives,
        runner_up=chosen.runner_up,
        next_layout=chosen.next_layout,
        seconds_taken=time.perf_counter() - started,
    )


def _rejudged(
    kept: Scored, predictor: Predictor, objective: Objective, length: Length
) -> tuple[Scored, Judged]:
    """Return kept rows judged by the forecasts that answers state; all of them where none qualifies.

    A framework that is not stated is a mixture in answers alone: scores use one typical profile.
    """
    if not predictor.predict(kept.jobs.take(np.array([0]))).frameworks:
        return kept, judge(kept, objective)
    kept = _detailed(kept, predictor, objective, length)
    judged = judge(kept, objective)
    if not judged.qualified.any() or judged.qualified.all():
        return kept, judged
    kept = kept.take(np.flatnonzero(judged.qualified))
    return kept, judge(kept, objective)


def _front(judged: Judged, energy: bool) -> NDArray[np.int64]:
    costs = [judged.seconds, judged.dollars]
    if np.isnan(judged.dollars).all():
        costs[1] = judged.seconds
    if energy:
        costs.append(judged.energy)
    return pareto_front(*costs)


def _best(kept: Scored, judged: Judged, front: NDArray[np.int64], objective: Objective) -> int:
    if objective.aim == "knee" and len(front):
        return int(front[knee(judged.seconds[front], judged.dollars[front])])
    return simplest(judged.aim, burden(kept.jobs.plans))


def _thin(rows: NDArray[np.int64], always: int, most: int) -> NDArray[np.int64]:
    if len(rows) <= most:
        return rows
    picked: NDArray[np.int64] = rows[
        np.unique(np.linspace(0, len(rows) - 1, most).round().astype(int))
    ]
    if always in rows and always not in picked:
        picked = np.array([r for r in rows if r in set(picked.tolist()) | {always}])
    return picked


def _one_per_cluster(kept: Scored, judged: Judged, best: int) -> NDArray[np.int64]:
    """Return the best row of each other cluster, best first, at most `MAX_ALTERNATIVES`."""
    hard = burden(kept.jobs.plans)
    rows: dict[str, list[int]] = {}
    for row, index in enumerate(kept.jobs.cluster_index):
        rows.setdefault(kept.jobs.clusters[index].name, []).append(row)
    picked = [
        each[simplest(judged.aim[each], hard[each])] for each in rows.values() if best not in each
    ]
    picked.sort(key=lambda row: judged.aim[row])
    return np.array(picked[:MAX_ALTERNATIVES], dtype=np.int64)


def _distinct_clusters(scored: Scored, order: NDArray[np.int64]) -> NDArray[np.int64]:
    seen: set[str] = set()
    rows = []
    for row in order:
        name = scored.jobs.clusters[scored.jobs.cluster_index[row]].name
        if name not in seen:
            seen.add(name)
            rows.append(int(row))
    return np.array(rows, dtype=np.int64)


def _chosen(
    kept: Scored, best: int, front: NDArray[np.int64], others: NDArray[np.int64],
    rival: Scored | None, predictor: Predictor, objective: Objective, length: Length,
) -> ShownOptions:  # fmt: skip
    """Return the options that are shown, each with the probability that the best beats it."""
    rows = kept.take(np.concatenate([[best], front, others]))
    every = _detailed(
        rows if rival is None else joined([rows, rival]), predictor, objective, length
    )
    first, after = 1 + len(front), 1 + len(front) + len(others)
    options = _options(every, objective, _win_probabilities(every, np.arange(1, first)))
    return ShownOptions(
        best=options[0],
        front=tuple(
            options[0] if row == best else option
            for row, option in zip(front, options[1:first], strict=True)
        ),
        alternatives=(options[0], *options[first:after]),
        runner_up=_runner_up(options[:after], objective),
        next_layout=None if rival is None else options[-1],
    )


def _runner_up(options: Sequence[Option], objective: Objective) -> Option | None:
    """Return of the first option's rivals on other clusters the one that it beats least surely."""
    best = options[0]
    aim = objective.aim if objective.aim in best.beaten else "cost"
    others = [
        option for option in options if option.job.cluster.name != best.job.cluster.name
        and aim in option.beaten
    ]  # fmt: skip
    return min(others, key=lambda option: option.beaten[aim], default=None)


def _detailed(scored: Scored, predictor: Predictor, objective: Objective, length: Length) -> Scored:
    """Return rows asked again in detail, so that each carries its parts and causes."""
    forecasts = predictor.predict(scored.jobs)
    spot = scored.estimates.spot
    estimates = estimates_for(scored.jobs, forecasts, objective, length, spot)
    return Scored(scored.jobs, forecasts, estimates)


def _options(
    scored: Scored, objective: Objective, beaten: Sequence[Mapping[str, float]] | None = None
) -> tuple[Option, ...]:
    """Return detailed rows as options."""
    estimates = scored.estimates
    chances = limit_chances(
        estimates.run_seconds, estimates.dollars, estimates.fit_probability, objective.limits,
    )  # fmt: skip
    return tuple(
        Option(
            scored.jobs[i],
            replace(estimates[i], forecast=scored.forecasts[i]),
            misses=misses(scored.take(np.array([i])), objective),
            chance={name: float(column[i]) for name, column in chances.items()},
            beaten=beaten[i] if beaten else {},
        )
        for i in range(len(scored))
    )


def assumptions(space: Space, objective: Objective, length: Length) -> tuple[str, ...]:
    """Return what the answer rests on, in words."""
    words = [
        f"training is {length}",
        f"global batch {', '.join(map(str, space.global_batches))}; the samples needed are taken"
        " not to depend on it",
        "times are of training steps: start-up, evaluation and saving are not counted",
        f"a plan counts as fitting at P(fits) >= {100 * objective.fit_confidence:.3g} %",
    ]
    if objective.deadline_seconds is not None or objective.budget_dollars is not None:
        words.append(
            f"a plan counts as keeping the limits at P(all, and it fits) >="
            f" {100 * objective.confidence:.3g} %; prices are taken as listed"
        )
    if objective.market != "on-demand":
        p = objective.preemption
        words.append(
            f"spot machines: {p.rate_per_node_hour:g} losses a node-hour, a checkpoint every"
            f" {format_seconds(p.checkpoint_interval_seconds)} taking"
            f" {format_seconds(p.checkpoint_seconds)}, restart in"
            f" {format_seconds(p.restart_seconds)} (Daly 2006)"
        )
    if any(c.host_watts == 0 for c in space.clusters):
        words.append("energy counts boards at their stated power, hosts only where known")
    return tuple(words)


def _prices_as_of(space: Space) -> str:
    """Return where the prices were read: the distinct lists, with their dates or commits.

    A cluster's own `price_source` also names the machine; here only what follows it is kept.
    """
    named = (
        part
        for cluster in space.clusters
        for part in cluster.price_source.split("; ")
        if "as of" in part
    )
    sources = sorted({re.sub(r" \(.*?\)", "", source) for source in named})  # zones left out
    if not sources:
        return "no prices"
    return "; ".join(sources[:4]) + (f"; and {len(sources) - 4} more" if len(sources) > 4 else "")


def recommend(
    workload: Workload,
    clusters: Sequence[Cluster],
    objective: Objective,
    length: Length,
    predictor: Predictor,
    *,
    fixed: Mapping[str, Any] | None = None,
    global_batches: Sequence[int] | None = None,
    max_front: int = 40,
    energy: bool = False,
) -> Recommendation:
    """Return the best job under the objective, the Pareto front and the refused jobs.

    Args:
        workload: what is trained.
        objective: what is best, and the limits.
        length: how much training the run is.
        predictor: who forecasts.
        clusters: where it may run; one without a price can win only where time alone matters.
        fixed: plan fields that are given.
        global_batches: those to look at; by default the workload's own.
        max_front: the most options shown on the front (evenly thinned beyond).
        energy: make kWh a third axis of the front.

    Raises:
        RequestError: no cluster, a length that the workload cannot be counted in, or a fixed plan
            field that no cluster can take.
    """
    started = time.perf_counter()
    batches = tuple(global_batches or _default_batches(workload, fixed or {}))
    space = Space(workload, tuple(clusters), batches, dict(fixed or {}))
    reduction = Reduction(objective, energy=energy or objective.aim == "energy")
    refused: dict[str, int] = {}
    for scored in score_space(space, predictor, objective, length, refused, reduction.cannot_win):
        reduction.add(scored)
    if not reduction.considered:
        refuse_fixed(space, refused)
    return choose(space, reduction, predictor, objective, length, refused, max_front,
                  started, energy)  # fmt: skip


def _default_batches(workload: Workload, fixed: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the global batches to look at: the given one, the workload's usual one, or 256."""
    if "global_batch" in fixed:
        return (int(fixed["global_batch"]),)
    return (workload.default_global_batch or 256,)
