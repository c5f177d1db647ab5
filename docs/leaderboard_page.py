"""Prints docs/leaderboard.md from benchmarks/leaderboard.yaml and benchmarks/results/leaderboard.json."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
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
from forerun.evaluate.pages import board_page  # noqa: E402


def board_of(kept: Mapping[str, Any]) -> Scoreboard:
    """Return the board of what was kept."""
    entries = tuple(LeaderboardEntry.from_dict(values) for values in kept["entries"])
    there = {entry.key.predictor for entry in entries}
    return Scoreboard(
        tuple(BoardSection(s["title"], s["splits"], s["targets"]) for s in sections()),
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
        "**The figures of auto, analytic, residual, generic and ray-ml were measured on older code** than what this"
        " repository holds (another chooser, physics, and fits); they are to be measured again.",
        f"Figures: {births}; seed {kept['seed']}, all predictors from their {kept['start']}, with\n\n"
        f"```\n{kept['command']}\n```\n\nin the folder of measured runs.{took} on {kept['hardware']}.",
    ]  # fmt: skip
    if kept["unfinished"]:
        blocks.append("Not finished: " + "; ".join(kept["unfinished"]) + ".")
    return [*blocks, "\n".join(f"* {note}" for note in notes())]


def main() -> None:
    """Print the page."""
    kept = json.loads(RESULTS.read_text(encoding="utf-8"))
    print(board_page(board_of(kept), certificate(kept)), end="")


if __name__ == "__main__":
    main()
