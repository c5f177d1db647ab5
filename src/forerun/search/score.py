"""Score: legal plans in, forecasts and whole-run estimates out; of one job the fastest plan that fits."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.contracts import Predictor
from forerun.domain.estimate import (
    Estimates,
    estimate_runs,
    preemption_factor,
    preemption_spread,
    steps_to_target,
)
from forerun.domain.forecast import Forecasts, is_none
from forerun.domain.hardware import Cluster
from forerun.domain.job import Job
from forerun.domain.objective import Objective, Preemption
from forerun.domain.plan import Plan, PlanColumns, concatenate
from forerun.domain.quantiles import at_probability
from forerun.domain.workload import Length, Workload
from forerun.errors import UnsatisfiedError
from forerun.predictors.analytic.operations import fastest_rate, floor_flops_per_sample
from forerun.search.space import Space, refuse_fixed
from forerun.tables import Jobs
from forerun.units import SECONDS_PER_HOUR, chance_text, counted, format_bytes

SKIPPED = "slower and dearer than what was found, even at the full rate of its devices"
# Rows in one call of the predictor: few calls, and little memory held.
CHUNK = 65536


@dataclass(frozen=True)
class Scored:
    """A chunk of jobs with what was forecast and what the whole run would take.

    on_spot: where either market may be chosen, the same runs on spot machines; `estimates` are
    then those on demand.
    """

    jobs: Jobs
    forecasts: Forecasts
    estimates: Estimates
    on_spot: Estimates | None = None

    def __len__(self) -> int:
        return len(self.jobs)

    @property
    def markets(self) -> tuple[Scored, ...]:
        """The same jobs once for each market that may be chosen."""
        if self.on_spot is None:
            return (self,)
        return (replace(self, on_spot=None), replace(self, estimates=self.on_spot, on_spot=None))

    def cluster_name(self, row: int) -> str:
        """Return the name of a row's cluster."""
        return str(self.jobs.clusters[self.jobs.cluster_index[row]].name)

    def take(self, index: NDArray[np.int64]) -> Scored:
        """Return the rows at the given positions."""
        spot = None if self.on_spot is None else self.on_spot.take(index)
        return Scored(
            self.jobs.take(index), self.forecasts.take(index), self.estimates.take(index), spot
        )


def score_space(
    space: Space,
    predictor: Predictor,
    objective: Objective,
    length: Length,
    refused: dict[str, int],
    skips: Callable[[str, float, float], bool] = lambda name, seconds, dollars: False,
) -> Iterator[Scored]:
    """Yield every legal plan of the space, scored; `refused` gains the counts of those left out.

    Args:
        space, predictor, objective, length: what is searched, by whom, for what.
        refused: counts of plans by reason.
        skips: whether a cluster can be left out, by its name and the least seconds and dollars that
            a run on it can take; clusters come in the order of these dollars.
    """
    floors = _least_of_runs(space, objective, length)
    order = np.argsort(floors[1], kind="stable")

    def kept(position: int) -> bool:
        seconds, dollars = (float(each[position]) for each in floors)
        return not skips(space.clusters[position].name, seconds, dollars)

    for jobs in chunks(space, refused, CHUNK, order.tolist(), kept):
        yield score(jobs, predictor, objective, length)


def _least_of_runs(
    space: Space, objective: Objective, length: Length
) -> tuple[FloatArray, FloatArray]:
    """Return seconds and dollars, (clusters,) each, below which no run can be: full rate, no pause."""
    workload, batch = space.workload, min(space.global_batches)
    steps = length.count if length.unit == "steps" else workload.samples(length) / batch
    flops = floor_flops_per_sample(workload) * batch * steps
    full = [fastest_rate(c.device, workload) * c.devices for c in space.clusters]
    seconds = flops / np.array(full)
    spot, plain = (
        rates(space.clusters, kind, objective.preemption)[:, 0] for kind in (True, False)
    )
    price = {"spot": spot, "on-demand": plain}.get(objective.market, np.fmin(spot, plain))
    return seconds, seconds / SECONDS_PER_HOUR * price


