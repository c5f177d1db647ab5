"""Partitioned: layers of one model divided over processes by neurons or channels, exact forward and backward.

The layer-wise partitions of Yan et al. 2015 (KDD). The processes of a group have the same samples; a layer gathers
its inputs, and their errors are summed where each part lies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from forerun.errors import RequestError

# Modules that treat each number, or each channel of images, by itself.
_APART = (
    nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Hardswish, nn.Softplus,
    nn.Tanh, nn.Sigmoid, nn.Dropout,
)  # fmt: skip
_OF_IMAGES = (
    nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.Dropout2d,
)  # fmt: skip
_LAYERS = {nn.Linear: ("in_features", "out_features"), nn.Conv2d: ("in_channels", "out_channels")}

_Named = tuple[str, Any]  # a module and its path


class _Gathered(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped here
    """Parts along a dimension become the whole; their errors are summed, or taken as they are where all are alike."""

    @staticmethod
    def forward(
        context: Any, part: Tensor, dim: int, sizes: list[int], group: Any, alike: bool
    ) -> Tensor:
        context.given = dim, sizes, group, alike
        shapes = [list(part.shape) for _ in sizes]
        for shape, size in zip(shapes, sizes, strict=True):
            shape[dim] = size
        return torch.cat(_exchanged([part] * len(sizes), shapes, group), dim)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        dim, sizes, group, alike = context.given
        errors = gradients[0].split(sizes, dim)
        own = errors[dist.get_rank(group)]
        if not alike:  # a reduce-scatter; gloo's own sends as much as an all-reduce
            own = torch.stack(_exchanged(errors, [own.shape] * len(sizes), group)).sum(0)
        return own, None, None, None, None


def _exchanged(sent: Sequence[Tensor], shapes: Sequence[Any], group: Any) -> list[Tensor]:
    """Return what each process sent to this one, of such shapes; `sent` has a tensor for each."""
    flat = torch.cat([tensor.reshape(-1) for tensor in sent])
    counts = [torch.Size(shape).numel() for shape in shapes]
    found = flat.new_empty(sum(counts))
    dist.all_to_all_single(found, flat, counts, [t.numel() for t in sent], group=group)
    return [one.view(s) for one, s in zip(found.split(counts), shapes, strict=True)]


def sizes_of(whole: int, what: str, group: Any = None) -> list[int]:
    """Return how many of so many (neurons, channels or rows) each process has. Raises RequestError of too few."""
    count = dist.get_world_size(group)
    if whole < count:
        asked = f"{whole} {what} over {count} partitions"
        found, todo = f"a partition needs one of the {what}", f"use {whole} partitions at most"
        raise RequestError(asked, found, todo)
    return [whole * (n + 1) // count - whole * n // count for n in range(count)]


class Partitioned(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A dense layer or convolution, cut in place: each process keeps some neurons or channels of it.

    Args:
        layer: the whole one, with the same weights on every process.
        parts: how many of its inputs each process has; None where each has them all.
        gathers: its outputs are made whole on every process, and all go on alike.
    """

    def __init__(
        self, layer: Any, group: Any = None, parts: list[int] | None = None, gathers: bool = False
    ) -> None:
        super().__init__()
        self.layer, self.group, self.parts, self.gathers = layer, group, parts, gathers
        units, self.dim = _LAYERS[type(layer)][1], -3 if isinstance(layer, nn.Conv2d) else -1
        self.sizes = sizes_of(getattr(layer, units), units.removeprefix("out_"), group)
        rank = dist.get_rank(group)
        setattr(layer, units, self.sizes[rank])
        for name, whole in [*layer.named_parameters()]:
            own = whole.detach().split(self.sizes)[rank].clone()
            setattr(layer, name, nn.Parameter(own, whole.requires_grad))

    def forward(self, x: Tensor) -> Tensor:
        """Return this process's part of the outputs (..., part) or (..., part, rows, columns), or all of them."""
        if self.parts is not None:
            x = _Gathered.apply(x, self.dim, self.parts, self.group, False)
        elif x.requires_grad:  # no samples: each process has its part of their errors
            x = x.view_as(x)
            x.register_hook(self._summed)
        y: Tensor = self.layer(x)
        return _Gathered.apply(y, self.dim, self.sizes, self.group, True) if self.gathers else y

    def _summed(self, errors: Tensor) -> Tensor:
        whole = errors.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(whole, group=self.group)
        return whole


def shared(tensor: Tensor) -> Tensor:
    """Return the first worker's tensor, on every worker."""
    one = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.broadcast(one, 0)
    return one


def groups(partitions: int) -> list[Any]:
    """Return this process's groups: the parts of its replica, and its part in all replicas."""
    return _groups(partitions, dist.group.WORLD)


