"""Captures the layers of torchvision's convolutional classifiers into the zoo's data files.

Needs torch and torchvision (no weights are fetched: networks are built on the meta device). Run
`python scripts/capture_zoo.py` to write src/forerun/workloads/zoo/data, and
`python scripts/capture_zoo.py --check` to compare every network with torch at two image sizes.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import unittest.mock
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

DATA = Path(__file__).parent.parent / "src/forerun/workloads/zoo/data"
FAMILIES: dict[str, tuple[str, ...]] = {
    "alexnet": ("alexnet",),
    "vgg": tuple(f"vgg{n}{bn}" for n in (11, 13, 16, 19) for bn in ("", "_bn")),
    "resnet": (
        *(f"resnet{n}" for n in (18, 34, 50, 101, 152)),
        "wide_resnet50_2", "wide_resnet101_2",
        "resnext50_32x4d", "resnext101_32x8d", "resnext101_64x4d",
    ),
    "densenet": tuple(f"densenet{n}" for n in (121, 161, 169, 201)),
    "googlenet": ("googlenet",),
    "inception": ("inception_v3",),
    "squeezenet": ("squeezenet1_0", "squeezenet1_1"),
    "shufflenet": tuple(f"shufflenet_v2_x{w}" for w in ("0_5", "1_0", "1_5", "2_0")),
    "mobilenet": ("mobilenet_v2", "mobilenet_v3_large", "mobilenet_v3_small"),
    "mnasnet": tuple(f"mnasnet{w}" for w in ("0_5", "0_75", "1_0", "1_3")),
    "efficientnet": (
        *(f"efficientnet_b{n}" for n in range(8)),
        *(f"efficientnet_v2_{s}" for s in "sml"),
    ),
    "regnet": (
        *(f"regnet_{k}_{s}" for k in "xy" for s in (
            "400mf", "800mf", "1_6gf", "3_2gf", "8gf", "16gf", "32gf")),
        "regnet_y_128gf",
    ),
    "convnext": tuple(f"convnext_{s}" for s in ("tiny", "small", "base", "large")),
}  # fmt: skip
BLOCKS = frozenset(
    "BasicBlock Bottleneck InvertedResidual _InvertedResidual MBConv FusedMBConv CNBlock Fire "
    "_DenseLayer ResBottleneckBlock Inception InceptionA InceptionB InceptionC InceptionD "
    "InceptionE".split()
)
LEAVES = frozenset("LayerNorm LayerNorm2d StochasticDepth Permute".split())
ACTIVATIONS = {
    nn.ReLU: "relu", nn.ReLU6: "relu6", nn.SiLU: "silu", nn.GELU: "gelu", nn.Sigmoid: "sigmoid",
    nn.Hardswish: "hardswish", nn.Hardsigmoid: "hardsigmoid",
}  # fmt: skip


def import_torchvision() -> Any:
    """Return torchvision; where its compiled operators are absent their schemas stand in."""
    try:
        import torchvision
    except RuntimeError:
        for name in [n for n in sys.modules if n.startswith("torchvision")]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for operation in ("nms", "qnms"):
            library.define(f"{operation}(Tensor dets, Tensor scores, float iou) -> Tensor")
        _LIBRARIES.append(library)
        import torchvision
    return torchvision


_LIBRARIES: list[Any] = []  # a library's definitions last as long as it does


def build(name: str) -> nn.Module:
    """Return the network on the meta device, in training mode."""
    models = import_torchvision().models
    options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    # A RegNet's widths are computed with tensors, which need values while it is built.
    device = "cpu" if name.startswith("regnet") else "meta"
    with unittest.mock.patch.multiple(nn.init, **_NO_INITIAL_VALUES), torch.device(device):
        return models.get_model(name, weights=None, **options).to("meta").train()


_NO_INITIAL_VALUES = dict.fromkeys(
    ("normal_", "uniform_", "trunc_normal_", "kaiming_uniform_", "kaiming_normal_"),
    lambda tensor, *_, **__: tensor,
)


class _Tracer(fx.Tracer):
    """Keeps whole the modules whose insides depend on shapes."""

    def is_leaf_module(self, m: nn.Module, qualified_name: str) -> bool:
        """Whether a module is recorded as one call."""
        return type(m).__name__ in LEAVES or super().is_leaf_module(m, qualified_name)


class _Capture:
    """Turns a symbolic trace into nodes `[code, name, inputs, attributes...]`."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.graph = _Tracer().trace(model)
        self.nodes: list[list[Any]] = []
        self.where: dict[fx.Node, int] = {}
        self.outputs: list[int] = []

    def run(self) -> None:
        """Fill nodes and outputs."""
        for node in self.graph.nodes:
            if node.op == "placeholder":
                self._append(node, "image", [])
            elif node.op == "output":
                self._output(node.args[0])
            elif node.op == "call_module":
                self._module(node, self.model.get_submodule(node.target))
            elif node.op in ("call_function", "call_method"):
                self._function(node)

    def _append(self, node: fx.Node, code: str, inputs: list[int], *attributes: Any) -> None:
        name = str(node.target) if node.op == "call_module" else node.name
        values = [int(a) if isinstance(a, bool) else a for a in attributes]
        self.where[node] = len(self.nodes)
        self.nodes.append([code, name, inputs, *values])

    def _alias(self, node: fx.Node, source: fx.Node) -> None:
        self.where[node] = self.where[source]

    def _output(self, value: Any) -> None:
        if isinstance(value, fx.Node) and value.op == "call_function" and value not in self.where:
            value = [v for v in (*value.args, *value.kwargs.values()) if isinstance(v, fx.Node)]
        values = [value] if isinstance(value, fx.Node) else list(value)
        self.outputs = [self.where[v] for v in values]

    def _module(self, node: fx.Node, module: nn.Module) -> None:
        inputs = [self.where[a] for a in node.args if isinstance(a, fx.Node)]
        kind = type(module).__name__
        if type(module) in ACTIVATIONS:
            self._append(node, "act", inputs, ACTIVATIONS[type(module)])
        elif kind == "Permute":
            self._append(node, "last" if module.dims[-1] == 1 else "first", inputs)
        elif kind in ("Dropout", "StochasticDepth"):
            if module.p == 0:
                self._alias(node, node.args[0])
            else:
                self._append(node, "drop" if kind == "Dropout" else "depth", inputs)
        elif kind in _MODULES:
            self._append(node, *_MODULES[kind](module, inputs))
        else:
            raise NotImplementedError(f"{kind} in {node.target}")

    def _function(self, node: fx.Node) -> None:
        name = node.target if isinstance(node.target, str) else node.target.__name__
        tensors = [a for a in _flat(node.args) if a in self.where]
        inputs = [self.where[a] for a in tensors]
        if name in ("add", "iadd", "mul", "imul"):
            weight = [a for a in _flat(node.args) if a.op == "get_attr"]
            if weight:
                params = _attribute(self.model, str(weight[0].target)).numel()
                self._append(node, "scale", inputs, params)
            else:
                self._append(node, name[-3:], inputs)
        elif name in _FUNCTIONS:
            self._append(node, *_FUNCTIONS[name](node, inputs))
        elif name == "getitem" and isinstance(node.args[0], fx.Node):
            if node.args[0] in self.where:
                self._alias(node, node.args[0])
        elif name in ("view", "transpose", "contiguous"):
            # A channel shuffle is view, transpose, contiguous, view: one copy.
            if name == "contiguous":
                self._append(node, "copy", inputs)
            else:
                self._alias(node, node.args[0])
        elif name not in ("size", "floordiv", "getattr", "GoogLeNetOutputs", "InceptionOutputs"):
            raise NotImplementedError(name)


