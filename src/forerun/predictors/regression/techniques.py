"""Techniques: the Ray study's regressions with its defaults, fitted by scikit-learn and XGBoost.

Each returns plain arrays (`models`): what is saved needs neither library again. Defaults and names
are those of the study's library; its "NNLS" is a Lasso whose weights cannot be negative.

MLP: a small network of dense layers, relu and dropout, trained by Adam on the squared error.

Stepwise: least squares whose features enter and leave by their p-values (Draper and Smith).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.errors import MissingExtraError, RequestError, one_of
from forerun.predictors.regression.models import Kernel, Linear, Model, Network, Scaled, Trees

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


Arrays = tuple[FloatArray, ...]

BATCH = 32
# Kingma and Ba, Adam (2015), section 2.
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


def trained(
    x: FloatArray,
    y: FloatArray,
    hidden: tuple[int, ...],
    dropout: float,
    learning_rate: float,
    epochs: int,
    seed: int,
) -> tuple[Arrays, Arrays]:
    """Return weights and biases of the layers.

    Args:
        x, y: (n, k) and (n,), best standardised.
        hidden: width of each hidden layer.
        dropout: share of a hidden layer that is left out of a step.
        learning_rate, epochs: of Adam.
        seed: of first weights, order and dropout.
    """
    rng = np.random.default_rng(seed)
    sizes = (x.shape[1], *hidden, 1)
    values: list[FloatArray] = []
    for n_in, n_out in pairwise(sizes):
        bound = np.sqrt(6.0 / (n_in + n_out))  # Glorot and Bengio 2010, equation 16
        values += [rng.uniform(-bound, bound, (n_in, n_out)), np.zeros(n_out)]
    first = [np.zeros_like(v) for v in values]
    second = [np.zeros_like(v) for v in values]
    step = 0
    for _ in range(epochs):
        order = rng.permutation(len(x))
        for start in range(0, len(x), BATCH):
            rows = order[start : start + BATCH]
            slopes = _slopes(values, x[rows], y[rows], dropout, rng)
            step += 1
            rate = learning_rate * np.sqrt(1 - BETA2**step) / (1 - BETA1**step)
            for v, a, b, g in zip(values, first, second, slopes, strict=True):
                a += (1 - BETA1) * (g - a)
                b += (1 - BETA2) * (g * g - b)
                v -= rate * a / (np.sqrt(b) + EPSILON)
    return tuple(values[0::2]), tuple(values[1::2])


def _slopes(
    values: list[FloatArray],
    x: FloatArray,
    y: FloatArray,
    dropout: float,
    rng: np.random.Generator,
) -> list[FloatArray]:
    """Return the gradient of the mean squared error in each weight and bias, by the chain rule."""
    layers = len(values) // 2
    inputs, masks = [x], []
    for i in range(layers - 1):
        h = inputs[-1] @ values[2 * i] + values[2 * i + 1]
        kept = (rng.random(h.shape) >= dropout) / (1.0 - dropout)
        masks.append(kept * (h > 0))
        inputs.append(h * masks[-1])
    out = inputs[-1] @ values[-2] + values[-1]
    delta = 2.0 * (out - y[:, None]) / len(x)
    slopes: list[FloatArray] = []
    for i in reversed(range(layers)):
        slopes = [inputs[i].T @ delta, delta.sum(axis=0), *slopes]
        if i:
            delta = (delta @ values[2 * i].T) * masks[i - 1]
    return slopes


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
    "MLP": {"hidden": (20, 10), "dropout": 0.2, "learning_rate": 0.001, "epochs": 100},
    "Dummy": {},
}  # fmt: skip
# Those that go on beyond what was measured.
EXTRAPOLATE = ("Ridge", "NNLS", "Stepwise")
SEED = 0
_LIBSVM_ROUNDS = 20_000


def fitted(technique: str, x: FloatArray, y: FloatArray, given: Parameters) -> Model:
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


def standardised(x: FloatArray, y: FloatArray, fit: Callable[..., Model]) -> Model:
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


def _ridge(x: FloatArray, y: FloatArray, p: Parameters) -> Model:
    made = _sklearn("linear_model").Ridge(alpha=p["alpha"]).fit(x, y)
    return Linear(float(made.intercept_), np.asarray(made.coef_, dtype=float))


def _nnls(x: FloatArray, y: FloatArray, p: Parameters) -> Model:
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


def _stepwise(x: FloatArray, y: FloatArray, p: Parameters) -> Model:
    intercept, weights = stepwise(x, y, p["p_to_add"], p["p_to_remove"], int(p["max_iter"]))
    return Linear(intercept, weights)


def _svr(x: FloatArray, y: FloatArray, p: Parameters) -> Model:
    machine = _sklearn("svm").SVR(
        C=p["C"], epsilon=p["epsilon"], gamma=p["gamma"], kernel=p["kernel"], degree=p["degree"],
        max_iter=_LIBSVM_ROUNDS, cache_size=200,
    )  # fmt: skip
    made, converged = _searched(machine, x, y)  # hp-selection judges what it found
    level, duals = float(made.intercept_[0]), np.asarray(made.dual_coef_, dtype=float)[0]
    support = np.asarray(made.support_vectors_, dtype=float)
    if p["kernel"] == "linear":
        return Linear(level, duals @ support, converged)
    return Kernel(
        level, support, duals, float(p["gamma"]), int(p["degree"]), p["kernel"], converged
    )


def _tree(x: FloatArray, y: FloatArray, p: Parameters) -> Model:
    made = _sklearn("tree").DecisionTreeRegressor(random_state=SEED, **p).fit(x, y)
    return _joined([made.tree_], 1.0)


def _forest(x: FloatArray, y: FloatArray, p: Parameters) -> Model:
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


def _xgboost(x: FloatArray, y: FloatArray, p: Parameters) -> Model:
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


def _mlp(x: FloatArray, y: FloatArray, p: Parameters) -> Model:
    weights, biases = trained(
        x, y, tuple(p["hidden"]), float(p["dropout"]), float(p["learning_rate"]),
        int(p["epochs"]), SEED,
    )  # fmt: skip
    return Network(weights, biases)


def _dummy(x: FloatArray, y: FloatArray, p: Parameters) -> Model:
    return Linear(float(y.mean()), np.zeros(x.shape[1]))


_FITS: Mapping[str, Callable[[FloatArray, FloatArray, Parameters], Model]] = {
    "Ridge": _ridge, "XGBoost": _xgboost, "DecisionTree": _tree, "RandomForest": _forest,
    "SVR": _svr, "NNLS": _nnls, "Stepwise": _stepwise, "MLP": _mlp, "Dummy": _dummy,
}  # fmt: skip
