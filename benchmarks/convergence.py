"""Samples until a target: batches left out, and workloads left out but for one run, on MLPerf and on Pollux's traces.

    python benchmarks/convergence.py > benchmarks/results/convergence.md

Each fold leaves out every run at some batches of each training, so that no judged batch was seen; then all runs of a
workload but one, drawn. Prints a row a case: median and mean error, share inside the 5-95 % band and
its width, share answered, and the seconds that one fit and one answer of the whole table take.
"""

from __future__ import annotations

import csv
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from forerun.arrays import FloatArray, IntArray
from forerun.catalog import load_catalog
from forerun.predictors.convergence import Convergence
from forerun.predictors.convergence.learning import LEAST, arrival
from forerun.tables import Runs, Table, read_table
from forerun.tables.measured import samples_to_target
from forerun.workloads.rows import runs_from_table

DRAWS = 2  # of the one run that is known
PARTS = 12  # of the batches of a training: few of them are left out at once
TARGETS = (0.5, 0.8, 0.95)  # of the way that every batch of a workload comes, in its metric
DATA = Path(os.environ["FORERUN_DATA"])


def mlperf() -> Runs:
    """Return MLPerf's runs."""
    return runs_from_table(read_table(DATA / "runs" / "mlperf.csv"), load_catalog())


def pollux_traces() -> dict[tuple[str, str, float], list[tuple[float, float, float, float]]]:
    """Return samples, metric, squared gradient and its variance of each epoch, by workload, dataset and batch."""
    traces = defaultdict(list)
    with (DATA / "convergence" / "pollux_stateff.csv").open() as file:
        for row in csv.DictReader(file):
            batch = float(row["global_batch"])
            figures = [row["iteration"], row["validation_metric"], row["grad_sqr"], row["grad_var"]]
            step, metric, sqr, var = (float(cell or "nan") for cell in figures)
            traces[row["workload"], row["dataset"], batch].append((step * batch, metric, sqr, var))
    return dict(traces)


def pollux(noise: bool = True) -> Runs:
    """Return the traces as runs to targets that every batch of a workload reaches; noise: with gradient noise."""
    traces, rows = pollux_traces(), []
    for workload, dataset in dict.fromkeys(key[:2] for key in traces):
        mine = {
            k[2]: np.array(sorted(v)) for k, v in traces.items() if k[:2] == (workload, dataset)
        }
        falls = np.mean([t[-1, 1] - t[0, 1] for t in mine.values()]) < 0
        sign = -1.0 if falls else 1.0
        first = max(sign * t[0, 1] for t in mine.values())
        last = min(np.max(sign * t[:, 1]) for t in mine.values())
        for share in TARGETS:
            goal = first + share * (last - first)
            for batch, trace in mine.items():
                at = _reached(trace[:, 0], sign * trace[:, 1], goal)
                here = trace[min(np.searchsorted(trace[:, 0], at), len(trace) - 1)]
                rows.append({
                    "workload": workload, "dataset": dataset, "target": f"{share:g} of the way",
                    "global_batch": batch, "samples_to_target": at, "status": "ok",
                    # Its variance is that of a gradient of the smallest batch (AdaptDL), ours of a sample's.
                    **({"grad_sqr": here[2], "grad_var": here[3] * min(mine)} if noise else {}),
                })  # fmt: skip
    return runs_from_table(Table.from_rows(rows, "pollux"), load_catalog())


def _reached(samples: FloatArray, metric: FloatArray, goal: float) -> float:
    """Return where a metric that rises first reaches a goal, between epochs along a line."""
    k = int(np.argmax(metric >= goal))
    if k == 0:
        return float(samples[0])
    share = (goal - metric[k - 1]) / (metric[k] - metric[k - 1])
    return float(samples[k - 1] + share * (samples[k] - samples[k - 1]))


