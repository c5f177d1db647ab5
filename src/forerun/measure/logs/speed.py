"""Speed: where a job's steady speed changed, by segments of constant mean log time of a step.

Binary segmentation: the split that explains most is taken while its gain is above what noise of
the same correlation would explain (a Schwarz-like penalty), and its size matters to a person.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from forerun.arrays import FloatArray
from forerun.measure.logs.steady import Intervals
from forerun.measure.logs.wander import stretch_of
from forerun.units import format_percent, format_seconds

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
        said = []
        for before, after in zip(self.segments[:-1], self.segments[1:], strict=True):
            share = after.step_seconds / before.step_seconds - 1
            word = "slower" if share > 0 else "faster"
            said.append(
                f"from {unit[:-1]} {before.end:,.6g} on, {unit} take"
                f" {format_seconds(after.step_seconds)}, {format_percent(abs(share))} {word}"
            )
        return said


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
    noise = _noise(logs)
    values = _clipped(logs, noise)
    threshold = _PENALTY * np.log(n) * noise**2 * _inflation(values)
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
    stretch, block = stretch_of(steps, seconds)
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


def _noise(logs: FloatArray) -> float:
    """Return the standard deviation about a level that may jump, from differences of neighbours."""
    differences = np.abs(np.diff(logs))
    robust = 1.4826 * float(np.median(differences)) / np.sqrt(2)
    return float(max(robust, 1e-4))


def _clipped(logs: FloatArray, noise: float) -> FloatArray:
    """Return logs (n,) within a few spreads of their neighbourhood's median."""
    half = min(3, (len(logs) - 1) // 2)
    windows = np.lib.stride_tricks.sliding_window_view(
        np.pad(logs, half, mode="edge"), 2 * half + 1
    )
    middle = np.median(windows, axis=1)
    return np.clip(logs, middle - _CLIPPED * noise, middle + _CLIPPED * noise)


def _inflation(values: FloatArray) -> float:
    """Return how much more the mean of neighbours varies than if they were independent."""
    half = min(10, (len(values) - 1) // 2)
    windows = np.lib.stride_tricks.sliding_window_view(
        np.pad(values, half, mode="edge"), 2 * half + 1
    )
    rest = values - np.median(windows, axis=1)
    scale = float(rest @ rest)
    if scale <= 0:
        return 1.0
    correlation = float(np.clip(rest[1:] @ rest[:-1] / scale, 0.0, 0.9))
    return (1 + correlation) / (1 - correlation)


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
