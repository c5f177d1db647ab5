"""ErnestLaw: four terms for one kind of work on one kind of machine, with bootstrapped bands.

seconds = theta0 + theta1 size / machines + theta2 log(machines) + theta3 machines, theta >= 0
(Venkataraman et al., Ernest, NSDI 2016, equation 1): fixed work, work that machines share, a
reduction over a tree, and what every machine adds for one that talks to all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from forerun.arrays import FloatArray, IntArray
from forerun.predictors.laws.group_words import article, interval, percent
from forerun.predictors.laws.grouping import Answers, banded, doublings, reach_of
from forerun.predictors.laws.nnls import nnls, nnls_many

TERMS = ("fixed", "shared work", "tree reduction", "all to one")
# Points (size, machines) that differ: fewer say too little of a law whose terms cannot be negative.
LEAST_POINTS = 3
RESAMPLES = 200
SEED = 0
# Repeats on one machine differ by 1-2 %, so that a law through its runs is no surer than that.
LEAST_SIGMA = 0.02
# A ratio of measured to fitted beyond this is a row that the law does not describe at all.
_MOST_LOG_RATIO = 2.3
# Columns, relative to their largest, that differ by less than this are one; a term is part of
# what cannot be told apart from this weight on.
_COLLINEAR, _PRESENT = 1e-6, 0.05


@dataclass(frozen=True)
class ErnestLaw:
    """The law of one group of runs.

    Attributes:
        theta: seconds; seconds that one machine takes for a unit of size; seconds; seconds a
            machine, (4,).
        covariance, intervals: of theta, (4, 4), and 5 % and 95 % of each, (4, 2), by a bootstrap
            of the residuals.
        reach: how far below and above the 5 % and 95 % residual lies, as logs.
        machines: fewest and most that a run had.
        share: least and most size / machines that a run had.
        size: the column that is the size, "" where no run states one (it is 1 then).
        runs: how many taught it.
        notes: terms that these runs cannot tell apart.
    """

    theta: FloatArray
    covariance: FloatArray
    intervals: FloatArray
    reach: tuple[float, float]
    machines: tuple[float, float]
    share: tuple[float, float]
    size: str
    runs: int
    notes: tuple[str, ...] = ()

    def formula(self, quantity: str) -> str:
        """Return the law in words, units and intervals, without the terms that are 0."""
        said = [interval(v, *pair) for v, pair in zip(self.theta, self.intervals, strict=True)]
        fixed, shared, tree, line = (f"{text} s" for text in said)
        work = f"{shared} a sample x {self.size}" if self.size else shared
        texts = (fixed, f"{work} / machines", f"{tree} x log(machines)", f"{line} x machines")
        terms = [text for text, value in zip(texts, self.theta, strict=True) if value > 0]
        return f"seconds of {article(quantity)} = {' + '.join(terms) or '0 s'}"

    def limit(self) -> str:
        """Return what limits scaling at the most machines measured, and what doublings bring."""
        most = self.machines[1]
        if self.machines[0] == most:
            return f"all runs are on {most:g} machines, so nothing is known of scaling"
        size = (self.share[0] if self.share[0] > 0 else 1.0) * most
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
    """Return the law of n runs.

    Args:
        size, machines, seconds: positive and finite, (n,).
        name: the column that `size` comes from.
    """
    x = features(size, machines)
    theta = nnls(x, seconds)
    fitted = x @ theta
    with np.errstate(divide="ignore"):
        logs = np.log(seconds) - np.log(fitted)
    logs = np.clip(logs, -_MOST_LOG_RATIO, _MOST_LOG_RATIO)
    again = _again(x, fitted, logs)
    moved = again - theta[:, None]
    return ErnestLaw(
        theta=theta,
        covariance=moved @ moved.T / RESAMPLES,
        intervals=np.quantile(again, (0.05, 0.95), axis=1).T,
        reach=reach_of(logs, int(np.count_nonzero(theta)), LEAST_SIGMA),
        machines=(float(machines.min()), float(machines.max())),
        share=(float((size / machines).min()), float((size / machines).max())),
        size=name,
        runs=len(seconds),
        notes=_notes(x),
    )


def _notes(x: FloatArray) -> tuple[str, ...]:
    """Return which terms n runs cannot tell apart, in words; x is (n, 4)."""
    largest = np.abs(x).max(axis=0)
    _, sizes, rows = np.linalg.svd(x / np.where(largest > 0, largest, 1.0), full_matrices=True)
    sizes = np.append(sizes, np.zeros(len(TERMS) - len(sizes)))
    blind = np.abs(rows[sizes < _COLLINEAR * sizes[0]]).max(axis=0, initial=0.0) > _PRESENT
    # A column of zeros (one machine has no reduction) is told apart from nothing.
    names = [
        name for name, term, top in zip(TERMS, blind, largest, strict=True) if term and top > 0
    ]
    if len(names) < 2:
        return ()
    return (f"these runs cannot tell {' from '.join(names)}: in all of them they move together",)


def _again(x: FloatArray, fitted: FloatArray, logs: FloatArray) -> FloatArray:
    """Return theta of runs whose residuals are drawn anew with replacement, (4, RESAMPLES)."""
    drawn = np.random.default_rng(SEED).integers(0, len(logs), (len(logs), RESAMPLES))
    # Residuals are ratios, as errors of timers and of shared machines are.
    return nnls_many(x, fitted[:, None] * np.exp(logs - logs.mean())[drawn])


def answers(laws: list[ErnestLaw], index: IntArray, x: FloatArray) -> Answers:
    """Return what laws say of n jobs.

    Args:
        laws: those that answer.
        index: which of them each job is answered by, (n,).
        x: features of the jobs, (n, 4).
    """
    parts = np.stack([law.theta for law in laws])[index] * x
    middle = parts.sum(axis=1)
    # Machines and the work of a machine are counted apart, and added.
    beyond = np.zeros(len(x))
    for column, name in ((3, "machines"), (1, "share")):
        bounds = np.array([getattr(law, name) for law in laws])
        beyond += doublings(bounds, index, x[:, column])
    spread = np.stack([law.covariance for law in laws])[index]
    variance = np.einsum("ni,nij,nj->n", x, spread, x)
    with np.errstate(divide="ignore", invalid="ignore"):
        unsure = variance / middle**2
    reach = np.array([law.reach for law in laws])[index]
    return Answers(banded(middle, reach, unsure), parts, beyond)
