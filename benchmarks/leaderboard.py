"""The leaderboard: runs the splits of benchmarks/leaderboard.yaml for every predictor, and keeps the figures.

Each table and predictor (or several quick ones) is one `forerun leaderboard` command in the folder of measured runs
($FORERUN_DATA/runs, converted). Figures are kept as they come, so that the script can be stopped and started
again, and go to benchmarks/results/leaderboard.json with date, version, commit and seed.
`--predictors` and `--tables` renew some and leave the others. `docs/leaderboard_page.py` makes the page.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import yaml
from accuracy import commit_of_source, hardware
from converters import measured_folder

from forerun import registry
from forerun.evaluate.leaderboard import EntryFile, LeaderboardEntry, program_code

WANTED = Path(__file__).with_suffix(".yaml")
RESULTS = Path(__file__).parent / "results" / "leaderboard.json"
SEED = 0
START = "priors"
DIGITS = 4
QUICK = 20.0  # seconds of a core, below which predictors share a command
# The figures of a score that the page shows or a reader may ask for.
FIGURES = (
    "predictor", "table", "group", "rows", "comparable", "timed_rows", "answered", "quantities",
    "censored", "censored_answered", "censored_short", "censored_mape", "censored_short_ape",
    "mape", "median_ape", "p90_ape", "bias_log_ratio", "tau", "coverage", "coverage_low",
    "coverage_high", "width", "declined", "not_comparable",
)  # fmt: skip


def sections() -> list[dict[str, Any]]:
    """Return the sections: title, and split and target by table."""
    wanted = yaml.safe_load(WANTED.read_text(encoding="utf-8"))
    return [
        {
            "title": s["title"],
            "splits": {t: s.get("own", {}).get(t, s["split"]) for t in s.get("only", wanted["tables"])},
            "targets": s.get("targets", {}),
        }
        for s in wanted["sections"]
    ]  # fmt: skip


def notes() -> list[str]:
    """Return what must be known of the tables."""
    return list(yaml.safe_load(WANTED.read_text(encoding="utf-8"))["notes"])


def words_of(table: str, predictors: Sequence[str], cache: Path) -> list[str]:
    """Return the words of a command, after `forerun`."""
    splits = dict.fromkeys(s["splits"][table] for s in sections() if table in s["splits"])
    return [
        "leaderboard", "--runs", f"{table}.csv", "--predictors", ",".join(predictors), "--splits", *splits,
        "--start", START, "--seed", str(SEED), "--cache", str(cache), "--json",
    ]  # fmt: skip


def ran(table: str, predictors: Sequence[str], folder: Path, cache: Path, limit: float) -> str:
    """Run one command; return "" or why it did not end well."""
    words = words_of(table, predictors, cache)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "forerun", *words], cwd=folder, capture_output=True, text=True,
            check=False, timeout=limit, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"not finished in {limit:.0f} s"
    # Exit code 3: nothing was answered, which is a finding.
    return "" if done.returncode in (0, 3) else " ".join(done.stderr.split())[-300:]


def short(entry: LeaderboardEntry, commit: str) -> dict[str, Any]:
    """Return an entry as it is kept: the figures that are asked for, in few digits."""
    plain = entry.as_dict()
    score = plain["score"]
    if score is not None:
        figures = {name: _rounded(score[name]) for name in FIGURES}
        for name in ("declined", "not_comparable"):
            figures[name] = dict(sorted(figures[name].items(), key=lambda item: -item[1])[:1])
        score = {name: value for name, value in figures.items() if value not in (None, {}, "")}
    return {**plain, "score": score, "commit": commit}


def _rounded(value: Any) -> Any:
    if isinstance(value, float) and math.isfinite(value) and value:
        return float(f"{value:.{DIGITS}g}")
    return value


def place(entry: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return which cell of the page an entry is for."""
    return entry["table"], entry["split"], entry["predictor"]


def kept() -> dict[str, Any]:
    """Return the results of earlier runs."""
    if RESULTS.is_file():
        return dict(json.loads(RESULTS.read_text(encoding="utf-8")))
    return {"entries": []}


