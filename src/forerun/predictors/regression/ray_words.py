"""Ray words: the winner of a group of runs as a formula, or what it is where it is none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forerun.arrays import FloatArray
from forerun.predictors.laws.grouped import article
from forerun.predictors.regression.experiment import FITS, Fitted
from forerun.predictors.regression.models import Kernel, Linear, Model, Network, Scaled, Trees
from forerun.predictors.regression.ray_group import RayGroup

_MOST = 5  # features of trees that are named


def told(group: RayGroup, quantity: str) -> str:
    """Return what answers questions of a group: a formula where it is linear; and how it was judged."""
    best = group.best
    given = ", ".join(f"{k} {v}" for k, v in best.parameters.items())
    errors = ", ".join(
        f"{part.replace('_', '-')} {figures['mape']:.1f} %"
        for part, figures in best.scores.items() if part != FITS
    )  # fmt: skip
    ended = "" if group.winner.converged else "; its fit did not converge: the best found serves"
    lead = f"seconds of {article(quantity)} "
    text = lead + _what(group.winner, group.features.names)
    if group.far_by:
        other = group.experiments[group.far_by].technique
        most = group.ranges["devices"][1]
        text += f"; beyond {most:g} devices ({other}) {_what(group.far, group.features.names)}"
    low, high = (np.exp(side) for side in group.reach)
    return (
        f"{text} ({best.technique}{f': {given}' if given else ''}; {group.runs} runs; "
        f"MAPE {errors}; 90 % of runs (5 to 95 %) lie between 1/{low:.2f} and {high:.2f} times it; "
        f"ln is natural{ended})"
    )


def _what(fitted: Fitted, names: Sequence[str]) -> str:
    mine = [names[i] for i in fitted.places]
    line = _line(fitted.model)
    if line is not None:
        return f"= {_sum(*line, mine)}"
    return f"go by {_shape(fitted.model, mine)}"


def _line(model: Model) -> tuple[float, FloatArray] | None:
    """Return intercept and weights of the features as they are, None of what is not linear."""
    if isinstance(model, Linear):
        return model.intercept, model.weights
    if not isinstance(model, Scaled):
        return None
    inner = _line(model.model)
    if inner is None:
        return None
    weights = inner[1] / model.scale
    start = inner[0] - float(weights @ model.centre)
    return model.middle + model.unit * start, model.unit * weights


def _sum(intercept: float, weights: FloatArray, names: Sequence[str]) -> str:
    """Return a sum whose figures are long enough to be computed again."""
    text = f"{intercept:.6g}"
    for weight, name in zip(weights.tolist(), names, strict=True):
        if weight:
            text += f" {'-' if weight < 0 else '+'} {abs(weight):.6g} x {name}"
    return text


def _shape(model: Model, names: Sequence[str]) -> str:
    if isinstance(model, Scaled):
        return _shape(model.model, names)
    if isinstance(model, Trees):
        splits = np.bincount(model.feature[model.left >= 0], minlength=len(names))
        order = [i for i in np.argsort(-splits, kind="stable")[:_MOST] if splits[i]]
        total = max(int(splits.sum()), 1)
        most = ", ".join(f"{names[i]} {100 * splits[i] / total:.0f} %" for i in order)
        many = len(model.roots)
        what = f"a table of {many} tree{'s' if many > 1 else ''}, which is no formula"
        return f"{what}; its splits are by {most or 'nothing'}"
    if isinstance(model, Kernel):
        runs = f"{len(model.support)} runs"
        return f"likeness to {runs} ({model.form} kernel), no formula, of {', '.join(names)}"
    if isinstance(model, Network):
        return f"a network of {len(model.weights)} layers, no formula, of {', '.join(names)}"
    return f"a {model.kind} model of {', '.join(names)}"
