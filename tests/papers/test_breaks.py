"""Breaks: the code under each claim of a systems page is made wrong, and the test that shows the claim fails."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from forerun import registry
from forerun.domain.forecast import Forecasts
from forerun.predictors.analytic import partition, servers
from forerun.predictors.graphs import hypernetwork, predictddl
from forerun.predictors.laws import generic
from forerun.predictors.regression import ray_ml
from forerun.search.searchers import RandomSearch

PAPERS = "tests/papers/test_"
exchange, asynchronous = partition._exchange, servers.asynchronous
augmented, answers = ray_ml.augmented, predictddl.PredictDDL.predict


def ernest_features(size: Any, machines: Any) -> np.ndarray:
    """Return Ernest's terms where machines do not share the work."""
    m = np.asarray(machines, dtype=float)
    return np.stack([np.ones_like(m), size * m, np.log(m), m], axis=-1)


def start_alone(cost: Any, start: np.ndarray, *limits: float) -> generic.GenericFit:
    """Return the constants that a descent would begin with."""
    ended = np.ones(len(start), dtype=bool)
    return generic.GenericFit(start, cost.of(start), ended, cost.strength, cost.weights)


def numbers_alone(*given: Any) -> ray_ml.AugmentedFeatures:
    """Return features without inverses and logarithms."""
    terms = augmented(*given).terms
    return ray_ml.AugmentedFeatures(tuple(t for t in terms if all(f[0] == "x" for f in t)))


def untrained(one: hypernetwork.Descent) -> hypernetwork.Trained:
    """Return the weights that a descent begins with, whose loss stays."""
    first = hypernetwork.first_weights(one.seed, one.wanted)
    return hypernetwork.Trained(first, np.ones(one.steps), {})


def slow_answers(self: Any, jobs: Any) -> Any:
    """Return what a predictor says, after as long as a run of each network takes."""
    time.sleep(3.0)
    return answers(self, jobs)


def chain(tests: Any) -> dict[str, Any]:
    """Return what a test of the encoder is given: four products in a row."""
    graph = tests.graph_of([tests.CONV] * 4, [(0, 1), (1, 2), (2, 3)])
    return {"reference": tests.Reference(), "near": False, "graph": graph}


