"""Communication: collectives of a DDP module, timed on their way in a sample of its steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, ref

from forerun.measure.looking import looking, may_stand_before
from forerun.measure.sampling import FIRST, Pace, Sample
from forerun.measure.timeline import Clock
from forerun.measure.traffic import Traffic, covered_seconds

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
            from forerun.measure.scaling import loss_scale

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
