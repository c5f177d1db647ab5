"""Classifiers as programs for Keras commonly state them: their ends follow the image's size.

These have no adaptive pooling before their dense layers, so the parameters grow with the image, and
as many classes as the data set that images of such a size usually come from.
"""

from __future__ import annotations

from forerun.domain.graph import Block
from forerun.workloads.zoo.net import Net, Tensor

# He et al. 2016b (identity mappings): blocks a stage, and whether three convolutions a block.
_RESNETS: dict[str, tuple[tuple[int, ...], bool]] = {
    "keras-resnet18": ((2, 2, 2, 2), False), "keras-resnet34": ((3, 4, 6, 3), False),
    "keras-resnet50": ((3, 4, 6, 3), True), "keras-resnet101": ((3, 4, 23, 3), True),
    "keras-resnet152": ((3, 8, 36, 3), True),
}  # fmt: skip
# Convolutions before each of five poolings (Simonyan & Zisserman 2015).
_VGGS = {
    "keras-vgg11": (1, 1, 2, 2, 2), "keras-vgg13": (2, 2, 2, 2, 2),
    "keras-vgg16": (2, 2, 3, 3, 3), "keras-vgg19": (2, 2, 4, 4, 4),
}  # fmt: skip


def classes(size: int) -> int:
    """Return the classes of the usual data set: CIFAR-10, Tiny ImageNet, ImageNet."""
    return 10 if size <= 32 else 200 if size <= 64 else 1000


def classifier(name: str, net: Net, size: int) -> tuple[str, ...]:
    """State one of this module's networks and its loss; return notes about it."""
    image = net.input(3, size, size)
    if name in _VGGS:
        x = _vgg(net, image, _VGGS[name])
    elif name in _RESNETS:
        x = _resnet(net, image, *_RESNETS[name])
    else:
        x = _SMALL[name](net, image)
    net.block = Block.HEAD
    net.loss(net.linear(x, "head", classes(size)))
    return (f"{classes(size)} classes assumed for images of {size} pixels",)


def _relu(net: Net, x: Tensor, name: str, out: int, kernel: int = 3, padding: int | None = None,
          stride: int = 1) -> Tensor:  # fmt: skip
    x = net.conv(x, name, out, kernel, stride, padding, bias=True)
    return net.activation(x, f"{name}.relu")


def _dense(net: Net, x: Tensor, *widths: int) -> Tensor:
    x = net.flatten(x)
    for number, width in enumerate(widths):
        x = net.activation(net.linear(x, f"dense{number}", width), f"dense{number}.relu")
    return x


def _vgg(net: Net, x: Tensor, depths: tuple[int, ...]) -> Tensor:
    for stage, depth in enumerate(depths):
        for number in range(depth):
            x = _relu(net, x, f"stage{stage}.{number}", min(64 << stage, 512))
        x = net.pool(x, f"stage{stage}.pool", 2)
    return _dense(net, x, 4096, 4096)


def _resnet(net: Net, x: Tensor, depths: tuple[int, ...], deep: bool) -> Tensor:
    """Pre-activation: normalisation and ReLU come before each convolution."""
    x = net.batch_norm(net.conv(x, "stem", 64, 7, 2, bias=True), "stem.norm")
    x = net.pool(net.activation(x, "stem.relu"), "stem.pool", 3, 2, 1)
    for stage, depth in enumerate(depths):
        for number in range(depth):
            stride = 2 if number == 0 and stage else 1
            x = _block(net, x, f"stage{stage}.{number}", 64 << stage, stride, deep,
                       first=stage + number == 0)  # fmt: skip
    x = net.activation(net.batch_norm(x, "last.norm"), "last.relu")
    return net.mean(x, "pool")


def _block(
    net: Net, x: Tensor, name: str, width: int, stride: int, deep: bool, first: bool
) -> Tensor:
    steps = ((width, 1, stride), (width, 3, 1), (4 * width, 1, 1)) if deep else (
        (width, 3, stride), (width, 3, 1))  # fmt: skip
    y = x
    for number, (out, kernel, step) in enumerate(steps):
        if number or not first:
            y = net.activation(net.batch_norm(y, f"{name}.{number}.norm"), f"{name}.{number}.relu")
        y = net.conv(y, f"{name}.{number}", out, kernel, step, bias=True)
    if x.shape != y.shape:
        x = net.conv(x, f"{name}.shortcut", y.shape[0], 1, stride, bias=True)
    return net.add(f"{name}.sum", x, y)


