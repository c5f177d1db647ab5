"""Exchange: what processes that talk over a link were measured to take, by size and by their number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from forerun.domain.curves import Curve, sound_numbers

_BY_RANKS = ("all_reduces", "rested")  # fields of an `Exchange`


@dataclass(frozen=True)
class Exchange:
    """What processes meet when they talk over one kind of link.

    Attributes:
        latency_seconds: of each of the 2 (K - 1) steps of an all-reduce among K.
        bytes_per_second: at which a ring carries a buffer, a process and direction.
        call_seconds: of a collective, whatever its size and however many take part.
        busy_seconds_per_byte: of the processor's time that sending, receiving and adding a byte of
            the buffer takes: where the processor computes too, it is taken from the backward pass.
        send_latency_seconds, send_bytes_per_second: of a message from one process to another.
        all_reduces: seconds of one by the bytes of its buffer, for each number of processes that
            was tried, one after the other: the two figures above are their summary.
        rested: as `all_reduces`, of one before which nothing was sent for a while: links that let
            go of so many bytes at once (token buckets) carry these the faster.
    """

    latency_seconds: float
    bytes_per_second: float
    call_seconds: float = 0.0
    busy_seconds_per_byte: float = 0.0
    send_latency_seconds: float = 0.0
    send_bytes_per_second: float = 0.0
    all_reduces: Mapping[int, Curve] = field(default_factory=dict)
    rested: Mapping[int, Curve] = field(default_factory=dict)

    def spared_seconds(self, size: float, ranks: float) -> float:
        """Return by how much an all-reduce is faster before which nothing was sent for a while.

        A link's bucket is as large for many ranks as for few, and for all larger buffers.
        """
        if ranks <= 1 or not self.rested:
            return 0.0
        tried = sorted(self.rested)
        found = []
        for k in tried:
            curve = self.rested[k]
            known = min(max(size, curve.axes[0][0]), curve.axes[0][-1])
            found.append(float(self.all_reduces[k].at(known) - curve.at(known)))
        return max(float(np.interp(ranks, tried, found)), 0.0)

    def all_reduce_seconds(self, size: float, ranks: float) -> float:
        """Return the seconds of an all-reduce of `size` bytes among ranks.

        Straight lines between the numbers of ranks that were tried; beyond them what does not
        depend on the size grows as the steps of a ring, K - 1, and the rest as its volume,
        (K - 1) / K (Patarasuk and Yuan 2009).
        """
        if ranks <= 1:
            return 0.0
        if not self.all_reduces:
            moved = 2.0 * (ranks - 1.0) / ranks * size
            steps = 2.0 * (ranks - 1.0) * self.latency_seconds
            return self.call_seconds + steps + moved / self.bytes_per_second
        tried = sorted(self.all_reduces)
        found = [float(self.all_reduces[k].at(size)) for k in tried]
        if tried[0] <= ranks <= tried[-1]:
            return float(np.interp(ranks, tried, found))
        near = tried[0] if ranks < tried[0] else tried[-1]
        whole = found[tried.index(near)]
        fixed = min(self.all_reduces[near].seconds[0], whole)
        steps = (ranks - 1.0) / (near - 1.0)
        return fixed * steps + (whole - fixed) * steps * near / ranks

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        curves = {
            name: {str(k): c.to_dict() for k, c in getattr(self, name).items()}
            for name in _BY_RANKS
        }
        found = {name: held for name, held in curves.items() if held or name == "all_reduces"}
        return {**{k: v for k, v in vars(self).items() if k not in _BY_RANKS}, **found}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Exchange:
        """Return what `to_dict` wrote. Raises KeyError, TypeError, ValueError or RequestError."""
        values = dict(data)
        curves = {
            name: {int(k): Curve.from_dict(c) for k, c in values.pop(name, {}).items()}
            for name in _BY_RANKS
        }
        if any(ranks < 2 for held in curves.values() for ranks in held):
            raise ValueError("an all-reduce takes two ranks or more")
        if not set(curves["rested"]) <= set(curves["all_reduces"]):
            raise ValueError("rested all-reduces are told beside others of as many ranks")
        given: dict[str, Any] = {**sound_numbers(values), **curves}
        return Exchange(**given)
