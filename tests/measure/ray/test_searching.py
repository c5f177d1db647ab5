"""Searching on Ray: trials that a cluster has no room for are named, others run side by side, and one start serves all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forerun.advisor.searching import search_live
from forerun.measure.ray import RayRunner
from tests.measure.ray.conftest import Head


def space(**vary: Any) -> dict[str, Any]:
    """Return a space of waits of some milliseconds."""
    return {
        "name": "onray",
        "workloads": {
            "slow": {"entry": "toys:slow", "settings": {"rehearse": False, "pause": [0.02, 0.06]}}
        },
        "vary": {"global_batch": 6, **vary},
        "steps": {"warmup": 1, "least": 2, "most": 3, "seconds": "5s"}, "timeout": "5min",
        "price_usd_per_worker_hour": {"": 1.0, "big": 2.0}, "runner": "ray",
    }  # fmt: skip


def test_trials_run_side_by_side_and_those_without_room_or_machines_are_named(
    able: None, head: Head, folder: Path
) -> None:
    runner = RayRunner(head.address, folder=folder / "runs", environment=head.variables)
    asked = space(workers=[1, 3], instance_type=["", "big"])
    found = search_live(asked, runner, str(folder / "r.db"), searcher="grid", parallel=2)
    box = found.box
    assert len(found) == len(box) == 2
    assert box.status.tolist() == ["ok", "ok"]
    assert "pause=0.02" in box.land.words(found.recommended)
    notes = " ".join(box.notes)  # type: ignore[attr-defined]
    assert "2 trials cannot be made: 3 workers of 1 CPU each (PACK) do not fit" in notes
    assert "1 worker of 1 CPU, 0.001 big each (PACK) do not fit" in notes


@pytest.mark.slow
def test_trials_without_an_address_share_one_start_of_ray(
    able: None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, told = RayRunner(folder=folder / "runs"), list[str]()
    runner.tell = told.append
    found = search_live(space(workers=1), runner, str(folder / "r.db"), searcher="random")
    assert found.box.status.tolist() == ["ok", "ok"]
    assert np.isfinite(found.best_so_far).all()
    assert sum("starts a Ray cluster" in words for words in told) == 1
    connected = {words for words in told if words.startswith("connects to the Ray cluster")}
    assert len(connected) == 1
    assert runner.address == ""
