"""Recommend: every legal plan scored, judged and reduced as it comes; the best, the front, rivals and refusals."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.contracts import Predictor
from forerun.domain import quantiles
from forerun.domain import recommendation as chances
from forerun.domain.estimate import failure_seconds, startup_of
from forerun.domain.forecast import capped
from forerun.domain.hardware import Cluster
from forerun.domain.objective import Limits, Objective, Preemption
from forerun.domain.plan import PlanColumns
from forerun.domain.recommendation import ALL, Option, Recommendation, Refusal, limit_chances
from forerun.domain.workload import Length, Workload
from forerun.progress import report_progress
from forerun.search import score
from forerun.search.space import Lacking, Space, layout_codes, refuse_fixed
from forerun.units import above, format_bytes, format_dollars, format_seconds


def pareto_front(*costs: FloatArray) -> NDArray[np.int64]:
    """Return the positions of points that no other point beats, sorted by the first cost.

    Of points that are equal in every cost the first is kept; rows with NaN are left out. Two costs
    (n,) take O(n log n); a third is compared only among the few that remain near the front.
    """
    points = np.stack(costs, axis=1)
    rows: NDArray[np.int64] = np.flatnonzero(np.isfinite(points).all(axis=1))
    rows = rows[np.lexsort(points[rows].T[::-1])]
    points = points[rows]
    if len(costs) == 2 and len(rows):
        best_before = np.minimum.accumulate(points[:, 1])
        return np.asarray(rows[np.append(True, points[1:, 1] < best_before[:-1])])
    kept: list[int] = []
    for i, point in enumerate(points):
        if not (points[kept] <= point).all(axis=1).any():
            kept.append(i)
    return rows[kept]


def knee(time: FloatArray, cost: FloatArray) -> int:
    """Return the position on a front (n,) where more money stops buying much time.

    The point farthest below the chord between the front's ends, both ranges scaled to one (Satopaa et
    al. 2011, "Finding a Kneedle in a haystack", eq. 2 without smoothing); else the cheapest.
    """
    x_span, y_span = np.ptp(time), np.ptp(cost)
    if len(time) < 3 or x_span <= 0 or y_span <= 0:
        return int(np.argmin(cost))
    height = (time - time.min()) / x_span + (cost - cost.min()) / y_span
    lowest = int(np.argmin(height))
    return lowest if height[lowest] < 1 - 1e-9 else int(np.argmin(cost))


# Why plans are refused, in the order in which reasons are given.
DECLINED, NO_PRICE, NO_MEMORY, MEMORY, ENDLESS, DEADLINE, BUDGET, TOGETHER = (
    "the predictor declines", "no price is known", "the predictor says nothing of memory",
    "does not fit in memory", "does not finish at this loss rate", "misses the deadline",
    "exceeds the budget", "keeps each limit, and not surely all together",
)  # fmt: skip
MAX_NEAR = 5  # clusters shown of each reason, and among the nearest misses
MAX_ALTERNATIVES = 10  # clusters shown beside the best
_NO_DOLLARS = 1e300
# How near misses are ordered: what fits in memory first, then by the limits broken, then by how far.
_NOT_FITTING, _ONE_LIMIT, _FARTHEST = 1e6, 1e3, 999.0
# The least that the best plan of a cluster takes of what the best of its usual plans does, also of those of the same
# degrees (benchmarks/whole_catalogue.py measures both); and an assumed one: of the memory that the frugalest plan
# needs on another cluster of as many devices, which differs by what its links hold.
LEAST_OF_USUAL, _LEAST_OF_NEED = 0.5, 0.75
_SPARE = 2  # times as many are kept as shown: scores take one typical framework, answers a mixture
_LAYOUT = ("dp", "tp", "pp", "cp", "ep")


@dataclass(frozen=True)
class Judged:
    """Scored rows' figures at the objective's confidence, each (n,).

    Attributes:
        figures: seconds, dollars and kWh, (3, n).
        aim: what is minimised, over P(fits). distance: from qualifying; infinite where no change of a limit would help.
        reasons: for each limit which rows break it. first: the first of them, from 1; 0 for none.
    """

    figures: FloatArray
    aim: FloatArray
    distance: FloatArray
    reasons: dict[str, BoolArray]
    first: IntArray

    def front(self, energy: bool, rows: IntArray, best: int | None = None) -> IntArray:
        """Return those of some rows on the Pareto front of time and cost (and energy), fastest first.

        A row without a price counts as dearer than all others. The best stays: what beats it in all of these is
        less likely to fit, and left out.
        """
        figures = np.nan_to_num(self.figures[: 2 + energy], nan=_NO_DOLLARS)
        if best is not None:
            mine, theirs = figures[:, best, None], figures[:, rows]
            beats = (theirs <= mine).all(axis=0) & (theirs < mine).any(axis=0)
            rows = np.append(best, rows[~beats & (rows != best)])
        return np.asarray(rows[pareto_front(*figures[:, rows])])

    def least(self, rows: IntArray) -> int:
        """Return the one of some rows with the least aim; of equal ones that on the front."""
        seconds, dollars = self.figures[:2, rows]
        return int(rows[np.lexsort((seconds, dollars, self.aim[rows]))[0]])

    @property
    def qualified(self) -> BoolArray:
        """Which rows meet every limit."""
        return np.asarray(self.first == 0)


def judge(scored: score.Scored, objective: Objective) -> Judged:
    """Return the figures of scored rows, and which limits each row breaks."""
    estimates, sure = scored.estimates, objective.confidence
    endless = np.isinf(estimates.wall_seconds[:, 1])
    seconds, dollars, energy = (
        np.where(endless, np.inf, quantiles.at_probability(rows, sure))
        for rows in (estimates.wall_seconds, estimates.dollars, estimates.kilowatt_hours)
    )
    needs_price = objective.aim in ("cost", "knee") or objective.budget_dollars is not None
    declined = np.isnan(seconds)
    # What has no spot price is not offered on the spot market, whatever is minimised.
    unpriced = ~declined & np.isnan(estimates.dollars[:, 1]) & (needs_price | estimates.spot)
    unknown = ~declined & np.isnan(estimates.fit_probability)
    fits = estimates.fit_probability >= objective.fit_confidence
    reasons = {
        DECLINED: declined, NO_PRICE: unpriced, NO_MEMORY: unknown,
        MEMORY: ~declined & ~unknown & ~fits, ENDLESS: endless & ~unpriced,
    }  # fmt: skip
    peak = quantiles.at_probability(scored.forecasts.peak_bytes, objective.fit_confidence)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        past = np.log(peak / score.usable_bytes(scored.jobs, scored.forecasts))
        gaps = [np.where(fits, 0.0, np.maximum(past, 1e-3))]
        for reason, figure, limit in (
            (DEADLINE, seconds, objective.deadline_seconds),
            (BUDGET, dollars, objective.budget_dollars),
        ):
            if limit is not None:
                reasons[reason] = (figure > limit) & ~endless
                gaps.append(np.maximum(np.log(figure / limit), 0.0))
        if objective.limits != Limits():
            chance = _chances(scored, objective)[ALL]
            short = ~np.any([*reasons.values()], axis=0) & (chance < sure - score.ROUNDING)
            reasons[TOGETHER] = short
            gaps.append(np.where(short, np.log(sure / chance), 0.0))
    broken = np.sum([gap > 0 for gap in gaps], axis=0)
    distance = _NOT_FITTING * ~fits + _ONE_LIMIT * broken + np.minimum(sum(gaps), _FARTHEST)
    distance = np.where(declined | unpriced | unknown | endless, np.inf, distance)
    masks = np.array([*reasons.values()])
    first = np.where(masks.any(axis=0), masks.argmax(axis=0) + 1, 0)
    figure = {"time": seconds, "energy": energy}.get(objective.aim, dollars)
    # What does not run is paid, and so is what runs in its place: expected over P(fits).
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        aim = figure / np.where(unknown, 1.0, scored.forecasts.fit_probability)
    return Judged(np.stack([seconds, dollars, energy]), aim, distance, reasons, first)


@dataclass
class Reduction:
    """What is kept of all chunks; a plan at either market counts once, by its nearest market.

    many: whether clusters are too many to state what each misses. near: whether near misses are looked for.
    scouted: of each cluster's usual plans the least seconds, dollars and kWh of those that fit, infinite where
    none does, and the least distance from qualifying. needed: bytes that the plan of least memory needs on a
    device, by the number of devices. layouts: codes of the degrees whose usual plans come near each cluster's best.
    """

    objective: Objective
    energy: bool = False
    many: bool = False
    near: bool = True
    considered: int = 0
    fitting: int = 0
    qualified: int = 0
    refused_counts: dict[str, int] = field(default_factory=dict)
    kept: list[score.Scored] = field(default_factory=list)
    nearest: dict[str, dict[str, tuple[float, score.Scored]]] = field(default_factory=dict)
    front: FloatArray = field(default_factory=lambda: np.zeros((0, 3)))
    best: dict[str, float] = field(default_factory=dict)
    has_target: bool = False
    scouted: dict[str, tuple[float, ...]] = field(default_factory=dict)
    needed: dict[int, float] = field(default_factory=dict)
    layouts: dict[str, IntArray] = field(default_factory=dict)

    def add(self, scored: score.Scored) -> None:
        """Take a chunk in."""
        judged = judge(scored, self.objective)
        markets = 2 if self.objective.market == "any" else 1
        n = len(scored) // markets
        fits = scored.estimates.fit_probability[:n] >= self.objective.fit_confidence
        good = judged.qualified.reshape(markets, n).any(axis=0)
        self.considered += n
        self.fitting += int(fits.sum())
        self.qualified += int(good.sum())
        rows = self._advance(scored, judged)
        if len(rows):
            self.kept.append(scored.take(rows))
        near = judged.distance.reshape(markets, n).argmin(axis=0) * n + np.arange(n)
        self.refuse(scored, judged, near[~good])

    def refuse(self, scored: score.Scored, judged: Judged, rows: IntArray) -> None:
        """Count some rows by their first reason, and keep the nearest of a few clusters."""
        for position, reason in enumerate(judged.reasons, start=1):
            broken = rows[judged.first[rows] == position]
            if not len(broken):
                continue
            self.refused_counts[reason] = self.refused_counts.get(reason, 0) + len(broken)
            cluster, far = scored.jobs.cluster_index[broken], judged.distance[broken]
            broken = broken[~(far > score.least(far, cluster)[cluster])]
            broken = broken[np.unique(scored.jobs.cluster_index[broken], return_index=True)[1]]
            order = np.lexsort((broken, judged.distance[broken]))
            held = self.nearest.setdefault(reason, {})
            for row in broken[order][:MAX_NEAR].tolist():
                name, distance = scored.cluster_name(row), float(judged.distance[row])
                if name not in held or distance < held[name][0]:
                    held[name] = distance, scored.take(np.array([row]))
            few = sorted(held.items(), key=lambda item: item[1][0])[:MAX_NEAR]
            self.nearest[reason] = dict(few)

    def _advance(self, scored: score.Scored, judged: Judged) -> IntArray:
        """Return the rows that may stand for each cluster, and keep what decides on further clusters."""
        rows = np.flatnonzero(judged.qualified)
        rows = rows[_of_each_offer(scored.take(rows), judged.aim[rows])]
        costs = np.where([[True], [True], [self.energy]], judged.figures[:, rows], 0.0)
        front = np.concatenate([self.front, costs.T])
        self.front = front[pareto_front(*front.T[: 2 + self.energy])]
        self.has_target |= scored.forecasts.samples_to_target is not None
        for row in rows.tolist():
            name = scored.cluster_name(row)
            self.best[name] = min(self.best.get(name, np.inf), float(judged.aim[row]))
        return rows

    def scout(self, scored: score.Scored) -> None:
        """Take in the usual plans of clusters: what they reach, and what decides on further ones; none counts."""
        judged, cluster = judge(scored, self.objective), scored.jobs.cluster_index
        self._advance(scored, judged)
        short = scored.estimates.fit_probability < self.objective.fit_confidence
        # What is declined or never ends bounds nothing, nor does a figure that is not known.
        figures = np.nan_to_num(judged.figures, nan=0.0, posinf=0.0)
        figures[1:] = np.where(np.isnan(judged.figures[1:]), np.inf, figures[1:])
        figures[:, short] = np.inf
        peaks = scored.forecasts.peak_bytes[:, 1]
        columns = [score.least(c, cluster).tolist() for c in (*figures, judged.distance, peaks)]
        for one, *known, peak in zip(scored.jobs.clusters, *columns, strict=True):
            self.scouted[one.name] = tuple(known)
            if math.isfinite(peak) and math.isinf(known[0]):  # else not every plan is there
                self.needed[one.devices] = min(self.needed.get(one.devices, peak), peak)
        rate = np.where(short, np.inf, scored.forecasts.seconds[:, 1])
        code = layout_codes(scored.jobs.plans)
        near = rate * LEAST_OF_USUAL <= score.least(rate, cluster)[cluster]
        for i in np.unique(cluster[near]).tolist():
            self.layouts[scored.jobs.clusters[i].name] = np.unique(code[near & (cluster == i)])

    def near_usual(self, cluster: Cluster, plans: PlanColumns) -> PlanColumns:
        """Return a cluster's plans of degrees whose usual plans are slower than its best by the margin at most."""
        if (codes := self.layouts.get(cluster.name)) is None:
            return plans
        return plans.take(np.flatnonzero(np.isin(layout_codes(plans), codes)))

    def cannot_win(self, cluster: Cluster, floors: FloatArray) -> str:
        """Return why a cluster can be no option, or is none of the nearest; empty where it can."""
        if self.has_target:
            return ""
        name = cluster.name
        need = _LEAST_OF_NEED * self.needed.get(cluster.devices, 0.0) / cluster.device.memory_bytes
        unknown = (math.inf,) * 3 + (_NOT_FITTING + math.log(need),) if need > 1 else (0.0,) * 4
        *reached, far = self.scouted.get(name, unknown)
        if math.isinf(reached[0]):
            return score.TOO_LARGE if self.best or self._farther(name, far) else ""
        known = LEAST_OF_USUAL * np.array(reached)
        known[np.isinf(known)] = 0.0  # of none of its plans
        bound = np.where((True, True, self.energy), np.fmax(known, floors), 0.0)
        limits = (self.objective.deadline_seconds, self.objective.budget_dollars)
        past = [
            math.log(least / limit) for least, limit in zip(bound.tolist(), limits, strict=False)
            if limit is not None and least > limit
        ]  # fmt: skip
        at_least = _ONE_LIMIT * len(past) + min(sum(past), _FARTHEST)
        if past and self.many and (self.best or self._farther(name, at_least)):
            return score.TOO_FAR
        others = sorted(aim for cluster, aim in self.best.items() if cluster != name)
        if len(others) <= _SPARE * MAX_ALTERNATIVES:
            return ""
        least = bound[{"time": 0, "energy": 2}.get(self.objective.aim, 1)]
        beaten = (self.front <= bound).all(axis=1).any()
        worst = max(others[_SPARE * MAX_ALTERNATIVES], others[0] * (1 + score.TIE))
        return score.SKIPPED if beaten and least > worst else ""

    def _farther(self, name: str, distance: float) -> bool:
        """Return whether enough other clusters are nearer to qualifying."""
        nearer = sum(far < distance for other, (*_, far) in self.scouted.items() if other != name)
        return not self.near or nearer >= _SPARE * MAX_NEAR


