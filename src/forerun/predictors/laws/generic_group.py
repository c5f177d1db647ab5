"""One kind of runs to one generic law: columns chosen, constants fitted, bootstrap, what was noticed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from forerun.predictors.laws.generic_choice import Choice, chosen
from forerun.predictors.laws.generic_columns import BLANK, TEXTS
from forerun.predictors.laws.generic_fit import (
    REPEAT_SIGMA,
    Fitted,
    refitted,
    resampled,
    validated,
)
from forerun.predictors.laws.generic_form import MOST_EXPONENT, Cost
from forerun.predictors.laws.generic_law import GenericLaw
from forerun.predictors.laws.grouping import Columns, Group, TooFewError, reach_of

FloatArray = NDArray[np.float64]

ERRORS = ("relative", "absolute")
# Runs that differ: one constant, one exponent and C at the least.
LEAST_POINTS = 3
RESAMPLES = 60
# A ratio of measured to fitted beyond this is a row that the law does not describe at all.
_MOST_LOG_RATIO = 2.3
_LEAST_MIDDLE = 0.1  # of the measured time, where weights go by the fitted one


def fitted_law(
    group: Group, texts: Mapping[str, tuple[str, ...]], mode: str, penalty: str, errors: str
) -> GenericLaw:
    """Return the law of the runs of one kind.

    Raises:
        TooFewError: fewer than `LEAST_POINTS` of them differ.
    """
    columns = {name: values for name, values in group.columns.items() if name != "size"}
    distinct, points = np.unique(np.stack(list(columns.values())), axis=1, return_inverse=True)
    count = distinct.shape[1]
    if count < LEAST_POINTS:
        raise TooFewError(f"only {count} different run{'s' if count != 1 else ''}")
    choice = chosen(columns, texts)
    scale = float(np.mean(group.seconds))
    seconds = group.seconds / scale
    weights = 1.0 / seconds**2 if errors == "relative" else np.ones(len(seconds))
    places = {
        name: np.unique(columns[name], return_inverse=True)[1].reshape(-1).astype(np.float64)
        for name in choice.form.categories
    }
    cost = Cost(choice.form.rows(columns, places), seconds, weights / weights.sum(), penalty)
    fitted = validated(cost, points.reshape(-1).astype(np.int64), mode)
    if errors == "relative" and mode == "fast":
        # Shares of the measured time lean to the runs that were lucky, shares of the fitted do not.
        middle = np.maximum(_middle(cost, fitted), _LEAST_MIDDLE * seconds)
        cost = replace(cost, weights=middle**-2 / np.sum(middle**-2))
        fitted = refitted(cost, fitted)
    return _law(group, columns, texts, choice, cost, fitted, scale)


def _middle(cost: Cost, fitted: Fitted) -> FloatArray:
    times: FloatArray = cost.rows.columns(fitted.exponents[None])[0] @ fitted.coefficients
    return times


def _law(
    group: Group, columns: Columns, texts: Mapping[str, tuple[str, ...]], choice: Choice,
    cost: Cost, fitted: Fitted, scale: float,
) -> GenericLaw:  # fmt: skip
    k = len(fitted.coefficients)
    middle = _middle(cost, fitted)
    with np.errstate(divide="ignore"):
        logs = np.log(cost.seconds) - np.log(middle)
    logs = np.clip(logs, -_MOST_LOG_RATIO, _MOST_LOG_RATIO)
    again = resampled(cost, fitted, logs, RESAMPLES).constants
    intervals = np.quantile(again[:, k:], (0.05, 0.95), axis=0).T.reshape(-1, 2)
    moved = (again - np.concatenate([fitted.coefficients, fitted.exponents])) * np.where(
        np.arange(again.shape[1]) < k, scale, 1.0
    )
    held = {name: value for name, value in choice.held.items() if name in TEXTS}
    bounds = {
        name: (float(values.min()), float(values.max()))
        for name, values in columns.items()
        if name in {**choice.form.numbers, **choice.form.scaling}
        or (name in choice.held and name not in TEXTS)
    }
    form = choice.form
    return GenericLaw(
        numbers=form.numbers, categories=form.categories, scaling=form.scaling,
        coefficients=fitted.coefficients * scale, exponents=fitted.exponents,
        covariance=moved.T @ moved / len(moved), intervals=intervals,
        reach=reach_of(logs, fitted.free, REPEAT_SIGMA),
        bounds=bounds, machines=group.bounds("devices"), runs=len(group.seconds),
        strength=fitted.strength, quantity=group.quantity, left_out=choice.left_out,
        held={name: _word(code, texts[name]) for name, code in held.items()},
        notes=_notes(choice, fitted),
    )  # fmt: skip


def _word(code: float, words: tuple[str, ...]) -> str:
    return "" if code == BLANK else words[int(code)]


def _notes(choice: Choice, fitted: Fitted) -> tuple[str, ...]:
    """Return what was noticed: no end to the search, exponents that the bounds hold."""
    notes = []
    if not fitted.converged:
        notes.append("the fit did not converge; this is the best that was found")
    names = [*choice.form.numbers, *choice.form.scaling]
    at_bound = [
        name
        for name, power in zip(names, fitted.exponents, strict=True)
        if abs(power) > MOST_EXPONENT - 1e-6
    ]
    if at_bound:
        notes.append(
            f"the exponent of {' and '.join(at_bound)} is at its bound of {MOST_EXPONENT:g}"
        )
    alike = [name for name, why in choice.left_out.items() if why.startswith("goes with")]
    if alike:
        told = ", ".join(f"{name} {choice.left_out[name]}" for name in alike)
        notes.append(f"these runs cannot tell apart: {told}")
    return tuple(notes)
