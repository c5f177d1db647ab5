"""RayML: the study's experiments: the winner by its set alone, none repeated, and honest bands."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("xgboost")

from forerun.catalog import load_catalog
from forerun.errors import MissingExtraError, RequestError
from forerun.predictors.regression import techniques
from forerun.predictors.regression.ray_ml import (
    AutoMLSettings,
    Columns,
    RayGroup,
    RayML,
    run_experiments,
    set_aside,
)
from forerun.tables import Jobs, Runs, Table
from forerun.tables.files import read_table
from forerun.testing import PredictorContract
from forerun.testing.samples import tiny_runs
from forerun.workloads.rows import jobs_from_table, runs_from_table
from tests.needs import published
from tests.predictors.laws.rows import UnfittedContract

CATALOG = load_catalog()
FAST = AutoMLSettings(degree=1, techniques=("Ridge", "Stepwise", "DecisionTree", "Dummy"))


def table(**columns: Any) -> Table:
    n = len(columns["devices"])
    given: dict[str, Any] = {"workload": "net", "device": "core", **columns}
    spread = {k: ([v] * n if isinstance(v, str) else list(v)) for k, v in given.items()}
    return Table.from_columns(spread, "sample rows")


def jobs_of(**columns: Any) -> Jobs:
    return jobs_from_table(table(**columns), CATALOG)


def runs_of(**columns: Any) -> Runs:
    return runs_from_table(table(**columns), CATALOG)


def scaling(noise: float = 0.02, most: int = 16, seed: int = 0, **columns: Any) -> Runs:
    """Return runs whose work is shared by the devices, and which wait for each of them."""
    counts = [k for k in (1, 2, 3, 4, 6, 8, 12, 16) if k <= most]
    devices, size = np.repeat(counts, 6), np.tile([1e3, 2e3, 4e3, 8e3, 1.6e4, 3.2e4], len(counts))
    off = np.exp(np.random.default_rng(seed).normal(0, noise, len(devices)))
    seconds = (5 + 0.01 * size / devices + 0.5 * devices) * off
    return runs_of(devices=devices, dataset_size=size, time_to_train_s=seconds, **columns)


class TestRayML(PredictorContract):
    """Fitted to small transformers."""

    def make_predictor(self) -> RayML:
        return RayML(FAST).fit(tiny_runs())


class TestUnfittedRayML(UnfittedContract):
    """Without runs it answers nothing, and keeps the rest of the contract."""

    def make_predictor(self) -> RayML:
        return RayML(FAST)


def test_the_winner_errs_least_on_its_own_set_whatever_validation_says() -> None:
    model = RayML(FAST).fit(scaling())
    assert {row["kind"] for row in model.report} == {"net on core"}
    won = [row for row in model.report if row["won"]]
    assert len(won) == 1
    assert won[0]["hp_selection_mape"] == min(row["hp_selection_mape"] for row in model.report)
    figures = {f"{part}_{name}" for part in ("training", "hp_selection", "validation")
               for name in ("mape", "rmse", "r2")}  # fmt: skip
    assert figures <= set(won[0])


def test_validation_never_chooses() -> None:
    """Rows set aside for validation are changed, and the same technique wins."""
    rng = np.random.default_rng(0)
    devices = np.linspace(1.0, 8.0, 60)  # every run is a configuration of its own, in their order
    seconds = 10 / devices * np.exp(rng.normal(0, 0.05, 60))
    columns = Columns({"devices": devices}, {})
    ((_, judged),) = set_aside(np.arange(60), FAST.seed)
    first = run_experiments(columns, seconds, FAST)
    second = run_experiments(
        columns, np.where(np.isin(np.arange(60), judged), seconds * 50, seconds), FAST
    )
    assert first.experiments[0].technique == second.experiments[0].technique
    assert first.experiments[0].error == pytest.approx(second.experiments[0].error)
    apart = [done.experiments[0].scores["validation"]["mape"] for done in (first, second)]
    assert apart[1] > 5 * apart[0]


def test_a_law_of_its_features_is_found_and_goes_on_beyond_the_runs() -> None:
    model = RayML(replace(FAST, degree=2)).fit(scaling(noise=0.0, most=8))
    truth = 5 + 0.01 * 8e3 / 16 + 0.5 * 16
    answer = model.predict(jobs_of(devices=[5, 16], dataset_size=[5e3, 8e3]))
    assert answer.quantity == "run"
    assert answer.seconds[0, 1] == pytest.approx(5 + 10 + 2.5, rel=0.02)
    assert answer.seconds[1, 1] == pytest.approx(truth, rel=0.1)


def test_beyond_the_runs_a_tree_that_won_does_not_answer_unless_it_is_asked_to() -> None:
    trees = replace(FAST, techniques=("DecisionTree", "Ridge"))
    runs = runs_of(devices=np.tile([1, 2, 4, 8], 8), dataset_size=np.full(32, 10.0),
                   time_to_train_s=np.tile([80, 40, 20, 10], 8) + np.arange(32) % 3)  # fmt: skip
    asked = jobs_of(devices=[8, 32], dataset_size=[10.0, 10.0])
    faithful = RayML(replace(trees, beyond="winner")).fit(runs).predict(asked).seconds[:, 1]
    usual = RayML(trees).fit(runs)
    (group,) = usual.groups.values()
    assert faithful[0] == pytest.approx(11, rel=0.2)
    assert "DecisionTree" not in {group.experiments[one.place].technique for one in group.far}
    assert usual.predict(asked).seconds[1, 1] < 0.7 * usual.predict(asked).seconds[0, 1]


LAWS: dict[str, Callable[[Any], Any]] = {
    "40/n + 3 ln n": lambda n: 40 / n + 3 * np.log(n), "20/n + n/2": lambda n: 20 / n + n / 2,
    "100/n + 1": lambda n: 100 / n + 1, "n^-.7": lambda n: 10 * n**-0.7,
    "5 + 3 sqrt n": lambda n: 5 + 3 * np.sqrt(n),
}  # fmt: skip


@pytest.mark.parametrize("law", list(LAWS))
def test_four_times_beyond_the_runs_the_band_holds_the_truth(law: str) -> None:
    """Twenty draws of 1 to 16 devices with 3 % noise, asked at 64; whatever the law, 17 at the least."""
    settings = AutoMLSettings(techniques=("Ridge", "NNLS", "Stepwise", "DecisionTree"))
    devices, asked = np.repeat([1.0, 2, 4, 8, 16], 4), Columns({"devices": np.array([64.0])}, {})
    held = 0
    for seed in range(20):
        off = np.exp(np.random.default_rng(seed).normal(0, 0.03, len(devices)))
        group = run_experiments(
            Columns({"devices": devices}, {}), LAWS[law](devices) * off, settings
        )
        low, _, high = group.answers(asked)[0][0]
        held += bool(low <= LAWS[law](64.0) <= high)
    assert held >= 17


def test_of_three_forms_that_two_values_cannot_tell_apart_the_time_never_falls_below_zero() -> None:
    """Shares .09 and .13 of a core were measured, .9 is asked: linear in the share would be negative."""
    share, devices = np.tile([0.09, 0.13], 12), np.repeat([1.0, 2, 3, 4], 6)
    seconds = 2.0 / share / devices + 0.3
    columns = Columns({"devices": devices, "cpus_per_worker": share}, {})
    group = run_experiments(columns, seconds, replace(FAST, degree=2))
    asked = Columns({"devices": np.array([2.0]), "cpus_per_worker": np.array([0.9])}, {})
    assert "cpus_per_worker" not in group.features.names
    assert group.answers(asked)[0][0, 1] == pytest.approx(2.0 / 0.9 / 2 + 0.3, rel=0.5)


def fitted_in(unit: float, errors: str = "relative") -> RayGroup:
    """Return what is chosen of 36 runs whose times, some 20 seconds, are in another unit."""
    runs = scaling(noise=0.05, most=6)
    columns = Columns({n: runs.table.numbers(n) for n in ("devices", "dataset_size")}, {})
    settings = AutoMLSettings(
        degree=1, techniques=("XGBoost", "NNLS", "SVR", "DecisionTree"), errors=errors,
        beyond="winner",
    )  # fmt: skip
    return run_experiments(columns, unit * runs.table.numbers("time_to_train_s"), settings)


# Powers of two: a product by them rounds nothing, so that no tie between splits is decided otherwise.
@pytest.mark.parametrize("errors", ["relative", "absolute"])
def test_what_is_chosen_is_the_same_at_every_unit_of_time(errors: str) -> None:
    """XGBoost's gamma, NNLS's alpha and SVR's epsilon meet values of one unit, whatever the clock's."""
    wanted = chosen(fitted_in(1.0, errors))
    for unit in (2.0**-20, 2.0**-10, 2.0**20):
        assert chosen(fitted_in(unit, errors)) == wanted, unit


def test_without_standardised_values_the_choice_would_hang_on_the_unit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The break of the test above: techniques meet the seconds as they are, and no gain exceeds gamma."""
    fits, found = dict(techniques._FITS), []
    for unit in (1.0, 2.0**-10):
        raw = {
            name: lambda x, y, w, p, fit=fit, unit=unit: fit(x, 20.0 * unit * y, w, p)
            for name, fit in fits.items()
        }
        monkeypatch.setattr(techniques, "_FITS", raw)
        found.append(chosen(fitted_in(unit)))
    assert found[0] != found[1]


