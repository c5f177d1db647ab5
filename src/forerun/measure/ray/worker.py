"""Worker: what runs in a Ray Train worker; an actor carries its messages (Train's need a checkpoint)."""

from __future__ import annotations

import base64
import json
import os
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from forerun.measure.cgroups import identity, wait_until_held
from forerun.measure.processes import GPU
from forerun.measure.progress import FINISHED, STARTING, STEPPING, Reporter
from forerun.measure.task import Task
from forerun.measure.worker import carry_out, prepare

Message = dict[str, Any]
Send = Callable[[Message], None]
LINE = "FORERUN "  # begins each line of a driver's output that is a message
_PAUSE_SECONDS = 0.5  # between two reports of progress


class TaskFailedError(Exception):
    """A task failed in this worker: its fit ends, so that its peers do not wait for it."""


def packed(plan: Mapping[str, Any]) -> str:
    """Return a plan as one word of a command line that no shell, and no quoting, takes apart."""
    return base64.urlsafe_b64encode(zlib.compress(json.dumps(plan).encode())).decode()


def unpacked(word: str) -> Message:
    """Return the plan of a command line."""
    return Message(json.loads(zlib.decompress(base64.urlsafe_b64decode(word))))


class _Queue:
    def __init__(self) -> None:
        self._messages: list[Message] = []

    def put(self, message: Message) -> None:
        self._messages.append(message)

    def take(self) -> list[Message]:
        taken, self._messages = self._messages, []
        return taken


class _Board:
    """Actor that keeps the last message of each kind and worker of the newest attempt."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int], Message] = {}
        self._fit, self._restarts = "", 0

    def put(self, message: Message) -> None:
        about = message["kind"], message["rank"]
        if message["kind"] == "begun":
            if message["fit"] != self._fit:
                self._fit, self._restarts, self._kept = message["fit"], 0, {}
            elif about in self._kept:
                self._restarts, self._kept = self._restarts + 1, {}
            message["restarts"] = self._restarts
        self._kept[about] = message

    def take(self) -> list[Message]:
        return list(self._kept.values())


class Mailbox:
    """The driver's side: makes the actor of a name, which `keeps` the last messages or none fetched."""

    def __init__(self, name: str, keeps: bool = False) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.name = name
        # On the driver's own node: a node of workers may be lost, and messages with it.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        options = {"name": name, "num_cpus": 0, "scheduling_strategy": here}
        self._actor: Any = ray.remote(_Board if keeps else _Queue).options(**options).remote()
        ray.get(self._actor.take.remote())  # it is there

    def take(self) -> list[Message]:
        """Return the messages since the last call, or those that are kept."""
        import ray

        return list(ray.get(self._actor.take.remote()))


def sender(name: str, seconds: float | None = None) -> Send:
    """Return, in a worker, what sends a message to a mailbox, and waits for `seconds` at most."""
    import ray

    actor: Any = ray.get_actor(name)
    return lambda message: ray.get(actor.put.remote(message), timeout=seconds)


class ProgressSender(Reporter):
    """A Reporter of a task and rank that sends a worker's progress from a thread of its own."""

    def __init__(self, send: Send, task: int, rank: int, pause_seconds: float = _PAUSE_SECONDS) -> None:  # fmt: skip
        self._send_message, self._pause_seconds = send, pause_seconds
        self._message: Message = {
            "kind": "progress", "task": task, "rank": rank, "phase": STARTING, "begun": 0.0,
            "last": time.time(), "steps": 0,
        }  # fmt: skip
        self._seconds: list[float] = []
        self._ended = threading.Event()
        self._send()
        threading.Thread(target=self._go, daemon=True).start()

    def begin(self) -> None:  # noqa: D102
        self._message |= {"phase": STEPPING, "begun": time.time(), "last": time.time()}

    def step(self, seconds: float) -> None:  # noqa: D102
        self._seconds.append(seconds)
        self._message |= {"steps": self._message["steps"] + 1, "last": time.time()}

    def finish(self) -> None:  # noqa: D102
        self._message["phase"] = FINISHED
        self.stop()

    def stop(self) -> None:
        """End the thread, and send the last steps."""
        if not self._ended.is_set():
            self._ended.set()
            self._send()

    def _go(self) -> None:
        while not self._ended.wait(self._pause_seconds):
            self._send()

    def _send(self) -> None:
        seconds, self._seconds = self._seconds, []
        self._send_message({**self._message, "seconds": seconds})


def own_ray_gpu() -> int | None:
    """Return the GPU that Ray Train gave this worker, as torch numbers it; None where it gave none."""
    from ray.train.torch import get_device

    device = get_device()
    return int(device.index or 0) if device.type == "cuda" else None


def carry_out_plan(config: Mapping[str, Any]) -> None:
    """Carry out `tasks` from the `first` on in this Ray Train worker. Raises TaskFailedError."""
    from ray import train

    context = train.get_context()
    rank = context.get_world_rank()
    os.environ["LOCAL_RANK"] = str(context.get_local_rank())
    if (gpu := own_ray_gpu()) is not None:
        os.environ[GPU] = str(gpu)
    send = sender(str(config["mailbox"]))
    tasks, first = [Task.from_json(task) for task in config["tasks"]], int(config["first"])
    if config["hold"]:
        # What torch loads at first use would take minutes at a tenth of a core; where it cannot
        # be loaded, the first task reports it.
        with suppress(Exception):
            prepare(tasks[first])
        send({"kind": "ready", "rank": rank, **identity()})
        wait_until_held(float(config["hold"]))
    for i in range(first, len(tasks)):
        reporter = ProgressSender(send, i, rank)
        record = carry_out(tasks[i], rank, lambda reporter=reporter: reporter)  # type: ignore[misc]
        reporter.stop()
        send({"kind": "record", "task": i, "rank": rank, "record": record})
        if record["status"] != "ok":
            raise TaskFailedError(record["reason"])
