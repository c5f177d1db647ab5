"""The generic model: constants recovered from synthetic runs, and the fast way against plain evolution.

Each world has known constants; runs are made from them, without noise and with 3 % of it. Plain
differential evolution over every constant (SciPy's, rand/1/bin, vectorised) and the fast way
minimise the same cost, in one process and on one thread. They take turns, and the ratio is the
median of the rounds', so that a machine that slows down slows both. Prints a page of Markdown; the last lines are `worst_error: N %` and `least_ratio: N`.

    OMP_NUM_THREADS=1 python benchmarks/generic_recovery.py > benchmarks/results/generic-recovery-DATE.md
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from forerun.predictors.laws.generic import (
    PLAIN_TOLERANCE,
    Generic,
    GenericCost,
    GenericFit,
    GenericForm,
    fast,
    plain,
)
from forerun.testing.samples import tiny_jobs, tiny_runs

T = TypeVar("T")
FloatArray = NDArray[np.float64]
RUNS = 1000
NOISE = 0.03
LAMBDA = 1e-4  # of the noisy fits; those without noise have none
ROUNDS = 2  # of plain evolution and the fast way in turn, of which the median counts
EACH = 10  # times that the fast way is taken in a round: it is over in milliseconds


@dataclass(frozen=True)
class World:
    """What makes synthetic runs: a form, its constants, and how its columns are drawn."""

    name: str
    form: GenericForm
    coefficients: tuple[float, ...]
    exponents: tuple[float, ...]
    columns: dict[str, Callable[[np.random.Generator], FloatArray]]

    def cost(self, noise: float, seed: int) -> tuple[GenericCost, float]:
        """Return the cost of its runs, and what their times were divided by."""
        rng = np.random.default_rng(seed)
        drawn = {name: draw(rng) for name, draw in self.columns.items()}
        rows = self.form.rows(drawn)
        seconds = rows.columns(np.array([self.exponents]))[0] @ np.array(self.coefficients)
        seconds = seconds * np.exp(rng.normal(0.0, noise, RUNS))
        scale = float(seconds.mean())
        weights = np.full((1, RUNS), 1.0 / RUNS)
        strength = np.array([LAMBDA if noise else 0.0])
        return GenericCost(rows, seconds[None] / scale, weights, "l2", strength), scale

    def error(self, constants: FloatArray, scale: float) -> float:
        """Return the largest relative error of a constant."""
        k = len(self.coefficients)
        found = np.concatenate([constants[:k] * scale, constants[k:]])
        truth = np.array([*self.coefficients, *self.exponents])
        return float(np.max(np.abs(found / truth - 1.0)))


def _of(*values: float) -> Callable[[np.random.Generator], FloatArray]:
    return lambda rng: rng.choice(np.array(values, dtype=float), RUNS)


def _between(low: float, high: float) -> Callable[[np.random.Generator], FloatArray]:
    return lambda rng: np.exp(rng.uniform(np.log(low), np.log(high), RUNS))


DEVICES, BATCH = _of(1, 2, 4, 8, 16), _of(32, 64, 128, 256, 512)
WORLDS = (
    World(
        "devices and batch", GenericForm({}, {}, {"devices": 4.0, "global_batch": 128.0}),
        (0.2, 0.03), (-0.87, 0.74), {"devices": DEVICES, "global_batch": BATCH},
    ),
    World(
        "layers, optimizer, devices, batch",
        GenericForm(
            {"layers": 50.0}, {"optimizer": {"sgd": 0.0, "adam": 1.0, "lamb": 2.0}},
            {"devices": 4.0, "global_batch": 128.0},
        ),
        (0.4, 0.1, 0.25, 0.05, 0.08), (1.3, -0.83, 0.7),
        {"layers": _between(10, 150), "optimizer": _of(0, 1, 2), "devices": DEVICES,
         "global_batch": BATCH},
    ),
    World(
        "two numbers, devices, servers",
        GenericForm(
            {"gmacs": 4.0, "seq_len": 512.0}, {}, {"devices": 8.0, "parameter_servers": 2.0}
        ),
        (0.3, 0.15, 0.06), (0.9, 1.7, -0.6, -0.35),
        {"gmacs": _between(0.3, 30), "seq_len": _between(64, 4096), "devices": DEVICES,
         "parameter_servers": _of(1, 2, 4, 8)},
    ),
)  # fmt: skip


def timed(work: Callable[[], T], rounds: int = 1) -> tuple[T, float]:
    """Return what the work returns and the median of its seconds."""
    seconds = []
    for _ in range(rounds):
        started = time.process_time()
        result = work()
        seconds.append(time.process_time() - started)
    return result, statistics.median(seconds)


def in_turn(cost: GenericCost) -> tuple[GenericFit, GenericFit, FloatArray]:
    """Return what the fast way and plain evolution end with, and their seconds, (rounds, 2)."""
    seconds = np.empty((ROUNDS, 2))
    for i in range(ROUNDS):
        fitted, seconds[i, 0] = timed(lambda: fast(cost), EACH)
        evolved, seconds[i, 1] = timed(lambda: plain(cost))
    return fitted, evolved, seconds


def compared(world: World, noise: float) -> tuple[list[str], float, float]:
    """Return rows of the table, the error of the fast way, and plain seconds over fast ones."""
    cost, scale = world.cost(noise, 1)
    fitted, evolved, taken = in_turn(cost)
    seconds, slow = np.median(taken, axis=0)
    ratio = float(np.median(taken[:, 1] / taken[:, 0]))
    low, high = float(fitted.costs[0]), float(evolved.costs[0])
    error = world.error(fitted.constants[0], scale)
    plain_error = world.error(evolved.constants[0], scale)
    if low > high * (1 + 1e-9) + 1e-18:
        raise AssertionError(f"{world.name}: the fast way ended at a higher cost")
    lead = f"| {world.name} | {100 * noise:g} % |"
    rows = [
        f"{lead} fast | {seconds:.4f} | {low:.9g} | {100 * error:.2g} % | |",
        f"{lead} plain | {slow:.2f} | {high:.9g} | {100 * plain_error:.2g} % | {ratio:.0f} |",
    ]
    return rows, error if not noise else 0.0, ratio


def speed() -> list[str]:
    """Return how long the whole predictor takes: lambda, bootstrap and reading of rows included."""
    jobs = tiny_jobs()
    runs = tiny_runs(jobs.take(np.arange(RUNS) % len(jobs)))
    law, fitted = timed(lambda: Generic().fit(runs), ROUNDS)
    many = replace(jobs.take(np.arange(1_000_000) % len(jobs)), labels=None)
    _, asked = timed(lambda: law.predict(many))
    return [
        f"* `Generic().fit` of {RUNS} runs of two workloads, lambda by validation and bootstrap "
        f"included: {fitted:.2f} s",
        f"* `Generic.predict` of 1,000,000 jobs: {asked:.2f} s",
    ]


def main() -> None:
    """Print the page."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    print("# The generic model: constants recovered, and the fast way against plain evolution\n")
    print(
        f"{RUNS} runs a world; {platform.machine()}, {os.cpu_count()} cores, one thread, seconds of the processor, Python "
        f"{platform.python_version()}, NumPy {np.__version__}; `python benchmarks/"
        f"generic_recovery.py`. Cost (5.4) with l2, lambda 0 without noise and {LAMBDA:g} with it. "
        "Error is the largest relative one of a constant. Plain evolution is rand/1/bin over all "
        f"constants until the spread of its costs is {PLAIN_TOLERANCE:g} of their mean. Plain evolution and "
        f"the fast way take turns in {ROUNDS} rounds, {EACH} times the fast way in each; seconds "
        "are medians, and so is the ratio of the rounds.\n"
    )
    print("| world | noise | by | seconds | cost | error | times the fast way |")
    print("|---|---|---|---|---|---|---|")
    errors, ratios = [], []
    for world in WORLDS:
        for noise in (0.0, NOISE):
            rows, error, ratio = compared(world, noise)
            print("\n".join(rows), flush=True)
            errors.append(error)
            ratios.append(ratio)
    print()
    print("\n".join(speed()))
    print(f"\nworst_error: {100 * max(errors):.2g} %\nleast_ratio: {min(ratios):.0f}")


if __name__ == "__main__":
    main()
