"""Copies of a module on another device that leave the module itself as it was."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from forerun.errors import RequestError
from forerun.workloads.trace.backend import load_torch

# Spread of the random weights where a module that has none must be run for real.
_WEIGHT_SPREAD = 0.02
_UNCOPIED = (TypeError, RuntimeError, AttributeError, ValueError, NotImplementedError)


def meta_copy(module: Any) -> Any:
    """Return a copy of a module on the meta device, in training mode; no weight is read or copied."""
    return _copied(module, _to_meta)


def cpu_copy(module: Any) -> Any:
    """Return a copy of a module on the CPU, in training mode; weights on meta are made up."""
    return _copied(module, _to_cpu)


def unwrapped(module: Any) -> Any:
    """Return the module inside wrappers that compile it or run it in parallel."""
    inner = getattr(module, "_orig_mod", None)
    if inner is not None:
        return unwrapped(inner)
    parallel = load_torch().nn.parallel
    if isinstance(module, parallel.DataParallel | parallel.DistributedDataParallel):
        return unwrapped(module.module)
    return module


def values_on(values: Any, device: str) -> Any:
    """Return inputs on a device, keeping the structure; floats made up for the CPU are random."""
    torch = load_torch()
    convert = _to_meta if device == "meta" else _to_cpu
    return torch.utils._pytree.tree_map_only(torch.Tensor, convert, values)


def refuse_lazy(module: Any) -> None:
    """Raise RequestError for a module with parameters that have no shape yet."""
    lazy = load_torch().nn.parameter.UninitializedTensorMixin
    if any(isinstance(p, lazy) for p in module.parameters()):
        raise RequestError(
            f"trace {type(module).__name__}", "it has lazy parameters without a shape",
            "call it once on an example input before it is traced",
        )  # fmt: skip


def _copied(module: Any, convert: Callable[[Any], Any]) -> Any:
    memo: dict[int, Any] = {}
    for part in module.modules():
        for held in (part._parameters, part._buffers, vars(part)):
            memo.update(_conversions(held, convert, memo))
    try:
        made = copy.deepcopy(module, dict(memo))
    except _UNCOPIED:
        made = _cloned(module, memo)
    return made.train()


def _cloned(module: Any, memo: dict[int, Any]) -> Any:
    """Return a copy of a module that shares the attributes which cannot be copied."""
    if id(module) in memo:
        return memo[id(module)]
    made = memo[id(module)] = object.__new__(type(module))
    for name, value in vars(module).items():
        if name == "_modules":
            copied: Any = {n: None if c is None else _cloned(c, memo) for n, c in value.items()}
        else:
            try:
                copied = copy.deepcopy(value, memo)
            except _UNCOPIED:
                copied = value
        made.__dict__[name] = copied
    return made


def _conversions(
    held: Mapping[str, Any], convert: Callable[[Any], Any], memo: Mapping[int, Any]
) -> dict[int, Any]:
    """Return converted tensors by the identity of the original, as `deepcopy` takes them."""
    torch = load_torch()
    made: dict[int, Any] = {}
    for tensor in held.values():
        if not isinstance(tensor, torch.Tensor) or id(tensor) in memo:
            continue
        moved = convert(tensor)
        if isinstance(tensor, torch.nn.Parameter):
            moved = torch.nn.Parameter(moved, requires_grad=tensor.requires_grad)
        made[id(tensor)] = moved
    return made


def _to_meta(tensor: Any) -> Any:
    made = load_torch().empty_like(tensor, device="meta", requires_grad=False)
    return made.requires_grad_() if _is_learned_input(tensor) else made


def _to_cpu(tensor: Any) -> Any:
    torch = load_torch()
    if not tensor.is_meta:
        moved = tensor.detach().to("cpu", copy=True)
    elif tensor.is_floating_point():
        made = torch.randn(tensor.shape, dtype=torch.float32) * _WEIGHT_SPREAD
        moved = made.to(tensor.dtype)
    else:
        moved = torch.zeros(tensor.shape, dtype=tensor.dtype)
    return moved.requires_grad_() if _is_learned_input(tensor) else moved


def _is_learned_input(tensor: Any) -> bool:
    return bool(tensor.requires_grad and tensor.is_leaf) and not isinstance(
        tensor, load_torch().nn.Parameter
    )
