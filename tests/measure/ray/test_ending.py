"""A campaign runs on a cluster that it starts, and takes it with it, at once, when it is ended."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from forerun.measure.processes import descendants
from forerun.store import open_store
from tests.processes import profiling

CAMPAIGN = """
name: ends
workloads: {slow: {entry: "toys:slow", settings: {pause: 0.05, rehearse: false}}}
vary: {workers: 1, global_batch: [8, 16]}
steps: {least: 20, most: 2000}
"""


@pytest.mark.slow
def test_the_cluster_that_was_started_is_gone_within_seconds(able: None, folder: Path) -> None:
    (folder / "ends.yaml").write_text(CAMPAIGN)
    store = folder / "r.db"
    process = profiling(folder / "ends.yaml", store, "--on", "ray", XDG_CACHE_HOME=str(folder))
    assert process.stderr is not None
    assert "starts a Ray cluster on this machine" in process.stderr.readline()
    assert "Ray answers after" in process.stderr.readline()
    while " of 2  slow" not in (line := process.stderr.readline()):
        assert line, "a run is made on it before the end"
    started = descendants([process.pid])
    assert len(started) > 3
    process.send_signal(signal.SIGTERM)
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=30) == 143, said
    assert "every finished run is kept" in said
    until = time.monotonic() + 5.0
    while left := [pid for pid in started if _runs(pid)]:
        assert time.monotonic() < until, left
        time.sleep(0.05)
    with open_store(str(store)) as opened:
        assert opened.count() == 1


def _runs(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