def chosen(group: RayGroup) -> list[tuple[str, float]]:
    return [(done.technique, done.error) for done in group.experiments]


def test_the_band_grows_with_every_doubling_beyond_the_runs() -> None:
    answer = (
        RayML(FAST)
        .fit(scaling(most=8))
        .predict(jobs_of(devices=[8, 16, 32, 64], dataset_size=[8e3] * 4))
    )
    widths = np.log(answer.seconds[:, 2] / answer.seconds[:, 0])
    assert (np.diff(widths) > 0).all()
    assert (np.diff(answer.distance) > 0).all()


def test_nine_of_ten_new_runs_lie_within_the_band() -> None:
    inside = []
    for seed in range(8):
        model = RayML(replace(FAST, techniques=("Ridge",))).fit(scaling(noise=0.1, seed=seed))
        new = scaling(noise=0.1, seed=seed + 50)
        facts, seconds = new.table.numbers("time_to_train_s"), model.predict(new.jobs).seconds
        inside.append(np.mean((facts >= seconds[:, 0]) & (facts <= seconds[:, 2])))
    assert 0.82 <= np.mean(inside) <= 0.99


@pytest.mark.parametrize(("configurations", "repeats"), [(12, 1), (12, 5), (30, 3)])
def test_nine_of_ten_new_configurations_lie_within_the_band(
    configurations: int, repeats: int
) -> None:
    """Each configuration is off by something of its own, which its repeats share."""
    inside = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        times = np.repeat([repeats, 1], [configurations, 200])
        devices = rng.choice([1, 2, 3, 4, 6, 8, 12, 16], len(times))
        size = np.exp(rng.uniform(np.log(1e3), np.log(3e4), len(times))).round()
        truth = (5 + 0.01 * size / devices + 0.5 * devices) * np.exp(rng.normal(0, 0.06, len(size)))
        seconds = np.repeat(truth, times) * np.exp(rng.normal(0, 0.02, times.sum()))
        every = runs_of(devices=np.repeat(devices, times), dataset_size=np.repeat(size, times),
                        time_to_train_s=seconds)  # fmt: skip
        new = np.arange(len(every)) >= configurations * repeats
        said = RayML(FAST).fit(every.take(~new)).predict(every.take(new).jobs).seconds
        facts = seconds[new]
        inside.append(np.mean((facts >= said[:, 0]) & (facts <= said[:, 2])))
    assert 0.87 <= np.mean(inside) <= 0.99


