"""A long wait is told on a terminal, and nowhere else."""

from __future__ import annotations

import os
import pty
import sys
import time
from pathlib import Path

import pytest

from forerun.cli import showing
from tests.cli.conftest import Run

RUNS = "workload,cluster,global_batch,step_time_s\n" + "\n".join(
    f"resnet50,1x{n}xa100-sxm-80gb,{32 * n},{0.02 + 0.002 * n}" for n in (1, 2, 4, 8)
)


def test_who_learns_from_what_is_said_on_a_terminal_alone(
    forerun: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(showing, "SOON_SECONDS", 0.0)  # however quick the machine
    (tmp_path / "night.csv").write_text(RUNS)
    ask = ("fit", "--runs", str(tmp_path / "night.csv"), "--force", "--out",
           str(tmp_path / "m.json"))  # fmt: skip
    assert "fitting" not in forerun(*ask).err
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        assert forerun(*ask).code == 0
        terminal.flush()
        said = os.read(ours, 100_000).decode()
    os.close(ours)
    assert "fitting analytic to night.csv" in said
    assert "0:00:0" in said


JOB = ("resnet50", "--cluster", "1x8xa100-sxm-80gb")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("predict", *JOB), "looks at plans of resnet50"),
        (("explain", *JOB), "looks at plans of resnet50"),
        (("support", "resnet50"), "looks at resnet50"),
        (("recommend", "resnet50", "--clusters", "1x8xa100-sxm-80gb"), "compares clusters"),
        (("predict", "--table", "night.csv", "--out", "o.csv"), "answers 4 rows"),
        (("evaluate", "--runs", "night.csv", "--predictors", "ernest"), "judges ernest"),
        (("leaderboard", "--runs", "night.csv", "--predictors", "ernest", "--cache", "c.jsonl"), "on 1 table"),
        (("suggest", "--candidates", "night.csv", "--count", "1"), "looks for the runs"),
        (("search", "--replay", "night.csv", "--minimize", "time"), "replays 1 search"),
        (("runs", "import", "night.csv", "--store", "s.db"), "reads and keeps the runs"),
        (("eta", "steps.csv", "--total-steps", "100"), "reads 1 log"),
    ],
    ids=lambda one: one[0] if isinstance(one, tuple) else "",
)  # fmt: skip
def test_every_verb_that_computes_says_so_where_it_takes_long(
    forerun: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(showing, "SOON_SECONDS", 0.0)
    Path("night.csv").write_text(RUNS)
    Path("steps.csv").write_text("step,elapsed\n" + "".join(f"{s},{s / 2}\n" for s in range(50)))
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        done = forerun(*words)
        terminal.flush()
        said = os.read(ours, 100_000).decode()
    os.close(ours)
    assert done.code in (0, 3)
    assert told in " ".join(said.split())
    assert told not in done.out


def test_a_wait_within_another_one_changes_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(showing, "SOON_SECONDS", 0.0)
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        with showing.waiting("outer") as outer, showing.waiting("inner") as inner:
            assert inner is outer
            time.sleep(0.3)
        terminal.flush()
        assert "inner" in os.read(ours, 100_000).decode()
    os.close(ours)


@pytest.mark.parametrize("quiet", [0.0, 2.0])
def test_a_wait_behind_a_long_silence_is_shown_at_once(
    monkeypatch: pytest.MonkeyPatch, quiet: float
) -> None:
    monkeypatch.setattr(showing, "SOON_SECONDS", 60.0)
    monkeypatch.setattr(showing, "_QUIET", [time.monotonic() - quiet])
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        with showing.waiting("reads what was asked"):
            pass
        print("end", file=terminal, flush=True)
        said = os.read(ours, 100_000).decode()
    os.close(ours)
    assert ("reads what was asked" in said) is (quiet > showing.QUIET_SECONDS)
