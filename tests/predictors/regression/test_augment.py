"""Augment, partitions, stepwise and models: the Ray study's parts, each held to its rule."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from forerun.errors import MissingExtraError, RequestError
from forerun.predictors.regression.ray_ml import Columns, augmented, set_aside
from forerun.predictors.regression.techniques import (
    DEFAULTS,
    Regression,
    fitted,
    stepwise,
)
from forerun.predictors.saved import plain, restored


def columns(n: int = 24) -> Columns:
    rng = np.random.default_rng(0)
    kinds = np.array(["a", "b", "c"], dtype=object)[np.arange(n) % 3]
    return Columns(
        {"devices": 2.0 ** rng.integers(0, 5, n), "dataset_size": rng.uniform(10, 99, n)},
        {"workload": kinds},
    )


def test_classes_then_inverses_then_logarithms_then_products() -> None:
    names = augmented(columns(), 2).names
    assert names[:9] == (
        "[workload is a]", "[workload is b]", "[workload is c]", "devices", "dataset_size",
        "1/devices", "1/dataset_size", "ln devices", "ln dataset_size",
    )  # fmt: skip
    assert "dataset_size x 1/devices" in names
    assert "[workload is a] x ln devices" in names


def test_no_number_meets_its_inverse_and_no_class_another_of_its_column() -> None:
    for degree in (2, 3):
        for name in augmented(columns(), degree).names:
            factors = name.split(" x ")
            assert not {"devices", "1/devices"} <= set(factors)
            assert not {"dataset_size", "1/dataset_size"} <= set(factors)
            assert sum("workload" in factor for factor in factors) <= 1


def test_ernests_terms_are_there_where_size_and_machines_are() -> None:
    names = augmented(columns(), 1, sizes=("global_batch", "dataset_size")).names
    assert {"dataset_size x 1/devices", "ln devices"} <= set(names)


def test_constant_and_repeated_features_are_left_out() -> None:
    given = columns()
    numbers = {**given.numbers, "nodes": np.full(24, 2.0), "twice": 2 * given.numbers["devices"]}
    names = augmented(Columns(numbers, {}), 1).names
    assert not any("nodes" in name or "twice" in name for name in names if name != "twice")
    matrix = augmented(Columns(numbers, {}), 2).matrix(Columns(numbers, {}))
    assert (matrix.std(axis=0) > 0).all()


@pytest.mark.parametrize(
    ("numbers", "found"),
    [({"devices": np.array([1.0, 0.0])}, "devices is not above 0"),
     ({"devices": np.array([1.0, np.nan])}, "devices is not above 0"),
     ({"devices": np.array([2.0, 2.0])}, "no column changes"),
     ({f"x{i}": np.random.default_rng(i).uniform(1, 2, 9) for i in range(30)}, "more than 2000")],
)  # fmt: skip
def test_what_makes_no_features_is_refused(numbers: dict[str, np.ndarray], found: str) -> None:
    with pytest.raises(RequestError, match=found):
        augmented(Columns(numbers, {}), 2)


@pytest.mark.parametrize("folds", [0, 5])
def test_every_row_is_on_one_side(folds: int) -> None:
    parts = set_aside(np.arange(23), 1, folds)
    for fit, judged in parts:
        assert sorted([*fit, *judged]) == list(range(23))
    if folds:
        assert sorted(np.concatenate([judged for _, judged in parts])) == list(range(23))


@pytest.mark.parametrize("folds", [0, 5])
def test_repeats_of_a_configuration_stand_on_one_side(folds: int) -> None:
    of = np.array([3, 1, 1, 7, 3, 9, 9, 9, 7, 1])
    for seed in range(5):
        for fit, judged in set_aside(of, seed, folds):
            assert not set(of[fit]) & set(of[judged])
            assert sorted([*fit, *judged]) == list(range(10))
    ((fit, judged),) = set_aside(np.zeros(10, dtype=int), 0)
    assert (len(fit), len(judged)) == (8, 2)  # of one configuration, rows are what there is


def test_stepwise_takes_in_what_matters_and_leaves_out_the_rest() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 8))
    y = 3 + 2 * x[:, 1] - x[:, 5] + 0.05 * rng.normal(size=60)
    intercept, weights = stepwise(x, y, 0.01, 0.05, 100)
    assert {1, 5} <= set(np.flatnonzero(weights))
    assert np.count_nonzero(weights) <= 4
    assert [intercept, weights[1], weights[5]] == pytest.approx([3, 2, -1], abs=0.1)


def test_stepwise_takes_out_what_better_features_made_needless() -> None:
    """A mixture of two enters first, and leaves when both are in."""
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(2, 80))
    x = np.stack([a + b + 0.3 * rng.normal(size=80), a, b], axis=1)
    _, weights = stepwise(x, a + b + 0.01 * rng.normal(size=80), 0.05, 0.1, 100)
    assert np.flatnonzero(weights).tolist() == [1, 2]


def test_stepwise_bears_repeated_columns_and_few_rows() -> None:
    x = np.repeat(np.arange(4.0)[:, None], 3, axis=1)
    intercept, weights = stepwise(x, 1 + 2 * x[:, 0], 0.05, 0.1, 100)
    assert intercept + x @ weights == pytest.approx(1 + 2 * x[:, 0])


@pytest.mark.parametrize("technique", list(DEFAULTS))
def test_a_technique_is_arrays_that_say_what_its_library_says(technique: str) -> None:
    pytest.importorskip("sklearn")
    rng = np.random.default_rng(3)
    x = rng.uniform(0, 1, (120, 4)).astype(np.float32).astype(float)
    y = 1 + 4 * x[:, 0] + 2 * (x[:, 1] > 0.5) + 0.05 * rng.normal(size=120)
    given = {"C": 5.0} if technique == "SVR" else {}
    model = fitted(technique, given, x, y)
    again = restored(Regression, json.loads(json.dumps(plain(model))))
    assert again.predict(x) == pytest.approx(model.predict(x), rel=1e-9)
    error = np.mean(np.abs(model.predict(x) - y) / y)
    assert error < (0.5 if technique == "Dummy" else 0.2)


def test_trees_and_machines_in_numpy_are_those_of_the_libraries() -> None:
    sklearn = pytest.importorskip("sklearn.svm")
    xgboost = pytest.importorskip("xgboost")
    rng = np.random.default_rng(4)
    x = rng.uniform(0, 1, (200, 3)).astype(np.float32).astype(float)
    y = 1 + np.sin(6 * x[:, 0]) + x[:, 1]
    given = DEFAULTS["XGBoost"]
    settings = {k: v for k, v in given.items() if k != "n_estimators"}
    ours = fitted("XGBoost", {}, x, y)
    z, label = (x - x.mean(axis=0)) / x.std(axis=0), (y - y.mean()) / y.std()
    theirs = xgboost.train(
        {**settings, "tree_method": "hist", "seed": 0, "nthread": 1},
        xgboost.DMatrix(z, label=label), num_boost_round=500,
    ).predict(xgboost.DMatrix(z))  # fmt: skip
    assert ours.predict(x) == pytest.approx(y.mean() + y.std() * theirs, rel=1e-4)
    machine = sklearn.SVR(kernel="linear", C=1.0, epsilon=0.05).fit(z, label)
    theirs = y.mean() + y.std() * machine.predict(z)
    assert fitted("SVR", {"C": 1.0}, x, y).predict(x) == pytest.approx(theirs, rel=1e-6)


def test_the_weights_of_nnls_are_not_negative() -> None:
    pytest.importorskip("sklearn")
    rng = np.random.default_rng(5)
    x = rng.uniform(0, 1, (50, 3))
    model = fitted("NNLS", {}, x, 3 - 2 * x[:, 0] + x[:, 1])
    assert (model.model.weights >= 0).all()  # type: ignore[union-attr]


def test_an_unknown_technique_or_parameter_is_refused_by_name() -> None:
    x, y = np.ones((3, 1)), np.ones(3)
    with pytest.raises(RequestError, match="did you mean Ridge"):
        fitted("ridge", {}, x, y)
    with pytest.raises(RequestError, match=r"Ridge with alfa.*alpha"):
        fitted("Ridge", {"alfa": 1}, x, y)


@pytest.mark.parametrize(("technique", "module"), [("Ridge", "sklearn.linear_model"), ("XGBoost", "xgboost")])  # fmt: skip
def test_a_library_that_is_not_installed_is_named_with_its_extra(
    technique: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'forerun\[learn\]'"):
        fitted(technique, {}, np.ones((3, 1)), np.ones(3))
