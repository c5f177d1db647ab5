"""Searches that run for real: each searcher on the lab's Ray cluster, against the grid measured in full.

All configurations of `search_live.yaml` are measured, before the searches and again after them, and are the oracle. Each
searcher starts anew, seed by seed, and is followed until it has measured one within 10 % of the best of the oracle. Then
each is replayed on the measured grid, 30 seeds. Prints a page of Markdown.

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

import numpy as np

from forerun.advisor.searching import search_live
from forerun.cli.commands.profile import runner_of
from forerun.search.following import NEAR, Trail
from forerun.tables import COLUMNS, Table
from forerun.tables.files import read_table, write_table

SPACE = Path(__file__).with_suffix(".yaml")
GRID = Path(__file__).parent / "results" / "search_live_lab.csv"
SEARCHERS, REPLAYED, HOSTS, CORES = ("cherrypick", "bayesian", "random", "grid"), 30, 2, 1.0
LAB, MOST_RUNS = "search-live", 16
ON_LAB = ("--on", "ray", "--lab", LAB)


class FoundError(Exception):
    """A search has measured a configuration within 10 % of the best."""


def forerun(*words: str) -> str:
    """Return what the command prints; its progress goes to stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "forerun", *words], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode not in (0, 3):
        raise SystemExit(f"forerun {' '.join(words)} ended with {done.returncode}")
    return done.stdout


def measured_in_full(out: Path) -> float:
    """Measure every configuration, write them as a table, and return the least dollars of a pass over the data."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        forerun(
            "profile",
            str(SPACE),
            *ON_LAB,
            "--store",
            f"{folder}/runs.db",
            "--out",
            str(out),
            "--yes",
        )
        minutes = (time.monotonic() - began) / 60
    table = read_table(out)
    steps = np.ceil(table.numbers("dataset_size") / table.numbers("global_batch"))
    dollars = table.numbers("step_time_s") * steps * table.numbers("price_usd_per_hour") / 3600
    best = float(np.nanmin(dollars))
    print(f"Measured in full: {np.isfinite(dollars).sum()} of {len(table)} configurations in {minutes:.0f} min, those of equal"
          f" resources in one start; the best ${best:.3g} a pass.\n", flush=True)  # fmt: skip
    return best


def live(searcher: str, seed: int, best: float) -> str:
    """Carry out a search on the lab until it is near the best, and return its row of the page."""
    last: list[Trail] = []

    def look(trail: Trail) -> None:
        last[:] = [trail]
        if trail.best_so_far[-1] <= NEAR * best:
            raise FoundError

    began, near = time.monotonic(), False
    with tempfile.TemporaryDirectory() as folder:
        try:
            search_live(
                SPACE, runner_of("ray", LAB, None, hold=False), f"{folder}/runs.db", searcher, seed=seed,
                max_runs=MOST_RUNS, on_run=look,
            )  # fmt: skip
        except FoundError:
            near = True
    minutes, (trail,) = (time.monotonic() - began) / 60, last
    passes = float((trail.box.values[trail.at])[np.isfinite(trail.box.values[trail.at])].sum())
    return (f"| {searcher} | {seed} | {'yes' if near else 'no'} | {len(trail)} | ${trail.spent[-1]:.2g} | ${passes:.2g} |"
            f" {minutes:.1f} min |")  # fmt: skip


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
    parser.add_argument("--searchers", nargs="+", choices=SEARCHERS, default=SEARCHERS,
                        help="those that are carried out live; all are replayed")  # fmt: skip
    given = parser.parse_args()
    print("# Searches that run for real\n")
    if not given.replay_only:
        forerun("lab", "up", "--name", LAB, "--hosts", str(HOSTS), "--cpus", str(CORES), "--ray")
        try:
            best = measured_in_full(GRID)
            print("| live | seed | within 10 % | trials | money with starts | money of passes | time |\n"
                  "|---|---|---|---|---|---|---|")  # fmt: skip
            for seed in range(given.live):
                for searcher in given.searchers:
                    print(live(searcher, seed, best), flush=True)
            print()
            with tempfile.TemporaryDirectory() as folder:
                again = Path(folder) / "again.csv"
                measured_in_full(again)
        finally:
            forerun("lab", "down", LAB)
    print(
        f"\n| replayed, {REPLAYED} seeds | within 10 % | median trials | median money until then | mean money |\n|---|---|---|---|---|"
    )
    folder = tempfile.mkdtemp()
    table = passes(folder)
    for searcher in SEARCHERS:
        text = forerun("search", "--replay", str(table), "--searcher", searcher, "--seeds", str(REPLAYED),
                       "--max-runs", "100", "--no-stop", "--json")  # fmt: skip
        searches = json.loads(text)["searches"]
        money = np.array([one["dollars_until_within_10_percent"] for one in searches], dtype=float)
        runs = np.array([one["runs_until_within_10_percent"] for one in searches], dtype=float)
        print(f"| {searcher} | {np.isfinite(money).sum()} of {REPLAYED} | {np.median(runs):.0f} |"
              f" ${np.median(money):.3g} | ${money.mean():.3g} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