def _flat(value: Any) -> Iterator[fx.Node]:
    if isinstance(value, fx.Node):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _flat(item)


def _attribute(model: nn.Module, path: str) -> torch.Tensor:
    value: Any = model
    for part in path.split("."):
        value = getattr(value, part)
    return value


def _side(value: Any) -> Any:
    """Return one number where all sides are alike."""
    if isinstance(value, (tuple, list)):
        return value[0] if len(set(value)) == 1 else list(value)
    return value


def _conv(module: Any, inputs: list[int]) -> list[Any]:
    values = [
        module.out_channels, _side(module.kernel_size), _side(module.stride),
        _side(module.padding), module.groups, int(module.bias is not None),
        _side(module.dilation),
    ]  # fmt: skip
    defaults = [None, None, 1, 0, 1, 0, 1]
    while values[-1] == defaults[-1]:
        values.pop(), defaults.pop()
    return ["conv", inputs, *values]


def _pool(module: Any, inputs: list[int]) -> list[Any]:
    code = "max" if type(module).__name__ == "MaxPool2d" else "avg"
    stride = _side(module.stride) or _side(module.kernel_size)
    values = [_side(module.kernel_size), stride, _side(module.padding), int(module.ceil_mode)]
    return [code, inputs, *values]


def _pool_call(code: str) -> Callable[[fx.Node, list[int]], list[Any]]:
    def emit(node: fx.Node, inputs: list[int]) -> list[Any]:
        names = ("kernel_size", "stride", "padding")
        given = dict(zip(names, node.args[1:], strict=False)) | node.kwargs
        kernel = _side(given["kernel_size"])
        return [code, inputs, kernel, _side(given.get("stride")) or kernel,
                _side(given.get("padding", 0)), int(given.get("ceil_mode", False))]  # fmt: skip

    return emit


