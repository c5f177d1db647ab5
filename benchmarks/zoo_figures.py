"""The zoo against published figures, and against the same networks traced from torch.

Image networks: parameters and forward multiply-adds of torchvision's own table of weights. Language
models: parameters and FLOPs of a training step by the formula of Narayanan et al. 2021 (section
3.1), at the paper's sequence length of 2,048. Exit code 1 where one is more than 1 % off.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forerun.domain.graph import Phase
from forerun.domain.workload import Workload
from forerun.workloads.zoo import zoo_workload

TOLERANCE = 0.01
# name: parameters, 1e9 multiply-adds forward, side of the image in pixels
IMAGE = {
    "alexnet": (61_100_840, 0.714, 224), "vgg16": (138_357_544, 15.47, 224),
    "resnet18": (11_689_512, 1.814, 224), "resnet50": (25_557_032, 4.089, 224),
    "resnet152": (60_192_808, 11.514, 224), "resnext50-32x4d": (25_028_904, 4.23, 224),
    "wide-resnet50-2": (68_883_240, 11.398, 224), "densenet121": (7_978_856, 2.834, 224),
    "mobilenet-v2": (3_504_872, 0.301, 224), "efficientnet-b0": (5_288_548, 0.386, 224),
    "convnext-tiny": (28_589_128, 4.456, 224), "vit-b-16": (86_567_656, 17.564, 224),
    "swin-t": (28_288_354, 4.491, 224), "squeezenet1-0": (1_248_424, 0.819, 224),
}  # fmt: skip
# name: published parameters (1e9), layers, hidden; vocabulary 51,200, sequences of 2,048
LANGUAGE = {
    "gpt-18.4b": (18.4, 40, 6144), "gpt-39.1b": (39.1, 48, 8192), "gpt-76.1b": (76.1, 60, 10240),
    "gpt-145.6b": (145.6, 80, 12288), "gpt-310.1b": (310.1, 96, 16384),
    "gpt-529.6b": (529.6, 105, 20480), "gpt-1008b": (1008.0, 128, 25600),
    "gpt3-175b": (174.6, 96, 12288),
}  # fmt: skip
TRACED = ("resnet50", "vgg16", "mobilenet_v2", "densenet121", "convnext_tiny", "vit_b_16")


@dataclass(frozen=True)
class Line:
    """One comparison: what was found against what is stated."""

    name: str
    figure: str
    found: float
    stated: float

    @property
    def error(self) -> float:
        """The relative difference."""
        return self.found / self.stated - 1

    def __str__(self) -> str:
        return (
            f"{self.name:18s} {self.figure:34s} {self.found:14.5g} {self.stated:14.5g}"
            f" {100 * self.error:+7.2f} %"
        )


def published() -> list[Line]:
    """Return the zoo's figures beside published ones."""
    lines = []
    for name, (params, gmacs, size) in IMAGE.items():
        workload = zoo_workload(name, image_size=size)
        lines.append(Line(name, "parameters", workload.params, params))
        found = workload.graph.forward_flops / 2e9
        lines.append(Line(name, "forward multiply-adds, 1e9", found, gmacs))
    for name, (billions, layers, hidden) in LANGUAGE.items():
        workload = zoo_workload(name, seq_len=2048, fused_attention=False)
        lines.append(Line(name, "parameters, 1e9", workload.params / 1e9, billions))
        s, v = 2048, 51200 if name != "gpt3-175b" else workload.shape.vocab
        formula = 72 * s * layers * hidden**2 * (1 + s / (6 * hidden) + v / (12 * layers * hidden))
        graph = workload.graph
        step = graph.forward_flops + graph.backward_flops
        lines.append(Line(name, "FLOPs of a sequence, 1e12", step / 1e12, formula / 1e12))
    return lines


_held: list[Any] = []  # torch drops an operator library when its handle is collected


def prepare_torchvision() -> Any:
    """Return torchvision, whether or not its compiled operators fit the installed torch.

    Its CUDA wheels do not load beside a CPU torch; declaring two operators is enough for models.
    `make setup` keeps such a one apart.
    """
    import torch

    sys.path.append(str(Path(sys.prefix, "torchvision")))

    try:
        import torchvision
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"]:
            del sys.modules[name]  # what the failed import left behind
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _held.append(library)
        import torchvision
    return torchvision


def traced() -> list[Line]:
    """Return the zoo's graphs beside the same networks traced from torchvision."""
    import torch

    from forerun.workloads.trace import trace_module

    models = prepare_torchvision().models
    lines = []
    for name in TRACED:
        with torch.device("meta"):
            module, images = getattr(models, name)(), torch.empty(2, 3, 224, 224)
        seen = trace_module(module, (images,), optimizer="sgd", name=name)
        zoo = zoo_workload(name.replace("_", "-"), precision="fp32", optimizer="sgd")
        lines += compared(name, zoo, seen)
    return lines


def compared(name: str, zoo: Workload, seen: Workload) -> list[Line]:
    """Return parameters and FLOPs of both phases of two graphs."""
    pairs = [("parameters, zoo and traced", zoo.params, seen.params)]
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        a, b = (w.graph.total("flops", phase) / 1e9 for w in (zoo, seen))
        pairs.append((f"{phase} GFLOPs, zoo and traced", a, b))
    return [Line(name, figure, a, b) for figure, a, b in pairs]


def main() -> int:
    """Print every comparison; return 1 where one is off by more than the tolerance."""
    lines = published()
    try:
        lines += traced()
    except ImportError as error:
        print(f"traced networks left out: {error}")
    print(f"{'network':18s} {'figure':34s} {'found':>14s} {'stated':>14s}     off")
    for line in lines:
        print(line)
    worst = max(lines, key=lambda line: abs(line.error))
    names = len({line.name for line in lines})
    print(f"networks: {names}; worst: {worst.name}, {worst.figure}, {100 * worst.error:+.2f} %")
    return int(abs(worst.error) > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
