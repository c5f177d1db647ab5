"""Comparing: answers side by side: what tells the jobs apart, and how surely one is faster or cheaper."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from forerun import wire
from forerun.advisor.answer import Answer
from forerun.arrays import FloatArray
from forerun.charts import Chart, Series, duration_unit
from forerun.domain import quantiles
from forerun.domain.forecast import capped
from forerun.domain.objective import Objective
from forerun.errors import RequestError
from forerun.units import counted, format_count

MOST_JOBS = 8


def facets_of(answer: Answer) -> dict[str, str]:
    """Return what tells jobs apart, in words by name, the most telling first."""
    job, workload = answer.job, answer.job.workload
    return {
        "workload": workload.name, "cluster": job.cluster.name, "precision": workload.precision,
        "framework": workload.framework or "any framework", "task": workload.task,
        "parameters": format_count(workload.params),
        **{name: f"{size:,}" if (size := getattr(workload, name)) else "" for name in ("seq_len", "image_size")},
        "optimizer": workload.optimizer, "prices": "spot" if answer.estimate.spot else "on demand",
        "length": str(answer.length), "batch": f"{job.plan.global_batch:,}", "plan": str(job.plan),
    }  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """Jobs side by side.

    Attributes:
        names: what tells each job from the others. differs: the facets in which jobs differ.
        best: the position of the best job by `time` and `cost`, of those that fit in memory; left out where none does.
        beats: by `time` and `cost` P(job i is better than job j), (n, n), NaN where not known.
    """

    answers: tuple[Answer, ...]
    names: tuple[str, ...]
    differs: tuple[str, ...]
    best: Mapping[str, int]
    beats: Mapping[str, FloatArray]

    def to_json(self) -> dict[str, Any]:
        """Return the comparison in the wire's shape; positions count from 0."""
        facts = wire.fields_of(self, "names differs best beats")
        jobs = [one.to_json() for one in self.answers]
        return {"schema": wire.SCHEMA, "kind": "comparison", "jobs": jobs, **wire.clean(facts)}

    @property
    def charts(self) -> tuple[Chart, ...]:
        """Bars of the wall time and of the cost, with their bands."""
        wall, dollars = _figures(self.answers).values()
        each, unit = duration_unit(float(np.nanmax(wall, initial=0.0)))
        return tuple(
            Chart(title, x, "", (Series("", "bars", self.names, middle, low, high),))
            for title, x, (low, middle, high) in (("Wall time", unit, (wall / each).T.tolist()),
                                                  ("Cost", "dollars", dollars.T.tolist()))
            if np.isfinite(middle).any()
        )  # fmt: skip

    def plot(self, axes: Any = None) -> Any:
        """Draw the wall times with their bands on matplotlib axes, and return them. Raises MissingExtraError."""
        return self.charts[0].draw(axes)


def _figures(answers: Sequence[Answer]) -> dict[str, FloatArray]:
    """Return quantiles (n, 3) of what jobs are compared by: wall seconds and dollars."""
    names = {"time": "wall_seconds", "cost": "dollars"}
    return {aim: np.array([getattr(a.estimate, n) for a in answers]) for aim, n in names.items()}


def compare(*answers: Answer) -> Comparison:
    """Return answers of two to eight jobs side by side: what differs, which is best, and how surely.

    Jobs share errors (of a device, a workload, links ...), so that one may beat another more surely than their
    bands suggest. The best is among the jobs that fit with the usual confidence.

    Raises:
        RequestError: fewer than two answers, or more than eight.
    """
    check_number(len(answers))
    return side_by_side(answers)


def side_by_side(answers: Sequence[Answer]) -> Comparison:
    """Return what `compare` does, of one answer too: the others of a comparison may be refused."""
    facets = [facets_of(one) for one in answers]
    differs = tuple(name for name in facets[0] if len({each[name] for each in facets}) > 1)
    names, kept = [""] * len(answers), list[str]()
    for facet in differs:  # as few as tell all jobs apart
        if len(set(names)) < len(names):
            tried = [", ".join(filter(None, (*(f[k] for k in kept), f[facet]))) for f in facets]
            if len(set(tried)) > len(set(names)):
                names, kept = tried, [*kept, facet]
    if len(set(names)) < len(names):
        names = [f"{number} {name}".strip() for number, name in zip(count(1), names, strict=False)]
    if len(answers) == 1:
        names = [facets[0]["cluster"]]
    runs = [one.estimate for one in answers]
    causes = dict.fromkeys(name for one in answers for name in one.forecast.causes)
    rho = quantiles.run_correlation(
        [one.job for one in answers],
        {name: np.array([one.forecast.causes.get(name, 0.0) for one in answers]) for name in causes},
        np.array([one.forecast.seconds for one in answers]),
        np.array([run.wall_seconds if run.spot else run.run_seconds for run in runs]),
    )  # fmt: skip
    least = Objective().fit_confidence
    fits = np.array([not run.fit_probability < least for run in runs])  # or it is not known
    unsure = np.array([one.forecast.unmeasured for one in answers])
    beats, best = {}, {}
    for aim, rows in _figures(answers).items():
        beats[aim] = quantiles.probability_less(rows[:, None], rows[None, :], rho)
        beats[aim] = capped(beats[aim], unsure[:, None] | unsure)
        np.fill_diagonal(beats[aim], math.nan)
        medians = np.where(fits & np.isfinite(rows[:, 1]), rows[:, 1], np.inf)
        if np.isfinite(medians).any():
            best[aim] = int(medians.argmin())
    return Comparison(tuple(answers), tuple(names), differs, best, beats)


def check_number(jobs: int) -> None:
    """Raise RequestError for a number of jobs that cannot stand side by side."""
    if 2 <= jobs <= MOST_JOBS:
        return
    found, todo = (
        f"at most {MOST_JOBS} stand side by side",
        "leave some out; `forerun recommend --clusters` ranks any number",
    )
    if jobs < 2:
        found = "there is nothing to compare"
        todo = "give --cluster, --plan or --precision twice, or several workloads; `forerun predict` answers one job"
    raise RequestError(f"a comparison of {counted(jobs, 'job')}", found, todo)
