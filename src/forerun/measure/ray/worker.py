"""Inside: what runs in a Ray Train worker: a plan's tasks one after another, within one fit.

Letterbox: a named actor that takes what workers tell, until the driver fetches it.
"""

from __future__ import annotations

import base64
import json
import os
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from forerun.measure.limits import itself, wait_until_held
from forerun.measure.task import Task
from forerun.measure.usage import GPU
from forerun.measure.worker import carry_out, prepare

Letter = dict[str, Any]
LINE = "FORERUN "  # begins each line of a driver's output that is a letter
_POST_SECONDS = 0.5
_PACKED = "packed:"


def packed(plan: Mapping[str, Any]) -> str:
    """Return a plan as one word of a command line that no shell, and no quoting, takes apart."""
    text = base64.urlsafe_b64encode(zlib.compress(json.dumps(plan).encode()))
    return _PACKED + text.decode()


def unpacked(word: str) -> dict[str, Any]:
    """Return the plan of a command line: `packed`, or @ and the name of a file of JSON."""
    if word.startswith("@"):
        text = Path(word[1:]).read_text()
    else:
        text = zlib.decompress(base64.urlsafe_b64decode(word.removeprefix(_PACKED))).decode()
    plan: dict[str, Any] = json.loads(text)
    return plan


class _Box:
    """The actor: letters in, letters out."""

    def __init__(self) -> None:
        self._letters: list[Letter] = []

    def put(self, letter: Letter) -> None:
        self._letters.append(letter)

    def take(self) -> list[Letter]:
        taken, self._letters = self._letters, []
        return taken


class _Board(_Box):
    """The actor of a training that nobody attends: it keeps what is true at last.

    Of each worker that is the latest progress and the record; a worker that begins once more
    begins a new attempt, in which what was told before counts no longer.
    """

    def put(self, letter: Letter) -> None:
        if letter["kind"] == "begun":
            letter["restarts"] = self._begin(letter)
        about = letter["kind"], letter["rank"]
        others = [one for one in self._letters if (one["kind"], one["rank"]) != about]
        self._letters = [*others, letter]

    def _begin(self, letter: Letter) -> int:
        """Forget what is over where a worker begins; return how often its fit began anew."""
        begun = [one for one in self._letters if one["kind"] == "begun"]
        before = [one for one in begun if one["fit"] == letter["fit"]]
        restarts = max((int(one["restarts"]) for one in before), default=0)
        again = any(one["rank"] == letter["rank"] for one in before)
        if again or not before:
            self._letters = []
        return restarts + again

    def take(self) -> list[Letter]:
        return self._letters


class Letterbox:
    """The driver's side: makes the actor, hands out its name, fetches letters.

    Measurements travel by this actor and not by Ray Train's own reports, whose metrics do not
    come back where no checkpoint is saved.

    Args:
        name: the actor's.
        attended: letters are fetched again and again; otherwise the last ones are kept.
    """

    def __init__(self, name: str, attended: bool = True) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.name = name
        kind = _Box if attended else _Board
        # On the driver's own node: a node of workers may be lost, and letters with it.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._actor: Any = (
            ray.remote(kind).options(name=name, num_cpus=0, scheduling_strategy=here).remote()
        )
        ray.get(self._actor.take.remote())  # it is there

    def take(self) -> list[Letter]:
        """Return the letters that came since the last call, or those that were kept."""
        import ray

        letters: list[Letter] = ray.get(self._actor.take.remote())
        return letters


def posting(name: str, seconds: float | None = None) -> Callable[[Letter], None]:
    """Return, in a worker, what puts a letter into the box of that name and waits until it is in.

    Args:
        name: the box.
        seconds: that it waits at most; then GetTimeoutError of Ray is raised. None is no limit.
    """
    import ray

    actor: Any = ray.get_actor(name)

    def post(letter: Letter) -> None:
        ray.get(actor.put.remote(letter), timeout=seconds)

    return post


class Postman:
    """Tells of a worker's progress by letters, from a thread of its own.

    Args:
        post: puts a letter into the box.
        task: which task of the plan, by position.
        rank: which worker.
        pause_seconds: between two letters.
    """

    def __init__(
        self, post: Callable[[Letter], None], task: int, rank: int,
        pause_seconds: float = _POST_SECONDS,
    ) -> None:  # fmt: skip
        self._post, self._pause_seconds = post, pause_seconds
        self._about = {"kind": "progress", "task": task, "rank": rank}
        self._phase, self._begun, self._last, self._steps = 0, 0.0, time.time(), 0
        self._seconds: list[float] = []
        self._ended = threading.Event()
        self._send()
        threading.Thread(target=self._go, daemon=True).start()

    def begin(self) -> None:
        """Say that stepping begins."""
        self._phase, self._begun, self._last = 1, time.time(), time.time()

    def step(self, seconds: float) -> None:
        """Say that a step ended, which took so long."""
        self._seconds.append(seconds)
        self._steps += 1
        self._last = time.time()

    def finish(self) -> None:
        """Say that nothing more is coming."""
        self._phase = 2
        self.stop()

    def stop(self) -> None:
        """End the thread, and tell the last."""
        if not self._ended.is_set():
            self._ended.set()
            self._send()

    def _go(self) -> None:
        while not self._ended.wait(self._pause_seconds):
            self._send()

    def _send(self) -> None:
        seconds, self._seconds = self._seconds, []
        self._post(
            {**self._about, "phase": self._phase, "begun": self._begun, "last": self._last,
             "steps": self._steps, "seconds": seconds}
        )  # fmt: skip


def tell_gpu() -> None:
    """Note which GPU Ray Train has given this worker: how it numbers them is its own affair."""
    from ray.train.torch import get_device

    device = get_device()
    if device.type == "cuda" and device.index is not None:
        os.environ[GPU] = str(device.index)


class TaskFailedError(Exception):
    """A task failed in this worker: its fit ends, so that its neighbours do not wait for it."""


def carry_out_plan(config: Mapping[str, Any]) -> None:
    """Carry out tasks in this worker, and post the record of each.

    Args:
        config: `tasks` (as `Task.to_json`), `first`, the position from which on they are to be
            carried out, and `box`, the letterbox's name; `hold`, where the runner is to hold this
            worker to so many cores before it begins.

    Raises:
        TaskFailedError: a task failed; its record was posted before.
    """
    from ray import train

    context = train.get_context()
    rank = context.get_world_rank()
    os.environ["LOCAL_RANK"] = str(context.get_local_rank())
    tell_gpu()
    post = posting(str(config["box"]))
    if config.get("hold"):
        # What torch loads at first use would take minutes at a tenth of a core; where it cannot
        # be loaded, carrying out the first task says so.
        with suppress(Exception):
            prepare(Task.from_json(config["tasks"][int(config["first"])]))
        post({"kind": "ready", "rank": rank, **itself()})
        wait_until_held(float(config["hold"]))
    for i in range(int(config["first"]), len(config["tasks"])):
        men: list[Postman] = []

        def progress(rank: int, i: int = i, men: list[Postman] = men) -> Postman:
            men.append(Postman(post, i, rank))
            return men[0]

        record = carry_out(Task.from_json(config["tasks"][i]), rank, progress)
        for man in men:
            man.stop()
        post({"kind": "record", "task": i, "rank": rank, "record": record})
        if record["status"] != "ok":
            raise TaskFailedError(record["reason"])
