"""Kinds of runs to generic laws: columns chosen, constants fitted, bootstrap, what was noticed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.predictors.laws.generic_choice import Choice, chosen
from forerun.predictors.laws.generic_columns import BLANK, TEXTS
from forerun.predictors.laws.generic_fit import Fitted, validated
from forerun.predictors.laws.generic_form import MOST_EXPONENT, Cost
from forerun.predictors.laws.generic_law import GenericLaw
from forerun.predictors.laws.generic_many import (
    REPEAT_SIGMA,
    fitted_many,
    middle_of,
    resampled,
)
from forerun.predictors.laws.grouping import Columns, Group, TooFewError, reach_of

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

ERRORS = ("relative", "absolute")
# Runs that differ: one constant, one exponent and C at the least.
LEAST_POINTS = 3
RESAMPLES = 60
# A ratio of measured to fitted beyond this is a row that the law does not describe at all.
_MOST_LOG_RATIO = 2.3


@dataclass(frozen=True)
class Settings:
    """How laws are fitted: see `generic.Generic`."""

    mode: str
    penalty: str
    errors: str


@dataclass(frozen=True)
class _Kind:
    """The runs of one kind, ready to be fitted.

    Attributes:
        group, columns: the runs. choice: the columns of the expression.
        cost: of seconds over `scale`. points: which distinct point each run was made at, (n,).
    """

    group: Group
    columns: Columns
    choice: Choice
    cost: Cost
    scale: float
    points: IntArray

    @property
    def alike(self) -> tuple[int, ...]:
        """What kinds share that are fitted at once: the form, and about how many runs."""
        rows = self.cost.rows
        shape = (rows.intrinsic.shape[1], rows.extrinsic.shape[1], rows.flags.shape[1])
        return (*shape, int(np.ceil(np.log2(len(rows)))))


def fitted_laws(
    groups: Sequence[Group], texts: Mapping[str, tuple[str, ...]], settings: Settings
) -> list[GenericLaw | TooFewError]:
    """Return the law of the runs of each kind, or why it has none."""
    made: list[_Kind | TooFewError] = [_kind(group, texts, settings) for group in groups]
    batches: dict[tuple[int, ...], list[int]] = {}
    for i, kind in enumerate(made):
        if isinstance(kind, _Kind):
            batches.setdefault(kind.alike, []).append(i)
    laws: dict[int, GenericLaw] = {}
    for batch in batches.values():
        kinds = [kind for kind in map(made.__getitem__, batch) if isinstance(kind, _Kind)]
        laws.update(zip(batch, _laws(kinds, texts, settings), strict=True))
    return [kind if isinstance(kind, TooFewError) else laws[i] for i, kind in enumerate(made)]


def _kind(
    group: Group, texts: Mapping[str, tuple[str, ...]], settings: Settings
) -> _Kind | TooFewError:
    columns = {name: values for name, values in group.columns.items() if name != "size"}
    distinct, points = np.unique(np.stack(list(columns.values())), axis=1, return_inverse=True)
    count = distinct.shape[1]
    if count < LEAST_POINTS:
        return TooFewError(f"only {count} different run{'s' if count != 1 else ''}")
    choice = chosen(columns, texts, count)
    scale = float(np.mean(group.seconds))
    seconds = group.seconds / scale
    weights = 1.0 / seconds**2 if settings.errors == "relative" else np.ones(len(seconds))
    places = {
        name: np.unique(columns[name], return_inverse=True)[1].reshape(-1).astype(np.float64)
        for name in choice.form.categories
    }
    rows = choice.form.rows(columns, places)
    cost = Cost(rows, seconds, weights / weights.sum(), settings.penalty)
    return _Kind(group, columns, choice, cost, scale, points.reshape(-1).astype(np.int64))


def _laws(
    kinds: list[_Kind], texts: Mapping[str, tuple[str, ...]], settings: Settings
) -> list[GenericLaw]:
    """Return the laws of kinds of one form."""
    costs = [kind.cost for kind in kinds]
    if settings.mode == "fast":
        points = [kind.points for kind in kinds]
        fits = fitted_many(costs, points, settings.errors == "relative")
    else:
        fits = [validated(kind.cost, kind.points) for kind in kinds]
    logs = [_logs(cost, fitted) for cost, fitted in zip(costs, fits, strict=True)]
    again = resampled(costs, fits, logs, RESAMPLES)
    return [
        _law(kind, fitted, log, drawn, texts)
        for kind, fitted, log, drawn in zip(kinds, fits, logs, again, strict=True)
    ]


def _logs(cost: Cost, fitted: Fitted) -> FloatArray:
    with np.errstate(divide="ignore"):
        logs = np.log(cost.seconds) - np.log(middle_of(cost, fitted))
    clipped: FloatArray = np.clip(logs, -_MOST_LOG_RATIO, _MOST_LOG_RATIO)
    return clipped


def _law(
    kind: _Kind, fitted: Fitted, logs: FloatArray, again: FloatArray,
    texts: Mapping[str, tuple[str, ...]],
) -> GenericLaw:  # fmt: skip
    k, form, held = len(fitted.coefficients), kind.choice.form, kind.choice.held
    intervals = np.quantile(again[:, k:], (0.05, 0.95), axis=0).T.reshape(-1, 2)
    units = np.where(np.arange(again.shape[1]) < k, kind.scale, 1.0)
    moved = (again - fitted.constants) * units
    bounds = {
        name: (float(values.min()), float(values.max()))
        for name, values in kind.columns.items()
        if name in {**form.numbers, **form.scaling} or (name in held and name not in TEXTS)
    }
    return GenericLaw(
        numbers=form.numbers, categories=form.categories, scaling=form.scaling,
        coefficients=fitted.coefficients * kind.scale, exponents=fitted.exponents,
        covariance=moved.T @ moved / len(moved), intervals=intervals,
        reach=reach_of(logs, fitted.free, REPEAT_SIGMA), bounds=bounds,
        machines=kind.group.bounds("devices"), runs=len(logs), strength=fitted.strength,
        quantity=kind.group.quantity, left_out=kind.choice.left_out,
        held={name: _word(code, texts[name]) for name, code in held.items() if name in TEXTS},
        notes=_notes(kind.choice, fitted),
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
