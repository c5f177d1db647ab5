"""Faults caused for real: the kernel's want of memory, a full disk, and a link that is slow."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from forerun.measure import Host, Steps, Task
from forerun.measure.lab import missing
from forerun.measure.local import LocalRunner
from tests.measure.entries import QUICK
from tests.needs import require, require_root


@pytest.fixture
def small_group(tmp_path: Path) -> Iterator[Path]:
    """A control group that holds no more than 700 MB."""
    require_root()
    top = Path("/sys/fs/cgroup/memory")
    group = (top if top.is_dir() else Path("/sys/fs/cgroup")) / f"forerun-test-{tmp_path.name}"
    try:
        group.mkdir()
    except OSError as error:
        require("cgroups", False, f"no memory control group can be made here: {error}")
    limit = group / ("memory.limit_in_bytes" if top.is_dir() else "memory.max")
    try:
        limit.write_text("700000000")
        yield group
    finally:
        group.rmdir()


def test_a_worker_that_the_kernel_ends_for_want_of_memory_is_oom(
    folder: Path, small_group: Path
) -> None:
    into = f'echo $$ > {small_group}/cgroup.procs; exec "$@"'
    host = Host("small", "127.0.0.1", "lo", ("sh", "-c", into, "sh"))
    runner = LocalRunner([host], folder=folder / "runs")
    measured = runner.measure(Task("toys:eating", settings=QUICK))
    assert measured.status == "oom", measured.reason
    assert measured.reason.startswith(
        "worker 0 of 1 was killed by the kernel, out of memory, in step 2"
    )


def test_a_full_disk_is_a_failure_with_its_reason(folder: Path) -> None:
    require_root()
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], check=True)
    try:
        runner = LocalRunner(folder=disk)
        measured = runner.measure(Task("toys:slow", settings={"pause": 0.0, **QUICK}))
        assert measured.status == "failed"
        assert "No space left on device" in measured.reason
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_exposed_communication_is_what_a_step_without_it_lacks(folder: Path) -> None:
    """Two lab hosts at 300 Mb/s: the ring sends 3.2 MB each way; the same worker alone does not."""
    require("lab", not missing(), "; ".join(missing()))
    from forerun.measure.lab import HostSpec, Lab

    steps = Steps(warmup=3, least=12, most=30, half_width=0.1, seconds=30)
    task = Task("toys:mlp", workers=2, global_batch=32, steps=steps, threads=1,
                settings={"width": 512, "depth": 3, "bucket_mb": 100}, timeout_seconds=300.0)  # fmt: skip
    params = 32 * 512 + 512 + 3 * (512 * 512 + 512) + 512 * 4 + 4
    with Lab([HostSpec(cpus=0.8, link_mbit=300)] * 2) as lab:
        runner = LocalRunner(lab.hosts, folder=folder / "runs")
        alone, together = runner.measure_many([task.with_(workers=1, global_batch=16), task])
    assert together.status == alone.status == "ok", together.reason + alone.reason
    assert together.sync_bytes == 4 * params
    assert together.step_mean_seconds is not None
    assert alone.step_mean_seconds is not None
    wire = 4 * params / (300e6 / 8)  # a ring of two sends each byte once in each direction
    exposed = together.parts["sync"]
    assert exposed >= 0.95 * wire
    without = together.step_mean_seconds - alone.step_mean_seconds
    assert exposed == pytest.approx(without, rel=0.35), f"{exposed=} {without=} {wire=}"
    assert together.network_bytes_per_second == pytest.approx(
        4 * params / together.step_mean_seconds, rel=0.3
    )
