"""Rows of networks that see: detectors, segmenters, diffusion, CIFAR ResNets, CLIP."""

from __future__ import annotations

from typing import Any

from forerun.domain.workload import LayerShape, Length
from forerun.workloads.zoo.network import UNVERIFIED, Network, later

_COCO: dict[str, Any] = {"dataset": "COCO 2017", "dataset_size": 117_266.0, "input_bytes": 160e3}
_CIFAR: dict[str, Any] = {"dataset": "CIFAR-10", "dataset_size": 50_000.0, "input_bytes": 3072.0}
_LATENT_BYTES = 4.0 * 64 * 64 * 2 + 77 * 1024 * 2

_DETECTORS = (
    Network(
        "ssd300-vgg16", "ssd", later("detection", "ssd_vgg"),
        "Liu et al. 2016; torchvision's form, 91 classes", "SSD on VGG-16, 300 x 300 pixels",
        size=300, length=Length("epochs", 120, "torchvision reference recipe"), batch=32,
        aliases=("ssd300", "ssd300-vgg"), **_COCO,
    ),
    Network(
        "ssd300-resnet34", "ssd", later("detection", "ssd_resnet", "ssd300-resnet34"),
        "MLPerf Training v0.5 to v1.1, SSD reference", "SSD on ResNet-34, 300 x 300 pixels",
        size=300, length=Length("epochs", 50, "MLPerf Training results: 48 to 67 epochs"),
        aliases=("ssd-resnet34", "mlperf-ssd-coco", "mlperf-ssd"), **_COCO,
    ),
    Network(
        "ssd300-resnet50", "ssd", later("detection", "ssd_resnet", "ssd300-resnet50"),
        "SSD 1.1 of NVIDIA's published examples", "SSD on ResNet-50, 300 x 300 pixels",
        size=300, length=Length("epochs", 65, "NVIDIA's published example"),
        aliases=("ssd", "ssd-resnet50", "detection-ssd"), **_COCO,
    ),
    Network(
        "retinanet-resnext50", "retinanet",
        later("detection", "retinanet", "retinanet-resnext50"),
        "MLPerf Training v2.0 on, RetinaNet reference", "RetinaNet on ResNeXt-50, 264 classes",
        size=800, optimizer="adam", dataset="OpenImages-v6 MLPerf", dataset_size=1_170_301.0,
        input_bytes=300e3, length=Length("epochs", 4, "MLPerf Training results: 4 to 9 epochs"),
        aliases=("mlperf-ssd-retinanet", "mlperf-retinanet"),
    ),
    Network(
        "retinanet-r50", "retinanet", later("detection", "retinanet", "retinanet-r50"),
        "Lin et al. 2017 (focal loss); torchvision's form", "RetinaNet on ResNet-50, 91 classes",
        size=800, length=Length("epochs", 26, "torchvision reference recipe"), batch=16,
        aliases=("retinanet", "retinanet-resnet50-fpn"), **_COCO,
    ),
    Network(
        "mask-rcnn-r50-fpn", "rcnn", later("detection", "rcnn", True),
        "He et al. 2017; torchvision's form", "Mask R-CNN on ResNet-50 with a pyramid",
        size=1024, length=Length("epochs", 15, "MLPerf Training results: 14 to 19 epochs"), batch=64,
        notes=("1024 x 1024 pixels stand for images of 800 x 1333 at most, padded in a batch",),
        aliases=("maskrcnn", "mask-rcnn", "mlperf-maskrcnn", "segmentation-maskrcnn",
                 "maskrcnn-resnet50-fpn"), **_COCO,
    ),
    Network(
        "faster-rcnn-r50-fpn", "rcnn", later("detection", "rcnn", False),
        "Ren et al. 2015; torchvision's form", "Faster R-CNN on ResNet-50 with a pyramid",
        size=1024, length=Length("epochs", 26, "torchvision reference recipe"), batch=16,
        notes=("1024 x 1024 pixels stand for images of 800 x 1333 at most, padded in a batch",),
        aliases=("faster-rcnn", "fasterrcnn", "fasterrcnn-resnet50-fpn"), **_COCO,
    ),
    Network(
        "yolov3", "yolo", later("detection", "yolov3"), "Redmon & Farhadi 2018",
        "YOLOv3 on Darknet-53, 80 classes", size=416, batch=64,
        length=Length("epochs", 273, "published configuration: 500,200 batches of 64"),
        notes=("other numbers of classes change only the last layers",),
        aliases=("yolo-v3",), **_COCO,
    ),
)  # fmt: skip