def write(found: Mapping[tuple[str, str, str], Mapping[str, Any]], head: Mapping[str, Any]) -> None:
    """Write results in the order of the sections; those of cells that are gone go too."""
    names = registry.names("predictors")
    cells = dict.fromkeys(
        (table, split, name) for s in sections() for table, split in s["splits"].items() for name in names
    )  # fmt: skip
    pack = {"separators": (",", ":"), "allow_nan": False}
    lines = ",\n".join(json.dumps(found[cell], **pack) for cell in cells if cell in found)
    text = json.dumps({**head, "entries": []}, indent=1).removesuffix("]\n}")
    RESULTS.write_text(f"{text}\n{lines}\n]\n}}\n", encoding="utf-8")


def commands(tables: Sequence[str], predictors: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Return which predictors are judged on which table by one command, the longest first.

    Those that are known to take little go together, as they share what is read and prepared.
    """
    took: dict[tuple[str, str], float] = {}
    for e in kept()["entries"]:
        pair = (e["table"], e["predictor"])
        took[pair] = took.get(pair, 0.0) + e["seconds"]
    found: list[tuple[float, str, tuple[str, ...]]] = []
    for table in tables:
        long = {name: took.get((table, name), math.inf) for name in predictors}
        quick = tuple(name for name in predictors if long[name] < QUICK)
        found += [(long[name], table, (name,)) for name in predictors if name not in quick]
        if quick:
            found.append((sum(long[name] for name in quick), table, quick))
    return [(table, names) for _, table, names in sorted(found, key=lambda one: -one[0])]


def renewed(
    tables: Sequence[str],
    predictors: Sequence[str],
    folder: Path,
    cache: Path,
    limit: float,
    workers: int,
) -> list[str]:
    """Run commands, several at a time; return what went wrong."""
    wrong = []
    with ThreadPoolExecutor(workers) as pool:
        jobs = {
            pool.submit(ran, table, names, folder, cache, limit): f"{','.join(names)} on {table}"
            for table, names in commands(tables, predictors)
        }
        for job in as_completed(jobs):
            said = job.result()
            if said:
                wrong.append(f"{jobs[job]}: {said}")
                print(f"FAILED {wrong[-1]}", file=sys.stderr, flush=True)
            else:
                print(jobs[job], flush=True)
    return wrong


def main() -> None:
    """Run what is asked for and keep it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--predictors", default="", help="names with commas; all where not given")
    parser.add_argument("--tables", default="", help="names with commas; all where not given")
    parser.add_argument("--cache", type=Path, help="where figures are kept as they come")
    parser.add_argument("--limit", type=float, default=600, help="seconds of one command")
    parser.add_argument("--workers", type=int, default=2, help="commands at a time")
    options = parser.parse_args()
    if not os.environ.get("FORERUN_DATA"):
        print("set FORERUN_DATA to a folder with runs/*.csv; nothing was run")
        return
    folder = measured_folder()
    all_tables = list(dict.fromkeys(t for s in sections() for t in s["splits"]))
    tables = options.tables.split(",") if options.tables else all_tables
    known = registry.names("predictors")
    predictors = options.predictors.split(",") if options.predictors else list(known)
    strange = [*(set(tables) - set(all_tables)), *(set(predictors) - set(known))]
    if strange:
        sys.exit(f"no such table or predictor: {', '.join(strange)}")
    cache = (options.cache or RESULTS.with_suffix(".jsonl")).resolve()
    commit, started = commit_of_source(), time.perf_counter()
    wrong = renewed(tables, predictors, folder, cache, options.limit, options.workers)
    seconds = time.perf_counter() - started
    before = kept()
    found = {place(e): e for e in before["entries"]}
    fresh = [e for e in EntryFile(cache).entries.values() if e.key.code == program_code()]
    found |= {
        place(vars(e.key)): short(e, commit)
        for e in fresh
        if e.key.table in tables and e.key.predictor in predictors
    }
    head = {
        "hardware": hardware(), "command": shlex.join(["python", "benchmarks/leaderboard.py"]),
        "seed": SEED, "start": START, "workers": options.workers, "unfinished": wrong,
        "minutes": round(seconds / 60, 1) if len(fresh) >= len(found) else before.get("minutes"),
    }  # fmt: skip
    write(found, head)
    print(f"leaderboard_figures: {len(found)}\nleaderboard_seconds: {seconds:.0f}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
