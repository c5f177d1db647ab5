"""Captures the layers of the zoo's networks into `src/forerun/workloads/zoo/data`.

The networks were once stated by Python functions, up to revision 4ee423a of this repository (those
of torchvision by a trace of torchvision's own modules). `python scripts/capture_zoo.py` takes these
functions from that revision, runs each with a size that records what is computed from it, and
writes what they state. `--check` instead compares torchvision's classifiers with torch itself, at
two image sizes; it needs torch and torchvision.
"""

from __future__ import annotations

import argparse
import builtins
import gzip
import inspect
import json
import math
import operator
import re
import subprocess
import sys
import tempfile
import unittest.mock
from collections import defaultdict
from enum import Enum
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DATA = ROOT / "src/forerun/workloads/zoo/data"
REVISION = "4ee423a"
OPERATORS: dict[str, Any] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv,
    "/": operator.truediv, ">": operator.gt, "min": min, "round": round, "int": int,
}  # fmt: skip
METHODS = (
    "input emit view conv conv_transpose linear batch_norm norm activation add multiply scale bias "
    "pointwise dropout softmax loss pool adaptive_pool mean concat copy upsample flatten channels"
).split()
# Arguments of a layer that follow its name and inputs.
POSITIONAL = {
    "conv": "out kernel stride padding groups bias dilation trainable owned",
    "conv_transpose": "out kernel stride padding", "linear": "out bias owned",
    "batch_norm": "frozen", "norm": "channels", "activation": "function", "scale": "params",
    "bias": "params", "loss": "launches", "pool": "kernel stride padding ceil average",
    "adaptive_pool": "out", "channels": "count",
}  # fmt: skip
EMIT = ("keep_output extra_saved work params weights dims launches reads writes learns").split()


# ---- sizes that record how they are computed ----------------------------------------------------

FORMULAS: list[tuple[Any, ...]] = [()]  # position 0 is the size itself
_KNOWN: dict[tuple[Any, ...], str] = {}


def _record(formula: tuple[Any, ...]) -> str:
    if formula not in _KNOWN:
        _KNOWN[formula] = f"${len(FORMULAS)}"
        FORMULAS.append(formula)
    return _KNOWN[formula]


class Recorded:
    """A number computed from the size; `key` is the position of its formula."""

    key: str

    def __format__(self, spec: str) -> str:
        """Leave a place for the value in a note."""
        return "{" + self.key + "}"


class Condition(Recorded):
    """A comparison that a layer depends on; it holds while layers are recorded."""

    def __init__(self, key: str) -> None:
        self.key = key


def computed(name: str, *arguments: Any) -> Any:
    """Return the result of an operator with its formula, in a simple form where it has one."""
    plain = [float(a) if isinstance(a, float) else int(a) for a in arguments]
    value = OPERATORS[name](*plain)
    keys = [a.key if isinstance(a, Recorded) else a for a in arguments]
    if all(isinstance(v, int) for v in (*plain, value)) and name in ("+", "-", "*", "//"):
        if name == "-" and not isinstance(keys[1], str):
            name, keys[1] = "+", -keys[1]
        if name in ("+", "*") and not isinstance(keys[0], str):
            keys.reverse()
        if not isinstance(keys[1], str):
            before = FORMULAS[int(keys[0][1:])]
            if name in ("+", "*") and before and before[0] == name and type(before[2]) is int:
                keys = [before[1], OPERATORS[name](before[2], keys[1])]
            if keys[1] == (0 if name == "+" else 1):
                return _number(value, keys[0])
    return _number(value, _record((name, *keys)))


def _number(value: float, key: str) -> Any:
    number = (Whole if isinstance(value, int) else Real)(value)
    number.key = key
    return number


def _binary(name: str) -> tuple[Any, Any]:
    return (
        lambda self, other: computed(name, self, other),
        lambda self, other: computed(name, other, self),
    )


class _Arithmetic(Recorded):
    __add__, __radd__ = _binary("+")
    __sub__, __rsub__ = _binary("-")
    __mul__, __rmul__ = _binary("*")
    __floordiv__, __rfloordiv__ = _binary("//")
    __truediv__, __rtruediv__ = _binary("/")

    def __neg__(self) -> Any:
        return self * -1

    def __round__(self, digits: int | None = None) -> Any:
        return computed("round", self)

    def __pow__(self, power: int) -> Any:
        return math.prod([self] * power)