def test_the_order_of_the_rows_changes_nothing() -> None:
    runs = scaling(noise=0.1)
    asked = jobs_of(devices=[3, 5, 32], dataset_size=[3e3, 5e3, 1e4])
    settings = replace(FAST, techniques=(*FAST.techniques, "RandomForest", "MLP"))
    plain = RayML(settings).fit(runs)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(runs))
        other = RayML(settings).fit(runs.take(order))
        assert other.report == plain.report
        assert (other.predict(asked).seconds == plain.predict(asked).seconds).all()


def test_a_fit_that_does_not_converge_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.predictors.regression.ray_ml.GRIDS", {"NNLS": {"alpha": (1e-6,)}})
    settings = AutoMLSettings(
        techniques=("NNLS", "Dummy"), search="grid", degree=3, beyond="winner", errors="absolute"
    )
    monkeypatch.setattr(techniques, "_LASSO_ROUNDS", 20)
    lasso = RayML(settings).fit(scaling(noise=0.1))
    assert lasso.report[0]["technique"] == "NNLS"
    assert lasso.report[0]["fits_converged"] < 1.0
    assert lasso.report[-1]["technique"] == "Dummy"
    assert lasso.report[-1]["fits_converged"] == 1.0
    again = RayML.from_json(lasso.to_json())
    asked = jobs_of(devices=[4], dataset_size=[4e3])
    for model in (lasso, again):
        assert model.predict(asked).warnings == (
            "net on core: the fit of NNLS did not converge; the best found serves",
        )
    assert "did not converge" in again.formulas["net on core"]
    assert RayML(FAST).fit(scaling()).warnings == ()


