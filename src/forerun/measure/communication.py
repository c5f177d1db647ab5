"""Communication: collectives of a DDP module, timed on their way in a sample of its steps.

Sampling: which steps are looked at closely, so that looking costs a small share of all steps' time.

Looking: a process group that stands before another one and lets each reduction of gradients be seen.

Traffic: what collectives of steps come to: their volume and time, and the noise of gradients.

Scaling: by what factor the loss was scaled whose gradients an optimizer is about to take.
"""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary, ref

from forerun.measure.timeline import Clock

_DEPTH = (
    24  # callers that are looked through: between a scaler and its optimizer lie a few wrappers
)


def loss_scale() -> float:
    """Return the loss scale of the update under way; 1.0 where no GradScaler does it.

    To be called from an optimizer's pre-hook: whether a scaler does this update, and which, is
    told by who called. The gradients that were reduced before are those of the scaled loss, also
    where `unscale_` was called meanwhile. A loss that is multiplied by hand is not known of: its
    gradients are those of another loss.
    """
    from torch.amp import GradScaler

    code = GradScaler.step.__code__
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_DEPTH):
        if frame is None:
            break
        if frame.f_code is code:
            scaler = frame.f_locals["self"]
            return float(scaler.get_scale()) if scaler.is_enabled() else 1.0
        frame = frame.f_back
    return 1.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """Collectives of one step of one worker.

    Attributes:
        bytes: handed to collectives.
        under_way_seconds: time in which at least one of them was under way.
        exposed_seconds: from the end of the local gradient computation, when the last bucket was
            ready, to the end of the last bucket.
        local_sqr, mean_sqr: squared norm of the worker's own gradient and of the mean gradient,
            of the loss as it was before a GradScaler scaled it. None in a step whose norms were
            not taken, were not finite, or would be of something else: of a step that reduced its
            gradients several times (accumulation without no_sync), which sums both kinds, or
            whose gradients no optimizer took.
        times: how often the gradients were reduced.
        why: why norms that were taken are not told, "" where they are.
    """

    bytes: float
    under_way_seconds: float
    exposed_seconds: float
    local_sqr: float | None = None
    mean_sqr: float | None = None
    times: int = 0
    why: str = ""


def means(traffic: Sequence[Traffic], every: Sequence[Traffic] = ()) -> dict[str, float | None]:
    """Return volume and time of communication in a step, and gradient norms, as means over steps.

    Args:
        traffic: of the steps that are timed.
        every: of all counted steps, whose norms serve where none of the others have any.
    """
    if not any(t.bytes for t in traffic):
        return {"sync_bytes": None, "comm_seconds": None, "local_sqr": None, "mean_sqr": None}
    normed = [t for t in traffic if t.local_sqr is not None] or [
        t for t in every if t.local_sqr is not None
    ]

    def mean(pick: Callable[[Traffic], float | None], among: Sequence[Traffic]) -> float | None:
        return sum(pick(t) or 0.0 for t in among) / len(among) if among else None

    return {
        "sync_bytes": mean(lambda t: t.bytes, traffic),
        "comm_seconds": mean(lambda t: t.under_way_seconds, traffic),
        "local_sqr": mean(lambda t: t.local_sqr, normed),
        "mean_sqr": mean(lambda t: t.mean_sqr, normed),
    }


def with_sync(
    parts: Mapping[str, float],
    traffic: Sequence[Traffic | None],
    each: Sequence[Mapping[str, float]],
    warm: int = 0,
    alone: bool = False,
) -> dict[str, float]:
    """Return a step's parts with exposed communication taken out of backward, where it is known.

    It is the share of backward that it was in the steps that were looked at. These may be few: a
    mean of their own, beside one of backward over all steps, made a step that took long by chance
    outweigh all others, and left no backward.

    Args:
        parts: seconds of each part, as means over steps.
        traffic: of all counted steps, None of those that were not looked at.
        each: the parts of the same steps.
        warm: steps at the beginning that only count where no other was looked at.
        alone: there is one worker, who waits for nobody.
    """
    both = [*zip(traffic, each, strict=False)]
    looked = [(t, own) for t, own in both[warm:] if t] or [(t, own) for t, own in both if t]
    if not parts or not any(t.bytes for t, _ in looked):
        return {**parts, "sync": 0.0} if parts and alone else dict(parts)
    exposed = sum(t.exposed_seconds for t, _ in looked)
    within = sum(own.get("backward", 0.0) for _, own in looked)
    if "backward" not in parts or not within:
        return {**parts, "sync": exposed / len(looked)}
    sync = parts["backward"] * min(exposed / within, 1.0)
    return {**parts, "sync": sync, "backward": parts["backward"] - sync}