class Whole(_Arithmetic, int):
    """A whole number computed from the size."""

    shifting = False  # while a network of shifted windows is recorded
    last: Condition | None = None

    def __gt__(self, other: Any) -> Any:
        """Return a condition for the count of windows, and what holds for everything else."""
        if Whole.shifting and type(other) is int and other == 1:
            Whole.last = Condition(_record((">", self.key, 1)))
            return Whole.last
        return int(self) > int(other)


class Real(_Arithmetic, float):
    """A number computed from the size."""

    def __int__(self) -> Any:
        """Keep the formula."""
        return computed("int", self)


# ---- recording what a function states -----------------------------------------------------------


def recorder(net: Any, tensor: Any) -> Any:
    """Return a class like the revision's Net that lists the outermost calls of its methods."""

    class Recorder(net):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.calls: list[Any] = []
            self.positions: dict[int, int] = {}
            self.alive: list[Any] = []
            self.inside = False
            self.place = (self.block, self.shard)

        def _tensor(self, op: int, shape: Any) -> Any:
            self._tensors += 1
            return tensor(op, tuple(shape), self._tensors, math.prod(shape))

        def restart(self) -> None:
            super().restart()
            self.calls = [call for call in self.calls if call[0] == "input"]
            self.place = (self.block, self.shard)

    def wrapped(name: str) -> Any:
        original = getattr(net, name)
        if name == "view":
            original = lambda self, x, *shape: tensor(x.op, shape, x.key, x.held)  # noqa: E731

        def method(self: Any, *arguments: Any, **options: Any) -> Any:
            if self.inside:
                return original(self, *arguments, **options)
            self.inside = True
            try:
                output = original(self, *arguments, **options)
            finally:
                self.inside = False
            if self.place != (self.block, self.shard):
                self.place = (self.block, self.shard)
                self.calls.append(("place", self.place, {}))
            bound = inspect.signature(getattr(net, name)).bind(self, *arguments, **options)
            self.calls.append((name, bound.arguments, self.positions))
            self.positions[id(output)] = len(self.calls) - 1
            self.alive.append(output)
            return output

        return method

    for name in METHODS:
        setattr(Recorder, name, wrapped(name))
    return Recorder


def plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, Recorded):
        return value.key
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, bool) or (isinstance(value, float) and value == int(value)):
        return int(value)
    return value


def node(position: int, call: Any, defaults: dict[str, dict[str, Any]]) -> list[Any]:
    """Return one call as `[method, name, inputs, arguments..., options]`."""
    method, given, positions = call
    if method == "place":
        return ["place", "", [], *plain(given)]
    usual = defaults[method]
    given = {**usual, **given}
    tensors = []
    for field in ("x", "a", "b", "inputs", "terms", "parts", "others"):
        value = given.get(field, ())
        tensors += value if isinstance(value, (list, tuple)) else [value]
    name = given.get("name", "")
    back = [position - positions[id(t)] for t in tensors]
    arguments: list[Any] = []
    options: dict[str, Any] = {}
    if method in ("input", "view"):
        arguments = plain(given["shape"])
    elif method == "upsample":
        arguments = plain(given["size"])
    elif method == "emit":
        options = _emitted(given, usual)
    elif method in POSITIONAL:
        fields = POSITIONAL[method].split()
        arguments = [_side(plain(given[field])) for field in fields]
        while fields and arguments[-1] == plain(usual.get(fields[-1], ...)):
            del arguments[-1], fields[-1]
    else:
        for field in ("shape", "reads", "axis", "launches"):
            if given.get(field) != usual.get(field):
                options[field] = plain(given[field])
    if Whole.last is not None and name.endswith((".roll", ".roll_back", ".mask")):
        options["when"] = Whole.last.key
    return [method, name, back, *arguments, *([options] if options else [])]


def _emitted(given: dict[str, Any], usual: dict[str, Any]) -> dict[str, Any]:
    keys = [id(t) for t in given["inputs"]]
    options = {"kind": given["kind"].value, "shape": plain(given["shape"])}
    if given["keep"]:
        options["keep"] = list(dict.fromkeys(keys.index(id(t)) for t in given["keep"]))
    flops = float(given["flops"])
    given["work"] = flops / math.prod(map(int, given["dims"])) if flops else 2.0
    for field in EMIT:
        value = plain(given[field])
        if value != plain(usual.get(field, 2.0)):
            options[field] = value
    return options


