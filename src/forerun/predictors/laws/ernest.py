"""Ernest: time by the work a machine has and the number of machines, learned from a few runs.

seconds = theta0 + theta1 size / machines + theta2 log(machines) + theta3 machines, theta >= 0
(Venkataraman et al., Ernest: Efficient Performance Prediction for Large-Scale Advanced Analytics,
NSDI 2016, equation 1): fixed work, work that machines share, a reduction over a tree, and what every
machine adds for one that talks to all. It knows one workload on one kind of machine at a time, and of a
plan nothing but the devices and the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from forerun.arrays import FloatArray, IntArray
from forerun.predictors.laws.fitting import bootstrapped
from forerun.predictors.laws.grouped import (
    Columns,
    GroupedLaws,
    LawForecasts,
    ParametricLaw,
    RunGroup,
    banded,
    doublings,
    interval,
    log_variance,
    percent,
    reach_of,
    stacked,
)
from forerun.predictors.laws.law_rows import SIZES, LawRows
from forerun.tables import Jobs

TERMS = ("fixed", "shared work", "tree reduction", "all to one")
# Repeats on one machine differ by 1-2 %, so that a law through its runs is no surer than that.
LEAST_SIGMA = 0.02
# Columns, relative to their largest, that differ by less than this are one; a term is part of
# what cannot be told apart from this weight on.
_COLLINEAR, _PRESENT = 1e-6, 0.05


@dataclass(frozen=True, kw_only=True)
class ErnestLaw(ParametricLaw):
    """Four terms of one kind of job.

    theta: seconds; seconds that one machine takes for a unit of size; seconds; seconds a machine.
    bounds: of devices, and of the share size / devices.
    """

    parameters = TERMS

    def formula(self, quantity: str) -> str:
        """Return the law in words, units and intervals, without the terms that are 0."""
        reach = [self.reach_of(i) for i in range(len(TERMS))]
        fixed, shared, tree, line = (
            f"{interval(value, max(value - wide, 0.0), value + wide)} s"
            for value, wide in zip(self.theta, reach, strict=True)
        )
        work = f"{shared} a sample x {self.size}" if self.size else shared
        texts = [fixed, f"{work} / machines", f"{tree} x log(machines)", f"{line} x machines"]
        terms = [text for text, value in zip(texts, self.theta, strict=True) if value > 0]
        return " + ".join(terms) or "0 s"

    def limit(self) -> str:
        """Return what limits scaling at the most machines measured, and what doublings bring."""
        few, most = self.machines
        if few == most:
            return f"all runs are on {most:g} machines, so nothing is known of scaling"
        size = (self.bounds["share"][0] or 1.0) * most
        counts = np.array([most, 2 * most, 4 * most])
        parts = self.theta * features(size, counts)
        total = parts.sum(axis=1)
        if not (total > 0).all():
            return "it says nothing of scaling"
        top = int(np.argmax(parts[0]))
        lead = f"at {most:g} machines {percent(float(parts[0, top] / total[0]))} is {TERMS[top]}"
        gain = total[0] / total
        return (
            f"{lead}{', which more machines shorten' if top == 1 else ''}; the same work on "
            f"{counts[1]:g} is {gain[1]:.2f} and on {counts[2]:g} {gain[2]:.2f} times as fast"
        )


def features(size: ArrayLike, machines: ArrayLike) -> FloatArray:
    """Return the four terms of n jobs, (n, 4), or (4,) of one: 1, size/machines, log, machines."""
    m = np.asarray(machines, dtype=np.float64)
    share = np.asarray(size, dtype=np.float64) / m
    return np.stack([np.ones_like(share), share, np.log(m), m * np.ones_like(share)], axis=-1)


def fitted_law(size: FloatArray, machines: FloatArray, seconds: FloatArray, name: str) -> ErnestLaw:
    """Return the law of n runs, its intervals by a bootstrap of the residuals.

    Args:
        size, machines, seconds: positive and finite, (n,).
        name: the column that `size` comes from.
    """
    x = features(size, machines)
    theta, covariance, logs = bootstrapped(x, seconds)
    share = size / machines
    return ErnestLaw(
        theta=theta,
        covariance=covariance,
        reach=reach_of(logs, int(np.count_nonzero(theta)), LEAST_SIGMA),
        bounds={
            "devices": (float(machines.min()), float(machines.max())),
            "share": (float(share.min()), float(share.max())),
        },
        size=name,
        runs=len(seconds),
        notes=_notes(x),
    )


def _notes(x: FloatArray) -> tuple[str, ...]:
    """Return which terms n runs cannot tell apart; x is (n, 4)."""
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
    """seconds = theta . [1, size / machines, log(machines), machines], theta >= 0.

    Machines are devices. The size is what the timed work goes through: the dataset of an epoch or
    of a whole run, the global batch of a step (the dataset where runs state no batch, or change
    the dataset alone).
    """

    name = "ernest"
    law = ErnestLaw
    terms = TERMS
    least_points = 3  # fewer say too little of a law whose terms cannot be negative
    needed = (
        f"at least {least_points} runs that differ in devices or in size, on two numbers of devices "
        "or more"
    )

    def columns(self, rows: LawRows) -> dict[str, FloatArray]:
        """Return the devices of n jobs; the size is that of the law."""
        return {"devices": np.where(rows.machines > 0, rows.machines, np.nan)}

    def fitted(self, groups: Sequence[RunGroup]) -> list[ErnestLaw]:
        """Return the law of each group of runs."""
        return [
            fitted_law(g.columns["size"], g.columns["devices"], g.seconds, g.size) for g in groups
        ]

    def evaluate(self, laws: list[ErnestLaw], index: IntArray, columns: Columns) -> LawForecasts:
        """Return seconds, the four terms and doublings of n jobs."""
        x = features(columns["size"], columns["devices"])
        parts = stacked(laws, "theta", index) * x
        middle = parts.sum(axis=1)
        # Machines and the work of a machine are counted apart, and added.
        beyond = doublings(laws, index, "devices", x[:, 3])
        beyond = beyond + doublings(laws, index, "share", x[:, 1])
        with np.errstate(divide="ignore", invalid="ignore"):
            variance = log_variance(laws, index, x) / middle**2
        return LawForecasts(banded(middle, stacked(laws, "reach", index), variance), parts, beyond)

    def linear_features(self, jobs: Jobs) -> FloatArray:
        """Return the four terms of n jobs, (n, 4), in which the law is linear; NaN where not stated.

        The size of a job is that of its law; where it has none, the usual size of what is
        predicted, or 1 where the job states none.
        """
        rows = self._rows(jobs)
        size = self._sizes(rows, self._chosen(rows))
        for name in (*SIZES[self.quantity], ""):
            size = np.where(np.isnan(size), rows.size(name), size)
        return features(size, self.columns(rows)["devices"])
