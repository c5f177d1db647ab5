"""Networks for images as torchvision defines them, small enough to train on hosts of half a core.

`NAME_32` and `NAME_64`, as `vgg11_32`, are callables for images of 32 x 32 and 64 x 64 pixels: each returns a module
whose output is its loss, and example inputs. VGG's classifier is one layer (its three hold nine tenths of the
weights), transformers are thin, and some ResNets are narrower or shallower than published.

    python benchmarks/architectures.py campaign > benchmarks/architectures.yaml
    python benchmarks/architectures.py check     # one step of each
    python benchmarks/architectures.py graphs    # traces all into the dataset that comes with the package
"""

from __future__ import annotations

import argparse
import gzip
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.zoo_figures import prepare_torchvision
from examples.lab_models import CLASSES, Classifier, images
from forerun import wire
from forerun.tables.datasets import FOLDER
from forerun.workloads.resolve import workload

Made = Callable[..., tuple[nn.Module, tuple[Tensor, Tensor]]]
MODELS = prepare_torchvision().models
SIDES = (32, 64)  # of images, in pixels
BATCHES = {32: [4, 16], 64: [8]}  # of a worker
WORKERS = [1, 2, 4]


def _vgg(name: str) -> Callable[..., nn.Module]:
    def made(num_classes: int) -> nn.Module:
        head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, num_classes))
        return nn.Sequential(getattr(MODELS, name)().features, *head)

    return made


def _resnet(bottleneck: bool, *layers: int, **options: Any) -> Callable[..., nn.Module]:
    block = MODELS.resnet.Bottleneck if bottleneck else MODELS.resnet.BasicBlock
    return lambda num_classes: MODELS.ResNet(block, list(layers), num_classes, **options)


def _known(name: str, **options: Any) -> Callable[..., nn.Module]:
    return lambda num_classes: getattr(MODELS, name)(num_classes=num_classes, **options)


def _vit(**options: Any) -> Callable[..., nn.Module]:
    return lambda num_classes, side: MODELS.VisionTransformer(
        image_size=side, patch_size=8, num_classes=num_classes, **options
    )


def _convnext(*widths: int) -> Callable[..., nn.Module]:
    blocks = [
        MODELS.convnext.CNBlockConfig(width, following, depth)
        for width, following, depth in zip(widths, (*widths[1:], None), (2, 2, 4), strict=True)
    ]
    return _known("ConvNeXt", block_setting=blocks)


# By family and name; one of `_vit` needs the images' side.
FAMILIES: Mapping[str, Mapping[str, Callable[..., nn.Module]]] = {
    "vgg": {name: _vgg(name) for name in ("vgg11", "vgg11_bn", "vgg13", "vgg16_bn")},
    "resnet": {
        "resnet10": _resnet(False, 1, 1, 1, 1), "resnet18": _known("resnet18"),
        "resnet34": _known("resnet34"), "resnet26": _resnet(True, 2, 2, 2, 2),
        "resnet26_half": _resnet(True, 2, 2, 2, 2, width_per_group=32),
        "resnet50": _known("resnet50"),
        "resnext26": _resnet(True, 2, 2, 2, 2, groups=32, width_per_group=4),
    },
    "densenet": {
        "densenet121": _known("densenet121"),
        "densenet_thin": _known(
            "DenseNet", growth_rate=12, block_config=(6, 6, 6), num_init_features=24
        ),
    },
    "mobilenet": {
        "mobilenet_v2": _known("mobilenet_v2"),
        "mobilenet_v2_half": _known("MobileNetV2", width_mult=0.5),
        "mobilenet_v3_small": _known("mobilenet_v3_small"),
        "mobilenet_v3_large": _known("mobilenet_v3_large"),
    },
    "mnasnet": {name: _known(name) for name in ("mnasnet0_5", "mnasnet1_0")},
    "shufflenet": {
        name: _known(name)
        for name in ("shufflenet_v2_x0_5", "shufflenet_v2_x1_0", "shufflenet_v2_x1_5")
    },
    "squeezenet": {name: _known(name) for name in ("squeezenet1_0", "squeezenet1_1")},
    "efficientnet": {name: _known(name) for name in ("efficientnet_b0", "efficientnet_b1")},
    "regnet": {name: _known(name) for name in ("regnet_x_400mf", "regnet_y_400mf", "regnet_x_800mf")},
    "inception": {"googlenet": _known("googlenet", aux_logits=False, init_weights=False)},
    "convnext": {"convnext_thin": _convnext(48, 96, 192)},
    "transformer": {
        "vit_thin": _vit(num_layers=6, num_heads=4, hidden_dim=192, mlp_dim=768),
        "vit_thin_deep": _vit(num_layers=12, num_heads=3, hidden_dim=96, mlp_dim=384),
        "swin_thin": _known(
            "SwinTransformer", patch_size=[2, 2], embed_dim=48, depths=[2, 2, 4],
            num_heads=[2, 4, 8], window_size=[4, 4],
        ),
    },
}  # fmt: skip


def _callable(family: str, name: str, side: int) -> Made:
    """Return what `forerun profile` and `forerun predict` call for a network."""

    def build(batch: int = 16) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
        sized = {"side": side} if name.startswith("vit") else {}
        network = FAMILIES[family][name](num_classes=CLASSES, **sized)
        return Classifier(network), images(batch, 3, side)

    return build


BUILT: Mapping[str, Made] = {
    f"{name}_{side}": _callable(family, name, side)
    for family, networks in FAMILIES.items()
    for name in networks
    for side in SIDES
}
globals().update(BUILT)  # entries of a campaign are attributes


def campaign() -> str:
    """Return the campaign that measures all of them, as YAML."""
    workloads = {
        f"{name}_{side}": {
            "entry": f"benchmarks.architectures:{name}_{side}", "batch_per_worker": list(BATCHES[side]),
        }
        for networks in FAMILIES.values() for name in networks for side in SIDES
    }  # fmt: skip
    spec = {
        "name": "architectures", "device": "architectures-lab", "workloads": workloads,
        "vary": {"workers": WORKERS, "threads": 1},
        "steps": {"warmup": 2, "least": 5, "most": 10, "half_width": "5%", "seconds": "5s"},
        "timeout": "3min",
    }  # fmt: skip
    return yaml.safe_dump(spec, sort_keys=False, default_flow_style=None, width=130)


def check() -> None:
    """Run one step of each network, and print its parameters."""
    for name, build in BUILT.items():
        module, inputs = build(4)
        loss = module(*inputs)
        loss.backward()
        if not torch.isfinite(loss):
            raise ValueError(f"{name}: loss {loss}")
        print(f"{name:24s} {sum(p.numel() for p in module.parameters()) / 1e6:8.2f} M")


def graphs() -> None:
    """Trace each network, as the runs of the dataset train it, and write all beside these."""
    found = {
        name: workload(f"benchmarks.architectures:{name}", optimizer="sgd").with_(name=name) for name in BUILT
    }  # fmt: skip
    path = FOLDER / "architectures-lab.json.gz"
    path.write_bytes(gzip.compress(wire.dumps(found, None).encode(), 9, mtime=0))
    print(f"{path.name}: {len(found)} networks, {path.stat().st_size} bytes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("campaign", "check", "graphs"), nargs="?", default="check")
    what = parser.parse_args().what
    if what == "campaign":
        print(campaign(), end="")
    else:
        {"check": check, "graphs": graphs}[what]()
