"""Stepwise: least squares whose features enter and leave by their p-values (Draper and Smith)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
_ROUNDING = 1e-10


def stepwise(
    x: FloatArray, y: FloatArray, p_to_add: float, p_to_remove: float, max_iter: int
) -> tuple[float, FloatArray]:
    """Return intercept and weights (k,), 0 for features that did not enter.

    Each round takes in the feature of the least p-value below `p_to_add`, then takes out the one
    of the greatest above `p_to_remove` (Draper and Smith, Applied Regression Analysis, 3rd ed.,
    section 15.4).

    Args:
        x, y: (n, k) and (n,).
        p_to_add, p_to_remove: of two-sided t tests.
        max_iter: most rounds.
    """
    chosen: list[int] = []
    for _ in range(max_iter):
        before = list(chosen)
        entering = _entering(x, y, chosen, p_to_add)
        if entering is not None:
            chosen.append(entering)
        leaving = _leaving(x, y, chosen, p_to_remove)
        if leaving is not None:
            chosen.remove(leaving)
        # One that enters and leaves at once would do so for ever.
        if chosen == before or (entering is not None and entering == leaving):
            break
    weights = np.zeros(x.shape[1])
    basis = np.column_stack([np.ones(len(x)), x[:, chosen]])
    solved = np.linalg.lstsq(basis, y, rcond=None)[0]
    weights[chosen] = solved[1:]
    return float(solved[0]), weights


def _entering(x: FloatArray, y: FloatArray, chosen: list[int], limit: float) -> int | None:
    """Return the feature that enters, None where none does.

    What a feature adds is a regression of what the chosen ones leave of y on what they leave of it
    (Frisch and Waugh), so that all features are tried in one product.
    """
    free = len(x) - len(chosen) - 2
    if free <= 0:
        return None
    basis, _ = np.linalg.qr(np.column_stack([np.ones(len(x)), x[:, chosen]]))
    rest = x - basis @ (basis.T @ x)
    left = y - basis @ (basis.T @ y)
    power = np.sum(rest**2, axis=0)
    usable = power > _ROUNDING * np.maximum(np.sum(x**2, axis=0), 1e-300)
    usable[chosen] = False
    if not usable.any() or left @ left <= _ROUNDING * float(y @ y):
        return None
    explained = np.where(usable, (rest.T @ left) ** 2 / np.where(usable, power, 1.0), -1.0)
    best = int(np.argmax(explained))  # the greatest |t|, hence the least p
    noise = max(float(left @ left - explained[best]), 0.0) / free
    t = np.sqrt(explained[best] / noise) if noise > 0 else np.inf
    return best if _p(t, free) < limit else None


def _leaving(x: FloatArray, y: FloatArray, chosen: list[int], limit: float) -> int | None:
    """Return the feature that leaves, None where none does."""
    free = len(x) - len(chosen) - 1
    if not chosen or free <= 0:
        return None
    basis = np.column_stack([np.ones(len(x)), x[:, chosen]])
    inverse = np.linalg.pinv(basis.T @ basis)
    weights = inverse @ (basis.T @ y)
    left = y - basis @ weights
    spread = np.sqrt(np.maximum(float(left @ left) / free * np.diag(inverse), 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.abs(weights / spread)[1:]
    worst = int(np.argmin(np.nan_to_num(t, nan=np.inf)))
    return chosen[worst] if _p(float(t[worst]), free) > limit else None


def _p(t: float, free: int) -> float:
    """Return the two-sided p-value of Student's t."""
    from scipy.special import stdtr

    return float(2.0 * stdtr(free, -abs(t)))
