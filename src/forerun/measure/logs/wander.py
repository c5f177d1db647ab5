"""Wander: how a job's speed drifts of its own accord, and where its mean over the rest may lie.

The log of a step's seconds is taken as a level, flicker noise and white noise. Flicker (1/f) noise
is what the speed of real machines shows (benchmarks/results/eta-*): means of neighbouring blocks
differ as much for long blocks as for short ones, so that more steps do not make the mean as sure as
they would if the steps varied independently, and a short log cannot show how far off a long rest
will be. Its generalized covariance is -c ln|t - s|; over two neighbouring blocks of any length it
gives the Allan variance 2 ln(2) c (D. W. Allan, Proc. IEEE 54(2), 1966; J. A. Barnes et al., IEEE
Trans. Instrum. Meas. 20(2), 1971, table II). The mean of the rest is the universal kriging of it
(N. Cressie, Statistics for Spatial Data, 1993, eq. 3.4.2), where each known change of speed is a
fixed effect, averaged over what the log leaves open of the two variances, by their restricted
likelihood (H. D. Patterson, R. Thompson, Biometrika 58, 1971) and a prior of what jobs do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray

BLOCKS = 120  # that a log's intervals are joined to
# The prior of the flicker's Allan deviation: a log-normal law, by its median and the spread of its log.
_FLICKER_MEDIAN, _FLICKER_SPREAD = 0.05, 1.3
_FLICKERS = np.geomspace(0.001, 1.5, 25)
# White variance of a block over the flicker's Allan variance; the white deviation's prior, alike.
_RATIOS = np.geomspace(0.03, 1e4, 12)
_WHITE_MEDIAN, _WHITE_SPREAD = 0.05, 1.5
# Of the whole: the least that a block, or what is ahead, is taken to be. Less is no share of a job, and
# is lost where places are told apart.
_NARROWEST = 1e-7
_FARTHEST = 8.0  # spreads of a draw
_FREEDOM = 4.0  # degrees of freedom: how much the speed wanders changes on the way, too


@dataclass(frozen=True, eq=False)
class Stretch:
    """Blocks of steady intervals in order (n,).

    Attributes:
        begin, end: where each lies, in steps that were worked off.
        logs: the log of its mean seconds of a step.
    """

    begin: FloatArray
    end: FloatArray
    logs: FloatArray

    def __len__(self) -> int:
        return len(self.logs)

    @cached_property
    def _factors(self) -> list[FloatArray]:
        """Lower factors of the covariance over the Allan variance, one (n, n) for each ratio."""
        flicker = self._flicker(self.begin, self.end)
        white = np.mean(self.end - self.begin) / (self.end - self.begin)
        return [
            np.linalg.cholesky(flicker + np.diag(float(ratio) * white)).astype(np.float64)
            for ratio in _RATIOS
        ]

    def _flicker(self, begin: FloatArray, end: FloatArray) -> FloatArray:
        """Return the covariance of each block's mean with that of blocks (m,): (n, m)."""
        cells = _integrals(self.begin, self.end, begin, end) / np.outer(
            self.end - self.begin, end - begin
        )
        return np.asarray((self._constant - cells) / (2 * np.log(2)))

    @property
    def _constant(self) -> float:
        """What is added to -ln|t - s|: it changes no contrast, and makes a covariance of it.

        Above the log of a segment's logarithmic capacity, a quarter of its length, is enough.
        """
        return 1.0 + float(np.log(self.end[-1] - self.begin[0]))

    def likelihood(self, cuts: Sequence[int]) -> float:
        """Return the log of the greatest likelihood with changes of level at these blocks.

        The variances are those of the prior's range that fit best.
        """
        best = -np.inf
        for ratio, factor in zip(_RATIOS, self._factors, strict=True):
            whitened = _solved(factor, np.column_stack([self.logs, _levels(len(self), cuts)]))
            rest = _rest(whitened[:, 0], whitened[:, 1:])
            n = len(self)
            fits = -0.5 * (n * np.log(_FLICKERS**2) + rest / _FLICKERS**2) - _log_det(factor)
            best = max(best, float(np.max(fits + _prior(ratio))))
        return best

    def mean_of_rest(
        self, cuts: Sequence[int], ahead: float, rng: np.random.Generator, draws: int
    ) -> FloatArray:
        """Return draws of the mean of logs over the next steps (draws,).

        Args:
            cuts: blocks at which the level changed.
            ahead: how many steps, above 0.
            rng, draws: of the draws.
        """
        levels, last = _levels(len(self), cuts), np.ones(1 + len(cuts))
        end = self.end[-1:]
        ahead = max(ahead, _NARROWEST * float(end[0] - self.begin[0]))
        cross = self._flicker(end, end + ahead)[:, 0]
        alone = -float(_integrals(end, end + ahead, end, end + ahead)[0, 0]) / ahead**2
        own = (self._constant + alone) / (2 * np.log(2))
        weights, means, variances = [], [], []
        free = len(self) - levels.shape[1]
        for ratio, factor in zip(_RATIOS, self._factors, strict=True):
            solved = _solved(factor, np.column_stack([self.logs, cross, levels]))
            logs, across, design = solved[:, 0], solved[:, 1], solved[:, 2:]
            normal = design.T @ design
            level = np.linalg.solve(normal, design.T @ logs)
            rest = logs - design @ level
            bias = last - design.T @ across
            white = ratio * float(np.mean(self.end - self.begin)) / ahead
            means.append(float(last @ level + across @ rest))
            variances.append(
                float(own - across @ across + bias @ np.linalg.solve(normal, bias)) + white
            )
            known = -0.5 * (free * np.log(_FLICKERS**2) + float(rest @ rest) / _FLICKERS**2)
            known -= _log_det(factor) + 0.5 * np.linalg.slogdet(normal)[1]
            weights.append(known + _prior(ratio))
        weight = np.exp(np.array(weights) - np.max(weights)).ravel()
        chosen = rng.choice(len(weight), draws, p=weight / weight.sum())
        ratio_of, flicker_of = np.divmod(chosen, len(_FLICKERS))
        spread = _FLICKERS[flicker_of] * np.sqrt(np.maximum(np.array(variances)[ratio_of], 0.0))
        student = np.clip(rng.standard_t(_FREEDOM, draws), -_FARTHEST, _FARTHEST)
        return np.asarray(np.array(means)[ratio_of] + spread * student)


