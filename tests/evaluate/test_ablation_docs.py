"""The ablation: ideas that can be switched off, errors as evaluate counts them, and its page."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import yaml

from forerun.catalog import load_catalog
from forerun.evaluate import evaluate
from forerun.predictors.analytic import AnalyticPredictor, Constants, operations, step
from forerun.tables import read_table
from forerun.workloads.rows import runs_from_table

ROOT = Path(__file__).resolve().parents[2]


def script(path: str) -> ModuleType:
    """Return a script of the repository as a module, which finds those beside it."""
    folder = str((ROOT / path).parent)
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[Path(path).stem] = module
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
    return module


BENCH, BANDS = script("benchmarks/ablation.py"), script("benchmarks/band_ablation.py")
PAGE, IDEAS_CODE = script("docs/ablation_page.py"), sys.modules["ideas"]
SPEC: dict[str, Any] = yaml.safe_load((ROOT / "benchmarks/ablation.yaml").read_text())
SPLITS, IDEAS = BENCH.spec()
BAND_SPLITS, PARTS = BANDS.spec()
RESULTS = ROOT / "benchmarks" / "results"
KEPT: dict[str, Any] = json.loads((RESULTS / "ablation.json").read_text())
KEPT_BANDS: dict[str, Any] = json.loads((RESULTS / "band-ablation.json").read_text())
MODELS = ("gpt3-125m", "gpt3-350m", "gpt3-760m")


def test_the_page_is_what_its_script_writes() -> None:
    written = subprocess.run(
        [sys.executable, "docs/ablation_page.py"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout  # fmt: skip
    assert (ROOT / "docs" / "ablation.md").read_text() == written, "run `make docs`"


@pytest.mark.parametrize("split", [*SPLITS, *BAND_SPLITS], ids=lambda s: f"{s.table}-{s.case}")
def test_a_split_is_a_case_of_one_table_with_kept_results(split: Any) -> None:
    case = {c["name"]: c for c in BENCH.cases()}[split.case]
    assert len(case["runs"]) == 1
    assert split.table == "bands" or (split.table in PAGE.TABLES and split.figure in BENCH.FIGURES)
    kept = KEPT_BANDS if split.table == "bands" else KEPT
    if split.case not in kept:
        pytest.skip(f"{split.case} is not measured yet: run benchmarks/ablation.py")
    assert kept[split.case]["rows"] > 0


def test_names_are_used_once_and_results_are_of_what_is_there() -> None:
    for names in ([i.name for i in IDEAS], [s.case for s in SPLITS], [p.name for p in PARTS]):
        assert len(set(names)) == len(names)
    assert KEPT
    assert set(KEPT) <= {s.case for s in SPLITS}
    assert {name for found in KEPT.values() for name in found["ideas"]} <= {i.name for i in IDEAS}
    for found in KEPT_BANDS.values():
        assert set(found["parts"]) <= {p.name for p in PARTS}


@pytest.mark.parametrize("idea", IDEAS, ids=lambda i: str(i.name))
def test_an_idea_says_what_it_is_and_switching_it_off_changes_something(idea: Any) -> None:
    assert idea.idea
    assert idea.without
    changed = idea.priors() != Constants() or idea.frozen_families() or idea.fit
    assert changed or idea.in_code or idea.unfitted
    with BENCH.switched_off(idea):
        pass  # parts that a step does not have, and unknown laws, are refused
    if len(KEPT) == len(SPLITS):
        touched = [case for case, found in KEPT.items() if idea.name in found["ideas"]]
        assert touched, "no split is touched by it"


def test_a_constant_is_changed_for_all_keys_or_for_those_named() -> None:
    off = BENCH.Idea("x", constants={"link_latency": 1.0}).priors()
    assert set(off.link_latency.values()) == {1.0}
    off = BENCH.Idea("x", constants={"bandwidth_efficiency": {"*": 9.0, "optimizer": 0.5}}).priors()
    assert off.bandwidth_efficiency["optimizer"] == 0.5
    assert off.bandwidth_efficiency["matmul"] == 9.0


@pytest.mark.parametrize(
    "wrong", [{"constants": {"no_such": 1}}, {"frameworks": {"no_such": 1.0}}, {"frozen": ["no_such"]}]
)  # fmt: skip
def test_an_idea_that_names_nothing_is_refused(wrong: dict[str, Any]) -> None:
    idea = BENCH.Idea("x", **wrong)
    with pytest.raises((ValueError, AttributeError, TypeError)):
        (idea.priors(), idea.frozen_families())


def test_a_star_freezes_every_family_of_its_beginning() -> None:
    frozen = BENCH.Idea("x", frozen=["framework.*"]).frozen_families()
    assert "framework.host_seconds" in frozen
    assert all(name.startswith("framework.") for name in frozen)


@pytest.mark.parametrize("wrong", [{"parts": ["nonsense"]}, {"law": "nonsense"}])
def test_a_part_or_law_that_is_not_there_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="nonsense"), BENCH.switched_off(BENCH.Idea("x", **wrong)):
        pass


def _fail_inside(idea: Any) -> None:
    usual = step.step_parts
    with BENCH.switched_off(idea):
        assert step.step_parts is not usual
        raise KeyError(idea.name)


def test_formulas_come_back_after_an_error() -> None:
    usual = (step.step_parts, step.ONE_PROCESS, operations.unit_of)
    for law in IDEAS_CODE.LAWS:
        with pytest.raises(KeyError):
            _fail_inside(BENCH.Idea("x", parts=["imbalance"], law=law))
    assert usual == (step.step_parts, step.ONE_PROCESS, operations.unit_of)


def toy_table(folder: Path) -> None:
    """Write a table of measured steps: a world where hosts are twice as slow as the priors say."""
    lines = ["source,workload,framework,precision,device,devices,global_batch,micro_batch,dp,tp,pp"]
    lines += [
        f"toy,{name},Megatron-LM,fp16,a100-sxm-80gb,{dp * tp},{16 * dp},{micro},{dp},{tp},1"
        for name in MODELS for dp in (1, 4) for tp in (1, 2) for micro in (1, 4)
    ]  # fmt: skip
    path = folder / "toy.csv"
    path.write_text("\n".join(lines) + "\n")
    jobs = runs_from_table(read_table(path), load_catalog()).jobs
    slow = BENCH.Idea("slow", frameworks={"host_seconds": 200e-6}).priors()
    seconds = AnalyticPredictor(slow).predict(jobs).seconds[:, 1]
    rows = [f"{line},{s:.6g},ok" for line, s in zip(lines[1:], seconds, strict=True)]
    path.write_text("\n".join([f"{lines[0]},step_time_s,status", *rows]) + "\n")


@pytest.fixture(scope="module")
def divided(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """Return an exam of new models on the toy table, and the table's folder."""
    folder = tmp_path_factory.mktemp("runs")
    toy_table(folder)
    case = {"runs": ["toy"], "split": "leave-out:workload"}
    return BENCH.exam_of(BENCH.Split("toy", "toy", "mean", "plans"), case, folder), folder


