"""How long a fit takes: three runs of one's own, from the shipped constants, and a whole table.

`FORERUN_DATA=... python benchmarks/update_speed.py`. The three runs are a language model's on one
device, read and priced before the clock starts, as in a service that holds its predictor. The last
lines are `update_milliseconds: N` and `table_seconds: N`.
"""

from __future__ import annotations

import time

import numpy as np
from converters import measured_folder

from forerun.catalog import load_catalog
from forerun.predictors.analytic import AnalyticPredictor
from forerun.tables import Runs, read_table
from forerun.workloads.rows import runs_from_table

REPEATS = 7


def table(name: str) -> Runs:
    """Return the measured runs of a table."""
    path = measured_folder() / f"{name}.csv"
    runs = runs_from_table(read_table(path), load_catalog())
    return runs.take(np.flatnonzero(np.isfinite(runs.step_seconds())))


def seconds_of(predictor: AnalyticPredictor, runs: Runs, repeats: int) -> float:
    """Return the least seconds of several fits."""
    predictor.predict(runs.jobs)
    walls = []
    for _ in range(repeats):
        started = time.perf_counter()
        predictor.fit(runs)
        walls.append(time.perf_counter() - started)
    return min(walls)


def main() -> None:
    """Measure, and print."""
    predictor = AnalyticPredictor.shipped()
    llm, net = table("llm_foundry"), table("pollux")
    for name, runs in (("llm_foundry", llm), ("pollux", net)):
        three = runs.take(np.array([0, 3, 6]))
        found = seconds_of(predictor, three, REPEATS) * 1e3
        print(f"three runs of {name}: {found:.0f} ms")
        if runs is llm:
            update = found
    whole = seconds_of(AnalyticPredictor(), table("vtrain"), 1)
    print(f"update_milliseconds: {update:.0f}")
    print(f"table_seconds: {whole:.2f}")


if __name__ == "__main__":
    main()