_MODULES: dict[str, Callable[[Any, list[int]], list[Any]]] = {
    "Conv2d": _conv,
    "BatchNorm2d": lambda m, i: ["bn", i],
    "LayerNorm2d": lambda m, i: ["ln", i, m.normalized_shape[0]],
    "LayerNorm": lambda m, i: ["ln", i, m.normalized_shape[0]],
    "MaxPool2d": _pool,
    "AvgPool2d": _pool,
    "AdaptiveAvgPool2d": lambda m, i: ["adapt", i, _side(m.output_size)],
    "Linear": lambda m, i: ["linear", i, m.out_features, int(m.bias is not None)],
    "Flatten": lambda m, i: ["flat", i],
}
_FUNCTIONS: dict[str, Callable[[fx.Node, list[int]], list[Any]]] = {
    "flatten": lambda n, i: ["flat", i],
    "cat": lambda n, i: ["cat", i],
    "relu": lambda n, i: ["act", i, "relu"],
    "mean": lambda n, i: ["mean", i],
    "chunk": lambda n, i: ["part", i, n.args[1]],
    "max_pool2d": _pool_call("max"),
    "avg_pool2d": _pool_call("avg"),
    "adaptive_avg_pool2d": lambda n, i: ["adapt", i, _side(n.args[1])],
}


def capture(name: str) -> dict[str, Any]:
    """Return the captured form of one network."""
    model = build(name)
    found = _Capture(model)
    found.run()
    weights = import_torchvision().models.get_model_weights(name)
    plain = getattr(weights, "IMAGENET1K_V1", None)  # regnet_y_128gf has only larger-scale ones
    blocks = sum(type(m).__name__ in BLOCKS for m in model.modules())
    return {
        "size": plain.transforms().crop_size[0] if plain else 224,
        "blocks": blocks,
        "outputs": found.outputs,
        "nodes": json.dumps(found.nodes, separators=(",", ":")),
    }


def measure(name: str, size: int) -> dict[str, float]:
    """Return what torch itself counts: multiply-adds, parameters, elements written by products."""
    model = build(name)
    counts = {"macs": 0.0, "activations": 0.0}

    def hook(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        per_element = (
            module.in_features if isinstance(module, nn.Linear)
            else module.weight[0].numel()  # input channels a group x kernel area
        )  # fmt: skip
        counts["macs"] += output.numel() / 2 * per_element
        counts["activations"] += output.numel() / 2

    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            module.register_forward_hook(hook)
    model(torch.zeros(2, 3, size, size, device="meta"))
    return {**counts, "params": float(sum(p.numel() for p in model.parameters()))}


def write() -> None:
    """Write one compressed file for each family, the same bytes for the same networks."""
    DATA.mkdir(parents=True, exist_ok=True)
    for family, names in FAMILIES.items():
        text = json.dumps({name.replace("_", "-"): capture(name) for name in names})
        path = DATA / f"{family}.json.gz"
        path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
        print(f"{path.name}: {len(names)} networks, {path.stat().st_size} bytes")


def check() -> int:
    """Print networks whose replay differs from torch; return how many."""
    from forerun.workloads.zoo.net import Net
    from forerun.workloads.zoo.replay import captured, replay

    wrong = 0
    for family, names in FAMILIES.items():
        for name in names:
            for size in (299, 331) if family == "inception" else (224, 160):
                net = Net()
                replay(net, captured(family, name.replace("_", "-")), net.input(3, size, size))
                products = [op for op in net.ops if op.dims]
                ours = {
                    "macs": sum(op.flops for op in products) / 2,
                    "activations": sum(op.writes for op in products),
                    "params": sum(op.params for op in net.ops),
                }
                theirs = measure(name, size)
                if any(ours[key] != theirs[key] for key in ours):
                    wrong += 1
                    print(f"{name} at {size}: {ours} is not torch's {theirs}")
    print(f"{wrong} differences")
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with torch, write nothing")
    if parser.parse_args().check:
        sys.exit(min(check(), 1))
    write()
