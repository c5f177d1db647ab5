"""Commands of the pages: each runs as it is printed, and by the very recipe that the page describes."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forerun.predictors.regression import ray_ml
from forerun.registry import load
from forerun.systems.recipe import predictor_spec

Run = Callable[..., Any]
# The others need a Ray cluster, a network of one's own or minutes; their own tests run them.
PAGES = ("ray_ml", "ernest", "generic_model", "cherrypick")
COMMANDS = [(name, text) for name in PAGES for text in load("systems", name).commands]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the files that the commands name, and keep the grid small."""
    for module in ("sklearn", "xgboost"):
        pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ray_ml, "GRIDS", {"Ridge": {"alpha": (0.1, 1.0)}})
    rng = np.random.default_rng(0)
    rows = ["workload,device,devices,global_batch,dataset_size,price_usd_per_hour,time_to_train_s"]
    for devices in (1, 2, 4, 8):
        for size in (1000, 2000, 4000):
            for batch in (32, 64):
                seconds = (5 + 0.01 * size / devices + 0.5 * devices) * rng.uniform(0.98, 1.02)
                rows.append(f"net,core,{devices},{batch},{size},{devices},{seconds:.6g}")
    Path("RUNS.csv").write_text("\n".join(rows) + "\n")
    Path("JOBS.csv").write_text(
        "workload,device,devices,global_batch,dataset_size\nnet,core,4,32,1500\n"
    )


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("name", "text"), COMMANDS, ids=[text for _, text in COMMANDS])
def test_each_command_runs_as_the_page_prints_it(name: str, text: str, forerun: Run) -> None:
    program, *words = shlex.split(text)
    assert program == "forerun"
    done = forerun(*words)
    assert done.code in (0, None), done.err
    written = Path("MODEL.json")
    if written.exists():  # by the recipe: the saved settings are those of the page
        kept = json.loads(written.read_text())
        published = load("systems", name).part("predictor").settings
        found = {**kept, **kept.get("settings", {})}
        assert {key: found[key] for key in published} == dict(published)


@pytest.mark.parametrize("name", PAGES)
def test_each_command_asks_for_the_recipe_of_its_page(name: str) -> None:
    """`--system NAME`, or the searcher of the page; `--predictor` with other settings is another recipe."""
    for text in load("systems", name).commands:
        assert recipe_asked(text) == name


def recipe_asked(text: str) -> str:
    found = re.search(r"--(?:system|searcher) (\S+)", text)
    return found.group(1) if found else ""


def test_a_command_with_another_recipe_is_found() -> None:
    """The break: the command that the page of the Ray study had before."""
    assert recipe_asked("forerun evaluate --runs R.csv --predictors ray-ml,ernest") != "ray_ml"
    assert predictor_spec("ray_ml") != "ray-ml"


@pytest.mark.usefixtures("files")
def test_fit_prints_how_each_regression_did_on_training_selection_and_test_rows(
    forerun: Run,
) -> None:
    words = ("fit", "--runs", "RUNS.csv", "--predictor", "ray-ml:techniques=Ridge+Dummy")
    text = forerun(*words, "--out", "A.json").out
    rows = forerun(*words, "--out", "B.json", "--json").json()["experiments"]
    assert {row["technique"] for row in rows} == {"Ridge", "Dummy", "PowerLaw"}
    for row in rows:
        for part in ("training", "hp_selection", "validation"):
            assert f"{row[f'{part}_mape']:.1f}" in text
            assert f"{row[f'{part}_rmse']:.4f}" in text
            assert f"{row[f'{part}_r2']:.3f}" in text
    assert all(word in text for word in ("training MAPE %", "selection RMSE s", "test R2"))
