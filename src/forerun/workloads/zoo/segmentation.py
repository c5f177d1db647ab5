"""Segmentation: U-Net on images and on volumes."""

from __future__ import annotations

from forerun.domain.graph import Block, OpKind
from forerun.errors import RequestError
from forerun.workloads.zoo.net import Net, Tensor


def unet(net: Net, size: int) -> tuple[str, ...]:
    """State the 2015 U-Net: unpadded convolutions, so that the output is smaller than the image.

    Ronneberger et al. 2015, figure 1: one input channel, two classes.
    """
    x = net.input(1, size, size)
    skips = []
    for level in range(5):
        if level:
            x = net.pool(x, f"down{level}.pool", 2)
        x = _double(net, x, f"down{level}", 64 * 2**level)
        skips.append(x)
    for level in reversed(range(4)):
        x = net.conv_transpose(x, f"up{level}.grow", 64 * 2**level, 2, 2)
        skip = skips[level]
        crop = net.copy(skip, f"up{level}.crop", (skip.shape[0], *x.shape[1:]))
        x = _double(net, net.concat(f"up{level}.join", (crop, x)), f"up{level}", 64 * 2**level)
    net.block = Block.HEAD
    net.loss(net.conv(x, "head", 2, 1, bias=True))
    return (f"the output is {x.shape[1]} x {x.shape[2]} pixels",)


def _double(net: Net, x: Tensor, name: str, width: int) -> Tensor:
    for number in range(2):
        x = net.conv(x, f"{name}.conv{number}", width, 3, 1, 0, bias=True)
        x = net.activation(x, f"{name}.relu{number}")
    return x


_VOLUME_WIDTHS = (32, 64, 128, 256, 320, 320)


def unet3d(net: Net, size: int) -> tuple[str, ...]:
    """State MLPerf's 3D U-Net on cubes (KiTS19): strided convolutions, instance normalisation.

    Raises:
        RequestError: the cube does not halve five times.
    """
    if size % 32:
        raise RequestError(
            f"unet3d on cubes of {size} voxels", "it halves them five times",
            f"ask for a multiple of 32, such as {max(64, round(size / 32) * 32)}",
        )  # fmt: skip
    x = net.input(1, size, size, size)
    skips = []
    for level, width in enumerate(_VOLUME_WIDTHS):
        x = _volume(net, x, f"down{level}.0", width, 2 if level else 1)
        x = _volume(net, x, f"down{level}.1", width)
        skips.append(x)
    skips.pop()
    for level in reversed(range(len(skips))):
        x = net.conv_transpose(x, f"up{level}.grow", _VOLUME_WIDTHS[level], 2, 2)
        x = net.concat(f"up{level}.join", (x, skips[level]))
        for number in range(2):
            x = _volume(net, x, f"up{level}.{number}", _VOLUME_WIDTHS[level])
    net.block = Block.HEAD
    net.loss(net.conv(x, "head", 3, 1, bias=True))
    return ()


def _volume(net: Net, x: Tensor, name: str, width: int, stride: int = 1) -> Tensor:
    x = net.norm(net.conv(x, name, width, 3, stride), f"{name}.norm", width)
    return net.activation(x, f"{name}.relu")


def resize_sum(net: Net, name: str, small: Tensor, large: Tensor) -> Tensor:
    """Grow a map to another's size and add it, as feature pyramids do."""
    grown = net.emit(OpKind.COPY, f"{name}.grow", (small,), large.shape)
    return net.add(f"{name}.sum", large, grown)
