"""LinearScaling: perfect scaling from the nearest measured number of devices; the baseline of all laws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forerun.arrays import FloatArray, IntArray, distinct_rows, group_medians
from forerun.domain.plan import PS_ASYNC
from forerun.predictors.laws.grouped import (
    Columns,
    GroupedLaws,
    Law,
    LawForecasts,
    RunGroup,
    reach_of,
)
from forerun.predictors.laws.law_rows import LawRows

# Repeats of one point differ by this, where runs do not show it; where one run of each point cannot.
LEAST_SIGMA, ONE_SIGMA = 0.03, 0.05
# Twice the work takes between as long and twice as long: a factor of 2 off at most, as a log
# standard deviation a doubling.
WORK_SIGMA = 0.42


@dataclass(frozen=True, kw_only=True)
class LinearLaw(Law):
    """What was measured: devices, work of a device and median seconds, by devices and work, (m, 3)."""

    points: FloatArray

    def __post_init__(self) -> None:
        if self.points.ndim != 2 or self.points.shape[1] != 3 or not len(self.points):
            raise ValueError("a field has another shape")

    def formula(self, quantity: str) -> str:
        """Return the law in words and units."""
        work = f"{self.size} / devices" if self.size else "work of a device"
        devices = ", ".join(f"{count:g}" for count in np.unique(self.points[:, 0]))
        low, high = np.exp([-self.reach[0], self.reach[1]])
        return (
            f"those of the nearest number of devices (of {devices}) and {work} x the ratio of {work} "
            f"(repeats x {low:.3g} to {high:.3g})"
        )


@dataclass(frozen=True)
class LinearScaling(GroupedLaws[LinearLaw]):
    """seconds = measured seconds x (size / devices) / (measured size / devices).

    Measured at the nearest number of devices, and there at the nearest work of a device. Without a size,
    devices share an epoch, a run or an asynchronous step, and each has a step's work of its own.
    """

    name = "linear-scaling"
    law = LinearLaw
    terms = ("shared work",)
    needed = "at least 1 run"
    one_count_suffices = True
    prior_sigma = 0.15
    most_sigma = 0.8  # a reduction between nodes can cost more than a doubling saves

    def columns(self, rows: LawRows) -> dict[str, FloatArray]:
        """Return which jobs' devices share work that no row sizes."""
        shared = (rows.sync == PS_ASYNC) | (self.quantity != "step")
        return {"shared": shared.astype(np.float64)}

    def works_alone(self, law: LinearLaw) -> bool:
        """Return whether each device has a step's work of its own."""
        return not law.size and law.bounds["shared"][1] == 0

    def fitted(self, groups: Sequence[RunGroup]) -> list[LinearLaw]:
        """Return the law of each group of runs."""
        return [self._law(group) for group in groups]

    def _law(self, group: RunGroup) -> LinearLaw:
        places = group.columns["devices"], _work(group.columns, group.size)
        distinct, index = distinct_rows(places)
        seconds = group_medians(group.seconds, index, len(distinct)).mean(axis=0)
        logs = np.log(group.seconds) - np.log(seconds)[index]
        spent = min(len(distinct), len(logs) - 1)
        reach = reach_of(logs, spent, LEAST_SIGMA if spent < len(logs) - 1 else ONE_SIGMA)
        return LinearLaw(points=np.column_stack([distinct, seconds]), reach=reach)

    def evaluate(self, law: LinearLaw, columns: Columns) -> LawForecasts:
        """Return seconds and doublings of n jobs."""
        devices, work = columns["devices"], _work(columns, law.size)
        found = np.empty((len(devices), 3))
        counts = np.unique(law.points[:, 0])
        nearest = _nearest(counts, devices)
        for i in np.unique(nearest).tolist():
            here = law.points[law.points[:, 0] == counts[i]]
            found[nearest == i] = here[_nearest(here[:, 1], work[nearest == i])]
        away = np.abs(np.log2(work / found[:, 1]))
        beyond = np.abs(np.log2(devices / found[:, 0])) + away
        middle = found[:, 2] * work / found[:, 1]
        return law.forecasts(middle[:, None], (WORK_SIGMA * away) ** 2, beyond)


def _work(columns: Columns, size: str) -> FloatArray:
    devices = columns["devices"]
    alone = np.where(columns["shared"] > 0, 1.0 / devices, 1.0)
    return columns["size"] / devices if size else alone


def _nearest(known: FloatArray, wanted: FloatArray) -> IntArray:
    middles = np.sqrt(known[1:] * known[:-1])
    return np.searchsorted(middles, wanted, side="left").astype(np.int64)
