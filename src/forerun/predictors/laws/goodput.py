"""Goodput: the throughput law of Pollux, seven parameters for each kind of job.

Qiao et al., Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning (OSDI 2021),
section 3.2, as its own code fits it (adaptdl.goodput): passes accumulate gradients, the last of them
overlaps with the reduction. Throughput alone: how many samples a model needs is another question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.domain.plan import PS_ASYNC
from forerun.predictors.laws.fitting import (
    MOST_ROUNDS,
    ColumnRows,
    Segments,
    minima,
    one_step_bootstrap,
)
from forerun.predictors.laws.grouped import (
    Columns,
    GroupedLaws,
    LawForecasts,
    ParametricLaw,
    RunGroup,
    banded,
    doublings,
    interval,
    log_variance,
    percent,
    reach_of,
    stacked,
)
from forerun.predictors.laws.law_rows import LawRows, ResourceReading, Span, spans, step_size

# a_c, b_c: a pass and each of its samples; a_n, b_n: a reduction between nodes, and each device
# beyond two of them; a_r, b_r: the same within a node; gamma: how well both overlap.
PARAMETERS = ("a_c", "b_c", "a_n", "b_n", "a_r", "b_r", "gamma")
A_C, B_C, A_N, B_N, A_R, B_R, GAMMA = range(len(PARAMETERS))
TERMS = ("passes, fixed", "passes, by samples", "exposed reduction")
# Columns of what a worker has, 0 where a row does not state it.
GIVEN = ("speed", "wire")
LEAST_SECONDS, LEAST_GAMMA, MOST_GAMMA = 1e-8, 1.0, 10.0
# No part of a step takes many times the longest step.
MOST_SHARE = 10.0
# An unmeasured level of the network is no faster than the measured one within the node.
SLOWER_BETWEEN = 1.1
# Gamma to start from: sums and near-maxima have minima of their own.
STARTS = (1.2, 3.0)
GAMMA_PULL, GROWTH_PULL = 1e-3, 1e-2
# Standard deviations of the priors: of logs of times, and of gamma.
PRIOR_SIGMA = np.array([1.5] * 6 + [2.0])
LEAST_SIGMA = 0.02
# A network that no run used: with every run between nodes left out, the networks of others predicted
# it with a median error of 54 %; it counts as so many doublings away.
UNSEEN_SIGMA, UNSEEN_DOUBLINGS = 0.6, 2.0
# The reduction of two devices is a_n or a_r alone, of which the logarithm must still be known.
_LEAST = 1e-12
# Keeps the root of a mean of squares smooth where all errors are 0.
_SMOOTH = 1e-10
_MOST_LOG = 50.0
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Steps(ColumnRows):
    """n steps, each column (n,).

    Attributes:
        micro_batch: samples of a pass; passes: in a step, 1 or more.
        devices: that take part.
        between: 1 where they are on several nodes, evenly or not, else 0.
        speed, rate: of a device and of the network over those of the middle run, 1 where not stated.
    """

    micro_batch: FloatArray
    passes: FloatArray
    devices: FloatArray
    between: FloatArray
    speed: FloatArray
    rate: FloatArray


@dataclass(frozen=True)
class StepParts:
    """Seconds of n steps by part, each (n,): a pass, its reduction, the last pass with it, the step."""

    accumulation: FloatArray
    network: FloatArray
    last: FloatArray
    step: FloatArray


def step_parts(theta: FloatArray, steps: Steps) -> StepParts:
    """Return the seconds of n steps; theta: (7,) or (n, 7), in seconds but for gamma."""
    t = theta.T
    accumulation = (t[A_C] + t[B_C] * steps.micro_batch) / steps.speed
    farther = np.maximum(steps.devices - 2.0, 0.0)
    network = np.where(steps.between > 0, t[A_N] + t[B_N] * farther, t[A_R] + t[B_R] * farther)
    network = np.where(steps.devices > 1, np.maximum(network / steps.rate, _LEAST), 0.0)
    longer = np.maximum(accumulation, network)
    shorter = np.minimum(accumulation, network)
    # (x^g + y^g)^(1/g) without overflow: the longer of both, drawn out.
    last = longer * np.exp(np.log1p((shorter / longer) ** t[GAMMA]) / t[GAMMA])
    return StepParts(accumulation, network, last, (steps.passes - 1.0) * accumulation + last)


def log_slopes(theta: FloatArray, steps: Steps, parts: StepParts) -> FloatArray:
    """Return d log(step) / d (log of the six times, gamma), (n, 7)."""
    t = theta.T
    gamma = t[GAMMA]
    farther = np.maximum(steps.devices - 2.0, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        by_network = np.where(parts.network > 0, (parts.network / parts.last) ** (gamma - 1.0), 0.0)
        share = (parts.network / parts.last) ** gamma
        log_network = np.where(parts.network > 0, np.log(parts.network), 0.0)
    by_pass = (steps.passes - 1.0) + (parts.accumulation / parts.last) ** (gamma - 1.0)
    mixed = (1.0 - share) * np.log(parts.accumulation) + share * log_network
    slopes = np.empty((len(steps), len(PARAMETERS)))
    by_pass, by_network = by_pass / steps.speed, by_network / steps.rate
    between = np.where(steps.between > 0, by_network, 0.0)
    within = by_network - between
    slopes[:, A_C] = by_pass * t[A_C]
    slopes[:, B_C] = by_pass * t[B_C] * steps.micro_batch
    slopes[:, A_N], slopes[:, B_N] = between * t[A_N], between * t[B_N] * farther
    slopes[:, A_R], slopes[:, B_R] = within * t[A_R], within * t[B_R] * farther
    slopes[:, GAMMA] = parts.last * (mixed - np.log(parts.last)) / gamma
    return np.asarray(slopes / parts.step[:, None])


@dataclass(frozen=True)
class TimedSteps(ColumnRows):
    """n steps of one kind and their seconds, (n,); accumulation: of one pass, NaN where not known."""

    steps: Steps
    seconds: FloatArray
    accumulation: FloatArray

    def __len__(self) -> int:
        return len(self.seconds)


@dataclass(frozen=True)
class GoodputCosts:
    """Costs of p kinds: RMSLE(pass) + RMSLE(step) + pulls (adaptdl.goodput, `_obj_fn`).

    Attributes:
        steps, log_seconds, log_passes: rows of all kinds, in their order, (n,).
        known: 1 where seconds of a pass are known, (n,).
        segments: which rows are of which kind.
    """

    steps: Steps
    log_seconds: FloatArray
    log_passes: FloatArray
    known: FloatArray
    segments: Segments

    @classmethod
    def of(cls, kinds: Sequence[TimedSteps]) -> Self:
        """Return the costs of kinds of job."""
        passes = np.concatenate([kind.accumulation for kind in kinds])
        return cls(
            steps=Steps.joined([kind.steps for kind in kinds]),
            log_seconds=np.log(np.concatenate([kind.seconds for kind in kinds])),
            log_passes=np.log(np.where(np.isfinite(passes), passes, 1.0)),
            known=np.isfinite(passes).astype(np.float64),
            segments=Segments(np.array([len(kind) for kind in kinds])),
        )

    def take(self, index: IntArray) -> Self:
        """Return the costs of some kinds."""
        segments, rows = self.segments.take(index)
        return type(self)(
            self.steps.take(rows), self.log_seconds[rows], self.log_passes[rows], self.known[rows],
            segments,
        )  # fmt: skip

    def __call__(self, theta: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return costs (p,), slopes (p, 7) and curvatures (p, 7, 7) at logs of parameters (p, 7)."""
        values = np.exp(theta)
        each = values[self.segments.owner]
        parts = step_parts(each, self.steps)
        slopes = log_slopes(each, self.steps, parts)
        slopes[:, GAMMA] *= each[:, GAMMA]
        of_pass = np.zeros_like(slopes)
        of_pass[:, A_C] = self.known * each[:, A_C] / (parts.accumulation * self.steps.speed)
        of_pass[:, B_C] = self.known - of_pass[:, A_C]
        errors = np.log(parts.step) - self.log_seconds
        also = (np.log(parts.accumulation) - self.log_passes) * self.known
        terms = (
            self._root(errors, slopes, np.ones_like(errors)),
            self._root(also, of_pass, self.known),
            _pulls(theta, values),
        )
        cost, slope, curvature = (sum(term[1:], term[0]) for term in zip(*terms, strict=True))
        return cost, slope, curvature

    def _root(
        self, errors: FloatArray, slopes: FloatArray, counts: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return roots of mean squares of each kind's rows, their slopes, and curvatures above theirs.

        A root lies below the parabola through it that a mean of squares makes, so that a step to
        the bottom of that parabola never raises it.
        """
        sums, k = self.segments.sums, slopes.shape[1]
        count = np.maximum(sums(counts), 1.0)
        root = np.sqrt(sums(errors**2) / count + _SMOOTH)
        weight = 1.0 / (count * root)
        outer = (slopes[:, :, None] * slopes[:, None, :]).reshape(len(slopes), -1)
        curvature = (sums(outer) * weight[:, None]).reshape(-1, k, k)
        return root, sums(errors[:, None] * slopes) * weight[:, None], curvature


def _pulls(theta: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the pulls on p kinds' parameters, their slopes and curvatures."""
    p, k = theta.shape
    slope, curvature = np.zeros((p, k)), np.zeros((p, k, k))
    gamma = values[:, GAMMA]
    cost = GAMMA_PULL * (gamma - 1.0) ** 2
    slope[:, GAMMA] = 2 * GAMMA_PULL * (gamma - 1.0) * gamma
    curvature[:, GAMMA, GAMMA] = 2 * GAMMA_PULL * gamma**2
    for a, b in ((A_N, B_N), (A_R, B_R)):
        pull = GROWTH_PULL * np.exp(2 * np.minimum(theta[:, b] - theta[:, a], _MOST_LOG))
        cost = cost + pull
        slope[:, b] += 2 * pull
        slope[:, a] -= 2 * pull
        for i, j, sign in ((a, a, 1.0), (b, b, 1.0), (a, b, -1.0), (b, a, -1.0)):
            curvature[:, i, j] += 4 * sign * pull
    return cost, slope, curvature


@dataclass(frozen=True)
class GoodputFit:
    """Parameters of p kinds (p, 7), which of them runs determine (p, 7), and convergence (p,)."""

    theta: FloatArray
    free: BoolArray
    converged: BoolArray


def fitted_kinds(kinds: Sequence[TimedSteps]) -> GoodputFit:
    """Return the parameters of each kind of job, all fitted at once."""
    starts = [_start(kind) for kind in kinds]
    start, free = (np.repeat(np.array(of), len(STARTS), axis=0) for of in zip(*starts, strict=True))
    gamma = np.tile(np.log(STARTS), len(kinds))
    start[:, GAMMA] = np.where(free[:, GAMMA], gamma, start[:, GAMMA])
    longest = np.repeat([kind.seconds.max() for kind in kinds], len(STARTS))
    lower, upper = np.full_like(start, np.log(LEAST_SECONDS)), np.empty_like(start)
    upper[:] = np.log(MOST_SHARE * longest)[:, None]
    lower[:, GAMMA], upper[:, GAMMA] = np.log(LEAST_GAMMA), np.log(MOST_GAMMA)
    lower, upper = np.where(free, lower, start), np.where(free, np.maximum(upper, start), start)
    found = minima(
        GoodputCosts.of([k for k in kinds for _ in STARTS]), start, lower, upper, rounds=MOST_ROUNDS
    )
    best = found.cost.reshape(-1, len(STARTS)).argmin(axis=1)
    best += np.arange(0, len(start), len(STARTS))
    theta, free = np.exp(found.theta[best]), free[best]
    for outer, inner in ((A_N, A_R), (B_N, B_R)):
        slower = np.maximum(theta[:, outer], SLOWER_BETWEEN * theta[:, inner])
        theta[:, outer] = np.where(free[:, outer], theta[:, outer], slower)
    return GoodputFit(theta, free, found.converged[best])


def _start(kind: TimedSteps) -> tuple[FloatArray, BoolArray]:
    """Return logs of parameters to start from, (7,), and which of them the runs determine.

    A parameter without runs stays at its optimistic bound, and with one micro-batch a pass is half
    fixed and half by samples (adaptdl.goodput, `fit_perf_params`).
    """
    steps, seconds, accumulation = kind.steps, kind.seconds, kind.accumulation
    many, between, known = steps.devices > 1, steps.between > 0, np.isfinite(accumulation)
    per_pass = np.where(known, accumulation, seconds / steps.passes) * steps.speed
    pass_seconds = float(np.median(per_pass[known]) if known.any() else 0.7 * per_pass.min())
    theta = np.full(len(PARAMETERS), LEAST_SECONDS)
    free = np.ones(len(PARAMETERS), dtype=bool)
    theta[A_C] = 0.5 * pass_seconds
    theta[B_C] = 0.5 * pass_seconds / float(np.median(steps.micro_batch))
    free[A_C] = len(np.unique(steps.micro_batch)) > 1
    for a, b, rows in ((A_N, B_N, many & between), (A_R, B_R, many & ~between)):
        free[a] = rows.any()
        free[b] = len(np.unique(steps.devices[rows])) > 1
        rest = seconds - steps.passes * pass_seconds / steps.speed
        rest = (np.maximum(rest, 0.1 * seconds) * steps.rate)[rows]
        theta[a] = float(np.median(rest)) if free[a] else LEAST_SECONDS
        theta[b] = 0.05 * theta[a] if free[b] else LEAST_SECONDS
    free[GAMMA] = many.any()
    theta[GAMMA] = LEAST_GAMMA
    return np.log(np.maximum(theta, LEAST_SECONDS)), free


@dataclass(frozen=True, kw_only=True)
class GoodputLaw(ParametricLaw):
    """Pollux's parameters of one kind of job, in seconds but for gamma.

    The covariance is of (logs of the six times, gamma).

    Attributes:
        free: 1 for parameters that runs determine; the others are at an optimistic bound, (7,).
        speeds, wires: logs of the least and most speed of a device, see `LawRows.log_speed`, and GB/s
            of the network that runs state; None where most state none.
    """

    free: FloatArray
    speeds: Span | None = None
    wires: Span | None = None

    parameters = PARAMETERS

    def formula(self, quantity: str) -> str:
        """Return the law with units and intervals."""
        text = [interval(v, *pair) for v, pair in zip(self.theta, self.intervals, strict=True)]
        steps = f"steps x ({self.size or 'one'} / global_batch of them) " * (quantity != "step")
        speed = wire = ""
        if self.speeds is not None:
            speed = f" (over the speed of a device / {np.exp(sum(self.speeds) / 2):.3g})"
        if self.wires is not None:
            wire = f" (over GB/s of the network / {np.exp(sum(self.wires) / 2):.3g})"
        within, between = (
            f"{text[a]} s + {text[b]} s x (devices - 2) {where}"
            + ("" if self.free[a] else " (no run: an optimistic prior)")
            for where, a, b in (("within a node", A_R, B_R), ("between nodes", A_N, B_N))
        )
        return (
            f"{steps}(passes - 1) C + (C^g + N^g)^(1/g), C = {text[A_C]} s + {text[B_C]} s a sample x "
            f"micro_batch{speed}, N = {within}; {between}{wire}, g = {text[GAMMA]}"
        )

    def limit(self) -> str:
        """Return what a step at the most devices is spent on, and what doublings would bring."""
        most = self.machines[1]
        counts = np.array([most, 2 * most, 4 * most])
        between = np.ones(3) if self.bounds["nodes"][1] > 1 else np.array([0.0, 1.0, 1.0])
        between = between * self.free[A_N]  # where nothing is known of several nodes, of one
        micro = float(np.sqrt(np.prod(self.bounds["micro_batch"])))
        one = np.ones(3)
        parts = step_parts(self.theta, Steps(micro * one, one, counts, between, one, one))
        exposed = 1.0 - parts.accumulation / parts.step
        where = f" at {micro:.3g} samples a device" if self.size == "micro_batch" else ""
        kept = ", ".join(
            f"{percent(1.0 - share)} at {count:g}"
            for share, count in zip(exposed, counts, strict=True)
        )
        what = "the reduction" if exposed[0] > 0.5 else "computing"
        return (
            f"{what} takes most of a step at {most:g} devices{where}; scaling efficiency is {kept}"
        )


@dataclass(frozen=True)
class Goodput(GroupedLaws[GoodputLaw]):
    """step = (passes - 1) C + (C^g + N^g)^(1/g), C = a_c + b_c micro_batch.

    N is 0 on one device, a_r + b_r (devices - 2) within a node and a_n + b_n (devices - 2) on
    several nodes, however uneven the placement: of an uneven one only that it leaves its node
    counts, as in Pollux. An epoch or a run is its steps, dataset_size / global_batch of them; an
    unknown number of epochs is part of the parameters then.

    Runs that differ in the cores of a worker or in the rate of the network are of one law: passes go
    with the prior speed of the cores (`LawRows.log_speed`), the reduction between nodes with the
    rate. Pollux has neither.

    Where runs have a sync_time_s, the rest of their step determines C. A parameter without runs stays
    at an optimistic prior (a free growth with devices, a network between nodes little slower than
    within one); the band is wide there.
    """

    name = "goodput"
    law = GoodputLaw
    terms = TERMS
    least_points = 3
    needed = (
        f"at least {least_points} runs that differ in devices, nodes or micro_batch, on two numbers "
        "of devices or more"
    )
    also_measured = ("sync_time_s",)
    apart = False

    @property
    def point_columns(self) -> tuple[str, ...]:
        """Columns in which runs must differ."""
        micro = "size" if self.quantity == "step" else "micro_batch"
        return ("devices", "nodes", "passes", micro, *GIVEN)

    def size_of(self, rows: LawRows) -> str:
        """Return micro_batch for steps, where runs state it; what epochs or runs go through."""
        return step_size(rows, self.quantity)

    def columns(self, rows: LawRows) -> dict[str, FloatArray]:
        """Return devices, nodes and passes of n jobs, and of an epoch or a run its batches."""
        columns = {
            "devices": np.where(rows.machines > 0, rows.machines, np.nan),
            "nodes": np.where(np.isnan(rows.placements.nodes), 1.0, rows.placements.nodes),
            "passes": rows.accumulation,
            "together": np.where(rows.sync == PS_ASYNC, np.nan, 1.0),
            "speed": np.nan_to_num(np.exp(rows.log_speed)),
            "wire": np.nan_to_num(np.exp(rows.log_wire)),
        }
        if self.quantity != "step":
            micro = rows.size("micro_batch")
            batch = rows.size("global_batch")
            implied = micro * rows.replicas * rows.accumulation
            columns["micro_batch"] = micro
            columns["global_batch"] = np.where(np.isnan(batch), implied, batch)
        return columns

    def missing(self, column: str) -> str:
        """Return why a job is declined that does not state a column."""
        if column == "together":
            return "the row says no step that workers take together (its servers are asynchronous)"
        return super().missing(column)

    def fitted(self, groups: Sequence[RunGroup]) -> list[GoodputLaw]:
        """Return the law of each group of runs, all fitted at once."""
        kept, kinds, given = [], [], []
        for group in groups:
            index = np.zeros(len(group.seconds), dtype=np.int64)
            spanned = [spans(_log_of(group.columns, name), index, 1) for name in GIVEN]
            ambiguous = [one.ambiguous for one in _readings(group.columns, index, spanned)]
            part = group.take(np.flatnonzero(~(ambiguous[0] | ambiguous[1])))
            index = index[: len(part.seconds)]
            kinds.append(self._timed(part, _readings(part.columns, index, spanned)))
            kept.append(part)
            given.append((spanned[0][0], spanned[1][0]))
        fit = fitted_kinds(kinds)
        return [
            self._law(part, kind, fit, i, *span)
            for i, (part, kind, span) in enumerate(zip(kept, kinds, given, strict=True))
        ]

    def _law(
        self, group: RunGroup, kind: TimedSteps, fit: GoodputFit, i: int,
        speeds: Span | None, wires: Span | None,
    ) -> GoodputLaw:  # fmt: skip
        theta, free = fit.theta[i], fit.free[i]
        parts = step_parts(theta, kind.steps)
        errors = np.log(kind.seconds) - np.log(parts.step)
        slopes = log_slopes(theta, kind.steps, parts) * free
        draws = one_step_bootstrap(slopes, errors, PRIOR_SIGMA)
        logs = np.concatenate([np.log(theta[:GAMMA]), theta[GAMMA:]])
        intervals = np.quantile(logs + draws, (0.05, 0.95), axis=0).T
        intervals[:GAMMA] = np.exp(intervals[:GAMMA])
        intervals[GAMMA] = np.clip(intervals[GAMMA], LEAST_GAMMA, MOST_GAMMA)
        spent = int(np.count_nonzero(free & (theta > 2 * LEAST_SECONDS)))  # none at a bound
        micro = kind.steps.micro_batch
        notes = []
        if not fit.converged[i]:
            notes.append("the search did not converge; the best parameters found are kept")
        if not free[A_N] and not free[A_R]:
            notes.append("no run has several devices, so that nothing is known of the reduction")
        if not free[A_C]:
            notes.append("all runs have one micro-batch: half of a pass is taken to grow with it")
        return GoodputLaw(
            theta=theta, covariance=draws.T @ draws / len(draws), intervals=intervals,
            free=free.astype(np.float64), reach=reach_of(errors, spent, LEAST_SIGMA),
            bounds={
                **group.bounds("devices", "nodes"),
                "micro_batch": (float(micro.min()), float(micro.max())),
            },
            size=group.size, runs=len(kind), speeds=speeds, wires=wires, notes=tuple(notes),
        )  # fmt: skip

    def _timed(self, group: RunGroup, given: Sequence[ResourceReading]) -> TimedSteps:
        """Return the steps of one kind, and what is known of their passes."""
        steps, count = self._steps(group.columns, given)
        seconds, sync = group.seconds / count, group.measured["sync_time_s"]
        alone = steps.devices == 1
        # What is not the reduction that was measured is passes.
        reduction = np.where(alone, 0.0, sync if self.quantity == "step" else np.nan)
        passes = np.where(alone | (reduction > 0), seconds - reduction, np.nan) / steps.passes
        return TimedSteps(steps, seconds, np.where(passes > 0, passes, np.nan))

    def _steps(
        self, columns: Columns, given: Sequence[ResourceReading]
    ) -> tuple[Steps, FloatArray]:
        """Return the steps of n jobs, and how many of them each job has, (n,)."""
        between = (columns["nodes"] > 1).astype(np.float64)
        if self.quantity == "step":
            micro, count = columns["size"], np.ones_like(between)
        else:
            micro, count = columns["micro_batch"], columns["size"] / columns["global_batch"]
        if self.quantity == "epoch":
            count = np.ceil(count * (1.0 - _ROUNDING))  # the last step of a pass has what is left
        speed = np.exp(given[0].offset)
        rate = np.where(between > 0, np.exp(given[1].offset), 1.0)
        return Steps(micro, columns["passes"], columns["devices"], between, speed, rate), count

    def evaluate(self, laws: list[GoodputLaw], index: IntArray, columns: Columns) -> LawForecasts:
        """Return seconds, the three terms and doublings of n jobs."""
        given = _readings(
            columns, index, [[law.speeds for law in laws], [law.wires for law in laws]]
        )
        steps, count = self._steps(columns, given)
        theta = stacked(laws, "theta", index)
        parts = step_parts(theta, steps)
        variance = log_variance(laws, index, log_slopes(theta, steps, parts))
        free = stacked(laws, "free", index)
        unseen = np.where(steps.between > 0, free[:, A_N], free[:, A_R]) == 0
        unseen &= steps.devices > 1
        beyond = np.where(unseen, UNSEEN_DOUBLINGS, 0.0)
        beyond = beyond + doublings(laws, index, "devices", steps.devices)
        beyond = beyond + doublings(laws, index, "micro_batch", steps.micro_batch)
        # Nodes go with devices: beyond the measured ones they are counted once.
        beyond = np.maximum(beyond, doublings(laws, index, "nodes", columns["nodes"]))
        for one in given:
            beyond = beyond + one.beyond / np.log(2.0)
            variance = variance + one.unsure**2
        variance = variance + np.where(unseen, UNSEEN_SIGMA**2, 0.0)
        seconds = banded(parts.step, stacked(laws, "reach", index), variance)
        fixed = theta[:, A_C] * steps.passes
        exposed = parts.last - parts.accumulation
        named = np.stack([fixed, parts.step - fixed - exposed, exposed], axis=1)
        return LawForecasts(seconds * count[:, None], named * count[:, None], beyond)


def _log_of(columns: Columns, name: str) -> FloatArray:
    """Return logs of one of `GIVEN`, (n,), NaN where not stated."""
    return np.log(np.where(columns[name] > 0, columns[name], np.nan))


def _readings(
    columns: Columns, index: IntArray, known: Sequence[Sequence[Span | None]]
) -> list[ResourceReading]:
    """Return speed and network of n jobs as their laws read them; known: the span of each law, of both."""
    return [
        ResourceReading.of(_log_of(columns, name), index, of)
        for name, of in zip(GIVEN, known, strict=True)
    ]
