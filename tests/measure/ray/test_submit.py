"""`ray job submit`: the driver is handed to a cluster's dashboard, and measurements come home."""

from __future__ import annotations

import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from forerun.errors import RequestError
from forerun.measure import Steps, Task
from forerun.measure.ray import RayRunner
from forerun.measure.ray.worker import packed, unpacked
from forerun.systems.predictddl import ClusterResourceCollector
from tests.measure.entries import FEW, QUICK
from tests.measure.ray.conftest import Head

REMOVING = """

def removing(config):
    import shutil
    here = os.getcwd()
    torch.distributed.barrier()
    shutil.rmtree(here, ignore_errors=True)
    torch.distributed.barrier()
    open("checkpoint.pt", "wb")
"""


def test_tasks_are_submitted_within_one_fit_and_their_measurements_come_home(
    able: None, head: Head, folder: Path
) -> None:
    runner = RayRunner(submit=head.dashboard, folder=folder / "runs", environment=head.variables)
    assert runner.host_count == 1
    assert runner.node_resources[0]["CPU"] == 2
    # None is rehearsed: those that are share a start of their own.
    task = Task(
        "toys:mlp", workers=2, global_batch=32, steps=FEW, settings=QUICK, timeout_seconds=300.0
    )
    with (folder / "toys.py").open("a") as toys:
        toys.write(REMOVING)
    gone, plain, epochs, function, wrong = runner.measure_many([
        task.with_(entry="toys:removing"),
        task,
        task.with_(dataset_size=128, steps=Steps(warmup=1, epochs=2)),
        task.with_(entry="toys:regression"),
        task.with_(entry="toys:raising"),
    ])  # fmt: skip
    assert gone.status == "failed"
    assert "FileNotFoundError: [Errno 2] No such file or directory: 'checkpoint.pt'" in gone.reason
    assert plain.status == epochs.status == function.status == "ok", plain.reason + function.reason
    assert set(plain.parts) == {"input", "forward", "backward", "sync", "optimizer"}
    assert plain.step_seconds is not None
    assert plain.fingerprint["ray"]
    assert plain.sync_bytes is not None
    assert plain.sync_bytes > 0
    assert epochs.epoch_seconds is not None
    assert function.sync_bytes == 4 * 9
    assert wrong.status == "failed"
    assert "ValueError: the third layer has no weights (toys.py:" in wrong.reason


def test_a_dashboard_that_does_not_answer_is_told_in_words(able: None, folder: Path) -> None:
    away = RayRunner(submit="http://127.0.0.1:1", folder=folder / "runs")
    measured = away.measure(Task("toys:mlp", timeout_seconds=120.0))
    assert measured.status == "failed"
    expected = "no Ray cluster answers" if find_spec("aiohttp") else "ray[default]"
    assert expected in measured.reason
    assert "Traceback" not in measured.reason
    with pytest.raises(RequestError) as raised:
        _ = away.host_count
    assert "Traceback" not in str(raised.value)


def test_a_cluster_says_what_its_nodes_have(
    able: None, head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in head.variables.items():
        monkeypatch.setenv(name, value)
    (node,) = ClusterResourceCollector.of_ray(head.address).nodes
    assert (node.cores, node.gpus, node.accelerator) == (2.0, 0, "")
    assert node.memory_bytes > 1e8


def test_a_plan_is_one_word_that_no_shell_takes_apart() -> None:
    plan = {"tasks": [{"entry": "a:b", "settings": {"words": 'it\'s $HOME "or" `so`; *'}}] * 50}
    word = packed(plan)
    said = subprocess.run(
        ["sh", "-c", f"printf %s {word}"], capture_output=True, text=True, check=True
    )
    assert unpacked(said.stdout) == plan
    assert len(word) < 500, "many alike tasks take little room"
