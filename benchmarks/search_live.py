"""Searches that run for real: each searcher on the lab's Ray cluster, against the grid measured in full.

The grid makes all configurations of `search_live.yaml` and is the oracle. Then each searcher starts anew, seed by
seed, and is judged by the times that it measured itself. Then each is replayed on the grid, 30 seeds.
Prints a page of Markdown.

    python benchmarks/search_live.py [--live 3] > benchmarks/results/search-live.md      # as root, on a quiet machine
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from forerun.tables import COLUMNS, Table
from forerun.tables.files import read_table, write_table

SPACE = Path(__file__).with_suffix(".yaml")
GRID = Path(__file__).parent / "results" / "search_live_lab.csv"
SEARCHERS, REPLAYED, HOSTS, CORES = ("cherrypick", "bayesian", "random"), 30, 2, 1.0
LAB = "search-live"


def forerun(*words: str) -> str:
    """Return what the command prints; its progress goes to stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "forerun", *words], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode not in (0, 3):
        raise SystemExit(f"forerun {' '.join(words)} ended with {done.returncode}")
    return done.stdout


def live(searcher: str, seed: int, out: Path, *more: str) -> dict[str, Any]:
    """Return a search carried out on the lab, as JSON, with the seconds that it took by the clock."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        text = forerun(
            "search", str(SPACE), "--on", "ray", "--lab", LAB, "--searcher", searcher, "--seed", str(seed),
            "--store", f"{folder}/runs.db", "--out", str(out), "--yes", "--json", *more,
        )  # fmt: skip
    return {**json.loads(text), "wall_seconds": time.monotonic() - began}


def until_near(found: dict[str, Any], best: float) -> tuple[int | None, float, float]:
    """Return after how many trials a search was within 10 % of the best, what these cost and took; None: never."""
    (search,) = found["searches"]
    dollars = 0.0
    for k, run in enumerate(search["runs"]):
        dollars += run["dollars"]
        if run["best"] is not None and run["best"] <= 1.1 * best:
            return k + 1, dollars, found["wall_seconds"] * (k + 1) / len(search["runs"])
    return None, dollars, found["wall_seconds"]


def passes(folder: str) -> Path:
    """Return a table of the grid's runs by equal work: seconds of a pass over the data, not of a step."""
    table = read_table(GRID)
    steps = np.ceil(table.numbers("dataset_size") / table.numbers("global_batch"))
    kept = {
        n: c for n, c in table.columns.items() if n in COLUMNS and COLUMNS[n].group != "measured"
    }
    path = Path(folder) / "passes.csv"
    write_table(
        Table({**kept, "epoch_time_s": table.numbers("step_time_s") * steps}, len(table)), path
    )
    return path


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--live", type=int, default=3, help="seeds that are searched for real")
    parser.add_argument(
        "--replay-only", action="store_true", help="take the grid that was measured before"
    )
    given = parser.parse_args()
    print("# Searches that run for real\n")
    if not given.replay_only:
        forerun("lab", "up", "--name", LAB, "--hosts", str(HOSTS), "--cpus", str(CORES), "--ray")
        try:
            grid = live("grid", 0, GRID, "--max-runs", "100")
            best = grid["searches"][0]["runs"][-1]["best"]
            print(f"The grid: {len(grid['searches'][0]['runs'])} trials, best ${best:.3g}, ${grid['spent_dollars']:.2g}"
                  f" and {grid['wall_seconds'] / 60:.0f} min by the clock.\n")  # fmt: skip
            print(
                "| live | seed | trials | within 10 % after | money until then | time until then |\n|---|---|---|---|---|---|"
            )
            for searcher in SEARCHERS:
                for seed in range(given.live):
                    with tempfile.TemporaryDirectory() as folder:
                        found = live(searcher, seed, Path(folder) / "runs.csv")
                    count, dollars, seconds = until_near(found, best)
                    print(f"| {searcher} | {seed} | {len(found['searches'][0]['runs'])} | {count or 'never'} |"
                          f" ${dollars:.2g} | {seconds / 60:.1f} min |", flush=True)  # fmt: skip
        finally:
            forerun("lab", "down", LAB)
    print(
        f"\n| replayed, {REPLAYED} seeds | within 10 % | median trials | median money until then | mean money |\n|---|---|---|---|---|"
    )
    folder = tempfile.mkdtemp()
    table = passes(folder)
    for searcher in (*SEARCHERS, "grid"):
        text = forerun("search", "--replay", str(table), "--searcher", searcher, "--seeds", str(REPLAYED),
                       "--max-runs", "100", "--no-stop", "--json")  # fmt: skip
        searches = json.loads(text)["searches"]
        money = np.array([one["dollars_until_within_10_percent"] for one in searches], dtype=float)
        runs = np.array([one["runs_until_within_10_percent"] for one in searches], dtype=float)
        print(f"| {searcher} | {np.isfinite(money).sum()} of {REPLAYED} | {np.median(runs):.0f} |"
              f" ${np.median(money):.3g} | ${money.mean():.3g} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
