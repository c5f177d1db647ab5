"""LinearScaling: perfect scaling from the nearest measured number of devices; the floor of all laws.

Twice the devices do the same work in half the time, whatever they have to tell one another. What
predicts worse than this has learned nothing of scaling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.domain.plan import PS_ASYNC
from forerun.predictors.laws.group_words import article, percent
from forerun.predictors.laws.grouped import GroupedLaws
from forerun.predictors.laws.grouping import Answers, Columns, Group, banded, reach_of
from forerun.predictors.laws.law_rows import LawRows

# Repeats of one point differ by this, where runs do not show it.
LEAST_SIGMA = 0.03
# One run, or one of each point, does not show what repeats differ by.
ONE_SIGMA = 0.05
# Twice the work takes between as long and twice as long: a factor of 2 off at most, as a log
# standard deviation a doubling.
WORK_SIGMA = 0.42
# Between the keys of two numbers of devices: more than logarithms of work can differ by.
_STRIDE = 1000.0


@dataclass(frozen=True)
class LinearLaw:
    """What was measured of one kind of job.

    Attributes:
        points: devices, work of a device and median seconds of it, by devices and work, (m, 3).
        reach: how far below and above the median repeats lie, as logs.
        size: the column that work is a share of, "" where none is stated.
        runs: how many taught it.
        notes: what was noticed while fitting.
    """

    points: FloatArray
    reach: tuple[float, float]
    size: str
    runs: int
    notes: tuple[str, ...] = ()

    @property
    def machines(self) -> tuple[float, float]:
        """Fewest and most devices that a run had."""
        return float(self.points[0, 0]), float(self.points[-1, 0])

    def formula(self, quantity: str) -> str:
        """Return the law in words and units."""
        work = f"{self.size} / devices" if self.size else "work of a device"
        devices = ", ".join(f"{count:g}" for count in np.unique(self.points[:, 0]))
        low, high = np.exp([-self.reach[0], self.reach[1]])
        return (
            f"seconds of {article(quantity)} = those of the nearest number of devices (of "
            f"{devices}) and {work} x the ratio of {work} (repeats x {low:.3g} to {high:.3g})"
        )

    def limit(self) -> str:
        """Return how far the runs themselves are from perfect scaling."""
        few, most = self.machines
        if few == most:
            return f"all runs are on {few:g} devices; nothing of scaling was measured"
        kept = percent(self._kept())
        return (
            f"nothing limits this law; the runs kept {kept} of perfect scaling from {few:g} to "
            f"{most:g} devices, and it expects all of it of the next doublings"
        )

    def _kept(self) -> float:
        """Return how much slower work went on the fewest devices than like work on the most."""
        logs = np.log(self.points)
        few, most = (logs[logs[:, 0] == end] for end in (logs[0, 0], logs[-1, 0]))
        like = most[np.abs(few[:, 1][:, None] - most[:, 1]).argmin(axis=1)]
        rates = (few[:, 2] - few[:, 1]) - (like[:, 2] - like[:, 1])
        return float(np.exp(np.median(rates)))


@dataclass(frozen=True)
class LinearScaling(GroupedLaws[LinearLaw]):
    """seconds = measured seconds x (size / devices) / (measured size / devices).

    The measured run is that of the nearest number of devices, and of these the one with the
    nearest work of a device. Where no size is stated an epoch, a run or an asynchronous step is
    shared by all devices, and each device has a step's work of its own.
    """

    name = "linear-scaling"
    terms = ("shared work",)
    needed = "at least 1 run"
    one_number_speaks = True
    prior_sigma = 0.15
    most_sigma = 0.8  # a reduction between nodes can cost more than a doubling saves

    def columns(self, rows: LawRows) -> dict[str, FloatArray]:
        """Return the devices of n jobs, and which devices share work that no row sizes."""
        shared = (rows.sync == PS_ASYNC) | (self.quantity != "step")
        devices = np.where(rows.machines > 0, rows.machines, np.nan)
        return {"devices": devices, "shared": shared.astype(np.float64)}

    def group_law(self, group: Group) -> LinearLaw:
        """Return the law of the runs of one kind."""
        work = self._work(group.columns, np.full(len(group.seconds), bool(group.size)))
        places = np.stack([group.columns["devices"], work], axis=1)
        distinct, index = np.unique(places, axis=0, return_inverse=True)
        index = index.reshape(-1)
        seconds = np.array([np.median(group.seconds[index == i]) for i in range(len(distinct))])
        logs = np.log(group.seconds) - np.log(seconds)[index]
        spent = min(len(distinct), len(logs) - 1)
        reach = reach_of(logs, spent, LEAST_SIGMA if spent < len(logs) - 1 else ONE_SIGMA)
        points = np.column_stack([distinct, seconds])
        return LinearLaw(points, reach, group.size, len(group.seconds))

    @staticmethod
    def _work(columns: Columns, sized: NDArray[np.bool_]) -> FloatArray:
        """Return the work of one device of n jobs, (n,)."""
        alone = np.where(columns["shared"] > 0, 1.0 / columns["devices"], 1.0)
        return np.where(sized, columns["size"] / columns["devices"], alone)

    def answers(self, laws: list[LinearLaw], index: IntArray, columns: Columns) -> Answers:
        """Return seconds and doublings of n jobs."""
        sized = np.array([bool(law.size) for law in laws])[index]
        devices, work = columns["devices"], self._work(columns, sized)
        points = np.concatenate([law.points for law in laws])
        which = _nearest(laws, index, np.log(devices), np.log(work))
        found = points[which]
        middle = found[:, 2] * work / found[:, 1]
        away = np.abs(np.log2(work / found[:, 1]))
        beyond = np.abs(np.log2(devices / found[:, 0])) + away
        reach = np.array([law.reach for law in laws])[index]
        return Answers(banded(middle, reach, (WORK_SIGMA * away) ** 2), middle[:, None], beyond)

    def law_of(self, entry: Mapping[str, Any]) -> LinearLaw:
        """Return a law from its saved fields."""
        points = np.array(entry["points"], dtype=float)
        if points.ndim != 2 or points.shape[1] != 3 or not len(points):
            raise ValueError("a law has points of devices, work and seconds")
        reach = (float(entry["reach"][0]), float(entry["reach"][1]))
        notes = tuple(entry["notes"])
        return LinearLaw(points, reach, str(entry["size"]), int(entry["runs"]), notes)


def _nearest(
    laws: list[LinearLaw], index: IntArray, log_devices: FloatArray, log_work: FloatArray
) -> IntArray:
    """Return the position among all laws' points of the one nearest to each job, (n,).

    First by devices, then by work; of two equally near ones the smaller.
    """
    points = np.log(np.concatenate([law.points[:, :2] for law in laws]))
    owner = np.repeat(np.arange(len(laws)), [len(law.points) for law in laws])
    count = _closest(owner * _STRIDE + points[:, 0], index * _STRIDE + log_devices)
    # All points of one law and number of devices are a run of their own, in the order of work.
    starts = np.append(True, (np.diff(owner) > 0) | (np.diff(points[:, 0]) > 0))
    group = np.cumsum(starts) - 1
    return _closest(group * _STRIDE + points[:, 1], group[count] * _STRIDE + log_work)


def _closest(keys: FloatArray, wanted: FloatArray) -> IntArray:
    """Return the position of the key nearest to each wanted one; keys are in order, (n,)."""
    above = np.clip(np.searchsorted(keys, wanted), 1, max(len(keys) - 1, 1))
    below = above - 1
    above = np.minimum(above, len(keys) - 1)
    nearer = keys[above] - wanted < wanted - keys[below]
    return np.where(nearer, above, below)
