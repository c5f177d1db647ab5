"""Partitioned layers: over real processes they are the single machine's, forward, backward and in training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from forerun.errors import RequestError
from forerun.measure import Steps, Task
from forerun.measure.campaign_file import campaign
from forerun.measure.local import LocalRunner
from forerun.measure.partitioned import _groups, cut
from forerun.measure.recorder import Recorder
from forerun.measure.worker import _run
from tests.forks import printed

PROCESSES = 3
ROOT = Path(__file__).parents[2]
PART = """
import os, sys
sys.path.insert(0, sys.argv[1])
from tests.measure.test_partitioned import _part
_part(int(os.environ["RANK"]), sys.argv[2])
"""


class _Piecewise(nn.Module):
    """Whose forward does more between two layers of its Sequential than that holds."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.body[0](x)
        out: torch.Tensor = self.body[2](hidden - hidden.mean(-1, keepdim=True))
        return out


def _part(rank: int, folder: str) -> None:
    import torch.distributed as dist

    from forerun.measure.partitioned import Partitioned, sizes_of
    from tests.measure.partitioned import SpatialConv2d

    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=PROCESSES)
    made = torch.load(f"{folder}/made.pt")

    def own(tensor: torch.Tensor, dim: int) -> torch.Tensor:
        sizes = sizes_of(tensor.shape[dim], "parts")
        return tensor.split(sizes, dim)[rank].contiguous()

    found = {}
    for name, layer, dim in (
        ("dense", nn.Linear(7, 11), 1),
        ("channels", nn.Conv2d(4, 8, 3, padding=1), 1),
        ("rows", SpatialConv2d(4, 8, 5), 2),
        ("point", SpatialConv2d(4, 8, 1), 2),
    ):
        weight, bias, x, errors = made[name]
        if dim == 1:
            layer.weight.data, layer.bias.data = weight, bias
            layer = Partitioned(layer, parts=sizes_of(x.shape[1], "inputs"))
        else:
            layer.layer.weight.data, layer.layer.bias.data = weight, bias
        x = own(x, dim).requires_grad_()
        y = layer(x)
        y.backward(own(errors, dim))
        found[name] = (y.detach(), x.grad, layer.layer.weight.grad, layer.layer.bias.grad)
    try:
        Partitioned(nn.Linear(7, 2))
    except RequestError as error:
        found["error"] = str(error)
    net, samples = _Piecewise(), torch.ones(2, 4)
    try:
        cut(net, PROCESSES, lambda: net(samples).square().mean())
    except RequestError as error:
        found["piecewise"] = str(error)
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
    printed(PART, PROCESSES, str(ROOT), str(tmp_path))
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
    assert all("its loss changes: what runs between" in one["piecewise"] for one in found)


NETS = '''
import os
import torch
from torch import nn


class Traced(nn.Module):
    """A classifier that keeps the weights of its last forward in a file of its worker."""

    def __init__(self, body, trace):
        super().__init__()
        self.body, self.trace = body, trace

    def forward(self, images, labels):
        if self.trace:
            rank = os.environ["RANK"]
            torch.save([p.detach() for p in self.parameters()], f"{self.trace}-{rank}")
        return nn.functional.cross_entropy(self.body(images), labels)


def net(kind="dense", trace="", apart=False):
    # Of workers that start with weights and inputs apart, the first one's count.
    torch.manual_seed(int(os.environ["RANK"]) if apart else 0)
    labels = torch.tensor([0, 2])
    if kind == "dense":
        body = nn.Sequential(nn.Flatten(), nn.Linear(12, 9), nn.Tanh(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 3))
        return Traced(body, trace), (torch.randn(2, 3, 4), labels)
    norm = nn.BatchNorm2d(7) if kind == "norm" else nn.Identity()
    inner = nn.Sequential(nn.Conv2d(7, 6, 3, padding=2, dilation=2), nn.Tanh(), nn.AvgPool2d(2))
    body = nn.Sequential(
        nn.Conv2d(2, 7, 3, stride=2, padding=1, bias=False), norm, nn.ReLU(), inner,
        nn.Flatten(), nn.Linear(6 * 2 * 2, 5), nn.ReLU(), nn.Linear(5, 3),
    )
    return Traced(body, trace), (torch.randn(2, 2, 8, 8), labels)
'''
MOST = Steps(warmup=1, least=5, most=5)


