"""GoodputLaw: Pollux's seven parameters of one kind of job, their intervals, and what they say.

The fit of Pollux's seven parameters to many kinds of job at once, and how far they may be off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.predictors.laws.goodput_cost import GoodputCosts, Timings
from forerun.predictors.laws.goodput_step import (
    A_C,
    A_N,
    A_R,
    B_C,
    B_N,
    B_R,
    GAMMA,
    PARAMETERS,
    Steps,
    log_slopes,
    timed,
)
from forerun.predictors.laws.group_words import article, interval, percent
from forerun.predictors.laws.grouping import Answers, banded, doublings, reach_of
from forerun.predictors.laws.many_minima import minima
from forerun.predictors.laws.one_step import one_step_draws
from forerun.predictors.laws.resources import Read, Span

LEAST_SECONDS, LEAST_GAMMA, MOST_GAMMA = 1e-8, 1.0, 10.0
# No part of a step takes many times the longest step.
MOST_SHARE = 10.0
# An unmeasured level of the network is no faster than the measured one within the node.
SLOWER_BETWEEN = 1.1
# Gamma to start from: sums and near-maxima have minima of their own.
STARTS = (1.2, 3.0)
# What is believed of a parameter beside the runs, as a log standard deviation (gamma: as it is).
_PRIOR_SIGMA = np.array([1.5] * 6 + [2.0])


@dataclass(frozen=True)
class Fitted:
    """What a fit found for one kind of job.

    Attributes:
        theta: the seven parameters, (7,).
        draws: of (log of the six times, gamma) about their values, by a bootstrap, (resamples, 7).
        log_errors: log of measured over fitted steps, (n,).
        free: which parameters the runs speak of, (7,).
        converged: whether the search came to rest.
    """

    theta: FloatArray
    draws: FloatArray
    log_errors: FloatArray
    free: NDArray[np.bool_]
    converged: bool


def fitted(timings: Sequence[Timings]) -> list[Fitted]:
    """Return the parameters of each kind of job."""
    begun = [_start(kind) for kind in timings]
    start = np.repeat(np.array([theta for theta, _ in begun]), len(STARTS), axis=0)
    free = np.repeat(np.array([which for _, which in begun]), len(STARTS), axis=0)
    gamma = np.tile(np.log(STARTS), len(timings))
    start[:, GAMMA] = np.where(free[:, GAMMA], gamma, start[:, GAMMA])
    longest = np.repeat([kind.seconds.max() for kind in timings], len(STARTS))
    lower, upper = np.full_like(start, np.log(LEAST_SECONDS)), np.empty_like(start)
    upper[:] = np.log(MOST_SHARE * longest)[:, None]
    lower[:, GAMMA], upper[:, GAMMA] = np.log(LEAST_GAMMA), np.log(MOST_GAMMA)
    lower, upper = np.where(free, lower, start), np.where(free, np.maximum(upper, start), start)
    costs = GoodputCosts.of([kind for kind in timings for _ in STARTS])
    found = minima(costs, start, lower, upper)
    best = found.cost.reshape(-1, len(STARTS)).argmin(axis=1) + np.arange(
        0, len(start), len(STARTS)
    )
    return [
        _result(kind, np.exp(found.theta[i]), free[i], bool(found.converged[i]))
        for kind, i in zip(timings, best.tolist(), strict=True)
    ]


def _result(kind: Timings, theta: FloatArray, free: NDArray[np.bool_], converged: bool) -> Fitted:
    theta = _with_priors(theta, free)
    errors = np.log(kind.seconds) - np.log(timed(theta, kind.steps).step)
    slopes = log_slopes(theta, kind.steps, timed(theta, kind.steps)) * free
    draws = one_step_draws(slopes, errors, _PRIOR_SIGMA)
    return Fitted(theta, draws, errors, free, converged)


def _start(kind: Timings) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Return logs of parameters to start from, (7,), and which of them the runs speak of.

    A parameter without runs stays at its optimistic bound, and with one micro-batch a pass is half
    fixed and half by samples (adaptdl.goodput, `fit_perf_params`).
    """
    steps, seconds, accumulation = kind.steps, kind.seconds, kind.accumulation
    many, between = steps.devices > 1, steps.between > 0
    per_pass = np.where(np.isnan(accumulation), seconds / steps.passes, accumulation) * steps.speed
    pass_seconds = float(np.median(per_pass[~np.isnan(accumulation)])) if (
        np.isfinite(accumulation).any()
    ) else 0.7 * float(per_pass.min())  # fmt: skip
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


