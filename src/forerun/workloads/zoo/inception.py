"""Inception-ResNet-v2, and the face network of ArcFace."""

from __future__ import annotations

from forerun.domain.graph import Block
from forerun.workloads.zoo.net import Net, Tensor


def arcface(net: Net, size: int) -> tuple[str, ...]:
    """State ArcFace (Deng et al. 2019) on its ResNet-100: 512 features, 85,742 faces."""
    x = net.batch_norm(net.conv(net.input(3, size, size), "stem", 64, 3), "stem.norm")
    x = net.activation(x, "stem.prelu", "leaky_relu")
    for stage, (width, depth) in enumerate(((64, 3), (128, 13), (256, 30), (512, 3))):
        for block in range(depth):
            x = _face_block(net, x, f"stage{stage}.{block}", width, 2 if block == 0 else 1)
    net.block = Block.HEAD
    x = net.dropout(net.batch_norm(x, "norm"), "dropout")
    x = net.batch_norm(net.linear(net.flatten(x), "features", 512), "features.norm")
    net.loss(net.linear(x, "faces", 85_742, bias=False), launches=6)
    return ()


def _face_block(net: Net, x: Tensor, name: str, width: int, stride: int) -> Tensor:
    y = net.conv(net.batch_norm(x, f"{name}.norm0"), f"{name}.conv1", width, 3)
    y = net.activation(net.batch_norm(y, f"{name}.norm1"), f"{name}.prelu", "leaky_relu")
    y = net.batch_norm(net.conv(y, f"{name}.conv2", width, 3, stride), f"{name}.norm2")
    if stride > 1:
        x = net.conv(x, f"{name}.shortcut", width, 1, stride)
        x = net.batch_norm(x, f"{name}.shortcut.norm")
    return net.add(f"{name}.sum", x, y)


def inception_resnet_v2(net: Net, size: int) -> tuple[str, ...]:
    """State Inception-ResNet-v2 (Szegedy et al. 2017, figures 3 to 15, as it was released)."""
    x = net.input(3, size, size)
    x = _unit(net, x, "stem.0", 32, 3, 2, 0)
    x = _unit(net, _unit(net, x, "stem.1", 32, 3, 1, 0), "stem.2", 64, 3)
    x = _unit(net, net.pool(x, "stem.pool1", 3, 2), "stem.3", 80, 1)
    x = net.pool(_unit(net, x, "stem.4", 192, 3, 1, 0), "stem.pool2", 3, 2)
    pooled = _unit(net, net.pool(x, "mixed5.pool", 3, 1, 1, average=True), "mixed5.3", 64, 1)
    parts = [
        _chain(net, x, "mixed5.0", ((96, 1),)),
        _chain(net, x, "mixed5.1", ((48, 1), (64, 5))),
        _chain(net, x, "mixed5.2", ((64, 1), (96, 3), (96, 3))),
        pooled,
    ]
    x = net.concat("mixed5.join", parts)
    for block in range(10):
        x = _add_back(net, x, f"a{block}", ((32, 1),), ((32, 1), (32, 3)),
                      ((32, 1), (48, 3), (64, 3)))  # fmt: skip
    x = _shrink(net, x, "mixed6", ((384, 3),), ((256, 1), (256, 3), (384, 3)))
    for block in range(20):
        x = _add_back(net, x, f"b{block}", ((192, 1),), ((128, 1), (160, (1, 7)), (192, (7, 1))))
    x = _shrink(net, x, "mixed7", ((256, 1), (384, 3)), ((256, 1), (288, 3)),
                ((256, 1), (288, 3), (320, 3)))  # fmt: skip
    for block in range(10):
        x = _add_back(net, x, f"c{block}", ((192, 1),), ((192, 1), (224, (1, 3)), (256, (3, 1))))
    x = _unit(net, x, "last", 1536, 1)
    net.block = Block.HEAD
    net.loss(net.linear(net.mean(x, "pool"), "head", 1000))
    return ()


_Kernel = int | tuple[int, int]
_Branch = tuple[tuple[int, _Kernel], ...]


def _unit(
    net: Net, x: Tensor, name: str, out: int, kernel: _Kernel, stride: int = 1,
    padding: int | None = None,
) -> Tensor:  # fmt: skip
    x = net.batch_norm(net.conv(x, name, out, kernel, stride, padding), f"{name}.norm")
    return net.activation(x, f"{name}.relu")


def _chain(net: Net, x: Tensor, name: str, layers: _Branch, shrink: bool = False) -> Tensor:
    for number, (out, kernel) in enumerate(layers):
        last = shrink and number + 1 == len(layers)
        x = _unit(net, x, f"{name}.{number}", out, kernel, 2 if last else 1, 0 if last else None)
    return x


def _add_back(net: Net, x: Tensor, name: str, *branches: _Branch) -> Tensor:
    parts = [_chain(net, x, f"{name}.{i}", branch) for i, branch in enumerate(branches)]
    y = net.conv(net.concat(f"{name}.join", parts), f"{name}.out", x.shape[0], 1, bias=True)
    return net.activation(net.add(f"{name}.sum", x, y), f"{name}.relu")


def _shrink(net: Net, x: Tensor, name: str, *branches: _Branch) -> Tensor:
    parts = [_chain(net, x, f"{name}.{i}", branch, True) for i, branch in enumerate(branches)]
    return net.concat(f"{name}.join", [*parts, net.pool(x, f"{name}.pool", 3, 2)])
