"""Partitioned layers: over real processes they are the single machine's, forward and backward."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import multiprocessing, nn

from forerun.errors import RequestError

PROCESSES = 3


def _part(rank: int, folder: str) -> None:
    import torch.distributed as dist

    from tests.measure import partitioned as p

    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=PROCESSES)
    made = torch.load(f"{folder}/made.pt")

    def own(tensor: torch.Tensor, dim: int) -> torch.Tensor:
        sizes = p.sizes_of(tensor.shape[dim], "parts")
        return tensor.split(sizes, dim)[rank].contiguous()

    found = {}
    for name, layer, dim in (
        ("dense", p.PartitionedLinear(7, 11), 1),
        ("channels", p.PartitionedConv2d(4, 8, 3), 1),
        ("rows", p.SpatialConv2d(4, 8, 5), 2),
        ("point", p.SpatialConv2d(4, 8, 1), 2),
    ):
        weight, bias, x, errors = made[name]
        whole = name in ("rows", "point")
        layer.layer.weight.data = weight if whole else own(weight, 0)
        layer.layer.bias.data = bias if whole else own(bias, 0)
        x = own(x, dim).requires_grad_()
        y = layer(x)
        y.backward(own(errors, dim))
        found[name] = (y.detach(), x.grad, layer.layer.weight.grad, layer.layer.bias.grad)
    try:
        p.PartitionedLinear(7, 2)
    except RequestError as error:
        found["error"] = str(error)
    torch.save(found, f"{folder}/found-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def test_outputs_and_gradients_are_those_of_the_whole_layer(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = {
        "dense": (nn.Linear(7, 11), (5, 7), 1),
        "channels": (nn.Conv2d(4, 8, 3, padding=1), (2, 4, 9, 6), 1),
        "rows": (nn.Conv2d(4, 8, 5, padding=2), (2, 4, 11, 6), 2),
        "point": (nn.Conv2d(4, 8, 1), (2, 4, 11, 6), 2),
    }
    made, wanted = {}, {}
    for name, (layer, shape, _) in layers.items():
        x = torch.randn(shape, requires_grad=True)
        y = layer(x)
        errors = torch.randn_like(y)
        y.backward(errors)
        made[name] = (layer.weight.detach(), layer.bias.detach(), x.detach(), errors)
        wanted[name] = (y.detach(), x.grad, layer.weight.grad, layer.bias.grad)
    torch.save(made, tmp_path / "made.pt")
    multiprocessing.spawn(_part, (str(tmp_path),), PROCESSES)
    found = [torch.load(tmp_path / f"found-{rank}.pt") for rank in range(PROCESSES)]
    for name, (_, _, dim) in layers.items():
        y, x, weight, bias = wanted[name]
        parts = [one[name] for one in found]
        np.testing.assert_allclose(torch.cat([part[0] for part in parts], dim), y, atol=1e-5)
        np.testing.assert_allclose(torch.cat([part[1] for part in parts], dim), x, atol=1e-5)
        if dim == 1:
            weight_parts = [torch.cat([part[i] for part in parts]) for i in (2, 3)]
            np.testing.assert_allclose(weight_parts[0], weight, atol=1e-5)
            np.testing.assert_allclose(weight_parts[1], bias, atol=1e-5)
        for part in parts if dim == 2 else ():
            np.testing.assert_allclose(part[2], weight, atol=1e-5)
            np.testing.assert_allclose(part[3], bias, atol=1e-5)
    assert all("use 2 partitions at most" in one["error"] for one in found)