def test_a_loaded_model_is_fitted_again_as_it_was() -> None:
    settings = replace(FAST, techniques=("Ridge",), search="grid", seed=3)
    model = RayML(settings).fit(scaling())
    again = RayML.from_json(model.to_json())
    assert again.settings == settings
    assert again.fit(scaling()).report == model.report
    old = json.loads(model.to_json())
    old["settings"]["search"] = "gird"
    with pytest.raises(RequestError, match="did you mean grid"):
        RayML.from_json(json.dumps(old))


def test_hyper_parameters_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "forerun.predictors.regression.ray_ml.GRIDS", {"Ridge": {"alpha": (0.001, 0.1, 1000.0)}}
    )
    settings = replace(FAST, techniques=("Ridge",), search="grid")
    model = RayML(settings).fit(scaling())
    tried = [row["parameters"]["alpha"] for row in model.report if row["technique"] == "Ridge"]
    assert set(tried) == {0.001, 0.1, 1000.0}
    assert tried[0] < 1000.0


def test_what_it_has_no_runs_of_is_declined_by_name() -> None:
    model = RayML(FAST).fit(scaling())
    reasons = model.declines(jobs_of(devices=[4, 4, 4], dataset_size=[1e3, 1e3, np.nan],
                                     workload=["other", "net", "net"],
                                     device=["core", "abacus", "core"]))  # fmt: skip
    assert "too few runs of other on core" in str(reasons[0])
    assert "too few runs of net on abacus" in str(reasons[1])
    assert reasons[2] == "the row does not state dataset_size"


def test_kinds_with_few_runs_share_a_model_and_new_classes_are_declined() -> None:
    names = np.repeat([f"net-{i}" for i in range(4)], 7)
    devices = np.resize([1, 2, 4, 8], 28)
    runs = runs_of(devices=devices, workload=list(names), step_time_s=1 + 8 / devices)
    model = RayML(FAST).fit(runs)
    assert list(model.groups) == [()]
    known, new = model.declines(jobs_of(devices=[4, 4], workload=["net-1", "net-9"]))
    assert known is None
    assert "net-9" in str(new)


def test_too_few_runs_are_counted() -> None:
    with pytest.raises(RequestError, match=r"6 that ended have a time.*at least 8 runs"):
        RayML(FAST).fit(scaling().take(np.arange(6)))
    same = runs_of(devices=[4] * 12, time_to_train_s=np.linspace(1, 2, 12))
    with pytest.raises(RequestError, match="of which a number changes"):
        RayML(FAST).fit(same)


@pytest.mark.parametrize(
    ("change", "found"),
    [({"search": "gird"}, "did you mean grid"),
     ({"techniques": ()}, "has no technique"), ({"techniques": ("Lasso",)}, "none of that name"),
     ({"beyond": "trees"}, "no such choice")],
)  # fmt: skip
def test_settings_that_are_no_choice_are_refused(change: dict[str, Any], found: str) -> None:
    with pytest.raises(RequestError, match=found):
        RayML(replace(FAST, **change)).fit(scaling())


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(MissingExtraError, match=r"xgboost.*pip install 'forerun\[learn\]'"):
        RayML(replace(FAST, techniques=("XGBoost",))).fit(scaling())


