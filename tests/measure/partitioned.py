"""Convolutions over rows of images that are divided over processes, with halos of their neighbours' rows.

The cut by space of Yan et al. 2015 (KDD), which forerun's own training does not use.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from forerun.errors import RequestError


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
