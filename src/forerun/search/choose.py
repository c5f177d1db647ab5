"""Choose: from what the search kept, the best option, the front and the words that go with them."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from forerun.contracts import Predictor
from forerun.domain.chances import limit_chances
from forerun.domain.objective import Objective
from forerun.domain.recommendation import Option, Recommendation
from forerun.domain.workload import Length
from forerun.search.beating import beaten_by_first
from forerun.search.pareto import knee, pareto_front
from forerun.search.reduce import Judged, Reduction, joined, judge
from forerun.search.rivals import next_layout
from forerun.search.score import Scored, estimates_for
from forerun.search.space import Space
from forerun.search.ties import burden, simplest
from forerun.search.words import misses, refusals
from forerun.units import format_seconds

MAX_ALTERNATIVES = 10
MAX_NEAR = 5


@dataclass(frozen=True)
class Chosen:
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
    chosen = Chosen()
    near: tuple[Option, ...] = ()
    if reduction.kept:
        kept = joined(reduction.kept)
        judged = judge(kept, objective)
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
        refused=refusals(reduction, objective, refused),
        near_misses=near,
        assumptions=assumptions(space, objective, length),
        prices_as_of=prices_as_of(space),
        considered=reduction.considered + sum(refused.values()),
        legal=reduction.considered,
        fitting=reduction.fitting,
        qualified=reduction.qualified,
        refused_counts=dict(sorted(counts.items(), key=lambda item: -item[1])),
        alternatives=chosen.alternatives,
        runner_up=chosen.runner_up,
        next_layout=chosen.next_layout,
        seconds_taken=time.perf_counter() - started,
    )


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
    return simplest(judged.aim, burden(kept))


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
    hard = burden(kept)
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
) -> Chosen:  # fmt: skip
    """Return the options that are shown, each with the probability that the best beats it."""
    rows = kept.take(np.concatenate([[best], front, others]))
    every = _detailed(
        rows if rival is None else joined([rows, rival]), predictor, objective, length
    )
    first, after = 1 + len(front), 1 + len(front) + len(others)
    options = _options(every, objective, beaten_by_first(every, np.arange(1, first)))
    return Chosen(
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
        estimates.late,
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


def prices_as_of(space: Space) -> str:
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
