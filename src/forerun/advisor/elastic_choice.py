"""Elastic choice: seconds of a step at every configuration of a training from those observed, and the best one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from forerun.arrays import FloatArray
from forerun.catalog import load_catalog
from forerun.errors import RequestError
from forerun.measure.elastic.job import Configuration, TrainingJob
from forerun.measure.elastic.scaling import efficiency
from forerun.predictors.convergence import Convergence
from forerun.search.recommending import knee, pareto_front
from forerun.search.scaling import FEWEST, Scale, step_forecasts
from forerun.tables import Table, read_table
from forerun.units import SECONDS_PER_HOUR
from forerun.workloads.rows import jobs_from_table, runs_from_table

_TRAINING = "training"
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
    alike = np.zeros(len(workers), dtype=np.int64)
    return Scale(workers, batch, alike, alike)


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
    allowed: Sequence[Configuration], curve: Convergence | None = None, current: int = 0,
) -> Outlook:  # fmt: skip
    """Return what the allowed configurations promise at a noise scale phi (samples).

    Without a target the training is so many samples long, of which each counts alike at every batch. curve: says what a
    batch is worth in place of the noise; samples are then those that are left by the noise at the current batch.
    """
    steps = forecast_steps(job.law, observed, allowed)
    workers, batch = np.array(allowed, dtype=np.float64).reshape(-1, 2).T
    taught = np.ones_like(batch)
    if job.target is not None:
        taught = efficiency(batch, job.reference_batch, phi)
        if curve is not None:
            here = np.array([current or job.reference_batch], dtype=np.float64)
            taught, told = (worth(curve, one, job.reference_batch)[0] for one in (batch, here))
            samples *= float(told[0] / efficiency(here, job.reference_batch, phi)[0])
    seconds = steps[:, 1] / (batch * taught)
    dollars = seconds * workers * job.dollars_per_worker_hour / SECONDS_PER_HOUR
    return Outlook(tuple(allowed), steps, seconds, dollars, samples)


def known_curve(job: TrainingJob) -> tuple[Convergence | None, tuple[str, ...]]:
    """Return samples until the target by batch, by the runs that the job knows, and what is doubtful; None where it knows none.

    Raises:
        RequestError: the table cannot be read, or none of its runs is of the job and its learning-rate rule and
            reached one target, at a stated batch.
    """
    if not job.known:
        return None, ()
    table = read_table(Path(job.known))
    mine = table.texts("workload") == job.entry
    mine &= np.isin(table.texts("learning_rate_rule"), ("", job.rule))
    targets = table.texts("target")
    if len(set(targets[mine].tolist())) > 1:
        mine &= targets == str(job.target)
    rows = table.take(mine)
    named = rows.with_columns(workload=np.full(len(rows), _TRAINING, dtype=object))
    runs = runs_from_table(named, load_catalog())
    if not len(rows) or not Convergence.speaks_of(runs):
        raise RequestError(
            f"the known runs of {job.entry}, {job.known}",
            f"none of them is of this workload with its learning-rate rule ({job.rule}) and target, and states"
            " global_batch and samples_to_target",
            "give a table of its runs that reached the target, or leave out `known`",
        )  # fmt: skip
    curve = Convergence().fit(runs)
    every = np.array(job.global_batch, dtype=np.float64)
    return curve, worth(curve, every, job.reference_batch)[1]


def worth(
    curve: Convergence, batch: FloatArray, reference: float
) -> tuple[FloatArray, tuple[str, ...]]:
    """Return what a sample teaches at n batches, relative to one at the reference batch, (n,), and what is doubtful.

    Raises RequestError where the curve does not answer.
    """
    asked = np.append(batch, reference)
    rows = Table.from_columns({"workload": [_TRAINING] * len(asked), "global_batch": asked})
    samples, reasons, doubts = curve.samples(jobs_from_table(rows, load_catalog()))
    if not np.isfinite(samples[:, 1]).all():
        why = next(reason for reason in reasons.tolist() if reason)
        raise RequestError("the worth of a batch by known runs", why, "give runs of one target")
    return np.asarray(samples[-1, 1] / samples[:-1, 1]), tuple(dict.fromkeys(filter(None, doubts)))
