"""Ernest: time by the work a machine has and the number of machines, learned from a few runs.

Venkataraman et al., Ernest: Efficient Performance Prediction for Large-Scale Advanced Analytics (NSDI 2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from forerun.arrays import FloatArray
from forerun.predictors.laws.fitting import bootstrapped
from forerun.predictors.laws.grouped import (
    Columns,
    GroupedLaws,
    LawForecasts,
    ParametricLaw,
    RunGroup,
    reach_of,
)
from forerun.predictors.laws.law_rows import SIZES
from forerun.tables import Jobs

TERMS = ("fixed", "shared work", "tree reduction", "all to one")
# Repeats on one machine differ by 1-2 %, so that a law through its runs is no surer than that.
LEAST_SIGMA = 0.02
# Columns, relative to their largest, that differ by less than this are one; a term is part of
# what cannot be told apart from this weight on.
_COLLINEAR, _PRESENT = 1e-6, 0.05


@dataclass(frozen=True, kw_only=True)
class ErnestLaw(ParametricLaw):
    """Seconds by term: fixed, of one machine for a unit of size, by the log of machines, by machines."""

    parameters = ("fixed", "shared", "tree", "line")
    equation = (
        "{fixed} s + {shared} s a sample x {size} / machines + {tree} s x log(machines) + "
        "{line} s x machines"
    )

    def printed(self, theta: FloatArray) -> FloatArray:
        """Return the parameters, none of which is negative."""
        return np.maximum(theta, 0.0)


def features(size: ArrayLike, machines: ArrayLike) -> FloatArray:
    """Return the four terms of n jobs, (n, 4), or (4,) of one: 1, size/machines, log, machines."""
    m = np.asarray(machines, dtype=np.float64)
    share = np.asarray(size, dtype=np.float64) / m
    return np.stack([np.ones_like(share), share, np.log(m), m * np.ones_like(share)], axis=-1)


def _notes(x: FloatArray) -> tuple[str, ...]:
    largest = np.abs(x).max(axis=0)
    _, sizes, rows = np.linalg.svd(x / np.where(largest > 0, largest, 1.0), full_matrices=True)
    sizes = np.append(sizes, np.zeros(len(TERMS) - len(sizes)))
    blind = np.abs(rows[sizes < _COLLINEAR * sizes[0]]).max(axis=0, initial=0.0) > _PRESENT
    # A column of zeros (one machine has no reduction) is told apart from nothing.
    names = [n for n, term, top in zip(TERMS, blind, largest, strict=True) if term and top > 0]
    if len(names) < 2:
        return ()
    return (f"these runs cannot tell {' from '.join(names)}: in all of them they move together",)


@dataclass(frozen=True)
class Ernest(GroupedLaws[ErnestLaw]):
    """seconds = theta . [1, size / machines, log(machines), machines], theta >= 0 (equation 1).

    Machines are devices; the size is the dataset of an epoch or a run, the global batch of a step.
    """

    name = "ernest"
    law = ErnestLaw
    terms = TERMS
    least_points = 3  # fewer say too little of a law whose terms cannot be negative
    needed = (
        f"at least {least_points} runs that differ in devices or in size, on two numbers of devices "
        "or more"
    )

    def fitted(self, groups: Sequence[RunGroup]) -> list[ErnestLaw]:
        """Return the law of each group of runs."""
        return [self._law(group) for group in groups]

    def _law(self, group: RunGroup) -> ErnestLaw:
        x = features(group.columns["size"], group.columns["devices"])
        theta, covariance, logs = bootstrapped(x, group.seconds)
        reach = reach_of(logs, int(np.count_nonzero(theta)), LEAST_SIGMA)
        bounds = {"share": (float(x[:, 1].min()), float(x[:, 1].max()))}
        return ErnestLaw(
            theta=theta, covariance=covariance, reach=reach, bounds=bounds, notes=_notes(x)
        )

    def evaluate(self, law: ErnestLaw, columns: Columns) -> LawForecasts:
        """Return seconds, the four terms and doublings of n jobs."""
        x = features(columns["size"], columns["devices"])
        parts = x * law.theta
        with np.errstate(divide="ignore", invalid="ignore"):
            variance = law.variance(x) / parts.sum(axis=1) ** 2
        return law.forecasts(parts, variance, law.doublings(devices=x[:, 3], share=x[:, 1]))

    def linear_features(self, jobs: Jobs) -> FloatArray:
        """Return the four terms of n jobs, (n, 4), by their law's size, else the usual; NaN if unstated."""
        rows = self._rows(jobs)
        chosen, laws = self._chosen(rows), [*self.laws.values()]
        size = np.full(len(jobs), np.nan)
        for i in np.unique(chosen[chosen >= 0]).tolist():
            size[chosen == i] = rows.size(laws[i].size)[chosen == i]
        for name in (*SIZES[self.quantity], ""):
            size = np.where(np.isnan(size), rows.size(name), size)
        return features(size, rows.machines)