def notes(traffic: Sequence[Traffic], alone: bool = False) -> list[str]:
    """Return what a reader of the figures should know of how gradients were reduced.

    Args:
        traffic: of the counted steps that were looked at.
        alone: norms were asked for, of one worker.
    """
    if alone:
        return ["gradient noise is not told: one worker has no second gradient of the same weights"]
    if traffic and not any(t.bytes for t in traffic):
        return [
            "communication is not told apart: the DDP module reduced nothing in the steps that were"
            " looked at"
        ]
    most = max((t.times for t in traffic), default=0)
    if most > 1:
        return [
            f"gradients are reduced {most} times a step: volume and time of communication are of"
            " all of them, and gradient noise is not told; accumulate within no_sync() to reduce once"
        ]
    why = next((t.why for t in traffic if t.why), "")
    if why and all(t.local_sqr is None for t in traffic):
        return [f"gradient noise is not told: {why}"]
    return []


def covered_seconds(spans: list[tuple[float, float]]) -> float:
    """Return how much time is covered by at least one of the spans (start, end)."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return total


def gradient_noise(
    local_sqr: float, mean_sqr: float, workers: int, global_batch: float
) -> tuple[float, float] | None:
    """Return (|G|^2, tr Sigma): squared norm of the true gradient and variance of a sample's.

    Args:
        local_sqr: mean over steps and workers of |g_i|^2, each over global_batch / workers samples.
        mean_sqr: mean over steps of |g|^2, g the mean gradient of a step.
        workers: K; None is returned for one: a single replica has no second gradient of the same
            weights, and keeping the one of the step before would add to the memory measured.
        global_batch: B.

    Both are unbiased, and so may come out below zero where the noise is large: means over many
    steps or runs have to keep such values, or they are too high.

    Source: Pollux (OSDI 2021), as in METHODS 4: E|g_i|^2 = |G|^2 + K tr Sigma / B and
    E|g|^2 = |G|^2 + tr Sigma / B, so that |G|^2 = (K |g|^2 - |g_i|^2) / (K - 1) and
    tr Sigma = (|g_i|^2 - |g|^2) B / (K - 1).
    """
    if workers < 2:
        return None
    sqr = (workers * mean_sqr - local_sqr) / (workers - 1)
    var = (local_sqr - mean_sqr) * global_batch / (workers - 1)
    return sqr, var


# Sees a reduction begin, of the tensor that is handed to it, and returns what sees it end, or None.
See = Callable[[Any], Callable[[Any], None] | None]


def may_stand_before(module: Any) -> bool:
    """Whether another group may stand before a DDP module's own.

    What it takes is no promise of torch, and was tried on processors; elsewhere a hook that torch
    documents does the same, whose cost an accelerator hardly waits for.
    """
    swaps = hasattr(module.reducer, "_update_process_group")
    return swaps and all(one.device.type == "cpu" for one in module.parameters())


def looking(group: Any, see: See) -> Any:
    """Return a process group that does what another one does, and shows its reductions on their way.

    What DDP reduces through it, it reduces as ever: the same tensors, by the same collective of
    the same group, in the same order. Only what DDP's reducer calls is there: allreduce and
    broadcast.

    Args:
        group: the one that does the work.
        see: is called with every floating tensor as it is handed over, on the thread and the
            stream that handed it; what it returns is called with the tensor once it is reduced,
            before anybody else gets it.
    """
    return _kinds()[0](group, see)


@cache
def _kinds() -> tuple[Any, Any]:
    """Return the classes of the process group and of its work; torch is loaded late."""
    import torch.distributed as dist
    from torch.compiler import disable

    class Work(dist.Work):  # type: ignore[misc]  # torch is untyped here
        def __init__(self, inner: Any, future: Any) -> None:
            super().__init__()
            self._inner, self._future = inner, future

        def get_future(self) -> Any:
            return self._future

        def wait(self, timeout: Any = None) -> bool:
            self._future.wait()
            return True

    class Group(dist.ProcessGroup):  # type: ignore[misc]  # torch is untyped here
        def __init__(self, inner: Any, see: See) -> None:
            super().__init__(inner.rank(), inner.size())
            self.inner, self._see = inner, see

        # DDP calls these from within its forward, which may be code that torch.compile traces.
        @disable  # type: ignore[untyped-decorator]  # torch is untyped here
        def broadcast(self, tensors: Any, options: Any) -> Any:
            return self.inner.broadcast(tensors, options)

        @disable  # type: ignore[untyped-decorator]  # torch is untyped here
        def allreduce(self, tensors: Any, options: Any) -> Any:
            # What is not floating is DDP's map of parameters that were used.
            floating = len(tensors) == 1 and tensors[0].is_floating_point()
            ended = self._see(tensors[0]) if floating else None
            work = self.inner.allreduce(tensors, options)
            if ended is None:
                return work

            def pass_on(future: Any) -> Any:
                value = future.value()
                ended(value[0])
                return value

            return Work(work, work.get_future().then(pass_on))

    return Group, Work


# Steps that are all looked at, since nothing is known of their cost yet; warm-up, as a rule.
FIRST = 3
_GOLDEN = 0.6180339887498949  # the share of a circle by which turns spread most evenly
_REMEMBERED = 9  # steps whose time says how long one takes


class Pace:
    """How long a step takes: the median of the last few."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=_REMEMBERED)

    def add(self, seconds: float) -> None:
        """Take note of a step."""
        self._last.append(seconds)

    def seconds(self) -> float:
        """Return seconds of a step, 0 before the first."""
        return median(self._last) if self._last else 0.0


