"""What tests of Ray share: Ray itself, one cluster of this machine, and no cluster that is named outside."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from forerun.measure.processes import MARK, RUNNER, end_all
from forerun.measure.ray.failures import WorkerReports
from forerun.measure.ray.runner import OF_CLUSTERS
from tests.needs import require
from tests.processes import alive

ROOT = Path(__file__).resolve().parents[3]
_PARTS = ("aiohttp", "aiohttp_cors", "opencensus", "prometheus_client")  # of ray[default]


class Head(NamedTuple):
    """A cluster of two CPUs: its address, its dashboard, and the variables of its drivers."""

    address: str
    dashboard: str
    variables: dict[str, str]


def found_by(script: str, head: Head, folder: Path, **variables: str) -> Any:
    """Return what a script that is run beside a cluster prints as JSON behind `FOUND `."""
    path = folder / "script.py"
    path.write_text(script)
    env = {
        **os.environ, **head.variables, "RAY_ADDRESS": head.address, "HOME": str(folder),
        "PYTHONPATH": str(ROOT / "src"), "GLOO_SOCKET_IFNAME": "lo", **variables,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, check=False, env=env,
        cwd=folder, timeout=400,
    )  # fmt: skip
    assert "FOUND " in done.stdout, done.stderr[-3000:]
    return json.loads(done.stdout.partition("FOUND ")[2])


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    """Go on where Ray is installed, with a cluster of one's own."""
    require("ray", find_spec("ray") is not None, "pip install 'forerun[ray]'")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    notice_ends_soon(monkeypatch)


def notice_ends_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Ray Train look every 0.3 s whether its workers have ended, and not every two."""
    monkeypatch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.3")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture(scope="session")
def head() -> Iterator[Head]:
    """A cluster that all tests share which need none of their own: a start takes half a minute."""
    lacks = [name for name in ("ray", *_PARTS) if find_spec(name) is None]
    require("dashboard", not lacks, f"pip install 'ray[default]' (missing: {', '.join(lacks)})")
    port, dashboard, agent, mark = free_port(), free_port(), free_port(), uuid.uuid4().hex
    variables = {**OF_CLUSTERS, "RAY_AUTH_MODE": "disabled"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # jobs call `python`
    words = [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--head", f"--port={port}",
        "--include-dashboard=true", f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={agent}", "--num-cpus=2", "--num-gpus=0",
        "--object-store-memory=80000000", "--disable-usage-stats", f"--temp-dir=/tmp/{mark[:12]}",
    ]  # fmt: skip
    environment = {**os.environ, **variables, MARK: mark, "PATH": path}
    try:
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, check=False, timeout=180
        )
        last = " ".join((done.stdout + done.stderr).split()[-60:])
        require("dashboard", done.returncode == 0, f"ray start said: {last}")
        until_it_answers(f"http://127.0.0.1:{agent}/api/local_raylet_healthz")
        yield Head(f"127.0.0.1:{port}", f"http://127.0.0.1:{dashboard}", variables)
    finally:
        end_all([], mark)
        shutil.rmtree(f"/tmp/{mark[:12]}", ignore_errors=True)


def until_it_answers(url: str, seconds: float = 120.0) -> None:
    """Wait for who carries jobs out: on a busy machine it comes long after the dashboard."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with suppress(OSError):
            urllib.request.urlopen(url, timeout=5.0).close()
            return
        time.sleep(0.3)
    raise AssertionError(f"{url} does not answer")


def on_steps(
    monkeypatch: pytest.MonkeyPatch, events: Mapping[int, tuple[int, Callable[[], None]]]
) -> None:
    """Let something happen, once, when both workers of a task have reported so many steps.

    `events` are by the task's place among those of a driver.
    """
    steps, left, add = {task: [0, 0] for task in events}, dict(events), WorkerReports.add

    def note(reports: WorkerReports, message: dict[str, Any]) -> None:
        add(reports, message)
        task = message.get("task")
        if message["kind"] == "progress" and task in left:
            steps[task][message["rank"]] = message["steps"]
            if min(steps[task]) >= left[task][0]:
                left.pop(task)[1]()

    monkeypatch.setattr(WorkerReports, "add", note)


def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what moves the runner's clock on by an hour."""
    clock, moved = time.monotonic, list[float]()
    module = SimpleNamespace(time=time.time, monotonic=lambda: clock() + sum(moved))
    monkeypatch.setattr("forerun.measure.ray.runner.time", module)
    return lambda: moved.append(3600.0)


def drivers() -> list[int]:
    """Return the drivers that this process has started and that are still there."""
    found, mark = [], f"{RUNNER}={os.getpid()}"
    for pid in alive(mark):
        with suppress(OSError):
            own = mark in Path(f"/proc/{pid}/environ").read_text().split("\0")
            if own and "forerun.measure.ray.driver" in Path(f"/proc/{pid}/cmdline").read_text():
                found.append(pid)
    return found
