"""How soon and how cheaply searches find the best configuration of a measured table, replayed.

    python benchmarks/search_replay.py --data ../shared/data --seeds 100 --out RESULT.md

For each table (lynceus whole, and trimtuner's rows of the full data set, 60,000 samples), the cost
of a run under a deadline of 300 s is minimised by every searcher from every seed. Counted are runs
and money until a run came within 10 % of the oracle (the search is let go on until then), and,
apart from that, how each searcher does when it stops by its own rule. A run that lasts beyond the
deadline is stopped and paid for until then, for every searcher alike.

What was chosen where: the form and the constants of the searcher `bayesian` were chosen on other
questions: the least cost of both tables under 120 s and 450 s, the least time of both, trimtuner's
smaller data sets (15,000 and 30,000 samples), and four made-up parameter-server landscapes. The
reported question was looked at with early forms, and with 24 seeds before the last constant (the
amplitude) was set, which the other questions asked for; no constant was kept for what it did there.
Its rough draws came later, when the figures of the form without them were known here (lynceus 7
runs, $0.185; trimtuner 37 runs, $1.108). They are one of 17 variants judged, 20 seeds each, by median
runs and money on trimtuner's smaller data sets (least cost under deadlines that 12 % and 21 % of
their runs meet, least time within 300 s) and on 40 made-up landscapes where machine, workers and
learning rate interact; five of them then on other deadlines and 30 other landscapes. They were kept
because they were the one change that helped on the landscapes and cost next to nothing on the
table. Three of the 17 (all draws rough, less thrift, one calibration) were judged on a smaller set of
such questions only. This form was asked the reported question once, after it was chosen.
CherryPick and the others have no constant of ours. `--variations` prints those other questions on measured tables too.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np

from forerun import registry
from forerun.catalog import load_catalog
from forerun.search.following import Trail, follow
from forerun.search.landscape import Goal
from forerun.search.replay import Replay
from forerun.search.searchers import Choosing
from forerun.tables import Runs, read_table
from forerun.workloads.rows import runs_from_table

SEARCHERS = ("random", "grid", "cherrypick", "bayesian")
FULL = 60000
REPORTED = (("lynceus", 0, "cost", 300.0), ("trimtuner", FULL, "cost", 300.0))
VARIATIONS = tuple(
    (table, size, aim, seconds)
    for table, size in (("lynceus", 0), ("trimtuner", FULL))
    for aim, seconds in (("cost", 120.0), ("cost", 450.0), ("time", 300.0))
) + tuple(
    ("trimtuner", size, aim, seconds)
    for size in (15000, 30000)
    for aim, seconds in (("cost", 120.0), ("cost", 300.0), ("cost", 450.0), ("time", 300.0))
)
Question = tuple[str, int, str, float]


def runs_of(folder: Path, table: str, size: int) -> Runs:
    """Return a table's runs: those of one data size, or all where it is 0."""
    rows = read_table(folder / "runs" / f"{table}.csv")
    if size:
        rows = rows.take(rows.numbers("dataset_size") == size)
    return runs_from_table(rows, load_catalog())


def searched(box: Replay, name: str, seeds: int, near: bool, most: int) -> list[Trail]:
    """Return one trail a seed: until near the oracle, or until the searcher stops by itself."""
    kind: type[Choosing] = registry.load("searchers", name)
    return [
        follow(kind(box.goal, seed, not near), box, most, until_near=near) for seed in range(seeds)
    ]


def quantiles(
    values: Sequence[float], write: str, levels: Sequence[float] = (0.5, 0.25, 0.75, 0.9)
) -> str:
    """Return median (25 % to 75 %; 90 %), `never` where a quantile is infinite."""
    found = np.quantile(np.array(values, dtype=float), levels, method="inverted_cdf")
    said = [write.format(v) if np.isfinite(v) else "never" for v in found]
    return f"{said[0]} ({said[1]} to {said[2]}; {said[3]})"


