"""LawBeliefs: how the errors of a fitted linear law go together, by the covariance of its parameters."""

from __future__ import annotations

from typing import Any

import numpy as np

from forerun.arrays import FloatArray
from forerun.contracts import Predictor
from forerun.predictors.laws.law_rows import GROUP, LawRows
from forerun.tables import Jobs
from forerun.units import counted


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
    """Return how many runs taught a fitted law, on how many devices; "" where it does not say."""
    laws: Any = getattr(predictor, "laws", {})
    chosen: Any = getattr(predictor, "chosen", ())
    if chosen:
        said = (taught_by(member) for member in chosen[0].members.fitted.values())
        return next(filter(None, said), "")
    # Laws over all settings of a workload and device were taught by the runs of the others.
    own = [law for kind, law in laws.items() if len(kind) > len(GROUP)] or [*laws.values()]
    if not own or not all(hasattr(law, "runs") and hasattr(law, "machines") for law in own):
        return ""
    machines = [count for law in own for count in law.machines]
    runs = sum(int(law.runs) for law in own)
    return f"{counted(runs, 'run')} on {min(machines):g} to {max(machines):g} devices"
