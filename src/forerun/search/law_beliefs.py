"""LawBeliefs: how the errors of a fitted linear law go together, by the covariance of its parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.contracts import Predictor
from forerun.predictors.laws.law_rows import GROUP, LawRows
from forerun.tables import Jobs

FloatArray = NDArray[np.float64]


def law_spread(predictor: Predictor, jobs: Jobs) -> FloatArray | None:
    """Return the covariance of log seconds of n jobs that a law's parameters make, (n, n).

    Of laws linear in their parameters that keep the covariance of these, as a saved one does: jobs
    of two laws have nothing in common. None where the predictor is no such law, or not fitted.
    """
    laws: Any = getattr(predictor, "laws", {})
    linear: Any = getattr(predictor, "linear_features", None)
    if linear is None or not laws:
        return None
    if not all(hasattr(law, "covariance") for law in laws.values()):
        return None
    features = np.asarray(linear(jobs))
    kinds, index = LawRows(jobs).kinds
    spread = np.zeros((len(jobs), len(jobs)))
    answered = np.isfinite(features).all(axis=1)
    own = [kind if kind in laws else kind[: len(GROUP)] for kind in kinds]
    for kind in dict.fromkeys(own):
        if kind not in laws:
            continue
        mine = np.flatnonzero(answered & np.array([k == kind for k in own] + [False])[index])
        x = features[mine]
        seconds = np.maximum(x @ laws[kind].theta, 1e-300)
        relative = x / seconds[:, None]
        spread[np.ix_(mine, mine)] = relative @ laws[kind].covariance @ relative.T
    return spread


def taught_by(predictor: Predictor) -> str:
    """Return what a fitted law says of its runs: how many of what; "" where it says nothing."""
    laws: Any = getattr(predictor, "laws", {})
    told = {id(law): law for law in laws.values() if hasattr(law, "runs")}
    machines = [m for law in told.values() for m in getattr(law, "machines", ())]
    if not told:
        return ""
    count = max(law.runs for law in told.values()) if len(told) == 1 else None
    span = f" on {min(machines):g} to {max(machines):g} devices" if machines else ""
    return f"{count} runs{span}" if count else f"{len(told)} laws{span}"
