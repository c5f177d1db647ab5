"""Partitioned: layers of one model divided over processes, exact in forward and backward, to be measured.

The layer-wise partitions of Yan et al. 2015 (KDD): neurons or channels of a layer, or rows of an image with
their halos. Processes are those of a torch.distributed group; all have the same samples.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from forerun.errors import RequestError


class _Gathered(torch.autograd.Function):
    """Parts along a dimension become the whole; errors of the whole are summed over processes, and divided."""

    @staticmethod
    def forward(context: Any, part: Tensor, dim: int, sizes: list[int], group: Any) -> Tensor:
        context.dim, context.sizes, context.group = dim, sizes, group
        moved = part.movedim(dim, 0).contiguous()
        # gloo gathers tensors of one size: shorter parts are padded.
        room = moved.new_zeros((max(sizes), *moved.shape[1:]))
        room[: len(moved)] = moved
        found = [torch.empty_like(room) for _ in sizes]
        dist.all_gather(found, room, group=group)
        parts = [one[:size] for one, size in zip(found, sizes, strict=True)]
        return torch.cat(parts).movedim(0, dim)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        whole = gradients[0].contiguous()
        dist.all_reduce(whole, group=context.group)
        rank = dist.get_rank(context.group)
        return whole.split(context.sizes, context.dim)[rank], None, None, None


class _Halo(torch.autograd.Function):
    """Rows of neighbours are put above and below one's own; their errors go back and are added there."""

    @staticmethod
    def forward(context: Any, rows: Tensor, halo: int, group: Any) -> Tensor:
        context.halo, context.group = halo, group
        top, bottom = rows[:, :, :halo].contiguous(), rows[:, :, -halo:].contiguous()
        above, below = _exchanged(top, bottom, group)
        return torch.cat([above, rows, below], dim=2)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        whole, halo = gradients[0], context.halo
        above, below = whole[:, :, :halo].contiguous(), whole[:, :, -halo:].contiguous()
        own = whole[:, :, halo:-halo].clone()
        from_above, from_below = _exchanged(above, below, context.group)
        own[:, :, :halo] += from_above
        own[:, :, -halo:] += from_below
        return own, None, None


def _exchanged(up: Tensor, down: Tensor, group: Any) -> tuple[Tensor, Tensor]:
    """Return what the neighbours above and below sent, zeros where there is none."""
    rank, count = dist.get_rank(group), dist.get_world_size(group)
    above, below = torch.zeros_like(up), torch.zeros_like(down)
    calls = []
    for neighbour, sent, got in ((rank - 1, up, above), (rank + 1, down, below)):
        if 0 <= neighbour < count:
            peer = neighbour if group is None else dist.get_global_rank(group, neighbour)
            calls += [dist.isend(sent, peer, group), dist.irecv(got, peer, group)]
    for call in calls:
        if call is not None:
            call.wait()
    return above, below


def sizes_of(whole: int, what: str, group: Any = None) -> list[int]:
    """Return how many of so many (neurons, channels or rows) each process has. Raises RequestError of too few."""
    count = dist.get_world_size(group)
    if whole < count:
        asked, found = (
            f"{whole} {what} over {count} partitions",
            f"a partition needs one of the {what}",
        )
        raise RequestError(asked, found, f"use {whole} partitions at most")
    return [whole * (n + 1) // count - whole * n // count for n in range(count)]


class PartitionedLinear(nn.Module):
    """A dense layer of which each process has some neurons: inputs gathered, outputs its own part (n, part).

    Args:
        inputs, outputs: of the whole layer. is_gathered: inputs come whole, as a first layer's do.
    """

    def __init__(
        self, inputs: int, outputs: int, group: Any = None, is_gathered: bool = False
    ) -> None:
        super().__init__()
        self.group, self.is_gathered = group, is_gathered
        self.parts = sizes_of(inputs, "neurons", group)
        own = sizes_of(outputs, "neurons", group)[dist.get_rank(group)]
        self.layer = nn.Linear(inputs, own)

    def forward(self, x: Tensor) -> Tensor:
        """Return this process's neurons of x: its part of the inputs, or the whole."""
        whole = x if self.is_gathered else gathered(x, 1, self.parts, self.group)
        return self.layer(whole)


class PartitionedConv2d(nn.Module):
    """A convolution over channels: each process has some output channels, as `PartitionedLinear` neurons."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, group: Any = None, is_gathered: bool = False
    ) -> None:
        super().__init__()
        self.group, self.is_gathered = group, is_gathered
        self.parts = sizes_of(inputs, "channels", group)
        own = sizes_of(outputs, "channels", group)[dist.get_rank(group)]
        self.layer = nn.Conv2d(inputs, own, kernel, padding=kernel // 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return this process's channels of x (n, channels, rows, columns)."""
        whole = x if self.is_gathered else gathered(x, 1, self.parts, self.group)
        return self.layer(whole)


class SpatialConv2d(nn.Module):
    """A convolution over rows of images: each process has a band of them, and borders of its neighbours'.

    Weights are the same everywhere, and their gradients are summed over processes in backward.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, group: Any = None) -> None:
        super().__init__()
        self.group, self.halo = group, kernel // 2
        self.layer = nn.Conv2d(inputs, outputs, kernel)
        for parameter in self.layer.parameters():
            parameter.register_hook(self._summed)

    def forward(self, x: Tensor) -> Tensor:
        """Return this process's rows of x (n, channels, rows, columns). Raises RequestError of too few rows."""
        if x.shape[2] < self.halo:
            found = f"its neighbours need {self.halo} of them"
            todo = f"use partitions of {self.halo} rows or more"
            raise RequestError(f"a partition of {x.shape[2]} rows", found, todo)
        if self.halo:
            x = functional.pad(_Halo.apply(x, self.halo, self.group), (self.halo, self.halo))
        return self.layer(x)

    def _summed(self, gradient: Tensor) -> Tensor:
        whole = gradient.contiguous()
        dist.all_reduce(whole, group=self.group)
        return whole


def gathered(part: Tensor, dim: int, sizes: list[int], group: Any = None) -> Tensor:
    """Return the whole of which each process has a part along a dimension."""
    found: Tensor = _Gathered.apply(part, dim, sizes, group)
    return found
