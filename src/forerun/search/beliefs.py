"""Beliefs: what a predictor thinks of many jobs at once, and how far it would err with them together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.contracts import Predictor
from forerun.domain.forecast import is_none
from forerun.domain.quantiles import (
    SCOPES,
    correlation_matrix,
    log_sigma,
    pairs_in_common,
    scope_labels,
    scope_of,
)
from forerun.errors import RequestError
from forerun.predictors.laws.law_rows import LawRows
from forerun.tables import Jobs

# Repeats of a job on one machine differ by 1-2 %, on another of its kind by up to 2 %.
REPEAT_SIGMA = 0.02
# How alike errors are where nothing says it: log2 of devices and of a device's batch, and what a
# different workload, device, or the step from one node to several leaves.
_LENGTH, _OTHER = 2.0, 0.5


@dataclass(frozen=True)
class Beliefs:
    """What is believed of n jobs.

    middle: log of the median seconds, (n,); NaN where declined. covariance: of log seconds, (n, n).
    noise: log variance of a measurement. causes: log variance by cause, (n,) each. common: by scope,
    which jobs share it, (n, n).
    """

    middle: FloatArray
    covariance: FloatArray
    noise: float
    source: str
    causes: Mapping[str, FloatArray] = field(default_factory=dict)
    common: Mapping[str, BoolArray] = field(default_factory=dict)

    def after(self, i: int) -> Beliefs:
        """Return what is believed once job i was run, whatever it took: errors that are left."""
        column = self.covariance[:, i]
        left = self.covariance - np.outer(column, column) / (column[i] + self.noise)
        return replace(self, covariance=left)

    def shift(self, rows: IntArray, of: IntArray) -> FloatArray:
        """Return the standard deviations by which runs of rows would move logs, (rows, of)."""
        own = np.maximum(np.diag(self.covariance)[rows] + self.noise, 1e-300)
        return np.asarray(self.covariance[np.ix_(rows, of)] / np.sqrt(own)[:, None])

    def shared(self, row: int, of: IntArray) -> dict[str, float]:
        """Return by scope what share of the log variance of `of` a job has in common with them."""
        whole = float(sum(column[of].sum() for column in self.causes.values()))
        found: Counter[str] = Counter()
        for cause, column in self.causes.items():
            scope = scope_of(cause)
            same = self.common[scope][row, of] if scope in self.common else True
            both = np.where(same, np.minimum(column[row], column[of]), 0.0).sum()
            found[scope] += float(both) / max(whole, 1e-300)  # type: ignore[assignment]
        return dict(found.most_common())


def beliefs_of(predictor: Predictor, jobs: Jobs) -> Beliefs:
    """Return what a predictor believes of n jobs; see `joint_beliefs`.

    `auto` has its own bands, and the correlations of the candidate that answers most of the jobs.
    """
    own, leader = joint_beliefs(predictor, jobs), leading(predictor, jobs)
    if not leader:
        return own
    chosen: Any = predictor
    member = joint_beliefs(chosen.chosen[0].members.fitted[leader], jobs)
    variance, theirs = np.diag(own.covariance), np.diag(member.covariance)
    sigma = np.sqrt(np.where(theirs > 0, theirs, np.nan))
    rho = np.nan_to_num(member.covariance / np.outer(sigma, sigma))
    np.fill_diagonal(rho, 1.0)
    return replace(
        own,
        covariance=rho * np.sqrt(np.outer(variance, variance)),
        causes={name: column * variance / theirs for name, column in member.causes.items()},
        common=member.common,
        source=f"the bands of {predictor.name}; errors go together as those of {leader}, which answers"
        f" most of these jobs ({member.source})",
    )


def leading(predictor: Predictor, jobs: Jobs) -> str:
    """Return which candidate of `auto` answers most of the jobs; "" for none."""
    by = predictor.predict(jobs).by if getattr(predictor, "chosen", ()) else None
    words = [] if by is None else [str(text).partition(": ")[2] for text in by if text]
    names = Counter(text.partition(" (")[0] for text in words)  # in brackets: the kind of question
    return next((name for name, _ in names.most_common(1)), "")


def joint_beliefs(predictor: Predictor, jobs: Jobs) -> Beliefs:
    """Return a predictor's beliefs: by its `log_covariance`, its causes of error, or `likeness`.

    Raises:
        RequestError: it answers some job without a band.
    """
    name, forecasts = predictor.name, predictor.predict(jobs)
    answered = is_none(forecasts.declined)
    with np.errstate(divide="ignore", invalid="ignore"):
        middle = np.where(answered, np.log(forecasts.seconds[:, 1]), np.nan)
        variance = np.where(answered, log_sigma(forecasts.seconds) ** 2, np.nan)
    known = variance[answered]
    if len(known) and not (np.isfinite(known).all() and (known > 0).any()):
        raise RequestError(
            f"the next runs for {name}",
            "it answers without a band, so the value of a run cannot be computed",
            "name a predictor with bands (see `forerun predictors`)",
        )  # fmt: skip
    causes: dict[str, FloatArray] = {}
    common: dict[str, BoolArray] = {}
    if hasattr(predictor, "log_covariance"):
        covariance = np.asarray(predictor.log_covariance(jobs), dtype=np.float64)
        source = f"the joint errors that {name} states"
    elif forecasts.causes:
        causes, common = dict(forecasts.causes), pairs_in_common(_scope_labels(jobs))
        rho = correlation_matrix(causes, common)
        np.fill_diagonal(rho, 1.0)
        covariance = rho * np.sqrt(np.outer(variance, variance))
        source = f"the causes of error that {name} names"
    else:
        covariance = likeness(jobs) * np.sqrt(np.outer(variance, variance))
        source = f"the bands of {name}; that jobs alike in devices and batch err alike is assumed"
    return Beliefs(middle, covariance, REPEAT_SIGMA**2, source, causes, common)


def _scope_labels(jobs: Jobs) -> list[Mapping[str, object]]:
    kinds, index = LawRows(jobs).kinds
    return [
        scope_labels(jobs[i])
        if resolved
        else {scope: (kinds[index[i]][:2], i if scope == "plan" else 0) for scope in SCOPES}
        for i, resolved in enumerate(jobs.resolved)
    ]


def likeness(jobs: Jobs) -> FloatArray:
    """Return how alike n jobs are, as correlations of their errors, (n, n): an assumption."""
    rows = LawRows(jobs)
    kinds, index = rows.kinds
    machines = np.where(rows.machines > 0, rows.machines, 1.0)
    batch = rows.size("global_batch")
    share = np.where(np.isfinite(batch), batch, 1.0) / machines
    nodes = np.array([c.nodes for c in jobs.clusters] + [1])[jobs.cluster_index]
    rho = np.ones((len(jobs), len(jobs)))
    for values in (np.log2(machines), np.log2(share)):
        rho *= np.exp(-0.5 * ((values[:, None] - values[None, :]) / _LENGTH) ** 2)
    names = (np.unique([kind[i] for kind in kinds], return_inverse=True)[1][index] for i in (0, 1))
    for labels in (*names, nodes > 1):
        rho *= np.where(labels[:, None] == labels[None, :], 1.0, _OTHER)
    return rho