def _of_each_offer(scored: score.Scored, aim: FloatArray) -> IntArray:
    """Return the simplest row, as good as equal to the best, of each cluster, market and number of machines paid.

    What is paid an hour is one there, so that the fastest plan is also the cheapest.
    """
    paid = np.unique(scored.jobs.machines_paid, return_inverse=True)[1]
    offer = 2 * scored.jobs.cluster_index + scored.estimates.spot
    offer = offer * (paid.max(initial=0) + 1) + paid
    return score.simplest(aim, score.burden(scored.jobs.plans), offer)


def recommend(
    workload: Workload, clusters: Sequence[Cluster], objective: Objective, length: Length,
    predictor: Predictor, *, fixed: Mapping[str, Any] | None = None, global_batches: Sequence[int],
    filled: bool = False, lacking: Lacking | None = None, max_front: int = 40, energy: bool = False,
    near: bool = True,
) -> Recommendation:  # fmt: skip
    """Return the best job under the objective, the Pareto front and the refused jobs.

    fixed, filled, lacking: see `Space`. max_front: options shown. energy: a third axis, kWh. near: whether what comes
    nearest is looked for where nothing qualifies.

    Raises:
        RequestError: no cluster, a wrong length, or a fixed plan field that no cluster can take.
    """
    started = time.perf_counter()
    space = Space(
        workload, tuple(clusters), tuple(global_batches), dict(fixed or {}), filled, lacking=lacking
    )
    many = len(space.clusters) > _SPARE * MAX_ALTERNATIVES
    reduction = Reduction(objective, energy or objective.aim == "energy", many, near)
    illegal: dict[str, int] = {}
    for scored in score.score_space(space, predictor, objective, length, illegal, reduction):
        reduction.add(scored)
        report_progress(
            f"scoring plans: {reduction.considered:,} legal, {reduction.qualified:,} qualify"
        )
    skipped = sum(illegal.get(why, 0) for why in score.LEFT_OUT)
    if not reduction.considered and not skipped:
        refuse_fixed(space, illegal)
    shown: dict[str, Any] = {"best": None, "front": (), "near_misses": ()}
    if reduction.kept:
        shown |= _winners(space, reduction, predictor, length, max_front)
    else:
        shown["near_misses"] = _near_misses(reduction, predictor, length)
    counts = {**reduction.refused_counts, **illegal}
    # Each list of prices once, those without a commit first.
    # A cluster's own `price_source` also names the machine and, in brackets, the zone.
    found = {c.price_source for c in space.clusters if c.price_source}
    parts = {source.partition("; ")[2] or source for source in found}
    sources = {re.sub(r" \([^)]*\)(?=, as of)|; (scaled by|one offer of).*", "", p) for p in parts}
    prices = "; ".join(sorted(sources, key=lambda s: ("as of commit" in s, s))) or "none is known"
    rows: list[Refusal] = []
    for reason, held in reduction.nearest.items():
        count = reduction.refused_counts[reason]
        for name, (_, one) in held.items():
            words = misses(one, reduction.objective)[reason]
            said = words if words == reason else f"{reason}: {words}"
            rows.append(Refusal(name, str(one.jobs[0].plan), said, count, reason))
            count = 0  # it stands on the first
    most_first = sorted(illegal.items(), key=lambda item: -item[1])
    refused = (*rows, *(Refusal("any", "", reason, count, reason) for reason, count in most_first))
    return Recommendation(
        objective=objective, **shown, refused=refused,
        assumptions=_assumptions(space, objective, length), prices_as_of=prices,
        considered=reduction.considered + sum(illegal.values()),
        legal=reduction.considered + skipped, fitting=reduction.fitting,
        qualified=reduction.qualified,
        refused_counts=dict(sorted(counts.items(), key=lambda item: -item[1])),
        seconds_taken=time.perf_counter() - started,
    )  # fmt: skip


