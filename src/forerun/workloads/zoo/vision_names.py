"""Other names of image classifiers: those of other libraries, papers and tables of runs."""

from __future__ import annotations

import re

_SIZES = {
    "200mf": ("002",), "400mf": ("004",), "600mf": ("006",), "800mf": ("008",),
    "1-6gf": ("016", "1.6gf"), "3-2gf": ("032", "3.2gf"), "4-0gf": ("040", "4.0gf"),
    "6-4gf": ("064", "6.4gf"), "8gf": ("080", "8.0gf"), "12gf": ("120",), "16gf": ("160",),
    "32gf": ("320",),
}  # fmt: skip
_GIVEN: dict[str, tuple[str, ...]] = {
    "resnet50": (
        "resnet-50", "rn50", "resnet50-v1.5", "resnet50v1.5", "mlperf-resnet50",
        "classification-convnets-resnet50v1.5", "classification-rn50v1.5",
    ),
    "resnet18": ("resnet18-pytorch-training-e2e",),
    "resnext101-32x4d": ("resnext-101", "classification-convnets-resnext101-32x4d"),
    "resnext152-32x4d": ("resnext-152",),
    "resnext50-32x4d": ("resnext-50", "resnext50"),
    "resnext101-32x8d": ("resnext101",),
    "se-resnext101-32x4d": ("classification-convnets-se-resnext101-32x4d",),
    "wide-resnet50-2": ("wideresnet50-2",),
    "wide-resnet101-2": ("wideresnet101-2",),
    "inception-v3": ("inceptionv3", "inception3", "tf-inception-v3", "gluon-inception-v3"),
    "googlenet": ("inception-v1",),
    "densenet121": ("tv-densenet121",),
    "squeezenet1-0": ("squeezenet",),
    "mobilenet-v2": ("mobilenetv2", "mobilenetv2-100"),
    "mobilenet-v3-large": (
        "mobilenetv3-large", "mobilenetv3-large-100", "mobilenetv3-large-100-miil",
        "tf-mobilenetv3-large-100",
    ),
    "mobilenet-v3-small": (
        "mobilenetv3-small", "mobilenetv3-small-100", "tf-mobilenetv3-small-100",
    ),
    "mnasnet0-5": ("mnasnet-050",),
    "mnasnet0-75": ("mnasnet-075",),
    "mnasnet1-0": ("mnasnet-100", "mnasnet-b1"),
    "efficientnet-b2": ("efficientnet-b2a",),
    "efficientnet-b3": ("efficientnet-b3a",),
    "vit-b-16": (
        "vit-base", "vit-base-patch16-224", "vit-base-patch16-224-sam", "vit-base-patch16-224-miil",
        "vit-base-patch16-384", "deit-base-patch16-224", "deit-base-patch16-384",
    ),
    "vit-b-32": (
        "vit-base-patch32-224", "vit-base-patch32-224-sam", "vit-base-patch32-384",
    ),
    "vit-b-8": ("vit-base-patch8-224",),
    "vit-s-16": (
        "vit-small", "vit-small-patch16-224", "vit-small-patch16-384", "deit-small-patch16-224",
    ),
    "vit-s-32": ("vit-small-patch32-224", "vit-small-patch32-384"),
    "vit-ti-16": (
        "vit-tiny", "vit-tiny-patch16-224", "vit-tiny-patch16-384", "deit-tiny-patch16-224",
    ),
    "vit-l-14": ("vit-large-patch14-224",),
    "vit-l-16": ("vit-large", "vit-large-patch16-224", "vit-large-patch16-384"),
    "vit-l-32": ("vit-large-patch32-224", "vit-large-patch32-384"),
    "vit-h-14": ("vit-huge", "vit-huge-patch14-224"),
    "swin-t": ("swin-tiny", "swin-tiny-patch4-window7-224"),
    "swin-s": ("swin-small", "swin-small-patch4-window7-224"),
    "swin-b": ("swin-base", "swin-base-patch4-window7-224"),
    "swin-v2-t": ("swinv2-tiny-window8-256",),
    "swin-v2-s": ("swinv2-small-window8-256",),
    "swin-v2-b": ("swinv2-base-window8-256",),
}  # fmt: skip


def aliases(name: str) -> tuple[str, ...]:
    """Return the other names of an image classifier, in order and without repeats."""
    found = [*_GIVEN.get(name, ()), *_spelled(name)]
    return tuple(dict.fromkeys(alias for alias in found if alias != name))


def _spelled(name: str) -> list[str]:
    """Return the names that follow a rule of other libraries."""
    if match := re.fullmatch(r"regnet-([xy])-(.+)", name):
        sizes = (match[2], *_SIZES.get(match[2], ()))
        return [f"regnet{match[1]}-{size}" for size in sizes]
    if match := re.fullmatch(r"efficientnet-v2-([sml])", name):
        base = f"efficientnetv2-{match[1]}"
        return [base, f"tf-{base}", f"tf-{base}-in21ft1k"]
    if re.fullmatch(r"efficientnet-b\d", name):
        return [f"tf-{name}", f"tf-{name}-ap", f"tf-{name}-ns"]
    if match := re.fullmatch(r"(resnet\d+)-([cds])", name):
        plain = [match[1] + "d"] if match[2] == "d" else []
        return [*plain, f"gluon-{match[1]}-v1{match[2]}"]
    if match := re.fullmatch(r"se-(resn.+)", name):
        return [f"se{match[1]}", f"gluon-se{match[1]}"]
    if re.fullmatch(r"resnext\d+-\d+x\d+d", name):
        return [f"{library}-{name}" for library in ("tv", "gluon", "ssl", "swsl")]
    if match := re.fullmatch(r"resnet(\d+)", name):
        libraries = [f"{library}-{name}" for library in ("tv", "ssl", "swsl")]
        return [f"resnet-{match[1]}", f"gluon-{name}-v1b", *libraries]
    if match := re.fullmatch(r"densenet(\d+)", name):
        return [f"densenet-{match[1]}"]
    return []
