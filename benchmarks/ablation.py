"""What each idea of the analytic predictor buys: how far forecasts are off without it.

The ideas and how each is switched off stand in benchmarks/ablation.yaml, the splits in
benchmarks/accuracy.yaml. Every idea is switched off alone, the rest is fitted anew to the teachers of
each fold, and the judged rows are forecast; folds, training runs and judged rows are those of `forerun
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from accuracy import cases, commit_of_source
from converters import measured_folder
from ideas import FULL, Idea, switched_off
from numpy.typing import NDArray

from forerun.arrays import thinned
from forerun.catalog import load_catalog
from forerun.evaluate import parse_condition, parse_split
from forerun.evaluate.judge import TrainingSets
from forerun.evaluate.scoring import absolute_percentage_errors
from forerun.evaluate.splits import folds_of, rows_where, slower_half
from forerun.predictors.analytic import AnalyticPredictor
from forerun.predictors.analytic.calibration.fitting import fit_runs, pairs_of
from forerun.predictors.analytic.calibration.parameters import moved, parameters_for
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.layout import Layout, lay_out
from forerun.predictors.analytic.predictor import forecast_layout
from forerun.tables import Runs, read_table
from forerun.tables.measured import measured_seconds
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
class Lesson:
    """One fold: all that teach, those of them with a usable step, and the rows asked then.

    asked: their positions among the exam's; layout: these laid out.
    """

    training_runs: Runs
    timed: Runs
    asked: IntArray
    layout: Layout


@dataclass(frozen=True)
class DividedTable:
    """A table to be judged: the measured seconds of the n rows that are asked, (n,), fold by fold.

    groups: which workload on which cluster, (n,).
    """

    measured: FloatArray
    training: Sequence[Lesson]
    groups: IntArray


def spec() -> tuple[list[Split], list[Idea]]:
    """Return the splits and the ideas in their order."""
    found = yaml.safe_load(IDEAS.read_text(encoding="utf-8"))
    return [Split(**s) for s in found["splits"]], [Idea(**i) for i in found["ideas"]]


@cache
def table_of(folder: Path, name: str) -> Runs:
    """Return a table of measured runs."""
    return runs_from_table(read_table(folder / f"{name}.csv"), load_catalog())


def exam_of(split: Split, case: Mapping[str, Any], folder: Path) -> DividedTable:
    """Return what is taught and asked in a split."""
    (name,) = case["runs"]
    conditions = [parse_condition(text) for text in case.get("where", ())]
    runs = rows_where(table_of(folder, name), conditions, name)
    if split.rows:
        runs = runs.take(_usable(runs))
        runs = runs.take(thinned(pairs_of(runs.jobs), split.rows))
    columns = case.get("faster_half", ())
    slower = slower_half(runs, columns) if columns else np.zeros(len(runs), dtype=bool)
    others = {other: table_of(folder, other) for other in case.get("fit", ()) if other != name}
    training = TrainingSets.of(name, runs, slower, others)
    folds = folds_of(parse_split(case.get("split", "whole")), runs.table, SEED, split.folds)
    rows = np.intersect1d(_usable(runs), np.concatenate([fold.test for fold in folds]))
    rows = rows[~slower[rows] & np.isfinite(measured_seconds(runs, "step").seconds[rows])]
    asked, taught = runs.take(rows), []
    for fold in folds:
        training_runs = training.training_runs(fold)
        if training_runs is None:
            raise ValueError(f"{split.case}: a fold without teachers")
        now = np.flatnonzero(np.isin(rows, fold.test))
        layout = lay_out(asked.jobs.take(now), Constants())
        taught.append(
            Lesson(training_runs, training_runs.take(_usable(training_runs)), now, layout)
        )
    pairs = np.stack([asked.jobs.workload_index, asked.jobs.cluster_index], axis=1)
    groups = np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1)
    return DividedTable(measured_seconds(asked, "step").seconds, taught, groups)


def _usable(runs: Runs) -> IntArray:
    """Return the positions of the runs with a step that physics can speak of."""
    answered = np.array([reason is None for reason in AnalyticPredictor().declines(runs.jobs)])
    return np.flatnonzero(answered & np.isfinite(runs.step_seconds()))


def forecast(divided: DividedTable, idea: Idea) -> FloatArray:
    """Return the median seconds of each asked row, (n,), fitted without an idea."""
    seconds = np.full(len(divided.measured), np.nan)
    with switched_off(idea):
        for lesson in divided.training:
            constants = idea.priors()
            if not idea.unfitted:
                fit = fit_runs(constants, lesson.timed)
                constants = moved(constants, fit.parameters, fit.theta)
            seconds[lesson.asked] = medians(laid_out(lesson.layout, idea), constants)
    return seconds


def laid_out(layout: Layout, idea: Idea) -> Layout:
    """Return a layout as an idea that is switched off lays out its jobs."""
    return lay_out(layout.jobs, Constants()) if idea.law else layout


def medians(layout: Layout, constants: Constants) -> FloatArray:
    """Return the median seconds of jobs by constants as they are, (n,)."""
    return forecast_layout(layout, constants, detail=False).seconds[:, 1]


def touches(divided: DividedTable, idea: Idea) -> bool:
    """Return whether an idea does anything to what is taught or asked in an divided."""
    if idea.unfitted or set(idea.fit) - {"setting_sd"}:
        return True
    training_runs = [lesson.timed for lesson in divided.training]
    if "setting_sd" in idea.fit:
        return any(len(set(t.table.texts("source").tolist())) > 1 for t in training_runs)
    frozen = idea.frozen_families()
    usual, priors = Constants(), idea.priors()
    fitted = [lay_out(t.jobs, usual) for t in training_runs]
    for runs, layout in zip(training_runs, fitted, strict=True):
        before = medians(layout, usual)
        for parameter in parameters_for(runs.jobs):
            further = moved(usual, (parameter,), np.array([0.1]))
            if parameter.family in frozen and not np.array_equal(medians(layout, further), before):
                return True
    layouts = [*(lesson.layout for lesson in divided.training), *fitted]
    for layout in layouts:
        before = medians(layout, usual)
        with switched_off(idea):
            after = medians(laid_out(layout, idea), priors)
        if not np.allclose(before, after, rtol=1e-6):
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


def measured_split(split: Split, divided: DividedTable, ideas: Sequence[Idea]) -> dict[str, Any]:
    """Return the figure of a split with all ideas, and without each that touches it."""
    of, full = FIGURES[split.figure], forecast(divided, FULL)
    before = absolute_percentage_errors(full, divided.measured)
    found = {}
    for idea in ideas:
        if not touches(divided, idea):
            continue
        after = absolute_percentage_errors(forecast(divided, idea), divided.measured)
        low, high = interval(before, after, divided.groups, split.figure)
        value = float(of(after))
        found[idea.name] = {"figure": _short(value), "low": _short(low), "high": _short(high)}
        print(f"{split.case} without {idea.name}: {value:.2f} %", flush=True)
    return {
        "figure": split.figure, "full": _short(float(of(before))), "rows": len(before),
        "folds": len(divided.training), "thinned": bool(split.rows), "ideas": found,
    }  # fmt: skip


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def record(
    results: Path, splits: Sequence[Split], measure: Callable[[Split, DividedTable], dict[str, Any]]
) -> None:
    """Measure the splits that the command line names, and keep what came out with its birth.

    Args:
        results: the file that keeps it, split by split.
        splits: all of them, in their order.
        measure: what is measured of a split.
    """
    script = Path(sys.argv[0]).name
    parser = argparse.ArgumentParser(description=f"benchmarks/{script}: see its first lines")
    parser.add_argument("--only", default="", help="cases or beginnings of them, with commas")
    options = parser.parse_args()
    if not os.environ.get("FORERUN_DATA"):
        print("set FORERUN_DATA to a folder with runs/*.csv; nothing was run")
        return
    folder = measured_folder()
    starts = tuple(name for name in options.only.split(",") if name)
    wanted = [s for s in splits if not starts or s.case.startswith(starts)]
    if not wanted:
        sys.exit(f"--only {options.only}: choose from {', '.join(s.case for s in splits)}")
    kept = json.loads(results.read_text(encoding="utf-8")) if results.is_file() else {}
    by_name, begun = {case["name"]: case for case in cases()}, time.perf_counter()
    for split in wanted:
        started = time.perf_counter()
        kept[split.case] = {
            **measure(split, exam_of(split, by_name[split.case], folder)),
            "seed": SEED, "commit": commit_of_source(),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "command": f"python benchmarks/{script} --only {shlex.quote(split.case)}",
            "seconds": round(time.perf_counter() - started, 1),
        }  # fmt: skip
        inside = {s.case: kept[s.case] for s in splits if s.case in kept}
        results.write_text(json.dumps(inside, indent=1) + "\n", encoding="utf-8")
    name = Path(script).stem
    print(f"{name}_splits: {len(wanted)}\n{name}_seconds: {time.perf_counter() - begun:.0f}")


def main() -> None:
    """Measure the splits and print each figure."""
    splits, ideas = spec()
    record(RESULTS, splits, lambda split, divided: measured_split(split, divided, ideas))


if __name__ == "__main__":
    main()