class Sample:
    """A sample of steps, of which each costs something: spread evenly, and the same on every worker.

    Step i is in it where the fractional part of i times the golden ratio lies below the sample's
    share: such steps keep no time with anything that comes round every so many steps, and a
    smaller sample is part of a larger one, so that workers who disagree a little on what a step
    takes look at the same steps nearly always. Step 0 is in every sample.

    Args:
        budget: the share of all steps' time that looking may take.
        least, most: shares of steps that are looked at, whatever it costs.
    """

    def __init__(self, budget: float, least: float, most: float = 1.0) -> None:
        self._budget, self._least, self._most = budget, least, most
        self.share = most

    def settle(self, step_seconds: float, look_seconds: float) -> None:
        """Choose the share by what a step takes, and what a look at it takes more.

        Args:
            step_seconds: of a step; 0 where not known.
            look_seconds: what a look adds to it.
        """
        if step_seconds > 0 and look_seconds > 0:
            wanted = self._budget * step_seconds / look_seconds
            self.share = min(max(wanted, self._least), self._most)

    def has(self, step: int) -> bool:
        """Whether a step, counted from 0, is looked at."""
        return step * _GOLDEN % 1.0 < self.share


# What looking at a bucket takes, at the most: 60 to 100 us in a process by itself
# (`benchmarks/measure_overhead.py --calls`), about twice that where workers compete for cores. A
# slower processor takes longer over it, and so it does over the steps it is a share of.
BUCKET_SECONDS = 2e-4
NORM_SECONDS = 2e-5  # what the two norms of a bucket take beside reading it
TIMING = (0.005, 0.05)  # share of the time that timing collectives may take, and least of the steps
NORMS = (0.002, 0.02, 0.1)  # likewise of norms, and the most of the steps
# A reducer may still know of a group that stood before its own: both live as long as the module.
_GROUPS: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