def test_a_saved_predictor_answers_as_it_did_without_the_libraries(tmp_path: Path) -> None:
    settings = AutoMLSettings(degree=1, techniques=("XGBoost",))
    model, jobs = RayML(settings).fit(scaling()), jobs_of(devices=[5, 64], dataset_size=[5e3, 1e4])
    path = tmp_path / "model.json"
    path.write_text(model.to_json())
    assert RayML.from_json(model.to_json()).predict(jobs).seconds == pytest.approx(
        model.predict(jobs).seconds
    )
    code = (
        "import sys; from pathlib import Path\n"
        "from forerun.predictors.regression.ray_ml import RayML\n"
        "from forerun.testing.samples import tiny_jobs\n"
        f"RayML.from_json(Path({str(path)!r}).read_text()).predict(tiny_jobs())\n"
        "assert not {'sklearn', 'xgboost', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("spoil", "found"),
    [(lambda t: t[:-9], "not its JSON"), (lambda t: "[]", "not its JSON"),
     (lambda t: re.sub(r'"version": [0-9]+', '"version": 9', t, count=1), "version is 9"),
     (lambda t: t.replace('"weights"', '"os.system"'), "not its JSON"),
     (lambda t: t.replace('"places": [', '"places": [999, '), "not its JSON")],
)  # fmt: skip
def test_a_spoilt_model_is_refused(spoil: Callable[[str], str], found: str) -> None:
    text = RayML(replace(FAST, techniques=("Ridge",))).fit(scaling()).to_json()
    json.loads(text)
    with pytest.raises(RequestError, match=found):
        RayML.from_json(spoil(text))


def test_a_light_one_tries_less() -> None:
    light = RayML().light(scaling())(np.arange(len(scaling())))
    assert set(light.settings.techniques) < set(AutoMLSettings().techniques)
    assert light.predict(jobs_of(devices=[4], dataset_size=[4e3])).answered.all()


@pytest.mark.data
def test_tf_benchmarks_from_four_devices_to_eight() -> None:
    """2.3 % was measured; perfect scaling from one device errs by 22 % on the way to 64."""
    every = runs_from_table(read_table(published("tf_benchmarks")), CATALOG)
    far = every.table.numbers("devices") > 4
    model = RayML(AutoMLSettings(techniques=("Ridge", "NNLS", "Stepwise"))).fit(every.take(~far))
    said, facts = model.predict(every.take(far).jobs).seconds[:, 1], every.take(far).step_seconds()
    assert np.nanmedian(np.abs(said / facts - 1)) < 0.05


def test_a_linear_winner_is_printed_so_that_it_can_be_computed_again() -> None:
    model = RayML(replace(FAST, techniques=("Ridge",))).fit(scaling())
    (text,) = model.formulas.values()
    formula = text.removeprefix("seconds of a run = ").partition(" (Ridge")[0].partition(";")[0]
    place = {"devices": 4.0, "dataset_size": 8000.0}
    total = 0.0
    for sign, term in zip(*signed(formula), strict=True):
        number, *factors = term.split(" x ")
        value = sign * float(number)
        for factor in factors:
            value *= made(factor, place)
        total += value
    asked = jobs_of(devices=[4.0], dataset_size=[8000.0])
    assert total == pytest.approx(float(model.predict(asked).seconds[0, 1]), rel=1e-3)
    assert "90 % of runs (5 to 95 %)" in text


def signed(formula: str) -> tuple[list[float], list[str]]:
    """Return the signs and the terms of a printed sum."""
    pieces = formula.replace(" - ", " |-").replace(" + ", " |+").split(" |")
    signs = [-1.0 if piece.startswith("-") else 1.0 for piece in pieces]
    return signs, [piece.lstrip("+-") for piece in pieces]


def made(factor: str, place: dict[str, float]) -> float:
    if factor.startswith("ln "):
        return float(np.log(place[factor[3:]]))
    return 1 / place[factor[2:]] if factor.startswith("1/") else place[factor]


def test_a_winner_of_trees_is_said_to_be_a_table_with_what_it_splits_by() -> None:
    model = RayML(replace(FAST, techniques=("DecisionTree",))).fit(scaling())
    (text,) = model.formulas.values()
    assert "by trees (1), no formula, which split by " in text
    assert "dataset_size" in text


def test_settings_that_no_run_was_in_are_declined_in_plain_words() -> None:
    model = RayML(FAST).fit(scaling(most=4, framework=["torch", "tf", "mxnet", "paddle"] * 6))
    asked = jobs_of(devices=[4.0], dataset_size=[8000.0], framework="jax")
    assert model.predict(asked).declined[0] == "no run was in these settings; give some"
