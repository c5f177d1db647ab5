"""What is not as in the library of the Ray study: each difference beside the recipe, on the rows that chose its settings.

    python benchmarks/ray_differences.py [--only WORDS,...] [--out benchmarks/results/ray-differences.md]

Rows: epochs of the passes in a fixed order (results/ray-study-on-ray-2026-11-22), medians of three; questions: the six of
ray_study.py. Each line is the recipe `--system ray_ml` with the techniques that take little time (no XGBoost, forest, SVR, MLP),
beside the same with one thing done in the library's way.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from ray_study import all_of, splits, without

from forerun.advisor.given_runs import runs_of
from forerun.catalog import load_catalog
from forerun.evaluate import evaluate
from forerun.evaluate.splits import parse_split, rows_where
from forerun.predictors.regression import ray_ml, techniques
from forerun.registry import load
from forerun.tables.conditions import parse_condition

RESULTS = Path(__file__).parent / "results"
RECIPE = load("systems", "ray_ml").part("predictor").made().settings
TECHNIQUES = ("Ridge", "DecisionTree", "NNLS", "Stepwise", "Dummy")
DRAWS, RUNS, MOST_CHOSEN = 10, 3, 12
ROWS = ("step_time_s", "samples_per_s", "sync_time_s")  # of steps: epochs are judged

Trials, augmented = ray_ml._Trials, ray_ml.augmented
begun = Trials.__init__


def ernest_alone(columns: Any, degree: int, sizes: Any = (), falling: Any = ()) -> Any:
    """Return Ernest's terms and the classes: in the library these replace the augmented features."""
    over = (("1/x", "devices", ""),)
    size = next((name for name in sizes if name in columns.numbers), None)
    wanted = [over if size is None else (("x", size, ""), *over)]
    wanted += [(("ln", "devices", ""),), (("x", "devices", ""),)]
    classes = [t for t in augmented(columns, 1, sizes, falling).terms if t[0][0] == "is"]
    return ray_ml.AugmentedFeatures((*classes, *wanted))


def published_mlp(x: np.ndarray, y: np.ndarray, weight: np.ndarray, p: Any) -> Any:
    """Return dense layers with dropout .2 after 5 epochs of batches of 10, by Adam."""
    import torch

    torch.manual_seed(techniques.SEED)
    sizes, layers = [x.shape[1], *p["hidden"]], []
    for one, other in itertools.pairwise(sizes):
        layers += [torch.nn.Linear(one, other), torch.nn.ReLU(), torch.nn.Dropout(0.2)]
    net = torch.nn.Sequential(*layers, torch.nn.Linear(sizes[-1], 1))
    adam = torch.optim.Adam(net.parameters(), lr=p["learning_rate"])
    rows, values = (torch.as_tensor(a, dtype=torch.float32) for a in (x, y))
    for _ in range(5):
        for some in torch.randperm(len(rows)).split(10):
            adam.zero_grad()
            torch.nn.functional.mse_loss(net(rows[some])[:, 0], values[some]).backward()
            adam.step()
    dense = [one for one in net if isinstance(one, torch.nn.Linear)]
    return techniques.DenseNetwork(
        tuple(one.weight.detach().numpy().T.astype(float) for one in dense),
        tuple(one.bias.detach().numpy().astype(float) for one in dense),
    )


def drawn(self: Any) -> Iterator[Any]:
    """Yield experiments with values drawn within the grid's ends: TPE draws its first 20, and has 10 here."""
    rng = np.random.default_rng(self.settings.seed)
    for technique in self.settings.techniques:
        grid = ray_ml.GRIDS.get(technique, {})
        for _ in range(DRAWS if grid else 1):
            given = {name: _draw(rng, values) for name, values in grid.items()}
            yield self.experiment(technique, given)
            if technique in ray_ml.EXTRAPOLATE:
                yield self.experiment(technique, {**given, ray_ml.SINGLE: True})


def _draw(rng: np.random.Generator, values: Any) -> Any:
    value = float(np.exp(rng.uniform(*np.log([min(values), max(values)]))))
    return round(value) if all(isinstance(one, int) for one in values) else value