@pytest.fixture(scope="module")
def foreseen(divided: tuple[Any, Path]) -> Any:
    """Return what it foresees with all ideas."""
    return BENCH.forecast(divided[0], BENCH.FULL)


def test_errors_are_those_that_evaluate_counts(divided: tuple[Any, Path], foreseen: Any) -> None:
    """The same folds, training_runs, fits and rows: the mean error agrees to a hundredth of a point."""
    asked, folder = divided
    runs = runs_from_table(read_table(folder / "toy.csv"), load_catalog())
    said = evaluate({"toy": runs}, [AnalyticPredictor()], "leave-out:workload").of("analytic")
    assert said.answered == len(foreseen)
    assert 100 * np.abs(foreseen / asked.measured - 1).mean() == pytest.approx(said.mape, abs=0.01)


def test_an_idea_that_the_world_has_is_missed(divided: tuple[Any, Path], foreseen: Any) -> None:
    """In a world of slow hosts forecasts without the host's floor are worse."""
    asked, _ = divided
    without = next(i for i in IDEAS if i.name == "host-floor")
    errors = [
        np.abs(found / asked.measured - 1).mean()
        for found in (foreseen, BENCH.forecast(asked, without))
    ]
    assert errors[1] > 1.5 * errors[0]


def test_an_idea_touches_only_what_it_speaks_of(divided: tuple[Any, Path]) -> None:
    by_name = {idea.name: idea for idea in IDEAS}
    touched = {name for name in by_name if BENCH.touches(divided[0], by_name[name])}
    assert {"host-floor", "calibration", "heavy-tails", "jitter"} <= touched
    assert not {"bubble", "scatter-gather", "zero3-overlap", "settings"} & touched


