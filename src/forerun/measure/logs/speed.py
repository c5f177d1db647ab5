"""Speed: where a job's steady speed changed, by segments of constant mean log time of a step.

Binary segmentation: the split that explains most is taken while its gain is above what noise of
the same correlation would explain (a Schwarz-like penalty), and its size matters to a person.

Wander: how a job's speed drifts of its own accord, and where its mean over the rest may lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.measure.logs.steady import Intervals
from forerun.units import format_percent, format_seconds

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
class SpeedBlocks:
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
            columns = np.column_stack([self.logs, _levels(len(self), cuts)])
            whitened = np.linalg.solve(factor, columns).astype(np.float64)
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
            solved = np.linalg.solve(factor, np.column_stack([self.logs, cross, levels]))
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


def blocks_of(steps: FloatArray, seconds: FloatArray) -> tuple[SpeedBlocks, NDArray[np.int64]]:
    """Return intervals (m,) joined to at most BLOCKS blocks, and the block of each interval (m,)."""
    block = np.arange(len(steps), dtype=np.int64) * min(BLOCKS, len(steps)) // len(steps)
    counted = np.bincount(block, steps).astype(np.float64)
    wide = np.maximum(counted, _NARROWEST * counted.sum())
    end = np.cumsum(wide)
    return SpeedBlocks(end - wide, end, np.log(np.bincount(block, seconds) / counted)), block


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


_SHORTEST = 4  # intervals of a segment
_LEAST_CHANGE = 0.04  # in logs: less is no change that anyone acts upon
_PENALTY = 8.0  # times the log of the count: a few false splits in a hundred noisy logs
_POINTS = 600  # intervals that are looked at one by one; more are joined
_GAIN = 2.0  # times the log of the count: what a change adds to the log of the likelihood of drift
_CLIPPED = 3.0  # spreads: a lone slow interval must not look like a change


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


@dataclass(frozen=True)
class Speeds:
    """A log's segments in order; the last one is what the job does now."""

    segments: tuple[Segment, ...]

    @property
    def now(self) -> Segment:
        """The newest segment."""
        return self.segments[-1]

    @property
    def change(self) -> float:
        """Seconds of a step now over those before; 1 where the speed never changed."""
        if len(self.segments) < 2:
            return 1.0
        return self.segments[-1].step_seconds / self.segments[-2].step_seconds

    def words(self, unit: str) -> list[str]:
        """Return what to say of each change."""
        texts = []
        for before, after in zip(self.segments[:-1], self.segments[1:], strict=True):
            share = after.step_seconds / before.step_seconds - 1
            word = "slower" if share > 0 else "faster"
            texts.append(
                f"from {unit[:-1]} {before.end:,.6g} on, {unit} take"
                f" {format_seconds(after.step_seconds)}, {format_percent(abs(share))} {word}"
            )
        return texts


def speeds_of(intervals: Intervals) -> Speeds:
    """Return the segments of a log's steady intervals."""
    rows = np.flatnonzero(intervals.steady)
    if not len(rows):
        rows = np.arange(len(intervals))
    groups = (
        np.array_split(rows, _POINTS)
        if len(rows) > _POINTS
        else [rows[i : i + 1] for i in range(len(rows))]
    )
    seconds = np.array([intervals.work_seconds[g].sum() for g in groups])
    steps = np.array([intervals.steps[g].sum() for g in groups])
    cuts = _likely(_cuts(np.log(seconds / steps)), steps, seconds)
    segments = []
    for a, b in zip([0, *cuts], [*cuts, len(groups)], strict=True):
        first, last = int(groups[a][0]), int(groups[b - 1][-1])
        segments.append(Segment(
            first, last,
            float(intervals.end[first] - intervals.steps[first]), float(intervals.end[last]),
            float(intervals.end_s[first] - intervals.seconds[first]),
            float(intervals.end_s[last]), float(seconds[a:b].sum() / steps[a:b].sum()),
        ))  # fmt: skip
    return Speeds(tuple(segments))


def _cuts(logs: FloatArray) -> list[int]:
    """Return where segments of constant mean begin, without the first, in order."""
    n = len(logs)
    if n < 2 * _SHORTEST:
        return []
    # The spread about a level that may jump, from differences of neighbours.
    noise = max(1.4826 * float(np.median(np.abs(np.diff(logs)))) / np.sqrt(2), 1e-4)
    middle = _rolling_median(logs, 3)
    values = np.clip(logs, middle - _CLIPPED * noise, middle + _CLIPPED * noise)
    # By how much more the mean of neighbours varies than if they were independent.
    rest = values - _rolling_median(values, 10)
    scale = float(rest @ rest)
    correlation = float(np.clip(rest[1:] @ rest[:-1] / scale, 0.0, 0.9)) if scale > 0 else 0.0
    threshold = _PENALTY * np.log(n) * noise**2 * (1 + correlation) / (1 - correlation)
    cuts: list[int] = []
    waiting = [(0, n)]
    while waiting:
        a, b = waiting.pop()
        gain, at = _best_split(values[a:b])
        if gain <= threshold:
            continue
        at += a
        cuts.append(at)
        waiting += [(a, at), (at, b)]
    return _large(values, sorted(cuts))


def _likely(cuts: list[int], steps: FloatArray, seconds: FloatArray) -> list[int]:
    """Return the cuts that drift does not explain as well, leaving out the least likely first."""
    if not cuts:
        return []
    stretch, block = blocks_of(steps, seconds)
    kept = {int(block[cut]): cut for cut in cuts if block[cut] > 0}
    least = _GAIN * np.log(len(stretch))
    likelihood = stretch.likelihood(list(kept))
    while kept:
        without = {at: stretch.likelihood([k for k in kept if k != at]) for at in kept}
        weakest = max(without, key=lambda at: without[at])
        if likelihood - without[weakest] >= least:
            break
        likelihood = without[weakest]
        del kept[weakest]
    return sorted(kept.values())


def _rolling_median(values: FloatArray, half: int) -> FloatArray:
    """Return the median of each value (n,) and up to `half` neighbours on each side, (n,)."""
    half = min(half, (len(values) - 1) // 2)
    padded = np.pad(values, half, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1)
    return np.asarray(np.median(windows, axis=1))


def _best_split(values: FloatArray) -> tuple[float, int]:
    """Return the gain of the best split of values (n,), in sums of squares, and where it is."""
    n = len(values)
    if n < 2 * _SHORTEST:
        return 0.0, 0
    at = np.arange(_SHORTEST, n - _SHORTEST + 1)
    sums = np.cumsum(values)
    left, right = sums[at - 1] / at, (sums[-1] - sums[at - 1]) / (n - at)
    gains = at * (n - at) / n * (left - right) ** 2
    best = int(np.argmax(gains))
    return float(gains[best]), int(at[best])


def _large(values: FloatArray, cuts: list[int]) -> list[int]:
    """Return the cuts whose change matters, joining the segments of the others, smallest first."""
    while cuts:
        edges = [0, *cuts, len(values)]
        means = [values[a:b].mean() for a, b in pairwise(edges)]
        changes = np.abs(np.diff(means))
        least = int(np.argmin(changes))
        if changes[least] >= _LEAST_CHANGE:
            return cuts
        del cuts[least]
    return []
