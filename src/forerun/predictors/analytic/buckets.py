"""Buckets: which gradients travel together, and how far backward has come when they can.

DistributedDataParallel fills buckets in the order in which gradients come and sends each when it is
full (Li et al. 2020): the last one, with the gradients of a network's first layers, has no backward
left to hide behind.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from forerun.arrays import FloatArray
from forerun.domain.graph import Op, Phase

# What exceeds so many is joined: between the first and the last, where they are cut matters little.
BUCKETS = 6
FIRST_BYTES, NEXT_BYTES = 2.0**20, 25.0 * 2.0**20


def bucket_columns(ops: Sequence[Op], seconds: FloatArray) -> dict[str, FloatArray]:
    """Return `bucket_I_share` of the bytes and `bucket_I_ready`, the share of backward, each (k,).

    seconds: of each operation under k keys, (k, operations). A gradient is there when backward
    has undone its operation and all after it; their forward times say how far that is.
    """
    found = {f"bucket_{i}_{word}": np.ones(len(seconds)) for i in range(BUCKETS)
             for word in ("share", "ready")}  # fmt: skip
    for row, times in enumerate(seconds):
        for i, (share, ready) in enumerate(buckets_of(_arrivals(ops, times))):
            found[f"bucket_{i}_share"][row] = share
            found[f"bucket_{i}_ready"][row] = ready
    return found


def _arrivals(ops: Sequence[Op], times: FloatArray) -> list[tuple[float, float]]:
    """Return (bytes, share of backward) of gradients in the order in which they come."""
    forward = [(op, float(t)) for op, t in zip(ops, times, strict=True)
               if op.phase is Phase.FORWARD]  # fmt: skip
    before, passed = [], 0.0
    for repeat, run in itertools.groupby(forward, key=lambda pair: pair[0].repeat):
        block = list(run)
        for _ in range(repeat):
            for op, seconds in block:
                if op.params > 0:
                    before.append((4.0 * op.params, passed))
                passed += seconds
    whole = passed or 1.0
    return [(size, 1.0 - start / whole) for size, start in reversed(before)]


def buckets_of(
    gradients: Sequence[tuple[float, float]], first: float = FIRST_BYTES, more: float = NEXT_BYTES
) -> list[tuple[float, float]]:
    """Return (share of the bytes, share of backward after which it can go) of `BUCKETS` buckets.

    gradients: (bytes, share of backward after which it is there) in the order in which they come.
    A bucket is closed by the tensor with which it reaches its size: 1 MiB the first, 25 MiB the
    others (DistributedDataParallel's defaults). Buckets that there are not have no share.
    """
    total = sum(size for size, _ in gradients) or 1.0
    closed: list[tuple[float, float]] = []
    held = ready = 0.0
    for size, at in gradients:
        held, ready = held + size, max(ready, at)
        if held >= (more if closed else first):
            closed.append((held / total, ready))
            held = 0.0
    if held > 0:
        closed.append((held / total, ready))
    while len(closed) > BUCKETS:
        least = min(range(len(closed) - 1), key=lambda i: closed[i][0] + closed[i + 1][0])
        closed[least : least + 2] = [
            (closed[least][0] + closed[least + 1][0], closed[least + 1][1])
        ]
    return closed + [(0.0, 1.0)] * (BUCKETS - len(closed))
