"""Techniques: the Ray study's regressions with its defaults, fitted by scikit-learn and XGBoost.

Each returns plain arrays (`models`): what is saved needs neither library again. Defaults and names
are those of the study's library; its "NNLS" is a Lasso whose weights cannot be negative.

Stepwise: least squares whose features enter and leave by their p-values (Draper and Smith).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.errors import MissingExtraError, RequestError, one_of
from forerun.predictors.regression.models import (
    DenseNetwork,
    FittedModel,
    Linear,
    Scaled,
    SupportVectors,
    Trees,
)

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


Parameters = Mapping[str, Any]

DEFAULTS: Mapping[str, Parameters] = {
    "Ridge": {"alpha": 0.1},
    "XGBoost": {"learning_rate": 0.1, "max_depth": 100, "gamma": 0.25, "min_child_weight": 1,
                "n_estimators": 500, "reg_lambda": 1},
    "DecisionTree": {"max_depth": 3, "min_samples_split": 0.01, "min_samples_leaf": 0.01},
    "RandomForest": {"n_estimators": 5, "max_depth": 3, "min_samples_split": 0.1,
                     "min_samples_leaf": 1},
    "SVR": {"C": 0.001, "epsilon": 0.05, "gamma": 1e-7, "kernel": "linear", "degree": 2},
    "NNLS": {"alpha": 0.001},
    "Stepwise": {"p_to_add": 0.05, "p_to_remove": 0.1, "max_iter": 100},
    "MLP": {"hidden": (20, 10), "learning_rate": 0.001, "epochs": 100},
    "Dummy": {},
}  # fmt: skip
# Those that go on beyond what was measured.
EXTRAPOLATE = ("Ridge", "NNLS", "Stepwise")
SEED = 0
_LIBSVM_ROUNDS = 20_000
_BATCH = 32  # rows of a step of the MLP


def fitted(technique: str, x: FloatArray, y: FloatArray, given: Parameters) -> FittedModel:
    """Return the model of n rows.

    Args:
        technique: a name of `DEFAULTS`.
        x, y: (n, k) and (n,), finite.
        given: parameters that replace the defaults.

    Raises:
        RequestError: no such technique or parameter.
        MissingExtraError: scikit-learn or XGBoost is not installed.
    """
    check(technique, given)
    return _FITS[technique](x, y, {**DEFAULTS[technique], **given})


def check(technique: str, given: Parameters) -> None:
    """Raise RequestError where there is no such technique, or it has no such parameter."""
    if technique not in DEFAULTS:
        raise RequestError(
            f"technique {technique!r}", "there is none of that name", one_of(technique, DEFAULTS)
        )
    unknown = sorted(set(given) - set(DEFAULTS[technique]))
    if unknown:
        names = DEFAULTS[technique]
        step = one_of(unknown[0], names) if names else "give none"
        raise RequestError(f"{technique} with {', '.join(unknown)}", "it has none of these", step)


def standardised(x: FloatArray, y: FloatArray, fit: Callable[..., FittedModel]) -> FittedModel:
    """Return the model of standardised features and values, for values as they are."""
    centre, scale = x.mean(axis=0), x.std(axis=0)
    scale = np.where(scale > 1e-12 * np.maximum(np.abs(x).max(axis=0), 1e-300), scale, 1.0)
    middle, unit = float(y.mean()), float(y.std()) or 1.0
    return Scaled(fit((x - centre) / scale, (y - middle) / unit), centre, scale, middle, unit)


def importance(x: FloatArray, y: FloatArray) -> FloatArray:
    """Return how much each feature gains in XGBoost's trees, (k,), together 1.

    Raises:
        MissingExtraError: XGBoost is not installed.
    """
    gains = np.zeros(x.shape[1])
    booster = _booster(x, y, DEFAULTS["XGBoost"])
    for name, gain in booster.get_score(importance_type="gain").items():
        gains[int(name.removeprefix("f"))] = gain
    total = float(gains.sum())
    return gains / total if total > 0 else np.full(len(gains), 1 / max(len(gains), 1))


def _sklearn(module: str) -> Any:
    from importlib import import_module

    try:
        return import_module(f"sklearn.{module}")
    except ModuleNotFoundError as error:
        raise MissingExtraError("a regression of the Ray study", "scikit-learn", "learn") from error


def _ridge(x: FloatArray, y: FloatArray, p: Parameters) -> FittedModel:
    made = _sklearn("linear_model").Ridge(alpha=p["alpha"]).fit(x, y)
    return Linear(float(made.intercept_), np.asarray(made.coef_, dtype=float))


def _nnls(x: FloatArray, y: FloatArray, p: Parameters) -> FittedModel:
    lasso = _sklearn("linear_model").Lasso(alpha=p["alpha"], positive=True, max_iter=2000)
    # Collinear products converge slowly, and the best so far is what the study keeps too.
    made, converged = _searched(lasso, x, y)
    return Linear(float(made.intercept_), np.asarray(made.coef_, dtype=float), converged)


def _searched(machine: Any, x: FloatArray, y: FloatArray) -> tuple[Any, bool]:
    """Return the fitted machine, and whether its search converged before its rounds were over."""
    import warnings

    slow = _sklearn("exceptions").ConvergenceWarning
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        made = machine.fit(x, y)
    for one in said:
        if not issubclass(one.category, slow):
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    return made, not any(issubclass(one.category, slow) for one in said)


def _stepwise(x: FloatArray, y: FloatArray, p: Parameters) -> FittedModel:
    intercept, weights = stepwise(x, y, p["p_to_add"], p["p_to_remove"], int(p["max_iter"]))
    return Linear(intercept, weights)


def _svr(x: FloatArray, y: FloatArray, p: Parameters) -> FittedModel:
    machine = _sklearn("svm").SVR(
        C=p["C"], epsilon=p["epsilon"], gamma=p["gamma"], kernel=p["kernel"], degree=p["degree"],
        max_iter=_LIBSVM_ROUNDS, cache_size=200,
    )  # fmt: skip
    made, converged = _searched(machine, x, y)  # hp-selection judges what it found
    level, duals = float(made.intercept_[0]), np.asarray(made.dual_coef_, dtype=float)[0]
    support = np.asarray(made.support_vectors_, dtype=float)
    if p["kernel"] == "linear":
        return Linear(level, duals @ support, converged)
    return SupportVectors(
        level, support, duals, float(p["gamma"]), int(p["degree"]), p["kernel"], converged
    )


def _tree(x: FloatArray, y: FloatArray, p: Parameters) -> FittedModel:
    made = _sklearn("tree").DecisionTreeRegressor(random_state=SEED, **p).fit(x, y)
    return _joined([made.tree_], 1.0)


def _forest(x: FloatArray, y: FloatArray, p: Parameters) -> FittedModel:
    made = _sklearn("ensemble").RandomForestRegressor(random_state=SEED, **p).fit(x, y)
    return _joined([tree.tree_ for tree in made.estimators_], 1.0 / len(made.estimators_))


def _joined(trees: list[Any], share: float) -> Trees:
    """Return scikit-learn's trees one after another, each with such a share of the sum."""
    sizes = [tree.node_count for tree in trees]
    roots = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)

    def all_of(name: str) -> NDArray[Any]:
        return np.concatenate([np.asarray(getattr(tree, name)).reshape(-1) for tree in trees])

    shift = np.repeat(roots, sizes)
    left, right = (all_of(name).astype(np.int64) for name in ("children_left", "children_right"))
    return Trees(
        base=0.0, roots=roots, feature=np.maximum(all_of("feature"), 0).astype(np.int64),
        threshold=all_of("threshold").astype(float), left=np.where(left < 0, -1, left + shift),
        right=np.where(right < 0, -1, right + shift), value=all_of("value") * share, strict=False,
    )  # fmt: skip


