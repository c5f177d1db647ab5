"""A long wait is told on a terminal, and nowhere else."""

from __future__ import annotations

import os
import pty
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run

RUNS = "workload,cluster,global_batch,step_time_s\n" + "\n".join(
    f"resnet50,1x{n}xa100-sxm-80gb,{32 * n},{0.02 + 0.002 * n}" for n in (1, 2, 4, 8)
)


def test_who_learns_from_what_is_said_on_a_terminal_alone(
    forerun: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