def _winners(
    space: Space, reduction: Reduction, predictor: Predictor, length: Length, max_front: int
) -> dict[str, Any]:
    """Return the best option, the front, alternatives and rivals, each beaten with a probability."""
    objective = reduction.objective
    kept = score.in_detail(reduction.kept, predictor, objective, length)
    judged = judge(kept, objective)
    rows = np.flatnonzero(judged.qualified)
    # Scores use one typical framework where none is stated, answers a mixture.
    if not len(rows):
        rows = np.arange(len(kept))
    names = np.array([kept.cluster_name(row) for row in range(len(kept))])
    lost = {
        (names[row], str(kept.jobs.plans[row])): row
        for row in np.flatnonzero(~np.isin(names, names[rows])).tolist()
    }
    reduction.refuse(kept, judged, np.array([*lost.values()], dtype=np.int64))
    reduction.qualified -= len(lost)
    kept, names = kept.take(rows), names[rows]
    judged = judge(kept, objective)
    each = _of_each_offer(kept, judged.aim)
    best = judged.least(each)
    if objective.aim == "knee":
        front = judged.front(reduction.energy, each)
        best = int(front[knee(*judged.figures[:2, front])])
    front = judged.front(reduction.energy, each, best)
    if len(front) > max_front:
        thin = np.linspace(0, len(front) - 1, max_front).round().astype(np.int64)
        front = front[np.union1d(thin, np.flatnonzero(front == best))]
    others = each[names[each] != names[best]]
    others = others[np.argsort(judged.aim[others], kind="stable")]
    others = others[np.sort(np.unique(names[others], return_index=True)[1])][:MAX_ALTERNATIVES]
    parts = [kept.take(np.array([best, *front, *others]))]
    rival = next_layout(space, predictor, objective, length, kept.take(np.array([best])))
    parts += [] if rival is None else [rival]
    every = score.in_detail(parts, predictor, objective, length)
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
    space: Space, predictor: Predictor, objective: Objective, length: Length, best: score.Scored
) -> score.Scored | None:
    """Return the best qualified row on the best row's cluster and market with other degrees."""
    plan = best.jobs[0].plan
    here = replace(space, clusters=best.jobs.clusters[best.jobs.cluster_index[0] :][:1])
    limits = replace(objective, market="spot" if best.estimates.spot[0] else "on-demand")
    for scored in score.score_space(
        here, predictor, limits, length, {}
    ):  # one cluster is one chunk
        judged, plans = judge(scored, limits), scored.jobs.plans
        same = np.all([getattr(plans, n) == getattr(plan, n) for n in _LAYOUT], axis=0)
        rows = np.flatnonzero(judged.qualified & ~same)
        if len(rows):
            return scored.take(rows[score.simplest(judged.aim[rows], score.burden(plans)[rows])])
    return None


