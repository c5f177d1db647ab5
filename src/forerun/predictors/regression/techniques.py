"""Techniques: the Ray study's regressions with its defaults; its "NNLS" is a Lasso of positive weights.

scikit-learn and XGBoost fit; NumPy predicts, so that a saved model needs neither.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from forerun.arrays import FloatArray, IntArray
from forerun.errors import RequestError, one_of, optional

_MOST_LOG = 300.0  # of a value, before it is no number
_CELLS = 2_000_000  # rows x trees that are held at a time


@dataclass(frozen=True)
class Linear:
    """intercept + x . weights; `converged`: whether the search of them ended by itself."""

    intercept: float
    weights: FloatArray
    converged: bool = True

    def predict(self, x: FloatArray) -> FloatArray:
        """Return the values of n rows (n, k), (n,)."""
        result: FloatArray = self.intercept + x @ self.weights
        return result


@dataclass(frozen=True)
class Trees:
    """base + sum of trees, whose nodes lie one after another.

    A row goes left below the threshold (`strict`, XGBoost) or at most at it (scikit-learn).
    """

    base: float
    roots: IntArray
    feature: IntArray
    threshold: FloatArray
    left: IntArray
    right: IntArray
    value: FloatArray
    strict: bool

    def __post_init__(self) -> None:
        """Refuse a node beyond the last, and a child that does not come after its parent. Raises ValueError."""
        places = (self.roots, self.left, self.right)
        if max(int(each.max(initial=0)) for each in places) >= len(self.value):
            raise ValueError("a node beyond the last")
        parent = np.flatnonzero(self.left >= 0)
        # Rows would go around without end.
        if (np.minimum(self.left, self.right)[parent] <= parent).any():
            raise ValueError("a child that does not come after its parent")

    def predict(self, x: FloatArray) -> FloatArray:
        """Return the values of n rows, (n,)."""
        x = x.astype(np.float32).astype(np.float64)
        step = max(_CELLS // max(len(self.roots), 1), 1)
        parts = [self._some(x[i : i + step]) for i in range(0, len(x), step)]
        return np.concatenate([np.empty(0), *parts])

    def _some(self, x: FloatArray) -> FloatArray:
        node = np.tile(self.roots, len(x))
        row = np.repeat(np.arange(len(x)), len(self.roots))
        going = np.flatnonzero(self.left[node] >= 0)
        while len(going):
            at = node[going]
            value, bound = x[row[going], self.feature[at]], self.threshold[at]
            left = value < bound if self.strict else value <= bound
            node[going] = np.where(left, self.left[at], self.right[at])
            going = going[self.left[node[going]] >= 0]
        return np.asarray(self.base + self.value[node].reshape(len(x), -1).sum(axis=1))


@dataclass(frozen=True)
class DenseNetwork:
    """Dense layers with relu between them."""

    weights: tuple[FloatArray, ...]
    biases: tuple[FloatArray, ...]

    def predict(self, x: FloatArray) -> FloatArray:
        """Return the values of n rows, (n,)."""
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = np.maximum(x @ weight + bias, 0.0)
        return np.asarray((x @ self.weights[-1] + self.biases[-1])[:, 0])


@dataclass(frozen=True)
class Regression:
    """A model of some of the features, at `places`: of (feature - centre) / scale and (value - middle) / unit.

    log: whether it is of the logarithm of the value.
    """

    model: Linear | Trees | DenseNetwork
    places: tuple[int, ...]
    centre: FloatArray
    scale: FloatArray
    middle: float
    unit: float
    log: bool = False

    def __post_init__(self) -> None:
        """Refuse a scale that is not above 0. Raises ValueError."""
        if not (self.scale > 0).all():
            raise ValueError("a scale that is not above 0")

    @property
    def converged(self) -> bool:
        """Whether the fit converged; trees and networks have no such end."""
        return not isinstance(self.model, Linear) or self.model.converged

    def predict(self, x: FloatArray) -> FloatArray:
        """Return the values of n rows of all features (n, k), (n,)."""
        scaled = (x[:, list(self.places)] - self.centre) / self.scale
        values = self.middle + self.unit * self.model.predict(scaled)
        return np.exp(np.minimum(values, _MOST_LOG)) if self.log else values


Parameters = Mapping[str, Any]

DEFAULTS: Mapping[str, Parameters] = {
    "Ridge": {"alpha": 0.1},
    "XGBoost": {"learning_rate": 0.1, "max_depth": 100, "gamma": 0.25, "min_child_weight": 1,
                "n_estimators": 500, "reg_lambda": 1},
    "DecisionTree": {"max_depth": 3, "min_samples_split": 0.01, "min_samples_leaf": 0.01},
    "RandomForest": {"n_estimators": 5, "max_depth": 3, "min_samples_split": 0.1,
                     "min_samples_leaf": 1},
    "SVR": {"C": 0.001, "epsilon": 0.05},  # linear
    "NNLS": {"alpha": 0.001},
    "Stepwise": {"p_to_add": 0.05, "p_to_remove": 0.1, "max_iter": 100},
    "MLP": {"hidden": (20, 10), "learning_rate": 0.001, "epochs": 100},
    "Dummy": {},
}  # fmt: skip
# Not of the study: ln y = b + sum a_i ln x_i, by a ridge.
POWER = "PowerLaw"
_KNOWN: Mapping[str, Parameters] = {**DEFAULTS, POWER: {"alpha": 0.1}}
Model = Linear | Trees | DenseNetwork
# Those that go on beyond what was measured.
EXTRAPOLATE = ("Ridge", "NNLS", "Stepwise", POWER)
SEED = 0
_LASSO_ROUNDS, _LIBSVM_ROUNDS = 2000, 20_000
_BATCH = 32  # rows of a step of the MLP


def fitted(
    technique: str, given: Parameters, x: FloatArray, y: FloatArray, *,
    places: Sequence[int] | None = None, relative: bool = False,
) -> Regression:  # fmt: skip
    """Return the model of n rows (n, k) with values (n,), all finite.

    Features and values are standardised. given: parameters that replace the defaults; places: of the
    features that are read, all by default. relative: errors count in proportion to the values, all above
    0 (the MLP weighs all rows alike).

    Raises:
        RequestError: no such technique or parameter.
        MissingExtraError: scikit-learn or XGBoost is not installed.
    """
    check(technique, given)
    places = tuple(range(x.shape[1]) if places is None else places)
    x = x[:, list(places)]
    log = technique == POWER
    y = np.log(y) if log else y
    weight = 1.0 / y**2 if relative and not log else np.ones(len(y))
    weight /= weight.mean()
    centre, middle = weight @ x / len(x), float(weight @ y / len(y))
    scale = np.sqrt(weight @ (x - centre) ** 2 / len(x))
    unit = float(np.sqrt(weight @ (y - middle) ** 2 / len(y))) or 1.0
    moves = scale > 1e-12 * np.maximum(np.abs(x).max(axis=0, initial=0.0), 1e-300)
    scale = np.where(moves, scale, 1.0)
    parameters = {**_KNOWN[technique], **given}
    model = _FITS[technique]((x - centre) / scale, (y - middle) / unit, weight, parameters)
    return Regression(model, places, centre, scale, middle, unit, log)


def check(technique: str, given: Parameters) -> None:
    """Raise RequestError where there is no such technique, or it has no such parameter."""
    if technique not in _KNOWN:
        raise RequestError(
            f"technique {technique!r}", "there is none of that name", one_of(technique, DEFAULTS)
        )
    unknown = sorted(set(given) - set(_KNOWN[technique]))
    if unknown:
        names = _KNOWN[technique]
        step = one_of(unknown[0], names) if names else "give none"
        raise RequestError(f"{technique} with {', '.join(unknown)}", "it has none of these", step)


def _library(module: str, package: str = "scikit-learn") -> Any:
    with optional("a regression of the Ray study", package, "learn"):
        return import_module(module)


def _trained(machine: Any, x: FloatArray, y: FloatArray, weight: FloatArray | None) -> Any:
    """Return the fitted machine; one that did not converge keeps the best so far, as in the study."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", _library("sklearn.exceptions").ConvergenceWarning)
        return machine.fit(x, y) if weight is None else machine.fit(x, y, sample_weight=weight)


