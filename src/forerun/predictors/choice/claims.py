"""Claims: how sure each candidate says it is of a row, what that is worth, and how sure to be at least.

With few runs the trials can hardly tell candidates apart, but a law of three runs says itself that it
knows a row to a factor of two, where physics says ten percent. So the error that each candidate's own
band implies, held against its errors in trials, counts beside those errors: much while few runs were
judged, little once many were (the weighing by precision of Bates and Granger, 1969, "The combination
of forecasts", with the precisions calibrated by cross-validation).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forerun.arrays import BoolArray, FloatArray
from forerun.predictors.choice.candidates import PHYSICS

# Of a normal error: the mean absolute one over the reach from the median to the 95 % quantile.
_ERROR_OF_REACH = 0.485
_SOFT = 0.005  # as in `weighing`
# Log reach that a law's answer has at least while one run of the workload and device is known; it
# falls with the root of their number. Physics, which knows more than the runs, states its own.
LAW_REACH = 0.8
COUNT = 3.0  # judged runs that claims are worth
_PRIOR_COUNT = 4.0  # judged runs that the trust in a candidate's own bands is worth
_MOST_APART = 2.5  # a claim that is so much worse (log) counts as no worse
# A band that reaches further than this factor either way is no answer.
MOST_REACH = float(np.log(1000.0))
# Log standard deviation about laws of few judged runs, and about physics, whose own bands know how
# few runs calibrated it; and the most by which either widens a band (x3).
_SPREAD, _SPREAD_PHYSICS, _MOST_FLOOR = 0.5, 0.04, float(np.log(3.0))


def are_laws(names: Sequence[str]) -> BoolArray:
    """Return which candidates know nothing but the runs, (c,)."""
    return np.array([name not in PHYSICS for name in names], dtype=bool)


def says_nothing(reach: FloatArray) -> BoolArray:
    """Return where a band (..., 2) of log reaches is too wide to be an answer."""
    return np.asarray((reach > MOST_REACH).any(axis=-1))


def claimed(reach: FloatArray, known: FloatArray, laws: BoolArray) -> FloatArray:
    """Return the log of the error that candidates' bands imply, (n, c), NaN where none.

    Args:
        reach: logs by which the 5 % and 95 % quantile lie off the median, (n, c, 2).
        known: log2 of how many runs are known, (n,). laws: see `are_laws`.
    """
    least = np.where(laws, LAW_REACH, 0.0) / np.sqrt(2.0 ** np.asarray(known))[:, None]
    own = reach.mean(axis=-1)
    return np.asarray(np.log(_ERROR_OF_REACH * np.sqrt(own**2 + least**2) + _SOFT))


def calibration(loss: FloatArray, claim: FloatArray, weight: FloatArray) -> FloatArray:
    """Return by how much candidates' claims fell short of their losses in trials, (c,).

    Who was seldom judged is taken to fall short as all do.

    Args:
        loss: of judged answers (r, c), see `weighing.losses`. claim: see `claimed`.
        weight: of each trial, (r,).
    """
    short = loss - claim
    told = np.isfinite(short)
    mass = weight @ told
    total = weight @ np.where(told, short, 0.0)
    common = total.sum() / (mass.sum() + _PRIOR_COUNT)
    return np.asarray((total + _PRIOR_COUNT * common) / (mass + _PRIOR_COUNT))


def with_claims(loss: FloatArray, claim: FloatArray, trust: FloatArray) -> FloatArray:
    """Return losses (n, c) to which claims are added, as much as trials leave room for.

    Args:
        loss: by trials, (n, c). claim: calibrated, (n, c). trust: trials behind the losses, (n,).
    """
    told = np.isfinite(claim)
    best = np.where(told, claim, np.inf).min(axis=1, initial=np.inf)
    with np.errstate(invalid="ignore"):
        apart = np.where(told, np.minimum(claim - best[:, None], _MOST_APART), _MOST_APART)
    return np.asarray(loss + (COUNT / (COUNT + trust))[:, None] * apart)


def least_reach(judged: float, share: FloatArray) -> FloatArray:
    """Return the log reach (n,) by which few judged runs widen a band, 0 where there are many.

    It is the excess of Student's t over the normal quantile, of as many degrees of freedom as
    independent runs were judged, times what laws, or physics, of few runs are commonly off.

    Args:
        judged: independent judged runs. share: of the answer that is laws', (n,).
    """
    excess = student_95(max(judged, 1.0)) - _Z95
    law, physics = (min(spread * excess, _MOST_FLOOR) for spread in (_SPREAD, _SPREAD_PHYSICS))
    return np.asarray(share * law + (1.0 - share) * physics)


_Z95 = 1.6449


def student_95(freedom: float) -> float:
    """Return the 95 % quantile of Student's t, by the series of Cornish and Fisher in 1/freedom.

    Within 1 % from 2 degrees of freedom on (Abramowitz and Stegun, 26.7.5).
    """
    z, v = _Z95, freedom
    return (
        z + (z**3 + z) / (4 * v) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )  # fmt: skip
