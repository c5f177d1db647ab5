"""Predictors on columns of a user's own: laws read them as numbers, or are of one value of them."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from forerun.errors import RequestError
from forerun.predictors.choice.auto import Auto
from forerun.predictors.choice.questions import OWN, WORDS
from forerun.predictors.laws.ernest import Ernest
from forerun.predictors.laws.generic import FormRows, Generic
from forerun.predictors.laws.hierarchical import Hierarchical
from forerun.predictors.regression.gaussian import Gaussian
from forerun.predictors.regression.ray_ml import RayML
from forerun.tables import Runs, Table
from tests.tables.test_own_columns import FILTERS, KERNELS, own_runs, rows

TRUTH = rows().numbers("step_time_s")
FEW = RayML.with_options(techniques=("Ridge", "DecisionTree"))


def off(predictor: Generic | Gaussian | Auto | RayML, fit: Runs, asked: Runs) -> float:
    """Return the median error on the asked runs, all of which are answered."""
    found = predictor.fit(fit).predict(asked.jobs)
    assert not any(found.declined)
    return float(np.median(np.abs(found.seconds[:, 1] / asked.table.numbers("step_time_s") - 1)))


def parted(column: str, value: float) -> tuple[Runs, Runs]:
    runs = own_runs()
    there = runs.table.numbers(column) == value
    return runs.take(np.flatnonzero(~there)), runs.take(np.flatnonzero(there))


def test_the_generic_law_finds_their_powers_and_says_so() -> None:
    law = next(iter(Generic().fit(own_runs()).laws.values()))
    power = dict(zip([*law.form.numbers, *law.form.scaling], law.exponents, strict=True))
    assert power["kernel"] == pytest.approx(1.5, abs=0.02)
    assert power["filters"] == pytest.approx(0.8, abs=0.02)
    (text,) = Generic().fit(own_runs()).formulas.values()
    assert re.search(r"x \(kernel / 3\)\^1\.50 \[1\.\d\d, 1\.\d\d\]", text)
    assert "if activation = tanh" in text


def test_terms_or_factors_as_wished_or_as_runs_held_out_say() -> None:
    def parts(extrinsic: tuple[str, ...], mode: str = "fast") -> tuple[set[str], set[str]]:
        law = next(iter(Generic(mode=mode, extrinsic=extrinsic).fit(own_runs()).laws.values()))
        return {*law.form.numbers} - {"devices"}, {*law.form.scaling} - {"devices", "global_batch"}

    assert parts(("auto",)) == (set(), {"kernel", "filters"})
    assert parts(("none",)) == ({"kernel", "filters"}, set())
    assert parts(("kernel",)) == ({"filters"}, {"kernel"})
    with pytest.raises(RequestError, match="did you mean kernel"):
        Generic(extrinsic=("kernl",)).fit(own_runs())


def test_the_published_way_has_them_as_terms() -> None:
    runs = own_runs().take(np.arange(0, len(TRUTH), 2))
    law = next(iter(Generic(mode="faithful").fit(runs).laws.values()))
    assert {"kernel", "filters"} <= {*law.form.numbers}


@pytest.mark.parametrize(("column", "value"), [("kernel", KERNELS[1]), ("filters", FILTERS[1])])
def test_values_that_no_run_had_are_answered_between_others(column: str, value: float) -> None:
    fit, asked = parted(column, value)
    assert off(Generic(), fit, asked) < 0.02
    assert off(Gaussian(), fit, asked) < 0.15


def test_what_no_run_had_is_declined_by_laws_of_one_network() -> None:
    fit, asked = parted("kernel", KERNELS[2])
    for law in (Ernest().fit(fit), Hierarchical().fit(fit)):
        assert all("kernel=5" in str(why) for why in law.predict(asked.jobs).declined)
        assert not any(law.predict(fit.jobs).declined)


def test_another_word_or_a_held_number_is_declined() -> None:
    runs = own_runs()
    relu = runs.take(np.flatnonzero(runs.table.texts("activation") == "relu"))
    (why,) = {*Generic().fit(relu).predict(runs.jobs).declined} - {None}
    assert why == "its runs all have activation relu, and this is another"
    one = runs.take(np.flatnonzero(runs.table.numbers("kernel") == KERNELS[1]))
    whys = {*Generic().fit(one).predict(runs.jobs).declined} - {None}
    assert whys == {"its runs all have kernel 3, and this is another"}


def test_the_choice_goes_by_runs_beyond_them() -> None:
    fit, asked = parted("kernel", KERNELS[2])
    fitted = Auto().fit(fit)
    answer = fitted.predict(asked.jobs)
    assert {*answer.by} == {f"auto: generic ({WORDS[OWN]})"}
    assert np.median(np.abs(answer.seconds[:, 1] / asked.table.numbers("step_time_s") - 1)) < 0.05


def test_saved_and_read_again_they_answer_the_same() -> None:
    runs = own_runs()
    for made in (Generic().fit(runs), Gaussian().fit(runs), FEW.fit(runs)):
        again = type(made).from_json(made.to_json())
        np.testing.assert_array_equal(
            again.predict(runs.jobs).seconds, made.predict(runs.jobs).seconds
        )


def test_a_row_that_does_not_state_them_is_declined_with_their_name() -> None:
    runs = own_runs()
    asked = replace(runs.jobs, labels=Table({"workload": runs.table.texts("workload"), **{
        name: runs.table.numbers(name) for name in ("devices", "global_batch")
    }, "device": runs.table.texts("device")}, len(runs)))  # fmt: skip
    for made in (Generic(), Gaussian(), FEW):
        for why in made.fit(runs).predict(asked).declined:
            assert re.search("does not state (kernel|filters|activation)|in these settings", why)


def two_part_runs() -> Runs:
    """Return runs of which a step computes by kernel and filters, and talks by filters and devices."""
    table = rows()
    kernel, filters, devices = (table.numbers(n) for n in ("kernel", "filters", "devices"))
    noise = np.exp(0.02 * np.random.default_rng(3).normal(size=len(table)))
    computes = 1e-3 * kernel**2 * filters / 8 / devices
    talks = 4e-4 * filters**1.5 / 8 * np.sqrt(devices)
    return own_runs(table.with_columns(step_time_s=(computes + talks + 1e-3) * noise))


def test_a_product_of_its_own_is_added_where_that_errs_less() -> None:
    runs = two_part_runs()
    fit, asked = (runs.take(np.flatnonzero(np.arange(len(TRUTH)) % 4 == i)) for i in (0, 1))
    fit = runs.take(np.flatnonzero(np.arange(len(TRUTH)) % 4 != 1))
    assert off(Generic(), fit, asked) < 0.03
    assert off(Generic(products="0"), fit, asked) > 0.05
    law = next(iter(Generic().fit(runs).laws.values()))
    assert law.form.products == 1
    power = law.exponents.reshape(2, -1)
    of = dict(zip(law.form.scaling, power.T, strict=True))
    assert sorted(of["kernel"]) == pytest.approx([0.0, 2.0], abs=0.15)
    (text,) = Generic().fit(runs).formulas.values()
    assert text.count("(kernel / 3)^") == 2
    assert next(iter(Generic().fit(own_runs()).laws.values())).form.products == 0
    again = Generic.from_json(Generic().fit(runs).to_json())
    assert next(iter(again.laws.values())).form.products == 1


def test_slopes_of_products_are_those_of_differences() -> None:
    rng = np.random.default_rng(0)
    form = FormRows(*(rng.normal(size=(2, 7, k)) for k in (1, 3)), np.ones((2, 7, 2)), 2)
    exponents, coefficients = rng.normal(size=(2, form.exponents)), rng.uniform(size=(2, 6))
    slopes = form.slopes(form.columns(exponents), coefficients)
    for k in range(form.exponents):
        step = 1e-6 * np.eye(form.exponents)[k]
        ends = [form.columns(exponents + s * step) @ coefficients[:, :, None] for s in (1, -1)]
        np.testing.assert_allclose(
            slopes[:, :, k], (ends[0] - ends[1])[:, :, 0] / 2e-6, rtol=1e-5, atol=1e-9
        )