def batches_out(runs: Runs) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield what is fitted and what is judged, `PARTS` times: every so many of the batches of each training."""
    names = [n for n in ("workload", "dataset", "target") if n in runs.table]
    training, batch = runs.table.groups(names)[1], runs.table.numbers("global_batch")
    part = np.zeros(len(runs), dtype=np.int64)
    for code in np.unique(training):
        mine = training == code
        part[mine] = (np.unique(batch[mine], return_inverse=True)[1] * 5 + code) % PARTS
    for k in range(PARTS):
        yield np.flatnonzero(part != k), np.flatnonzero(part == k)


def one_known(runs: Runs) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield the same with a workload left out but for one run, `DRAWS` times each."""
    code, rng = runs.table.groups(("workload",))[1], np.random.default_rng(0)
    batch, target = runs.table.numbers("global_batch"), runs.table.texts("target")
    for group in np.unique(code):
        mine = np.flatnonzero(code == group)
        for run in rng.permutation(mine)[:DRAWS]:
            # A run to several targets on its way is one run.
            known = (
                mine[batch[mine] == batch[run]] if len(set(target[mine])) > 1 else np.array([run])
            )
            yield np.append(np.flatnonzero(code != group), known), np.setdiff1d(mine, known)


def judged(runs: Runs, folds: Iterator[tuple[IntArray, IntArray]]) -> str:
    """Return the figures of folds as cells of a row."""
    truth, answers = [], []
    for fitted, left in folds:
        truth.append(samples_to_target(runs)[left])
        answers.append(Convergence().fit(runs.take(fitted)).samples(runs.jobs.take(left))[0])
    real, said = np.concatenate(truth), np.concatenate(answers)
    both = np.isfinite(real) & np.isfinite(said[:, 1])
    error = np.abs(said[both, 1] / real[both] - 1) * 100
    inside = (real[both] >= said[both, 0]) & (real[both] <= said[both, 2])
    width = np.median(said[both, 2] / said[both, 0])
    share = both.sum() / np.isfinite(real).sum()
    return (
        f"{np.isfinite(real).sum():,} | {share:.0%} | {np.median(error):.1f} % | {error.mean():.1f} % |"
        f" {inside.mean():.0%} | {width:.2f}x"
    )


def live_curves(seen_share: float) -> str:
    """Return how well a part of Pollux's curves foresees when 80, 90 and 97 % of their rise are reached."""
    errors, inside = [], []
    for trace in map(np.array, map(sorted, pollux_traces().values())):
        sign = -1.0 if trace[-1, 1] < trace[0, 1] else 1.0
        value = sign * trace[:, 1]
        for share in (0.8, 0.9, 0.97):
            goal = value[0] + share * (value.max() - value[0])
            at = trace[np.argmax(value >= goal), 0]
            seen = trace[:, 0] <= seen_share * at
            if seen.sum() >= LEAST:
                low, middle, high = arrival(trace[seen, 0], value[seen], goal).samples
                errors.append(abs(middle / at - 1) * 100)
                inside.append(low <= at <= high)
    return f"{len(errors)} | {np.median(errors):.0f} % | {np.mean(inside):.0%}"


def useful(runs: Runs) -> Runs:
    """Return the runs that say when they reached their target."""
    return runs.take(np.flatnonzero(np.isfinite(samples_to_target(runs))))


def main() -> None:
    """Print the page."""
    print(
        "| table | left out | rows | answered | median error | mean error | inside the band | its width |"
    )
    print("|---|---|---|---|---|---|---|---|")
    tables = {
        "mlperf": useful(mlperf()), "pollux": useful(pollux()), "pollux, no noise": useful(pollux(False)),
    }  # fmt: skip
    for name, runs in tables.items():
        print(f"| {name} | a batch | {judged(runs, batches_out(runs))} |", flush=True)
        print(f"| {name} | a workload but one run | {judged(runs, one_known(runs))} |", flush=True)
    print(
        "\n| of a live curve, seen | cases | median error of the samples in all | inside the band |\n|---|---|---|---|"
    )
    for share in (0.25, 0.5, 0.75):
        print(f"| {share:.0%} of the samples | {live_curves(share)} |", flush=True)
    runs, began = mlperf(), time.perf_counter()
    Convergence().fit(runs).samples(runs.jobs)
    print(
        f"\nFitting and answering the {len(runs)} rows of mlperf takes {time.perf_counter() - began:.1f} s."
    )


if __name__ == "__main__":
    main()
