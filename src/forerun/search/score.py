"""Score: legal plans in, forecasts and whole-run estimates out, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.contracts import Predictor
from forerun.domain.estimate import Estimates, estimate_runs, preemption_factor
from forerun.domain.forecast import Forecasts
from forerun.domain.hardware import Cluster
from forerun.domain.objective import Objective
from forerun.domain.plan_columns import PlanColumns, concatenate
from forerun.domain.workload import Length
from forerun.search.space import Space
from forerun.tables import Jobs

FloatArray = NDArray[np.float64]
# Rows in one call of the predictor: few calls, and little memory held.
CHUNK = 65536


@dataclass(frozen=True)
class Scored:
    """A chunk of jobs with what was forecast and what the whole run would take."""

    jobs: Jobs
    forecasts: Forecasts
    estimates: Estimates

    def __len__(self) -> int:
        return len(self.jobs)

    def take(self, index: NDArray[np.int64]) -> Scored:
        """Return the rows at the given positions."""
        return Scored(self.jobs.take(index), self.forecasts.take(index), self.estimates.take(index))


def score_space(
    space: Space,
    predictor: Predictor,
    objective: Objective,
    length: Length,
    refused: dict[str, int],
) -> Iterator[Scored]:
    """Yield every legal plan of the space, scored; `refused` gains the illegal ones' counts."""
    for jobs in chunks(space, refused):
        yield score(jobs, predictor, objective, length)


def chunks(space: Space, refused: dict[str, int], size: int = CHUNK) -> Iterator[Jobs]:
    """Yield the space's jobs in chunks of about `size`, small clusters joined together."""
    waiting: list[tuple[PlanColumns, int]] = []
    held = 0
    for plans, positions, counts in space.worlds():
        for reason, n in counts.items():
            refused[reason] = refused.get(reason, 0) + n
        if not len(plans):
            continue
        for position in positions:
            for start in range(0, len(plans), size):
                whole = start == 0 and len(plans) <= size
                part = (
                    plans if whole else plans.take(np.arange(start, min(start + size, len(plans))))
                )
                if held and held + len(part) > size:
                    yield _joined(space, waiting)
                    waiting, held = [], 0
                waiting.append((part, position))
                held += len(part)
    if waiting:
        yield _joined(space, waiting)


def _joined(space: Space, waiting: list[tuple[PlanColumns, int]]) -> Jobs:
    plans = waiting[0][0] if len(waiting) == 1 else concatenate([p for p, _ in waiting])
    lengths = [len(p) for p, _ in waiting]
    return Jobs(
        workloads=(space.workload,),
        clusters=tuple(space.clusters[i] for _, i in waiting),
        workload_index=np.zeros(len(plans), dtype=np.int32),
        cluster_index=np.repeat(np.arange(len(waiting), dtype=np.int32), lengths),
        plans=plans,
    )


def score(jobs: Jobs, predictor: Predictor, objective: Objective, length: Length) -> Scored:
    """Return jobs of one workload with forecasts and estimates at the objective's market."""
    try:
        forecasts = predictor.predict(jobs, detail=False)  # type: ignore[call-arg]
    except TypeError:
        forecasts = predictor.predict(jobs)
    return Scored(jobs, forecasts, estimates_for(jobs, forecasts, objective, length))


def estimates_for(
    jobs: Jobs, forecasts: Forecasts, objective: Objective, length: Length
) -> Estimates:
    """Return the whole runs of jobs of one workload."""
    workload = jobs.workloads[0]
    batch = jobs.plans.global_batch.astype(np.float64)
    if length.unit == "steps":
        steps: FloatArray = np.full(len(jobs), length.count)
    else:
        steps = np.ceil(workload.samples(length) / batch)
    per_cluster = np.array([market(c, objective) for c in jobs.clusters])
    dollars, factor, spot, watts, carbon = per_cluster[jobs.cluster_index].T
    return estimate_runs(
        forecasts.seconds, forecasts.fit_probability, steps, dollars_per_hour=dollars,
        watts=watts, carbon_kg_per_kwh=carbon, wall_factor=factor, spot=spot > 0,
    )  # fmt: skip


def market(cluster: Cluster, objective: Objective) -> tuple[float, float, float, float, float]:
    """Return (dollars an hour, wall factor, 1 for spot, watts, carbon) of a cluster.

    On the `any` market spot machines are taken where, losses included, they are cheaper. NaN
    stands for a price that is not known.
    """
    nan = float("nan")
    on_demand = nan if cluster.dollars_per_hour is None else cluster.dollars_per_hour
    spot = nan if cluster.spot_dollars_per_hour is None else cluster.spot_dollars_per_hour
    factor = float(preemption_factor(cluster.nodes, objective.preemption))
    carbon = nan if cluster.carbon_kg_per_kwh is None else cluster.carbon_kg_per_kwh
    use_spot = objective.market == "spot" or (
        objective.market == "any" and not (on_demand <= spot * factor) and spot == spot
    )
    if use_spot:
        return spot, factor, 1.0, cluster.watts, carbon
    return on_demand, 1.0, 0.0, cluster.watts, carbon