@dataclass(slots=True)
class _Bucket:
    """A bucket on its way: bytes that are handed over, and those of the gradients they stand for."""

    bytes: int
    whole: int
    ready: Any
    end: Any = None
    local: Any = None
    mean: Any = None


@dataclass(slots=True)
class _Step:
    """What was seen of a step; `scale` is of its loss, None where its gradients are not a step's."""

    buckets: list[_Bucket]
    scale: float | None


def _no_module() -> None:
    """Return what a reference to something that is gone returns."""


class Communication:
    """What goes through one DistributedDataParallel module's process group, in a sample of steps.

    In the steps that are looked at, another process group stands before the module's own (see
    `measure.looking`); in all others DDP works as if nobody measured. It reduces its gradients
    itself in both. On accelerators a communication hook reduces them, as DDP would, and looks in
    those steps alone; it stays with the module.

    Times and volume are of a sample as large as half a percent of the steps' time allows, but of a
    twentieth of the steps at the least, of the first three and of the first that counts: of all, where
    a step takes 40 ms for each of its buckets. Norms are of a sample of that sample.

    Args:
        clock: marks the moments.
        norms_every: take gradient norms in every so many steps, whatever it costs; 0 never; None
            as often as it costs little, in a tenth of the steps at the most.
    """

    def __init__(self, clock: Clock, norms_every: int | None = None) -> None:
        self._clock = clock
        self._every = norms_every
        self._timing, self._norms, self._pace = Sample(*TIMING), Sample(*NORMS), Pace()
        self._norm_seconds = math.inf  # of a step, the least so far: the first reads cold memory
        self._reading = 0.0  # what norms have taken in this step
        self._module: Any = _no_module
        self._optimizer: Any = _no_module  # the last one that was asked about
        self._trained = False
        self._size, self._bytes = 1, 0
        self._own: frozenset[int] = frozenset()  # parameters of the module
        self._count = self._restarted = 0
        self._timed = self._normed = self._hooked = False
        self._told_of_updates = False
        self._scale: float | None = 1.0
        self._whole = True  # no gradients are left over from the step before
        self._buckets: list[_Bucket] = []
        self._steps: list[_Step | None] = []

    @property
    def asked(self) -> bool:
        """Whether somebody asked for norms, and did not leave it to this."""
        return bool(self._every)

    # -- what is looked at --------------------------------------------------------------------

    def attach(self, module: Any) -> str:
        """Look at what a DistributedDataParallel module reduces; return why not, "" where it is so."""
        if self._has_hook(module):
            return "the module has a hook of its own"
        if getattr(module, "_use_python_reducer", False):
            return "compiled code reduces the module's gradients"
        self._hooked = not may_stand_before(module)
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
        """Look no more; return why what was seen is not all, "" where it is."""
        module = self._module()
        if module is None:
            return ""
        self._stand(module, before=False)
        self._module = _no_module
        others = self._has_hook(module) and not self._hooked
        return "the module has a hook of its own" if others else ""

    @staticmethod
    def _has_hook(module: Any) -> bool:
        """Whether somebody else reduces its gradients: then nothing passes through its group."""
        return "comm_hook" in module._get_ddp_logging_data()

    def leave_norms(self) -> None:
        """Take no more gradient norms: each reads all gradients twice."""
        self._every = 0
        self._normed = False

    def _choose(self) -> None:
        """Choose whether to look at the step that begins."""
        first, step = self._count < FIRST, self._count - self._restarted
        timed = first or self._timing.has(step)
        if self._every is None:
            self._normed = timed and (first or self._norms.has(step))
        else:
            self._normed = self._every > 0 and self._count % self._every == 0
        timed = self._normed or timed
        if timed is not self._timed and (module := self._module()) is not None:
            self._stand(module, before=timed)

    def _stand(self, module: Any, before: bool) -> None:
        """Let a group that looks stand before the module's own, or none; a hook stays, and looks or not."""
        self._timed = before
        if self._hooked:
            return
        group = module.process_group
        if before:
            group = _GROUPS[module] = looking(group, self._begun)
        module.reducer._update_process_group(group)

    def _reduce(self, group: Any, bucket: Any) -> Any:
        """Average a bucket over the workers: what DDP does by itself, with marks in the steps that are timed."""
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
        """Take note of a bucket that is ready; return what takes note of its end."""
        whole = buffer.numel() * buffer.element_size()
        handed = whole if not buffer.is_sparse else _held_bytes(buffer)
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

    # -- what a recorder says -----------------------------------------------------------------

    def updates_are_told(self) -> None:
        """Say that `updated` will be called with every update of an optimizer."""
        self._told_of_updates = True
        self._scale = None

    def updated(self, optimizer: Any) -> None:
        """Say that an optimizer is about to take its gradients; called from within its pre-hook."""
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
        self._steps.append(_Step(self._buckets, scale) if self._timed else None)
        self._pace.add(seconds)
        if self._timed and self._buckets:
            self._settle()
        self._whole = self._scale is not None
        if self._told_of_updates:
            self._scale = None
        self._buckets = []
        self._count += 1
        self._choose()

    def _settle(self) -> None:
        """Choose how many steps to look at, by what this one cost."""
        count, step = len(self._buckets), self._pace.seconds()
        self._timing.settle(step, count * BUCKET_SECONDS)
        if self._normed:
            self._norm_seconds = min(self._norm_seconds, self._reading + count * NORM_SECONDS)
            self._norms.settle(step, self._norm_seconds)
        self._reading = 0.0

    def restart(self) -> None:
        """Say that counted steps begin: the first is looked at, however few they will be."""
        self._restarted = self._count
        self._choose()

    def forget(self) -> None:
        """Leave out the buckets since the last step."""
        self._buckets = []

    def read(self) -> list[Traffic | None]:
        """Return the traffic of the steps that ended since the last call, in order.

        It is None of steps that were not looked at.
        """
        if self._steps:
            self._clock.settle()
        steps, self._steps = self._steps, []
        return [None if step is None else self._traffic(step) for step in steps]

    def _traffic(self, step: _Step) -> Traffic:
        done = [bucket for bucket in step.buckets if bucket.end is not None]
        if not done:
            return Traffic(0.0, 0.0, 0.0)
        zero = done[0].ready
        spans = [
            (self._clock.seconds(zero, bucket.ready), self._clock.seconds(zero, bucket.end))
            for bucket in done
        ]
        exposed = max(end for _, end in spans) - max(ready for ready, _ in spans)
        volume = float(sum(bucket.bytes for bucket in done))
        whole = sum(bucket.whole for bucket in done)
        times = max(round(whole / self._bytes), 1) if self._bytes else 1
        local, mean, why = self._squares(done, step.scale) if times == 1 else (None, None, "")
        under_way = covered_seconds(spans)
        return Traffic(volume, under_way, max(exposed, 0.0), local, mean, times, why)

    def _squares(
        self, done: list[_Bucket], scale: float | None
    ) -> tuple[float | None, float | None, str]:
        """Return squared norms of the worker's own and of the mean gradient, or why they are not told."""
        if all(one.local is None for one in done):
            return None, None, ""
        if any(one.local is None or one.mean is None for one in done):
            return None, None, "some gradients are sparse"
        if not scale:
            return None, None, "no optimizer of torch took the gradients of each step"
        local = sum(float(one.local) for one in done) * (self._size / scale) ** 2
        mean = sum(float(one.mean) for one in done) / scale**2
        if not (math.isfinite(local) and math.isfinite(mean)):
            return None, None, "gradients are not finite"
        return local, mean, ""


def _held_bytes(values: Any) -> int:
    """Return the bytes of what a sparse tensor holds, and of its places."""
    parts = (values._values(), values._indices())
    return sum(int(part.numel() * part.element_size()) for part in parts)


def _square(values: Any) -> Any:
    """Return the squared norm of a flat tensor, () in float32 or more: half precision overflows."""
    import torch

    wide = values.dtype in (torch.float32, torch.float64)
    flat = values if wide else values.float()
    return flat.dot(flat)
