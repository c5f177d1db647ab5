"""Real services, workers and kills: no finished task is lost, nothing is measured twice, what is cancelled ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from forerun.store import open_store
from tests.server.conftest import Client
from tests.store.postgres import server

pytest.importorskip("torch", reason="measuring needs the extra torch")
TOYS = """
import os, time
def steps(config):
    from forerun.measure.recorder import current
    with open(os.environ["TOY_LOG"], "a") as log:
        log.write(f"{config['number']} {os.getpid()}\\n")
    while not current().step():
        time.sleep(config.get("pause", 0.1))
"""
POINTS = 5


class Services:
    """Services on one store, started and killed."""

    def __init__(self, folder: Path, place: str) -> None:
        self.folder, self.place, self.log = folder, place, folder / "toys.log"
        (folder / "toys.py").write_text(TOYS)
        self.running: list[subprocess.Popen[str]] = []

    def start(self, *words: str) -> Client:
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "forerun", "serve", "--port", "0", "--store", self.place, *words],
            stdout=subprocess.PIPE, text=True, cwd=self.folder,
            env={**os.environ, "TOY_LOG": str(self.log), "XDG_CACHE_HOME": str(self.folder), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        self.running.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        return Client(int(line.partition("127.0.0.1:")[2].partition("/")[0]))

    def kill(self, number: int = signal.SIGKILL) -> None:
        process = self.running.pop()
        process.send_signal(number)
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()

    def begun(self) -> list[str]:
        """Return the number of each point that was begun, in order."""
        return [line.split()[0] for line in self.lines()]

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def close(self) -> None:
        while self.running:
            self.kill(signal.SIGTERM)


def until(true: Callable[[], Any], seconds: float = 240.0) -> Any:
    """Return what becomes true."""
    last = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < last
        time.sleep(0.05)
    return found


def campaign(name: str, pause: float = 0.02) -> dict[str, Any]:
    settings = {"number": list(range(POINTS)), "pause": pause, "rehearse": False}
    return {
        "name": name, "workloads": {"toy": {"entry": "toys:steps", "settings": settings}},
        "vary": {"workers": 1, "global_batch": 1}, "steps": {"warmup": 1, "least": 30, "most": 30},
    }  # fmt: skip


def workers_of(pid: int) -> list[int]:
    """Return the processes of a service's workers."""
    return [
        int(word)
        for path in Path(f"/proc/{pid}/task").glob("*/children")
        for word in path.read_text().split()
    ]


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture(params=["sqlite", "postgresql"])
def services(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Services]:
    with ExitStack() as stack:
        place = str(tmp_path / "runs.db")
        if request.param == "postgresql":
            place = stack.enter_context(server()).new_place()
        found = Services(tmp_path, place)
        stack.callback(found.close)
        yield found


def test_kills_lose_no_finished_run_and_repeat_none(services: Services) -> None:
    client = services.start("--allow-modules")
    key = client.post("/v1/tasks/campaign", campaign("night")).json["task"]["id"]

    def task() -> Any:
        return store.tasks.get(key)

    with open_store(services.place) as store:
        until(lambda: task()["progress"]["done"] >= 1)
        (worker,) = workers_of(services.running[0].pid)
        os.kill(worker, signal.SIGKILL)  # the service begins another, which goes on
        before = task()["progress"]["done"]
        until(lambda: store.tasks.turn(key).attempts == 2 and task()["progress"]["done"] > before)
        services.kill()  # its worker goes on without it
        client = services.start("--allow-modules")
        found = until(lambda: (one := task())["ended"] and one)
        assert (found["state"], found["progress"]["done"]) == ("done", POINTS)
        numbers = store.table(campaign="night").texts("number").tolist()
        assert len(numbers) == len(set(numbers)) == POINTS
        again = [number for number in set(services.begun()) if services.begun().count(number) > 1]
        assert len(again) <= 1  # the one that was under way when the worker was killed
        assert client.get(f"/v1/tasks/{key}").json["task"] == found
        assert store.tasks.turn(key).attempts == 2
        time.sleep(1)
        assert store.tasks.get(key) == found  # nobody takes it up again


def test_cancelling_ends_the_processes_and_stopping_lets_it_wait(services: Services) -> None:
    client = services.start("--allow-modules")
    first, second = (
        client.post("/v1/tasks/campaign", campaign(name, pause=0.5)).json["task"]["id"]
        for name in "ab"
    )
    until(services.lines)
    pid = int(services.lines()[0].split()[1])
    assert lives(pid)
    assert client.post(f"/v1/tasks/{first}/cancel", {}).json["task"]["state"] == "running"
    until(lambda: client.get(f"/v1/tasks/{first}").json["task"]["state"] == "cancelled")
    assert not lives(pid)
    until(lambda: len(services.lines()) > 1)  # the next one begins
    pid = int(services.lines()[-1].split()[1])
    services.kill(signal.SIGTERM)
    until(lambda: not lives(pid))
    with open_store(services.place) as store:
        assert store.tasks.get(second)["state"] == "waiting"
        assert json.loads(store.tasks.events(first)[-1][2])["state"] == "cancelled"
