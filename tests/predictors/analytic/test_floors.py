"""Floors: no algorithm of a vendor's library can pass them."""

from __future__ import annotations

import pytest

from forerun.domain.graph import KIND_INDEX, OpKind
from forerun.predictors.analytic.flat import IS_MATRIX
from forerun.predictors.analytic.operations import floor_flops_per_sample
from tests.predictors.analytic.test_filters import one_convolution


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "channels", "least"),
    [
        (14, 3, 1, 64, 36 / 144), (14, 5, 1, 64, 64 / 400), (27, 5, 1, 48, 64 / 400),
        (3, 5, 1, 64, 64 / 400), (14, 5, 1, 6, 64 / 400), (14, 5, 2, 64, 36 / 144),
        (14, 7, 1, 64, 36 / 144), (14, 1, 1, 100, 36 / 144), (14, 3, 1, 25, 36 / 144),
    ],
)  # fmt: skip
def test_the_floor_of_a_convolution_is_its_share_of_winograds_products(
    size: int, kernel: int, stride: int, channels: int, least: float
) -> None:
    """F(4x4, 3x3) does 36 products of 144, F(4x4, 5x5) 64 of 400; forward and both gradients."""
    workload = one_convolution(size, kernel, stride, channels)
    expected = 0.0
    for op in workload.graph.ops:
        if op.kind is OpKind.CONV:
            expected += op.flops * op.repeat * (least if "asked" in op.name else 36 / 144)
        elif IS_MATRIX[KIND_INDEX[op.kind]]:
            expected += op.flops * op.repeat
    assert floor_flops_per_sample(workload) == pytest.approx(expected)