def chunks(
    space: Space,
    refused: dict[str, int],
    size: int = CHUNK,
    order: Sequence[int] | None = None,
    kept: Callable[[int], bool] = lambda position: True,
) -> Iterator[Jobs]:
    """Yield the space's jobs in chunks of about `size`, small clusters joined together."""
    plans_of: dict[int, PlanColumns] = {}
    for plans, positions, counts in space.worlds():
        for reason, n in counts.items():
            refused[reason] = refused.get(reason, 0) + n
        plans_of |= dict.fromkeys(positions, plans)
    waiting: list[tuple[PlanColumns, int]] = []
    held = 0
    for position in plans_of if order is None else order:
        plans = plans_of[position]
        if len(plans) and not kept(position):
            refused[SKIPPED] = refused.get(SKIPPED, 0) + len(plans)
            continue
        for start in range(0, len(plans), size):
            part = plans
            if len(plans) > size:
                part = plans.take(np.arange(start, min(start + size, len(plans))))
            if held and held + len(part) > size:
                yield _grid(space, waiting)
                waiting, held = [], 0
            waiting.append((part, position))
            held += len(part)
    if waiting:
        yield _grid(space, waiting)


def _grid(space: Space, waiting: list[tuple[PlanColumns, int]]) -> Jobs:
    """Return plans on the clusters at positions of the space as jobs."""
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
    forecasts = predict_briefly(predictor, jobs)
    spot = objective.market == "spot"
    estimates = estimates_for(jobs, forecasts, objective, length, spot)
    other = None
    if objective.market == "any" and any(
        c.spot_dollars_per_hour is not None for c in jobs.clusters
    ):
        other = estimates_for(jobs, forecasts, objective, length, True)
    return Scored(jobs, forecasts, estimates, other)


def in_detail(
    parts: Sequence[Scored], predictor: Predictor, objective: Objective, length: Length
) -> Scored:
    """Return rows of several chunks as one, forecast as answers state them: with parts and causes."""
    jobs = [part.jobs for part in parts]
    before = np.cumsum([0, *(len(each.clusters) for each in jobs)])
    joined = Jobs(
        jobs[0].workloads,
        tuple(cluster for each in jobs for cluster in each.clusters),
        np.concatenate([each.workload_index for each in jobs]),
        np.concatenate([each.cluster_index + n for each, n in zip(jobs, before, strict=False)]),
        concatenate([each.plans for each in jobs]),
    )
    forecasts = predictor.predict(joined)
    spot = np.concatenate([part.estimates.spot for part in parts])
    return Scored(joined, forecasts, estimates_for(joined, forecasts, objective, length, spot))


def predict_briefly(predictor: Predictor, jobs: Jobs) -> Forecasts:
    """Return forecasts without the parts of a step, where the predictor can leave them out."""
    if "detail" in inspect.signature(predictor.predict).parameters:
        return predictor.predict(jobs, detail=False)  # type: ignore[call-arg]
    return predictor.predict(jobs)


def usable_bytes(jobs: Jobs, forecasts: Forecasts) -> FloatArray:
    """Return how high each row's peak may be (n,): the device's memory where nothing else is known."""
    stated: FloatArray = jobs.per_cluster("device.memory_bytes")
    usable = forecasts.usable_bytes
    return stated if usable is None else np.where(np.isnan(usable), stated, usable)


def estimates_for(
    jobs: Jobs,
    forecasts: Forecasts,
    objective: Objective,
    length: Length,
    spot: bool | NDArray[np.bool_],
) -> Estimates:
    """Return the whole runs of jobs of one workload; spot: for all, or for each row (n,).

    Where nobody gave the length and the predictor says how many samples the target takes, the run
    is as long as that, and as uncertain.
    """
    workload = jobs.workloads[0]
    batch = jobs.plans.global_batch.astype(np.float64)
    if length.unit == "steps":
        steps: FloatArray = np.full(len(jobs), length.count)
    else:
        steps = np.ceil(workload.samples(length) / batch)
    length_sigma: FloatArray | float = 0.0
    if length.source != "given":
        steps, length_sigma = steps_to_target(forecasts.samples_to_target, batch, steps)
    on_spot = np.broadcast_to(np.asarray(spot, dtype=bool), (len(jobs),))
    columns = np.empty((len(jobs), 5))
    for kind in (False, True):
        rows = on_spot == kind
        if rows.all():
            columns = rates(jobs.clusters, kind, objective.preemption)[jobs.cluster_index]
        elif rows.any():
            columns[rows] = rates(jobs.clusters, kind, objective.preemption)[
                jobs.cluster_index[rows]
            ]
    dollars, factor, spread, watts, carbon = columns.T
    return estimate_runs(
        forecasts.seconds, forecasts.fit_probability, steps, dollars_per_hour=dollars,
        watts=watts, carbon_kg_per_kwh=carbon, wall_factor=factor, wall_spread_seconds=spread,
        spot=on_spot, length_sigma=length_sigma,
    )  # fmt: skip