def several_runs(self: Any, columns: Any, seconds: Any, settings: Any, sizes: Any) -> None:
    """Choose by folds of several draws, as `run_num` has it, in place of those of one."""
    begun(self, columns, seconds, settings, sizes)
    self.inner = [
        (rows[fit], rows[judged])
        for rows, _ in self.outer for seed in range(RUNS)
        for fit, judged in ray_ml.set_aside(self.of[rows], settings.seed + 1 + seed, ray_ml.SELECTION_FOLDS)
    ]  # fmt: skip


def forward(self: Any, columns: Any, seconds: Any, settings: Any, sizes: Any) -> None:
    """Keep the features of forward selection: by the MAPE of Ridge in five folds, of every size the best."""
    begun(self, columns, seconds, settings, sizes)
    chosen: list[int] = []
    tried: list[tuple[float, list[int]]] = []
    while len(chosen) < min(MOST_CHOSEN, len(self.usual)):
        left = [i for i in self.usual if i not in chosen]
        errors = [_mape(self, [*chosen, i]) for i in left]
        chosen = [*chosen, left[int(np.argmin(errors))]]
        tried.append((min(errors), chosen))
    self.usual = sorted(min(tried)[1])
    self.single = [i for i in self.single if i in self.usual] or self.usual


def _mape(trials: Any, places: list[int]) -> float:
    errors, y = [], trials.seconds
    for fit, judged in trials.inner:
        x = trials.x[:, places]
        spread = x[fit].std(axis=0)
        x = (x - x[fit].mean(axis=0)) / np.where(spread > 0, spread, 1.0)
        x = np.column_stack([np.ones(len(x)), x])
        inner = x[fit].T @ x[fit] + 0.1 * np.diag([0.0] + [1.0] * len(places))
        said = x[judged] @ np.linalg.solve(inner, x[fit].T @ y[fit])
        errors.append(np.mean(np.abs(said / y[judged] - 1)))
    return float(np.mean(errors))


Way = Callable[[], contextlib.AbstractContextManager[Any]]
# In words: which techniques take part, and what makes it as in the library.
DIFFERENCES: dict[str, tuple[tuple[str, ...], Way]] = {
    "Ernest's terms replace the augmented": (
        TECHNIQUES, lambda: patch.object(ray_ml, "augmented", ernest_alone)),
    "forward selection of features": (TECHNIQUES, lambda: patch.object(Trials, "__init__", forward)),
    "values drawn as by TPE": (TECHNIQUES, lambda: patch.object(Trials, "all", drawn)),
    "run_num of 3": (TECHNIQUES, lambda: patch.object(Trials, "__init__", several_runs)),
    "MLP alone: dropout, 5 epochs of 10": (
        ("MLP",), lambda: patch.dict(techniques._FITS, {"MLP": published_mlp})),
}  # fmt: skip


def errors_of(names: tuple[str, ...], way: Way) -> str:
    """Return the mean errors of the three interpolations and of the three extrapolations, and the seconds."""
    table = without(all_of([RESULTS / "ray-study-on-ray-2026-11-22" / "passes.csv"]), ROWS)
    runs, start = runs_of([table], load_catalog()), time.perf_counter()
    found: dict[str, list[float]] = {"interpolation": [], "extrapolation": []}
    with way():
        for split, where in splits(table).values():
            some = rows_where(runs, [parse_condition(text) for text in where], "the passes")
            predictor = ray_ml.RayML(replace(RECIPE, techniques=names))
            score = evaluate({"passes": some}, [predictor], parse_split(split))
            found[split.partition(":")[0]].append(score.of("ray-ml", "passes").mape)
    words = " | ".join(f"{np.mean(each):.1f} %" for each in found.values())
    return f"{words} | {time.perf_counter() - start:.0f} s"


def main() -> None:
    """Print the table, and write it where asked."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument(
        "--only", default="", help="differences whose names have one of these words, with commas"
    )
    asked.add_argument("--out", type=Path)
    options = asked.parse_args()
    lines = ["| what differs | interpolation | extrapolation | took |", "|---|---|---|---|"]
    here, known = contextlib.nullcontext, dict[tuple[str, ...], str]()
    for words, (names, way) in DIFFERENCES.items():
        if not any(word in words for word in options.only.split(",")):
            continue
        known[names] = known.get(names) or errors_of(names, here)
        lines += [
            f"| {words}: here | {known[names]} |",
            f"| {words}: as in the library | {errors_of(names, way)} |",
        ]
        print("\n".join(lines[-2:]), flush=True)
    if options.out:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
