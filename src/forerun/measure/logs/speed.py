"""Speed: how a job's steady speed wanders, where it changed, and where its mean over the rest may lie.

The log of a step's seconds is a level that may change, flicker noise (1/f), whose Allan variance is the
same at every scale, and white noise, whose variance falls with the scale. A log's own Allan variances,
and a prior, say how likely each pair of the two is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.measure.logs.steady import Intervals
from forerun.units import format_percent

BLOCKS = 120  # that a log's intervals are joined to
# Priors of both deviations: log-normal laws, by their medians and the spreads of their logs.
_FLICKER_MEDIAN, _FLICKER_SPREAD = 0.05, 1.3
_WHITE_MEDIAN, _WHITE_SPREAD = 0.05, 1.5
_FLICKERS, _WHITES = np.geomspace(0.001, 1.5, 40), np.r_[0.0, np.geomspace(0.001, 1.5, 25)]
_RECENT, _WHITE_PART = (
    0.7,
    0.2,
)  # newer blocks count more, the more so the less of the noise is white
_NARROWEST = 1e-7  # least share of the whole that a block, or what is ahead, is taken to be
_FARTHEST = 8.0  # spreads of a draw
_FREEDOM = 4.0  # degrees of freedom: how much the speed wanders changes on the way, too
_SHORTEST = 6  # blocks of a segment
_LEAST_CHANGE = 0.04  # in logs: less is no change that anyone acts upon
_SPREADS = 3.5  # a change of level is larger than so many spreads of the wander
_CLIPPED = 3.0  # spreads: a lone slow interval must not look like a change


def flicker_variance(seen: float, ahead: float) -> float:
    """Return the variance of flicker's mean over the next steps less that over those before.

    In units of the Allan variance: 2 where both are as long.
    """

    def twice(t: float) -> float:  # the second integral of ln t
        return float(t * t * (np.log(t) / 2 - 0.75))

    apart = (twice(seen + ahead) - twice(seen) - twice(ahead)) / (seen * ahead)
    within = twice(seen) / seen**2 + twice(ahead) / ahead**2
    return max((apart - within) / float(np.log(2)), 0.0)


def wander_of(logs: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return Allan variances of flicker (k,), white variances of a block (k,), and how likely each is.

    `logs` are those of blocks of one level, (n,).
    """
    flicker, white = (grid.ravel() ** 2 for grid in np.meshgrid(_FLICKERS, _WHITES))
    likely = -0.5 * (np.log(np.sqrt(flicker) / _FLICKER_MEDIAN) / _FLICKER_SPREAD) ** 2
    size = np.sqrt(np.maximum(white, _FLICKERS[0] ** 2))
    likely -= np.where(white > 0, 0.5 * (np.log(size / _WHITE_MEDIAN) / _WHITE_SPREAD) ** 2, 0.0)
    sums, scale = np.cumsum(np.r_[0.0, logs]), 1
    while 2 * scale <= len(logs):
        means = (sums[scale:] - sums[:-scale]) / scale
        found = 0.5 * float(np.mean((means[scale:] - means[:-scale]) ** 2))
        # Half of the differences that do not overlap: neighbouring scales tell the same, in part.
        count = max(len(logs) / scale - 1, 1.0) / 2
        model = flicker + white / scale
        likely -= 0.5 * count * (np.log(model) + found / model)
        scale *= 2
    weight = np.exp(likely - likely.max())
    return flicker, white, weight / weight.sum()


