"""How long predictors take that learn: fitting 1,000 runs, and answering 1,000,000 rows.

`python benchmarks/laws_speed.py [NAME ...]`: every registered law, and the regressions. The runs are synthetic, of few kinds with many runs
each and of many kinds with few; the rows are given once as plans on resolved clusters, as a search
asks them, and once as a table of names that nobody knows. Times are of the processor, so that other
work on the machine does not count. The last lines are `slowest_fit_seconds: N` and
`slowest_million_rows_seconds: N` of the laws; the exit status is 1 where a target is missed: 1 s
and 2 s, and for `ray-ml`, the AutoML, 60 s of fitting.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from forerun import registry
from forerun.catalog import load_catalog
from forerun.errors import RequestError
from forerun.tables import Jobs, Runs, Table
from forerun.testing.samples import tiny_jobs, tiny_runs
from forerun.workloads.rows import jobs_from_table, runs_from_table

RUNS, ROWS, KINDS = 1_000, 1_000_000, (2, 100)
FIT_SECONDS, PREDICT_SECONDS = 1.0, 2.0
REGRESSIONS = {"gaussian": 60.0, "ray-ml": 60.0}  # seconds that a fit may take
_PREFIX = "forerun.predictors.laws."


def table(rows: int, kinds: int, sync: str) -> Table:
    """Return rows of workloads and devices that no zoo knows, with times by a made-up law."""
    rng = np.random.default_rng(0)
    devices = rng.choice([1, 2, 4, 8, 16], rows)
    micro = rng.choice([8, 16, 32, 64], rows)
    each = 0.01 + 0.002 * micro + np.where(devices > 1, 0.05 + 0.002 * devices, 0.0)
    seconds = each * np.exp(rng.normal(0, 0.03, rows))
    names = np.array([f"net-{i}" for i in range(kinds)], dtype=object)
    columns: dict[str, Any] = {
        "workload": names[rng.integers(0, kinds, rows)],
        "device": np.full(rows, "abacus", dtype=object),
        "framework": np.full(rows, "own", dtype=object),
        "sync": np.full(rows, sync, dtype=object),
        "devices": devices.astype(float),
        "nodes": np.ceil(devices / 4.0),
        "parameter_servers": np.ones(rows),
        "micro_batch": micro.astype(float),
        "global_batch": (micro * devices).astype(float),
        "step_time_s": seconds / (devices if sync == "ps-async" else 1),
    }
    return Table(columns, rows)


def processor_seconds(work: Any) -> tuple[float, Any]:
    """Return the seconds of the processor that a call takes, and what it returns."""
    started = time.process_time()
    made = work()
    return time.process_time() - started, made


def measure(name: str, million: Mapping[str, Jobs]) -> tuple[float, float]:
    """Print one law's times, and return its slowest fit and its slowest million rows."""
    make = registry.load("predictors", name)
    fits, answers = [], []
    tiny = tiny_jobs()
    for words, runs in _teachers(name, tiny):
        try:
            seconds, law = processor_seconds(lambda runs=runs: make().fit(runs))
        except RequestError as why:
            print(f"{name:16s} {words:12s} cannot learn: {why.found}")
            continue
        fits.append(seconds)
        jobs = million["plans" if words == "plans" else f"{words}, {_sync(name)}"]
        seconds, forecasts = processor_seconds(lambda law=law, jobs=jobs: law.predict(jobs))
        answers.append(seconds)
        print(
            f"{name:16s} {words:12s} fit {fits[-1]:5.2f} s, a million rows {seconds:5.2f} s, "
            f"{forecasts.answered.mean():.0%} answered"
        )
    return max(fits, default=0.0), max(answers, default=0.0)


def _teachers(name: str, tiny: Jobs) -> list[tuple[str, Runs]]:
    catalog = load_catalog()
    tables = [
        (f"{kinds} kinds", runs_from_table(table(RUNS, kinds, _sync(name)), catalog))
        for kinds in KINDS
    ]
    return [("plans", tiny_runs(tiny.take(np.arange(RUNS) % len(tiny)))), *tables]


def _sync(name: str) -> str:
    return "ps-async" if name.startswith("ps-") else "allreduce"


def main() -> int:
    """Measure every law, or those named, and print."""
    laws = [e.name for e in registry.entries("predictors") if e.target.startswith(_PREFIX)]
    tiny, catalog = tiny_jobs(), load_catalog()
    million = {"plans": replace(tiny.take(np.arange(ROWS) % len(tiny)), labels=None)}
    for kinds in KINDS:
        for sync in ("allreduce", "ps-async"):
            asked = jobs_from_table(table(ROWS, kinds, sync), catalog)
            million[f"{kinds} kinds, {sync}"] = asked
    taken = {name: measure(name, million) for name in sys.argv[1:] or [*laws, *REGRESSIONS]}
    of_laws = [times for name, times in taken.items() if name not in REGRESSIONS]
    print(f"slowest_fit_seconds: {max((fit for fit, _ in of_laws), default=0.0):.2f}")
    print(f"slowest_million_rows_seconds: {max((rows for _, rows in of_laws), default=0.0):.2f}")
    return int(
        any(fit > REGRESSIONS.get(name, FIT_SECONDS) or rows > PREDICT_SECONDS
            for name, (fit, rows) in taken.items())
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