def question_text(question: Question, box: Replay) -> str:
    """Return a question in words."""
    table, size, aim, seconds = question
    rows = f", {size:,} samples" if size else ""
    near = int((box.values <= 1.1 * box.oracle).sum())
    return (
        f"{table}{rows}: least {aim} within {seconds:.0f} s; {len(box)} configurations,"
        f" {int(box.feasible.sum())} feasible, {near} within 10 % of the oracle"
    )


def measure(folder: Path, question: Question, seeds: int, stopping: bool) -> list[str]:
    """Return the lines of one question."""
    table, size, aim, seconds = question
    box = Replay.of(runs_of(folder, table, size), Goal(aim, seconds))
    lines = [f"## {question_text(question, box)}", ""]
    lines += [
        "| searcher | runs until within 10 %: median (25 % to 75 %; 90 %) | dollars until then |"
        " within 40 runs | ms a run |",
        "|---|---|---|---|---|",
    ]
    money: dict[str, float] = {}
    for name in SEARCHERS:
        started = time.perf_counter()
        trails = searched(box, name, seeds, True, len(box))
        made = sum(map(len, trails))
        took = (time.perf_counter() - started) / made * 1e3
        until = [t.runs_until_near for t in trails]
        dollars = [t.dollars_until_near for t in trails]
        money[name] = float(np.median(dollars))
        soon = float(np.mean(np.array(until) <= 40))
        lines.append(
            f"| {name} | {quantiles(until, '{:.0f}')} | {quantiles(dollars, '{:.3f}')} |"
            f" {soon:.0%} | {took:.1f} |"
        )
    ratio = money["bayesian"] / money["cherrypick"]
    lines += ["", f"Median money until within 10 %: bayesian / cherrypick = {ratio:.2f}.", ""]
    return lines + (stops(box, seeds) if stopping else [])


def stops(box: Replay, seeds: int) -> list[str]:
    """Return how each searcher does when it stops by its own rule."""
    lines = [
        "| stopping by its own rule | runs made | dollars spent | regret: median (25 % to 75 %; 90 %)"
        " | within 10 % | recommended over the deadline | nothing recommended |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in ("cherrypick", "bayesian"):
        trails = searched(box, name, seeds, False, len(box))
        regret = [t.regret for t in trails]
        chosen = np.array([t.recommended for t in trails])
        over = int((~box.feasible[chosen[chosen >= 0]]).sum())
        lines.append(
            f"| {name} | {quantiles([len(t) for t in trails], '{:.0f}')} |"
            f" {quantiles([t.spent[-1] for t in trails], '{:.3f}')} |"
            f" {quantiles(regret, '{:.2f}')} | {np.mean(np.array(regret) <= 0.1):.0%} | {over} of"
            f" {seeds} | {int((chosen < 0).sum())} |"
        )
    return [*lines, ""]


def main() -> int:
    """Run the benchmark; print and, where asked, write its page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("FORERUN_DATA"),
        help="folder with runs/*.csv ($FORERUN_DATA)",
    )  # fmt: skip
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--variations", action="store_true", help="the questions that chose, too")
    parser.add_argument("--out", type=Path, help="write the page here")
    options = parser.parse_args()
    asked = "--seeds {}{}".format(options.seeds, " --variations" if options.variations else "")
    lines = [
        f"# Searches replayed on measured tables, {datetime.now(UTC):%Y-%m-%d}",
        "",
        f"`python benchmarks/search_replay.py --data DATA {asked}`, forerun {version('forerun')},"
        f" numpy {np.__version__}, Python {sys.version.split()[0]}, two shared cores.",
        "",
        *__doc__.split("\n\n", 2)[2].strip().splitlines(),
        "",
    ]
    for question in REPORTED:
        lines += measure(options.data, question, options.seeds, True)
    if options.variations:
        lines += ["# The questions on which the searcher was chosen", ""]
        for question in VARIATIONS:
            lines += measure(options.data, question, min(options.seeds, 20), False)
    text = "\n".join(lines).rstrip() + "\n"
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