@cache
def _groups(partitions: int, _world: Any) -> list[Any]:
    ranks = range(dist.get_world_size())
    replicas = [list(ranks[n : n + partitions]) for n in ranks[::partitions]]
    alike = [list(ranks[n::partitions]) for n in range(partitions)]
    return [dist.new_subgroups_by_enumeration(each)[0] for each in (replicas, alike)]


def cut(module: nn.Module, partitions: int, loss: Callable[[], Tensor]) -> None:
    """Cut the layers of a module's Sequentials over the workers of each replica, in place; `loss` is of an example.

    Raises RequestError where one cannot be cut, or the loss is no longer that of the whole module.
    """
    for path, one in module.named_modules():
        hooked = _is_layer(one) and one._forward_pre_hooks  # such as old-style spectral norms
        if hooked or any(is_lazy(weight) for weight in one.parameters(recurse=False)):
            raise _refused((path, one), partitions, "its weights are made as it is called")
    chains = _chains(module)
    layers = [named for chain in chains for named in chain if _is_layer(named[1])]
    weights = [id(weight) for _, layer in layers for weight in layer.parameters()]
    if not layers or len(set(weights)) < len(weights):
        found = "layers share weights" if layers else "it has no Linear or Conv2d in a Sequential"
        raise _refused(("the module", module), partitions, found)
    fewest, path, least = min((getattr(m, _LAYERS[type(m)][1]), p, m) for p, m in layers)
    if fewest < partitions:
        found, todo = f"it has {fewest} neurons or channels", f"use {fewest} partitions at most"
        raise _refused((path, least), partitions, found, todo)
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.detach().copy_(shared(tensor))
    module.eval()
    whole = loss().detach()
    fitting = {id(one) for chain in chains for one in _cut_row(module, chain, partitions)}
    for path, one in module.named_modules():
        drops = isinstance(one, nn.modules.dropout._DropoutNd)
        if id(one) not in fitting and (drops or [*one.parameters(recurse=False)]):
            found = (
                "Linear and Conv2d (groups=1) of a Sequential are cut, with what is between them"
            )
            raise _refused((path, one), partitions, found)
    if not torch.allclose(loss().detach(), whole, rtol=1e-3, atol=1e-6):
        found = "its loss changes: what runs between the layers of a Sequential is not all in it"
        raise _refused(("the module", module), partitions, found)
    module.train()


def _cut_row(module: nn.Module, row: list[_Named], partitions: int) -> Iterator[nn.Module]:
    """Cut the layers of a row; yield them and what is between them."""
    before, kind, parts = None, None, None
    last = max((i for i, (_, one) in enumerate(row) if _is_layer(one)), default=-1)
    for i, (path, one) in enumerate(row[: last + 1]):
        if _is_layer(one):
            if before is not None:
                reads = getattr(one, _LAYERS[type(one)][0])
                each, rest = divmod(reads, sum(before.sizes))
                if rest or type(one) is not kind or (each > 1 and kind is type(before.layer)):
                    found = f"its {reads} inputs are not the outputs of the layer before it"
                    raise _refused((path, one), partitions, found)
                parts = [each * size for size in before.sizes]
            before, kind = Partitioned(one, groups(partitions)[0], parts, i == last), type(one)
            parent, _, name = path.rpartition(".")
            setattr(module.get_submodule(parent), name, before)
        elif before is None:
            continue
        elif (
            kind is nn.Conv2d
            and type(one) is nn.Flatten
            and (one.start_dim, one.end_dim) == (1, -1)
        ):
            kind = nn.Linear
        elif type(one) not in (_APART if kind is nn.Linear else _APART + _OF_IMAGES):
            found = "between layers that are cut, it may mix their neurons or channels"
            raise _refused((path, one), partitions, found)
        yield one


def _refused(
    named: _Named, partitions: int, found: str, todo: str = "use partitions=1"
) -> RequestError:
    what = f"{named[0]} ({type(named[1]).__name__}) with partitions={partitions}"
    return RequestError(what, found, todo)


def _chains(module: nn.Module) -> list[list[_Named]]:
    """Return what each Sequential runs in a row, with its path; one inside another is joined to it."""
    row_of: dict[str, list[_Named]] = {}
    for path, one in module.named_modules(remove_duplicate=False):
        row = row_of.get(path.rpartition(".")[0]) if path else None
        if isinstance(one, nn.Sequential) and type(one).forward is nn.Sequential.forward:
            row_of[path] = [] if row is None else row
        elif row is not None:
            row.append((path, one))
    return list({id(row): row for row in row_of.values()}.values())


def _is_layer(one: Any) -> bool:
    return type(one) is nn.Linear or (type(one) is nn.Conv2d and one.groups == 1)
