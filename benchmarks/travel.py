"""Questions far from the runs: runs the cases of benchmarks/travel.yaml, and keeps what came out.

Each case is a `forerun evaluate` on tables that are prepared first, as the case asks:

* `points`: of a cluster only some runs are known, one of each workload on each of `devices` devices of
  one node, drawn by the seed; all others of that cluster are judged, and those of other clusters known;
* `hide`: workloads go by labels that no zoo knows, without shapes: only their runs say what they are;
* `blind`: the shipped constants are first refitted to every table but these.

Commands, seeds, commits and scores go to benchmarks/results/travel.json; `--source TREE` answers with
the code of another checkout, on the tables as they are published, and keeps its scores apart.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from accuracy import ROOT, commit_of_source, hardware
from converters import measured_folder

LINES = Path(__file__).with_suffix(".yaml")
RESULTS = Path(__file__).parent / "results"
# What says how a workload is built.
SHAPE = ("family", "params", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "experts",
         "gmacs", "mactivations")  # fmt: skip
KNOWN = "-known"  # behind a table's name: its runs that are given
FIGURES = ("rows", "comparable", "share_answered", "mape", "median_ape", "p90_ape",
           "bias_log_ratio", "coverage", "width", "regret_median", "regret_crashed", "regret_picked",
           "memory_median_ape", "oom_f1")  # fmt: skip
EACH = 200  # runs of a table in a refit
_KEPT: list[tempfile.TemporaryDirectory[str]] = []  # folders of sources, until the end

Row = dict[str, str]
Case = Mapping[str, Any]


def cases() -> dict[str, Case]:
    """Return the cases by name."""
    lines = yaml.safe_load(LINES.read_text(encoding="utf-8"))["lines"]
    return {case["name"]: case for line in lines for case in line["cases"]}


def read(path: Path) -> tuple[list[str], list[Row]]:
    """Return the columns and rows of a table."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        return list(rows.fieldnames or ()), list(rows)


def write(path: Path, columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Write a table."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def prepare(case: Case, seed: int, data: Path, out: Path) -> list[str]:
    """Write a case's tables into `out`; return the words of its command, after `forerun`."""
    points, known = case.get("points"), list(case.get("fit", ()))
    for name in [*case["runs"], *known]:
        columns, rows = read(data / f"{name}.csv")
        if case.get("hide"):
            columns = [column for column in columns if column not in SHAPE]
            rows = [{c: row[c] for c in columns} for row in rows]
            for row in rows:
                row["workload"] = f"job-{row['workload']}"
        if points and name in case["runs"]:
            given, rows = apart(rows, points, np.random.default_rng(seed))
            write(out / f"{name}{KNOWN}.csv", columns, given)
        write(out / f"{name}.csv", columns, rows)
    if points:
        known += [f"{name}{KNOWN}" for name in case["runs"]]
    words = ["evaluate", "--runs", *(f"{name}.csv" for name in case["runs"])]
    words += ["--fit", *(f"{name}.csv" for name in known)] if known else []
    words += ["--predictors", case.get("predictors", "analytic")]
    words += ["--split", case.get("split", "whole")]
    words += [] if case.get("blind") else ["--start", "priors"]
    words += case.get("words", [])
    return [*words, "--seed", str(seed), "--json"]


def apart(
    rows: Sequence[Row], points: Case, rng: np.random.Generator
) -> tuple[list[Row], list[Row]]:
    """Return the rows that are known and those that are judged; of a cluster one run at each point is known."""
    here = [row for row in rows if row["cluster"] == points["cluster"]]
    given = [row for row in rows if row["cluster"] != points["cluster"]]
    chosen = set()
    for workload in sorted({row["workload"] for row in here}):
        for count in points["devices"]:
            able = [
                i for i, row in enumerate(here)
                if row["workload"] == workload and float(row["devices"]) == count
                and float(row["nodes"] or 1) == 1
            ]  # fmt: skip
            if able:
                chosen.add(int(rng.choice(able)))
    given += [here[i] for i in sorted(chosen)]
    return given, [row for i, row in enumerate(here) if i not in chosen]


@cache
def blind_source(tree: Path, tables: tuple[str, ...]) -> Path:
    """Return a copy of a checkout's source whose constants never met some tables."""
    kept = tempfile.TemporaryDirectory(prefix="forerun-blind-")
    _KEPT.append(kept)
    out = Path(kept.name)
    source, others = out / "src", out / "data" / "runs"
    shutil.copytree(tree / "src", source)
    others.mkdir(parents=True)
    for path in (Path(os.environ["FORERUN_DATA"]) / "runs").glob("*.csv"):
        if path.stem not in tables:
            (others / path.name).symlink_to(path.resolve())
    script = tree / "benchmarks" / "refit.py"
    start = [str(script)] if script.is_file() else ["-m", "forerun.evaluate.refit"]
    called([*start, "--data", str(others.parent), "--each", str(EACH),
            "--out", str(source / "forerun/predictors/analytic")], source, tree)  # fmt: skip
    return source


def called(words: Sequence[str], source: Path, folder: Path) -> str:
    """Return what Python printed; RuntimeError where it failed."""
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(source)},
    )  # fmt: skip
    if done.returncode not in (0, 3):
        raise RuntimeError(f"{shlex.join(words)}: {done.stderr.strip()[-600:]}")
    return done.stdout