_SEGMENTERS = (
    Network(
        "unet", "unet", later("segmentation", "unet"), "Ronneberger et al. 2015, figure 1",
        "U-Net with unpadded convolutions", size=572, dataset="ISBI 2012 EM", dataset_size=30.0,
        input_bytes=262e3, optimizer="adam", batch=8, length=Length("steps", 40_000, UNVERIFIED),
        aliases=("unet-medical", "unet2d", "segmentation-unet-medical"),
    ),
    Network(
        "unet3d", "unet", later("segmentation", "unet3d"),
        "MLPerf Training v1.0 on, 3D U-Net reference", "3D U-Net on cubes of 128 voxels",
        size=128, dataset="KiTS19", dataset_size=168.0, input_bytes=0.0, batch=56,
        length=Length("epochs", 2000, "MLPerf Training results: 1,694 to 3,000 epochs"),
        notes=("image_size is the side of a cube of voxels",),
        aliases=("unet3d-kits19", "mlperf-unet3d", "3d-unet"),
    ),
)  # fmt: skip


def _diffusion(name: str, size: int, steps: float, source: str, *aliases: str) -> Network:
    return Network(
        name, "stable-diffusion", later("diffusion", "latent_unet", name), source,
        f"latent U-Net, images of {size} pixels", size=size, optimizer="adamw", batch=2048,
        dataset="LAION", dataset_size=0.0, input_bytes=_LATENT_BYTES,
        length=Length("steps", steps, UNVERIFIED), aliases=aliases,
    )  # fmt: skip


def _dit(name: str, layers: int, hidden: int, heads: int) -> Network:
    return Network(
        name, "dit", later("diffusion", "dit", name), "Peebles & Xie 2023, table 1",
        f"diffusion transformer, {layers} layers, images of 256 pixels", size=256,
        shape=LayerShape(layers, hidden, heads, heads, 4 * hidden), optimizer="adamw",
        input_bytes=32 * 32 * 4 * 2.0,
        length=Length("steps", 7e6 if name == "dit-xl-2" else 4e5, "Peebles & Xie 2023"),
        aliases=(name[::-1].replace("-", "/", 1)[::-1],),
    )  # fmt: skip


_DIFFUSION = (
    _diffusion("stable-diffusion-v1-5", 512, 595e3, "Rombach et al. 2022; released configuration",
               "stable-diffusion", "sd15", "sd-1.5", "stable-diffusion-1.5", "sd-v1-5"),
    _diffusion("stable-diffusion-v2", 512, 850e3, "Rombach et al. 2022; released configuration",
               "sd2", "sd-2", "stable-diffusion-2", "mlperf-stable-diffusion", "sd-v2",
               "stable-diffusion-v2-1"),
    _diffusion("sdxl", 1024, 600e3, "Podell et al. 2023; released configuration",
               "stable-diffusion-xl", "sd-xl"),
    _dit("dit-s-2", 12, 384, 6),
    _dit("dit-b-2", 12, 768, 12),
    _dit("dit-l-2", 24, 1024, 16),
    _dit("dit-xl-2", 28, 1152, 16),
)  # fmt: skip


def _cifar(name: str, blocks: int, source: str, *aliases: str) -> Network:
    return Network(
        name, "resnet", later("small", "cifar_resnet", name), source,
        "ResNet for images of 32 pixels, 10 classes", size=32, shape=LayerShape(layers=blocks),
        length=Length("epochs", 164, "He et al. 2016: 64,000 steps of 128"), batch=128,
        aliases=aliases, **_CIFAR,
    )  # fmt: skip


