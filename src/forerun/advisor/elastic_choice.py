"""Elastic choice: seconds of a step at every configuration of a training from those observed, and the best one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from forerun.arrays import FloatArray
from forerun.measure.elastic.job import Configuration, TrainingJob
from forerun.measure.elastic.scaling import efficiency
from forerun.search.recommending import knee, pareto_front
from forerun.search.scaling import FEWEST, Scale, step_forecasts
from forerun.units import SECONDS_PER_HOUR

_LEAST_GAIN = 0.05  # below which a training stays where it is


def search_points(job: TrainingJob) -> list[Configuration]:
    """Return what a search observes: all configurations (full), the extreme ones (partial), or none.

    For the goodput law, partial adds a middle one, and fewer than three points are no law.
    """
    every = list(job.configurations)
    if job.search != "partial" or len(every) <= FEWEST:
        return [] if job.search == "none" else every
    return [every[i] for i in _scale(every).extremes(middle=job.law == "goodput")]


def forecast_steps(
    law: str, observed: Mapping[Configuration, float], asked: Sequence[Configuration]
) -> FloatArray:
    """Return seconds of a step at n configurations as quantiles (n, 3). See `step_forecasts`."""
    every = [*observed, *(one for one in asked if one not in observed)]
    at, seconds = np.arange(len(observed)), np.array(list(observed.values()))
    found = step_forecasts(law, _scale(every), at, seconds)
    return found[[every.index(one) for one in asked]]


def _scale(configurations: Sequence[Configuration]) -> Scale:
    workers, batch = np.array(configurations, dtype=np.float64).reshape(-1, 2).T
    return Scale(workers, batch, np.zeros(len(workers), dtype=np.int64))


@dataclass(frozen=True)
class Outlook:
    """What n configurations promise.

    Attributes:
        step_seconds: quantiles (n, 3). sample_seconds, sample_dollars: of an effective sample, (n,).
        samples: effective samples that are left, NaN where it is not known.
    """

    configurations: tuple[Configuration, ...]
    step_seconds: FloatArray
    sample_seconds: FloatArray
    sample_dollars: FloatArray
    samples: float

    def score(self, aim: str) -> FloatArray:
        """Return what is minimised, (n,): time, or cost; the knee lies between both."""
        return self.sample_seconds if aim == "time" else self.sample_dollars

    def best(
        self, aim: str, left_seconds: float, left_dollars: float, current: Configuration | None = None,
        pause_seconds: float = 0.0,
    ) -> int:  # fmt: skip
        """Return the best one of those that keep the limits; where none surely does, of all.

        It is the current one where another gains less than 5 %, or less time than the pause of a move takes.
        Raises ValueError where no step time is known.
        """
        known = np.isfinite(self.sample_seconds)
        if not known.any():
            raise ValueError("no step time is known")
        seconds, dollars = self.sample_seconds * self.samples, self.sample_dollars * self.samples
        keeps = known & (seconds <= left_seconds) & (dollars <= left_dollars)
        rows = np.flatnonzero(keeps if keeps.any() else known)
        if aim == "knee":
            rows = rows[pareto_front(self.sample_seconds[rows], self.sample_dollars[rows])]
            return int(rows[knee(self.sample_seconds[rows], self.sample_dollars[rows])])
        best = int(rows[np.argmin(self.score(aim)[rows])])
        if current in self.configurations and (at := self.configurations.index(current)) in rows:
            gain = 1.0 - float(self.score(aim)[best] / self.score(aim)[at])
            if gain < _LEAST_GAIN or gain * seconds[at] < pause_seconds:
                return at
        return best

    def at(self, configuration: Configuration) -> dict[str, float | int] | None:
        """Return what one configuration promises, as plain data; None of one that is not among them."""
        if configuration not in self.configurations:
            return None
        i = self.configurations.index(configuration)
        low, middle, high = (float(value) for value in self.step_seconds[i])
        return {
            "workers": configuration[0], "global_batch": configuration[1], "step_seconds": middle,
            "step_seconds_p05": low, "step_seconds_p95": high,
            "remaining_seconds": float(self.sample_seconds[i] * self.samples),
            "remaining_dollars": float(self.sample_dollars[i] * self.samples),
        }  # fmt: skip


def outlook(
    job: TrainingJob, observed: Mapping[Configuration, float], phi: float, samples: float,
    allowed: Sequence[Configuration],
) -> Outlook:  # fmt: skip
    """Return what the allowed configurations promise at a noise scale phi (samples).

    Without a target the training is so many samples long, of which each counts alike at every batch.
    """
    steps = forecast_steps(job.law, observed, allowed)
    workers, batch = np.array(allowed, dtype=np.float64).reshape(-1, 2).T
    taught = efficiency(batch, job.reference_batch, phi) if job.target else np.ones_like(batch)
    seconds = steps[:, 1] / (batch * taught)
    dollars = seconds * workers * job.dollars_per_worker_hour / SECONDS_PER_HOUR
    return Outlook(tuple(allowed), steps, seconds, dollars, samples)
