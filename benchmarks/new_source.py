"""How the shipped constants do on a source that taught them nothing.

Each table in turn is left out whole and the constants are refitted to all others, as `make constants`
does; then the table is forecast, and beside it by the priors alone and by constants that the table
did teach. Widths of the priors, and how much may be laid to what is peculiar to a source, are compared
by the geometric mean of the medians: `PRIOR_WIDTH` and `SETTING_SD` of refit.py were chosen
so. What came out goes to benchmarks/results/new_source.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import refit
from accuracy import commit_of_source
from converters import measured_folder

from forerun.catalog import load_catalog
from forerun.predictors.analytic import AnalyticPredictor
from forerun.tables import Runs, read_table
from forerun.tables.measured import measured_seconds
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


def measured_pair(
    setting_sd: float, width: float, each: int, most: int, data: Path
) -> dict[str, Any]:
    """Return by table what `judged` says of priors, of constants from others, and of all."""
    tables = refit.fitted_runs(data, each)
    full, found = refit.refitted(tables, width, setting_sd), {}
    for name in tables:
        runs = sample(runs_from_table(read_table(data / f"{name}.csv"), load_catalog()), most)
        others = {other: rows for other, rows in tables.items() if other != name}
        found[name] = {
            "priors": judged(AnalyticPredictor(), runs),
            "others": judged(refit.refitted(others, width, setting_sd), runs),
            "all": judged(full, runs),
        }
        line = "  ".join(
            f"{k} {v['median']:.1f} % ({v['inside']:.0f})" for k, v in found[name].items()
        )
        print(f"{setting_sd} {width} {name:24s} {line}", flush=True)
    return found


def geometric_mean(found: dict[str, Any], start: str) -> float:
    """Return the geometric mean over tables of the median errors in %."""
    return float(np.exp(np.mean([np.log(one[start]["median"]) for one in found.values()])))


def measured_pairs(asked: argparse.Namespace, data: Path) -> dict[str, Any]:
    """Return `widths`, tables and means by width at the usual setting_sd, and `settings`, all means.

    These are geometric means by setting_sd and, in it, by width.
    """
    widths: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    for setting_sd, width in product(asked.settings, asked.widths):
        found = measured_pair(setting_sd, width, asked.each, asked.most, data)
        means = {start: geometric_mean(found, start) for start in ("priors", "others", "all")}
        shown = {start: round(mean, 1) for start, mean in means.items()}
        print(setting_sd, width, shown, flush=True)
        settings.setdefault(str(setting_sd), {})[str(width)] = means
        if setting_sd == refit.SETTING_SD:
            widths[str(width)] = {"means": means, "tables": found}
    return {"widths": widths, "settings": settings}


def command_of(asked: argparse.Namespace) -> str:
    """Return the words that measure the same again."""
    widths, settings = (" ".join(map(str, values)) for values in (asked.widths, asked.settings))
    return (
        f"python benchmarks/new_source.py --each {asked.each} --most {asked.most}"
        f" --widths {widths} --settings {settings}"
    )


def main(words: Sequence[str] | None = None) -> None:
    """Measure each pair of a setting_sd and a width, and keep the results."""
    parser = argparse.ArgumentParser(description="see the first lines of benchmarks/new_source.py")
    parser.add_argument("--each", type=int, default=200, help="runs of a table that teach at most")
    parser.add_argument("--most", type=int, default=500, help="runs of a table judged at most")
    parser.add_argument("--widths", type=float, nargs="+", default=[0.5, refit.PRIOR_WIDTH, 1.0],
                        help="prior_width of the fits")  # fmt: skip
    parser.add_argument("--settings", type=float, nargs="+", default=[refit.SETTING_SD],
                        help="setting_sd of the fits, each with every width")  # fmt: skip
    asked = parser.parse_args(words)
    if refit.SETTING_SD not in asked.settings or refit.PRIOR_WIDTH not in asked.widths:
        parser.error(
            f"--settings must name {refit.SETTING_SD} and --widths {refit.PRIOR_WIDTH}: what is"
            " shipped stands in docs/accuracy.md"
        )
    found = measured_pairs(asked, measured_folder())
    RESULTS.write_text(json.dumps({
        "made": {
            "command": command_of(asked), "seed": SEED, "commit": commit_of_source(),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        },
        "chosen": refit.PRIOR_WIDTH, "chosen_setting": refit.SETTING_SD, **found,
    }, indent=1) + "\n")  # fmt: skip


if __name__ == "__main__":
    main()