def test_forecasts_with_all_ideas_are_the_same_after_others_were_left_out(
    divided: tuple[Any, Path], foreseen: Any
) -> None:
    asked, _ = divided
    for name in ("half-gradients", "imbalance", "profiles"):
        BENCH.forecast(asked, next(i for i in IDEAS if i.name == name))
    assert np.array_equal(BENCH.forecast(asked, BENCH.FULL), foreseen)


def test_the_interval_of_a_difference() -> None:
    before = np.linspace(1.0, 9.0, 40)
    groups = np.repeat(np.arange(8), 5)
    assert BENCH.interval(before, before, groups, "median") == (0.0, 0.0)
    assert BENCH.interval(before, before + 5.0, groups, "mean") == pytest.approx((5.0, 5.0))
    mixed = before + np.where(groups == 0, 20.0, -1.0)
    low, high = BENCH.interval(before, mixed, groups, "mean")
    assert low < 0.0 < high


def test_a_difference_is_told_from_chance_or_not() -> None:
    found = {"full": 4.0, "ideas": {
        "sure": {"figure": 6.0, "low": 1.0, "high": 3.0},
        "unsure": {"figure": 6.0, "low": -1.0, "high": 3.0},
        "nothing": {"figure": 4.01, "low": 0.005, "high": 0.02},
        "harmful": {"figure": 3.0, "low": -1.5, "high": -0.5},
    }}  # fmt: skip
    cells = {name: PAGE.cell(found, name) for name in (*found["ideas"], "untouched")}
    assert cells == {"sure": "6.0 (+2.0)", "unsure": "6.0 (~)", "nothing": "4.0 (~)",
                     "harmful": "3.0 (-1.0)", "untouched": ""}  # fmt: skip
    ideas = [{"name": name, "idea": f"the {name} one"} for name in found["ideas"]]
    said, told = PAGE.verdicts([{**found, "name": "here"}], ideas)
    assert said.startswith("Ideas that no split of this table surely needs")
    assert told.splitlines()[2:] == [  # one row an idea, the harmful first
        "| the harmful one | none | here |",
        "| the unsure one | none | none |",
        "| the nothing one | none | none |",
    ]
    assert PAGE.verdicts([{**found, "name": "here"}], ideas[:1]) == []
    mixed = {
        "full": 4.0,
        "name": "there",
        "ideas": {"sure": {"figure": 3.0, "low": -2.0, "high": -0.5}},
    }
    both = PAGE.verdicts([{**found, "name": "here"}, mixed], ideas[:1])[1]
    assert both.splitlines()[-1] == "| the sure one | here | there |"


def test_ideas_stand_in_the_order_of_what_they_buy() -> None:
    found = [{"full": 4.0, "ideas": {"a": {"figure": 8.0}}}, {"full": 4.0, "ideas": {}}]
    assert PAGE.gain(found, "a") == pytest.approx(0.5 * np.log(2.0))
    assert PAGE.gain(found, "b") == 0.0


@pytest.mark.parametrize("part", PARTS, ids=lambda p: str(p.name))
def test_a_part_of_the_band_changes_constants_that_are_there(part: Any) -> None:
    made = part.applied(part.priors())
    known = {f.name for f in fields(Constants)}
    assert set(vars(made)) == known
    fitted = part.applied(Constants(sigma_device=0.5, tail_high=3.0))
    assert part.frameworks or fitted != Constants(sigma_device=0.5, tail_high=3.0)


def test_a_part_that_names_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no_such"):
        BANDS.Part("x", after={"no_such*": 0}).applied(Constants())


def test_bands_without_what_is_new_are_narrower(divided: tuple[Any, Path]) -> None:
    causes = next(p for p in PARTS if p.name == "causes")
    found = BANDS.bands(divided[0], [BANDS.WHOLE, causes])
    widths = {name: float(np.median(rows[:, 2] / rows[:, 0])) for name, rows in found.items()}
    assert widths["causes"] < widths["all"]
