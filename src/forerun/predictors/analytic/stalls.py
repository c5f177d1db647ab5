"""Stalls: a second kind of run, whose pipeline waits in every exchange between its stages.

Some runs of one plan take ten times as long as others, and little lies between: each exchange of a
stage with a neighbour then waits about as long, whatever the model, the tensor group or the
micro-batch. It is rare on most plans, usual where a device is so full that its allocator gives
blocks back and asks for them again, and more frequent where replicas reduce whole gradients. So the
error of a forecast is a mixture of two kinds, not one with a wide sigma.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.domain.quantiles import Z95, normal_quantile
from forerun.predictors.analytic.rows import Rows
from forerun.predictors.analytic.stages import micro_batches

BAND = 0.9
RARE = 0.08  # a chance of stalls that a band may leave out
_GRID = np.linspace(0.001, 0.999, 999)
_NORMAL = np.array([normal_quantile(float(p)) for p in _GRID])


@dataclass(frozen=True)
class Stalls:
    """The chance that a step stalls and the seconds that it then loses, each (n,)."""

    chance: FloatArray
    seconds: FloatArray

    def columns(self, sigma: FloatArray) -> dict[str, FloatArray]:
        """Return them for `Forecasts.stalls`, with the log standard deviation of usual runs (n,)."""
        return {"chance": self.chance, "seconds": self.seconds, "sigma": sigma}


def stalls_of(rows: Rows, fit_probability: FloatArray) -> Stalls:
    """Return the stalls of n rows that fit with the given probability, (n,).

    In every micro-batch a stage exchanges activations and gradients with a neighbour: twice at the
    ends of a pipeline, four times inside it. A run is as likely to stall for want of memory as it
    was not to fit: what just fits is what the allocator had to make room for. Beyond that each node
    that joins is one more chance.
    """
    each = rows.software["stall_seconds"] * (rows.plan["pp"] > 1)
    if not each.any():
        return Stalls(np.zeros(len(rows)), each)
    exchanges = np.where(rows.plan["pp"] > 2, 4.0, 2.0)
    soft, others = rows.software, rows.node["nodes"] - 1.0
    one = (1.0 - soft["stall_chance"]) * np.where(
        _whole(rows), 1.0 - soft["whole_stall_chance"], 1.0
    )
    spared = one**others * np.nan_to_num(fit_probability, nan=1.0)
    chance = np.where(each > 0, 1.0 - spared, 0.0)
    return Stalls(chance, each * exchanges * micro_batches(rows))


def _whole(rows: Rows) -> NDArray[np.bool_]:
    """Which rows reduce whole gradients among replicas."""
    return np.asarray((rows.plan["zero_stage"] == 0) & (rows.plan["dp"] > 1))


def mixed(seconds: FloatArray, stalls: Stalls) -> FloatArray:
    """Return the quantiles (n, 3) of the mixture from those of the usual runs (n, 3).

    Where stalls are rarer than `RARE`, the band is the shortest one: it leaves them out and covers
    more of the usual runs instead. Where they are more frequent than what a band may miss, its upper
    edge is the 95 % quantile of the mixture, which lies in the stalls. Between the two nothing holds
    exactly 90 % (there are no runs between usual and stalled ones): the edges go over from one to the
    other by the logarithm, and the band covers hardly less (worst found .893), so that a plan with a
    slightly greater chance has a slightly longer band. The middle stays that of the usual runs:
    it is what a plan can do. How likely a stall is stands beside it (`Forecasts.stalls`), caps the
    probability of keeping a limit (`domain.chances`), and is warned of.
    """
    rows = np.flatnonzero(stalls.chance > 0)
    if not len(rows):
        return seconds
    chance, lost = stalls.chance[rows], stalls.seconds[rows]
    low, middle, high = seconds[rows].T
    down, up, miss = middle / low, high / middle, 1.0 - BAND
    rare = np.minimum(chance, RARE)
    wide = _normal(1.0 - (miss - rare) / 2.0 / (1.0 - rare)) / Z95
    often = np.maximum(chance, miss)
    late = (middle + lost) * up ** (_normal(1.0 - miss / 2.0 / often) / Z95)
    usual = middle * up**wide
    share = np.clip((chance - RARE) / (miss - RARE), 0.0, 1.0)
    over = share * np.log(np.maximum(late / usual, 1.0))
    # The lower edge comes back over as much again, when the stalls are covered already.
    back = np.clip((chance - miss) / miss, 0.0, 1.0)
    found = seconds.copy()
    found[rows, 0] = middle / down ** (wide + back * (1.0 - wide))
    found[rows, 2] = usual * np.exp(over)
    return found


def stalled(error: FloatArray, usual: FloatArray, stalls: Stalls, sigma: FloatArray) -> FloatArray:
    """Return how probable it is that each run stalled, (n,).

    error: log measured over usual seconds, usual: these, (n,); sigma: log standard deviation, (n,).
    """
    shift = np.log1p(stalls.seconds / usual)
    odds = (error**2 - (error - shift) ** 2) / (2.0 * sigma**2)
    prior = np.clip(stalls.chance, 1e-9, 1.0 - 1e-9)
    result: FloatArray = 1.0 / (1.0 + (1.0 - prior) / prior * np.exp(-np.clip(odds, -50.0, 50.0)))
    return np.where(stalls.seconds > 0, result, 0.0)


def _normal(p: FloatArray) -> FloatArray:
    return np.asarray(np.interp(p, _GRID, _NORMAL))