def _near_misses(reduction: Reduction, predictor: Predictor, length: Length) -> tuple[Option, ...]:
    every = (pair for held in reduction.nearest.values() for pair in held.values())
    near = [one for distance, one in every if math.isfinite(distance)]
    if not near:
        return ()
    missed = score.in_detail(near, predictor, reduction.objective, length)
    rows: dict[str, int] = {}
    for row in np.argsort(judge(missed, reduction.objective).distance, kind="stable").tolist():
        rows.setdefault(missed.cluster_name(row), row)
    return _options(missed.take(np.array([*rows.values()][:MAX_NEAR])), reduction.objective)


def _options(
    scored: score.Scored, objective: Objective, beaten: Sequence[Mapping[str, float]] | None = None
) -> tuple[Option, ...]:
    columns, estimates = _chances(scored, objective), scored.estimates
    figures = score.throughput(
        scored.jobs, score.step_seconds(scored.jobs, scored.forecasts, estimates.steps)[:, 1],
        estimates.steps, estimates.wall_seconds[:, 1], estimates.dollars[:, 1],
    )  # fmt: skip
    return tuple(
        Option(
            scored.jobs[i],
            replace(scored.estimates[i], forecast=scored.forecasts[i]),
            misses=misses(scored.take(np.array([i])), objective),
            chance={name: float(column[i]) for name, column in columns.items()},
            beaten=beaten[i] if beaten else {},
            throughput={name: float(column[i]) for name, column in figures.items()},
        )
        for i in range(len(scored))
    )


