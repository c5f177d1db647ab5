"""Communication: collectives of a DDP module in each step, and the noise of its gradients in some."""

from __future__ import annotations

import atexit
import math
import sys
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


NORMS_EVERY = 10  # steps: norms read all gradients twice, which costs little in a tenth of them


@dataclass(frozen=True, slots=True)
class StepTraffic:
    """One worker's collectives of a step.

    Attributes:
        bytes: handed to collectives. `times`: how often a step reduced all gradients.
        under_way_seconds: while any was under way; exposed: from the last bucket's start to the last end.
        local_sqr, mean_sqr: squared norms of the worker's own gradient and of all workers' mean, without
            the loss scale; None where not taken, or for the reason `why`.
    """

    bytes: float
    under_way_seconds: float
    exposed_seconds: float
    local_sqr: float | None = None
    mean_sqr: float | None = None
    why: str = ""
    times: int = 0


def traffic_summary(
    steps: Sequence[StepTraffic | None], warm: int
) -> tuple[dict[str, float | None], float | None, list[str]]:
    """Return figures, exposed seconds of a step, and notes; `warm` steps serve norms alone."""
    known = [t for t in steps if t is not None]
    timed = [t for t in steps[warm:] if t is not None]
    if not any(t.bytes for t in timed):
        why = "communication is not measured: the DDP module reduced nothing in the counted steps"
        none = dict.fromkeys(("sync_bytes", "comm_seconds", "local_sqr", "mean_sqr"))
        return none, None, [why] if known else []
    squares = [
        [(t.local_sqr, t.mean_sqr) for t in some if t.local_sqr is not None and t.mean_sqr is not None]
        for some in (timed, known)
    ]  # fmt: skip
    local, mean = zip(*(squares[0] or squares[1]), strict=True) if squares[1] else ((), ())
    figures = {
        "sync_bytes": fmean(t.bytes for t in timed),
        "comm_seconds": fmean(t.under_way_seconds for t in timed),
        "local_sqr": fmean(local) if local else None,
        "mean_sqr": fmean(mean) if mean else None,
    }
    notes = []
    if (most := max(t.times for t in known)) > 1:
        notes.append(
            f"gradients are reduced {most} times a step: volume and time of communication are of all"
            " of them, and gradient noise is not measured; accumulate within no_sync() to reduce once"
        )
    elif not local and (why := next((t.why for t in known if t.why), "")):
        notes.append(f"gradient noise is not measured: {why}")
    return figures, fmean(t.exposed_seconds for t in timed), notes


