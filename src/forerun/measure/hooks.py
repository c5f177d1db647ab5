"""Hooks: torch tells where a module's forward, its backward and an optimizer's update begin."""

from __future__ import annotations

import gc
from collections.abc import Container, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forerun.measure.recorder import Recorder


def watch_module(recorder: Recorder, model: Any) -> list[Any]:
    """Let a module say when forward and backward begin, and time its collectives if it has any.

    Returned are the handles by which its hooks are removed.

    Forward lasts until gradients reach the module's output, so that the loss is part of it;
    backward lasts until the optimizer's update, a next forward or the end of the step.
    """
    import torch

    def forward_begins(module: Any, args: Any) -> None:
        if torch.is_grad_enabled():
            recorder.switch("forward")

    def backward_begins(gradient: Any) -> None:
        recorder.switch("backward")

    def forward_ends(module: Any, args: Any, output: Any) -> None:
        if torch.is_grad_enabled():
            tensor = _with_gradient(output)
            if tensor is not None:
                tensor.register_hook(backward_begins)

    if _is_ddp(model):
        recorder.reduce_through(model)
    return [
        model.register_forward_pre_hook(forward_begins),
        model.register_forward_hook(forward_ends),
    ]


def _is_ddp(model: Any) -> bool:
    from torch.nn.parallel import DistributedDataParallel

    return isinstance(model, DistributedDataParallel)


def _with_gradient(output: Any) -> Any:
    """Return the first tensor of an output that gradients flow back to, None where there is none."""
    if hasattr(output, "requires_grad"):
        return output if output.requires_grad else None
    if hasattr(output, "values"):
        output = list(output.values())
    if isinstance(output, list | tuple):
        return next((t for t in map(_with_gradient, output) if t is not None), None)
    return None


def watch_trained(recorder: Recorder, optimizer: Any) -> None:
    """Watch what an optimizer trains, in code that is run unchanged and says nothing of it.

    That is the DDP module; where there is none, each of the modules that hold most of the
    optimizer's parameters: a model and whatever merely wraps it hold the same.
    """
    modules = _modules()
    own = {id(p): p.numel() for group in optimizer.param_groups for p in group["params"]}
    ddp = _ddp_of(own, modules)
    if ddp is not None:
        recorder.watch(ddp)
        return
    held = [sum(own.get(id(p), 0) for p in module.parameters()) for module in modules]
    most = max(held, default=0)
    # What torch.compile has taken in is called from compiled code, which no hook may break.
    inner = {id(getattr(module, "_orig_mod", None)) for module in modules}
    for module, count in zip(modules, held, strict=True):
        if count == most and most and id(module) not in inner:
            recorder.watch(module)


def find_ddp(model: Any) -> Any:
    """Return the DistributedDataParallel module that trains a model, None where none does."""
    return _ddp_of({id(parameter) for parameter in model.parameters()}, _modules())


def _ddp_of(own: Container[int], modules: Iterable[Any]) -> Any:
    """Return the first DDP module that holds one of some parameters, told by their ids."""
    ddps = (module for module in modules if _is_ddp(module))
    return next((one for one in ddps if any(id(p) in own for p in one.parameters())), None)


def _modules() -> list[Any]:
    """Return all modules of this process."""
    import torch

    return [thing for thing in gc.get_objects() if issubclass(type(thing), torch.nn.Module)]


class OptimizerHooks:
    """Marks every optimizer's update; where nobody says where a step ends, it ends with one.

    Args:
        recorder: is told.
        stop: called in the place where it is enough; only for code that is run unchanged.
    """

    def __init__(self, recorder: Recorder, stop: Any = None) -> None:
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        self._recorder = recorder
        self._stop = stop
        self._leader: Any = None
        recorder.updates_are_told()
        self._handles = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        ]

    def remove(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._recorder.updated(optimizer)
        self._recorder.switch("optimizer")

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._recorder.switch("")
        if self._recorder.explicit or self._stop is None:
            return
        if self._leader is None:
            self._leader = optimizer
            watch_trained(self._recorder, optimizer)
            self._recorder.begin()
            self._recorder.resume()
        elif optimizer is self._leader and self._recorder.step():
            self._stop()
