"""How fast the store is: 1,000,000 runs added as rows, 100,000 as Run objects, and asked by filters.

Rows have real columns and some of one's own. Each query is asked five times of an open store; the
median counts, and the slowest is printed too, with the time that the processor worked for it: on a busy
machine the rest is waiting for a turn. Every answer is checked against the rows that were put
in. SQLite by default (a temporary folder), another place with `--store`; it must be empty. The exit
code is 1 where fewer than 5,000 runs a second are added or a query takes more than 50 ms on SQLite.
`--out FILE.md` writes the table.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from forerun.domain.job import Run
from forerun.store import open_store
from forerun.store.sql_store import SqlStore
from forerun.tables import Table
from forerun.tables.conditions import parse_condition
from forerun.testing.samples import tiny_jobs

ASKED_PER_SECOND, ASKED_MS = 5000.0, 50.0
REPEATS = 5
MODELS = tuple(f"model-{i}" for i in range(200))
DEVICES = ("a100-sxm-80gb", "h100-sxm-80gb", "v100-sxm2-16gb", "t4", "cpu")
# (conditions, limit): what people and campaigns ask for.
QUERIES: tuple[tuple[tuple[str, ...], int | None], ...] = (
    (("workload=model-7", "device=t4", "devices=8"), None),
    (("workload=model-7", "devices<=8", "status=ok"), 1000),
    (("workload=model-7", "status=oom"), None),
    (("workload=model-7,model-8", "devices=2", "global_batch>=64"), None),
    (("device=t4", "devices=8", "global_batch=64"), 1000),
    (("framework=jax", "devices=64", "global_batch=16", "precision=fp32"), 1000),
    (("campaign=night-42",), None),
    (("status=oom", "devices<=8"), 100),
    (("devices<=8",), 100),
    ((), 100),
)


def made_up(n: int, seed: int) -> Table:
    """Return n rows as a campaign's runs have them."""
    rng = np.random.default_rng(seed)

    def drawn(words: Sequence[str]) -> Any:
        return np.array(words, dtype=object)[rng.integers(0, len(words), n)]

    numbers = {
        name: rng.lognormal(size=n)
        for name in ("step_time_s", "sync_time_s", "samples_per_s", "memory_gb", "my_loss")
    }
    powers = {"devices": 7, "global_batch": 12, "micro_batch": 5}
    return Table({
        "workload": drawn(MODELS), "device": drawn(DEVICES), "precision": drawn(("bf16", "fp32")),
        "framework": drawn(("pytorch", "jax")), "source": drawn(("lab", "mlperf", "own")),
        "status": drawn(("ok",) * 19 + ("oom",)), "my_queue": drawn(("fast", "slow", "")),
        "run_campaign": drawn([f"night-{i}" for i in range(2000)]),
        **{name: 2.0 ** rng.integers(0, top, n) for name, top in powers.items()}, **numbers,
    }, n)  # fmt: skip


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """Return what a call returns, and its wall-clock seconds."""
    start = time.perf_counter()
    found = call()
    return found, time.perf_counter() - start


def rate_words(count: int, seconds: float, worked: float) -> str:
    """Return a rate in words, with that of the processor's own time."""
    return f"{count / seconds:,.0f} runs/s ({count / worked:,.0f} a second of processor)"


def asked(
    store: SqlStore, where: tuple[str, ...], limit: int | None
) -> tuple[int, list[float], float]:
    """Return how many runs a query finds, the milliseconds of each time, and of processor (median)."""
    store.count()  # the connection is open
    walls, worked, found = [], [], 0
    for _ in range(REPEATS):
        start = time.process_time()
        runs, seconds = timed(lambda: store.runs(where=where, limit=limit))
        worked.append(1000 * (time.process_time() - start))
        walls.append(1000 * seconds)
        found = len(runs)
    return found, walls, float(np.median(worked))


def expected(table: Table, where: tuple[str, ...], limit: int | None) -> int:
    """Return how many rows the conditions leave of the table itself."""
    whole = table.with_columns(campaign=table.columns["run_campaign"])
    keep = np.ones(len(table), dtype=bool)
    for text in where:
        keep &= parse_condition(text).holds(whole)
    count = int(keep.sum())
    return count if limit is None else min(count, limit)


def measured(place: str, n: int, objects: int, seed: int) -> tuple[list[str], bool]:
    """Return the report's lines, and whether all that was asked is met."""
    lines, met = [], True
    with open_store(place) as store:
        if store.count():
            raise SystemExit(f"{place} holds runs already; name an empty store")
        table = made_up(n, seed)
        start = time.process_time()
        added, seconds = timed(lambda: store.add_table(table))
        worked = time.process_time() - start
        assert (added.new, store.count()) == (n, n), "runs are missing"
        lines += ["| what | measured | asked |", "|---|---|---|"]
        rate = n / seconds
        met &= rate >= ASKED_PER_SECOND
        lines.append(
            f"| {n:,} rows added, one call | {rate_words(n, seconds, worked)} |"
            f" {ASKED_PER_SECOND:,.0f} |"
        )
        for where, limit in QUERIES:
            found, walls, processor = asked(store, where, limit)
            assert found == expected(table, where, limit), f"{where}: {found} runs"
            middle = float(np.median(walls))
            met &= middle <= ASKED_MS or not place.endswith(".db")
            words = " ".join(where) or "no filter"
            first = f", first {limit:,}" if limit else ""
            lines.append(
                f"| `{words}`{first}: {found:,} of {n:,} runs | {middle:.1f} ms"
                f" (slowest {max(walls):.1f}; {processor:.1f} of processor) | {ASKED_MS:g} ms |"
            )
        jobs = list(tiny_jobs())
        runs = [
            Run(jobs[i % len(jobs)], step_seconds=1.0 + i, origin="bench") for i in range(objects)
        ]
        start = time.process_time()
        _, seconds = timed(lambda: store.add(runs))
        worked = time.process_time() - start
        met &= objects / seconds >= ASKED_PER_SECOND
        lines.append(
            f"| {objects:,} Run objects added, one call | {rate_words(objects, seconds, worked)} |"
            f" {ASKED_PER_SECOND:,.0f} |"
        )
        one = made_up(200, seed + 1)
        _, seconds = timed(lambda: [store.add_table(one.take(np.array([i]))) for i in range(200)])
        lines.append(
            f"| 200 runs added one by one, each confirmed on the disk | {200 / seconds:,.0f} runs/s | |"
        )
    return lines, met


def main() -> int:
    """Print the figures; return 1 where one is not met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--objects", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", help="another place than a temporary file")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    before = os.getloadavg()[1]
    with tempfile.TemporaryDirectory() as folder:
        place = options.store or f"{folder}/runs.db"
        lines, met = measured(place, options.rows, options.objects, options.seed)
    kind = "PostgreSQL" if place.startswith("postgres") else "SQLite"
    head = [
        f"# The store's speed, {kind}", "",
        f"`python benchmarks/store_speed.py --rows {options.rows} --seed {options.seed}` on"
        f" {platform.machine()} ({os.cpu_count()} cores), Python {platform.python_version()},"
        f" {time.strftime('%Y-%m-%d')}. Processes that wanted a core (mean of five minutes): {before:.1f}"
        f" before, {os.getloadavg()[1]:.1f} at the end, this one among them.", "",
    ]  # fmt: skip
    text = "\n".join((*head, *lines, ""))
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    print("met" if met else "NOT met")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