def _with_priors(theta: FloatArray, free: NDArray[np.bool_]) -> FloatArray:
    """Return the parameters, an unmeasured network between nodes no faster than that within one."""
    theta = theta.copy()
    for outer, inner in ((A_N, A_R), (B_N, B_R)):
        if not free[outer]:
            theta[outer] = max(theta[outer], SLOWER_BETWEEN * theta[inner])
    return theta


TERMS = ("passes, fixed", "passes, by samples", "exposed reduction")
LEAST_SIGMA = 0.02
# A network that no run used: leaving out every run between nodes, others' networks foretold it
# with a median error of 54 %; it counts as so many doublings away.
UNSEEN_SIGMA, UNSEEN_DOUBLINGS = 0.6, 2.0


@dataclass(frozen=True)
class GoodputLaw:
    """The law of one kind of job.

    Attributes:
        theta: `goodput_step.PARAMETERS`, seconds but for gamma, (7,).
        covariance: of (logs of the six times, gamma), (7, 7).
        intervals: 5 % and 95 % of each parameter by a bootstrap, (7, 2).
        free: 1 for parameters that runs speak of; the others are at an optimistic bound, (7,).
        reach: how far below and above the 5 % and 95 % residual lies, as logs.
        machines, micro_batches, nodes: least and most that a run had.
        size: micro_batch, or the dataset's size of an epoch or a run; "" where none is stated.
        runs: how many taught it.
        speeds, wires: logs of the least and most speed of a device, see `Resources.log_speed`, and GB/s
            of the network that runs state; None where most state none.
        notes: what was noticed while fitting.
    """

    theta: FloatArray
    covariance: FloatArray
    intervals: FloatArray
    free: FloatArray
    reach: tuple[float, float]
    machines: tuple[float, float]
    micro_batches: tuple[float, float]
    nodes: tuple[float, float]
    size: str
    runs: int
    speeds: Span | None = None
    wires: Span | None = None
    notes: tuple[str, ...] = ()

    def formula(self, quantity: str) -> str:
        """Return the law with units and intervals."""
        said = [interval(v, *pair) for v, pair in zip(self.theta, self.intervals, strict=True)]
        passes = f"{said[A_C]} s + {said[B_C]} s a sample x micro_batch"
        lead = f"seconds of {article(quantity)} = "
        if quantity != "step":
            lead += f"steps x ({self.size or 'one'} / global_batch of them) "
        text = f"{lead}(passes - 1) C + (C^g + N^g)^(1/g), C = {passes}"
        if self.speeds is not None:
            text += f" (over the speed of a device / {np.exp(sum(self.speeds) / 2):.3g})"
        levels = (
            ("within a node", A_R, B_R), ("between nodes", A_N, B_N),
        )  # fmt: skip
        networks = [
            f"{said[a]} s + {said[b]} s x (devices - 2) {where}"
            + ("" if self.free[a] else " (no run: an optimistic prior)")
            for where, a, b in levels
        ]
        if self.wires is not None:
            networks[-1] += f" (over GB/s of the network / {np.exp(sum(self.wires) / 2):.3g})"
        return f"{text}, N = {'; '.join(networks)}, g = {said[GAMMA]}"

    def limit(self) -> str:
        """Return what a step at the most devices is spent on, and what doublings would bring."""
        most = self.machines[1]
        counts = np.array([most, 2 * most, 4 * most])
        spread = np.ones(3) if self.nodes[1] > 1 else np.array([0.0, 1.0, 1.0])
        if not self.free[A_N]:
            spread = np.zeros(3)  # nothing is known of several nodes, so that one is spoken of
        micro = float(np.sqrt(self.micro_batches[0] * self.micro_batches[1]))
        parts = timed(
            self.theta, Steps(np.full(3, micro), np.ones(3), counts, spread, np.ones(3), np.ones(3))
        )
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