def _ridge(x: FloatArray, y: FloatArray, weight: FloatArray, p: Parameters) -> Model:
    made = _library("sklearn.linear_model").Ridge(alpha=p["alpha"]).fit(x, y, sample_weight=weight)
    return Linear(float(made.intercept_), np.asarray(made.coef_, dtype=float))


def _nnls(x: FloatArray, y: FloatArray, weight: FloatArray, p: Parameters) -> Model:
    lasso = _library("sklearn.linear_model").Lasso(
        alpha=p["alpha"], positive=True, max_iter=_LASSO_ROUNDS
    )
    made = _trained(lasso, x, y, weight)
    converged = bool(made.n_iter_ < _LASSO_ROUNDS)
    return Linear(float(made.intercept_), np.asarray(made.coef_, dtype=float), converged)


def _svr(x: FloatArray, y: FloatArray, weight: FloatArray, p: Parameters) -> Model:
    machine = _library("sklearn.svm").SVR(**p, kernel="linear", max_iter=_LIBSVM_ROUNDS)
    made = _trained(machine, x, y, weight)
    weights = np.asarray(made.coef_, dtype=float)[0]
    return Linear(float(made.intercept_[0]), weights, converged=not made.fit_status_)


def _sklearn_trees(machines: Sequence[Any]) -> Trees:
    """Return the mean of scikit-learn's trees."""
    parts = [
        (t.children_left, t.children_right, t.feature, t.threshold, t.value.ravel() / len(machines))
        for t in (machine.tree_ for machine in machines)
    ]
    return _joined(parts, 0.0, strict=False)


