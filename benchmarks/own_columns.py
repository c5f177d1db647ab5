"""The generic model on columns of a user's own: kernels, filters, layers and activations of a CNN.

The paper's experiment, on this machine: 90 configurations drawn from a grid, each measured twice. Then laws
with known constants and 5 % noise: how often the 5 to 95 % intervals of exponents hold them.

    python benchmarks/own_columns.py campaign > benchmarks/own_columns.yaml
    forerun profile benchmarks/own_columns.yaml --out benchmarks/results/own_columns_lab.csv --yes
    python benchmarks/own_columns.py judge > benchmarks/results/own-columns.md
    python benchmarks/own_columns.py intervals >> benchmarks/results/own-columns.md
"""

from __future__ import annotations

import argparse
import sys
from itertools import product
from pathlib import Path

import numpy as np
import yaml
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from examples.lab_models import CLASSES, Classifier, images
from forerun.advisor.given_runs import runs_of
from forerun.catalog import load_catalog
from forerun.evaluate import evaluate, parse_split
from forerun.measure.campaign import join_repeats
from forerun.predictors.laws.generic import Generic, GenericLaw
from forerun.predictors.options import started
from forerun.tables import Table
from forerun.workloads.rows import runs_from_table

RUNS = Path(__file__).parent / "results" / "own_columns_lab.csv"
ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}
VARIED = {
    "kernel": [1, 3, 5, 7], "filters": [8, 16, 32], "layers": [2, 3, 5], "activation": [*ACTIVATIONS],
}  # fmt: skip
BATCHES, WORKERS = [4, 8, 16], [1, 2]  # of a worker; local processes
CONFIGURATIONS, REPEATS, SEED, SIDE = 90, 2, 0, 24
PREDICTORS = (
    "generic",
    "generic:products=0",
    "generic:extrinsic=none:products=0",
    "gaussian",
    "auto",
)
SPLITS = (
    "random",
    "leave-out:kernel",
    "leave-out:filters",
    "leave-out:layers",
    "extrapolation:kernel=5",
)
NOISE, DRAWS, DRAWN = 0.05, 200, 120
# Of each law: terms (factor, column, exponent), powers of what scales, and the constant; seconds.
LAWS = (
    ((0.4, "dataset_size", 1.0),), {"devices": -0.8, "global_batch": -0.3}, 2.0,
), (
    ((0.3, "image_size", 2.0), (0.1, "layers", 1.0)), {"devices": -0.7, "global_batch": 0.9}, 0.05,
), (
    ((0.3, "hidden", 1.5),), {"devices": -1.4, "global_batch": 0.8}, 0.02,
)  # fmt: skip
VALUES = {
    "dataset_size": [5000, 10000, 20000, 40000, 60000], "image_size": [32, 48, 64, 96, 128],
    "layers": [2, 4, 8, 16], "hidden": [64, 128, 256, 512, 1024], "devices": [1, 2, 4, 8, 16],
    "global_batch": [16, 32, 64, 128, 256],
}  # fmt: skip


