"""Does P(A beats B) hold: predicted chances against who won, on pairs of measured runs.

For each table blind forecasts of the analytic predictor, and pairs of its runs of one workload under
one framework: `plan` (the same devices and batch, other plans), `cluster` (one kind of device, other
sizes or batches) and `device` (other kinds). Compared are device-seconds a sample, whose errors are
those of the step. The favourite of each pair is the one that is forecast to win; a line gives how
often it was predicted to and did, in bins of the prediction, for three ways to join two errors:

* shared: `domain.quantiles`, as recommend and explain use it;
* independent: as if two answers shared nothing;
* loadings: each cause shared whole, which leaves (sqrt(v_A) - sqrt(v_B))^2 of it.

`own` brings every band to the scatter of its table first, so that a band that is too wide or too
narrow is not taken for a wrong correlation. Pairs that are forecast to be equal make no claim and
are left out. --fitted calibrates on half of the workloads and judges pairs of the others. The last
lines pool the other tables, which were in view when the rule was chosen. Usage: FORERUN_DATA=... python
benchmarks/pair_reliability.py [--fitted] [TABLE ...]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np
from converters import measured_folder
from numpy.typing import NDArray

from forerun.advisor.given_runs import runs_of
from forerun.catalog import load_catalog
from forerun.domain.quantiles import (
    SCOPES,
    correlation,
    log_sigma,
    probability_above_zero,
    scope_labels,
    scope_of,
)
from forerun.predictors.analytic import AnalyticPredictor
from forerun.tables import Runs
from forerun.tables.measured import measured_seconds

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
# Which variance is whose (`uncertainty.step_causes`) was settled on the first two.
TABLES = ("vtrain", "pollux", "llm_foundry", "ultrascale", "sia", "nvidia_nemo", "gavel", "lambda",
          "tf_benchmarks", "pytorch_gpu_benchmark")  # fmt: skip
EDGES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
KINDS = ("plan", "cluster", "device")
LEAST = 20  # pairs in a bin or of a kind, below which nothing is said
MOST = 5_000  # pairs of a kind and table, drawn with a seed
SET_ON = ("vtrain", "pollux")
SHOWN = (("shared", False), ("shared", True), ("independent", True), ("loadings", True))


@dataclass(frozen=True)
class Measured:
    """Answered rows of a table: device-seconds a sample, measured (n,) and forecast (n, 3)."""

    measured: FloatArray
    forecast: FloatArray
    causes: Mapping[str, FloatArray]
    labels: Mapping[str, IntArray]


def measured_rows(runs: Runs, predictor: AnalyticPredictor) -> Measured:
    """Return the rows of a table that were measured and are answered."""
    forecasts = predictor.predict(runs.jobs)
    seconds = measured_seconds(runs, "step").seconds
    rows = np.flatnonzero(np.isfinite(seconds) & forecasts.answered)
    jobs, forecasts = runs.jobs.take(rows), forecasts.take(rows)
    each = [jobs[i] for i in range(len(jobs))]
    scale = np.array([job.cluster.devices / job.plan.global_batch for job in each])
    labels = {name: [scope_labels(job)[name] for job in each] for name in SCOPES}
    labels["work"] = [_work(job.workload) for job in each]
    labels["size"] = [(j.cluster.devices, j.cluster.nodes, j.plan.global_batch) for j in each]
    return Measured(
        seconds[rows] * scale, forecasts.seconds * scale[:, None], forecasts.causes,
        {name: _codes(values) for name, values in labels.items()},
    )  # fmt: skip


def _work(workload: object) -> str:
    names = ("name", "framework", "seq_len", "image_size", "precision", "params", "shape", "task")
    return "|".join(str(getattr(workload, name)) for name in names)


def _codes(values: Sequence[object]) -> IntArray:
    seen: dict[object, int] = {}
    return np.array([seen.setdefault(value, len(seen)) for value in values], dtype=np.int64)


def pairs(rows: Measured, kind: str, seed: int = 0) -> tuple[IntArray, IntArray]:
    """Return positions of the two runs of each pair of a kind, at most `MOST`."""
    rng = np.random.default_rng(seed)
    found = []
    for code in np.unique(rows.labels["work"]):
        group = np.flatnonzero(rows.labels["work"] == code)
        first, second = np.triu_indices(len(group), 1)
        a, b = group[first], group[second]
        same_device, same_size = (
            rows.labels[name][a] == rows.labels[name][b] for name in ("device", "size")
        )
        keep = {"plan": same_device & same_size, "cluster": same_device & ~same_size,
                "device": ~same_device}[kind]  # fmt: skip
        found.append(np.stack([a[keep], b[keep]]))
    joined = np.concatenate(found, axis=1)
    middle = rows.forecast[:, 1]
    joined = joined[:, np.abs(np.log(middle[joined[0]] / middle[joined[1]])) > 1e-6]
    if joined.shape[1] > MOST:
        joined = joined[:, rng.choice(joined.shape[1], MOST, replace=False)]
    return joined[0], joined[1]


def chances(rows: Measured, a: IntArray, b: IntArray, way: str, own: bool) -> FloatArray:
    """Return P(A beats B) of pairs, (n,)."""
    sigma = log_sigma(rows.forecast)
    if own:
        error = np.log(rows.measured / rows.forecast[:, 1])
        sigma = sigma * np.sqrt(np.mean(np.clip(error / sigma, -3, 3) ** 2))
    rho = _correlation(rows, a, b, way)
    variance = sigma[a] ** 2 + sigma[b] ** 2 - 2 * rho * sigma[a] * sigma[b]
    gap = np.log(rows.forecast[b, 1] / rows.forecast[a, 1])
    return probability_above_zero(gap, np.sqrt(np.maximum(variance, 0.0)))


def _correlation(rows: Measured, a: IntArray, b: IntArray, way: str) -> FloatArray:
    if way == "independent":
        return np.zeros(len(a))
    common = {name: rows.labels[name][a] == rows.labels[name][b] for name in SCOPES}
    first = {cause: column[a] for cause, column in rows.causes.items()}
    second = {cause: column[b] for cause, column in rows.causes.items()}
    if way == "shared":
        return correlation(first, second, common)
    shared = sum(
        np.where(common.get(scope_of(cause), True), np.sqrt(first[cause] * second[cause]), 0.0)
        for cause in first
    )
    whole = np.sqrt(sum(first.values()) * sum(second.values()))
    return np.asarray(shared / whole)


def claims(rows: Measured, kind: str, way: str, own: bool) -> FloatArray:
    """Return (P that the favourite wins, whether it did) of the pairs of a kind, (n, 2)."""
    a, b = pairs(rows, kind)
    chance = chances(rows, a, b, way, own)
    won = np.select([rows.measured[a] < rows.measured[b], rows.measured[a] > rows.measured[b]],
                    [1.0, 0.0], 0.5)  # fmt: skip
    won = np.where(chance < 0.5, 1 - won, won)
    return np.stack([np.maximum(chance, 1 - chance), won], axis=1)


def line(name: str, way: str, own: bool, found: FloatArray) -> str:
    """Return a line of the report."""
    favourite, won = found.T
    place = np.minimum(np.searchsorted(EDGES, favourite, side="right") - 1, len(EDGES) - 2)
    cells = []
    for i in range(len(EDGES) - 1):
        here = np.flatnonzero(place == i)
        if len(here) < LEAST:
            cells.append("-")
            continue
        cells.append(f"{favourite[here].mean():.2f} / {won[here].mean():.2f} ({len(here):,})")
    whole = f"{favourite.mean():.3f} / {won.mean():.3f}"
    brier = np.mean((favourite - won) ** 2)
    bands = "own" if own else "stated"
    return f"| {name} | {len(found):,} | {way} | {bands} | {whole} | {brier:.3f} | {' | '.join(cells)} |"


def halves(runs: Runs, seed: int = 0) -> tuple[Runs, Runs]:
    """Return the runs of a half of the workloads, and those of the others."""
    names = runs.jobs.per_workload("name")
    mixed = np.random.default_rng(seed).permutation(np.unique(names))
    first = np.isin(names, mixed[: max(1, len(mixed) // 2)])
    return runs.take(np.flatnonzero(first)), runs.take(np.flatnonzero(~first))


def main() -> int:
    """Print the report as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", default=TABLES)
    parser.add_argument(
        "--fitted", action="store_true", help="fit on half of the workloads, judge the rest"
    )
    options = parser.parse_args()
    folder = measured_folder()
    catalog = load_catalog()
    heads = [f"{low:g}-{high:g}" for low, high in pairwise(EDGES)]
    print(f"| table | pairs | way | bands | all | Brier | {' | '.join(heads)} |")
    print("|" + "---|" * (6 + len(heads)))
    pool: dict[tuple[str, bool], list[FloatArray]] = {way: [] for way in SHOWN}
    for table in options.tables:
        runs, predictor = runs_of([folder / f"{table}.csv"], catalog), AnalyticPredictor()
        if options.fitted:
            known, runs = halves(runs)
            predictor = predictor.fit(known)
        rows = measured_rows(runs, predictor)
        for kind, (way, own) in product(KINDS, SHOWN):
            found = claims(rows, kind, way, own)
            if len(found) >= LEAST:
                print(line(f"{table} {kind}", way, own, found))
            if table not in SET_ON:
                pool[way, own].append(found)
    for (way, own), parts in pool.items():
        if parts:
            print(line("all but " + ", ".join(SET_ON), way, own, np.concatenate(parts)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
