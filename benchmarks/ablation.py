"""What each idea of the analytic predictor buys: how far forecasts are off without it.

The ideas and how each is switched off stand in benchmarks/ablation.yaml, the splits in
benchmarks/accuracy.yaml. Every idea is switched off alone, the rest is fitted anew to the teachers of
each fold, and the judged rows are forecast; folds, teachers and judged rows are those of `forerun
evaluate`. What came out goes to benchmarks/results/ablation.json, split by split, with an interval of
each difference (judged rows drawn again by workload and cluster). docs/ablation_page.py makes the page.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from accuracy import cases, commit_of_source
from ideas import FULL, Idea, without_parts
from numpy.typing import NDArray

from forerun.catalog import load_catalog
from forerun.evaluate import parse_condition, parse_split
from forerun.evaluate.filters import rows_where, slower_half
from forerun.evaluate.folds import folds_of
from forerun.evaluate.lessons import Lessons
from forerun.evaluate.measured import measured_seconds
from forerun.evaluate.metrics import absolute_percentage_errors
from forerun.predictors.analytic import AnalyticPredictor
from forerun.predictors.analytic.calibration import fit_runs
from forerun.predictors.analytic.calibration.fitting import thinned
from forerun.predictors.analytic.calibration.parameters import moved, parameters_for
from forerun.predictors.analytic.constants import Constants
from forerun.tables import Runs, read_table
from forerun.workloads.rows import runs_from_table

HERE = Path(__file__).parent
IDEAS = HERE / "ablation.yaml"
RESULTS = HERE / "results" / "ablation.json"
SEED = 0
DRAWS, BAND = 400, (0.05, 0.95)
FIGURES = {"mean": np.mean, "median": np.median}

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """One column of the page: a case of accuracy.yaml, and how much of it is asked."""

    case: str
    name: str
    figure: str
    table: str
    rows: int = 0
    folds: int = 0


@dataclass(frozen=True)
class Exam:
    """A table to be judged: n measured seconds (NaN where none), and what is taught and asked.

    lessons: (teachers, positions of the rows that are asked then), one a fold.
    groups: which workload on which cluster, (n,).
    """

    runs: Runs
    measured: FloatArray
    lessons: Sequence[tuple[Runs, IntArray]]
    groups: IntArray


def spec() -> tuple[list[Split], list[Idea]]:
    """Return the splits and the ideas in their order."""
    found = yaml.safe_load(IDEAS.read_text(encoding="utf-8"))
    return [Split(**s) for s in found["splits"]], [Idea(**i) for i in found["ideas"]]


@cache
def table_of(folder: Path, name: str) -> Runs:
    """Return a table of measured runs."""
    return runs_from_table(read_table(folder / f"{name}.csv"), load_catalog())


def exam_of(split: Split, case: Mapping[str, Any], folder: Path) -> Exam:
    """Return what is taught and asked in a split."""
    (name,) = case["runs"]
    conditions = [parse_condition(text) for text in case.get("where", ())]
    runs = rows_where(table_of(folder, name), conditions, name)
    if split.rows:
        runs = runs.take(thinned(_usable(runs), runs.jobs, split.rows))
    columns = case.get("faster_half", ())
    slower = slower_half(runs, columns) if columns else np.zeros(len(runs), dtype=bool)
    others = {other: table_of(folder, other) for other in case.get("fit", ()) if other != name}
    lessons = Lessons.of(name, runs, slower, others)
    folds = folds_of(parse_split(case.get("split", "whole")), runs.table, SEED, split.folds)
    taught = []
    for fold in folds:
        teachers = lessons.teachers(fold)
        if teachers is None:
            raise ValueError(f"{split.case}: a fold without teachers")
        taught.append((teachers.take(_usable(teachers)), fold.test))
    seconds = measured_seconds(runs, "step").seconds
    pairs = np.stack([runs.jobs.workload_index, runs.jobs.cluster_index], axis=1)
    groups = np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1)
    return Exam(runs, np.where(slower, np.nan, seconds), taught, groups)


def _usable(runs: Runs) -> IntArray:
    """Return the positions of the runs with a step that physics can speak of."""
    answered = np.array([reason is None for reason in AnalyticPredictor().declines(runs.jobs)])
    return np.flatnonzero(answered & np.isfinite(runs.step_seconds()))


def forecast(exam: Exam, idea: Idea) -> FloatArray:
    """Return the median seconds of each asked row, (n,), NaN elsewhere, fitted without an idea."""
    seconds = np.full(len(exam.runs), np.nan)
    with without_parts(idea.parts):
        for teachers, asked in exam.lessons:
            constants = idea.priors()
            if not idea.unfitted:
                fit = fit_runs(constants, teachers, {}, manner=idea.manner())
                constants = moved(constants, fit.parameters, fit.theta)
            seconds[asked] = prior_forecast(exam.runs.take(asked), constants)
    return seconds


def prior_forecast(runs: Runs, constants: Constants) -> FloatArray:
    """Return the median seconds of runs by constants as they are, (n,)."""
    return AnalyticPredictor(constants).predict(runs.jobs, detail=False).seconds[:, 1]


def touches(exam: Exam, idea: Idea) -> bool:
    """Return whether an idea does anything to what is taught or asked in an exam."""
    if idea.unfitted or set(idea.fit) - {"setting_sd"}:
        return True
    teachers = [teachers for teachers, _ in exam.lessons]
    if "setting_sd" in idea.fit:
        return any(len(set(t.table.texts("source").tolist())) > 1 for t in teachers)
    frozen = idea.manner().frozen
    if any(p.family in frozen for t in teachers for p in parameters_for(t.jobs)):
        return True
    usual, priors = Constants(), idea.priors()
    for runs in (exam.runs, *teachers):
        before = prior_forecast(runs, usual)
        with without_parts(idea.parts):
            after = prior_forecast(runs, priors)
        if not np.allclose(before, after, rtol=1e-6, equal_nan=True):
            return True
    return False


def interval(
    before: FloatArray, after: FloatArray, groups: IntArray, figure: str
) -> tuple[float, float]:
    """Return the 5 % and 95 % quantiles of how much a figure grows, over groups drawn again."""
    rng, of = np.random.default_rng(SEED), FIGURES[figure]
    names = np.unique(groups)
    rows = [np.flatnonzero(groups == name) for name in names]
    grown = []
    for _ in range(DRAWS):
        drawn = np.concatenate([rows[i] for i in rng.integers(0, len(rows), len(rows))])
        grown.append(float(of(after[drawn]) - of(before[drawn])))
    low, high = np.quantile(grown, BAND)
    return float(low), float(high)


def measured_split(split: Split, exam: Exam, ideas: Sequence[Idea]) -> dict[str, Any]:
    """Return the figure of a split with all ideas, and without each that touches it."""
    of, full = FIGURES[split.figure], forecast(exam, FULL)
    timed = np.flatnonzero(np.isfinite(exam.measured) & np.isfinite(full))
    truth, groups = exam.measured[timed], exam.groups[timed]
    before = absolute_percentage_errors(full[timed], truth)
    found = {}
    for idea in ideas:
        if not touches(exam, idea):
            continue
        after = absolute_percentage_errors(forecast(exam, idea)[timed], truth)
        low, high = interval(before, after, groups, split.figure)
        value = float(of(after))
        found[idea.name] = {"figure": _short(value), "low": _short(low), "high": _short(high)}
        print(f"{split.case} without {idea.name}: {value:.2f} %", flush=True)
    return {
        "figure": split.figure, "full": _short(float(of(before))), "rows": len(timed),
        "folds": len(exam.lessons), "thinned": bool(split.rows), "ideas": found,
    }  # fmt: skip


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def main() -> None:
    """Measure the splits and print each figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases or beginnings of them, with commas")
    options = parser.parse_args()
    if not os.environ.get("FORERUN_DATA"):
        print("set FORERUN_DATA to a folder with runs/*.csv; nothing was run")
        return
    folder = Path(os.environ["FORERUN_DATA"]).resolve() / "runs"
    splits, ideas = spec()
    starts = tuple(name for name in options.only.split(",") if name)
    wanted = [s for s in splits if not starts or s.case.startswith(starts)]
    if not wanted:
        sys.exit(f"--only {options.only}: choose from {', '.join(s.case for s in splits)}")
    kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
    by_name, begun = {case["name"]: case for case in cases()}, time.perf_counter()
    for split in wanted:
        started = time.perf_counter()
        found = measured_split(split, exam_of(split, by_name[split.case], folder), ideas)
        kept[split.case] = {
            **found, "seed": SEED, "commit": commit_of_source(),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "command": f"python benchmarks/ablation.py --only {shlex.quote(split.case)}",
            "seconds": round(time.perf_counter() - started, 1),
        }  # fmt: skip
        inside = {s.case: kept[s.case] for s in splits if s.case in kept}
        RESULTS.write_text(json.dumps(inside, indent=1) + "\n", encoding="utf-8")
    print(f"ablation_splits: {len(wanted)}\nablation_seconds: {time.perf_counter() - begun:.0f}")


if __name__ == "__main__":
    main()
