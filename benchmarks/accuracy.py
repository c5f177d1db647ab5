"""How accurate forecasts are: runs the cases of benchmarks/accuracy.yaml, and keeps what came out.

Each case is a `forerun evaluate` command in the folder of measured runs ($FORERUN_DATA/runs, converted); its
command, seed, commit, date, seconds and scores go to benchmarks/results/accuracy.json, case by case.
`--only` renews the named cases and leaves the others. `docs/accuracy_page.py` makes the page of it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from converters import measured_folder

ROOT = Path(__file__).resolve().parents[1]
CASES = Path(__file__).with_suffix(".yaml")
RESULTS = Path(__file__).parent / "results" / "accuracy.json"
PREDICTORS = "analytic,constant-mfu"
DIGITS = 5
SIGNED_OFF = ("src", "pyproject.toml")  # what must be committed for the commit to say anything


def cases() -> list[dict[str, Any]]:
    """Return the cases in their order."""
    return list(yaml.safe_load(CASES.read_text(encoding="utf-8"))["cases"])


def words_of(case: Mapping[str, Any], seed: int) -> list[str]:
    """Return the words of a case's command, after `forerun`."""
    judged = case["runs"]
    others = [table for table in case.get("fit", ()) if table not in judged]
    words = ["evaluate", "--runs", *map(_file, judged)]
    if others:
        words += ["--fit", *map(_file, others)]
    words += [
        "--predictors",
        PREDICTORS,
        "--split",
        case.get("split", "whole"),
        "--start",
        "priors",
    ]
    for condition in case.get("where", ()):
        words += ["--where", condition]
    if "faster_half" in case:
        words += ["--faster-half", ",".join(case["faster_half"])]
    return [*words, "--seed", str(seed), "--json"]


def _file(table: str) -> str:
    return table if table == "." else f"{table}.csv"


def ran(case: Mapping[str, Any], seed: int, folder: Path, commit: str) -> dict[str, Any]:
    """Return what a case's command gave with one seed. Raises RuntimeError where it failed."""
    words = words_of(case, seed)
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "forerun", *words], cwd=folder, capture_output=True, text=True,
        check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    # Exit code 3: nothing was answered, which is a finding.
    if done.returncode not in (0, 3):
        raise RuntimeError(f"{case['name']}: {done.stderr.strip()[-400:]}")
    found = json.loads(done.stdout)
    reasons = case["name"] == "nothing-fitted"
    pooled = found["tables"][0] if len(found["tables"]) == 1 else "all tables"
    found["by_distance"] = [s for s in found["by_distance"] if s["table"] == pooled]
    return {
        "seed": seed, "command": f"forerun {shlex.join(words)}", "commit": commit,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "seconds": round(time.perf_counter() - started, 1), "evaluation": _short(found, reasons),
    }  # fmt: skip


def _short(value: Any, reasons: bool) -> Any:
    """Return the values with few digits, less what is blank, and less reasons if not wanted."""
    if isinstance(value, float) and math.isfinite(value) and value:
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, list):
        return [_short(v, reasons) for v in value]
    if isinstance(value, dict):
        unwanted = () if reasons else ("declined", "not_comparable")
        return {
            k: _short(v, reasons) for k, v in value.items() if v is not None and k not in unwanted
        }
    return value


def commit_of_source() -> str:
    """Return the last commit of the source, short, with a mark where files of it are not committed.

    Outside a checkout, the release.
    """

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False
        )  # fmt: skip
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", *SIGNED_OFF)
    commit = git("log", "-1", "--format=%h", "--", *SIGNED_OFF)
    return commit + ("+changes" if changed else "") if commit else f"release {version('forerun')}"


def hardware() -> str:
    """Return the machine in words."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return f"{os.cpu_count()} cores, {model}"


def run_all(
    wanted: Sequence[Mapping[str, Any]], folder: Path, workers: int
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield each case's name and results as they come; a case that fails is told and left out."""
    commit = commit_of_source()
    with ThreadPoolExecutor(workers) as pool:
        jobs = {
            pool.submit(lambda c=case: [ran(c, s, folder, commit) for s in c.get("seeds", (0,))]): case
            for case in wanted
        }  # fmt: skip
        for job in as_completed(jobs):
            try:
                yield jobs[job]["name"], job.result()
            except RuntimeError as error:
                print(f"FAILED {error}", file=sys.stderr)


def kept() -> dict[str, Any]:
    """Return the results of earlier runs."""
    return dict(json.loads(RESULTS.read_text())) if RESULTS.is_file() else {}


def write(results: Mapping[str, Any], order: Sequence[str]) -> None:
    """Write results in the order of the cases; those of cases that are gone go too."""
    inside = {name: results["cases"][name] for name in order if name in results["cases"]}
    # A line for each command, so that a difference shows which ones were run again.
    lines = ",\n".join(
        f" {json.dumps(name)}: [\n{_lines(found)}\n ]" for name, found in inside.items()
    )
    head = f'{{"hardware": {json.dumps(results["hardware"])},\n"cases": {{\n'
    RESULTS.write_text(f"{head}{lines}\n}}}}\n", encoding="utf-8")


def _lines(found: Sequence[Mapping[str, Any]]) -> str:
    pack = {"separators": (",", ":"), "allow_nan": False}
    return ",\n".join(f"  {json.dumps(one, **pack)}" for one in found)


def main() -> None:
    """Run the cases and print each one's figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names or beginnings of names, with commas")
    parser.add_argument("--workers", type=int, default=2, help="commands at a time")
    options = parser.parse_args()
    if not os.environ.get("FORERUN_DATA"):
        print("set FORERUN_DATA to a folder with runs/*.csv; nothing was run")
        return
    folder = measured_folder()
    everything = cases()
    starts = tuple(name for name in options.only.split(",") if name)
    wanted = [c for c in everything if not starts or c["name"].startswith(starts)]
    if not wanted:
        names = ", ".join(c["name"] for c in everything)
        sys.exit(f"--only {options.only}: no such case; choose from {names}")
    results = {"cases": {}, **kept(), "hardware": hardware()}
    started, count = time.perf_counter(), 0
    for name, found in run_all(wanted, folder, options.workers):
        results["cases"][name] = found
        write(results, [c["name"] for c in everything])
        count += 1
        for one in found:
            total = one["evaluation"]["scores"]
            first = next(s for s in total if s["table"] == "all tables")
            print(
                f"{name} (seed {one['seed']}): mean {first['mape']} %, median"
                f" {first['median_ape']} %, {one['seconds']} s", flush=True,
            )  # fmt: skip
    seconds = time.perf_counter() - started
    print(f"accuracy_cases: {count} of {len(wanted)}\naccuracy_seconds: {seconds:.0f}")
    sys.exit(count < len(wanted))


if __name__ == "__main__":
    main()
