"""A service's tasks on a Ray cluster: what computes is sent there and comes home, and ends with the task's process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.measure.ray.conftest import Head, found_by

# A fit, an evaluation, a recommendation, a fit that trains an encoder, and an encoder, here and on the cluster.
TASKS = """
import json, os
from forerun.advisor import Advisor
from forerun.errors import RequestError
from forerun.measure.ray import RayRunner
from forerun.measure.ray.driver import connect
from forerun.predictors.graphs import predictddl
from forerun.server.questions import Questions
from forerun.server.task_kinds import KINDS, NETWORKS, carry_out
from forerun.settings import load_settings

address, workers = os.environ.pop("RAY_ADDRESS"), []
predictddl.STEPS, in_workers = 10, RayRunner.in_workers

def counting(self, *given):
    found = in_workers(self, *given)
    workers.append(len(found))
    return found

RayRunner.in_workers = counting
questions = Questions(Advisor(), load_settings(), "runs.db")
store, found = questions.store(), {}
graphs = "predictddl:regression=linear:features=embedding:encoder=quantities"
for place in ("", address):
    if place:  # once for all of them: a task's own process connects by itself
        connect({"address": place, "variables": RayRunner(address=place)._worker_variables()})
    for name, what, body in (
        *((name, name, KINDS[name].example) for name in ("fit", "evaluate", "recommend")),
        ("trains", "fit", {"name": "graphs", "rows": NETWORKS, "predictor": graphs}),
        ("refused", "fit", {"name": "none", "rows": NETWORKS[:4], "predictor": graphs}),
        ("encoder", "encoder", {"name": "apart", "rows": NETWORKS, "predictor": graphs}),
    ):
        key = store.tasks.add(what, body)[0]["id"]
        store.tasks.claim(key, "me")
        carry_out(questions, key, "me", place, False)
        task = store.tasks.get(key)
        (task["result"] or {}).pop("seconds_taken", None)
        found.setdefault(name, []).append(
            [task["state"], task["progress"]["note"], task["result"], task["problem"]]
        )

def dies(rank, workers, tell):
    os.kill(os.getpid(), 9)

try:
    in_workers(RayRunner(address=address), dies, 1, print, True)
except RequestError as error:
    found["dies"] = str(error)
models = [(one.name, one.digest) for one in store.artifacts.every("model")]
print("FOUND", json.dumps({"tasks": found, "models": models, "workers": workers}))
"""


@pytest.mark.slow
def test_what_computes_on_the_cluster_is_what_this_machine_computes(
    able: None, head: Head, tmp_path: Path
) -> None:
    for package in ("torch", "sklearn", "safetensors"):
        pytest.importorskip(package)
    found = found_by(TASKS, head, tmp_path, OMP_NUM_THREADS="1")
    for name in ("fit", "evaluate", "recommend", "trains"):
        here, there = found["tasks"][name]
        assert here[0] == there[0] == "done", there
        assert there[1].endswith(f" (on the Ray cluster {head.address})")
        assert "cluster" not in here[1]
        assert there[2:] == here[2:], name
    assert [name for name, _ in found["models"]].count("ours") == 1, "the same model, by its hash"
    here, there = found["tasks"]["refused"]
    assert (here[0], here[3]) == (there[0], there[3])
    assert "3 networks" in there[3]["next"]
    here, there = found["tasks"]["encoder"]
    assert found["workers"] == [1, 1, 1, 1, 1, 2], "workers share the steps of an encoder alone"
    assert there[2]["losses"] == pytest.approx(here[2]["losses"], rel=2e-3)
    assert "died" in found["tasks"]["dies"]


WAITS = """
import os, sys, time
from functools import partial
from forerun.measure.ray import RayRunner

def wait(path, *given):
    open(path, "w").write(str(os.getpid()))
    time.sleep(300)

if __name__ == "__main__":
    import waits

    RayRunner(address=sys.argv[1]).in_workers(partial(waits.wait, sys.argv[2]), 1, print, waits=True)
"""


@pytest.mark.slow
def test_what_computes_on_the_cluster_ends_with_its_process(
    able: None, head: Head, tmp_path: Path
) -> None:
    (tmp_path / "waits.py").write_text(WAITS)
    pid, env = tmp_path / "pid", {**os.environ, **head.variables}
    words = [sys.executable, "waits.py", head.address, str(pid)]
    process = subprocess.Popen(words, cwd=tmp_path, env=env)
    try:
        until = time.monotonic() + 60
        while not (pid.exists() and pid.read_text()):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)
    finally:
        process.kill()
        process.wait()
    while Path(f"/proc/{pid.read_text()}").exists():
        assert time.monotonic() < until
        time.sleep(0.1)
