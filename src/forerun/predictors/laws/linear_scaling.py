"""LinearScaling: perfect scaling from the nearest measured number of devices; the baseline of all laws.

Twice the devices do the same work in half the time, whatever they exchange. A predictor that is worse
than this has learned nothing of scaling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.domain.plan import PS_ASYNC
from forerun.predictors.laws.grouped import (
    Columns,
    GroupedLaws,
    Law,
    LawForecasts,
    RunGroup,
    banded,
    percent,
    reach_of,
    stacked,
)
from forerun.predictors.laws.law_rows import LawRows

# Repeats of one point differ by this, where runs do not show it; where one run of each point cannot.
LEAST_SIGMA, ONE_SIGMA = 0.03, 0.05
# Twice the work takes between as long and twice as long: a factor of 2 off at most, as a log
# standard deviation a doubling.
WORK_SIGMA = 0.42


@dataclass(frozen=True, kw_only=True)
class LinearLaw(Law):
    """What was measured of one kind of job.

    Attributes:
        points: devices, work of a device and median seconds of it, by devices and work, (m, 3).
    """

    points: FloatArray

    def is_sound(self) -> bool:
        """Return whether there are points of three numbers."""
        return self.points.ndim == 2 and self.points.shape[1] == 3 and len(self.points) > 0

    def formula(self, quantity: str) -> str:
        """Return the law in words and units."""
        work = f"{self.size} / devices" if self.size else "work of a device"
        devices = ", ".join(f"{count:g}" for count in np.unique(self.points[:, 0]))
        low, high = np.exp([-self.reach[0], self.reach[1]])
        return (
            f"those of the nearest number of devices (of {devices}) and {work} x the ratio of {work} "
            f"(repeats x {low:.3g} to {high:.3g})"
        )

    def limit(self) -> str:
        """Return how far the runs themselves are from perfect scaling."""
        few, most = self.machines
        if few == most:
            return f"all runs are on {few:g} devices; nothing of scaling was measured"
        logs = np.log(self.points)
        fewest, largest = (logs[logs[:, 0] == end] for end in (logs[0, 0], logs[-1, 0]))
        like = largest[np.abs(fewest[:, 1][:, None] - largest[:, 1]).argmin(axis=1)]
        rates = (fewest[:, 2] - fewest[:, 1]) - (like[:, 2] - like[:, 1])
        return (
            f"nothing limits this law; the runs kept {percent(float(np.exp(np.median(rates))))} of "
            f"perfect scaling from {few:g} to {most:g} devices, and it expects all of it of the next "
            "doublings"
        )


@dataclass(frozen=True)
class LinearScaling(GroupedLaws[LinearLaw]):
    """seconds = measured seconds x (size / devices) / (measured size / devices).

    The measured run is that of the nearest number of devices, and of these the one with the
    nearest work of a device. Where no size is stated an epoch, a run or an asynchronous step is
    shared by all devices, and each device has a step's work of its own.
    """

    name = "linear-scaling"
    law = LinearLaw
    terms = ("shared work",)
    needed = "at least 1 run"
    one_count_suffices = True
    prior_sigma = 0.15
    most_sigma = 0.8  # a reduction between nodes can cost more than a doubling saves

    def columns(self, rows: LawRows) -> dict[str, FloatArray]:
        """Return the devices of n jobs, and which devices share work that no row sizes."""
        shared = (rows.sync == PS_ASYNC) | (self.quantity != "step")
        devices = np.where(rows.machines > 0, rows.machines, np.nan)
        return {"devices": devices, "shared": shared.astype(np.float64)}

    def fitted(self, groups: Sequence[RunGroup]) -> list[LinearLaw]:
        """Return the law of each group of runs."""
        return [self._law(group) for group in groups]

    def _law(self, group: RunGroup) -> LinearLaw:
        work = _work(group.columns, np.full(len(group.seconds), bool(group.size)))
        places = np.stack([group.columns["devices"], work], axis=1)
        distinct, index = np.unique(places, axis=0, return_inverse=True)
        index = index.reshape(-1)
        seconds = np.array([np.median(group.seconds[index == i]) for i in range(len(distinct))])
        logs = np.log(group.seconds) - np.log(seconds)[index]
        spent = min(len(distinct), len(logs) - 1)
        reach = reach_of(logs, spent, LEAST_SIGMA if spent < len(logs) - 1 else ONE_SIGMA)
        return LinearLaw(
            points=np.column_stack([distinct, seconds]), reach=reach, size=group.size,
            bounds=group.bounds("devices"), runs=len(group.seconds),
        )  # fmt: skip

    def evaluate(self, laws: list[LinearLaw], index: IntArray, columns: Columns) -> LawForecasts:
        """Return seconds and doublings of n jobs."""
        sized = np.array([bool(law.size) for law in laws])[index]
        devices, work = columns["devices"], _work(columns, sized)
        found = np.empty((len(index), 3))
        for which in np.unique(index).tolist():
            mine, points = np.flatnonzero(index == which), laws[which].points
            counts = np.unique(points[:, 0])
            nearest = counts[_nearest(counts, devices[mine])]
            for count in np.unique(nearest).tolist():
                here, some = points[points[:, 0] == count], mine[nearest == count]
                found[some] = here[_nearest(here[:, 1], work[some])]
        middle = found[:, 2] * work / found[:, 1]
        away = np.abs(np.log2(work / found[:, 1]))
        beyond = np.abs(np.log2(devices / found[:, 0])) + away
        seconds = banded(middle, stacked(laws, "reach", index), (WORK_SIGMA * away) ** 2)
        return LawForecasts(seconds, middle[:, None], beyond)


def _work(columns: Columns, sized: BoolArray) -> FloatArray:
    """Return the work of one device of n jobs, (n,)."""
    alone = np.where(columns["shared"] > 0, 1.0 / columns["devices"], 1.0)
    return np.where(sized, columns["size"] / columns["devices"], alone)


def _nearest(known: FloatArray, wanted: FloatArray) -> IntArray:
    """Return the position of the number nearest to each wanted one by their ratio; known are in order."""
    middles = np.sqrt(known[1:] * known[:-1])
    return np.searchsorted(middles, wanted, side="left").astype(np.int64)
