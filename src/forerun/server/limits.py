"""Limits: how large, how often, how many at once and how long a request may be."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from forerun.progress import progress_to
from forerun.server.problems import HttpProblem

T = TypeVar("T")
Receive = Callable[[], Awaitable[dict[str, Any]]]
_MOST_CLIENTS = 10_000
_BURST_SECONDS = 5.0  # so long a client may save up its rate
BODY_OF_ONE = 65_536  # bytes of a body that count as one more request


@dataclass(frozen=True)
class ServerLimits:
    """What one request may take.

    body_bytes, batch_bytes: of a question, and of a batch or runs. requests_per_second: of one token or
    address, 0 for no limit. questions: computed or waiting at once. seconds: until an answer;
    read_seconds: until a request has come in whole. cache_bytes: of answers that are kept.
    """

    body_bytes: int = 1_000_000
    batch_bytes: int = 64_000_000
    requests_per_second: float = 0.0
    questions: int = 256
    threads: int = 2
    seconds: float = 120.0
    read_seconds: float = 20.0
    cache_bytes: int = 256_000_000


class RateLimit:
    """A token bucket for each client; the clients that were silent longest are forgotten."""

    def __init__(self, per_second: float) -> None:
        self._rate = per_second
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str, requests: float = 1.0) -> None:
        """Count a client's requests. Raises HttpProblem where they are too many."""
        if not self._rate:
            return
        now, most = time.monotonic(), max(self._rate * _BURST_SECONDS, 1.0)
        left, then = self._buckets.pop(client, (most, now))
        left = min(most, left + (now - then) * self._rate)
        allowed = left >= 1.0
        # A large request may take all that is left, and is paid for by those that come next.
        self._buckets[client] = (left - requests if allowed else left, now)
        if len(self._buckets) > _MOST_CLIENTS:
            self._buckets.popitem(last=False)
        if not allowed:
            wait = max(int((1.0 - left) / self._rate) + 1, 1)
            found = f"more than {self._rate:g} a second"
            raise HttpProblem(429, "so many requests", found, f"wait {wait} s", wait)


async def read_body(receive: Receive, headers: dict[bytes, bytes], most: int, seconds: float) -> bytes:
    """Return a request's body. Raises HttpProblem where it is too large, too slow, or breaks off."""
    stated = headers.get(b"content-length", b"")
    too_large = HttpProblem(413, "the body", f"more than {most:,} bytes", "ask in smaller parts")
    if stated.isdigit() and int(stated) > most:
        raise too_large
    parts, size = [], 0
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise HttpProblem(400, "the body", "it broke off", "send all of it")
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > most:
                    raise too_large
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        found = f"it did not come in {seconds:g} s"
        raise HttpProblem(408, "the body", found, "send it faster, or less of it") from None


class QuestionPool:
    """Threads that answer while the event loop serves others; so many questions, so long each."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._threads = ThreadPoolExecutor(limits.threads, "question")
        self._open = 0

    async def answer(self, question: Callable[[], T]) -> T:
        """Return what a question returns. Raises HttpProblem where it is one too many, or takes too long."""
        most, seconds = self._limits.questions, self._limits.seconds
        if self._open >= most:
            raise HttpProblem(429, "this question", f"{most} others wait", "ask again in 1 s", 1)
        late = HttpProblem(
            503, "this question", f"no answer within {seconds:g} s",
            "ask less at once: fewer clusters or rows, or more of the plan fixed",
        )  # fmt: skip
        deadline = time.monotonic() + seconds

        def check(words: str) -> None:
            if time.monotonic() > deadline:
                raise late

        def carried_out() -> T:
            check("")  # it may have waited until now
            with progress_to(check):  # a long search reports, and so ends
                return question()

        loop, context = asyncio.get_running_loop(), contextvars.copy_context()
        self._open += 1
        future = loop.run_in_executor(self._threads, context.run, carried_out)
        future.add_done_callback(self._ended)
        done, _ = await asyncio.wait([future], timeout=seconds)
        if not done:
            raise late
        return future.result()

    def _ended(self, future: asyncio.Future[Any]) -> None:
        self._open -= 1
        if not future.cancelled():
            future.exception()  # of one whose client was refused already, nobody else would look

    def close(self) -> None:
        """End the threads, without those that still wait."""
        self._threads.shutdown(wait=False, cancel_futures=True)