def rates(clusters: tuple[Cluster, ...], spot: bool, preemption: Preemption) -> FloatArray:
    """Return (dollars an hour, wall factor, wall spread, watts, carbon) of clusters, (m, 5)."""
    prices = [c.spot_dollars_per_hour if spot else c.dollars_per_hour for c in clusters]
    rows = [
        (price, 1.0, 0.0, cluster.watts, cluster.carbon_kg_per_kwh)
        for price, cluster in zip(prices, clusters, strict=True)
    ]
    table = np.array(rows, dtype=np.float64).reshape(-1, 5)  # None is NaN
    if spot:
        nodes = np.array([c.nodes for c in clusters])
        table[:, 1] = preemption_factor(nodes, preemption)
        table[:, 2] = preemption_spread(nodes, preemption)
    return table


# Options within this share of the best are a tie: no forecast tells them apart.
TIE = 0.005
_BITS = 21  # for devices and for micro-batches, each


def burden(plans: PlanColumns) -> IntArray:
    """Return how hard each row is to run, (n,): lower is simpler, and is taken among ties.

    Fewer mechanisms come first, then fewer devices, then larger micro-batches, whose kernels are
    fewer and whose input is read in larger pieces.
    """
    mechanisms = (
        2 * ((plans.tp > 1).astype(np.int64) + (plans.pp > 1) + (plans.cp > 1) + (plans.vpp > 1)
             + (plans.recompute > 0) + plans.sequence_parallel) + plans.zero_stage
    )  # fmt: skip
    devices = np.minimum(plans.world_size.astype(np.int64), 2**_BITS - 1)
    micro = 2**_BITS - 1 - np.minimum(plans.micro_batch.astype(np.int64), 2**_BITS - 1)
    return np.asarray((mechanisms << (2 * _BITS)) + (devices << _BITS) + micro)


def simplest(aim: FloatArray, hard: IntArray) -> int:
    """Return the position of the simplest row within `TIE` of the least aim (n,), n > 0."""
    near = np.flatnonzero(aim <= np.nanmin(aim) * (1 + TIE))
    return int(near[np.lexsort((aim[near], hard[near]))[0]])


def contenders(aim: FloatArray, hard: IntArray, group: IntArray) -> IntArray:
    """Return the rows that may still be the simplest of their group when other chunks are seen.

    Another chunk can only lower the least aim, and so the bar of the tie. Under any bar the choice
    is the simplest row below it; so what is kept is, of the rows within the tie of their own
    group's least aim, those that no other row beats in both aim and simplicity.

    Args:
        aim, hard: (n,), from the objective and from `burden`.
        group: (n,) small numbers of zero or more, a cluster each.
    """
    least = np.full(int(group.max(initial=0)) + 1, np.inf)
    np.minimum.at(least, group, aim)
    rows = np.flatnonzero(aim <= least[group] * (1 + TIE))
    _, rank = np.unique(hard[rows], return_inverse=True)
    rows_group = group[rows].astype(np.int64)
    order = np.lexsort((rank, aim[rows], rows_group))
    # Each group starts below all that went before it, so one running minimum serves them all.
    level = rank[order] - rows_group[order] * (len(rows) + 1)
    keep = np.ones(len(order), dtype=bool)
    keep[1:] = level[1:] < np.minimum.accumulate(level)[:-1]
    return np.asarray(rows[order[keep]])


# Whoever states all of these has decided how much memory a device needs.
_DECISIVE = frozenset(("dp", "tp", "pp", "micro_batch", "zero_stage", "recompute"))
_FITS = Objective().fit_confidence
_SHOWN = ("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch", "zero_stage", "recompute")


