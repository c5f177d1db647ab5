"""Score: legal plans in, forecasts, whole-run estimates and throughput out; of one job the fastest plan that fits."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from forerun.arrays import BoolArray, FloatArray, IntArray, alike, taken
from forerun.catalog import MAX_DEVICES
from forerun.contracts import Predictor
from forerun.domain import estimate
from forerun.domain.forecast import Forecasts, is_none, join_forecasts, sure_at_most
from forerun.domain.hardware import Cluster
from forerun.domain.job import Job, job_problem
from forerun.domain.objective import Limits, Objective, Preemption
from forerun.domain.plan import SYNC, Plan, PlanColumns, concatenate, step_samples
from forerun.domain.quantiles import at_probability
from forerun.domain.workload import Length, Workload
from forerun.errors import UnsatisfiedError
from forerun.predictors.analytic.operations import (
    fastest_rate,
    floor_flops_per_sample,
    model_flops,
    peak_flops,
)
from forerun.search.space import Lacking, Space, refuse_fixed
from forerun.tables import Jobs
from forerun.tables.jobs import join_jobs
from forerun.units import JOULES_PER_KWH, SECONDS_PER_HOUR, chance_text, counted, format_bytes

# Why clusters are left out before their plans are scored.
_BOUND = "by the best rate of its devices or by its cluster's usual plans"
SKIPPED = f"slower and more expensive than what was found, {_BOUND}"
TOO_FAR = f"misses a limit by more than what is shown, {_BOUND}"
TOO_LARGE = "does not fit in memory, as no usual plan on as many devices does"
SLOWER = "slower than others of its cluster, or too large, by plans of the same degrees"
LEFT_OUT = (SKIPPED, TOO_FAR, TOO_LARGE, SLOWER)
CHOSEN = "plan chosen by search"  # how the note on a chosen plan begins
ROUNDING = 1e-6  # a probability is known no better (see `quantiles.normal_cdf`)
# Bytes a parameter of states, and what share of memory they take where recomputation comes first; the chance to fit
# below which less of it does not help (it needs 0.94 of the memory at the least, over the zoo).
_STATES, _FILLED, _NO_HOPE = 16, 0.3, 0.1
_FEW = 1000  # plans of a cluster that are scored at once
CHUNK = 262144  # rows in one call of the predictor: few calls, and less than 1 GB held


@dataclass(frozen=True)
class Scored:
    """Jobs, their forecasts, and what each whole run would take."""

    jobs: Jobs
    forecasts: Forecasts
    estimates: estimate.Estimates

    def __len__(self) -> int:
        return len(self.jobs)

    def cluster_name(self, row: int) -> str:
        """Return the name of a row's cluster."""
        return str(self.jobs.clusters[self.jobs.cluster_index[row]].name)

    def take(self, index: NDArray[np.int64]) -> Scored:
        """Return the rows at the given positions."""
        return taken(self, index)


class Guide(Protocol):
    """What leaves clusters and plans out of a search."""

    many: bool  # whether the usual plans of each cluster (`Space.usual`) are scored first

    def scout(self, scored: Scored) -> None:
        """Take in usual plans."""

    def cannot_win(self, cluster: Cluster, floors: FloatArray) -> str:
        """Return why a cluster is left out whose runs take at least so many seconds, dollars and kWh, (3,); or ""."""

    def near_usual(self, cluster: Cluster, plans: PlanColumns) -> PlanColumns:
        """Return the plans of a cluster that may be its best."""