def _side(value: Any) -> Any:
    """Return one number where all sides are alike."""
    return value[0] if isinstance(value, list) and len({*value}) == 1 else value


def form(nodes: list[Any], notes: list[str], sparse_params: float) -> dict[str, Any]:
    """Return what holds from a size on, its formulas numbered in the order of their use."""
    order = ["$0"]

    def visit(value: Any) -> None:
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, (list, tuple)):
            for item in value:
                visit(item)
        elif isinstance(value, str):
            for key in re.findall(r"\$\d+", value):
                if key not in order:
                    visit(FORMULAS[int(key[1:])])
                    order.append(key)

    visit([n[3:] for n in nodes])
    visit(notes)
    numbers = {key: f"${number}" for number, key in enumerate(order)}
    text = json.dumps({
        "sizes": [list(FORMULAS[int(key[1:])]) for key in order[1:]], "notes": notes,
        "sparse_params": sparse_params, "nodes": nodes,
    })  # fmt: skip
    found = json.loads(re.sub(r"\$\d+", lambda match: numbers[match[0]], text))
    return {key: value for key, value in found.items() if value}


class Revision:
    """The functions that stated networks up to `REVISION`."""

    def __init__(self, source: Path) -> None:
        sys.path.insert(0, str(source))
        from forerun.errors import RequestError
        from forerun.workloads.zoo import (
            later,
            net,
            sound_rows,
            table_rows,
            timm,
            view_rows,
            vision,
            vision_transformers,
        )

        vision_transformers.min = lambda *sides: (
            computed("min", *sides[:2]) if isinstance(sides[1], Recorded) else builtins.min(*sides)
        )
        self.refused, self.timm, self.later = RequestError, timm, later
        self.net, self.recorder = net.Net, recorder(net.Net, net.Tensor)
        self.defaults = {
            name: {
                p.name: p.default for p in inspect.signature(getattr(net.Net, name)).parameters.values()
                if p.default is not p.empty
            } for name in METHODS
        }  # fmt: skip
        self.rows = [
            *vision._models(), *view_rows.NETWORKS, *sound_rows.NETWORKS, *table_rows.NETWORKS
        ]  # fmt: skip

    def form(self, name: str, emit: Any, size: int) -> dict[str, Any] | None:
        """Return the form of a network at a size, None where that size is refused."""
        Whole.shifting, Whole.last = "swin" in name, None
        net = self.recorder()
        calls, number = [], _number(size, "$0")
        append = list.append

        class Calls(list[Any]):
            def append(self, call: Any) -> None:
                append(self, call)
                calls.append(node(len(calls), call, defaults))

        defaults, net.calls = self.defaults, Calls()
        try:
            notes = emit(net, number)
        except self.refused:
            return None
        if len(net.calls) != len(calls):  # it was stated again without an auxiliary classifier
            calls = [node(i, call, defaults) for i, call in enumerate(net.calls)]
        return form(calls, [str(note) for note in notes], net.sparse_params)

    def network(self, name: str, emit: Any, size: int, thresholds: tuple[int, ...]) -> str:
        """Return a network as one line: its forms, and what its sizes must be a multiple of."""
        multiple = next(d for d in range(1, size + 2) if not size or self._takes(emit, size + d))
        forms = []
        for start, at in thresholds or ((0, size),):
            found = self.form(name, emit, at)
            forms.append(({"from": start} if start else {}) | (found or {}))
        whole = {"name": name} | ({"multiple": multiple} if multiple > 1 else {})
        return json.dumps(whole | {"forms": forms}, separators=(",", ":")) + "\n"

    def _takes(self, emit: Any, size: int) -> bool:
        try:
            emit(self.net(), size)
        except self.refused:
            return False
        return True


def thresholds(name: str) -> tuple[Any, ...]:
    """Return the forms of a network: from which size on, and a size to record it at."""
    if name == "inception-v3":
        return ((0, 224), (299, 299))  # a smaller image has no auxiliary classifier
    if name.startswith("keras-"):
        return ((0, 32), (33, 64), (65, 224))  # as many classes as the usual data set has
    if name.startswith("crossvit") and name.endswith("408"):
        return ((0, 224), (408, 408), (409, 224))  # its second image is 384 pixels wide
    return ()


