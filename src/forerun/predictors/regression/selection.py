"""Selection: which features an experiment keeps: all, forward by error, or by XGBoost's gains."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.predictors.regression.models import Model
from forerun.predictors.regression.techniques import importance

SELECTIONS = ("", "forward", "importance")
_FOLDS = 3


def selected(
    selection: str,
    x: FloatArray,
    y: FloatArray,
    fit: Callable[[FloatArray, FloatArray], Model],
    most: int,
    tolerance: float,
) -> list[int]:
    """Return the places of the features that are kept.

    Args:
        selection: one of `SELECTIONS`.
        x, y: (n, k) and (n,).
        fit: the experiment's technique.
        most: features of a forward selection.
        tolerance: share of the gains that those kept by importance have.
    """
    if selection == "forward":
        return _forward(x, y, fit, most)
    if selection == "importance":
        gains = importance(x, y)
        order = np.argsort(-gains, kind="stable")
        count = int(np.searchsorted(np.cumsum(gains[order]), tolerance)) + 1
        return sorted(order[:count].tolist())
    return list(range(x.shape[1]))


def _forward(
    x: FloatArray, y: FloatArray, fit: Callable[[FloatArray, FloatArray], Model], most: int
) -> list[int]:
    """Return features taken in one by one, each the one that errs least, while the error falls."""
    part = np.random.default_rng(0).permutation(len(y)) % min(_FOLDS, len(y))
    chosen: list[int] = []
    error = np.inf
    while len(chosen) < min(most, x.shape[1]):
        free = [i for i in range(x.shape[1]) if i not in chosen]
        errors = [_error(x[:, [*chosen, i]], y, part, fit) for i in free]
        best = int(np.argmin(errors))
        if not errors[best] < error:
            break
        error = errors[best]
        chosen.append(free[best])
    return sorted(chosen or [0])


def _error(
    x: FloatArray,
    y: FloatArray,
    part: NDArray[np.int64],
    fit: Callable[[FloatArray, FloatArray], Model],
) -> float:
    """Return the mean absolute percentage error over the folds."""
    off = []
    for i in range(int(part.max()) + 1):
        model = fit(x[part != i], y[part != i])
        off.append(np.abs(model.predict(x[part == i]) - y[part == i]) / y[part == i])
    return float(np.mean(np.concatenate(off)))
