"""The Ray study (Filippini, Ardagna): how rows are set aside, who wins, and what does not extrapolate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.ray_study import all_of, splits, without
from forerun.advisor.given_runs import runs_of as runs_of_files
from forerun.catalog import load_catalog
from forerun.evaluate import evaluate
from forerun.evaluate.splits import folds_of, parse_split, rows_where
from forerun.predictors.regression.ray_ml import (
    AutoMLSettings,
    Columns,
    RayGroup,
    RayML,
    run_experiments,
    set_aside,
)
from forerun.registry import load
from forerun.systems.recipe import System
from forerun.tables import Table
from forerun.tables.conditions import parse_condition

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
PASSES = RESULTS / "ray-study-by-chance-2026-11-22" / "passes.csv"
SYSTEM: System = load("systems", "ray_ml")
WORKERS = np.tile([1.0, 2, 4, 8, 16], 12)
SIZE = np.repeat(np.geomspace(1e3, 1e5, 12), 5)
SECONDS = 5.0 + 0.02 * SIZE / WORKERS + 0.3 * WORKERS
COLUMNS = Columns({"devices": WORKERS, "dataset_size": SIZE}, {})


def judged(text: str) -> NDArray[np.bool_]:
    """Return which rows a split judges, (n,)."""
    assert SYSTEM.part("split").made() is parse_split
    table = Table.from_columns({"devices": list(WORKERS), "dataset_size": list(SIZE)}, "rows")
    (fold,) = folds_of(parse_split(text), table)
    found = np.zeros(len(WORKERS), dtype=bool)
    found[fold.test] = True
    return found


def outcome(seconds: NDArray[np.float64], **changes: Any) -> RayGroup:
    pytest.importorskip("sklearn", reason="the extra `learn` is not installed")
    usual: dict[str, Any] = {
        "techniques": ("Ridge", "DecisionTree", "Dummy"), "degree": 1,
    }  # fmt: skip
    return run_experiments(
        COLUMNS, seconds, AutoMLSettings(**{**usual, **changes}), ("dataset_size",)
    )


def test_the_recipe_searches_by_grid_and_lets_the_winner_answer_everywhere() -> None:
    predictor = SYSTEM.part("predictor").made()
    assert isinstance(predictor, RayML)
    assert predictor.settings.beyond == "winner"
    assert predictor.settings.search == "grid"


def test_interpolation_judges_every_hth_value_from_the_smallest_on() -> None:
    """The trap of the rule: it starts at index 0, so that nothing below the smallest judged teaches."""
    assert set(WORKERS[judged("interpolation:devices")]) == {1, 4, 16}
    assert set(WORKERS[judged("interpolation:devices=every3")]) == {1, 8}
    assert set(WORKERS[judged("interpolation:devices=2,8")]) == {2, 8}


def test_extrapolation_judges_a_row_if_any_listed_column_is_above_its_bound() -> None:
    found = judged("extrapolation:devices=8,dataset_size=20000")
    assert (found == ((WORKERS > 8) | (SIZE > 20000))).all()
    assert WORKERS[~found].max() == 8.0  # strictly above is judged: the bound itself teaches


def test_the_winner_is_chosen_on_hyper_parameter_selection_and_never_on_validation() -> None:
    order = np.lexsort((SECONDS, COLUMNS.configurations))  # in which rows are set aside
    ((_, inside),) = set_aside(COLUMNS.configurations[order], 0)
    aside = np.isin(np.arange(len(SECONDS)), order[inside])
    # Validation alone would choose the mean of what is fitted, each row weighing 1 / y^2.
    fitted = SECONDS[~aside]
    mean = np.sum(1.0 / fitted) / np.sum(1.0 / fitted**2)
    plain, after = outcome(SECONDS), outcome(np.where(aside, mean, SECONDS))

    def told(found: RayGroup, which: str) -> dict[str, float]:
        return {e.technique: float(e.scores[which]["mape"]) for e in found.experiments}

    assert told(after, "hp_selection") == pytest.approx(told(plain, "hp_selection"))
    assert told(after, "validation")["Dummy"] < 0.1 < min(told(plain, "validation").values())
    assert after.experiments[0].technique == plain.experiments[0].technique
    assert all(e.error >= plain.experiments[0].error for e in plain.experiments)


def test_trees_do_not_extrapolate_in_the_workers_and_linear_models_of_inverses_do() -> None:
    """The trap of the pool: a tree answers for 64 workers what it answers for 16."""
    pytest.importorskip("sklearn", reason="the extra `learn` is not installed")
    asked = Columns({"devices": np.array([16.0, 64.0])}, {})
    said = {}
    for technique in ("Stepwise", "DecisionTree"):
        settings = AutoMLSettings(techniques=(technique,), degree=1, beyond="winner")
        found = run_experiments(Columns({"devices": WORKERS}, {}), 2.0 + 160.0 / WORKERS, settings)
        said[technique] = found.winner.predict(found.features.matrix(asked))
    assert said["DecisionTree"][1] == said["DecisionTree"][0]
    assert said["DecisionTree"][1] > 2 * (2.0 + 160.0 / 64)
    assert said["Stepwise"][1] == pytest.approx(2.0 + 160.0 / 64, rel=0.01)


def test_all_three_sets_are_scored_by_mape_rmse_and_r2() -> None:
    for experiment in outcome(SECONDS).experiments:
        for name in ("training", "hp_selection", "validation"):
            assert set(experiment.scores[name]) == {"mape", "rmse", "r2"}


def test_epochs_on_more_and_other_workers_of_the_lab_are_foretold() -> None:
    """Passes that chose no setting, by the recipe's linear techniques: between measured workers, then beyond."""
    pytest.importorskip("sklearn", reason="the extra `learn` is not installed")
    table = without(all_of([PASSES]), ("step_time_s", "samples_per_s", "sync_time_s"))
    runs, found = runs_of_files([table], load_catalog()), []
    linear = replace(
        SYSTEM.part("predictor").made().settings, techniques=("Ridge", "NNLS", "Stepwise")
    )
    for split, where in list(splits(table).values())[:2]:
        some = rows_where(runs, [parse_condition(text) for text in where], "the passes")
        score = evaluate({"passes": some}, [RayML(linear)], parse_split(split))
        found.append(score.of("ray-ml", "passes").mape)
    assert found == pytest.approx([8.7, 12.1], abs=0.2)
