"""Stopping: workers agree on the step at which enough has been measured."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from forerun.measure.intervals import narrow
from forerun.measure.task import Steps
from forerun.measure.warmup import warm_steps

_GROWTH = 1.5  # from one look to the next: each look is another chance to be lucky


class Agreement:
    """When to stop: the first worker decides at agreed steps, and tells the others.

    Every worker calls `due` after each counted step, and `decide` where it is; all of them come
    to the same steps, since the first worker also tells when it looks next.

    An interval that is narrow by chance would stop a run at the wrong moment. So there are few
    looks, each half as many steps again after the one before, and it is enough where two looks in
    a row found it narrow, the first of them before `steps.least`.

    Attributes:
        reason: why it stopped, where that is not what was asked.
        warm: counted steps at the beginning that are warm-up still (`measure.warmup`), the same
            for all workers that are connected; None until it stopped.
    """

    def __init__(self, steps: Steps, rank: int, workers: int) -> None:
        self._steps = steps
        self._rank = rank
        self._workers = workers
        self._next = 1
        self._first = math.ceil(steps.least / _GROWTH)
        self._was_narrow = False
        self._begun = time.perf_counter()
        self.reason = ""
        self.warm: int | None = None

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
        # What counted as warm-up may look usual later: no more than `most` steps count all the same.
        warm = max(warm_steps(np.asarray(seconds)), count - self._steps.most)
        stop, following = self._own(count - warm, seconds[warm:])
        following += warm
        if self._workers > 1 and _connected():
            stop, following, warm = _from_first(stop, following, warm)
        elif self._workers > 1:  # a count is all that they can agree on
            following = self._steps.most
            stop = count >= following
        self._next = following
        self.warm = warm if stop else None
        return stop

    def _own(self, count: int, seconds: Sequence[float]) -> tuple[bool, int]:
        """Return whether it is enough and else the next look; counts are without the warm-up."""
        steps = self._steps
        elapsed = time.perf_counter() - self._begun
        is_narrow, was_narrow = narrow(steps, seconds), self._was_narrow
        self._was_narrow = is_narrow
        if is_narrow and (was_narrow or count >= steps.most) and count >= steps.least:
            return True, count
        if count >= steps.most:
            self.reason = f"stopped at {count} steps, its interval wider than asked"
            return True, count
        pace = max(elapsed / max(count, 1), 1e-9)
        left = int((steps.seconds - elapsed) / pace)
        if left < 1:
            self.reason = f"stopped after {elapsed:.3g} s and {count} steps, before it was as sure"
            return True, count
        return False, min(self._look_after(count), count + left, steps.most)

    def _look_after(self, count: int) -> int:
        if count < self._first:
            return self._first
        return self._steps.least if count < self._steps.least else math.ceil(_GROWTH * count)


def _connected() -> bool:
    import torch.distributed as dist

    return bool(dist.is_available() and dist.is_initialized())


def _from_first(stop: bool, following: int, warm: int) -> tuple[bool, int, int]:
    """Return what the first worker of the default process group says."""
    import torch
    import torch.distributed as dist

    device: Any = "cpu"
    if "nccl" in str(dist.get_backend()):
        device = torch.device("cuda", torch.cuda.current_device())
    told = torch.tensor([int(stop), following, warm], device=device)
    dist.broadcast(told, src=0)
    stopped, following, warm = told.tolist()
    return bool(stopped), following, warm
