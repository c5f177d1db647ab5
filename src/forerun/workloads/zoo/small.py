"""Small networks: a perceptron, LeNet-5 and the ResNets of CIFAR-10."""

from __future__ import annotations

from forerun.domain.graph import Block
from forerun.workloads.zoo.net import Net
from forerun.workloads.zoo.resnets import ResnetShape, resnet

MLPS: dict[str, tuple[int, ...]] = {
    "mlp-mnist": (512, 512, 10),
}
# He et al. 2016, section 4.2: three stages of n blocks, padded shortcuts; depth = 6 n + 2.
CIFAR_RESNETS: dict[str, ResnetShape] = {
    "resnet18-cifar10": ResnetShape((2, 2, 2, 2), bottleneck=False, stem="cifar", classes=10),
    **{
        f"resnet{6 * n + 2}-cifar10": ResnetShape(
            (n, n, n), bottleneck=False, stem="cifar", classes=10, widths=(16, 32, 64),
            projected=False,
        )
        for n in (3, 5, 7, 9, 18)
    },
}  # fmt: skip


def mlp(name: str, net: Net, size: int) -> tuple[str, ...]:
    """State a perceptron on single-channel images: 512, 512, 10 with dropout."""
    x = net.input(size * size)
    widths = MLPS[name]
    for layer, width in enumerate(widths):
        x = net.linear(x, f"layer.{layer}", width)
        if layer + 1 < len(widths):
            x = net.activation(x, f"layer.{layer}.relu")
            x = net.dropout(x, f"layer.{layer}.dropout")
    net.loss(x)
    return ()


def lenet5(net: Net, size: int) -> tuple[str, ...]:
    """State LeNet-5 (LeCun et al. 1998) as it is written today: 6 and 16 maps, 120, 84, 10."""
    x = net.activation(net.conv(net.input(1, size, size), "conv1", 6, 5, 1, 0, bias=True), "relu1")
    x = net.pool(x, "pool1", 2)
    x = net.activation(net.conv(x, "conv2", 16, 5, 1, 0, bias=True), "relu2")
    x = net.flatten(net.pool(x, "pool2", 2))
    for number, width in enumerate((120, 84)):
        x = net.activation(net.linear(x, f"dense{number}", width), f"dense{number}.relu")
    net.block = Block.HEAD
    net.loss(net.linear(x, "head", 10))
    return ()


def cifar_resnet(name: str, net: Net, size: int) -> tuple[str, ...]:
    """State a ResNet of `CIFAR_RESNETS`."""
    return resnet(CIFAR_RESNETS[name], net, size)
