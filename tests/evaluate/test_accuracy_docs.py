"""The accuracy page: made of kept results, which are those of its cases, and verdicts that can fail."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from forerun.evaluate import Evaluation, Score, evaluate, parse_condition, parse_split
from forerun.predictors.laws.constant_mfu import ConstantMFU
from forerun.testing.samples import tiny_runs
from tests.needs import published

ROOT = Path(__file__).resolve().parents[2]


def script(path: str) -> ModuleType:
    """Return a script of the repository as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    folder = str((ROOT / path).parent)
    sys.path.insert(0, folder)  # scripts of one folder import one another
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
    return module


BENCH, PAGE = script("benchmarks/accuracy.py"), script("docs/accuracy_page.py")
CASES: list[dict[str, Any]] = BENCH.cases()
KEPT: dict[str, Any] = json.loads((ROOT / "benchmarks/results/accuracy.json").read_text())


def test_the_page_is_what_its_script_writes() -> None:
    written = subprocess.run(
        [sys.executable, "docs/accuracy_page.py"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout  # fmt: skip
    assert (ROOT / "docs" / "accuracy.md").read_text() == written, "run `make docs`"


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_a_case_has_kept_results_of_its_own_command_for_every_seed(case: dict[str, Any]) -> None:
    import shlex

    kept = KEPT["cases"][case["name"]]
    assert [one["seed"] for one in kept] == list(case.get("seeds", (0,)))
    for one in kept:
        words = BENCH.words_of(case, one["seed"])
        assert one["command"] == f"forerun {shlex.join(words)}", "run benchmarks/accuracy.py"


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_a_case_can_be_asked(case: dict[str, Any]) -> None:
    parse_split(case.get("split", "whole"))
    for condition in case.get("where", ()):
        parse_condition(condition)
    figures = {f.name for f in fields(Score)}
    for target in case.get("targets", ()):
        assert target["figure"] in figures
        assert ("at_most" in target) != ("at_least" in target)


def test_names_are_used_once_and_no_result_is_without_a_case() -> None:
    names = [case["name"] for case in CASES]
    assert len(set(names)) == len(names)
    assert set(KEPT["cases"]) <= set(names)


def test_every_fit_on_other_tables_leaves_the_judged_ones_out() -> None:
    for case in CASES:
        words = BENCH.words_of(case, 0)
        if "--fit" in words:
            fit = words[words.index("--fit") + 1 : words.index("--predictors")]
            assert fit
            assert not {f"{table}.csv" for table in case["runs"]} & set(fit)


@pytest.mark.data
def test_every_table_of_a_case_is_there() -> None:
    folder = published()
    for case in CASES:
        for name in (*case["runs"], *case.get("fit", ())):
            assert (folder / BENCH._file(name)).exists(), name


def scored(**changes: Any) -> Score:
    """Return a score of ours with some figures changed."""
    first = evaluate({"tiny": tiny_runs()}, [ConstantMFU()]).scores[0]
    return replace(first, predictor="analytic", **changes)


@pytest.mark.parametrize(
    ("target", "changes", "said"),
    [
        ({"figure": "mape", "at_most": 4, "simple": 5.3}, {"mape": 3.9},
         "mean <= 4 % [5.3 %]: met"),
        ({"figure": "mape", "at_most": 4}, {"mape": 4.1}, "mean <= 4 %: missed"),
        ({"figure": "mape", "at_most": 4}, {"mape": float("nan")}, "mean <= 4 %: missed"),
        ({"figure": "mape", "at_most": 4}, {"mape": 1.0, "answered": 1}, "mean <= 4 %: missed"),
        ({"figure": "regret_median", "at_most": 0.03}, {"regret_median": 0.02},
         "median regret <= 3 %: met"),
        ({"figure": "oom_f1", "at_least": 0.96}, {"oom_f1": 0.9},
         "out-of-memory F1 >= 0.96: missed"),
    ],
)  # fmt: skip
def test_a_target_is_met_or_missed(
    target: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    assert PAGE.verdict(target, scored(**changes), []) == said


def test_a_target_of_each_workload_is_missed_by_one_of_them() -> None:
    target = {"figure": "oom_f1", "at_least": 0.75, "each": True}
    good, bad = (scored(oom_happened=4, oom_f1=f) for f in (0.9, 0.5))
    assert PAGE.verdict(target, scored(), [good, good]).endswith("of each >= 0.75: met")
    assert PAGE.verdict(target, scored(), [good, bad]).endswith("of each >= 0.75: missed")


def test_seeds_are_averaged_and_the_interval_is_that_of_one() -> None:
    one, two = scored(mape=2.0, coverage=0.8), scored(mape=4.0, coverage=1.0)
    mean = PAGE.averaged([one, two])
    assert mean.mape == pytest.approx(3.0)
    assert mean.coverage == pytest.approx(0.9)
    assert mean.coverage_low < 0.9 < mean.coverage_high
    assert mean.answered == one.answered


def test_small_splits_are_pooled_and_wide_bands_are_named() -> None:
    def kept(score: Score) -> list[dict[str, Any]]:
        total = replace(score, table="all tables")
        thumb = replace(total, predictor="constant-mfu")
        found = Evaluation((total, thumb), "whole", 0, ("analytic", "constant-mfu"), ("tiny",))
        return [{"seed": 0, "evaluation": found.as_dict()}]

    small = scored(answered=20, comparable=20, coverage=0.9)
    large = scored(answered=200, comparable=200, coverage=0.99)
    cases = [{"name": n, "runs": [n]} for n in ("a", "b", "c")]
    results = {"a": kept(small), "b": kept(small), "c": kept(large)}
    first, named, second = PAGE.coverage_notes(cases, results)
    assert first.endswith("holds 85-95 % in 0. The others:")
    assert named == "* c: whole: 99.0 %"
    assert "36 of 40 inside" in second


def test_the_page_quotes_what_the_priors_have_seen() -> None:
    page = (ROOT / "docs" / "accuracy.md").read_text()
    assert "> * vtrain, ultrascale:" in page


def test_short_results_keep_what_the_page_reads() -> None:
    found = evaluate({"tiny": tiny_runs()}, [ConstantMFU()])
    short = BENCH._short(json.loads(json.dumps(found.as_dict())), reasons=True)
    again = Evaluation.from_dict(short)
    assert again.of("constant-mfu").rows == found.of("constant-mfu").rows
    assert again.of("constant-mfu").mape == pytest.approx(found.of("constant-mfu").mape, rel=1e-3)


def test_the_section_on_new_sources_says_what_was_kept_and_is_left_out_without_it() -> None:
    one = {"rows": 3, "median": 12.34, "bias": -5.0, "inside": 90.0, "width": 2.5}
    kept = {
        "chosen": 0.7, "made": {"command": "x", "seed": 0, "commit": "abc", "date": "2026-01-01"},
        "widths": {"0.7": {
            "means": {"priors": 9.0, "others": 8.0, "all": 7.0},
            "tables": {"gavel": {"priors": one, "others": {**one, "median": 23.45}, "all": one}},
        }},
    }  # fmt: skip
    text = "\n".join(PAGE.new_source_blocks(kept))
    assert "| gavel | 3 | 12.3 | 23.4 | 12.3 | -5 | 90 | 2.50x |" in text
    assert "medians\n(decision 14), here: 0.7: 8.0 % (all 7.0)" in text  # nothing to compare with
    kept["widths"]["0.5"] = {"means": {"priors": 9.0, "others": 8.1, "all": 7.5}}
    assert "is what served left-out" in "\n".join(PAGE.new_source_blocks(kept))
    kept["widths"]["0.5"]["means"]["others"] = 7.9
    assert "is near what served left-out" in "\n".join(PAGE.new_source_blocks(kept))
    assert "on these same tables, so that *others* is a little optimistic" in text
    assert "peculiar to a source" not in text
    assert PAGE.new_source_blocks(None) == []


def test_pairs_of_settings_and_widths_are_measured_kept_and_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bench = script("benchmarks/new_source.py")
    sd, width = bench.refit.SETTING_SD, bench.refit.PRIOR_WIDTH

    def measured(setting_sd: float, width: float, *_: object) -> dict[str, Any]:
        one = {"rows": 3, "bias": 0.0, "inside": 90.0, "width": 2.0}
        one["median"] = 10 * width + setting_sd
        return {"gavel": {"priors": one, "others": one, "all": one}}

    monkeypatch.setattr(bench, "measured_pair", measured)
    monkeypatch.setattr(bench, "RESULTS", tmp_path / "new_source.json")
    monkeypatch.setenv("FORERUN_DATA", str(tmp_path))
    bench.main(["--widths", "5", str(width), "--settings", "7", str(sd)])
    kept = json.loads((tmp_path / "new_source.json").read_text())
    assert set(kept["widths"]) == {"5.0", str(width)}
    assert kept["widths"]["5.0"]["means"]["others"] == pytest.approx(50 + sd)
    assert {name: set(found) for name, found in kept["settings"].items()} == {
        "7.0": {"5.0", str(width)}, str(sd): {"5.0", str(width)},
    }  # fmt: skip
    assert kept["settings"]["7.0"]["5.0"]["others"] == pytest.approx(57)
    assert "--settings 7.0" in kept["made"]["command"]
    text = "\n".join(PAGE.new_source_blocks(kept))
    assert f"deviation of {sd:g}" in text
    assert f"7: {10 * width + 7:.1f} %" in text
    with pytest.raises(SystemExit):
        bench.main(["--settings", "7"])
