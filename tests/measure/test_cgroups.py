"""Control groups: those that go away while they are looked at are left out, and end nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

from forerun.measure.cgroups import groups_in, pids_under


def made(folder: Path) -> Path:
    for name in ("a/b", "c"):
        (folder / name).mkdir(parents=True)
        (folder / name / "cgroup.procs").write_text("12\n34\n")
    return folder


def test_groups_that_go_away_meanwhile_are_left_out(tmp_path: Path) -> None:
    found = groups_in(made(tmp_path))
    assert next(found) == tmp_path
    shutil.rmtree(tmp_path / "a")
    assert list(found) == [tmp_path / "c"]


def test_processes_of_all_groups_within_are_found(tmp_path: Path) -> None:
    assert list(pids_under(made(tmp_path))) == [12, 34, 12, 34]
    found = pids_under(tmp_path)
    next(found)
    shutil.rmtree(tmp_path)
    assert set(found) <= {12, 34}
    assert list(pids_under(tmp_path)) == []
