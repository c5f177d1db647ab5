"""Clock: seconds of one call of something, and how far repeats of the measurement lie apart.

On a CPU with one thread the clock is the process's own CPU time: what other processes take, and
what a quota makes it wait, is not the operation's. What share of the wall clock the process gets is
measured apart (`machine.cpu_share`). With more threads it is the wall clock. On CUDA devices it is
the time between two events on the stream, which is empty at the first: where an operation ends
before the next is launched, that is the time of a launch (`launch_seconds`).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

Call = Callable[[], Any]
MOST_CALLS = 1 << 20


@dataclass(frozen=True, slots=True)
class CallTime:
    """Seconds of one call (of repeats), and the repeats' range over their median."""

    seconds: float
    spread: float


@dataclass
class CallTimer:
    """Times calls on one device.

    Attributes:
        device: cpu or cuda.
        threads: that one operation may use.
        batch_seconds: that calls are repeated for, at least, in one measurement.
        repeats: measurements, whose median is the answer.
        fastest: the fastest of them is: what others take on a busy machine only adds to the wall
            clock.
        until: on the monotonic clock: nothing is start later.
        spreads: of all that was timed so far.
    """

    device: str = "cpu"
    threads: int = 1
    batch_seconds: float = 1.5e-3
    repeats: int = 3
    fastest: bool = False
    until: float = float("inf")
    spreads: list[float] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Whether the time for measuring is up."""
        return time.monotonic() > self.until

    def now(self) -> float:
        """Return the clock's seconds."""
        if self.device == "cpu" and self.threads == 1:
            return time.process_time()
        return time.perf_counter()

    def on_host(self) -> CallTimer:
        """Return the clock of what the processor does: the wall clock beside a CUDA device."""
        return (
            self
            if self.device == "cpu"
            else replace(self, device="cpu", threads=max(self.threads, 2))
        )

    def launch_seconds(self, torch: Any) -> float:
        """Return what launching an operation on one number takes; 0 on a CPU, which launches none."""
        if self.device == "cpu":
            return 0.0
        x = torch.zeros(1, device=self.device)
        return self.time(partial(x.add_, 1.0)).seconds

    def time(self, call: Call) -> CallTime:
        """Return the seconds of one call, warmed up."""
        measure = self._on_events if self.device == "cuda" else self._on_clock
        measure(call, 1)
        calls, taken = 1, measure(call, 1)
        while taken * calls < self.batch_seconds / 2 and calls < MOST_CALLS:
            grown = 8 * calls if taken < 1e-7 else int(self.batch_seconds / taken) + 1
            calls = min(max(2 * calls, grown), 8 * calls, MOST_CALLS)
            taken = measure(call, calls)
        found = sorted([taken, *(measure(call, calls) for _ in range(self.repeats - 1))])
        middle = statistics.median(found)
        spread = (found[-1] - found[0]) / middle if middle > 0 else 0.0
        self.spreads.append(spread)
        return CallTime(found[0] if self.fastest else middle, spread)

    def _on_clock(self, call: Call, calls: int) -> float:
        start = self.now()
        for _ in range(calls):
            call()
        return (self.now() - start) / calls

    def _on_events(self, call: Call, calls: int) -> float:
        import torch

        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()  # what was put on the stream before is none of the calls
        first.record()
        for _ in range(calls):
            call()
        last.record()
        torch.cuda.synchronize()
        return float(first.elapsed_time(last)) / 1e3 / calls
