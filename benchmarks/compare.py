"""Before and after: the figures of the accuracy page and of the leaderboard at a revision, beside today's.

`python benchmarks/compare.py REVISION [--least 3]` reads both result files from the repository at REVISION
(`git show`) and from the working tree, and prints each figure of which the two differ by at least that
many percent, with the geometric mean of all ratios. A ratio above 1 is worse.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
ACCURACY, LEADERBOARD = "benchmarks/results/accuracy.json", "benchmarks/results/leaderboard.json"
CASES = Path(__file__).with_name("accuracy.yaml")
USUAL = "median_ape"
HIGHER_IS_BETTER = ("oom_f1",)
SMALLEST = 0.01  # percent or share: below it a ratio says nothing

Key = tuple[str, ...]


def at(revision: str, path: str) -> Any:
    """Return a result file of a revision; the process ends with a message where there is none."""
    found = subprocess.run(
        ["git", "show", f"{revision}:{path}"], cwd=ROOT, capture_output=True, text=True, check=False
    )  # fmt: skip
    if found.returncode:
        sys.exit(f"{path} at {revision}: {found.stderr.strip()}; name a commit that has it")
    return json.loads(found.stdout)


def accuracy(results: Mapping[str, Any]) -> Iterator[tuple[Key, float]]:
    """Yield each target's figure of the accuracy page, as a mean over its seeds."""
    for case in yaml.safe_load(CASES.read_text(encoding="utf-8"))["cases"]:
        names = [t["figure"] for t in case.get("targets", ()) if not t.get("each")] or [USUAL]
        for name in dict.fromkeys(names):
            values = [
                score[name]
                for run in results["cases"].get(case["name"], ())
                for score in run["evaluation"]["scores"]
                if score["table"] == "all tables" and score["predictor"] == "analytic"
                and score.get(name) is not None
            ]  # fmt: skip
            if values:
                yield ("accuracy", case["name"], name, "analytic"), sum(values) / len(values)


def leaderboard(results: Mapping[str, Any]) -> Iterator[tuple[Key, float]]:
    """Yield the median error of each predictor on each table and split."""
    for entry in results["entries"]:
        value = (entry.get("score") or {}).get(USUAL)
        if value is not None:
            yield (entry["split"], entry["table"], USUAL, entry["predictor"]), value


def figures(results: Mapping[str, Any], board: Mapping[str, Any]) -> dict[Key, float]:
    """Return every figure of both files by page or split, case or table, figure and predictor."""
    return {**dict(accuracy(results)), **dict(leaderboard(board))}


def geometric_mean(ratios: Mapping[Key, float]) -> float:
    """Return the geometric mean of ratios, NaN of none."""
    logs = [math.log(ratio) for ratio in ratios.values()]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def main() -> None:
    """Print what differs, then the geometric means."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("revision", help="a commit that holds the earlier result files")
    parser.add_argument("--least", type=float, default=3.0, help="percent of difference to print")
    options = parser.parse_args()
    before = figures(at(options.revision, ACCURACY), at(options.revision, LEADERBOARD))
    now = figures(*(json.loads((ROOT / path).read_text()) for path in (ACCURACY, LEADERBOARD)))
    ratios = {}
    for key in before.keys() & now.keys():
        if min(before[key], now[key]) > SMALLEST:
            ratio = now[key] / before[key]
            ratios[key] = 1.0 / ratio if key[2] in HIGHER_IS_BETTER else ratio
    print("| page or split | case or table | figure | predictor | before | now | ratio |")
    print("|---|---|---|---|---|---|---|")
    for key, ratio in sorted(ratios.items(), key=lambda item: -item[1]):
        if abs(ratio - 1.0) * 100.0 >= options.least:
            print(f"| {' | '.join(key)} | {before[key]:.4g} | {now[key]:.4g} | {ratio:.3f} |")
    print(f"\n{len(ratios)} figures; {len(before.keys() - now.keys())} are gone,"
          f" {len(now.keys() - before.keys())} are new.")  # fmt: skip
    for predictor in sorted({key[3] for key in ratios}):
        ours = {key: ratio for key, ratio in ratios.items() if key[3] == predictor}
        worse = sum(ratio > 1.03 for ratio in ours.values())
        print(f"{predictor}: geometric mean {geometric_mean(ours):.3f} of {len(ours)}, {worse} worse by"
              " more than 3 %")  # fmt: skip
    print(f"all: {geometric_mean(ratios):.3f}")


if __name__ == "__main__":
    main()
