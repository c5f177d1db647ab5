"""Comparing: answers side by side: what tells the jobs apart, and how surely one is faster or cheaper."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from forerun import wire
from forerun.advisor.answer import Answer
from forerun.arrays import FloatArray
from forerun.charts import Chart, Series, html_table
from forerun.domain import quantiles
from forerun.domain.objective import Objective
from forerun.errors import RequestError
from forerun.units import SECONDS_PER_HOUR, counted, format_dollars, format_probability, format_seconds

MOST_JOBS = 8
AIMS = ("time", "cost")


def facets_of(answer: Answer) -> dict[str, str]:
    """Return what tells jobs apart, in words by name, the most telling first."""
    job, workload = answer.job, answer.job.workload
    return {
        "workload": workload.name, "cluster": job.cluster.name, "precision": workload.precision,
        "framework": workload.framework or "any framework", "task": workload.task,
        "seq_len": f"{workload.seq_len:,}", "image_size": f"{workload.image_size:,}",
        "optimizer": workload.optimizer, "prices": "spot" if answer.estimate.spot else "on demand",
        "length": str(answer.length), "batch": f"{job.plan.global_batch:,}", "plan": str(job.plan),
    }  # fmt: skip


@dataclass(frozen=True, repr=False)
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
        runs = [one.estimate for one in self.answers]
        return tuple(
            Chart(title, x, "", (Series("", "bars", self.names, middle, low, high),))
            for title, x, (low, middle, high) in (
                ("Wall time", "hours", (np.array([r.wall_seconds for r in runs]) / SECONDS_PER_HOUR).T.tolist()),
                ("Cost", "dollars", np.array([r.dollars for r in runs]).T.tolist()),
            )
            if np.isfinite(middle).any()
        )

    def plot(self, axes: Any = None) -> Any:
        """Draw the wall times with their bands on matplotlib axes, and return them. Raises MissingExtraError."""
        return self.charts[0].draw(axes)

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (name, format_seconds(one.estimate.wall_seconds[1]), format_dollars(one.estimate.dollars[1]),
             format_probability(one.estimate.fit_probability))
            for name, one in zip(self.names, self.answers, strict=True)
        ]  # fmt: skip

    def __repr__(self) -> str:
        jobs = "; ".join(f"{name}: {wall}, {cost}" for name, wall, cost, _ in self._rows())
        return f"Comparison({jobs})"

    def _repr_html_(self) -> str:
        return html_table("forerun", self._rows(), ("job", "wall", "cost", "fits"))


def compare(*answers: Answer) -> Comparison:
    """Return answers of two to eight jobs side by side: what differs, which is best, and how surely.

    Jobs share errors (of a device, a workload, links ...), so that one may beat another more surely than their
    bands suggest. The best is among the jobs that fit with the usual confidence.

    Raises:
        RequestError: fewer than two answers, or more than eight.
    """
    check_number(len(answers))
    facets = [facets_of(one) for one in answers]
    differs = tuple(name for name in facets[0] if len({each[name] for each in facets}) > 1)
    names, kept = [""] * len(answers), list[str]()
    for facet in differs:  # as few as tell all jobs apart
        if len(set(names)) < len(names):
            tried = [", ".join([*(f[k] for k in kept), f[facet]]) for f in facets]
            if len(set(tried)) > len(set(names)):
                names, kept = tried, [*kept, facet]
    if len(set(names)) < len(names):
        names = [f"{number} {name}".strip() for number, name in zip(count(1), names, strict=False)]
    runs = [one.estimate for one in answers]
    causes = {name for one in answers for name in one.forecast.causes}
    rho = quantiles.run_correlation(
        [one.job for one in answers],
        {name: np.array([one.forecast.causes.get(name, 0.0) for one in answers]) for name in causes},
        np.array([one.forecast.seconds for one in answers]),
        np.array([run.wall_seconds if run.spot else run.run_seconds for run in runs]),
    )  # fmt: skip
    figures = dict(zip(AIMS, (np.array([r.wall_seconds for r in runs]),
                              np.array([r.dollars for r in runs])), strict=True))  # fmt: skip
    least = Objective().fit_confidence
    fits = np.array([not run.fit_probability < least for run in runs])  # or it is not known
    beats, best = {}, {}
    for aim, rows in figures.items():
        beats[aim] = quantiles.probability_less(rows[:, None], rows[None, :], rho)
        np.fill_diagonal(beats[aim], math.nan)
        medians = np.where(fits & np.isfinite(rows[:, 1]), rows[:, 1], np.inf)
        if np.isfinite(medians).any():
            best[aim] = int(medians.argmin())
    return Comparison(answers, tuple(names), differs, best, beats)


def check_number(jobs: int) -> None:
    """Raise RequestError for a number of jobs that cannot stand side by side."""
    if jobs < 2:
        raise RequestError(
            f"a comparison of {counted(jobs, 'job')}", "there is nothing to compare",
            "give --cluster, --plan or --precision twice, or several workloads; `forerun predict` answers one job",
        )  # fmt: skip
    if jobs > MOST_JOBS:
        raise RequestError(
            f"a comparison of {jobs} jobs", f"at most {MOST_JOBS} stand side by side",
            "leave some out; `forerun recommend --clusters` ranks any number, and"
            " `forerun predict --table` answers any number",
        )  # fmt: skip