DATA = pytest.mark.data
# What shows the claim, what is made wrong, how, and what the test is given.
BREAKS: tuple[tuple[Any, ...], ...] = (
    (f"{PAPERS}cherrypick.py::test_three_starts_do_not_depend_on_what_was_measured_and_lie_apart",
     "search.cherrypick.STARTS", 4),
    (f"{PAPERS}cherrypick.py::test_even_where_nothing_is_to_be_gained_six_runs_are_made_and_no_more",
     "search.cherrypick.LEAST_RUNS", 9),
    (f"{PAPERS}cherrypick.py::test_it_stops_at_the_first_expected_improvement_below_ten_percent_after_six_runs",
     "search.cherrypick.LEAST_GAIN", 0.001),
    (f"{PAPERS}cherrypick.py::test_on_replayed_training_it_stops_early_and_often_short_of_the_best",
     "search.cherrypick.CherryPick.choose_among", RandomSearch.choose_among, {}, DATA),
    (f"{PAPERS}ernest.py::test_the_published_example_is_reproduced_to_five_digits",
     "predictors.laws.ernest.features", ernest_features),
    (f"{PAPERS}ernest.py::test_the_design_is_the_optimum_of_the_trace_criterion_within_the_budget",
     "search.design.column_scaled", np.asarray),
    (f"{PAPERS}ernest.py::test_runs_on_few_machines_foretell_those_on_more",
     "predictors.laws.ernest.features", ernest_features, {"name": "tf_benchmarks", "bound": "4", "stated": 2.3}, DATA),
    (f"{PAPERS}generic_model.py::test_the_constants_that_made_the_runs_are_found_to_one_percent",
     "predictors.laws.generic.MOST_EXPONENT", 1.0, {"mode": "fast"}),
    (f"{PAPERS}generic_model.py::test_the_fast_way_ends_no_higher_than_evolution_in_a_tenth_of_its_time",
     "predictors.laws.generic.descend", start_alone),
    (f"{PAPERS}generic_model.py::test_filters_kernels_and_activations_of_a_measured_network_are_in_one_expression",
     "predictors.laws.generic.Generic._shape", lambda self, group: ((), 0)),
    (f"{PAPERS}generic_model.py::test_one_expression_serves_three_frameworks",
     "predictors.laws.generic.MOST_EXPONENT", 0.3, {"framework": "PyTorch", "stated": 2.3}, DATA),
    ("tests/search/test_provisioning.py::test_the_optimum_equals_trying_everything_with_ties",
     "search.provisioning._target", lambda found, rows: np.zeros(len(rows)), {"batch": 0}),
    ("tests/predictors/analytic/test_partition.py::test_dense_layers_exchange_all_that_others_lack",
     "predictors.analytic.partition._exchange", lambda *given: 0.5 * exchange(*given)),
    (f"{PAPERS}kdd15.py::test_asynchronous_replicas_stop_paying_once_the_servers_are_busy",
     "predictors.analytic.servers.asynchronous",
     lambda one: asynchronous(replace(one, workers=np.ones_like(one.workers)))),
    (f"{PAPERS}kdd15.py::test_cut_steps_on_cpu_machines_are_foretold_from_a_probe",
     "predictors.analytic.partition._exchange", lambda *given: 0.0 * exchange(*given)),
    ("tests/predictors/graphs/test_hypernetwork.py::test_it_learns_and_repeats_itself_and_goes_on_where_it_was",
     "predictors.graphs.hypernetwork.descended", untrained),
    ("tests/predictors/graphs/test_encoder.py::test_states_equal_the_literal_equations",
     "predictors.graphs.encoder.FARTHEST", 1, chain),
    (f"{PAPERS}predictddl.py::test_ernest_with_runs_of_its_own_errs_less_and_takes_ten_times_as_long",
     "predictors.laws.ernest.features", ernest_features),
    (f"{PAPERS}predictddl.py::test_ernest_with_runs_of_its_own_errs_less_and_takes_ten_times_as_long",
     "predictors.graphs.predictddl.PredictDDL.predict", slow_answers),
    (f"{PAPERS}ray_ml.py::test_interpolation_judges_every_hth_value_from_the_smallest_on",
     "evaluate.splits._SIDES", {"interpolation": lambda split, table: every_row_but(table.numbers("devices") == 2)}),
    (f"{PAPERS}ray_ml.py::test_extrapolation_judges_a_row_if_any_listed_column_is_above_its_bound",
     "evaluate.splits._SIDES", {"extrapolation": lambda split, table: every_row_but(table.numbers("devices") <= 8)}),
    (f"{PAPERS}ray_ml.py::test_the_winner_is_chosen_on_hyper_parameter_selection_and_never_on_validation",
     "predictors.regression.ray_ml.Experiment.error", property(lambda one: one.scores["validation"]["mape"])),
    (f"{PAPERS}ray_ml.py::test_epochs_on_more_and_other_workers_of_the_lab_are_foretold",
     "predictors.regression.ray_ml.augmented", numbers_alone),
    (f"{PAPERS}scavenger.py::test_gamma_at_other_workers_and_batches_follows_from_one_measurement",
     "measure.noise._gamma", lambda phi, workers, batch: np.asarray(workers, float)),
    (f"{PAPERS}scavenger.py::test_steps_at_the_extremes_foretell_those_between",
     "search.scaling.non_negative", lambda *given: np.full((1, 2), 0.01)),
    (f"{PAPERS}scavenger.py::test_a_partial_search_foretells_trainings_of_the_lab",
     "search.scaling.Goodput.predict", lambda self, jobs: Forecasts.blank(len(jobs), "goodput")),
    (f"{PAPERS}scavenger.py::test_samples_fall_or_rise_with_the_batch_as_the_runs_do",
     "predictors.convergence.curve._SMALL_POWER", 1e-9),
)  # fmt: skip


def every_row_but(fitted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sides of a split that fits some rows and judges all others."""
    return fitted, ~fitted


def shown_by(shown: str) -> tuple[Any, Callable[..., None]]:
    """Return a module of tests, and its test of a name, without what draws its cases."""
    path, _, name = shown.partition("::")
    tests = import_module(path.removesuffix(".py").replace("/", "."))
    test = getattr(tests, name)
    return tests, test.hypothesis.inner_test if hasattr(test, "hypothesis") else test


@pytest.mark.parametrize(
    ("shown", "code", "wrong", "given"),
    [pytest.param(*one[:3], one[3] if one[3:] else {}, marks=one[4:]) for one in BREAKS],
)
def test_a_claim_whose_code_is_wrong_is_found(
    shown: str, code: str, wrong: Any, given: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tests, test = shown_by(shown)
    given = given(tests) if callable(given) else given
    if "monkeypatch" in inspect.signature(test).parameters:
        given = {**given, "monkeypatch": monkeypatch}
    monkeypatch.setattr(f"forerun.{code}", wrong)
    with pytest.raises(AssertionError):
        test(**given)


def test_every_claim_of_a_page_has_a_test_and_a_break() -> None:
    entries = [entry for entry in registry.entries("systems") if entry.origin == "forerun"]
    claims = {c.shown for e in entries for c in registry.load("systems", e.name).claims}
    assert claims <= {one[0] for one in BREAKS}, claims - {one[0] for one in BREAKS}
