"""Clock: seconds of one call, in CPU time of one thread, wall time of several, or CUDA's events."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

Call = Callable[[], Any]
MOST_CALLS = 1 << 20


@dataclass
class CallTimer:
    """Times calls: the median, or the `fastest`, of `repeats` of `batch_seconds`; `spreads` over medians."""

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

    def on_host(self) -> CallTimer:
        """Return the clock of what the processor does: the wall clock beside a CUDA device."""
        threads = self.threads if self.device == "cpu" else max(self.threads, 2)
        return replace(self, device="cpu", threads=threads)

    def time(self, call: Call) -> float:
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
        self.spreads.append((found[-1] - found[0]) / middle if middle > 0 else 0.0)
        return found[0] if self.fastest else middle

    def _on_clock(self, call: Call, calls: int) -> float:
        own = self.device == "cpu" and self.threads == 1
        now = time.process_time if own else time.perf_counter
        start = now()
        for _ in range(calls):
            call()
        return (now() - start) / calls

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
