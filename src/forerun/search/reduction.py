"""Reduction: what is kept of each scored chunk, so that millions of plans need little memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.domain.estimate import Estimates
from forerun.domain.objective import Limits, Objective
from forerun.domain.quantiles import at_probability
from forerun.domain.recommendation import ALL, limit_chances
from forerun.search.pareto import pareto_front
from forerun.search.score import TIE, Scored, burden, contenders, usable_bytes

MEMORY, DEADLINE, BUDGET, TOGETHER, NO_PRICE, DECLINED, ENDLESS, NO_MEMORY = (
    "does not fit in memory", "misses the deadline", "exceeds the budget",
    "keeps each limit, and not surely all together", "no price is known",
    "the predictor declines", "does not finish at this loss rate",
    "the predictor says nothing of memory",
)  # fmt: skip
_ROUNDING = 1e-6  # a probability is known no better (see `quantiles.normal_cdf`)
_NEAR = 8  # misses kept of each chunk
MAX_ALTERNATIVES = 10  # clusters shown beside the best
_EXAMPLES = 4  # of a reason, kept of each chunk
# How near misses are ordered: what fits in memory first, then by the limits broken, then by how far.
_NOT_FITTING, _ONE_LIMIT, _FARTHEST = 1e6, 1e3, 999.0


@dataclass(frozen=True)
class Judged:
    """A chunk's figures at the objective's confidence, each (n,).

    Attributes:
        aim: what is minimised.
        distance: from qualifying, to order near misses by; infinite where no change of a limit
            would help (no price, no answer, no end).
        reasons: for each limit which rows break it, in the order in which they are told.
        first: position of the first reason in `reasons`, counted from 1; 0 for rows that qualify.
    """

    seconds: FloatArray
    dollars: FloatArray
    energy: FloatArray
    aim: FloatArray
    distance: FloatArray
    reasons: dict[str, NDArray[np.bool_]]
    first: NDArray[np.int8]

    def front(self, energy: bool, rows: IntArray | None = None) -> IntArray:
        """Return the positions on the Pareto front of time and cost (and energy), of some rows."""
        rows = np.arange(len(self.aim)) if rows is None else rows
        seconds, dollars = self.seconds[rows], self.dollars[rows]
        costs = [seconds, seconds if np.isnan(dollars).all() else dollars]
        costs += [self.energy[rows]] if energy else []
        return np.asarray(rows[pareto_front(*costs)])

    @property
    def qualified(self) -> NDArray[np.bool_]:
        """Rows that meet every limit."""
        return np.asarray(self.first == 0)


def judge(scored: Scored, objective: Objective) -> Judged:
    """Return a chunk's figures at one market and which limits each row breaks."""
    estimates, sure = scored.estimates, objective.confidence
    endless = np.isinf(estimates.run_seconds[:, 1])
    seconds, dollars, energy = (
        np.where(endless, np.inf, at_probability(rows, sure)) if endless.any()
        else at_probability(rows, sure)
        for rows in (estimates.run_seconds, estimates.dollars, estimates.kilowatt_hours)
    )  # fmt: skip
    needs_price = objective.aim in ("cost", "knee") or objective.budget_dollars is not None
    declined = np.isnan(seconds)
    # What has no spot price is not offered on the spot market, whatever is minimised.
    unpriced = ~declined & np.isnan(estimates.dollars[:, 1]) & (needs_price | estimates.spot)
    unknown = ~declined & np.isnan(estimates.fit_probability)
    fits = estimates.fit_probability >= objective.fit_confidence
    lost = endless & ~unpriced
    reasons = {
        DECLINED: declined, NO_PRICE: unpriced, NO_MEMORY: unknown,
        MEMORY: ~declined & ~unknown & ~fits, ENDLESS: lost,
    }  # fmt: skip
    gaps = [np.where(fits, 0.0, _memory_gap(scored, objective))]
    for reason, figure, limit in (
        (DEADLINE, seconds, objective.deadline_seconds), (BUDGET, dollars, objective.budget_dollars)
    ):  # fmt: skip
        if limit is not None:
            reasons[reason] = (figure > limit) & ~endless
            with np.errstate(divide="ignore"):
                gaps.append(np.maximum(np.log(figure / limit), 0.0))
    gaps += _together(estimates, objective, reasons)
    broken = np.sum([gap > 0 for gap in gaps], axis=0)
    distance = _NOT_FITTING * ~fits + _ONE_LIMIT * broken + np.minimum(sum(gaps), _FARTHEST)
    distance = np.where(declined | unpriced | unknown | endless, np.inf, distance)
    first = np.zeros(len(scored), dtype=np.int8)
    for position, mask in reversed(list(enumerate(reasons.values(), start=1))):
        first[mask] = position
    figure = {"time": seconds, "energy": energy}.get(objective.aim, dollars)
    return Judged(seconds, dollars, energy, figure, distance, reasons, first)


def _together(
    estimates: Estimates, objective: Objective, reasons: dict[str, NDArray[np.bool_]]
) -> list[FloatArray]:
    """Add to `reasons` the rows that keep each limit, and all together not surely enough."""
    if objective.limits == Limits():
        return []
    rows = np.flatnonzero(~np.any(list(reasons.values()), axis=0))
    chance = limit_chances(
        estimates.run_seconds[rows], estimates.dollars[rows], estimates.fit_probability[rows],
        objective.limits,
    )[ALL]  # fmt: skip
    short = rows[chance < objective.confidence - _ROUNDING]
    reasons[TOGETHER], gap = np.zeros(len(estimates), dtype=bool), np.zeros(len(estimates))
    reasons[TOGETHER][short] = True
    with np.errstate(divide="ignore"):
        gap[rows] = np.maximum(np.log(objective.confidence / chance), 0.0)
    return [gap * reasons[TOGETHER]]


