"""How the shipped constants do on a source that taught them nothing.

Each table in turn is left out whole and the constants are refitted to all others, as `make constants`
does; then the table is forecast, and beside it by the priors alone and by constants that the table
did teach. Widths of the priors are compared by the geometric mean of the medians: `PRIOR_WIDTH` of
`evaluate.refit` was chosen so. What came out goes to benchmarks/results/new_source.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from accuracy import commit_of_source

from forerun.catalog import load_catalog
from forerun.evaluate import refit
from forerun.evaluate.measured import measured_seconds
from forerun.predictors.analytic import AnalyticPredictor
from forerun.tables import Runs, read_table
from forerun.workloads.rows import runs_from_table

RESULTS = Path(__file__).parent / "results" / "new_source.json"
SEED = 0


def judged(predictor: AnalyticPredictor, runs: Runs) -> dict[str, float]:
    """Return rows, median error and bias in %, share inside the band, and its median width."""
    forecast, measured = predictor.predict(runs.jobs), measured_seconds(runs, "step").seconds
    middle = forecast.seconds[:, 1]
    both = np.isfinite(measured) & np.isfinite(middle)
    off = middle[both] / measured[both] - 1.0
    low, high = forecast.seconds[both, 0], forecast.seconds[both, 2]
    inside = (measured[both] >= low) & (measured[both] <= high)
    return {
        "rows": int(both.sum()), "median": 100 * float(np.median(np.abs(off))),
        "bias": 100 * float(np.median(off)), "inside": 100 * float(inside.mean()),
        "width": float(np.median(high / low)),
    }  # fmt: skip


def sample(runs: Runs, most: int) -> Runs:
    """Return at most `most` of the runs, at random."""
    if len(runs) <= most:
        return runs
    return runs.take(np.sort(np.random.default_rng(SEED).choice(len(runs), most, replace=False)))


def measured_width(width: float, each: int, most: int, data: Path) -> dict[str, Any]:
    """Return by table what `judged` says of priors, of constants from others, and of all."""
    tables = refit.taught_runs(data, each)
    full, found = refit.refitted(tables, width), {}
    for name in tables:
        runs = sample(runs_from_table(read_table(data / f"{name}.csv"), load_catalog()), most)
        others = {other: rows for other, rows in tables.items() if other != name}
        found[name] = {
            "priors": judged(AnalyticPredictor(), runs),
            "others": judged(refit.refitted(others, width), runs),
            "all": judged(full, runs),
        }
        line = "  ".join(
            f"{k} {v['median']:.1f} % ({v['inside']:.0f})" for k, v in found[name].items()
        )
        print(f"{width} {name:24s} {line}", flush=True)
    return found


def geometric_mean(found: dict[str, Any], start: str) -> float:
    """Return the geometric mean over tables of the median errors in %."""
    return float(np.exp(np.mean([np.log(one[start]["median"]) for one in found.values()])))


def main() -> None:
    """Measure each width and keep the results."""
    parser = argparse.ArgumentParser(description="see the first lines of benchmarks/new_source.py")
    parser.add_argument("--each", type=int, default=200, help="runs of a table that teach at most")
    parser.add_argument("--most", type=int, default=500, help="runs of a table judged at most")
    parser.add_argument("--widths", type=float, nargs="+", default=[0.5, refit.PRIOR_WIDTH, 1.0])
    asked = parser.parse_args()
    data, widths = Path(os.environ["FORERUN_DATA"]) / "runs", {}
    for width in asked.widths:
        found = measured_width(width, asked.each, asked.most, data)
        means = {start: geometric_mean(found, start) for start in ("priors", "others", "all")}
        print(width, {start: round(mean, 1) for start, mean in means.items()}, flush=True)
        widths[str(width)] = {"means": means, "tables": found}
    RESULTS.write_text(json.dumps({
        "made": {
            "command": f"python benchmarks/new_source.py --each {asked.each} --most {asked.most}",
            "seed": SEED, "commit": commit_of_source(),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        },
        "chosen": refit.PRIOR_WIDTH, "widths": widths,
    }, indent=1) + "\n")  # fmt: skip


if __name__ == "__main__":
    main()