_HE = "He et al. 2016, section 4.2"
_SMALL = (
    _cifar("resnet18-cifar10", 8, "He et al. 2016 with a 3 x 3 stem, a common form for CIFAR",
           "resnet18-cifar", "resnet-18-cifar10"),
    *(_cifar(f"resnet{6 * n + 2}-cifar10", 3 * n, _HE, f"resnet{6 * n + 2}-cifar")
      for n in (3, 5, 7, 9, 18)),
    Network(
        "mlp-mnist", "mlp", later("small", "mlp", "mlp-mnist"), "common teaching example",
        "perceptron of 512, 512 and 10 on images of 28 pixels", size=28, optimizer="sgd",
        dataset="MNIST", dataset_size=60_000.0, input_bytes=784.0, batch=64,
        length=Length("epochs", 10, UNVERIFIED), aliases=("mlp", "mlp-fashionmnist"),
    ),
    Network(
        "lenet-5", "lenet", later("small", "lenet5"), "LeCun et al. 1998, with ReLU and max pooling",
        "LeNet-5 on images padded to 32 pixels", size=32, optimizer="sgd", dataset="MNIST",
        dataset_size=60_000.0, input_bytes=784.0, batch=64,
        length=Length("epochs", 20, UNVERIFIED),
    ),
    Network(
        "inception-resnet-v2", "inception", later("inception", "inception_resnet_v2"),
        "Szegedy et al. 2017", "image classifier, 299 x 299 pixels, 1000 classes", size=299,
        optimizer="rmsprop", length=Length("epochs", 160, UNVERIFIED),
        shape=LayerShape(layers=40), aliases=("inceptionresnetv2", "ens-adv-inception-resnet-v2"),
    ),
    Network(
        "arcface-r100", "arcface", later("inception", "arcface"), "Deng et al. 2019",
        "face recognition, ResNet-100, 112 x 112 pixels", size=112, shape=LayerShape(layers=49),
        dataset="MS1M-v2", dataset_size=5_822_653.0, input_bytes=6e3, batch=512,
        length=Length("epochs", 16, UNVERIFIED),
        notes=("85,742 faces; other datasets and partial soft-max change the last layer",),
        aliases=("insightface", "insightface-arcface", "insightface-partialfc", "insightface-r100"),
    ),
)  # fmt: skip


def _clip(name: str, layers: int, hidden: int, heads: int) -> Network:
    return Network(
        name, "clip", later("clip", "clip", name), "Radford et al. 2021, tables 19 and 20",
        "image and text encoders trained to agree", size=224, optimizer="adamw",
        shape=LayerShape(layers, hidden, heads, heads, 4 * hidden), dataset="WIT",
        dataset_size=400e6, input_bytes=60e3, batch=32_768,
        length=Length("epochs", 32, "Radford et al. 2021"),
    )  # fmt: skip


_CLIPS = (
    _clip("clip-vit-b-32", 12, 768, 12),
    _clip("clip-vit-b-16", 12, 768, 12),
    _clip("clip-vit-l-14", 24, 1024, 16),
)


def _keras(
    name: str, blocks: int, source: str, *aliases: str, guess: str = "", size: int = 224
) -> Network:
    return Network(
        f"keras-{name}", name.split("-")[0].rstrip("0123456789"),
        later("keras", "classifier", f"keras-{name}"), source,
        "as Keras programs state it: its end follows the image's size", size=size,
        shape=LayerShape(layers=blocks), optimizer="sgd", precision="fp32",
        length=Length("epochs", 90, UNVERIFIED), batch=64, notes=(guess,) if guess else (),
        aliases=aliases, guessed=bool(guess),
    )  # fmt: skip


_GUESS = "its structure is not published with the runs: {} is assumed, and may be another"
_PLAIN = "Simonyan & Zisserman 2015, without adaptive pooling"
_IDENTITY = "He et al. 2016, identity mappings (pre-activation)"
_KERAS = (
    *(_keras(f"vgg{n}", 0, _PLAIN, f"vgg{n}-keras") for n in (11, 13, 16, 19)),
    *(_keras(f"resnet{n}", b, _IDENTITY, f"resnet{n}-keras")
      for n, b in ((18, 8), (34, 16), (50, 16), (101, 33), (152, 50))),
    _keras("alexnet-stride1", 0, "keras-deepcv (E. Weill 2017)", "alexnet-stride1-keras",
           guess=_GUESS.format("a published Keras AlexNet at stride 1")),
    _keras("lenet5", 0, "LeCun et al. 1998", "lenet5-keras", size=32,
           guess=_GUESS.format("LeNet-5 on three channels")),
    _keras("mnist-cnn", 0, "the Keras example mnist_cnn", "mnist-cnn-keras",
           size=32, guess=_GUESS.format("the Keras example mnist_cnn")),
    _keras("cifar10-cnn", 0, "the Keras example cifar10_cnn", "cifar10-cnn-keras", size=32,
           guess=_GUESS.format("the Keras example cifar10_cnn")),
    _keras("small-resnet", 3, "He et al. 2016, section 4.2", "small-resnet-keras", size=32,
           guess=_GUESS.format("the smallest ResNet for CIFAR, of eight layers")),
)  # fmt: skip

NETWORKS: tuple[Network, ...] = (*_KERAS, *_DETECTORS, *_SEGMENTERS, *_DIFFUSION, *_SMALL, *_CLIPS)