@dataclass(frozen=True, eq=False)
class SpeedBlocks:
    """Blocks of steady intervals in order (n,).

    Each has so many `steps`; `logs` are those of its mean seconds of a step.
    """

    steps: FloatArray
    logs: FloatArray

    def changes(self) -> list[int]:
        """Return the blocks at which the level changed by more than wander does, in order."""
        from scipy.ndimage import median_filter

        # The spread about a level that may jump, from differences of neighbours.
        apart = np.abs(np.diff(self.logs))
        noise = max(1.4826 * float(np.median(apart)) / np.sqrt(2), 1e-4) if len(apart) else 1e-4
        middle = median_filter(self.logs, 7, mode="nearest")
        logs = np.clip(self.logs, middle - _CLIPPED * noise, middle + _CLIPPED * noise)
        cuts: list[int] = []
        while True:
            found = []  # the gain of a cut, and the cut itself between two others
            for begin, end in pairwise([0, *cuts, len(logs)]):
                for at in range(begin + _SHORTEST, end - _SHORTEST + 1):
                    size = abs(float(logs[begin:at].mean() - logs[at:end].mean()))
                    gain = size**2 * (at - begin) * (end - at) / (end - begin)
                    found.append((gain, at, size, at - begin, end - at))
            if not found:
                return cuts
            _, at, size, before, after = max(found)
            flicker, white, weight = wander_of(_about_levels(logs, sorted([*cuts, at])))
            variance = weight @ flicker * flicker_variance(before, after)
            variance += weight @ white * (1 / before + 1 / after)
            if size < max(_SPREADS * float(np.sqrt(variance)), _LEAST_CHANGE):
                return cuts
            cuts = sorted([*cuts, at])

    def mean_of_rest(
        self, cuts: Sequence[int], ahead: float, rng: np.random.Generator, draws: int
    ) -> FloatArray:
        """Return draws of the mean of logs over the next steps (draws,).

        `cuts` are the blocks at which the level changed; `ahead` is above 0.
        """
        flicker, white, weight = wander_of(_about_levels(self.logs, cuts))
        chosen = rng.choice(len(weight), draws, p=weight)
        flicker, white = flicker[chosen], white[chosen]
        now = slice(max([0, *cuts]), None)
        steps = self.steps[now]
        seen, ahead = float(steps.sum()), max(ahead, _NARROWEST * float(self.steps.sum()))
        age = (steps[::-1].cumsum()[::-1] - steps / 2) / seen
        recent = _RECENT * float(np.mean(flicker / (flicker + _WHITE_PART * white)))
        level = float(np.average(self.logs[now], weights=steps * age**-recent))
        each = float(self.steps.mean())
        variance = flicker * flicker_variance(seen, ahead) + white * each * (1 / seen + 1 / ahead)
        student = np.clip(rng.standard_t(_FREEDOM, draws), -_FARTHEST, _FARTHEST)
        return np.asarray(level + np.sqrt(variance) * student)


def _about_levels(logs: FloatArray, cuts: Sequence[int]) -> FloatArray:
    return np.concatenate([part - part.mean() for part in np.split(logs, cuts)])


def blocks_of(steps: FloatArray, seconds: FloatArray) -> tuple[SpeedBlocks, NDArray[np.int64]]:
    """Return intervals (m,) joined to at most BLOCKS blocks, and the block of each interval (m,)."""
    block = np.arange(len(steps), dtype=np.int64) * min(BLOCKS, len(steps)) // len(steps)
    counted = np.bincount(block, steps).astype(np.float64)
    logs = np.log(np.bincount(block, seconds) / counted)
    return SpeedBlocks(np.maximum(counted, _NARROWEST * counted.sum()), logs), block


@dataclass(frozen=True)
class Segment:
    """A stretch of constant speed.

    Attributes:
        first, last: its intervals, both included.
        begin, end: counts of steps; `begin_s`, `end_s`: the clock.
        step_seconds: mean of a step's steady seconds.
    """

    first: int
    last: int
    begin: float
    end: float
    begin_s: float
    end_s: float
    step_seconds: float


def segments_of(intervals: Intervals) -> tuple[Segment, ...]:
    """Return a log's stretches of constant speed in order; the last one is what the job does now."""
    rows = intervals.steady_rows
    steps, seconds = intervals.steps[rows], intervals.work_seconds[rows]
    blocks, block = blocks_of(steps, seconds)
    cuts = [int(np.searchsorted(block, change)) for change in blocks.changes()]
    cuts = [_sharpened(np.log(seconds / steps), cut, block) for cut in cuts]
    segments = []
    for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        first, last = int(rows[a]), int(rows[b - 1])
        segments.append(Segment(
            first, last,
            float(intervals.end[first] - intervals.steps[first]), float(intervals.end[last]),
            float(intervals.end_s[first] - intervals.seconds[first]),
            float(intervals.end_s[last]), float(seconds[a:b].sum() / steps[a:b].sum()),
        ))  # fmt: skip
    return tuple(segments)


def _sharpened(logs: FloatArray, cut: int, block: NDArray[np.int64]) -> int:
    """Return the interval at which a level changes (logs (n,)) near a cut between two blocks."""
    width = int((block == block[cut]).sum())
    first = max(cut - 2 * width, 0)
    near = logs[first : cut + 2 * width]
    at = np.arange(1, len(near))
    left = np.cumsum(near)[:-1] / at
    right = (near.sum() - left * at) / (len(near) - at)
    return first + int(at[np.argmax(at * (len(near) - at) * (left - right) ** 2)])


def slower_or_faster(before: Segment, after: Segment) -> str:
    """Return a change of speed in words: `50 % slower`."""
    share = after.step_seconds / before.step_seconds - 1
    return f"{format_percent(abs(share))} {'slower' if share > 0 else 'faster'}"
