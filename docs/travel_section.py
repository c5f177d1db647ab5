"""The section of docs/accuracy.md on questions far from the runs, of what benchmarks/travel.py kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
# What `reach` may name: the figure of a score, its factor, and whether more is better.
FIGURES: Mapping[str, tuple[str, float, bool]] = {
    "median": ("median_ape", 1, False), "mean": ("mape", 1, False), "inside": ("coverage", 100, True),
    "width": ("width", 1, False), "regret": ("regret_median", 100, False),
    "crashed": ("regret_crashed", 1, False),
}  # fmt: skip
HEADERS = ("case", "predictor", "rows", "answered %", "median %", "mean %", "inside %", "width",
           "before: median / mean %, inside %, width", "reach")  # fmt: skip
TEXT = """\
Questions as people ask them of clusters, devices, frameworks and scales that no run had, each by a split
of the measured runs that lies as far from what was fitted. *Known by its runs alone*: names and shapes of
workloads are hidden. *Blind*: shipped constants, refitted without the named tables. Figures are means over
the seeds. *Before*: commit {before}, on the tables as they are published (maxtext
and libai: with the shapes and devices that benchmarks/converters.yaml assumes). *Reach*: what was aimed at, and
whether the first predictor of the case gets there. Tables in view while this was built: all of them, so
these figures are a little optimistic; what each prior has seen stands above."""

Kept = Mapping[str, Any]


def loaded(name: str) -> Kept:
    """Return the cases that a results file keeps; none where it is not there."""
    path = BENCHMARKS / "results" / f"{name}.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))["cases"]) if path.is_file() else {}


def mean_scores(case: Kept) -> dict[str, dict[str, float]]:
    """Return by predictor the mean of each figure over seeds."""
    names = list(dict.fromkeys(name for run in case["runs"] for name in run["scores"]))
    found = {}
    for name in names:
        scores = [run["scores"][name] for run in case["runs"] if name in run["scores"]]
        figures = dict.fromkeys(key for score in scores for key in score)
        found[name] = {f: float(np.mean([s[f] for s in scores if f in s])) for f in figures}
    return found


def reached(reach: Mapping[str, float], score: Mapping[str, float]) -> str:
    """Return each limit and whether a score keeps it."""
    limits = []
    for name, limit in reach.items():
        figure, factor, more = FIGURES[name]
        if figure not in score:
            limits.append(f"{name} {limit:g}: not judged")
            continue
        value = score[figure] * factor
        met = value >= limit if more else value <= limit
        limits.append(f"{name} {'>=' if more else '<='} {limit:g}: {'met' if met else 'missed'}")
    return "; ".join(limits)


def _figures(score: Mapping[str, float]) -> list[str]:
    found = [("median_ape", 1, "{:.1f}"), ("mape", 1, "{:.1f}"), ("coverage", 100, "{:.0f}"),
             ("width", 1, "{:.2f}x")]  # fmt: skip
    return [text.format(factor * score[k]) if k in score else "" for k, factor, text in found]


def _rows(cases: Sequence[Mapping[str, Any]], now: Kept, before: Kept) -> Iterator[list[str]]:
    for case in cases:
        if case["name"] not in now:
            yield [case["name"], *[""] * 8, "not run yet"]
            continue
        scores = mean_scores(now[case["name"]])
        earlier = mean_scores(before[case["name"]]) if case["name"] in before else {}
        for i, (predictor, score) in enumerate(scores.items()):
            old = _figures(earlier.get(predictor, {}))
            yield [
                case["name"] if i == 0 else "", predictor, f"{score['comparable']:,.0f}",
                f"{100 * score.get('share_answered', 0.0):.0f}", *_figures(score),
                f"{old[0]} / {old[1]}, {old[2]}, {old[3]}" if any(old) else "",
                reached(case.get("reach", {}), score) if i == 0 else "",
            ]  # fmt: skip


def travel_blocks(table: Callable[[Sequence[str], Sequence[Sequence[str]]], str]) -> list[str]:
    """Return the blocks of the section; none where benchmarks/travel.py has not run."""
    now, before = loaded("travel"), loaded("travel_before")
    if not now:
        return []
    lines = yaml.safe_load((BENCHMARKS / "travel.yaml").read_text(encoding="utf-8"))["lines"]
    earlier = ", ".join(sorted({case["commit"] for case in before.values()})) or "not measured"
    blocks = ["## Questions far from the runs", TEXT.format(before=earlier)]
    for line in lines:
        blocks += [
            f"**{line['question']}**",
            table(HEADERS, list(_rows(line["cases"], now, before))),
        ]
    commits = ", ".join(sorted({case["commit"] for case in now.values()}))
    blocks.append(
        f"`python benchmarks/travel.py` (seeds 0 to 2, commit {commits}); its commands are kept in"
        " `benchmarks/results/travel.json`."
    )
    return blocks