def test_cut_replicas_train_as_whole_ones_do_and_stay_alike(folder: Path) -> None:
    (folder / "nets.py").write_text(NETS)
    runs = {
        "whole-dense": (1, "dense", 1), "whole-cnn": (1, "cnn", 1), "replicas": (2, "dense", 1),
        "cut-dense": (2, "dense", 2), "cut-cnn": (2, "cnn", 2), "norm": (2, "norm", 2),
        "cut-replicas": (4, "dense", 2),
    }  # fmt: skip
    tasks = [
        Task("nets:net", workers=workers, global_batch=8, threads=1, steps=MOST, settings={
            "kind": kind, "trace": str(folder / name), "learning_rate": 0.5, "partitions": parts,
            "apart": parts > 1})
        for name, (workers, kind, parts) in runs.items()
    ]  # fmt: skip
    made = LocalRunner(folder=folder / "runs").measure_many(tasks)
    found = dict(zip(runs, made, strict=True))
    refused = found.pop("norm")
    assert refused.status == "failed"
    assert "body.1 (BatchNorm2d) with partitions=2" in refused.reason
    assert [m.status for m in found.values()] == ["ok"] * 6, [m.reason for m in found.values()]
    for one in found.values():  # samples that all parts see count once
        assert one.step_mean_seconds is not None
        assert one.samples_per_second == pytest.approx(8 / one.step_mean_seconds)

    def weights(name: str, *ranks: int) -> list[torch.Tensor]:
        parts = [torch.load(folder / f"{name}-{rank}") for rank in ranks]
        return [torch.cat(one) for one in zip(*parts, strict=True)]

    for whole, name, ranks in (
        ("whole-dense", "cut-dense", (0, 1)), ("whole-cnn", "cut-cnn", (0, 1)),
        ("replicas", "cut-replicas", (0, 1)), ("replicas", "cut-replicas", (2, 3)),
    ):  # fmt: skip
        for wanted, given in zip(weights(whole, 0), weights(name, *ranks), strict=True):
            np.testing.assert_allclose(given, wanted, atol=1e-4)
    learned = torch.load(folder / "whole-dense-0")[2], torch.load(folder / "replicas-0")[2]
    assert (learned[0] - learned[1]).abs().max() < 1e-4, "the same samples in each step"
    assert [len(one) for one in torch.load(folder / "cut-dense-0")] == [4, 4, 3, 3, 1, 1]


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    import torch.distributed as dist

    dist.init_process_group("gloo", f"file://{tmp_path}/alone", rank=0, world_size=1)
    yield
    _groups.cache_clear()
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("module", "parts", "words"),
    [
        (nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), 4,
         r"2 \(Linear\) with partitions=4: .*use 3 partitions at most"),
        (nn.Linear(4, 8), 2, r"the module \(Linear\) .* no Linear or Conv2d in a Sequential"),
        (nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8)), 1, r"1 \(LayerNorm\) .*groups=1"),
        (nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 8)), 1, r"0 \(Embedding\)"),
        (nn.Sequential(nn.Conv2d(4, 8, 3), nn.Conv2d(8, 8, 3, groups=2)), 1, r"1 \(Conv2d\)"),
        (nn.Sequential(nn.Linear(4, 8), nn.Softmax(-1), nn.Linear(8, 8)), 1, r"1 \(Softmax\) .*mix"),
        (nn.Sequential(nn.Linear(4, 8), nn.Flatten(), nn.Linear(8, 8)), 1, r"1 \(Flatten\) .*mix"),
        (nn.Sequential(nn.Conv2d(4, 8, 3), nn.Flatten(2), nn.Linear(9, 8)), 1, r"1 \(Flatten\)"),
        (nn.Sequential(nn.Conv2d(4, 8, 3), nn.Linear(8, 8)), 1, r"1 \(Linear\) .*its 8 inputs"),
        (nn.Sequential(nn.Conv2d(4, 8, 3), nn.Flatten(), nn.Linear(9, 8)), 1, r"its 9 inputs"),
        (nn.Sequential(nn.Linear(4, 8), nn.Dropout()), 1, r"1 \(Dropout\)"),
        (nn.Sequential(*[nn.Linear(4, 4)] * 2), 2, "layers share weights"),
        (nn.Sequential(nn.LazyLinear(4)), 1, r"0 \(LazyLinear\) .* made as it is called"),
        (nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 4))), 1, "made as it is called"),
    ],
)  # fmt: skip
def test_what_cannot_be_cut_is_named_with_what_to_do(
    module: nn.Module, parts: int, words: str
) -> None:
    with pytest.raises(RequestError, match=words):
        cut(module, parts, lambda: torch.zeros(()))


