"""The leaderboard page: made of what was kept, with its birth certificate, by scripts that agree."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from forerun.evaluate import parse_split
from forerun.evaluate.leaderboard import EntryFile, LeaderboardEntry

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "leaderboard.md"


def script(path: str) -> ModuleType:
    """Return a script of the repository as a module, which finds those beside it."""
    folder = str((ROOT / path).parent)
    name = f"script_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
    return module


BENCH = script("benchmarks/leaderboard.py")
KEPT = json.loads(BENCH.RESULTS.read_text(encoding="utf-8"))


def test_the_page_is_what_its_script_writes() -> None:
    written = subprocess.run(
        [sys.executable, "docs/leaderboard_page.py"], cwd=ROOT, capture_output=True, text=True,
        check=True,
    ).stdout  # fmt: skip
    assert PAGE.read_text(encoding="utf-8") == written, "run `make docs`"


def test_every_split_can_be_read_and_stands_in_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for section in BENCH.sections():
        assert f"## {section['title']}\n" in page
        for text in section["splits"].values():
            assert str(parse_split(text)) == text


def test_every_kept_figure_says_when_and_of_what_it_was_made() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert KEPT["entries"]
    for values in KEPT["entries"]:
        entry = LeaderboardEntry.from_dict(values)
        assert entry.date
        assert entry.version
        assert values["commit"] in page
        assert not entry.defect
    assert f"seed {KEPT['seed']}" in page
    assert KEPT["command"] in page


def test_results_that_are_written_are_read_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BENCH, "RESULTS", tmp_path / "leaderboard.json")
    head = {name: value for name, value in KEPT.items() if name != "entries"}
    BENCH.write({BENCH.place(e): e for e in KEPT["entries"]}, head)
    assert BENCH.kept()["entries"] == KEPT["entries"]


def test_a_kept_entry_is_short_and_loses_no_figure_of_the_page(tmp_path: Path) -> None:
    first = next(e for e in KEPT["entries"] if e["score"])
    again = BENCH.short(LeaderboardEntry.from_dict(first), first["commit"])
    assert again == first
    kept = EntryFile(tmp_path / "c.jsonl")
    kept.add(LeaderboardEntry.from_dict(first))
    (entry,) = EntryFile(tmp_path / "c.jsonl").entries.values()
    assert BENCH.short(entry, first["commit"]) == first
