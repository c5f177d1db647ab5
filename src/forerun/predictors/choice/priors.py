"""Priors: what is believed of the candidates before a run of one's own has judged them.

Rounded means of the losses (see `weighing`) that candidates had against one another in trials on
published runs: pollux, vtrain, cm-dare and c3o. They count as a few trials, so that with one
to eight runs physics and pooled laws lead, and no choice is made by the luck of a single run.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from forerun.predictors.choice.questions import (
    BOTH,
    CLUSTER,
    DEVICE,
    DEVICES,
    GIVEN,
    INSIDE,
    NODES,
    PLAN,
    SETTINGS,
    SIZE,
    WORKLOAD,
)

FloatArray = NDArray[np.float64]

# By kind of question: loss of each candidate; who is not named has none. 0.7 is twice the error.
_APART = {"analytic": -0.5, "residual": -0.6, "hierarchical": -0.3, "constant-mfu": 1.2}
_FAR = {
    "analytic": -0.5, "residual": -0.6, "hierarchical": -0.5, "gaussian": -0.1, "ernest": 0.2,
    "generic": 0.2, "linear-scaling": 0.2, "ray-ml": 0.3, "constant-mfu": 1.2,
}  # fmt: skip
_NEAR = {
    "analytic": -0.3, "residual": -0.6, "hierarchical": -0.5, "gaussian": -0.5, "ray-ml": -0.3,
    "ernest": 0.1, "linear-scaling": 0.4, "constant-mfu": 1.4,
}  # fmt: skip
# No published table varies what a worker is given: laws that have a power of it are believed before those
# that read it as a number like any other, and these before those that do not read it.
_GIVEN = {
    "hierarchical": -0.7, "goodput": -0.4, "generic": -0.2, "gaussian": 0.0, "ray-ml": 0.3, "analytic": 0.3,
    "residual": 0.3, "ernest": 0.7, "linear-scaling": 0.7, "constant-mfu": 1.2,
}  # fmt: skip
# No law of sizes and machines sees how a plan lays the work.
_UNSEEN_PLAN = {"analytic": -1.1, "residual": -1.3, "gaussian": 0.0, "constant-mfu": 1.0}
_BY_KIND: Mapping[int, Mapping[str, float]] = {
    INSIDE: _NEAR, SETTINGS: _FAR, PLAN: _UNSEEN_PLAN, SIZE: _FAR, DEVICES: _FAR, NODES: _FAR,
    GIVEN: _GIVEN, CLUSTER: _FAR, DEVICE: _APART, WORKLOAD: _APART, BOTH: _APART,
}  # fmt: skip


def known_losses(names: tuple[str, ...], kind: int) -> FloatArray:
    """Return the losses of candidates against one another for a kind of question, (c,)."""
    known = _BY_KIND[kind]
    return np.array([known.get(name, 0.0) for name in names])