def _alexnet(net: Net, x: Tensor) -> Tensor:
    """A published Keras AlexNet (keras-deepcv, E. Weill 2017): stride 1, 0.8 G parameters at 224.

    It is wider than the paper's, normalises in batches, and pads maps by a pixel more from the
    third convolution on.
    """
    for number, (width, kernel, pools) in enumerate(
        ((96, 11, True), (256, 5, True), (512, 3, True), (1024, 3, False), (1024, 3, True)), 1
    ):
        name, padding = f"conv{number}", None
        if number > 2:
            wider = (x.shape[0], *(side + 2 for side in x.shape[1:]))
            x, padding = net.copy(x, f"{name}.pad", wider), 1
        x = net.conv(x, name, width, kernel, 1, padding, bias=True)
        x = net.activation(net.batch_norm(x, f"{name}.norm"), f"{name}.relu")
        if pools:
            x = net.pool(x, f"pool{number}", 2)
    x = net.flatten(x)
    for number, width in enumerate((3072, 4096)):
        x = net.batch_norm(net.linear(x, f"dense{number}", width), f"dense{number}.norm")
        x = net.dropout(net.activation(x, f"dense{number}.relu"), f"dropout{number}")
    return x


def _lenet(net: Net, x: Tensor) -> Tensor:
    """LeNet-5 (LeCun et al. 1998) with averages for its sub-sampling."""
    x = net.pool(_relu(net, x, "conv1", 6, 5, 0), "pool1", 2, average=True)
    x = net.pool(_relu(net, x, "conv2", 16, 5, 0), "pool2", 2, average=True)
    return _dense(net, x, 120, 84)


def _mnist(net: Net, x: Tensor) -> Tensor:
    """The example `mnist_cnn` of Keras: two convolutions, one pooling, one dense layer."""
    x = _relu(net, _relu(net, x, "conv1", 32, 3, 0), "conv2", 64, 3, 0)
    x = net.dropout(net.pool(x, "pool", 2), "dropout1")
    return net.dropout(_dense(net, x, 128), "dropout2")


def _cifar(net: Net, x: Tensor) -> Tensor:
    """The example `cifar10_cnn` of Keras: two pairs of convolutions, one dense layer."""
    for stage, width in enumerate((32, 64)):
        x = _relu(net, x, f"conv{stage}.0", width)
        x = net.pool(_relu(net, x, f"conv{stage}.1", width, 3, 0), f"pool{stage}", 2)
        x = net.dropout(x, f"dropout{stage}")
    return net.dropout(_dense(net, x, 512), "dropout")


def _small_resnet(net: Net, x: Tensor) -> Tensor:
    """The smallest ResNet for CIFAR (He et al. 2016, section 4.2, n = 1): eight layers."""
    x = net.activation(net.batch_norm(net.conv(x, "stem", 16, 3), "stem.norm"), "stem.relu")
    for stage, width in enumerate((16, 32, 64)):
        stride = 2 if stage else 1
        y = net.batch_norm(net.conv(x, f"stage{stage}.1", width, 3, stride), f"stage{stage}.norm1")
        y = net.conv(net.activation(y, f"stage{stage}.relu1"), f"stage{stage}.2", width, 3)
        y = net.batch_norm(y, f"stage{stage}.norm2")
        if x.shape != y.shape:
            x = net.conv(x, f"stage{stage}.shortcut", width, 1, stride)
        x = net.activation(net.add(f"stage{stage}.sum", x, y), f"stage{stage}.relu2")
    return net.mean(x, "pool")


_SMALL = {
    "keras-alexnet-stride1": _alexnet, "keras-lenet5": _lenet, "keras-mnist-cnn": _mnist,
    "keras-cifar10-cnn": _cifar, "keras-small-resnet": _small_resnet,
}  # fmt: skip
