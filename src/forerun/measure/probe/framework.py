"""Framework: what a training step costs beside its operations, and what an optimizer's step costs.

A chain of operations on a few numbers is nothing but calls: what it takes beyond the bare calls is
the framework's (modules, the recording of a graph, the walk back through it).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forerun.measure.probe.clock import Clock

LINKS = 24
_BATCHES = (4, 32)
OPTIMIZERS = ("sgd", "momentum", "adam", "adamw")
_FEW, _MANY = 16, 1_000_000


def framework_costs(torch: Any, device: str, clock: Clock) -> dict[str, float]:
    """Return seconds by the names of `domain.measured.Measured`."""
    x = torch.randn(4, 4, device=device)
    relu = clock.time(lambda: torch.relu(x)).seconds
    gradient = torch.ops.aten.threshold_backward.default
    back = clock.time(lambda: gradient(x, x, 0)).seconds
    chain = torch.nn.Sequential(*(torch.nn.ReLU() for _ in range(LINKS)))
    forward, backward = _phases(torch, chain, x, clock)
    forward_call = forward / LINKS - relu
    backward_call = backward / LINKS - back
    layers = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(LINKS))).to(device)
    _, backward = _phases(torch, layers, x, clock)
    product = clock.time(lambda: x.mm(x)).seconds
    bias = clock.time(lambda: x.sum(0, keepdim=True)).seconds
    # Each layer goes back through one operation of autograd: two products and a sum.
    own = backward / LINKS - 2.0 * product - bias - backward_call
    empty = torch.nn.Linear(4, 4).to(device)
    forward, backward = _phases(torch, empty, x, clock)
    return {
        "forward_call_seconds": max(forward_call, 0.0),
        "backward_call_seconds": max(backward_call, 0.0),
        "gradient_seconds": max(own / 2.0, 0.0),
        "step_seconds": max(
            forward + backward - forward_call - backward_call - 3.0 * product - bias - own, 0.0
        ),
    }


def loader_costs(torch: Any, clock: Clock) -> dict[str, float]:
    """Return what the framework's loader takes for a batch, and more for each sample in it."""
    few, many = (_batch(torch, size, clock) for size in _BATCHES)
    each = max((many - few) / (_BATCHES[1] - _BATCHES[0]), 0.0)
    return {"batch_seconds": max(few - _BATCHES[0] * each, 0.0), "sample_seconds": each}


def _batch(torch: Any, size: int, clock: Clock) -> float:
    """Return seconds in which a loader hands out a batch of so many samples, made before."""
    count = 16 * size
    data = torch.utils.data.TensorDataset(torch.randn(count, 64), torch.zeros(count))
    loader = torch.utils.data.DataLoader(data, batch_size=size, shuffle=True)

    def epoch() -> None:
        for _ in loader:
            pass

    return clock.time(epoch).seconds / 16


def _phases(torch: Any, module: Any, x: Any, clock: Clock) -> tuple[float, float]:
    """Return seconds of a module's forward, and of all that its backward adds."""

    def forward() -> Any:
        return module(x)

    def step() -> None:
        module.zero_grad()
        module(x).sum().backward()

    x = x.clone().requires_grad_()
    ahead = clock.time(forward).seconds
    return ahead, clock.time(step).seconds - ahead


def optimizer_costs(
    torch: Any, device: str, clock: Clock, names: Sequence[str] = OPTIMIZERS
) -> dict[str, list[float]]:
    """Return seconds (a step, a tensor, a parameter) of each optimizer's update.

    There is none of those that no time is left for.
    """
    found = {}
    for name in names:
        if clock.is_over:
            break
        found[name] = _update(torch, name, device, clock)
    return found


def _update(torch: Any, name: str, device: str, clock: Clock) -> list[float]:
    one = _stepped(torch, name, [4], device, clock)
    few = _stepped(torch, name, [4] * _FEW, device, clock)
    tensor = max((few - one) / (_FEW - 1), 0.0)
    step = max(one - tensor, 0.0)
    sizes = [_MANY // 8] * 8
    many = _stepped(torch, name, sizes, device, clock)
    return [step, tensor, max((many - step - 8 * tensor) / sum(sizes), 1e-13)]


def _stepped(torch: Any, name: str, sizes: list[int], device: str, clock: Clock) -> float:
    """Return seconds of zeroing gradients and updating parameters of these sizes.

    Gradients are taken away and put back, as a step's backward makes new ones.
    """
    parameters = [torch.nn.Parameter(torch.randn(n, device=device)) for n in sizes]
    gradients = [torch.randn_like(parameter) for parameter in parameters]
    made = {
        "sgd": lambda: torch.optim.SGD(parameters, lr=1e-3),
        "momentum": lambda: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9),
        "adam": lambda: torch.optim.Adam(parameters, lr=1e-3),
        "adamw": lambda: torch.optim.AdamW(parameters, lr=1e-3),
    }
    optimizer = made[name]()

    def step() -> None:
        optimizer.zero_grad()
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()

    return clock.time(step).seconds
