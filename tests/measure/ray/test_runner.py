"""RayRunner: what it refuses, and what it says where no cluster can be used."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from forerun.errors import RequestError
from forerun.measure import Task
from forerun.measure.ray import RayRunner
from forerun.measure.ray.failures import from_ray, unreachable
from tests.measure.ray.conftest import Head


@pytest.fixture
def runner(able: None, folder: Path) -> RayRunner:
    """A runner with a cluster of its own, in a folder that holds the entries."""
    return RayRunner(folder=folder / "runs")


def test_workers_that_do_not_fit_are_refused_and_ray_does_not_wait(
    able: None, head: Head, folder: Path
) -> None:
    runner = RayRunner(head.address, folder=folder / "runs", environment=head.variables)
    begun = time.monotonic()
    many = Task("toys:mlp", workers=3, global_batch=3, timeout_seconds=600)
    first, second = runner.measure_many([many, many.with_(seed=1)])
    assert first.status == second.status == "failed"
    assert "has room for 2" in first.reason
    assert first.reason == second.reason
    assert time.monotonic() - begun < 300


def test_a_cluster_that_does_not_answer_is_told_in_words(runner: RayRunner, tmp_path: Path) -> None:
    away = RayRunner("127.0.0.1:1", folder=tmp_path / "runs")
    measured = away.measure(Task("toys:mlp", timeout_seconds=300.0))
    assert measured.status == "failed"
    assert "no Ray cluster answers" in measured.reason
    assert "ray start --head" in measured.reason


def test_scripts_and_placements_that_ray_does_not_know_are_refused(runner: RayRunner) -> None:
    assert "calls a function" in (runner.refuses(Task("train.py")) or "")
    with pytest.raises(RequestError, match="did you mean SPREAD"):
        RayRunner(placement="SPRAED")


@pytest.mark.parametrize(
    ("version", "problem"),
    [("", "Ray is not installed"), ("2.9.3", "Ray 2.9.3 is older than 2.30"), ("2.31.0", "None")],
)
def test_ray_absent_or_too_old_is_told_without_a_start(
    tmp_path: Path, version: str, problem: str
) -> None:
    """A Python that sees only what forerun needs, and Ray's label of some version or none."""
    for name in ("numpy", "yaml"):
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        home = Path(spec.origin).parent
        (tmp_path / name).symlink_to(home)
        if (libraries := home.parent / f"{name}.libs").is_dir():
            (tmp_path / libraries.name).symlink_to(libraries)
    if version:
        label = tmp_path / f"ray-{version}.dist-info"
        label.mkdir()
        (label / "METADATA").write_text(f"Metadata-Version: 2.1\nName: ray\nVersion: {version}\n")
    source = Path(__file__).resolve().parents[3] / "src"
    code = (
        "from forerun.measure import Task\nfrom forerun.measure.ray import RayRunner\n"
        "print(RayRunner(folder='.').refuses(Task('m:f')))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=False,
        env={"PYTHONPATH": f"{tmp_path}{os.pathsep}{source}", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert problem in done.stdout


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        ("ray.exceptions.ActorDiedError: The actor died unexpectedly. Worker exit type: SYSTEM_ERROR"
         " Some common causes include: (1) the process was killed by the OOM killer", "failed", "died"),
        ("OutOfMemoryError: Task was killed due to the node running low on memory", "oom", "memory"),
        ("ActorDiedError: The actor died because its node has died.", "failed", "lost with its node"),
        ("ValueError: odd", "failed", "odd"),
    ],
)  # fmt: skip
def test_rays_words_are_told_apart(text: str, status: str, words: str) -> None:
    found, reason = from_ray(text)
    assert found == status
    assert words in reason


# What Ray wrote in each case, from its version 2.60.
MISMATCH = (
    "RuntimeError: Version mismatch: The cluster was started with: Ray: 2.40.0 Python: 3.11.7"
    " This process on node 192.0.2.2 was started with: Ray: 2.60.0 Python: 3.12.1"
)
NO_TOKEN = """Traceback (most recent call last):
  File "/site-packages/ray/_private/authentication/x.py", line 342, in _do_request
    raise AuthenticationError(formatted_error)
ray.exceptions.AuthenticationError: Authentication required: Unauthorized: Missing authentication token

Token authentication is enabled but no authentication token was found.
"""
NO_DASHBOARD = """Traceback (most recent call last):
  File "/site-packages/ray/_private/authentication/x.py", line 81, in __init__
    raise RuntimeError(
RuntimeError: The Ray jobs CLI & SDK require the ray[default] installation: `pip install 'ray[default]'`
"""
TOO_BUSY = "Exception: The current node timed out during startup. This could happen because some"


@pytest.mark.parametrize(
    ("text", "found", "todo"),
    [
        (MISMATCH, "another version of Ray or Python (RuntimeError: Version mismatch: The cluster",
         "install the same: Python 3.11.7 with pip install ray==2.40.0"),
        (NO_TOKEN, "asks for a token (ray.exceptions.AuthenticationError: Auth", "RAY_AUTH_MODE=token"),
        (NO_DASHBOARD, "could not be used: RuntimeError: The Ray jobs", "pip install 'ray[default]'"),
        (TOO_BUSY, "could not be started in time", "ray start --head"),
        ("ModuleNotFoundError: No module named 'ray'", "has no Ray", "pip install 'forerun[ray]'"),
        ("ConnectionError: 127.0.0.1:1: refused", "no Ray cluster answers", "ray start --head"),
    ],
)  # fmt: skip
def test_why_a_cluster_cannot_be_used_is_told_with_what_to_do(
    text: str, found: str, todo: str
) -> None:
    said = unreachable(text)
    assert found in said
    assert todo in said
    assert "Traceback" not in said