def stretch_of(steps: FloatArray, seconds: FloatArray) -> tuple[Stretch, NDArray[np.int64]]:
    """Return intervals (m,) joined to at most BLOCKS blocks, and the block of each interval (m,)."""
    block = np.arange(len(steps), dtype=np.int64) * min(BLOCKS, len(steps)) // len(steps)
    counted = np.bincount(block, steps).astype(np.float64)
    wide = np.maximum(counted, _NARROWEST * counted.sum())
    end = np.cumsum(wide)
    return Stretch(end - wide, end, np.log(np.bincount(block, seconds) / counted)), block


def _integrals(
    begin: FloatArray, end: FloatArray, other: FloatArray, other_end: FloatArray
) -> FloatArray:
    """Return the integrals of ln|t - s| over blocks (n,) by others (m,): (n, m)."""

    def twice(t: FloatArray) -> FloatArray:
        size = np.maximum(np.abs(t), 1e-300)
        return np.asarray(size**2 * (np.log(size) / 2 - 0.75))

    def between(a: FloatArray, b: FloatArray) -> FloatArray:
        return twice(a[:, None] - b[None, :])

    return (
        between(end, other) - between(end, other_end)
        - between(begin, other) + between(begin, other_end)
    )  # fmt: skip


def _levels(blocks: int, cuts: Sequence[int]) -> FloatArray:
    """Return the fixed effects of a level and its changes, (blocks, 1 + cuts)."""
    at = np.arange(blocks)
    return np.column_stack([np.ones(blocks), *(at >= cut for cut in cuts)]).astype(np.float64)


def _solved(factor: FloatArray, columns: FloatArray) -> FloatArray:
    return np.asarray(np.linalg.solve(factor, columns))


def _rest(values: FloatArray, design: FloatArray) -> float:
    """Return the sum of squares that the best combination of a design's columns leaves."""
    left = values - design @ np.linalg.lstsq(design, values, rcond=None)[0]
    return float(left @ left)


def _log_det(factor: FloatArray) -> float:
    """Return half the log of the determinant of the matrix that a factor is of."""
    return float(np.log(np.diag(factor)).sum())


def _prior(ratio: float) -> FloatArray:
    """Return the log of the prior of each flicker's deviation beside so much white noise."""
    flicker = np.log(_FLICKERS / _FLICKER_MEDIAN) / _FLICKER_SPREAD
    white = np.log(_FLICKERS * np.sqrt(ratio) / _WHITE_MEDIAN) / _WHITE_SPREAD
    return np.asarray(-0.5 * (flicker**2 + white**2))