def _win_probabilities(scored: score.Scored, front: IntArray) -> list[dict[str, float]]:
    """Return for each row (n) the probability that row 0 beats it, by what is compared."""
    estimates, rho = scored.estimates, run_correlation(scored)
    table = {
        name: quantiles.probability_less(rows[:1], rows, rho[0])
        for name, rows in (
            ("time", estimates.wall_seconds), ("cost", estimates.dollars),
            ("energy", estimates.kilowatt_hours),
        )
    }  # fmt: skip
    table["knee"] = knee_win_probability(estimates.wall_seconds, estimates.dollars, front, rho)
    unsure = scored.forecasts.unmeasured
    if unsure is not None:
        table = {name: capped(column, unsure | unsure[0]) for name, column in table.items()}
    return [
        {name: float(column[i]) for name, column in table.items() if np.isfinite(column[i])}
        for i in range(len(scored))
    ]


def run_correlation(scored: score.Scored) -> FloatArray:
    """Return the correlations of the log errors of n runs, (n, n)."""
    jobs, forecasts = [scored.jobs[i] for i in range(len(scored))], scored.forecasts
    return quantiles.run_correlation(
        jobs, forecasts.causes, forecasts.seconds, scored.estimates.scattered_seconds
    )


def knee_win_probability(
    wall_seconds: FloatArray, dollars: FloatArray, front: IntArray, rho: FloatArray
) -> FloatArray:
    """Return P(row 0 lies nearer the knee than row j), (n,); NaN where the front has no knee.

    The knee is the least of h = t/T + c/C, T and C being the front's ranges; h errs as t and c do.
    """
    time_, cost = wall_seconds[:, 1], dollars[:, 1]
    unknown = np.full(len(time_), np.nan)
    if len(front) < 3 or not np.isfinite([time_[front], cost[front]]).all():
        return unknown
    ranges = np.ptp(time_[front]), np.ptp(cost[front])
    if not all(ranges):
        return unknown
    height = time_ / ranges[0] + cost / ranges[1]
    rows = wall_seconds * (height / time_)[:, None]
    return quantiles.probability_less(rows[:1], rows, rho[0])