def _xgboost(x: FloatArray, y: FloatArray, weight: FloatArray, p: Parameters) -> Model:
    xgboost = _library("xgboost", "xgboost")
    settings = {name: value for name, value in p.items() if name != "n_estimators"}
    settings |= {"tree_method": "hist", "seed": SEED, "nthread": 1, "verbosity": 0}
    data = xgboost.DMatrix(x.astype(np.float32), label=y, weight=weight)
    booster = xgboost.train(settings, data, num_boost_round=int(p["n_estimators"]))
    saved = json.loads(bytes(booster.save_raw("json")))["learner"]
    base = np.atleast_1d(json.loads(str(saved["learner_model_param"]["base_score"])))[0]
    parts = []
    for tree in saved["gradient_booster"]["model"]["trees"]:
        left, split = np.array(tree["left_children"]), np.array(tree["split_conditions"])
        # A leaf's value stands where a split has its threshold.
        parts.append((left, tree["right_children"], tree["split_indices"],
                      split.astype(np.float32).astype(float), np.where(left < 0, split, 0.0)))  # fmt: skip
    return _joined(parts, float(base), strict=True)


def _joined(parts: Sequence[tuple[Any, ...]], base: float, strict: bool) -> Trees:
    """Return trees one after another; each has children left and right, feature, threshold, value."""
    sizes = [len(part[0]) for part in parts]
    roots = np.cumsum([0, *sizes[:-1]])
    left, right, feature, threshold, value = (
        np.concatenate([np.asarray(part[i]) for part in parts]) for i in range(5)
    )
    shift = np.repeat(roots, sizes)
    left, right = (np.where(left < 0, -1, child + shift) for child in (left, right))
    return Trees(base, roots, np.maximum(feature, 0), threshold, left, right, value, strict)


def _mlp(x: FloatArray, y: FloatArray, weight: FloatArray, p: Parameters) -> Model:
    network = _library("sklearn.neural_network").MLPRegressor(
        hidden_layer_sizes=tuple(p["hidden"]), alpha=0.0, batch_size=min(_BATCH, len(x)),
        max_iter=int(p["epochs"]), learning_rate_init=float(p["learning_rate"]), tol=0.0,
        random_state=SEED, n_iter_no_change=int(p["epochs"]),
    )  # fmt: skip
    made = _trained(network, x, y, None)  # it ends after its epochs
    return DenseNetwork(tuple(made.coefs_), tuple(made.intercepts_))