def network(
    kernel: int, filters: int, layers: int, activation: str, batch: int = 8
) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Return a CNN of so many convolutions, and images of one batch."""
    body: list[nn.Module] = []
    for i in range(layers):
        body += [nn.Conv2d(filters if i else 3, filters, kernel, padding=kernel // 2)]
        body += [ACTIVATIONS[activation]()]
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(filters, CLASSES))
    return Classifier(nn.Sequential(*body, *head)), images(batch, side=SIDE)


def campaign() -> str:
    """Return the campaign: configurations drawn from the grid of all."""
    grid = [*product(*VARIED.values(), BATCHES, WORKERS)]
    drawn = np.random.default_rng(SEED).permutation(len(grid))[:CONFIGURATIONS]
    runs = []
    for *own, batch, workers in (grid[i] for i in sorted(drawn.tolist())):
        settings = dict(zip(VARIED, own, strict=True))
        run = {
            "workload": "cnn",
            "settings": settings,
            "workers": workers,
            "batch_per_worker": batch,
        }
        runs += [run] * REPEATS
    return yaml.safe_dump({
        "name": "own-columns", "workloads": {"cnn": {"entry": "benchmarks.own_columns:network"}},
        "runs": [dict(run) for run in runs], "device": "local-core",
        "steps": {"warmup": 5, "least": 30, "most": 150, "half_width": "2%", "seconds": "10s"},
    }, sort_keys=False)  # fmt: skip


def judge() -> None:
    """Print the errors on configurations left out, the noise of repeats, and the law."""
    runs = runs_of([RUNS], load_catalog())
    joined = join_repeats(runs.table)
    spread = joined.numbers("std_s") / joined.numbers("step_time_s")
    print("# The generic model on columns of a user's own\n")
    print(
        f"{len(runs)} runs, {len(joined)} configurations ({', '.join(runs.table.own.factors)} of one's"
        f" own); two readings of one configuration differ from their mean by"
        f" {100 * np.nanmedian(spread) / np.sqrt(2):.1f} % in the median; `python benchmarks/own_columns.py judge`\n"
    )
    print(
        "| left out | predictor | answered | median error | mean | inside 5 to 95 % |\n|---|---|---|---|---|---|"
    )
    for split in SPLITS:
        made = {name: started(name) for name in PREDICTORS}
        found = evaluate({RUNS.stem: runs}, made, parse_split(split))
        for one in found.as_dict()["scores"]:
            if one["table"] == RUNS.stem and not one["group"]:
                print(
                    f"| {split} | {one['predictor']} | {100 * one['share_answered']:.0f} % |"
                    f" {one['median_ape']:.1f} % | {one['mape']:.1f} % | {100 * one['coverage']:.0f} % |"
                )
    for text in Generic().fit(runs).formulas.values():
        print(f"\n```\n{text}\n```")


def intervals() -> None:
    """Print how often intervals of exponents hold them, and the largest error, by law and mode."""
    print(
        f"\n## Intervals of known exponents: {DRAWN} runs with {100 * NOISE:g} % noise, {DRAWS} draws\n"
    )
    print(
        "| law | mode | held by 5 to 95 % | largest error of an exponent | 95 % of errors below |\n|---|---|---|---|---|"
    )
    for place, (terms, powers, fixed) in enumerate(LAWS):
        truth = {**{name: power for _, name, power in terms}, **powers}
        for mode, draws in (("fast", DRAWS), ("faithful", DRAWS // 10)):
            held, errors = [], []
            for seed in range(draws):
                law = _fitted(mode, terms, powers, fixed, seed)
                names = (*law.form.numbers, *law.form.scaling)
                wide = law.half_widths[law.form.coefficients :]
                off = law.exponents - np.array([truth[name] for name in names])
                held.append(np.abs(off) <= wide)
                errors.append(np.abs(off).max())
            print(
                f"| {place + 1} | {mode} ({draws}) | {100 * np.mean(held):.0f} % | {max(errors):.3f} |"
                f" {np.quantile(errors, 0.95):.3f} |", flush=True,
            )  # fmt: skip


def _fitted(
    mode: str,
    terms: tuple[tuple[float, str, float], ...],
    powers: dict[str, float],
    fixed: float,
    seed: int,
) -> GenericLaw:
    """Return the law of runs drawn from one that is known."""
    rng = np.random.default_rng(seed)
    names = [*(name for _, name, _ in terms), *powers]
    columns = {name: rng.choice(VALUES[name], DRAWN).astype(float) for name in names}
    middle = {name: float(np.median(VALUES[name])) for name in names}
    seconds = sum(a * (columns[name] / middle[name]) ** power for a, name, power in terms)
    for name, power in powers.items():
        seconds = seconds * (columns[name] / middle[name]) ** power
    seconds = (seconds + fixed) * np.exp(rng.normal(0.0, NOISE, DRAWN))
    time = "epoch_time_s" if "dataset_size" in columns else "step_time_s"
    texts = {"workload": ["net"] * DRAWN, "device": ["one"] * DRAWN}
    runs = runs_from_table(Table.from_columns({**texts, **columns, time: seconds}), load_catalog())
    errors = "relative" if mode == "fast" else "absolute"
    return next(iter(Generic(mode=mode, errors=errors).fit(runs).laws.values()))


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "what", choices=("campaign", "judge", "intervals"), nargs="?", default="judge"
    )
    what = parser.parse_args().what
    if what == "campaign":
        print(campaign(), end="")
    else:
        {"judge": judge, "intervals": intervals}[what]()


if __name__ == "__main__":
    main()