def best_plan(
    workload: Workload,
    cluster: Cluster,
    predictor: Predictor,
    *,
    fixed: Mapping[str, Any],
    global_batch: int,
) -> tuple[Plan, str]:
    """Return the fastest plan that holds the fixed fields and fits, and a note on how it was chosen.

    One legal plan is returned as it is, without a forecast and without a note; so is the plan that
    comes nearest where the fixed fields decide its memory. Where the predictor does not predict
    memory, open fields are at their defaults.

    Raises:
        RequestError: no plan with the fixed fields is legal.
        UnsatisfiedError: none fits (the one that comes nearest is named), or the predictor declines.
    """
    predictor = getattr(predictor, "planner", predictor)  # one that tells plans of a job apart
    space = Space(workload, (cluster,), (global_batch,), dict(fixed))
    plans, _, refused = next(space.worlds())
    if len(plans) == 1:
        return plans[0], ""
    if not len(plans):
        return _not_searched(space, refused)
    jobs = Jobs.grid(workload, cluster, plans)
    forecasts = predict_briefly(predictor, jobs)
    seconds, fits = forecasts.seconds[:, 1], forecasts.fit_probability
    rows = np.flatnonzero(np.isfinite(seconds) & (fits >= _FITS))
    if len(rows):
        plan = plans[int(rows[simplest(seconds[rows], burden(plans.take(rows)))])]
        free = "the plan was" if not fixed else f"plan fields other than {', '.join(fixed)} were"
        names = [name for name in (*_SHOWN, "sequence_parallel") if name not in fixed]
        chosen = " ".join(f"{name}={str(getattr(plan, name)).lower()}" for name in names)
        return plan, f"{free} chosen by search among {counted(len(plans), 'legal plan')}: {chosen}"
    if not is_none(forecasts.declined).any():
        raise UnsatisfiedError(
            f"{workload.name} on {cluster.name}",
            f"{predictor.name} declines: {forecasts.declined[0]}",
            "give it runs to learn from (--fit RUNS.csv), or name another predictor",
        )
    if np.isnan(fits).all():
        return _usual(space), (
            f"{predictor.name} does not predict memory, so the plan fields which were not given are at"
            " their defaults"
        )
    peaks = forecasts.peak_bytes
    near = int(np.nanargmin(at_probability(peaks, _FITS) / usable_bytes(jobs, forecasts)))
    if set(fixed) >= _DECISIVE:
        return plans[near], ""
    held = f" with {_text(fixed)}" if fixed else ""
    raise UnsatisfiedError(
        f"a plan for {workload.name} on {cluster.name}{held}",
        f"none of {len(plans):,} legal plans fits; the nearest ({plans[near]}) needs"
        f" {format_bytes(peaks[near, 1])} of {format_bytes(cluster.device.memory_bytes)} a device,"
        f" {chance_text('fits', float(fits[near]))} where {_FITS:g} is asked",
        "use more devices, devices with more memory, or another batch or sequence length; for its"
        f" figures all the same: --plan {_text({n: getattr(plans[near], n) for n in _SHOWN})}",
    )


def _not_searched(space: Space, refused: dict[str, int]) -> tuple[Plan, str]:
    """Return a legal plan that the search leaves out, where all fixed fields state it."""
    refuse_fixed(space, refused)
    if space.fixed:
        plan = Job(space.workload, space.clusters[0], _usual(space)).plan
        return plan, "the search looks at no such plan: the other fields are at their defaults"
    reasons = "; ".join(f"{reason} ({n:,} plans)" for reason, n in [*refused.items()][:3])
    raise UnsatisfiedError(
        f"a plan for {space.workload.name} on {space.clusters[0].name}",
        f"no legal plan: {reasons}", "raise the global batch, or use fewer devices",
    )  # fmt: skip


def _usual(space: Space) -> Plan:
    """Return the fixed fields with all others at their defaults, dp filling the cluster."""
    used = math.prod(int(space.fixed.get(name, 1)) for name in ("tp", "pp", "cp"))
    filled = {"dp": max(space.clusters[0].devices // used, 1), **space.fixed}
    return Plan(global_batch=space.global_batches[0], **filled)


def _text(fields: Mapping[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in fields.items())
