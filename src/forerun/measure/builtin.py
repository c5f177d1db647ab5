"""Built-in workloads: what a service may train for anybody: three small networks, and a training on random data.

Each network is `forerun.measure.builtin:NAME`: it returns a module whose output is its loss, and example inputs.
"""

from __future__ import annotations

from typing import Any

from forerun.errors import RequestError

ENTRIES = tuple(f"{__name__}:{name}" for name in ("mlp", "cnn", "transformer", "regression"))
_LARGEST = {"width": 4096, "layers": 64, "samples": 1_000_000}
_LARGEST_SQUARES = 2**24  # width x width x layers: a transformer then has 200 million parameters


def _check(**given: int) -> None:
    for name, value in given.items():
        if type(value) is not int or not 1 <= value <= _LARGEST[name]:
            found = f"no whole number from 1 to {_LARGEST[name]:,}"
            raise RequestError(f"the setting {name}={value!r}", found, "give one")
    if given.get("width", 1) ** 2 * given.get("layers", 1) > _LARGEST_SQUARES:
        raise RequestError("width x width x layers", f"above {_LARGEST_SQUARES:,}", "lower one")


def _loss(body: Any) -> Any:
    """Return a module of the cross entropy of a network's scores: forward(inputs, labels)."""
    from torch import nn

    class Scored(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.body = body

        def forward(self, inputs: Any, labels: Any) -> Any:
            scores = self.body(inputs)
            return nn.functional.cross_entropy(scores.flatten(0, -2), labels.flatten())

    return Scored()


def mlp(width: int = 256, layers: int = 2) -> Any:
    """Return a multilayer perceptron of 784 numbers and 10 classes, and a batch of 8."""
    import torch
    from torch import nn

    _check(width=width, layers=layers)
    inner = [part for _ in range(layers - 1) for part in (nn.Linear(width, width), nn.ReLU())]
    body = nn.Sequential(nn.Linear(784, width), nn.ReLU(), *inner, nn.Linear(width, 10))
    return _loss(body), (torch.rand(8, 784), torch.randint(10, (8,)))


def cnn(width: int = 32, layers: int = 2) -> Any:
    """Return a convolutional network of images of 32 x 32 and 10 classes, and a batch of 8."""
    import torch
    from torch import nn

    _check(width=width, layers=layers)
    shapes = zip([3, *[width] * (layers - 1)], [width] * layers, strict=True)
    inner = [part for a, b in shapes for part in (nn.Conv2d(a, b, 3, padding=1), nn.ReLU())]
    pooled = (nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * width, 10))
    example = torch.rand(8, 3, 32, 32), torch.randint(10, (8,))
    return _loss(nn.Sequential(*inner, *pooled)), example


def transformer(width: int = 128, layers: int = 2) -> Any:
    """Return an encoder of 32 tokens with 1,000 words, and a batch of 8."""
    import torch
    from torch import nn

    _check(width=width, layers=layers)
    layer = (
        nn.TransformerEncoderLayer(width, 1, 4 * width, 0.0, batch_first=True)
        for _ in range(layers)
    )
    body = nn.Sequential(nn.Embedding(1000, width), *layer, nn.Linear(width, 1000))
    return _loss(body), (torch.randint(1000, (8, 32)), torch.randint(1000, (8, 32)))


def regression(job: Any) -> None:
    """Train a network on numbers that follow a law, and report `loss` once an epoch (of an elastic job)."""
    import torch
    from torch import nn

    usual = {"width": 64, "samples": 2048}
    width, samples = (int(job.settings.get(name, usual[name])) for name in usual)
    _check(width=width, samples=samples)
    torch.manual_seed(job.seed)
    inputs = torch.randn(samples, 16)
    data = torch.utils.data.TensorDataset(inputs, inputs.sin().sum(1, keepdim=True))
    model = nn.Sequential(nn.Linear(16, width), nn.Tanh(), nn.Linear(width, 1))
    run = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.02), data)
    for batch, wanted in run:
        loss = (model(batch) - wanted).square().mean()
        run.backward(loss)
        run.step()
        if run.passed(len(data)) and run.rank == 0:
            run.report(loss=loss.detach())
