"""Communication: collectives of a DDP module and the noise of its gradients, observed in a sample of steps."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, median
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary, ref

from forerun.measure.timeline import StepClock

# Called with a tensor that is handed to a reduction; returns what is called with the reduced tensor.
Observer = Callable[[Any], Callable[[Any], None] | None]

# Cost of observing one bucket, at most: 60 to 100 us in a process by itself
# (`benchmarks/measure_overhead.py --calls`), about twice that where workers compete for cores.
BUCKET_SECONDS = 2e-4
NORM_SECONDS = 2e-5  # cost of a bucket's two norms beside reading it
TIMING = (0.005, 0.05)  # share of all time that timing may take, and least share of steps timed
NORMS = (0.002, 0.02, 0.1)  # likewise for gradient norms, and the largest share of steps
FIRST = 3  # steps that are always observed, since their cost is not known yet
_GOLDEN = 0.6180339887498949  # fractional parts of its multiples are spread most evenly
_RECENT = 9  # steps whose median is the current step time
_MAX_FRAMES = 24  # callers searched for a GradScaler: wrappers may lie between it and its optimizer


@dataclass(frozen=True, slots=True)
class StepTraffic:
    """Collectives of one step of one worker.

    Attributes:
        bytes: handed to collectives.
        under_way_seconds: time in which at least one of them was under way.
        exposed_seconds: from the last bucket ready to the last bucket reduced.
        local_sqr, mean_sqr: squared norm of the worker's own gradient and of the mean gradient, of
            the unscaled loss. None in a step whose norms were not taken or not finite, that reduced
            its gradients several times (accumulation without no_sync), or that no optimizer used.
        times: how often the gradients were reduced.
        why: why norms that were taken are missing, "" where they are not.
    """

    bytes: float
    under_way_seconds: float
    exposed_seconds: float
    local_sqr: float | None = None
    mean_sqr: float | None = None
    times: int = 0
    why: str = ""


def traffic_means(
    timed: Sequence[StepTraffic], every: Sequence[StepTraffic] = ()
) -> dict[str, float | None]:
    """Return volume and time of communication, and gradient norms, as means over timed steps.

    Where none of these has norms, they are means over `every` step.
    """
    if not any(t.bytes for t in timed):
        return dict.fromkeys(("sync_bytes", "comm_seconds", "local_sqr", "mean_sqr"))
    some = timed if any(t.local_sqr is not None for t in timed) else every
    local = [t.local_sqr for t in some if t.local_sqr is not None]
    means = [t.mean_sqr for t in some if t.mean_sqr is not None]
    return {
        "sync_bytes": fmean(t.bytes for t in timed),
        "comm_seconds": fmean(t.under_way_seconds for t in timed),
        "local_sqr": fmean(local) if local else None,
        "mean_sqr": fmean(means) if means else None,
    }


def with_sync(
    parts: Mapping[str, float], traffic: Sequence[StepTraffic | None],
    each: Sequence[Mapping[str, float]], warm: int = 0, alone: bool = False,
) -> dict[str, float]:  # fmt: skip
    """Return a step's parts with exposed communication moved from backward to sync, where known.

    Sync is the share of backward that was exposed in the observed steps. These may be few: their own
    mean, beside a mean of backward over all steps, would let one slow step outweigh all others.

    Args:
        parts: seconds of each part, means over steps.
        traffic: of all counted steps, None where not observed; `each` has their parts.
        warm: steps at the beginning that count only where no other was observed.
        alone: there is one worker.
    """
    both = [*zip(traffic, each, strict=False)]
    seen = [(t, own) for t, own in both[warm:] if t] or [(t, own) for t, own in both if t]
    if not parts or not any(t.bytes for t, _ in seen):
        return {**parts, "sync": 0.0} if parts and alone else dict(parts)
    exposed = sum(t.exposed_seconds for t, _ in seen)
    within = sum(own.get("backward", 0.0) for _, own in seen)
    if "backward" not in parts or not within:
        return {**parts, "sync": exposed / len(seen)}
    sync = parts["backward"] * min(exposed / within, 1.0)
    return {**parts, "sync": sync, "backward": parts["backward"] - sync}


def traffic_notes(traffic: Sequence[StepTraffic], alone: bool = False) -> list[str]:
    """Return notes on how gradients were reduced; `alone`: norms were requested of one worker."""
    if alone:
        return ["gradient noise is not measured: one worker has one gradient of the same weights"]
    if traffic and not any(t.bytes for t in traffic):
        return [
            "communication is not measured: the DDP module reduced nothing in the observed steps"
        ]
    most = max((t.times for t in traffic), default=0)
    if most > 1:
        return [
            f"gradients are reduced {most} times a step: volume and time of communication are of all"
            " of them, and gradient noise is not measured; accumulate within no_sync() to reduce once"
        ]
    why = next((t.why for t in traffic if t.why), "")
    if why and all(t.local_sqr is None for t in traffic):
        return [f"gradient noise is not measured: {why}"]
    return []


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
    """Return (|G|^2, tr Sigma): squared norm of the true gradient and variance of a sample's.

    Both are unbiased, and may be below zero where the noise is large; means keep such values.

    Args:
        local_sqr: mean over steps and workers of |g_i|^2, each over global_batch / workers samples.
        mean_sqr: mean over steps of |g|^2, g the mean gradient of a step.
        workers: K, two at least: one has no second gradient of the same weights.
        global_batch: B.

    Source: Pollux (OSDI 2021), as in METHODS 4: E|g_i|^2 = |G|^2 + K tr Sigma / B and
    E|g|^2 = |G|^2 + tr Sigma / B, so that |G|^2 = (K |g|^2 - |g_i|^2) / (K - 1) and
    tr Sigma = (|g_i|^2 - |g|^2) B / (K - 1).
    """
    sqr = (workers * mean_sqr - local_sqr) / (workers - 1)
    return sqr, (local_sqr - mean_sqr) * global_batch / (workers - 1)


def loss_scale() -> float:
    """Return the loss scale of the update under way, 1.0 where no GradScaler does it.

    To be called from an optimizer's pre-hook: the callers show which scaler does this update. A loss
    that is multiplied by hand is not recognised.
    """
    from torch.amp import GradScaler

    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MAX_FRAMES):
        if frame is None:
            break
        if frame.f_code is GradScaler.step.__code__:
            scaler = frame.f_locals["self"]
            return float(scaler.get_scale()) if scaler.is_enabled() else 1.0
        frame = frame.f_back
    return 1.0


def can_replace_group(module: Any) -> bool:
    """Whether a DDP module's process group can be exchanged for an instrumented one.

    It relies on torch internals that were tried on CPUs; elsewhere a communication hook, which torch
    documents, does the same, and its cost is hidden by the accelerator.
    """
    swaps = hasattr(module.reducer, "_update_process_group")
    return swaps and all(one.device.type == "cpu" for one in module.parameters())


@cache
def _instrumented_group() -> Any:
    """Return the class of process groups that forward to another and show its floating all-reduces.

    It reduces the same tensors by the same collective, in the same order. It implements only what
    DDP's reducer calls: allreduce and broadcast. `observe` is called with each floating tensor, on the
    thread and stream that hands it over.
    """
    import torch.distributed as dist
    from torch.compiler import disable

    class Work(dist.Work):  # type: ignore[misc]  # torch is untyped here
        def __init__(self, future: Any) -> None:
            super().__init__()
            self._future = future

        def get_future(self) -> Any:
            return self._future

        def wait(self, timeout: Any = None) -> bool:
            self._future.wait()
            return True

    class Group(dist.ProcessGroup):  # type: ignore[misc]  # torch is untyped here
        def __init__(self, inner: Any, observe: Observer) -> None:
            super().__init__(inner.rank(), inner.size())
            self.inner, self._observe = inner, observe

        # DDP calls these from within its forward, which torch.compile may trace.
        @disable  # type: ignore[untyped-decorator]  # torch is untyped here
        def broadcast(self, tensors: Any, options: Any) -> Any:
            return self.inner.broadcast(tensors, options)

        @disable  # type: ignore[untyped-decorator]  # torch is untyped here
        def allreduce(self, tensors: Any, options: Any) -> Any:
            # An integer tensor is DDP's map of used parameters.
            floating = len(tensors) == 1 and tensors[0].is_floating_point()
            ended = self._observe(tensors[0]) if floating else None
            work = self.inner.allreduce(tensors, options)
            if ended is None:
                return work

            def pass_on(future: Any) -> Any:
                value = future.value()
                ended(value[0])
                return value

            return Work(work.get_future().then(pass_on))

    return Group


class StepSample:
    """A sample of steps whose share follows from its cost: spread evenly, the same on every worker.

    Step i is in it where the fractional part of i times the golden ratio lies below the share. Such
    steps do not coincide with anything periodic, and a smaller sample is part of a larger one, so
    that workers with slightly different step times nearly always choose the same steps.

    `budget` is the share of all steps' time that observing may take; `least` and `most` bound the share
    of steps, whatever it costs.
    """

    def __init__(self, budget: float, least: float, most: float = 1.0) -> None:
        self._budget, self._least, self._most = budget, least, most
        self.share = most

    def settle(self, step_seconds: float, extra_seconds: float) -> None:
        """Choose the share from what a step takes and what observing adds to it."""
        if step_seconds > 0 and extra_seconds > 0:
            wanted = self._budget * step_seconds / extra_seconds
            self.share = min(max(wanted, self._least), self._most)

    def has(self, step: int) -> bool:
        """Whether a step, counted from 0, is in the sample; step 0 always is."""
        return step * _GOLDEN % 1.0 < self.share


# A reducer may still refer to an instrumented group that was replaced: both live as long as the module.
_GROUPS: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


@dataclass(slots=True)
class _Bucket:
    """A bucket under way: bytes handed over, and those of the gradients that they stand for."""

    bytes: int
    whole: int
    ready: Any
    end: Any = None
    local: Any = None
    mean: Any = None


def _no_module() -> None:
    """What a dead weak reference returns."""


class Communication:
    """Observes what one DistributedDataParallel module reduces, in a sample of steps.

    In observed steps an instrumented process group replaces the module's own; in all others DDP works
    untouched. It reduces its gradients itself in both. On accelerators a communication hook reduces
    them as DDP would, and observes in those steps alone; it stays with the module.

    Times and volume are of the largest sample that half a percent of the steps' time allows, but of a
    twentieth of the steps at least, the first three and the first counted one: of all steps, where
    one takes 40 ms for each of its buckets. Norms are of a sample of that sample.

    Args:
        clock: marks the moments.
        norms_every: take gradient norms every so many steps, whatever it costs; 0 never; None as
            often as it costs little, in a tenth of the steps at most.
    """

    def __init__(self, clock: StepClock, norms_every: int | None = None) -> None:
        self._clock = clock
        self.norms_every = norms_every
        self._timing, self._norms = StepSample(*TIMING), StepSample(*NORMS)
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._norm_seconds = math.inf  # of a step, the least so far: the first reads cold memory
        self._reading = 0.0  # spent on norms in this step
        self._module: Any = _no_module
        self._optimizer: Any = _no_module  # the last one that was checked
        self._trained = False
        self._size, self._bytes = 1, 0
        self._own: frozenset[int] = frozenset()  # parameters of the module
        self._count = self._restarted = 0
        self._timed = self._normed = self._hooked = False
        self._reports_updates = False
        self._scale: float | None = 1.0
        self._whole = True  # no gradients are left over from the step before
        self._buckets: list[_Bucket] = []
        # Buckets of each step and the scale of its loss, None where its gradients are not of one step.
        self._steps: list[tuple[list[_Bucket], float | None] | None] = []

    def attach(self, module: Any) -> str:
        """Observe a DistributedDataParallel module; return why not, "" where it works."""
        if _has_hook(module):
            return "the module has a hook of its own"
        if getattr(module, "_use_python_reducer", False):
            return "compiled code reduces the module's gradients"
        self._hooked = not can_replace_group(module)
        if self._hooked:
            # DDP compares the annotations of a hook, which here are texts; a lambda has none.
            hook = lambda group, bucket: self._reduce(group, bucket)  # noqa: E731, PLW0108
            module.register_comm_hook(module.process_group, hook)
        self._module = ref(module)
        self._size = module.process_group.size()
        self._bytes = int(module._get_ddp_logging_data()["total_parameter_size_bytes"])
        self._own = frozenset(map(id, module.parameters()))
        self._choose()
        return ""

    def detach(self) -> str:
        """Stop observing; return why what was observed is not all, "" where it is."""
        module = self._module()
        if module is None:
            return ""
        self._set_timed(module, False)
        self._module = _no_module
        others = _has_hook(module) and not self._hooked
        return "the module has a hook of its own" if others else ""

    def skip_norms(self) -> None:
        """Take no more gradient norms: each reads all gradients twice."""
        self.norms_every, self._normed = 0, False

    def _choose(self) -> None:
        """Choose whether to observe the step that begins."""
        first, step = self._count < FIRST, self._count - self._restarted
        timed = first or self._timing.has(step)
        if self.norms_every is None:
            self._normed = timed and (first or self._norms.has(step))
        else:
            self._normed = self.norms_every > 0 and self._count % self.norms_every == 0
        timed = self._normed or timed
        if timed is not self._timed and (module := self._module()) is not None:
            self._set_timed(module, timed)

    def _set_timed(self, module: Any, timed: bool) -> None:
        self._timed = timed
        if self._hooked:
            return
        group = module.process_group
        if timed:
            group = _GROUPS[module] = _instrumented_group()(group, self._begun)
        module.reducer._update_process_group(group)

    def _reduce(self, group: Any, bucket: Any) -> Any:
        """Average a bucket over the workers as DDP does, with marks in the steps that are timed."""
        buffer = bucket.buffer()
        buffer.mul_(1.0 / self._size)  # as DDP's own reducer does, and quicker than to divide
        ended = self._begun(buffer) if self._timed else None

        def pass_on(future: Any) -> Any:
            mean = future.value()[0]
            if ended is not None:
                ended(mean)
            return mean

        return group.allreduce([buffer]).get_future().then(pass_on)

    def _begun(self, buffer: Any) -> Callable[[Any], None]:
        """Note a bucket that is ready; return what notes its end."""
        whole = handed = buffer.numel() * buffer.element_size()
        if buffer.is_sparse:
            parts = (buffer._values(), buffer._indices())
            handed = sum(part.numel() * part.element_size() for part in parts)
        norms = self._normed and not buffer.is_sparse
        # DDP has divided it by the number of workers already.
        local = self._square(buffer) if norms else None
        seen = _Bucket(handed, whole, self._clock.now(), local=local)
        self._buckets.append(seen)

        def ended(mean: Any) -> None:
            seen.end = self._clock.now()
            if norms:
                seen.mean = self._square(mean)

        return ended

    def _square(self, values: Any) -> Any:
        begun = time.perf_counter()
        result = _square(values)
        self._reading += time.perf_counter() - begun
        return result

    def expect_updates(self) -> None:
        """Say that `updated` will be called with every update of an optimizer."""
        self._reports_updates = True
        self._scale = None

    def updated(self, optimizer: Any) -> None:
        """Say that an optimizer is about to use its gradients; called from within its pre-hook."""
        if self._scale is None and self._own and self._trains(optimizer):
            self._scale = loss_scale() if self._normed else 1.0

    def _trains(self, optimizer: Any) -> bool:
        if optimizer is not self._optimizer():
            groups = optimizer.param_groups
            self._trained = any(id(p) in self._own for group in groups for p in group["params"][:1])
            self._optimizer = ref(optimizer)
        return self._trained

    def end(self, seconds: float) -> None:
        """End a step, which took so long: the buckets since the last one are its traffic."""
        if not self._own:
            self._steps.append(None)
            return
        scale = self._scale if self._whole else None
        self._steps.append((self._buckets, scale) if self._timed else None)
        self._recent.append(seconds)
        buckets, usual = len(self._buckets), median(self._recent)
        if self._timed and buckets:  # choose how many steps to observe, by what this one cost
            self._timing.settle(usual, buckets * BUCKET_SECONDS)
            if self._normed:
                cost = self._reading + buckets * NORM_SECONDS
                self._norm_seconds = min(self._norm_seconds, cost)
                self._norms.settle(usual, self._norm_seconds)
            self._reading = 0.0
        self._whole = self._scale is not None
        if self._reports_updates:
            self._scale = None
        self._buckets = []
        self._count += 1
        self._choose()

    def restart(self) -> None:
        """Say that counted steps begin: the first is observed, however few they will be."""
        self._restarted = self._count
        self._choose()

    def forget(self) -> None:
        """Leave out the buckets since the last step."""
        self._buckets = []

    def read(self) -> list[StepTraffic | None]:
        """Return the traffic of the steps since the last call, in order; None of unobserved ones."""
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
        local, mean, why = self._squares(done, scale) if times == 1 else (None, None, "")
        volume = float(sum(bucket.bytes for bucket in done))
        return StepTraffic(
            volume, covered_seconds(spans), max(exposed, 0.0), local, mean, times, why
        )

    def _squares(
        self, done: list[_Bucket], scale: float | None
    ) -> tuple[float | None, float | None, str]:
        """Return squared norms of the worker's own and of the mean gradient, or why there are none."""
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


def _has_hook(module: Any) -> bool:
    """Whether a communication hook bypasses a DDP module's process group."""
    return "comm_hook" in module._get_ddp_logging_data()


def _square(values: Any) -> Any:
    """Return the squared norm of a flat tensor, () in float32 or more: half precision overflows."""
    import torch

    flat = values if values.dtype in (torch.float32, torch.float64) else values.float()
    return flat.dot(flat)