def _booster(x: FloatArray, y: FloatArray, p: Parameters) -> Any:
    try:
        import xgboost
    except ModuleNotFoundError as error:
        raise MissingExtraError("a regression of the Ray study", "xgboost", "learn") from error
    settings = {name: value for name, value in p.items() if name != "n_estimators"}
    settings |= {"tree_method": "hist", "seed": SEED, "nthread": 1, "verbosity": 0}
    data = xgboost.DMatrix(x.astype(np.float32), label=y)
    return xgboost.train(settings, data, num_boost_round=int(p["n_estimators"]))


def _xgboost(x: FloatArray, y: FloatArray, p: Parameters) -> FittedModel:
    saved = json.loads(bytes(_booster(x, y, p).save_raw("json")))["learner"]
    base = np.atleast_1d(json.loads(str(saved["learner_model_param"]["base_score"])))[0]
    trees = saved["gradient_booster"]["model"]["trees"]
    sizes = [len(tree["left_children"]) for tree in trees]
    roots = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)

    def all_of(name: str) -> NDArray[Any]:
        return np.concatenate([np.asarray(tree[name]) for tree in trees])

    shift = np.repeat(roots, sizes)
    left, right = all_of("left_children"), all_of("right_children")
    # A leaf's value stands where a split has its threshold.
    value = np.where(left < 0, all_of("split_conditions"), 0.0)
    return Trees(
        base=float(base), roots=roots, feature=all_of("split_indices").astype(np.int64),
        threshold=all_of("split_conditions").astype(np.float32).astype(float),
        left=np.where(left < 0, -1, left + shift).astype(np.int64),
        right=np.where(left < 0, -1, right + shift).astype(np.int64),
        value=value.astype(float), strict=True,
    )  # fmt: skip


def _mlp(x: FloatArray, y: FloatArray, p: Parameters) -> FittedModel:
    network = _sklearn("neural_network").MLPRegressor(
        hidden_layer_sizes=tuple(p["hidden"]), alpha=0.0, batch_size=min(_BATCH, len(x)), max_iter=int(p["epochs"]),
        learning_rate_init=float(p["learning_rate"]), tol=0.0, random_state=SEED,
        n_iter_no_change=int(p["epochs"]),
    )  # fmt: skip
    made, _ = _searched(network, x, y)  # it ends after its epochs
    return DenseNetwork(tuple(made.coefs_), tuple(made.intercepts_))


def _dummy(x: FloatArray, y: FloatArray, p: Parameters) -> FittedModel:
    return Linear(float(y.mean()), np.zeros(x.shape[1]))


_FITS: Mapping[str, Callable[[FloatArray, FloatArray, Parameters], FittedModel]] = {
    "Ridge": _ridge, "XGBoost": _xgboost, "DecisionTree": _tree, "RandomForest": _forest,
    "SVR": _svr, "NNLS": _nnls, "Stepwise": _stepwise, "MLP": _mlp, "Dummy": _dummy,
}  # fmt: skip
