"""Limits: how large, how often, how many at once and how long a request may be."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar

from forerun.progress import progress_to
from forerun.server.problems import HttpError

T = TypeVar("T")
Receive = Callable[[], Awaitable[dict[str, Any]]]
_MOST_CLIENTS = 10_000
_TURN_SECONDS = 0.025
_BURST_SECONDS = 5.0  # so long a client may save up its rate


@dataclass(frozen=True)
class ServerLimits:
    """What requests may take.

    body_bytes, batch_bytes: of a question; of a batch or of runs. requests_per_second: of a token or
    address, 0 for no limit. questions: waiting and computed. seconds: until an answer. read_seconds:
    until a body has come in. cache_bytes: of answers that are kept.
    """

    body_bytes: int = 1_000_000
    batch_bytes: int = 64_000_000
    requests_per_second: float = 0.0
    questions: int = 256
    workers: int = 2
    seconds: float = 120.0
    read_seconds: float = 20.0
    cache_bytes: int = 256_000_000


class RateLimit:
    """A token bucket for each client; of very many the longest silent are forgotten."""

    def __init__(self, per_second: float) -> None:
        self._rate = per_second
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str, requests: float = 1.0) -> None:
        """Count requests of a client; a large one is paid for by those after it. Raises HttpError."""
        if not self._rate:
            return
        now, most = time.monotonic(), max(self._rate * _BURST_SECONDS, 1.0)
        left, then = self._buckets.pop(client, (most, now))
        left = min(most, left + (now - then) * self._rate)
        self._buckets[client] = (left - requests if left >= 1.0 else left, now)
        if len(self._buckets) > _MOST_CLIENTS:
            self._buckets.popitem(last=False)
        if left < 1.0:
            wait = int((1.0 - left) / self._rate) + 1
            found = f"more than {self._rate:g} a second"
            raise HttpError(429, "so many requests", found, f"wait {wait} s", wait)


async def read_body(receive: Receive, stated: bytes, most: int, seconds: float) -> bytes:
    """Return a body, of a stated length or b"". Raises HttpError where it is too large, too slow or broken off."""
    size, parts = 0, list[bytes]()
    try:
        async with asyncio.timeout(seconds):
            while size <= most and not (stated.isdigit() and int(stated[:20]) > most):
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise HttpError(400, "the body", "it broke off", "send all of it")
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size <= most and not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        found = f"it did not come in {seconds:g} s"
        raise HttpError(408, "the body", found, "send it faster, or less") from None
    raise HttpError(413, "the body", f"more than {most:,} bytes", "send it in smaller parts")


class QuestionPool:
    """Threads that answer while the event loop serves others; so many questions, so long each."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits, self.open, self.workers = limits, 0, limits.workers
        self.span: Callable[[], AbstractContextManager[Any]] = nullcontext  # around each question
        self.threads, self._turn = ThreadPoolExecutor(limits.workers, "question"), Lock()

    async def answer(self, question: Callable[[], T]) -> T:
        """Return what a question returns. Raises HttpError where it is one too many, or takes too long."""
        most, seconds = self._limits.questions, self._limits.seconds
        if self.open >= most:
            raise HttpError(429, "this question", f"{most} others wait", "wait 1 s", 1)
        found, todo = f"no answer within {seconds:g} s", "fix more of the plan, or ask of fewer"
        late, end = HttpError(503, "this question", found, todo), time.monotonic() + seconds

        def check(words: str) -> None:
            if time.monotonic() > end:
                raise late

        def carried_out() -> T:
            # Short ones take turns: beside one another each takes longer. A long one is not waited for.
            first = self._turn.acquire(timeout=_TURN_SECONDS)
            try:
                check("")  # it may have waited until now
                # A long search reports what it does, and so ends.
                with self.span(), progress_to(check):
                    return question()
            finally:
                if first:
                    self._turn.release()

        run = contextvars.copy_context().run
        future = asyncio.get_running_loop().run_in_executor(self.threads, run, carried_out)
        self.open += 1
        future.add_done_callback(self._ended)
        if not (await asyncio.wait([future], timeout=seconds))[0]:
            raise late
        return future.result()

    def _ended(self, future: asyncio.Future[Any]) -> None:
        self.open -= 1
        if not future.cancelled():
            future.exception()  # nobody else looks where the client was refused
