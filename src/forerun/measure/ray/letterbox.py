"""Letterbox: a named actor that takes what workers tell, until the driver fetches it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

Letter = dict[str, Any]
LINE = "FORERUN "  # begins each line of a driver's output that is a letter
_POST_SECONDS = 0.5


class _Box:
    """The actor: letters in, letters out."""

    def __init__(self) -> None:
        self._letters: list[Letter] = []

    def put(self, letter: Letter) -> None:
        self._letters.append(letter)

    def take(self) -> list[Letter]:
        taken, self._letters = self._letters, []
        return taken


class Letterbox:
    """The driver's side: makes the actor, hands out its name, fetches letters.

    Measurements travel by this actor and not by Ray Train's own reports, whose metrics do not
    come back where no checkpoint is saved.
    """

    def __init__(self, name: str) -> None:
        import ray

        self.name = name
        self._actor: Any = ray.remote(_Box).options(name=name, num_cpus=0).remote()
        ray.get(self._actor.take.remote())  # it is there

    def take(self) -> list[Letter]:
        """Return the letters that came since the last call."""
        import ray

        letters: list[Letter] = ray.get(self._actor.take.remote())
        return letters


def posting(name: str) -> Callable[[Letter], None]:
    """Return, in a worker, what puts a letter into the box of that name and waits until it is in."""
    import ray

    actor: Any = ray.get_actor(name)

    def post(letter: Letter) -> None:
        ray.get(actor.put.remote(letter))

    return post


class Postman:
    """Tells of a worker's progress by letters, twice a second, from a thread of its own.

    Args:
        post: puts a letter into the box.
        task: which task of the plan, by position.
        rank: which worker.
    """

    def __init__(self, post: Callable[[Letter], None], task: int, rank: int) -> None:
        self._post = post
        self._about = {"kind": "progress", "task": task, "rank": rank}
        self._phase, self._begun, self._last = 0, 0.0, time.time()
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
        while not self._ended.wait(_POST_SECONDS):
            self._send()

    def _send(self) -> None:
        seconds, self._seconds = self._seconds, []
        self._post(
            {**self._about, "phase": self._phase, "begun": self._begun, "last": self._last,
             "seconds": seconds}
        )  # fmt: skip
