"""Parts that the networks of the timm library share."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.domain.graph import Block
from forerun.workloads.zoo.net import Net, Tensor

CLASSES = 1000


def rounded(channels: float, divisor: int = 8, limit: float = 0.9) -> int:
    """Return channels as a multiple of a divisor, not less than `limit` of what was asked."""
    whole = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return whole + divisor if whole < limit * channels else whole


@dataclass(frozen=True, slots=True)
class Units:
    """Convolution, normalisation and activation as one network combines them.

    Attributes:
        net: where the operations go.
        act: activation, "" for none.
        norm: batch, group (and layer) or none.
    """

    net: Net
    act: str = "relu"
    norm: str = "batch"

    def normal(self, x: Tensor, name: str) -> Tensor:
        """Normalise channels."""
        if self.norm == "batch":
            return self.net.batch_norm(x, f"{name}.norm")
        return self.net.norm(x, f"{name}.norm", x.shape[0]) if self.norm == "group" else x

    def active(self, x: Tensor, name: str) -> Tensor:
        """Apply the activation."""
        return self.net.activation(x, f"{name}.act", self.act) if self.act else x

    def unit(
        self, x: Tensor, name: str, out: int, kernel: int | tuple[int, int] = 1, stride: int = 1,
        groups: int = 1, act: bool = True, padding: int | None = None, dilation: int = 1,
    ) -> Tensor:  # fmt: skip
        """Convolve, normalise and (unless told not to) activate."""
        bias = self.norm == "none"
        x = self.net.conv(x, name, out, kernel, stride, padding, groups, bias, dilation)
        x = self.normal(x, name)
        return self.active(x, name) if act else x

    def gate(
        self, x: Tensor, name: str, inner: int, bias: bool = True, norm: bool = False
    ) -> Tensor:
        """Scale channels by a small network of their means (Hu et al. 2018)."""
        net = self.net
        y = net.conv(net.adaptive_pool(x, f"{name}.pool", 1), f"{name}.down", inner, 1, bias=bias)
        y = net.batch_norm(y, f"{name}.norm") if norm else y
        y = net.activation(y, f"{name}.relu")
        y = net.conv(y, f"{name}.up", x.shape[0], 1, bias=bias)
        return net.multiply(f"{name}.scale", x, net.activation(y, f"{name}.sigmoid", "sigmoid"))

    def eca(self, x: Tensor, name: str) -> Tensor:
        """Scale channels by a one-dimensional convolution of their means (Wang et al. 2020)."""
        net = self.net
        y = net.adaptive_pool(x, f"{name}.pool", 1)
        y = net.conv(net.view(y, 1, x.shape[0]), f"{name}.conv", 1, 3)
        y = net.activation(y, f"{name}.sigmoid", "sigmoid")
        return net.multiply(f"{name}.scale", x, y)

    def context(self, x: Tensor, name: str, inner: int) -> Tensor:
        """Add a global context to each channel (Cao et al. 2019)."""
        net = self.net
        weights = net.softmax(net.conv(x, f"{name}.mask", 1, 1, bias=True), f"{name}.softmax")
        pooled = net.multiply(f"{name}.pool", x, weights)
        y = net.conv(net.adaptive_pool(pooled, f"{name}.sum", 1), f"{name}.down", inner, 1)
        y = net.activation(net.norm(y, f"{name}.norm", inner), f"{name}.relu")
        y = net.activation(net.conv(y, f"{name}.up", x.shape[0], 1), f"{name}.sigmoid", "sigmoid")
        return net.multiply(f"{name}.scale", x, y)


def classify(net: Net, x: Tensor, hidden: int = 0, act: str = "relu") -> None:
    """Average over pixels (where there are any) and classify."""
    net.block = Block.HEAD
    x = net.mean(x, "head.pool") if len(x.shape) > 1 else x
    if hidden:
        x = net.activation(net.linear(x, "head.hidden", hidden), "head.act", act)
    net.loss(net.linear(x, "head", CLASSES))