def ran(case: Case, seed: int, tree: Path, data: Path) -> dict[str, Any]:
    """Return what a case gave with one seed: by predictor the figures over all its rows."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="forerun-travel-") as name:
        out = Path(name) / "tables"
        out.mkdir()
        words = prepare(case, seed, data, out)
        source = blind_source(tree, tuple(case["blind"])) if case.get("blind") else tree / "src"
        found = json.loads(called(["-m", "forerun", *words], source, out) or '{"scores": []}')
    scores = {
        one["predictor"]: {k: one[k] for k in FIGURES if one.get(k) is not None}
        for one in found["scores"] if one["table"] == "all tables" and not one["group"]
    }  # fmt: skip
    return {
        "seed": seed, "command": f"forerun {shlex.join(words)}", "scores": scores,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "seconds": round(time.perf_counter() - started, 1),
    }  # fmt: skip


def main() -> None:
    """Run the cases and print each one's figures."""
    parser = argparse.ArgumentParser(description="see the first lines of benchmarks/travel.py")
    parser.add_argument("--only", default="", help="names or beginnings of names, with commas")
    parser.add_argument("--source", type=Path, help="another checkout, e.g. of an earlier commit")
    options = parser.parse_args()
    tree = (options.source or ROOT).resolve()
    file = RESULTS / ("travel_before.json" if options.source else "travel.json")
    data = Path(os.environ["FORERUN_DATA"]) / "runs" if options.source else measured_folder()
    kept = json.loads(file.read_text()) if file.is_file() else {"cases": {}}
    commit = checked_out(tree) if options.source else commit_of_source()
    starts = tuple(name for name in options.only.split(",") if name)
    for name, case in cases().items():
        if starts and not name.startswith(starts):
            continue
        try:
            found = [ran(case, seed, tree, data) for seed in case.get("seeds", (0,))]
        except RuntimeError as error:
            print(f"FAILED {name}: {error}", file=sys.stderr)
            continue
        kept["cases"][name] = {"commit": commit, "hardware": hardware(), "runs": found}
        kept["cases"] = {one: kept["cases"][one] for one in cases() if one in kept["cases"]}
        file.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        for one in found:
            for predictor, s in one["scores"].items():
                figures = "  ".join(f"{k} {v:.3g}" for k, v in s.items())
                print(
                    f"{name} {predictor} (seed {one['seed']}, {one['seconds']} s): {figures}",
                    flush=True,
                )


def checked_out(tree: Path) -> str:
    """Return the commit of a checkout, short."""
    words = ["git", "-C", str(tree), "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