def misses(one: score.Scored, objective: Objective) -> dict[str, str]:
    """Return the limits that one row breaks, each with by how much; the reason where none is known."""
    judged = judge(one, objective)
    chance = {name: column[0] for name, column in _chances(one, objective).items()}
    sure, words = _percent(objective.confidence), {}
    for reason in (reason for reason, mask in judged.reasons.items() if mask[0]):
        words[reason] = reason
        if reason == MEMORY:
            words[reason] = _memory(one, objective)
        elif reason == DEADLINE:
            limit = objective.deadline_seconds or 0.0
            takes, most = above(format_seconds, judged.figures[0, 0], limit)
            in_time = _chance("in time", chance[chances.DEADLINE])
            words[reason] = f"takes {takes} at {sure} confidence, the deadline is {most}; {in_time}"
        elif reason == BUDGET:
            costs, most = above(
                format_dollars, judged.figures[1, 0], objective.budget_dollars or 0.0
            )
            in_budget = _chance("in budget", chance[chances.BUDGET])
            words[reason] = f"costs {costs} at {sure} confidence, the budget is {most}; {in_budget}"
        elif reason == TOGETHER:
            words[reason] = f"{_chance('all, and it fits', chance[ALL])}, {sure} is asked"
        elif reason == ENDLESS:
            nodes, lost = one.jobs.per_cluster("nodes")[0], objective.preemption
            if not one.estimates.spot[0]:
                between = format_seconds(float(failure_seconds(one.jobs.per_cluster("devices")[0])))
                words[reason] = f"it fails every {between} at published rates; state --goodput"
                continue
            between = format_seconds(3600 / (nodes * lost.rate_per_node_hour))
            interval = format_seconds(lost.checkpoint_interval_seconds)
            words[reason] = f"{nodes:,} spot nodes lose one every {between}, saved every {interval}"
    return words


