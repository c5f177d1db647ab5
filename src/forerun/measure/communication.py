"""Communication: when and how long a DDP module's collectives are under way in each step."""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref


class WallClock:
    """Marks moments of steps, by the process's own clock."""

    def now(self) -> Any:
        """Return a mark of this moment."""
        return time.perf_counter()

    def seconds(self, first: Any, second: Any) -> float:
        """Return seconds from one mark to another, negative where the second came first."""
        return float(second - first)

    def settle(self) -> None:
        """Wait until every mark has happened."""


class CudaClock(WallClock):
    """Marks are events in the device's current stream, so that nothing waits for the device."""

    def __init__(self) -> None:
        import torch

        self._cuda = torch.cuda

    def now(self) -> Any:  # noqa: D102
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, first: Any, second: Any) -> float:  # noqa: D102
        return float(first.elapsed_time(second)) / 1e3

    def settle(self) -> None:  # noqa: D102
        self._cuda.synchronize()


class Timeline:
    """Steps and their parts, as marks; `switch` ends the part that runs and starts another."""

    def __init__(self, clock: WallClock) -> None:
        self._clock = clock
        self._marks: list[tuple[str, Any]] = []
        self._start: Any = None
        self._steps: list[tuple[Any, Any, list[tuple[str, Any]]]] = []

    def begin(self) -> None:
        """Start a step now, unless one runs."""
        if self._start is None:
            self._start = self._clock.now()

    def switch(self, part: str) -> None:
        """Say that from now on the step is in a part; "" is none of them."""
        self._marks.append((part, self._clock.now()))

    def end(self) -> None:
        """End the step now; the next one starts at the same moment."""
        now = self._clock.now()
        if self._start is not None:
            self._steps.append((self._start, now, self._marks))
        self._start, self._marks = now, []

    def pause(self) -> None:
        """Forget the step that runs: what follows belongs to none until `begin`."""
        self._start, self._marks = None, []

    def read(self) -> tuple[list[float], list[dict[str, float]]]:
        """Return seconds and parts of the steps that ended since the last call, in order."""
        if self._steps:
            self._clock.settle()
        steps, self._steps = self._steps, []
        totals = [self._clock.seconds(start, end) for start, end, _ in steps]
        return totals, [self._parts(end, marks) for _, end, marks in steps]

    def _parts(self, end: Any, marks: list[tuple[str, Any]]) -> dict[str, float]:
        parts: dict[str, float] = {}
        moments = [mark for _, mark in marks] + [end]
        for (part, _), start, stop in zip(marks, moments, moments[1:], strict=False):
            if part:
                parts[part] = parts.get(part, 0.0) + self._clock.seconds(start, stop)
        return parts


@dataclass(frozen=True, slots=True)
class StepTraffic:
    """One worker's collectives of a step.

    Attributes:
        bytes: handed to collectives. `times`: how often a step reduced all gradients.
        under_way_seconds: while any was under way; exposed: from the last bucket's start to the last end.
    """

    bytes: float
    under_way_seconds: float
    exposed_seconds: float
    times: int = 0


def traffic_summary(
    steps: Sequence[StepTraffic | None],
) -> tuple[dict[str, float | None], float | None, list[str]]:
    """Return figures, exposed seconds of a step, and notes."""
    known = [t for t in steps if t is not None]
    if not any(t.bytes for t in known):
        why = "communication is not measured: the DDP module reduced nothing in the counted steps"
        none = dict.fromkeys(("sync_bytes", "comm_seconds"))
        return none, None, [why] if known else []
    figures: dict[str, float | None] = {
        "sync_bytes": fmean(t.bytes for t in known),
        "comm_seconds": fmean(t.under_way_seconds for t in known),
    }
    notes = []
    if (most := max(t.times for t in known)) > 1:
        notes.append(
            f"gradients are reduced {most} times a step: volume and time of communication are of all"
            " of them, and gradient noise is not measured; accumulate within no_sync() to reduce once"
        )
    return figures, fmean(t.exposed_seconds for t in known), notes