@pytest.mark.usefixtures("alone")
def test_several_rows_of_layers_and_nested_ones_are_cut() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Sequential(
                nn.Conv2d(2, 4, 3), nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
            )
            self.classes = nn.Sequential(nn.Linear(16, 6), nn.Dropout(0.0), nn.Linear(6, 2))

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.classes(self.features(images).flatten(1))
            return out

    torch.manual_seed(0)
    net, images = Two(), torch.randn(3, 2, 6, 6)

    def output_and_errors() -> list[torch.Tensor]:
        net.zero_grad()
        y = net(images)
        y.square().sum().backward()
        return [y.detach(), *(p.grad for p in net.parameters() if p.grad is not None)]

    wanted = output_and_errors()
    cut(net, 1, lambda: net(images).square().sum())
    assert "features.0.layer.weight" in net.state_dict()
    for one, other in zip(output_and_errors(), wanted, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"settings": {"partitions": 0}}, "not a whole number from 1; give partitions=1 or more"),
        ({"settings": {"partitions": "2"}}, "not a whole number from 1"),
        ({"workers": 3, "global_batch": 3}, "replicas of 2 workers leave some over; use 2 workers"),
        ({"workers": 1}, "use 2 workers"),
        ({"settings": {"partitions": 2, "sync": "ps-sync"}}, "each worker trains a whole model"),
        ({"entry": "train.py"}, "a script exchanges its activations itself"),
        ({"precision": "fp16", "gpus_per_worker": 1}, "scale their losses apart; use bf16"),
        ({"workers": 4, "global_batch": 3}, "3 on 2 replicas: 1 samples are left over; use 2 or 4"),
        ({"global_batch": 3, "settings": {"partitions": 2, "accumulate": 2}}, "with 3 samples"),
    ],
)  # fmt: skip
def test_requests_that_no_partitions_serve_are_refused(fields: dict[str, Any], words: str) -> None:
    usual = {"entry": "nets:net", "workers": 2, "global_batch": 2, "settings": {"partitions": 2}}
    with pytest.raises(RequestError, match=words):
        Task(**{**usual, **fields})


def test_a_training_function_is_not_cut(folder: Path) -> None:
    task = Task("toys:regression", workers=2, global_batch=4, settings={"partitions": 2})
    with pytest.raises(RequestError, match="partitions=2: toys:regression trains by itself"):
        _run(task, Recorder(task.steps, 0, 2))


def test_the_samples_of_a_campaign_are_those_of_replicas() -> None:
    points = campaign({
        "workloads": {"net": {"entry": "nets:net"}},
        "vary": {"workers": [4], "batch_per_worker": [8], "settings": {"partitions": [1, 2, 4]}},
    }).points  # fmt: skip
    assert [(p.task.global_batch, p.task.batch) for p in points] == [(32, 8), (16, 8), (8, 8)]
    assert [p.asked["partitions"] for p in points] == [1, 2, 4]