def score_space(
    space: Space, predictor: Predictor, objective: Objective, length: Length,
    refused: dict[str, int], guide: Guide | None = None,
) -> Iterator[Scored]:  # fmt: skip
    """Yield every legal plan, scored, a cluster in one chunk; `refused` gains what the guide leaves out."""
    plans_of: dict[int, tuple[PlanColumns, PlanColumns]] = {}
    for plans, positions, counts in space.worlds():
        _count(refused, counts)
        scouted = guide is not None and guide.many and len(plans) > _FEW
        usual = space.usual(plans) if scouted else plans.take(np.arange(0))
        plans_of |= dict.fromkeys(positions, (usual, plans))
    likely = objective.confidence >= 0.5
    physical = getattr(predictor, "fastest_alone", False)
    reached = _reached(space, predictor) if likely and physical else np.ones(len(space.clusters))
    floors, order = _floors(space, objective, length, reached)

    def left(which: int) -> Iterator[tuple[PlanColumns, Cluster]]:
        for position in order:
            plans, cluster = plans_of[position][which], space.clusters[position]
            if not len(plans):
                continue
            if guide is not None:
                if why := guide.cannot_win(cluster, floors[:, position]):
                    _count(refused, {why: len(plans) * which})
                    continue
                near = guide.near_usual(cluster, plans) if which else plans
                _count(refused, {SLOWER: len(plans) - len(near)})
                plans = near
            yield plans, cluster

    def whole(jobs: Jobs) -> Scored:
        return score(jobs, predictor, objective, length)

    def in_part(jobs: Jobs) -> Scored:
        rows, forecasts = _less_recomputed_first(jobs, predictor, objective)
        return _estimated(jobs.take(rows), forecasts, objective, length)

    how = whole
    if guide is not None and guide.many and physical:
        how = in_part if likely else whole
        for _, scored in _in_chunks(space.workload, left(0), how):
            guide.scout(scored)
    for legal, scored in _in_chunks(space.workload, left(1), how):
        yield scored
        _count(refused, {SLOWER: legal - len(scored) // (2 if objective.market == "any" else 1)})


def _floors(
    space: Space, objective: Objective, length: Length, reached: FloatArray
) -> tuple[FloatArray, list[int]]:
    """Return seconds, dollars and kWh below which no run of each cluster can be, (3, clusters), and their order.

    Best rate, no pause: medians of the rate and of the start-up count where the quantile that decides is no less.
    reached: see `_reached`.
    """
    workload, batch = space.workload, min(space.global_batches)
    sync = SYNC.index(str(space.fixed.get("sync", SYNC[0])))
    each = step_samples(batch, [c.devices for c in space.clusters], sync)
    flops = floor_flops_per_sample(workload) * each * [workload.steps(length, n) for n in each]
    rates = [fastest_rate(c.device, workload) * c.devices for c in space.clusters]
    full = np.array(rates) * reached
    markets = _markets(space.clusters, objective.preemption)[:, :-1]
    price, factor, (start, least) = markets[..., 0], markets[..., 1], markets[0, :, 5:].T
    each_market = flops / full * factor + start * (objective.confidence >= 0.5)
    cost = np.maximum(each_market, least) / SECONDS_PER_HOUR * price
    of = {"on-demand": slice(0, 1), "spot": slice(1, 2)}.get(objective.market, slice(None))
    seconds, dollars = each_market[of].min(axis=0), np.fmin.reduce(cost[of])
    energy = seconds * markets[0, :, 3] / JOULES_PER_KWH
    # Last what misses a limit in any case, the nearest first.
    with np.errstate(invalid="ignore"):  # what never ends
        late = np.fmax(seconds / (objective.deadline_seconds or np.inf), 1.0)
        dear = np.fmax(dollars / (objective.budget_dollars or np.inf), 1.0)
    return np.stack([seconds, dollars, energy]), np.lexsort((dollars, late * dear)).tolist()


def _count(refused: dict[str, int], more: Mapping[str, int]) -> None:
    for reason, n in more.items():
        if n:
            refused[reason] = refused.get(reason, 0) + n


def _in_chunks(
    workload: Workload, pairs: Iterable[tuple[PlanColumns, Cluster]], how: Callable[[Jobs], Scored]
) -> Iterator[tuple[int, Scored]]:
    """Yield plans of clusters, scored, after their number."""

    def chunks() -> Iterator[Jobs]:
        waiting: list[tuple[PlanColumns, Cluster]] = []
        held = 0
        for plans, cluster in pairs:
            if held and held + len(plans) > CHUNK:
                yield grid(workload, waiting)
                waiting, held = [], 0
            waiting.append((plans, cluster))
            held += len(plans)
        if waiting:
            yield grid(workload, waiting)

    # Two chunks at once: NumPy's loops let another thread run. Also where there is one core, for what
    # is skipped hangs on which chunks were looked at before.
    with ThreadPoolExecutor(1) as pool:
        every = chunks()
        for jobs in every:
            beside = next(every, None)
            later = beside and pool.submit(how, beside)
            yield len(jobs), how(jobs)
            if beside and later:
                yield len(beside), later.result()


def _reached(space: Space, predictor: Predictor) -> FloatArray:
    """Return the highest share of the full rate that each cluster's device is forecast to reach alone, (clusters,).

    At up to a whole batch in one pass, whether it fits or not, and without a wait for input, which hangs on the
    host: no cluster of the device does better. 1 where nothing is forecast.
    """
    most, workload = max(space.global_batches), space.workload
    passes = [2**power for power in range(most.bit_length())]
    plans = PlanColumns.of([Plan(micro_batch=size, global_batch=size) for size in passes])
    devices = {c.device: i for i, c in enumerate(space.clusters)}
    alone = [
        replace(space.clusters[i], nodes=1, devices_per_node=1, placement=(), vcpus_per_device=0.0)
        for i in devices.values()
    ]
    seconds = predict_briefly(predictor, grid(workload, [(plans, c) for c in alone])).seconds[:, 1]
    rates = np.array(passes) * floor_flops_per_sample(workload) / seconds.reshape(len(alone), -1)
    full = np.array([fastest_rate(c.device, workload) for c in alone])
    shares = np.minimum(np.nan_to_num(np.fmax.reduce(rates, axis=1) / full, nan=1.0), 1.0)
    share = dict(zip(devices, shares.tolist(), strict=True))
    return np.array([share[c.device] for c in space.clusters])


def grid(workload: Workload, parts: Sequence[tuple[PlanColumns, Cluster]]) -> Jobs:
    """Return the jobs of one workload: each cluster with its plans."""
    plans = parts[0][0] if len(parts) == 1 else concatenate([plans for plans, _ in parts])
    return Jobs(
        workloads=(workload,),
        clusters=tuple(cluster for _, cluster in parts),
        workload_index=np.zeros(len(plans), dtype=np.int32),
        cluster_index=np.repeat(np.arange(len(parts), dtype=np.int32), [len(p) for p, _ in parts]),
        plans=plans,
    )


def score(jobs: Jobs, predictor: Predictor, objective: Objective, length: Length) -> Scored:
    """Return jobs of one workload, scored; at either market all rows on demand, then all on spot machines."""
    return _estimated(jobs, predict_briefly(predictor, jobs), objective, length)


def _estimated(jobs: Jobs, forecasts: Forecasts, objective: Objective, length: Length) -> Scored:
    spot: BoolArray = np.full(len(jobs), objective.market == "spot")
    if objective.market == "any":
        twice = np.tile(np.arange(len(jobs)), 2)
        spot = twice != np.arange(len(twice))
        jobs, forecasts = jobs.take(twice), forecasts.take(twice)
    estimates = estimates_for(jobs, forecasts, length, spot, objective.preemption)
    return Scored(jobs, forecasts, estimates)


def _less_recomputed_first(
    jobs: Jobs, predictor: Predictor, objective: Objective
) -> tuple[IntArray, Forecasts]:
    """Return the rows (m,) that may be a cluster's best, in order, and their forecasts.

    Recomputation costs time: where the same plan without it surely fits, or takes longer than what the cluster's best
    does at the confidence asked, so does the plan itself. The confidence is one half at least. It saves memory: on
    clusters that a model fills, what needs far too much with it does so without, where no limit is stated.
    """
    plans, cluster = jobs.plans, jobs.cluster_index
    columns = (plans.tp, plans.pp, plans.cp, plans.ep, plans.micro_batch, plans.global_batch,
               plans.zero_stage, plans.vpp, plans.sequence_parallel)  # fmt: skip
    same, offer = alike([cluster, *columns])[0], alike([cluster, plans.global_batch])[0]
    states = _STATES * jobs.workloads[0].params
    filled = np.array([states > _FILLED * c.devices * c.device.memory_bytes for c in jobs.clusters])
    filled &= objective.limits == Limits()  # what is nearest to several limits may recompute less
    first = np.where(filled[cluster], plans.recompute.max(), plans.recompute.min())
    away = plans.offload_activations > 0  # which recomputation may spare
    rows = np.flatnonzero((plans.recompute == first) | away)
    found = predict_briefly(predictor, jobs.take(rows))
    sure, best = found.fit_probability >= 1 - ROUNDING, np.full(offer.max() + 1, np.inf)
    slow = at_probability(found.seconds[sure], objective.confidence) * (1 + TIE)
    np.fmin.at(best, offer[rows[sure]], slow)
    slower = sure | (found.seconds[:, 1] > best[offer[rows]])
    out = np.zeros(same.max() + 1, dtype=bool)
    out[same[rows]] = np.where(filled[cluster[rows]], found.fit_probability < _NO_HOPE, slower)
    rest = np.setdiff1d(np.flatnonzero(~out[same]), rows, assume_unique=True)
    if not len(rest):
        return rows, found
    rows, more = np.append(rows, rest), predict_briefly(predictor, jobs.take(rest))
    order = np.argsort(rows)
    return rows[order], join_forecasts([found, more]).take(order)


def in_detail(
    parts: Sequence[Scored], predictor: Predictor, objective: Objective, length: Length
) -> Scored:
    """Return rows of several chunks as one, forecast as answers state them: with parts and causes."""
    jobs = replace(join_jobs([part.jobs for part in parts]), labels=None)
    forecasts = predictor.predict(jobs)
    spot = np.concatenate([part.estimates.spot for part in parts])
    estimates = estimates_for(jobs, forecasts, length, spot, objective.preemption)
    return Scored(jobs, forecasts, estimates)


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


def steps_of(jobs: Jobs, forecasts: Forecasts, length: Length) -> tuple[FloatArray, FloatArray]:
    """Return optimizer steps (n,) and their log sigma: to a forecast target where no length is given."""
    batch = jobs.plans.step_samples
    steps: FloatArray = np.full(len(jobs), length.count)
    if length.unit != "steps":
        steps = np.ceil(jobs.workloads[0].samples(length) / batch)
    target = None if length.source == "given" else forecasts.samples_to_target
    return estimate.steps_to_target(target, batch, steps)


def step_seconds(jobs: Jobs, forecasts: Forecasts, steps: FloatArray) -> FloatArray:
    """Return quantiles (n, 3) of one step's seconds, whatever is forecast; NaN where unknown."""
    if forecasts.quantity == "step":
        return forecasts.seconds
    count = steps
    if forecasts.quantity == "epoch":
        count = jobs.per_workload("dataset_size") / jobs.plans.step_samples
    return np.asarray(forecasts.seconds / np.where(count > 0, count, np.nan)[:, None])


def estimates_for(
    jobs: Jobs,
    forecasts: Forecasts,
    length: Length,
    spot: bool | BoolArray,
    preemption: Preemption = Preemption(),  # noqa: B008 - frozen
) -> estimate.Estimates:
    """Return the whole runs of jobs of one workload; spot: for all, or for each row (n,)."""
    on_spot = np.broadcast_to(np.asarray(spot, dtype=bool), (len(jobs),))
    steps, length_sigma = steps_of(jobs, forecasts, length)
    seconds = step_seconds(jobs, forecasts, steps)
    fits = np.minimum(forecasts.fit_probability, sure_at_most(forecasts.unmeasured, len(jobs)))
    return priced_runs(
        jobs, seconds, fits, steps, on_spot, preemption,
        forecasts.quantity != "run", length_sigma,
    )  # fmt: skip


def priced_runs(
    jobs: Jobs, seconds: FloatArray, fit_probability: FloatArray, steps: FloatArray,
    spot: BoolArray, preemption: Preemption, lossless: bool | BoolArray,
    length_sigma: ArrayLike = 0.0,
) -> estimate.Estimates:  # fmt: skip
    """Return whole runs of steps that take some seconds (n, 3), with the time that they lose.

    lossless: which seconds are of steps alone: those of runs that were measured whole hold what they lost.
    """
    index: NDArray[Any] = jobs.cluster_index
    devices = np.array([*(c.devices for c in jobs.clusters), 1.0])
    if (index < 0).any():  # where a row names no known cluster
        stated = np.clip(np.nan_to_num(jobs.cells.numbers("devices"), nan=1.0), 1.0, MAX_DEVICES)
        devices, index = np.where(index < 0, stated, devices[index]), np.arange(len(index))
    markets = np.moveaxis(_markets(jobs.clusters, preemption), -1, 0)
    columns = markets[:, spot * 1, jobs.cluster_index]
    dollars, factor, spread, watts, carbon, start, least = columns
    paid = jobs.machines_paid
    if (paid > 1).any():  # servers' machines cost, draw power and fail as the workers' do
        devices, index = devices[index] * paid, np.arange(len(index))
        nodes = np.where(spot, jobs.per_cluster("nodes", 1.0) * paid, 0.0)
        factor = np.where(spot, estimate.preemption_factor(nodes, preemption), factor)
        spread = np.where(spot, estimate.preemption_spread(nodes, preemption), spread)
        # A row's own price is of all its machines.
        stated = np.isfinite(jobs.cells.numbers("price_usd_per_hour"))
        dollars, watts = dollars * np.where(stated, 1.0, paid), watts * paid
    sigma: ArrayLike = 0.0
    if np.any(lossless):
        run = seconds[:, 1] * steps
        lost = estimate.lost_time_factor(run, devices, index, spot, preemption.goodput)
        factor = factor * np.where(lossless, lost, 1.0)
        if preemption.goodput is None:
            factor = factor * np.where(
                lossless, estimate.sustained_factor(run, devices[index]), 1.0
            )
            sigma = np.where(spot | ~np.asarray(lossless), 0.0, estimate.lost_time_sigma(run, lost))
    return estimate.estimate_runs(
        seconds, fit_probability, steps, dollars_per_hour=dollars, watts=watts,
        carbon_kg_per_kwh=carbon, wall_factor=factor, lost_sigma=sigma,
        wall_spread_seconds=spread, spot=spot, length_sigma=length_sigma,
        start_seconds=np.where(lossless, start, 0.0), least_billed_seconds=least,
        start_sigma=estimate.START_SIGMA if preemption.startup_seconds is None else 0.0,
    )  # fmt: skip


def _markets(clusters: Sequence[Cluster], preemption: Preemption) -> FloatArray:
    """Return (dollars an hour, spot losses' wall factor and spread, watts, carbon, start, least billed), (2, m + 1, 7).

    First on demand, then on spot machines; the last cluster is one that is not known.
    """
    rows = [
        (c.dollars_per_hour, 1.0, 0.0, c.watts, c.carbon_kg_per_kwh,
         *estimate.startup_of(c, preemption))
        for c in clusters
    ]  # fmt: skip
    stated = (preemption.startup_seconds or 0.0, preemption.least_billed_seconds or 0.0)
    unknown = (None, 1.0, 0.0, None, None, *stated)
    plain = np.array([*rows, unknown], dtype=np.float64)  # None is NaN
    spot, nodes = plain.copy(), np.array([c.nodes for c in clusters])
    spot[:-1, 0] = [np.nan if (p := c.spot_dollars_per_hour) is None else p for c in clusters]
    spot[:-1, 1] = estimate.preemption_factor(nodes, preemption)
    spot[:-1, 2] = estimate.preemption_spread(nodes, preemption)
    return np.stack([plain, spot])


def on_spot(clusters: Sequence[Cluster], market: str, preemption: Preemption) -> BoolArray:
    """Return which clusters (m,) run on spot machines: for `any` those whose runs cost less there."""
    plain, spot = _markets(clusters, preemption)[:, :-1]
    if market != "any":
        return np.full(len(plain), market == "spot")
    cheaper = ~(plain[:, 0] <= spot[:, 0] * spot[:, 1])
    return np.asarray(cheaper & np.isfinite(spot[:, 0]))


def throughput(
    jobs: Jobs, step: FloatArray, steps: FloatArray, wall: FloatArray, dollars: FloatArray,
    batch: FloatArray | None = None,
) -> dict[str, FloatArray]:  # fmt: skip
    """Return figures of jobs by name, (n,) each, NaN where not known.

    MFU is model FLOPs over what the devices' dense peak in the precision allows in a step, above 1 only where
    Winograd's convolutions multiply less; HFU also counts what is recomputed (Chowdhery et al. 2022,
    appendix B). Rates are of steps; device-hours and what a dollar buys are of the wall time.

    step: seconds of a step. steps: of the run. wall, dollars: of the whole run. batch: where it is not
    that of the plan. All (n,).
    """
    w, c = jobs.workload_index, jobs.cluster_index
    each = np.array([*map(model_flops, jobs.workloads), (np.nan,) * 3])[w]
    again = np.column_stack([np.zeros(len(each)), each[:, 1:]])
    recomputed = np.take_along_axis(again, jobs.plans.recompute[:, None].astype(int), 1)[:, 0]
    pair, first = alike([w + 1, c + 1])
    peaks = np.array([
        np.nan if min(i, j) < 0 else peak_flops(jobs.clusters[j].device, jobs.workloads[i])
        for i, j in zip(w[first].tolist(), c[first].tolist(), strict=True)
    ])[pair]  # fmt: skip
    tokens = jobs.per_workload("seq_len", np.nan)
    tokens = np.where(tokens > 0, tokens, np.nan)
    devices = jobs.per_cluster("devices", np.nan)
    if jobs.labels is not None:
        devices = np.where(np.isnan(devices), jobs.labels.numbers("devices"), devices)
    batch = jobs.plans.step_samples if batch is None else batch
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = batch / step
        done = np.where(each[:, 0] > 0, each[:, 0], np.nan) * rate / devices
        per_dollar = batch * steps / dollars
        return {
            "samples_per_second": rate, "samples_per_second_per_device": rate / devices,
            "tokens_per_second": rate * tokens,
            "tokens_per_second_per_device": rate * tokens / devices,
            "flops_per_second_per_device": done, "peak_flops_per_second": peaks,
            "mfu": done / peaks, "hfu": done * (1.0 + recomputed / each[:, 0]) / peaks,
            "device_hours": devices * jobs.machines_paid * wall / SECONDS_PER_HOUR,
            "samples_per_dollar": per_dollar, "tokens_per_dollar": per_dollar * tokens,
        }  # fmt: skip


# Plans of one job that are forecast within 5 % of one another are measured 3 to 10 % apart (median,
# on held-out nodes and models): within TIE the fewest mechanisms are taken, then within EVEN the rest.
TIE, EVEN = 0.05, 0.005
_BITS = 21  # for devices and for micro-batches, each


def burden(plans: PlanColumns) -> IntArray:
    """Return how hard each row is to run, (n,): by mechanisms, then devices, then small micro-batches."""
    mechanisms = (
        2 * ((plans.tp > 1).astype(np.int64) + (plans.pp > 1) + (plans.cp > 1) + (plans.vpp > 1)
             + (plans.recompute > 0) + plans.sequence_parallel) + plans.zero_stage
    )  # fmt: skip
    devices = np.minimum(plans.world_size.astype(np.int64), 2**_BITS - 1)
    micro = 2**_BITS - 1 - np.minimum(plans.micro_batch.astype(np.int64), 2**_BITS - 1)
    return np.asarray((mechanisms << (2 * _BITS)) + (devices << _BITS) + micro)


def simplest(aim: FloatArray, hard: IntArray, group: NDArray[Any] | None = None) -> IntArray:
    """Return each group's row of fewest mechanisms within `TIE` of its least aim; group: (n,) from zero.

    Of these, the row of least burden within `EVEN` of their least aim.
    """
    group = np.zeros(len(aim), dtype=np.int64) if group is None else group
    near = np.flatnonzero(aim <= least(aim, group)[group] * (1 + TIE))
    mechanisms = (hard[near] >> (2 * _BITS)).astype(np.float64)
    near = near[mechanisms == least(mechanisms, group[near])[group[near]]]
    near = near[aim[near] <= least(aim[near], group[near])[group[near]] * (1 + EVEN)]
    order = near[np.lexsort((aim[near], hard[near], group[near]))]
    return np.asarray(order[np.unique(group[order], return_index=True)[1]])


def least(values: FloatArray, group: NDArray[Any]) -> FloatArray:
    """Return the least value of each group, from zero; infinite of an empty one."""
    least = np.full(int(group.max(initial=0)) + 1, np.inf)
    np.fmin.at(least, group, values)
    return least


# Whoever states all of these has decided how much memory a device needs.
_DECISIVE = frozenset(("dp", "tp", "pp", "micro_batch", "zero_stage", "recompute"))
_FITS = Objective().fit_confidence
_SHOWN = ("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch", "zero_stage", "recompute")


def best_plan(
    workload: Workload, cluster: Cluster, predictor: Predictor, *, fixed: Mapping[str, Any],
    global_batch: int, exact: bool = True, lacking: Lacking | None = None,
    what_fits: Callable[[], str] = str,
) -> tuple[Plan, str]:  # fmt: skip
    """Return the fastest plan that holds the fixed fields and fits, and a note on how it was chosen.

    exact, lacking: see `Space`. what_fits: what to do where none fits, "" where nothing is known to help.

    Raises:
        RequestError: no plan with the fixed fields is legal, or none shares out the batch.
        UnsatisfiedError: none fits (the one that comes nearest is named), or the predictor declines.
    """
    predictor = getattr(predictor, "planner", predictor)  # one that tells plans of a job apart
    space = Space(workload, (cluster,), (global_batch,), dict(fixed), exact=exact, lacking=lacking)
    plans, _, refused = next(space.worlds())
    if len(plans) == 1:
        return plans[0], ""
    if not len(plans):
        refuse_fixed(space, refused)
        if fixed:
            plan = Job(workload, cluster, _usual(space)).plan
            return plan, "the search has no such plan: other fields are at their defaults"
        raise UnsatisfiedError(
            f"a plan for {workload.name} on {cluster.name}",
            f"no legal plan: {'; '.join([*refused][:3])}",
            "raise the global batch, or use fewer devices",
        )
    jobs = Jobs.grid(workload, cluster, plans)
    forecasts = predict_briefly(predictor, jobs)
    seconds, fits = forecasts.seconds[:, 1], forecasts.fit_probability
    rows = np.flatnonzero(np.isfinite(seconds) & (fits >= _FITS))
    if len(rows):
        aim = seconds[rows] / fits[rows]  # a plan that does not run costs its time, and another's
        plan = plans[int(rows[simplest(aim, burden(plans.take(rows)))[0]])]
        names = [name for name in (*_SHOWN, "sequence_parallel") if name not in fixed]
        chosen = " ".join(f"{name}={str(getattr(plan, name)).lower()}" for name in names)
        held = f" ({_text(fixed)} given)" if fixed else ""
        among = counted(len(plans), "legal plan")
        return plan, f"{CHOSEN} among {among}{held}: {chosen}"
    if not is_none(forecasts.declined).any():
        reason = str(forecasts.declined[0])
        todo, runs = reason.partition("; ")[2], "give it runs to learn from (--fit RUNS.csv)"
        raise UnsatisfiedError(
            f"{workload.name} on {cluster.name}", f"{predictor.name} declines: {reason}",
            f"{todo if todo.startswith('use ') else runs}, or name another predictor",
        )  # fmt: skip
    if np.isnan(fits).all():
        note, plan = "are at their defaults", _usual(space)
        if job_problem(workload, cluster, plan):
            note, plan = "are the simplest legal ones", plans[int(burden(plans).argmin())]
        return plan, f"{predictor.name} does not predict memory, so open plan fields {note}"
    peaks = forecasts.peak_bytes
    near = int(np.nanargmin(at_probability(peaks, _FITS) / usable_bytes(jobs, forecasts)))
    if set(fixed) >= _DECISIVE:
        return plans[near], ""
    held = f" with {_text(fixed)}" if fixed else ""
    away = fixed.get("offload", "none") != "none" or fixed.get("offload_activations")
    asked = f"a plan for {workload.name} on {cluster.name}{held}"
    # Where the host is what is short, less of the device seems usable than any software leaves.
    if away and usable_bytes(jobs, forecasts)[near] < 0.8 * cluster.device.memory_bytes:
        host = cluster.host_memory_bytes
        size = format_bytes(host) if host else "twice its devices' memory, assumed"
        raise UnsatisfiedError(
            asked, f"what is offloaded does not fit in the memory of a node's host ({size})",
            what_fits() or "offload less, or use machines with more memory or more of them"
            " (zero_stage=3 divides what they hold)",
        )  # fmt: skip
    shown = {name: getattr(plans[near], name) for name in dict.fromkeys((*_SHOWN, *fixed))}
    todo = what_fits() or "use more devices, larger ones, or another batch or sequence length"
    raise UnsatisfiedError(
        asked,
        f"none of {len(plans):,} legal plans fits; the nearest ({plans[near]}) needs"
        f" {format_bytes(peaks[near, 1])} of {format_bytes(cluster.device.memory_bytes)} a device,"
        f" {chance_text('fits', float(fits[near]))} where {_FITS:g} is asked",
        f"{todo}; for its figures all the same: --plan {_text(shown)}",
    )


def _usual(space: Space) -> Plan:
    used = math.prod(int(space.fixed.get(name, 1)) for name in ("tp", "pp", "cp", "partitions"))
    filled = {"dp": max(space.clusters[0].devices // used, 1), **space.fixed}
    return Plan(global_batch=space.global_batches[0], **filled)


def _text(fields: Mapping[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in fields.items())