_FITS: Mapping[str, Callable[[FloatArray, FloatArray, FloatArray, Parameters], Model]] = {
    "Ridge": _ridge, POWER: _ridge, "XGBoost": _xgboost, "SVR": _svr, "NNLS": _nnls, "MLP": _mlp,
    "DecisionTree": lambda x, y, w, p: _sklearn_trees(
        [_library("sklearn.tree").DecisionTreeRegressor(random_state=SEED, **p).fit(x, y, w)]),
    "RandomForest": lambda x, y, w, p: _sklearn_trees(
        _library("sklearn.ensemble").RandomForestRegressor(random_state=SEED, **p)
        .fit(x, y, w).estimators_),
    "Stepwise": lambda x, y, w, p: Linear(
        *stepwise(x, y, p["p_to_add"], p["p_to_remove"], int(p["max_iter"]), w)),
    "Dummy": lambda x, y, w, p: Linear(float(w @ y / len(y)), np.zeros(x.shape[1])),
}  # fmt: skip

_ROUNDING = 1e-10


def stepwise(
    x: FloatArray, y: FloatArray, p_to_add: float, p_to_remove: float, max_iter: int,
    weight: FloatArray | None = None,
) -> tuple[float, FloatArray]:  # fmt: skip
    """Return intercept and weights (k,), 0 for features that did not enter, of x (n, k) and y (n,).

    weight: of each row's squared error, (n,); all alike by default.

    Each round takes in the feature of the least p-value below `p_to_add`, then takes out the one of the
    greatest above `p_to_remove` (Draper and Smith, Applied Regression Analysis, 3rd ed., section 15.4).
    """
    ones = np.sqrt(np.ones(len(y)) if weight is None else weight)
    x, y, chosen = x * ones[:, None], y * ones, list[int]()
    for _ in range(max_iter):
        before = list(chosen)
        t = _t_of_entering(x, y, ones, chosen)
        if _p(t.max(), len(x) - len(chosen) - 2) < p_to_add:
            chosen.append(int(t.argmax()))
        t = _t_of_chosen(x, y, ones, chosen)
        if len(t) and _p(t.min(), len(x) - len(chosen) - 1) > p_to_remove:
            del chosen[int(t.argmin())]
        if chosen == before:
            break
    basis = np.column_stack([ones, x[:, chosen]])
    intercept, *solved = np.linalg.lstsq(basis, y, rcond=None)[0]
    weights = np.zeros(x.shape[1])
    weights[chosen] = solved
    return float(intercept), weights


def _t_of_entering(x: FloatArray, y: FloatArray, ones: FloatArray, chosen: list[int]) -> FloatArray:
    """Return |t| of each feature beside the chosen ones, (k,), 0 where it cannot enter (Frisch and Waugh)."""
    free = len(x) - len(chosen) - 2
    basis, _ = np.linalg.qr(np.column_stack([ones, x[:, chosen]]))
    rest, left = x - basis @ (basis.T @ x), y - basis @ (basis.T @ y)
    power, squares = np.sum(rest**2, axis=0), float(left @ left)
    usable = power > _ROUNDING * np.maximum(np.sum(x**2, axis=0), 1e-300)
    usable[chosen] = False
    if free <= 0 or squares <= _ROUNDING * float(y @ y):
        return np.zeros(x.shape[1])
    explained = np.where(usable, (rest.T @ left) ** 2 / np.where(usable, power, 1.0), 0.0)
    return np.asarray(np.sqrt(explained / np.maximum(squares - explained, 1e-300) * free))


def _t_of_chosen(x: FloatArray, y: FloatArray, ones: FloatArray, chosen: list[int]) -> FloatArray:
    """Return |t| of each chosen feature beside the others, (c,); empty where rows are too few."""
    free = len(x) - len(chosen) - 1
    if free <= 0:
        return np.zeros(0)
    basis = np.column_stack([ones, x[:, chosen]])
    inverse = np.linalg.pinv(basis.T @ basis)
    weights = inverse @ (basis.T @ y)
    noise = np.sum((y - basis @ weights) ** 2) / free
    return np.asarray(np.abs(weights) / np.sqrt(np.maximum(noise * np.diag(inverse), 1e-300)))[1:]


def _p(t: float, free: int) -> float:
    """Return the two-sided p-value of Student's t."""
    from scipy.special import stdtr

    return float(2.0 * stdtr(max(free, 1), -t))
