"""GoodputLaw: Pollux's seven parameters of one kind of job, their intervals, and what they say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.predictors.laws.goodput_cost import Timings
from forerun.predictors.laws.goodput_fit import LEAST_SECONDS, MOST_GAMMA, Fitted, fitted
from forerun.predictors.laws.goodput_step import (
    A_C,
    A_N,
    A_R,
    B_C,
    B_N,
    B_R,
    GAMMA,
    Steps,
    log_slopes,
    timed,
)
from forerun.predictors.laws.group_words import article, interval, percent
from forerun.predictors.laws.grouping import Answers, banded, doublings, reach_of
from forerun.predictors.laws.resources import Read, Span

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

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
