"""Image classifiers of the zoo: every family of torchvision, at any image size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from forerun.domain.workload import LayerShape, Length
from forerun.workloads.zoo.entry import Entry
from forerun.workloads.zoo.network import UNVERIFIED, Emit, Network, later
from forerun.workloads.zoo.vision_names import aliases

RECIPE = "torchvision reference recipe"


@dataclass(frozen=True, slots=True)
class _Family:
    """How the members of a family are trained, and who says so."""

    epochs: int
    source: str = RECIPE
    optimizer: str = "momentum"
    paper: str = ""
    batch: int = 256


_FAMILIES: dict[str, _Family] = {
    "alexnet": _Family(90, paper="Krizhevsky 2014 (one-tower AlexNet)"),
    "vgg": _Family(90, paper="Simonyan & Zisserman 2015"),
    "resnet": _Family(90, paper="He et al. 2016; Zagoruyko & Komodakis 2016; Xie et al. 2017"),
    "densenet": _Family(90, UNVERIFIED, paper="Huang et al. 2017"),
    "googlenet": _Family(90, UNVERIFIED, paper="Szegedy et al. 2015, with batch normalisation"),
    "inception": _Family(100, UNVERIFIED, "rmsprop", "Szegedy et al. 2016"),
    "squeezenet": _Family(90, RECIPE, paper="Iandola et al. 2016"),
    "shufflenet": _Family(600, RECIPE, paper="Ma et al. 2018", batch=1024),
    "mobilenet-v2": _Family(300, RECIPE, paper="Sandler et al. 2018"),
    "mobilenet-v3": _Family(600, RECIPE, "rmsprop", "Howard et al. 2019", 1024),
    "mnasnet": _Family(600, UNVERIFIED, paper="Tan et al. 2019", batch=1024),
    "efficientnet": _Family(350, UNVERIFIED, "rmsprop", "Tan & Le 2019", 1024),
    "efficientnet-v2": _Family(600, RECIPE, paper="Tan & Le 2021", batch=1024),
    "regnet": _Family(100, RECIPE, paper="Radosavovic et al. 2020", batch=1024),
    "convnext": _Family(600, RECIPE, "adamw", "Liu et al. 2022", 1024),
    "vit": _Family(300, RECIPE, "adamw", "Dosovitskiy et al. 2021", 4096),
    "swin": _Family(300, RECIPE, "adamw", "Liu et al. 2021", 1024),
    "maxvit": _Family(400, RECIPE, "adamw", "Tu et al. 2022", 4096),
}

# data file: names with their published image size and repeated blocks.
_CAPTURED: dict[str, tuple[tuple[str, int, int], ...]] = {
    "alexnet": (
        ("alexnet", 224, 0),
    ),
    "convnext": (
        ("convnext-tiny", 224, 18), ("convnext-small", 224, 36), ("convnext-base", 224, 36),
        ("convnext-large", 224, 36),
    ),
    "densenet": (
        ("densenet121", 224, 58), ("densenet161", 224, 78), ("densenet169", 224, 82),
        ("densenet201", 224, 98),
    ),
    "efficientnet": (
        ("efficientnet-b0", 224, 16), ("efficientnet-b1", 240, 23), ("efficientnet-b2", 288, 23),
        ("efficientnet-b3", 300, 26), ("efficientnet-b4", 380, 32), ("efficientnet-b5", 456, 39),
        ("efficientnet-b6", 528, 45), ("efficientnet-b7", 600, 55),
        ("efficientnet-v2-s", 384, 40), ("efficientnet-v2-m", 480, 57),
        ("efficientnet-v2-l", 480, 79),
    ),
    "googlenet": (
        ("googlenet", 224, 9),
    ),
    "inception": (
        ("inception-v3", 299, 11),
    ),
    "mnasnet": (
        ("mnasnet0-5", 224, 16), ("mnasnet0-75", 224, 16), ("mnasnet1-0", 224, 16),
        ("mnasnet1-3", 224, 16),
    ),
    "mobilenet": (
        ("mobilenet-v2", 224, 17), ("mobilenet-v3-large", 224, 15),
        ("mobilenet-v3-small", 224, 11),
    ),
    "regnet": (
        ("regnet-x-400mf", 224, 22), ("regnet-x-800mf", 224, 16), ("regnet-x-1-6gf", 224, 18),
        ("regnet-x-3-2gf", 224, 25), ("regnet-x-8gf", 224, 23), ("regnet-x-16gf", 224, 22),
        ("regnet-x-32gf", 224, 23), ("regnet-y-400mf", 224, 16), ("regnet-y-800mf", 224, 14),
        ("regnet-y-1-6gf", 224, 27), ("regnet-y-3-2gf", 224, 21), ("regnet-y-8gf", 224, 17),
        ("regnet-y-16gf", 224, 18), ("regnet-y-32gf", 224, 20), ("regnet-y-128gf", 224, 27),
    ),
    "resnet": (
        ("resnet18", 224, 8), ("resnet34", 224, 16), ("resnet50", 224, 16),
        ("resnet101", 224, 33), ("resnet152", 224, 50), ("wide-resnet50-2", 224, 16),
        ("wide-resnet101-2", 224, 33), ("resnext50-32x4d", 224, 16),
        ("resnext101-32x8d", 224, 33), ("resnext101-64x4d", 224, 33),
    ),
    "shufflenet": (
        ("shufflenet-v2-x0-5", 224, 16), ("shufflenet-v2-x1-0", 224, 16),
        ("shufflenet-v2-x1-5", 224, 16), ("shufflenet-v2-x2-0", 224, 16),
    ),
    "squeezenet": (
        ("squeezenet1-0", 224, 8), ("squeezenet1-1", 224, 8),
    ),
    "vgg": (
        ("vgg11", 224, 0), ("vgg11-bn", 224, 0), ("vgg13", 224, 0), ("vgg13-bn", 224, 0),
        ("vgg16", 224, 0), ("vgg16-bn", 224, 0), ("vgg19", 224, 0), ("vgg19-bn", 224, 0),
    ),
}  # fmt: skip

# What follows is stated by builders. Residual networks: repeated blocks.
_RESNETS: dict[str, int] = {
    "resnet26": 8, "resnet200": 66, "resnext101-32x4d": 33, "resnext152-32x4d": 50,
    "resnext101-32x16d": 33, "se-resnext50-32x4d": 16, "se-resnext101-32x4d": 33,
    "se-resnext101-64x4d": 33,
    "se-resnet18": 8, "se-resnet34": 16, "se-resnet50": 16, "se-resnet101": 33, "se-resnet152": 50,
    "resnet18-d": 8, "resnet26-d": 8, "resnet34-d": 16, "resnet50-d": 16, "resnet101-d": 33,
    "resnet152-d": 50, "resnet200-d": 66,
    "resnet50-c": 16, "resnet101-c": 33, "resnet152-c": 50,
    "resnet50-s": 16, "resnet101-s": 33, "resnet152-s": 50,
}  # fmt: skip
_REGNETS: dict[str, int] = {
    "regnet-x-200mf": 13, "regnet-x-600mf": 16, "regnet-x-4-0gf": 23, "regnet-x-6-4gf": 17,
    "regnet-x-12gf": 19, "regnet-y-200mf": 13, "regnet-y-600mf": 15, "regnet-y-4-0gf": 22,
    "regnet-y-6-4gf": 25, "regnet-y-12gf": 19,
}  # fmt: skip
# Vision transformers: layers, width, heads, inner width.
_VITS: dict[str, tuple[int, int, int, int]] = {
    "vit-ti-16": (12, 192, 3, 768),
    "vit-s-16": (12, 384, 6, 1536),
    "vit-s-32": (12, 384, 6, 1536),
    "vit-b-8": (12, 768, 12, 3072),
    "vit-b-16": (12, 768, 12, 3072),
    "vit-b-32": (12, 768, 12, 3072),
    "vit-l-14": (24, 1024, 16, 4096),
    "vit-l-16": (24, 1024, 16, 4096),
    "vit-l-32": (24, 1024, 16, 4096),
    "vit-h-14": (32, 1280, 16, 5120),
}
# Networks of windows: published image size, blocks.
_WINDOWED: dict[str, tuple[int, int]] = {
    "swin-t": (224, 12), "swin-s": (224, 24), "swin-b": (224, 24),
    "swin-v2-t": (256, 12), "swin-v2-s": (256, 24), "swin-v2-b": (256, 24),
    "maxvit-t": (224, 11),
}  # fmt: skip
_TORCHVISION_VITS = frozenset({"vit-b-16", "vit-b-32", "vit-l-16", "vit-l-32"})


def _models() -> Iterator[Network]:
    for data, rows in _CAPTURED.items():
        for name, size, blocks in rows:
            emit = later("replay", "classifier", data, name)
            yield _model(name, data, emit, size, LayerShape(layers=blocks))
    for module, family, depths in (
        ("resnets", "resnet", _RESNETS), ("regnets", "regnet", _REGNETS),
    ):  # fmt: skip
        for name, blocks in depths.items():
            emit = later(module, "classifier", name)
            yield _model(name, family, emit, 224, LayerShape(layers=blocks), UNVERIFIED)
    for name, (layers, hidden, heads, inner) in _VITS.items():
        shape = LayerShape(layers, hidden, heads, heads, inner)
        said = "" if name in _TORCHVISION_VITS else UNVERIFIED
        emit = later("vision_transformers", "classifier", name)
        yield _model(name, "vit", emit, 224, shape, said)
    for name, (size, blocks) in _WINDOWED.items():
        emit = later("vision_transformers", "classifier", name)
        yield _model(name, name.split("-")[0], emit, size, LayerShape(layers=blocks))


def _model(
    name: str, family: str, emit: Emit, size: int, shape: LayerShape, said: str = ""
) -> Network:
    """Return a row; `said` is who says how long it is trained, where not its family's source."""
    usual = _FAMILIES[next(k for k in _BY_LENGTH if name.startswith(k) or family == k)]
    return Network(
        name=name,
        family=family,
        emit=emit,
        size=size,
        source=usual.paper,
        description=f"image classifier, {size} x {size} pixels, 1000 classes",
        shape=shape,
        optimizer=usual.optimizer,
        length=Length("epochs", usual.epochs, said or usual.source),
        notes=_NOTES,
        aliases=aliases(name),
        batch=usual.batch,
    )


_BY_LENGTH = sorted(_FAMILIES, key=len, reverse=True)
_NOTES = ("input_bytes is a usual mean JPEG size, not measured",)
ENTRIES: dict[str, Entry] = {model.name: model.entry() for model in _models()}
