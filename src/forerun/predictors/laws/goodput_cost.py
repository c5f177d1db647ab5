"""The cost that Pollux's parameters minimise, for many kinds of job at once, with its slopes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from forerun.arrays import FloatArray, IntArray
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

GAMMA_PULL, GROWTH_PULL = 1e-3, 1e-2
# Keeps the root of a mean of squares smooth where all errors are 0.
_SMOOTH = 1e-10
_MOST_LOG = 50.0


@dataclass(frozen=True)
class Timings:
    """n steps of one kind of job and how long they took.

    Attributes:
        steps: what they are made of.
        seconds: of each step, positive, (n,).
        accumulation: seconds of one pass, NaN where it is not known, (n,).
    """

    steps: Steps
    seconds: FloatArray
    accumulation: FloatArray


@dataclass(frozen=True)
class GoodputCosts:
    """Costs of p kinds: RMSLE(pass) + RMSLE(step) + pulls (adaptdl.goodput, `_obj_fn`).

    Attributes:
        steps, log_seconds, log_passes: rows of all kinds, in their order, (n,).
        known: 1 where seconds of a pass are known, (n,).
        first: row at which each kind begins, (p,); a kind has one row at least.
    """

    steps: Steps
    log_seconds: FloatArray
    log_passes: FloatArray
    known: FloatArray
    first: IntArray

    @classmethod
    def of(cls, kinds: Sequence[Timings]) -> Self:
        """Return the costs of kinds of job."""
        passes = np.concatenate([kind.accumulation for kind in kinds])
        lengths = [len(kind.seconds) for kind in kinds]
        return cls(
            steps=Steps.joined([kind.steps for kind in kinds]),
            log_seconds=np.log(np.concatenate([kind.seconds for kind in kinds])),
            log_passes=np.log(np.where(np.isfinite(passes), passes, 1.0)),
            known=np.isfinite(passes).astype(np.float64),
            first=np.cumsum([0, *lengths[:-1]]),
        )

    def take(self, index: IntArray) -> Self:
        """Return the costs of some kinds."""
        ends = np.append(self.first[1:], len(self.log_seconds))
        lengths = (ends - self.first)[index]
        first = np.cumsum(np.append(0, lengths[:-1]))[: len(index)]
        rows = np.repeat(self.first[index] - first, lengths) + np.arange(lengths.sum())
        return type(self)(
            self.steps.take(rows), self.log_seconds[rows], self.log_passes[rows], self.known[rows],
            first,
        )  # fmt: skip

    def __call__(self, theta: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return costs (p,), slopes (p, 7) and curvatures (p, 7, 7) at logs of parameters (p, 7)."""
        ends = np.append(self.first[1:], len(self.log_seconds))
        owner = np.repeat(np.arange(len(self.first)), ends - self.first)
        values = np.exp(theta)
        each = values[owner]
        parts = timed(each, self.steps)
        slopes = log_slopes(each, self.steps, parts)
        slopes[:, GAMMA] *= each[:, GAMMA]
        of_pass = np.zeros_like(slopes)
        of_pass[:, A_C] = self.known * each[:, A_C] / (parts.accumulation * self.steps.speed)
        of_pass[:, B_C] = self.known - of_pass[:, A_C]
        errors = np.log(parts.step) - self.log_seconds
        also = (np.log(parts.accumulation) - self.log_passes) * self.known
        cost, slope, bend = self._roots(errors, slopes, np.ones_like(errors), owner)
        more = self._roots(also, of_pass, self.known, owner)
        pulls = _pulls(theta, values)
        return cost + more[0] + pulls[0], slope + more[1] + pulls[1], bend + more[2] + pulls[2]

    def _roots(
        self, errors: FloatArray, slopes: FloatArray, counts: FloatArray, owner: IntArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return roots of mean squares of each kind's rows, their slopes, and curvatures above theirs.

        A root lies below the parabola through it that a mean of squares makes, so that a step to
        the bottom of that parabola never raises it.
        """
        count = np.maximum(np.add.reduceat(counts, self.first), 1.0)
        root = np.sqrt(np.add.reduceat(errors**2, self.first) / count + _SMOOTH)
        weight = 1.0 / (count * root)
        slope = np.add.reduceat(errors[:, None] * slopes, self.first) * weight[:, None]
        outer = (slopes[:, :, None] * slopes[:, None, :]).reshape(len(slopes), -1)
        bend = np.add.reduceat(outer, self.first) * weight[:, None]
        k = slopes.shape[1]
        return root, slope, bend.reshape(-1, k, k)


def _pulls(theta: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the pulls on p kinds' parameters, their slopes and curvatures."""
    p, k = theta.shape
    slope, bend = np.zeros((p, k)), np.zeros((p, k, k))
    gamma = values[:, GAMMA]
    cost = GAMMA_PULL * (gamma - 1.0) ** 2
    slope[:, GAMMA] = 2 * GAMMA_PULL * (gamma - 1.0) * gamma
    bend[:, GAMMA, GAMMA] = 2 * GAMMA_PULL * gamma**2
    for a, b in ((A_N, B_N), (A_R, B_R)):
        pull = GROWTH_PULL * np.exp(2 * np.minimum(theta[:, b] - theta[:, a], _MOST_LOG))
        cost = cost + pull
        slope[:, b] += 2 * pull
        slope[:, a] -= 2 * pull
        for i, j, sign in ((a, a, 1.0), (b, b, 1.0), (a, b, -1.0), (b, a, -1.0)):
            bend[:, i, j] += 4 * sign * pull
    return cost, slope, bend