def _memory(one: score.Scored, objective: Objective) -> str:
    stated = float(one.jobs.per_cluster("device.memory_bytes")[0])
    usable = max(float(score.usable_bytes(one.jobs, one.forecasts)[0]), 0.0)
    peak = float(one.forecasts.peak_bytes[0, 1])
    # Cards hold GiB where data sheets say GB, so that more may be usable than is stated.
    of = f" of {format_bytes(stated)}" if usable < stated else ""
    words = f"needs {format_bytes(peak)} of the {format_bytes(usable)} usable{of} a device"
    fits = _chance("fits", one.estimates.fit_probability[0])
    if peak > usable:
        return f"{words}; {fits}"
    sure = _percent(objective.fit_confidence)
    return f"its chance is too low: {fits}, {sure} is asked; the median {words}"


def _chances(scored: score.Scored, objective: Objective) -> dict[str, FloatArray]:
    estimates = scored.estimates
    return limit_chances(
        estimates.wall_seconds, estimates.dollars, scored.forecasts.fit_probability, objective.limits,
        scored.forecasts.unmeasured,
    )  # fmt: skip


def _percent(probability: float) -> str:
    return f"{100 * probability:.3g} %"


def _chance(what: str, probability: float) -> str:
    """Return whole per cent, rounded down: what misses a limit must not seem to reach it."""
    whole = math.floor(100 * probability)
    return f"P({what}) = {whole} %" if whole or not probability else f"P({what}) < 1 %"