def covered_seconds(spans: Sequence[tuple[float, float]]) -> float:
    """Return how much time at least one of the spans (start, end) covers."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return total


def gradient_noise(
    local_sqr: float, mean_sqr: float, workers: int, global_batch: float
) -> tuple[float, float]:
    """Return (|G|^2, tr Sigma): squared norm of the true gradient and variance of a sample's, unbiased.

    Pollux (OSDI 2021): E|g_i|^2 = |G|^2 + K tr Sigma / B (`local_sqr`, of K >= 2 workers), and
    E|g|^2 = |G|^2 + tr Sigma / B (`mean_sqr`).
    """
    sqr = (workers * mean_sqr - local_sqr) / (workers - 1)
    return sqr, (local_sqr - mean_sqr) * global_batch / (workers - 1)


def _loss_scale() -> float:
    """Return the loss scale of the update under way, by its callers; 1.0 without a GradScaler."""
    from torch.amp import GradScaler

    frame = sys._getframe(1)
    while frame.f_code is not GradScaler.step.__code__:
        if frame.f_back is None:
            return 1.0
        frame = frame.f_back
    return float(frame.f_locals["self"].get_scale())  # 1.0 of a scaler that is not enabled


class _Reduction:
    def __init__(self, size: int) -> None:
        # Is handed a tensor as its reduction begins, and returns what to call as it ends.
        self.observe: Callable[[Any], Callable[[Any], None]] | None = None
        self._size = size

    def __call__(self, group: Any, bucket: Any) -> Any:
        buffer = bucket.buffer()
        buffer.mul_(1.0 / self._size)  # as DDP's own reducer does, and quicker than to divide
        ended = self.observe(buffer) if self.observe is not None else None

        def pass_on(future: Any) -> Any:
            mean = future.value()[0]
            if ended is not None:
                ended(mean)
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
    local: Any = None
    mean: Any = None


class Communication:
    """Observes what one DistributedDataParallel module reduces, with norms every so many steps."""

    def __init__(self, clock: WallClock, norms_every: int | None = None) -> None:
        self._clock = clock
        self.norms_every = norms_every
        self._module: Any = lambda: None
        self._optimizer: Any = lambda: None  # the last one that was checked
        self._trained = False
        self._size, self._bytes = 1, 0
        self._own: frozenset[int] = frozenset()  # parameters of the module
        self._count = 0
        self._scale: float | None = None  # of this step's loss; None until an optimizer has used it
        self._whole = True  # no gradients are left over from the step before
        self._buckets: list[_Bucket] = []
        # Buckets of each step and the scale of its loss, None where its gradients are not of one step.
        self._steps: list[tuple[list[_Bucket], float | None] | None] = []

    @property
    def _takes_norms(self) -> bool:
        every = NORMS_EVERY if self.norms_every is None else self.norms_every
        return every > 0 and self._count % every == 0

    def attach(self, module: Any) -> str:
        """Observe a DistributedDataParallel module; return why not, "" where it works."""
        logged = module._get_ddp_logging_data()
        self._size = module.process_group.size()
        reduction = _REDUCTIONS.get(module)
        if reduction is None:
            if "comm_hook" in logged:
                return "the module has a hook of its own"
            if getattr(module, "_use_python_reducer", False):
                return "compiled code reduces the module's gradients"
            reduction = _REDUCTIONS[module] = _Reduction(self._size)
            atexit.unregister(_callbacks_dropped)  # once, whatever number of modules
            atexit.register(_callbacks_dropped)
            # DDP compares the annotations of a hook, which here are texts; a lambda has none.
            hook = lambda group, bucket: reduction(group, bucket)  # noqa: E731, PLW0108
            module.register_comm_hook(module.process_group, hook)
        reduction.observe = self._begun
        self._module = ref(module)
        self._bytes = int(logged["total_parameter_size_bytes"])
        self._own = frozenset(map(id, module.parameters()))
        return ""

    def detach(self) -> None:
        """Stop observing."""
        if (module := self._module()) is not None:
            _REDUCTIONS[module].observe = None

    def _begun(self, buffer: Any) -> Callable[[Any], None]:
        whole = handed = buffer.numel() * buffer.element_size()
        if buffer.is_sparse:
            parts = (buffer._values(), buffer._indices())
            handed = sum(part.numel() * part.element_size() for part in parts)
        # DDP has divided it by the number of workers already.
        local = _square(buffer) if self._takes_norms and not buffer.is_sparse else None
        seen = _Bucket(handed, whole, self._clock.now(), local=local)
        self._buckets.append(seen)

        def ended(mean: Any) -> None:
            seen.end = self._clock.now()
            if seen.local is not None:
                seen.mean = _square(mean)

        return ended

    def updated(self, optimizer: Any) -> None:
        """Say that an optimizer is about to use its gradients; called from within its pre-hook."""
        if self._scale is None and self._own:
            if optimizer is not self._optimizer():
                firsts = [p for group in optimizer.param_groups for p in group["params"][:1]]
                self._trained = any(id(p) in self._own for p in firsts)
                self._optimizer = ref(optimizer)
            if self._trained:
                self._scale = _loss_scale() if self._takes_norms else 1.0

    def end(self) -> None:
        """End a step: the buckets since the last one are its traffic."""
        scale = self._scale if self._whole else None
        self._steps.append((self._buckets, scale) if self._own else None)
        self._whole = self._scale is not None
        self._scale, self._buckets = None, []
        self._count += 1

    def restart(self) -> None:
        """Forget the steps so far; norms are taken in the next one."""
        self._steps, self._count = [], 0

    def forget(self) -> None:
        """Leave out the buckets since the last step."""
        self._buckets = []

    def read(self) -> list[StepTraffic | None]:
        """Return the traffic of the steps since the last call, None where no module was observed."""
        if self._steps:
            self._clock.settle()
        steps, self._steps = self._steps, []
        return [None if step is None else self._traffic(*step) for step in steps]

    def _traffic(self, buckets: Sequence[_Bucket], scale: float | None) -> StepTraffic:
        done = [bucket for bucket in buckets if bucket.end is not None]
        if not done:
            return StepTraffic(0.0, 0.0, 0.0)
        zero, clock = done[0].ready, self._clock
        spans = [(clock.seconds(zero, b.ready), clock.seconds(zero, b.end)) for b in done]
        exposed = max(end for _, end in spans) - max(ready for ready, _ in spans)
        whole = sum(bucket.whole for bucket in done)
        times = max(round(whole / self._bytes), 1) if self._bytes else 1
        squares = self._squares(done, scale) if times == 1 else (None, None, "")
        volume, covered = float(sum(bucket.bytes for bucket in done)), covered_seconds(spans)
        return StepTraffic(volume, covered, max(exposed, 0.0), *squares, times)

    def _squares(
        self, done: list[_Bucket], scale: float | None
    ) -> tuple[float | None, float | None, str]:
        if all(one.local is None for one in done):
            return None, None, ""
        if any(one.local is None or one.mean is None for one in done):
            return None, None, "some gradients are sparse"
        if not scale:
            return None, None, "no optimizer of torch used the gradients of each step"
        local = sum(float(one.local) for one in done) * (self._size / scale) ** 2
        mean = sum(float(one.mean) for one in done) / scale**2
        if not (math.isfinite(local) and math.isfinite(mean)):
            return None, None, "gradients are not finite"
        return local, mean, ""


def _square(values: Any) -> Any:
    """Return the squared norm of a flat tensor, () in float32 or more: half precision overflows."""
    import torch

    flat = values if values.dtype == torch.float64 else values.float()
    return flat.dot(flat)