def _memory_gap(scored: Scored, objective: Objective) -> FloatArray:
    """Return the log factor by which the peak, at the asked confidence, passes what can be filled."""
    peak = at_probability(scored.forecasts.peak_bytes, objective.fit_confidence)
    gap: FloatArray = np.maximum(np.log(peak / usable_bytes(scored.jobs, scored.forecasts)), 1e-3)
    return gap


@dataclass
class Reduction:
    """What remains of all chunks: fronts, the best few, the nearest misses, refused examples.

    A plan on a cluster counts once, however many markets it may be run at: it qualifies where one
    of them meets the limits, and is refused for the reason of the market that comes nearest.
    """

    objective: Objective
    energy: bool = False
    considered: int = 0
    fitting: int = 0
    qualified: int = 0
    refused_counts: dict[str, int] = field(default_factory=dict)
    kept: list[Scored] = field(default_factory=list)
    missed: list[Scored] = field(default_factory=list)
    refused: dict[str, list[tuple[float, Scored]]] = field(default_factory=dict)
    front: FloatArray = field(default_factory=lambda: np.zeros((0, 2)))
    best: dict[str, float] = field(default_factory=dict)
    target: bool = False

    def add(self, scored: Scored) -> None:
        """Take a chunk in."""
        markets = scored.markets
        judged = [judge(market, self.objective) for market in markets]
        good = np.any([j.qualified for j in judged], axis=0)
        self.considered += len(scored)
        self.fitting += int(
            (scored.estimates.fit_probability >= self.objective.fit_confidence).sum()
        )
        self.qualified += int(good.sum())
        for market, one in zip(markets, judged, strict=True):
            rows = np.flatnonzero(one.qualified)
            if len(rows):
                winners = self._winners(market, one, rows)
                self.kept.append(market.take(winners))
                self._note(market, one, winners)
            if not self.qualified:
                self._near(market, one)
        self._refuse(markets, judged, good)

    def _note(self, scored: Scored, judged: Judged, rows: NDArray[np.int64]) -> None:
        """Keep what decides whether a further cluster can win: the front, and each cluster's best."""
        costs = np.stack([judged.seconds[rows], judged.dollars[rows]], axis=1)
        front = np.concatenate([self.front, costs])
        self.front = front[pareto_front(*front.T)]
        self.target |= scored.forecasts.samples_to_target is not None
        for row in rows.tolist():
            name = scored.jobs.clusters[scored.jobs.cluster_index[row]].name
            self.best[name] = min(self.best.get(name, np.inf), float(judged.aim[row]))

    def cannot_win(self, name: str, seconds: float, dollars: float) -> bool:
        """Return whether a cluster can be neither on the front nor among the alternatives.

        Args:
            name: of the cluster.
            seconds, dollars: below which no run on it can be.
        """
        others = sorted(aim for cluster, aim in self.best.items() if cluster != name)
        if self.energy or self.target or len(others) <= MAX_ALTERNATIVES:
            return False
        least = seconds if self.objective.aim == "time" else dollars
        beaten = (self.front <= (seconds, dollars)).all(axis=1).any()
        return bool(beaten and least > max(others[MAX_ALTERNATIVES], others[0] * (1 + TIE)))

    def _winners(
        self, scored: Scored, judged: Judged, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        front = judged.front(self.energy, rows)
        # What may be the best of each cluster, for the choice and for the table of alternatives.
        cluster = scored.jobs.cluster_index[rows].astype(np.int64)
        best = rows[contenders(judged.aim[rows], burden(scored.jobs.plans)[rows], cluster)]
        return np.unique(np.concatenate([front, best]))

    def _near(self, scored: Scored, judged: Judged) -> None:
        rows = np.flatnonzero(np.isfinite(judged.distance))
        if len(rows):
            cluster = scored.jobs.cluster_index[rows]
            near = _nearest_of_each(judged.distance[rows], cluster, _NEAR)
            self.missed.append(scored.take(rows[near]))

    def _refuse(
        self, markets: Sequence[Scored], judged: Sequence[Judged], good: NDArray[np.bool_]
    ) -> None:
        nearest = np.argmin([j.distance for j in judged], axis=0)
        distance = np.choose(nearest, [j.distance for j in judged])
        first = np.where(good, 0, np.choose(nearest, [j.first for j in judged]))
        for position, reason in enumerate(judged[0].reasons, start=1):
            rows = np.flatnonzero(first == position)
            if not len(rows):
                continue
            self.refused_counts[reason] = self.refused_counts.get(reason, 0) + len(rows)
            examples = self.refused.setdefault(reason, [])
            cluster = markets[0].jobs.cluster_index[rows]
            for row in rows[_nearest_of_each(distance[rows], cluster, _EXAMPLES)]:
                example = markets[nearest[row]].take(np.array([row]))
                examples.append((float(distance[row]), example))
            examples.sort(key=lambda e: e[0])
            del examples[12:]


def _nearest_of_each(distance: FloatArray, group: NDArray[Any], most: int) -> NDArray[np.int64]:
    """Return the nearest row of each group (n,), the nearest groups first and at most `most`."""
    least = np.full(int(group.max(initial=0)) + 1, np.inf)
    np.minimum.at(least, group, distance)
    rows = np.flatnonzero(distance == least[group])
    _, first = np.unique(group[rows], return_index=True)
    rows = rows[first]
    return np.asarray(rows[np.argsort(distance[rows], kind="stable")][:most])
