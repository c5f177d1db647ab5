"""Saving: a model comes back as it was, and what is no model is told in words."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refit import changes_of

from forerun.errors import RequestError
from forerun.predictors.analytic import AnalyticPredictor
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.saving import (
    Learned,
    learned_of,
    round_off,
    rows_of,
    text_of,
    with_changes,
)
from forerun.testing.samples import tiny_jobs, tiny_runs

FITTED = AnalyticPredictor().fit(tiny_runs(mfu=0.2))
SAVED = json.loads(FITTED.to_json())


def test_a_model_answers_as_before_it_was_saved() -> None:
    back, jobs = AnalyticPredictor.from_json(FITTED.to_json()), tiny_jobs()
    np.testing.assert_array_equal(back.predict(jobs).seconds, FITTED.predict(jobs).seconds)
    np.testing.assert_array_equal(back.predict(jobs).peak_bytes, FITTED.predict(jobs).peak_bytes)
    assert back.constants == FITTED.constants
    assert (back.start, back.fitted_runs) == ("priors", FITTED.fitted_runs)
    assert 0.9 * len(jobs) < back.fitted_runs <= len(jobs)


def test_what_was_learned_comes_back_rounded() -> None:
    back = AnalyticPredictor.from_json(FITTED.to_json()).learned
    assert [e.name for e in back] == [e.name for e in FITTED.learned]
    for new, old in zip(back, FITTED.learned, strict=True):
        assert (new.unit, new.runs, new.sources) == (old.unit, old.runs, old.sources)
        for name in ("value", "low", "high", "prior", "log_sd", "prior_log_sd"):
            assert getattr(new, name) == pytest.approx(getattr(old, name), rel=6e-3)


def test_a_saved_fit_can_be_taught_further() -> None:
    runs = tiny_runs(mfu=0.2)
    back = AnalyticPredictor.from_json(FITTED.to_json())
    again = back.fit(runs)
    assert again.fitted_runs > 1.9 * back.fitted_runs
    np.testing.assert_allclose(
        again.predict(runs.jobs).seconds, FITTED.fit(runs).predict(runs.jobs).seconds, rtol=1e-6
    )


def test_each_constant_has_its_line() -> None:
    lines = FITTED.to_json().splitlines()
    for name in ("expert_imbalance", "tensor_efficiency", FITTED.learned[0].name):
        assert sum(line.startswith(f'  "{name}":') for line in lines) == 1


@given(st.floats(1e-9, 1e12), st.integers(2, 9))
def test_rounding_keeps_that_many_digits(value: float, digits: int) -> None:
    assert round_off(value, digits) == pytest.approx(value, rel=0.5 * 10.0 ** (1 - digits))


def test_only_what_departs_from_the_priors_is_a_change() -> None:
    prior = Constants()
    assert changes_of(prior) == {}
    moved = replace(prior, tile=64.0, link_efficiency={**prior.link_efficiency, "nvlink": 0.5})
    assert changes_of(moved) == {"tile": 64.0, "link_efficiency": {"nvlink": 0.5}}
    assert with_changes(prior, changes_of(moved)) == moved


def test_every_constant_can_be_saved() -> None:
    plain = asdict(Constants())
    assert set(plain) == {f.name for f in fields(Constants)}
    assert with_changes(Constants(), json.loads(json.dumps(plain))) == Constants()


def test_rows_of_learned_are_read_back() -> None:
    entry = Learned("launch_seconds", "s", 4e-6, 3e-6, 5e-6, 4e-6, 0.1, 0.4, 7, ("a", "b"))
    assert learned_of(rows_of([entry])) == (entry,)


def spoilt(change: Callable[[dict[str, Any]], object]) -> str:
    saved = json.loads(json.dumps(SAVED))
    change(saved)
    return json.dumps(saved)


SPOILT: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "older": (lambda s: s.update(version=2), "its version is 2"),
    "of no version": (lambda s: s.pop("version"), "its version is 1"),
    "text for a number": (lambda s: s["constants"].update(tile="wide"), "tile is 'wide'"),
    "not finite": (lambda s: s["constants"]["tensor_efficiency"].update(matmul=float("nan")),
                   r"tensor_efficiency\[matmul\] is nan"),
    "negative": (lambda s: s["constants"].update(launch_seconds=-1e-6), "launch_seconds is -1e-06"),
    "a truth": (lambda s: s["constants"].update(tile=True), "tile is True"),
    "no such constant": (lambda s: s["constants"].update(magic=1), "'magic' is no constant"),
    "no such framework": (lambda s: s["constants"]["frameworks"].update(magic={}), "magic"),
    "no such habit": (lambda s: s["constants"]["frameworks"]["jax"].update(magic=1), "jax"),
    "no constants": (lambda s: s.pop("constants"), "a part is missing"),
    "a list": (lambda s: s["constants"].update(run_counts=[1]), "of another shape"),
    "a short row": (lambda s: s["learned"].update(x=[1, 2]), "x has not the 9 values"),
    "a wrong count": (lambda s: s.update(fitted_runs="many"), "not its JSON"),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILT)
def test_what_is_no_model_is_told(name: str) -> None:
    change, said = SPOILT[name]
    with pytest.raises(RequestError, match=said) as caught:
        AnalyticPredictor.from_json(spoilt(change))
    assert caught.value.next_step == "fit it again"


@pytest.mark.parametrize("text", ["", "[1]", '"x"', FITTED.to_json()[:500]])
def test_what_is_not_whole_json_is_told(text: str) -> None:
    with pytest.raises(RequestError, match="not its JSON"):
        AnalyticPredictor.from_json(text)


def test_text_of_nothing_is_json_too() -> None:
    assert json.loads(text_of({"a": {}, "b": [1], "c": {"d": {"e": 1}}})) == {
        "a": {}, "b": [1], "c": {"d": {"e": 1}}
    }  # fmt: skip
