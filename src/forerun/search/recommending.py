"""Recommend: all plans scored in chunks and reduced as they come; the best, the front, rivals and reasons."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from forerun.arrays import FloatArray, IntArray
from forerun.contracts import Predictor
from forerun.domain import recommendation as chances
from forerun.domain.hardware import Cluster
from forerun.domain.objective import Objective
from forerun.domain.quantiles import (
    correlation_matrix,
    log_sigma,
    pairs_in_common,
    probability_less,
    scope_labels,
    widened,
)
from forerun.domain.recommendation import ALL, Option, Recommendation, Refusal, limit_chances
from forerun.domain.workload import Length, Workload
from forerun.search.pareto import knee
from forerun.search.reduction import (
    BUDGET,
    DEADLINE,
    ENDLESS,
    MAX_ALTERNATIVES,
    MEMORY,
    TOGETHER,
    Judged,
    Reduction,
    judge,
)
from forerun.search.score import (
    SKIPPED,
    Scored,
    burden,
    in_detail,
    score_space,
    simplest,
    usable_bytes,
)
from forerun.search.space import Space, refuse_fixed
from forerun.units import above, format_bytes, format_dollars, format_seconds

MAX_NEAR = 5
_EXAMPLES = 4
_DRAWS, _SEED = 4096, 0  # of the errors of a front, to compare by its knee
_LAYOUT = ("dp", "tp", "pp", "cp", "ep")


def recommend(
    workload: Workload,
    clusters: Sequence[Cluster],
    objective: Objective,
    length: Length,
    predictor: Predictor,
    *,
    fixed: Mapping[str, Any] | None = None,
    global_batches: Sequence[int],
    max_front: int = 40,
    energy: bool = False,
) -> Recommendation:
    """Return the best job under the objective, the Pareto front and the refused jobs.

    Args:
        workload: what is trained.
        clusters: where it may run; one without a price can win only where time alone matters.
        objective: what is best, and the limits.
        length: how much training the run is.
        predictor: who forecasts.
        fixed: plan fields that are given.
        global_batches: those to look at.
        max_front: the most options shown on the front (evenly thinned beyond).
        energy: make kWh a third axis of the front.

    Raises:
        RequestError: no cluster, a length that the workload cannot be counted in, or a fixed plan
            field that no cluster can take.
    """
    started = time.perf_counter()
    space = Space(workload, tuple(clusters), tuple(global_batches), dict(fixed or {}))
    reduction = Reduction(objective, energy=energy or objective.aim == "energy")
    refused: dict[str, int] = {}
    for scored in score_space(space, predictor, objective, length, refused, reduction.cannot_win):
        reduction.add(scored)
    if not reduction.considered:
        refuse_fixed(space, refused)
    return choose(space, reduction, predictor, objective, length, refused, max_front,
                  started, energy)  # fmt: skip


def choose(
    space: Space, reduction: Reduction, predictor: Predictor, objective: Objective,
    length: Length, refused: dict[str, int], max_front: int, started: float, energy: bool,
) -> Recommendation:  # fmt: skip
    """Return the recommendation from a finished reduction."""
    shown: dict[str, Any] = {"best": None, "front": (), "near_misses": ()}
    if reduction.kept:
        shown |= _winners(space, reduction, predictor, objective, length, max_front, energy)
    elif reduction.missed:
        missed = in_detail(reduction.missed, predictor, objective, length)
        nearest: dict[str, int] = {}
        for row in np.argsort(judge(missed, objective).distance, kind="stable").tolist():
            nearest.setdefault(missed.cluster_name(row), row)
        rows = np.array([*nearest.values()][:MAX_NEAR])
        shown["near_misses"] = _options(missed.take(rows), objective)
    counts = {**reduction.refused_counts, **refused}
    return Recommendation(
        objective=objective,
        **shown,
        refused=_refusals(reduction, objective, refused),
        assumptions=_assumptions(space, objective, length),
        prices_as_of=_prices_as_of(space),
        considered=reduction.considered + sum(refused.values()),
        legal=reduction.considered + refused.get(SKIPPED, 0),
        fitting=reduction.fitting,
        qualified=reduction.qualified,
        refused_counts=dict(sorted(counts.items(), key=lambda item: -item[1])),
        seconds_taken=time.perf_counter() - started,
    )


def _winners(
    space: Space, reduction: Reduction, predictor: Predictor, objective: Objective,
    length: Length, max_front: int, energy: bool,
) -> dict[str, Any]:  # fmt: skip
    """Return the best option, the front, alternatives and rivals, each beaten with a probability."""
    kept = in_detail(reduction.kept, predictor, objective, length)
    judged = judge(kept, objective)
    # Scores use one typical framework where none is stated, answers a mixture.
    if judged.qualified.any() and not judged.qualified.all():
        kept = kept.take(np.flatnonzero(judged.qualified))
        judged = judge(kept, objective)
    front = judged.front(energy)
    hard = burden(kept.jobs.plans)
    if objective.aim == "knee" and len(front):
        best = int(front[knee(judged.seconds[front], judged.dollars[front])])
    else:
        best = simplest(judged.aim, hard)
    if len(front) > max_front:
        thin = np.linspace(0, len(front) - 1, max_front).round().astype(np.int64)
        front = front[np.union1d(thin, np.flatnonzero(front == best))]
    clusters: dict[str, list[int]] = {}
    for row in range(len(kept)):
        clusters.setdefault(kept.cluster_name(row), []).append(row)
    others = [
        rows[simplest(judged.aim[rows], hard[rows])]
        for rows in map(np.array, clusters.values())
        if best not in rows
    ]
    others = sorted(others, key=lambda row: judged.aim[row])[:MAX_ALTERNATIVES]
    parts = [kept.take(np.array([best, *front, *others]))]
    rival = next_layout(space, predictor, objective, length, kept.take(np.array([best])))
    parts += [] if rival is None else [rival]
    every = in_detail(parts, predictor, objective, length)
    first, after = 1 + len(front), 1 + len(front) + len(others)
    options = _options(every, objective, _win_probabilities(every, np.arange(1, first)))
    top = options[0]
    aim = objective.aim if objective.aim in top.beaten else "cost"
    rivals = [
        option for option in options[1:after]
        if option.job.cluster.name != top.job.cluster.name and aim in option.beaten
    ]  # fmt: skip
    return {
        "best": top,
        "front": tuple(
            top if row == best else option
            for row, option in zip(front, options[1:first], strict=True)
        ),
        "alternatives": (top, *options[first:after]),
        "runner_up": min(rivals, key=lambda option: option.beaten[aim], default=None),
        "next_layout": None if rival is None else options[-1],
    }


def next_layout(
    space: Space, predictor: Predictor, objective: Objective, length: Length, best: Scored
) -> Scored | None:
    """Return the best qualified row on the best row's cluster and market with other degrees.

    Plans of the same degrees differ in what is switched by a flag, and are often as good as equal;
    None where no other degrees qualify.
    """
    plan = best.jobs[0].plan
    market = "spot" if best.estimates.spot[0] else "on-demand"
    here, limits = (
        replace(space, clusters=(best.jobs[0].cluster,)),
        replace(objective, market=market),
    )
    found: Scored | None = None
    least = np.inf
    for scored in score_space(here, predictor, limits, length, {}):
        judged, plans = judge(scored, limits), scored.jobs.plans
        same = np.all([getattr(plans, n) == getattr(plan, n) for n in _LAYOUT], axis=0)
        rows = np.flatnonzero(judged.qualified & ~same)
        if len(rows):
            row = rows[simplest(judged.aim[rows], burden(plans)[rows])]
            if judged.aim[row] < least:
                found, least = scored.take(np.array([row])), judged.aim[row]
    return found


def _options(
    scored: Scored, objective: Objective, beaten: Sequence[Mapping[str, float]] | None = None
) -> tuple[Option, ...]:
    """Return detailed rows as options."""
    columns = _chances(scored, objective)
    return tuple(
        Option(
            scored.jobs[i],
            replace(scored.estimates[i], forecast=scored.forecasts[i]),
            misses=misses(scored.take(np.array([i])), objective),
            chance={name: float(column[i]) for name, column in columns.items()},
            beaten=beaten[i] if beaten else {},
        )
        for i in range(len(scored))
    )


def _win_probabilities(scored: Scored, front: IntArray) -> list[dict[str, float]]:
    """Return for each row (n) the probability that row 0 beats it, by what is compared."""
    estimates, rho = scored.estimates, run_correlation(scored)
    table = {
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
    common = pairs_in_common([scope_labels(scored.jobs[i]) for i in range(len(scored))])
    rho = correlation_matrix(scored.forecasts.causes, common)
    step, run = scored.forecasts.seconds, scored.estimates.run_seconds
    return widened(rho, (step[:, None], step[None, :]), (run[:, None], run[None, :]))


def knee_win_probability(
    run_seconds: FloatArray,
    dollars: FloatArray,
    front: IntArray,
    rho: FloatArray,
) -> FloatArray:
    """Return P(row 0 lies nearer the knee than row j), (n,); NaN where the front has no knee.

    The knee is the least of h = t/T + c/C, T and C being the ranges of time and cost over the front
    (`pareto.knee`). Errors are drawn: time and cost of a row have one log error, which moves the
    ranges too where the row is an end of the front.

    Args:
        run_seconds, dollars: rows of quantiles (n, 3).
        front: positions of the Pareto front's rows.
        rho: correlations of the log errors, (n, n).
    """
    time_, cost = run_seconds[:, 1], dollars[:, 1]
    sigma = log_sigma(run_seconds)
    unknown = np.full(len(time_), np.nan)
    if len(front) < 3 or not np.isfinite([time_[front], cost[front], sigma[front]]).all():
        return unknown
    fast, cheap = front[np.argmin(time_[front])], front[np.argmin(cost[front])]
    if time_[cheap] <= time_[fast] or cost[fast] <= cost[cheap]:
        return unknown
    values, vectors = np.linalg.eigh(np.nan_to_num(rho))
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    half = np.random.default_rng(_SEED).standard_normal((_DRAWS // 2, len(rho)))
    factor = np.exp(sigma * (np.concatenate([half, -half]) @ root.T))
    times, costs = time_ * factor, cost * factor
    height = times / (times[:, [cheap]] - times[:, [fast]])
    height = height + costs / (costs[:, [fast]] - costs[:, [cheap]])
    gap = height - height[:, :1]
    found = np.mean((gap > 1e-9) + 0.5 * (np.abs(gap) <= 1e-9), axis=0)
    return np.where(np.isfinite(sigma), found, np.nan)


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
    chance = {name: column[0] for name, column in _chances(one, objective).items()}
    sure = _percent(objective.confidence)
    if reason == MEMORY:
        return _memory(one, objective)
    if reason == DEADLINE:
        takes, limit = above(format_seconds, judged.seconds[0], objective.deadline_seconds or 0.0)
        return (
            f"takes {takes} at {sure} confidence, the deadline is {limit};"
            f" {_chance('in time', chance[chances.DEADLINE])}"
        )
    if reason == BUDGET:
        costs, limit = above(format_dollars, judged.dollars[0], objective.budget_dollars or 0.0)
        return (
            f"costs {costs} at {sure} confidence, the budget is {limit};"
            f" {_chance('in budget', chance[chances.BUDGET])}"
        )
    if reason == TOGETHER:
        return f"{_chance('all, and it fits', chance[ALL])}, {sure} is asked"
    if reason == ENDLESS:
        nodes, lost = one.jobs.clusters[one.jobs.cluster_index[0]].nodes, objective.preemption
        between = 3600 / (nodes * lost.rate_per_node_hour)
        return (
            f"{nodes:,} spot nodes lose one every {format_seconds(between)}, and a checkpoint comes"
            f" every {format_seconds(lost.checkpoint_interval_seconds)}"
        )
    return reason


def _memory(one: Scored, objective: Objective) -> str:
    """Return what a row needs; where that would do, that its fitting is less sure than asked."""
    stated = one.jobs.clusters[one.jobs.cluster_index[0]].device.memory_bytes
    peak = float(one.forecasts.peak_bytes[0, 1])
    usable = float(usable_bytes(one.jobs, one.forecasts)[0])
    have, near = format_bytes(stated), False
    if usable > 0.01 * stated:
        # Cards hold GiB where data sheets say GB, so that more may be usable than is stated.
        near = peak <= usable
        have = f"the {format_bytes(usable)} usable" + (f" of {have}" if usable < stated else "")
    unsure = f", not surely enough: {_percent(objective.fit_confidence)} is asked" if near else ""
    return (
        f"{'probably ' * near}needs {format_bytes(peak)} of {have} a device;"
        f" {_chance('fits', one.estimates.fit_probability[0])}{unsure}"
    )


def _chances(scored: Scored, objective: Objective) -> dict[str, FloatArray]:
    estimates = scored.estimates
    return limit_chances(
        estimates.run_seconds, estimates.dollars, estimates.fit_probability, objective.limits
    )


def _percent(probability: float) -> str:
    return f"{100 * probability:.3g} %"


def _chance(what: str, probability: float) -> str:
    """Return whole per cent, rounded down: what misses a limit must not seem to reach it."""
    whole = math.floor(100 * probability)
    return f"P({what}) = {whole} %" if whole or not probability else f"P({what}) < 1 %"


def _refusals(
    reduction: Reduction, objective: Objective, illegal: dict[str, int]
) -> tuple[Refusal, ...]:
    """Return the refused plans: a few examples for each limit, the nearest first."""
    rows: list[Refusal] = []
    for reason, examples in reduction.refused.items():
        by_cluster: dict[str, Scored] = {}
        for _, one in examples:
            by_cluster.setdefault(one.cluster_name(0), one)
        count = reduction.refused_counts[reason]
        for name, one in [*by_cluster.items()][:_EXAMPLES]:
            words = _reason_words(one, judge(one, objective), reason, objective)
            shown = words if words == reason else f"{reason}: {words}"
            rows.append(Refusal(name, str(one.jobs[0].plan), shown, count, reason))
            count = 0
    most_first = sorted(illegal.items(), key=lambda item: -item[1])
    return (*rows, *(Refusal("any", "", reason, count, reason) for reason, count in most_first))


def _assumptions(space: Space, objective: Objective, length: Length) -> tuple[str, ...]:
    """Return what the answer rests on, in words."""
    words = [
        f"training is {length}",
        f"global batch {', '.join(map(str, space.global_batches))}; the samples needed are taken"
        " not to depend on it",
        "times are of training steps: start-up, evaluation and saving are not counted",
        f"a plan counts as fitting at P(fits) >= {_percent(objective.fit_confidence)}",
    ]
    if objective.deadline_seconds is not None or objective.budget_dollars is not None:
        words.append(
            f"a plan counts as keeping the limits at P(all, and it fits) >="
            f" {_percent(objective.confidence)}; prices are taken as listed"
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
    """Return where the prices were read: each list once, those without a commit first."""
    # A cluster's own `price_source` also names the machine and, in brackets, the zone.
    found = {c.price_source for c in space.clusters if c.price_source}
    parts = {source.partition("; ")[2] or source for source in found}
    sources = {re.sub(r" \([^)]*\)(?=, as of)|; (scaled by|one offer of).*", "", p) for p in parts}
    return "; ".join(sorted(sources, key=lambda s: ("as of commit" in s, s))) or "none is known"
