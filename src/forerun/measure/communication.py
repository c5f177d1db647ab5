"""Communication: a DDP hook that reduces as DDP does, and times each bucket on its way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forerun.measure.timeline import Clock


@dataclass(frozen=True, slots=True)
class Traffic:
    """Collectives of one step of one worker.

    Attributes:
        bytes: handed to collectives.
        under_way_seconds: time in which at least one of them was under way.
        exposed_seconds: from the end of the local gradient computation, when the last bucket was
            ready, to the end of the last bucket.
        local_sqr, mean_sqr: squared norm of the worker's own gradient and of the mean gradient,
            None in a step whose norms were not taken, or which reduced its gradients several
            times (accumulation without no_sync): what is reduced then holds sums of both kinds.
    """

    bytes: float
    under_way_seconds: float
    exposed_seconds: float
    local_sqr: float | None = None
    mean_sqr: float | None = None


@dataclass(slots=True)
class _Bucket:
    index: int
    bytes: int
    ready: Any
    end: Any = None
    local: Any = None
    mean: Any = None


class Communication:
    """The hook of one DistributedDataParallel module and what it saw, step by step.

    Args:
        clock: marks the moments.
        norms_every: take gradient norms in every so many steps; 0 never.
    """

    def __init__(self, clock: Clock, norms_every: int = 10) -> None:
        self._clock = clock
        self._every = norms_every
        self._count = 0
        self._buckets: list[_Bucket] = []
        self._steps: list[list[_Bucket]] = []

    def attach(self, module: Any) -> None:
        """Reduce the gradients of a DistributedDataParallel module through this hook."""
        # DDP compares the annotations of a hook, which here are texts; a lambda has none.
        hook = lambda group, bucket: self._reduce(group, bucket)  # noqa: E731, PLW0108
        module.register_comm_hook(module.process_group, hook)

    def leave_norms(self) -> None:
        """Take no more gradient norms: each reads all gradients twice."""
        self._every = 0

    def _reduce(self, group: Any, bucket: Any) -> Any:
        """Average a bucket over the workers: what DDP does by itself, with marks."""
        buffer = bucket.buffer()
        seen = _Bucket(bucket.index(), buffer.numel() * buffer.element_size(), self._clock.now())
        self._buckets.append(seen)
        norms = self._every > 0 and self._count % self._every == 0
        if norms:
            seen.local = _square(buffer)
        buffer.mul_(1.0 / group.size())  # as DDP's own reducer does, and quicker than to divide
        work = group.allreduce([buffer])  # what `dist.all_reduce` ends in

        def ended(future: Any) -> Any:
            value = future.value()[0]
            seen.end = self._clock.now()
            if norms:
                seen.mean = _square(value)
            return value

        return work.get_future().then(ended)

    def end(self) -> None:
        """End a step: the buckets since the last one are its traffic."""
        self._steps.append(self._buckets)
        self._buckets = []
        self._count += 1

    def forget(self) -> None:
        """Leave out the buckets since the last step."""
        self._buckets = []

    def read(self) -> list[Traffic]:
        """Return the traffic of the steps that ended since the last call, in order."""
        if self._steps:
            self._clock.settle()
        steps, self._steps = self._steps, []
        return [self._traffic(buckets) for buckets in steps]

    def _traffic(self, buckets: list[_Bucket]) -> Traffic:
        done = [bucket for bucket in buckets if bucket.end is not None]
        if not done:
            return Traffic(0.0, 0.0, 0.0)
        zero = done[0].ready
        spans = [
            (self._clock.seconds(zero, bucket.ready), self._clock.seconds(zero, bucket.end))
            for bucket in done
        ]
        exposed = max(end for _, end in spans) - max(ready for ready, _ in spans)
        local = mean = None
        once = len({bucket.index for bucket in done}) == len(done)
        if once and all(one.local is not None and one.mean is not None for one in done):
            local = sum(float(bucket.local) for bucket in done)
            mean = sum(float(bucket.mean) for bucket in done)
        volume = float(sum(bucket.bytes for bucket in done))
        return Traffic(volume, covered_seconds(spans), max(exposed, 0.0), local, mean)


def _square(values: Any) -> Any:
    """Return the squared norm of a flat tensor, () in float32 or more: half precision overflows."""
    import torch

    wide = values.dtype in (torch.float32, torch.float64)
    flat = values if wide else values.float()
    return flat.dot(flat)


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
