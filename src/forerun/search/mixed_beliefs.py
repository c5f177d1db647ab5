"""MixedBeliefs: joint errors of a predictor that answers by the mean of others, as `auto` does.

Its bands are its own, so that the errors are those its forecasts state; how errors of two jobs go
together is taken from the member that leads on most of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.contracts import Predictor
from forerun.errors import RequestError
from forerun.predictors.choice.quantities import only
from forerun.search.beliefs import Beliefs, joint_beliefs, likeness
from forerun.tables import Jobs, Runs
from forerun.units import format_percent

FloatArray = NDArray[np.float64]


def beliefs_of(predictor: Predictor, jobs: Jobs, runs: Runs | None = None) -> Beliefs:
    """Return what a predictor believes of n jobs together; arguments and errors as `joint_beliefs`."""
    chosen: Any = getattr(predictor, "chosen", ())
    leader, share = leading(predictor, jobs) if chosen else ("", 0.0)
    if not leader:
        return joint_beliefs(predictor, jobs, runs)
    own = joint_beliefs(predictor, jobs, None)  # its bands
    quantity = chosen[0].quantity
    try:
        member = joint_beliefs(
            chosen[0].members.fitted[leader], jobs, None if runs is None else only(runs, quantity)
        )
    except RequestError:  # it states no bands
        return own
    sigma = np.sqrt(np.diag(own.covariance))
    covariance = _correlation(member.covariance, likeness(jobs)) * np.outer(sigma, sigma)
    causes = {
        name: column * np.diag(own.covariance) / np.diag(member.covariance)
        for name, column in member.causes.items()
    }
    return replace(
        own, covariance=covariance, causes=causes, common=member.common,
        source=f"the bands of {predictor.name}; errors go together as those of {leader}, who leads on"
        f" {format_percent(share)} of these jobs ({member.source})",
    )  # fmt: skip


def leading(predictor: Predictor, jobs: Jobs) -> tuple[str, float]:
    """Return who leads on most of the jobs that are answered, and on what share of these; "" for none."""
    by = predictor.predict(jobs).by
    words = [] if by is None else [str(text).partition(": ")[2] for text in by if text]
    # Behind the names stands, in brackets, which kind of question they answered.
    names = Counter(text.split(" + ")[0].partition(" (")[0] for text in words if text)
    if not names:
        return "", 0.0
    name, count = names.most_common(1)[0]
    return name, count / len(words)


def _correlation(covariance: FloatArray, alike: FloatArray) -> FloatArray:
    """Return correlations (n, n); jobs without any in the covariance go together as they are alike."""
    variance = np.diag(covariance)
    known = np.isfinite(variance) & (variance > 0)
    sigma = np.sqrt(np.where(known, variance, 1.0))
    # Nothing is known across the two sets; without it the whole stays positive semidefinite.
    mixed = np.where(known[:, None] == known[None, :], alike, 0.0)
    both = known[:, None] & known[None, :]
    rho = np.where(both, covariance / np.outer(sigma, sigma), mixed)
    np.fill_diagonal(rho, 1.0)
    return np.asarray(rho)
