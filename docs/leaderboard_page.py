"""Prints docs/leaderboard.md from benchmarks/leaderboard.yaml and benchmarks/results/leaderboard.json."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from leaderboard import RESULTS, notes, sections  # noqa: E402 (it lies in a folder of scripts)

from forerun import registry  # noqa: E402
from forerun.evaluate.leaderboard import (  # noqa: E402
    BoardSection,
    LeaderboardEntry,
    Scoreboard,
)
from forerun.evaluate.pages import board_page, markdown, number  # noqa: E402


def board_of(kept: Mapping[str, Any]) -> Scoreboard:
    """Return the board of what was kept."""
    entries = tuple(LeaderboardEntry.from_dict(values) for values in kept["entries"])
    there = {entry.key.predictor for entry in entries}
    return Scoreboard(
        tuple(BoardSection(s["title"], s["splits"]) for s in sections()),
        tuple(name for name in registry.names("predictors") if name in there),
        entries,
        int(kept["seed"]),
    )


def certificate(kept: Mapping[str, Any]) -> list[str]:
    """Return when, by what, with which command and seed the figures were made."""
    made = Counter((e["date"], e["version"], e["commit"]) for e in kept["entries"])
    births = "; ".join(
        f"{count} on {date} by forerun {version}, commit {commit}"
        for (date, version, commit), count in sorted(made.items())
    )
    took = (
        f" It took {kept['minutes']} minutes, {kept['workers']} commands at a time,"
        if kept["minutes"]
        else " Made"
    )
    blocks = [
        f"Figures: {births}; seed {kept['seed']}, all predictors from their {kept['start']}, with\n\n"
        f"```\n{kept['command']}\n```\n\nin the folder of measured runs.{took} on {kept['hardware']}.",
    ]  # fmt: skip
    if kept["unfinished"]:
        blocks.append("Not finished: " + "; ".join(kept["unfinished"]) + ".")
    return [*blocks, "\n".join(f"* {note}" for note in notes())]


def best_of_each(board: Scoreboard, targets: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the best predictor of each table and split, beside its target where there is one.

    targets: of each section, percent that the best median error should reach at most, by table.
    """
    tables = list(dict.fromkeys(t for section in board.sections for t in section.splits))
    rows = []
    for section, wanted in zip(board.sections, targets, strict=True):
        cells = []
        for table in tables:
            split = section.splits.get(table, "")
            score = board.score_of(board.best(table, split), table, split) if split else None
            text = "" if score is None else f"{score.predictor} {number(score.median_ape)}"
            if target := wanted.get(table):
                met = "no figure" if score is None else "missed"
                met = "met" if score is not None and score.median_ape <= target else met
                text = f"{text} (target {target:g}: {met})".strip()
            cells.append(text)
        rows.append([section.title, *cells])
    return ["## The best of each", markdown(["split", *tables], rows)]


def main() -> None:
    """Print the page."""
    kept = json.loads(RESULTS.read_text(encoding="utf-8"))
    board = board_of(kept)
    best = best_of_each(board, [s["targets"] for s in sections()])
    print(board_page(board, [*certificate(kept), *best]), end="")


if __name__ == "__main__":
    main()
