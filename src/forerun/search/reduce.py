"""Reduction: what is kept of each scored chunk, so that millions of plans need little memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.domain.estimate import Estimates
from forerun.domain.hardware import Cluster
from forerun.domain.objective import Objective
from forerun.domain.plan_columns import concatenate
from forerun.domain.quantiles import at_probability
from forerun.search.pareto import pareto_front
from forerun.search.score import Scored
from forerun.tables import Jobs

FloatArray = NDArray[np.float64]
# Two plans this near in a figure are a tie, and the simpler one is taken.
TIE = 0.002
MEMORY, DEADLINE, BUDGET, NO_PRICE, DECLINED = (
    "does not fit in memory", "misses the deadline", "exceeds the budget", "no price is known",
    "the predictor declines",
)  # fmt: skip


@dataclass(frozen=True)
class Judged:
    """A chunk's figures at the objective's confidence, each (n,).

    gap: by what factor (log) the worst limit is missed, 0 or less where all are met.
    """

    seconds: FloatArray
    dollars: FloatArray
    energy: FloatArray
    aim: FloatArray
    gap: FloatArray
    reasons: dict[str, NDArray[np.bool_]]

    @property
    def qualified(self) -> NDArray[np.bool_]:
        """Rows that meet every limit."""
        return np.asarray(np.logical_not(np.any(list(self.reasons.values()), axis=0)))


def judge(scored: Scored, objective: Objective) -> Judged:
    """Return a chunk's figures and which limit each row breaks first."""
    estimates = scored.estimates
    seconds = at_probability(estimates.run_seconds, objective.confidence)
    dollars = at_probability(estimates.dollars, objective.confidence)
    energy = estimates.kilowatt_hours[:, 1]
    needs_price = objective.aim in ("cost", "knee") or objective.budget_dollars is not None
    fit = estimates.fit_probability
    declined = np.isnan(seconds)
    reasons = {
        DECLINED: declined,
        NO_PRICE: ~declined & np.isnan(dollars) & (needs_price or objective.market == "spot"),
        MEMORY: ~declined & ~(fit >= objective.fit_confidence),
    }
    gap = np.where(fit >= objective.fit_confidence, 0.0, _memory_gap(scored, objective))
    if objective.deadline_seconds is not None:
        late = np.log(seconds / objective.deadline_seconds)
        reasons[DEADLINE] = late > 0
        gap = np.maximum(gap, late)
    if objective.budget_dollars is not None:
        over = np.log(dollars / objective.budget_dollars)
        reasons[BUDGET] = over > 0
        gap = np.maximum(gap, np.nan_to_num(over, nan=50.0))
    figure = {"time": seconds, "energy": energy}.get(objective.aim, dollars)
    gap = np.where(declined | reasons[NO_PRICE], np.inf, gap)
    return Judged(seconds, dollars, energy, figure * (1 + TIE * _complexity(scored)), gap, reasons)


def _memory_gap(scored: Scored, objective: Objective) -> FloatArray:
    """Return the log factor by which the peak, at the asked confidence, passes the memory."""
    memory = scored.jobs.per_cluster("device.memory_bytes")
    peak = at_probability(scored.forecasts.peak_bytes, objective.fit_confidence)
    gap: FloatArray = np.maximum(np.log(peak / memory), 1e-3)
    return gap


def _complexity(scored: Scored) -> FloatArray:
    """Return how many mechanisms a plan uses: among ties the simplest is easiest to run."""
    plans = scored.jobs.plans
    used = (
        (plans.tp > 1).astype(np.float64) + (plans.pp > 1) + (plans.cp > 1) + (plans.vpp > 1)
        + (plans.recompute > 0) + plans.sequence_parallel + 0.5 * plans.zero_stage
    )  # fmt: skip
    result: FloatArray = used
    return result


@dataclass
class Reduction:
    """What remains of all chunks: fronts, the best few, the nearest misses, refused examples."""

    objective: Objective
    energy: bool = False
    considered: int = 0
    fitting: int = 0
    qualified: int = 0
    refused_counts: dict[str, int] = field(default_factory=dict)
    kept: list[Scored] = field(default_factory=list)
    missed: list[Scored] = field(default_factory=list)
    refused: dict[str, list[tuple[float, Scored, int]]] = field(default_factory=dict)

    def add(self, scored: Scored) -> None:
        """Take a chunk in."""
        judged = judge(scored, self.objective)
        good = judged.qualified
        self.considered += len(scored)
        self.fitting += int(
            (scored.estimates.fit_probability >= self.objective.fit_confidence).sum()
        )
        self.qualified += int(good.sum())
        if good.any():
            self.kept.append(scored.take(self._winners(scored, judged, np.flatnonzero(good))))
        if not self.qualified:
            self._near(scored, judged)
        self._refuse(scored, judged)

    def _winners(
        self, scored: Scored, judged: Judged, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        costs = [judged.seconds[rows], judged.dollars[rows]]
        if np.isnan(costs[1]).all():
            costs[1] = costs[0]
        if self.energy:
            costs.append(judged.energy[rows])
        front = rows[pareto_front(*costs)]
        # The best of each cluster, for the table of alternatives.
        order = rows[np.argsort(judged.aim[rows], kind="stable")]
        _, first = np.unique(scored.jobs.cluster_index[order], return_index=True)
        return np.unique(np.concatenate([front, order[first]]))

    def _near(self, scored: Scored, judged: Judged) -> None:
        rows = np.flatnonzero(np.isfinite(judged.gap) & ~judged.qualified)
        if len(rows):
            order = rows[np.argsort(judged.gap[rows], kind="stable")]
            _, first = np.unique(scored.jobs.cluster_index[order], return_index=True)
            self.missed.append(scored.take(order[np.sort(first)][:8]))

    def _refuse(self, scored: Scored, judged: Judged) -> None:
        taken = np.zeros(len(scored), dtype=bool)
        for reason, mask in judged.reasons.items():
            first = mask & ~taken
            taken |= mask
            count = int(first.sum())
            if not count:
                continue
            self.refused_counts[reason] = self.refused_counts.get(reason, 0) + count
            rows = np.flatnonzero(first)
            row = int(rows[np.argmin(np.nan_to_num(judged.gap[rows], nan=np.inf))])
            examples = self.refused.setdefault(reason, [])
            examples.append((float(judged.gap[row]), scored.take(np.array([row])), row))
            examples.sort(key=lambda e: e[0])
            del examples[12:]


def joined(parts: list[Scored]) -> Scored:
    """Return several scored chunks of one workload as one."""
    clusters: list[Cluster] = []
    index = []
    for part in parts:
        index.append(part.jobs.cluster_index + len(clusters))
        clusters.extend(part.jobs.clusters)
    first = parts[0].forecasts
    names = ("seconds", "peak_bytes", "fit_probability", "floor_seconds", "distance", "declined")
    forecasts: dict[str, Any] = {
        n: np.concatenate([getattr(p.forecasts, n) for p in parts]) for n in names
    }
    return Scored(
        Jobs(
            parts[0].jobs.workloads, tuple(clusters),
            np.concatenate([p.jobs.workload_index for p in parts]), np.concatenate(index),
            concatenate([p.jobs.plans for p in parts]),
        ),
        replace(first, **forecasts),
        Estimates(**{n: np.concatenate([getattr(p.estimates, n) for p in parts])
                     for n in vars(parts[0].estimates)}),
    )  # fmt: skip