def covered_seconds(spans: Sequence[tuple[float, float]]) -> float:
    """Return how much time at least one of the spans (start, end) covers."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return total


class _Reduction:
    def __init__(self, size: int) -> None:
        # Is handed a bucket as its reduction begins, and returns what to call as it ends.
        self.observe: Callable[[Any], Callable[[], None]] | None = None
        self._size = size

    def __call__(self, group: Any, bucket: Any) -> Any:
        buffer = bucket.buffer()
        buffer.mul_(1.0 / self._size)  # as DDP's own reducer does, and quicker than to divide
        ended = self.observe(bucket) if self.observe is not None else None

        def pass_on(future: Any) -> Any:
            mean = future.value()[0]
            if ended is not None:
                ended()
            return mean

        _CALLBACKS.add(pass_on)
        return group.allreduce([buffer]).get_future().then(pass_on)


# A hook stays with its module.
_REDUCTIONS: WeakKeyDictionary[Any, _Reduction] = WeakKeyDictionary()
# What threads of a process group still hold: they drop a callback after its result has been used.
_CALLBACKS: WeakSet[Any] = WeakSet()
_EXIT_SECONDS = 5.0


def _callbacks_dropped() -> None:
    """Wait until no thread holds a callback: one that drops it as the interpreter ends aborts the process."""
    until = time.monotonic() + _EXIT_SECONDS
    while len(_CALLBACKS) and time.monotonic() < until:
        time.sleep(0.001)
    time.sleep(0.01)  # the same thread drops the callback's result next


@dataclass(slots=True)
class _Bucket:
    bytes: int
    whole: int
    ready: Any
    end: Any = None


class Communication:
    """Observes what one DistributedDataParallel module reduces.

    Args:
        reducing: is handed each bucket before its reduction, and may return what to call after it.
    """

    def __init__(
        self, clock: WallClock, reducing: Callable[[Any], Callable[[], None] | None]
    ) -> None:
        self._clock, self._reducing = clock, reducing
        self._module: Any = None  # a weak reference, once one is observed
        self._bytes = 0
        self._buckets: list[_Bucket] = []
        self._steps: list[list[_Bucket] | None] = []

    def attach(self, module: Any) -> str:
        """Observe a DistributedDataParallel module; return why not, "" where it works."""
        logged = module._get_ddp_logging_data()
        reduction = _REDUCTIONS.get(module)
        if reduction is None:
            if "comm_hook" in logged:
                return "the module has a hook of its own"
            if getattr(module, "_use_python_reducer", False):
                return "compiled code reduces the module's gradients"
            reduction = _REDUCTIONS[module] = _Reduction(module.process_group.size())
            atexit.unregister(_callbacks_dropped)  # once, whatever number of modules
            atexit.register(_callbacks_dropped)
            # DDP compares the annotations of a hook, which here are texts; a lambda has none.
            hook = lambda group, bucket: reduction(group, bucket)  # noqa: E731, PLW0108
            module.register_comm_hook(module.process_group, hook)
        reduction.observe = self._begun
        self._module = ref(module)
        self._bytes = int(logged["total_parameter_size_bytes"])
        return ""

    def detach(self) -> None:
        """Stop observing."""
        if self._module is not None and (module := self._module()) is not None:
            _REDUCTIONS[module].observe = None

    def _begun(self, bucket: Any) -> Callable[[], None]:
        buffer = bucket.buffer()
        whole = handed = buffer.numel() * buffer.element_size()
        if buffer.is_sparse:
            parts = (buffer._values(), buffer._indices())
            handed = sum(part.numel() * part.element_size() for part in parts)
        reduced = self._reducing(bucket)  # what it takes is no communication, nor is what follows
        seen = _Bucket(handed, whole, self._clock.now())
        self._buckets.append(seen)

        def ended() -> None:
            seen.end = self._clock.now()
            if reduced is not None:
                reduced()

        return ended

    def end(self) -> None:
        """End a step: the buckets since the last one are its traffic."""
        self._steps.append(self._buckets if self._module is not None else None)
        self._buckets = []

    def forget(self) -> None:
        """Leave out the buckets since the last step."""
        self._buckets = []

    def read(self) -> list[StepTraffic | None]:
        """Return the traffic of the steps since the last call, None where no module was observed."""
        if self._steps:
            self._clock.settle()
        steps, self._steps = self._steps, []
        return [None if step is None else self._traffic(step) for step in steps]

    def _traffic(self, buckets: Sequence[_Bucket]) -> StepTraffic:
        done = [bucket for bucket in buckets if bucket.end is not None]
        if not done:
            return StepTraffic(0.0, 0.0, 0.0)
        zero, clock = done[0].ready, self._clock
        spans = [(clock.seconds(zero, b.ready), clock.seconds(zero, b.end)) for b in done]
        exposed = max(end for _, end in spans) - max(ready for ready, _ in spans)
        whole = sum(bucket.whole for bucket in done)
        times = max(round(whole / self._bytes), 1) if self._bytes else 1
        volume, covered = float(sum(bucket.bytes for bucket in done)), covered_seconds(spans)
        return StepTraffic(volume, covered, max(exposed, 0.0), times)