def write(source: Path) -> None:
    """Write one compressed file for each group, the same bytes for the same networks."""
    revision = Revision(source)
    files = {row["name"]: row["file"] for row in json.loads((DATA / "networks.json").read_text())}
    lines: dict[str, list[str]] = defaultdict(list)
    for row in revision.rows:
        line = revision.network(row.name, row.emit, row.size, thresholds(row.name))
        lines[files[row.name]].append(line)
    for file, names in json.loads((DATA / "timm.json").read_text()).items():
        module = file.removeprefix("timm-").replace("-", "_")
        for layers in dict.fromkeys(layers for layers, *_ in names.values()):
            emit = revision.later(f"timm.{module}", "classifier", layers)
            lines[file].append(revision.network(layers, emit, 224, thresholds(layers)))
    for file, found in lines.items():
        path = DATA / f"{file}.json.gz"
        path.write_bytes(gzip.compress("".join(found).encode(), 9, mtime=0))
        print(f"{path.name}: {len(found)} networks, {path.stat().st_size} bytes")


# ---- comparison with torch ----------------------------------------------------------------------

_LIBRARIES: list[Any] = []  # a library's definitions last as long as it does


def import_torchvision() -> Any:
    """Return torchvision; where its compiled operators are absent their schemas stand in."""
    import torch

    sys.path.append(str(Path(sys.prefix, "torchvision")))  # where `make setup` keeps such a one
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


def build(name: str) -> Any:
    """Return a network of torchvision on the meta device, in training mode."""
    import torch

    models = import_torchvision().models
    options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    # A RegNet's widths are computed with tensors, which need values while it is built.
    device = "cpu" if name.startswith("regnet") else "meta"
    initial = dict.fromkeys(
        ("normal_", "uniform_", "trunc_normal_", "kaiming_uniform_", "kaiming_normal_"),
        lambda tensor, *_, **__: tensor,
    )
    with unittest.mock.patch.multiple(torch.nn.init, **initial), torch.device(device):
        return models.get_model(name, weights=None, **options).to("meta").train()


def measure(name: str, size: int) -> dict[str, float]:
    """Return what torch itself counts: multiply-adds, parameters, elements written by products."""
    import torch

    model = build(name)
    counts = {"macs": 0.0, "activations": 0.0}

    def hook(module: Any, inputs: Any, output: Any) -> None:
        per_element = (
            module.in_features if isinstance(module, torch.nn.Linear)
            else module.weight[0].numel()  # input channels a group x kernel area
        )  # fmt: skip
        counts["macs"] += output.numel() / 2 * per_element
        counts["activations"] += output.numel() / 2

    for module in model.modules():
        if isinstance(module, (torch.nn.Conv2d, torch.nn.Linear)):
            module.register_forward_hook(hook)
    model(torch.zeros(2, 3, size, size, device="meta"))
    return {**counts, "params": float(sum(p.numel() for p in model.parameters()))}


def counted(file: str, name: str, size: int) -> dict[str, float]:
    """Return the same counts of the zoo's network."""
    from forerun.workloads.zoo import replay
    from forerun.workloads.zoo.net import Net

    net = Net()
    replay(net, file, name, size)
    products = [op for op in net.ops if op.dims]
    return {
        "macs": sum(op.flops for op in products) / 2,
        "activations": sum(op.writes for op in products),
        "params": sum(op.params for op in net.ops),
    }


def check() -> int:
    """Print networks of torchvision that differ from torch; return how many."""
    known = {name.replace("_", "-"): name for name in import_torchvision().models.list_models()}
    wrong = 0
    for row in json.loads((DATA / "networks.json").read_text()):
        if row["name"] not in known or row["file"] in ("vit", "swin", "detection"):
            continue
        for size in (299, 331) if row["name"] == "inception-v3" else (224, 160):
            ours = counted(row["file"], row["name"], size)
            theirs = measure(known[row["name"]], size)
            if ours != theirs:
                wrong += 1
                print(f"{row['name']} at {size}: {ours} is not torch's {theirs}")
    print(f"{wrong} differences")
    return wrong


def main() -> int:
    """Write the data files, or compare them with torch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with torch, write nothing")
    if parser.parse_args().check:
        return min(check(), 1)
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "archive", REVISION, "src"], cwd=ROOT, check=True, capture_output=True
        ).stdout
        subprocess.run(["tar", "x", "-C", folder], input=archive, check=True)
        write(Path(folder) / "src")
    return 0


if __name__ == "__main__":
    sys.exit(main())
