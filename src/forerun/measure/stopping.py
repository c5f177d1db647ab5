"""Stopping: workers agree on the step at which enough has been measured."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from forerun.measure.intervals import tight
from forerun.measure.task import Steps

_RECHECK = 0.2  # of the steps done so far, until the next look
_SPARSE = 5  # steps between two looks at the least, so that looking costs nothing


class Agreement:
    """When to stop: the first worker decides at agreed steps, and tells the others.

    Every worker calls `due` after each counted step, and `decide` where it is; all of them come
    to the same steps, since the first worker also tells when it looks next.
    """

    def __init__(self, steps: Steps, rank: int, workers: int) -> None:
        self._steps = steps
        self._rank = rank
        self._workers = workers
        self._next = 1
        self._begun = time.perf_counter()
        self.reason = ""

    def begin(self) -> None:
        """Say that stepping begins: the cap in seconds counts from here."""
        self._begun = time.perf_counter()

    def due(self, count: int) -> bool:
        """Whether the workers meet after this many counted steps."""
        return count >= self._next

    def decide(self, count: int, seconds: Sequence[float]) -> bool:
        """Return whether it is enough; every worker gets the first one's answer.

        Args:
            count: counted steps.
            seconds: of those steps, as this worker saw them.
        """
        stop, following = self._own(count, seconds)
        if self._workers > 1 and _connected():
            stop, following = _from_first(stop, following)
        elif self._workers > 1 and count < self._steps.most:
            stop, following = False, self._steps.most  # a count is all that they can agree on
        self._next = following
        return stop

    def _own(self, count: int, seconds: Sequence[float]) -> tuple[bool, int]:
        steps = self._steps
        elapsed = time.perf_counter() - self._begun
        if tight(steps, seconds):
            return True, count
        if count >= steps.most:
            self.reason = f"stopped at {count} steps, its interval wider than asked"
            return True, count
        pace = max(elapsed / max(count, 1), 1e-9)
        left = int((steps.seconds - elapsed) / pace)
        if left < 1:
            self.reason = f"stopped after {elapsed:.3g} s and {count} steps, before it was as sure"
            return True, count
        wanted = max(steps.least - count, _SPARSE, int(_RECHECK * count))
        return False, min(count + min(wanted, left), steps.most)


def _connected() -> bool:
    import torch.distributed as dist

    return bool(dist.is_available() and dist.is_initialized())


def _from_first(stop: bool, following: int) -> tuple[bool, int]:
    """Return what the first worker of the default process group says."""
    import torch
    import torch.distributed as dist

    device: Any = "cpu"
    if "nccl" in str(dist.get_backend()):
        device = torch.device("cuda", torch.cuda.current_device())
    told = torch.tensor([int(stop), following], device=device)
    dist.broadcast(told, src=0)
    return bool(told[0].item()), int(told[1].item())