def fitted_laws(
    timings: Sequence[Timings], nodes: Sequence[FloatArray], sizes: Sequence[str],
    given: Sequence[tuple[Span | None, Span | None]],
) -> list[GoodputLaw]:  # fmt: skip
    """Return the law of each kind of job.

    Args:
        timings: of each kind's runs.
        nodes: that each run of a kind lies on.
        sizes: the column that each law calls its size.
        given: speeds and wires of each, see `GoodputLaw`.
    """
    found = fitted(timings)
    return [_law(*of) for of in zip(found, timings, nodes, sizes, given, strict=True)]


def _law(
    found: Fitted, timings: Timings, nodes: FloatArray, size: str,
    given: tuple[Span | None, Span | None],
) -> GoodputLaw:  # fmt: skip
    steps = timings.steps
    logs = np.concatenate([np.log(found.theta[:GAMMA]), found.theta[GAMMA:]])
    low, high = np.quantile(logs + found.draws, (0.05, 0.95), axis=0)
    intervals = np.stack([low, high], axis=1)
    intervals[:GAMMA] = np.exp(intervals[:GAMMA])
    intervals[GAMMA] = np.clip(intervals[GAMMA], 1.0, MOST_GAMMA)
    return GoodputLaw(
        theta=found.theta,
        covariance=found.draws.T @ found.draws / len(found.draws),
        intervals=intervals,
        free=found.free.astype(np.float64),
        reach=reach_of(found.log_errors, _spent(found.theta, found.free), LEAST_SIGMA),
        machines=(float(steps.devices.min()), float(steps.devices.max())),
        micro_batches=(float(steps.micro_batch.min()), float(steps.micro_batch.max())),
        nodes=(float(nodes.min()), float(nodes.max())),
        size=size,
        runs=len(steps),
        speeds=given[0],
        wires=given[1],
        notes=_notes(found.converged, found.free),
    )


def _spent(theta: FloatArray, free: NDArray[np.bool_]) -> int:
    """Return how many parameters the runs were spent on: those at a bound cost none."""
    return int(np.count_nonzero(free & (theta > 2 * LEAST_SECONDS)))


def _notes(converged: bool, free: NDArray[np.bool_]) -> tuple[str, ...]:
    notes = []
    if not converged:
        notes.append("the search did not come to rest; the best parameters found are kept")
    if not free[A_N] and not free[A_R]:
        notes.append("no run has several devices, so that nothing is known of the reduction")
    if not free[A_C]:
        notes.append("all runs have one micro-batch: half of a pass is taken to grow with it")
    return tuple(notes)


def answers(
    laws: list[GoodputLaw], index: IntArray, steps: Steps, nodes: FloatArray,
    given: Sequence[Read] = (),
) -> Answers:  # fmt: skip
    """Return what laws say of n steps.

    Args:
        laws: those that answer.
        index: which of them each step is answered by, (n,).
        steps: what they are made of.
        nodes: that each lies on, (n,).
        given: what each is given, as its law reads it.
    """
    theta = np.stack([law.theta for law in laws])[index]
    parts = timed(theta, steps)
    slopes = log_slopes(theta, steps, parts)
    spread = np.stack([law.covariance for law in laws])
    variance = np.einsum("ni,nij,nj->n", slopes, spread[index], slopes)
    free = np.stack([law.free for law in laws])[:, [A_R, A_N]][index]
    unseen = np.where(steps.between > 0, free[:, 1], free[:, 0]) == 0
    unseen &= steps.devices > 1
    beyond = np.where(unseen, UNSEEN_DOUBLINGS, 0.0)
    for name, values in (
        ("machines", steps.devices), ("micro_batches", steps.micro_batch), ("nodes", nodes),
    ):  # fmt: skip
        bounds = np.array([getattr(law, name) for law in laws])
        # Nodes go with devices: beyond the measured ones they are counted once.
        more = doublings(bounds, index, values)
        beyond = np.maximum(beyond, more) if name == "nodes" else beyond + more
    for one in given:
        beyond = beyond + one.beyond / np.log(2.0)
        variance = variance + one.unsure**2
    reach = np.array([law.reach for law in laws])[index]
    seconds = banded(parts.step, reach, variance + np.where(unseen, UNSEEN_SIGMA**2, 0.0))
    fixed = theta[:, A_C] * steps.passes
    exposed = parts.last - parts.accumulation
    named = np.stack([fixed, parts.step - fixed - exposed, exposed], axis=1)
    return Answers(seconds, named, beyond)