def _assumptions(space: Space, objective: Objective, length: Length) -> tuple[str, ...]:
    lost = (
        "failures, restarts, checkpoints, evaluation and slower phases at published rates"
        " (--goodput states yours)"
    )
    if (goodput := objective.preemption.goodput) is not None:
        lost = f"what else is lost, at a stated goodput of {_percent(goodput)}"
    words = [
        f"training is {length}",
        f"global batch {', '.join(map(str, space.global_batches))}; it does not change the samples needed",
        f"runs are steps alone; wall times, costs and deadlines hold {lost}",
        f"a plan fits at P(fits) >= {_percent(objective.fit_confidence)}; plans are ranked over P(fits), and the"
        f" simplest within {_percent(score.TIE)} of the best stands for each cluster",
    ]
    if objective.limits != Limits():
        sure = _percent(objective.confidence)
        words.append(f"a plan keeps the limits at P(all, and it fits) >= {sure}, at list prices")
    if objective.market != "on-demand":
        p = objective.preemption
        interval, saving, restart = (
            format_seconds(seconds)
            for seconds in (p.checkpoint_interval_seconds, p.checkpoint_seconds, p.restart_seconds)
        )
        words.append(
            f"spot machines: {p.rate_per_node_hour:g} losses a node-hour, a checkpoint every"
            f" {interval} taking {saving}, restart in {restart} (Daly 2006)"
        )
    words.append(_startup(space.clusters, objective.preemption))
    if any(c.host_watts == 0 for c in space.clusters):
        words.append("energy counts boards at their stated power, hosts only where known")
    return tuple(filter(None, words))


def _startup(clusters: Sequence[Cluster], lost: Preemption) -> str:
    """Return how long clusters take to start, and what they are billed at least, in words."""
    starts, least = zip(*(startup_of(cluster, lost) for cluster in clusters), strict=True)
    if lost.startup_seconds is None and not any(starts):
        return "the devices are taken as your own: no time is counted for them to start (--startup)"
    long, billed = (
        " to ".join(dict.fromkeys(map(format_seconds, (min(some), max(some)))))
        for some in (
            [start for start in starts if start] or [0.0],
            [s for s in least if s] or [0.0],
        )
    )
    own = "" if all(starts) or lost.startup_seconds is not None else "; plain devices start at once"
    return (
        f"walls and costs hold {long}, by the number of machines, until the first step{own} (--startup states"
        f" yours); of each machine {billed} are billed at least, by its cloud (--least-billed)"
    )
