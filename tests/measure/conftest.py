"""What tests of runners share: a folder with entries to train, a ledger, and who is still alive."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from forerun.measure.campaign import Point, RunState, Spent
from forerun.measure.measurement import Measurement
from tests.measure.entries import ENTRIES


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, which holds the entries as the module `toys`."""
    (tmp_path / "toys.py").write_text(ENTRIES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Notes:
    """A ledger in memory."""

    def __init__(self) -> None:
        self.kept: dict[str, Measurement] = {}
        self.known: dict[str, RunState] = {}

    def begin(self) -> None:
        pass

    def states(self) -> Mapping[str, RunState]:
        return self.known

    def spent(self) -> Spent:
        return Spent()

    def keep(self, point: Point, measurement: Measurement) -> None:
        self.kept[point.key] = measurement
        self.known[point.key] = RunState.of(point.task, measurement)
