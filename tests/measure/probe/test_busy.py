"""A machine that is busy with other work is seen at once, measured all the same, and believed less."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forerun.domain.measured import Measured
from forerun.errors import RequestError
from forerun.measure.cgroups import quota
from forerun.measure.probe.clock import CallTimer
from forerun.measure.probe.findings import measured_of, warnings_of
from forerun.measure.probe.machine import (
    BUSY_SHARE,
    allowed_cores,
    cpu_access,
    is_busy,
    sureness,
)
from forerun.measure.probe.probing import probe
from forerun.measure.probe.worker import measured

torch = pytest.importorskip("torch", reason="measuring needs the extra torch")
QUIET = {"spread": 0.05, "cpu_share": 1.0, "cpu_share_spread": 0.02, "got_share": 1.0}


@pytest.fixture
def crowd() -> Iterator[None]:
    """Hold this process to one core, which three others want too."""
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system has no affinity")
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
        os.sched_setaffinity(0, before)


def test_a_busy_machine_is_seen_told_and_measured_all_the_same(
    crowd: None, capsys: pytest.CaptureFixture[str]
) -> None:
    # Other tests may want the core too: of a tenth of it, two seconds are over before the first curve.
    request = {"device": "cpu", "threads": 1, "dtypes": ["fp32"], "seconds": 10.0, "only": ["add"]}
    found = measured(torch, request)
    assert found["got_share"] < BUSY_SHARE
    assert found["seconds"] < 60.0
    assert "fp32/add" in found["curves"]
    first = capsys.readouterr().out.splitlines()[0]
    assert '"machine"' in first, "it is told before anything is timed"
    known = measured_of(found, {})
    assert 0 < known.sureness < 0.7
    assert Measured.from_dict(known.to_dict()).sureness == known.sureness
    assert any("the machine is busy: a process gets" in words for words in warnings_of(found))


def test_two_threads_that_share_one_core_are_seen_to_have_half(crowd: None) -> None:
    found = cpu_access(torch, "cpu", 2)
    assert found["cpu_share"] == 1.0, "what the wall clock times is not divided again"
    assert found["allowed_cores"] <= 1.0
    assert is_busy(found)


def test_what_disturbs_the_measurement_takes_from_its_sureness() -> None:
    assert sureness(QUIET) == 1.0
    quota = {**QUIET, "cpu_share": 0.2}  # a limit of its own is no business of others
    assert sureness(quota) == 1.0
    assert not is_busy(quota)
    half = sureness({**QUIET, "got_share": 0.5})
    tenth = sureness({**QUIET, "got_share": 0.1})
    apart = sureness({**QUIET, "spread": 0.6})
    turns = sureness({**QUIET, "cpu_share_spread": 0.8})
    assert 0 < tenth < half < 1
    assert max(apart, turns) < 1
    assert "sureness" not in measured_of(found_with(1.0), {}).to_dict()


def found_with(share: float) -> dict[str, Any]:
    """Return what a worker might have found."""
    curve = {"axes": [[64.0, 4096.0]], "seconds": [1e-6, 4e-6], "spread": 0.05}
    return {
        **QUIET, "got_share": share, "curves": {"fp32/add": curve, "fp32/memory": curve},
        "framework": {}, "updates": {}, "jitter_seconds": 0.0,
    }  # fmt: skip


def test_threads_are_timed_by_the_fastest_and_no_cache_is_slower_than_memory() -> None:
    found = found_with(0.5)
    found["curves"]["fp32/memory"] = {
        "axes": [[1e6, 4e6, 64e6]], "seconds": [8e-3, 1e-9, 2e-9], "spread": 0.1,
    }  # fmt: skip
    assert measured_of({**found, "threads": 2}, {}).curves["fp32/memory"].seconds == (
        1e-9, 1e-9, 2e-9,
    )  # fmt: skip
    clock = CallTimer(threads=2, batch_seconds=1e-4, repeats=5, fastest=True)
    naps = iter([0.0, 0.0, 0.03, 0.03, 0.03, 0.001])

    def call() -> None:
        time.sleep(next(naps, 0.03))

    assert clock.time(call) < 0.02


def test_more_threads_than_cores_are_refused_with_how_many_there_are() -> None:
    with pytest.raises(RequestError, match=r"a process may have .* cores here; give --threads"):
        probe(seconds=10, threads=4 * (os.cpu_count() or 1))


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "40000 100000\n"}, 0.4),
        ({"cpu.max": "max 100000\n"}, float("inf")),
        ({"cpu.cfs_quota_us": "4000\n", "cpu.cfs_period_us": "20000\n"}, 0.2),
        ({"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"}, float("inf")),
    ],
)
def test_a_control_group_s_quota_is_read_of_both_kinds(
    files: dict[str, str], cores: float, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert quota(tmp_path) == pytest.approx(cores)
    assert 0 < allowed_cores() <= (os.cpu_count() or 1)
