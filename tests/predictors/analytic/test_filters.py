"""What a convolution's filters and small maps cost on units without matrix instructions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forerun.catalog import load_catalog
from forerun.domain.graph import KIND_INDEX, Block, OpKind
from forerun.domain.job import Job
from forerun.domain.plan import Plan
from forerun.domain.workload import Workload
from forerun.predictors.analytic import AnalyticPredictor, Constants
from forerun.predictors.analytic.flat import _is_direct
from forerun.tables import Jobs
from forerun.workloads.zoo import zoo_workload
from forerun.workloads.zoo.net import Net


def one_convolution(
    size: int, kernel: int, stride: int = 1, channels: int = 64, **changes: object
) -> Workload:
    """Return a network of a pointwise convolution, the one in question, and a loss."""
    net = Net(4.0)
    x = net.conv("first", net.input("", 3, size, size), channels, 1)
    x = net.conv("asked", x, channels, kernel, stride)
    net.block = Block.HEAD
    net.loss("loss", net.linear("head", net.mean("pool", x), 10))
    return Workload(name="one", graph=net.graph("sgd"), precision="fp32").with_(**changes)


def seconds(workload: Workload, constants: Constants, device: str = "1x1xt4") -> float:
    job = Job(workload, load_catalog().cluster(device), Plan(global_batch=16, micro_batch=16))
    return float(AnalyticPredictor(constants).predict(Jobs.of([job]))[0].seconds[1])


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "channels", "direct"),
    [
        (14, 3, 1, 64, False), (14, 5, 1, 64, False), (3, 3, 1, 64, False),
        (14, 7, 1, 64, True), (14, 3, 2, 64, True), (14, 5, 2, 64, True),
        (14, 3, 1, 3, True), (2, 3, 1, 64, True), (1, 3, 1, 64, True),
    ],
)  # fmt: skip
def test_winograd_is_for_small_kernels_at_stride_one_with_channels_and_pixels_enough(
    size: int, kernel: int, stride: int, channels: int, direct: bool
) -> None:
    """Forward, data gradient and weight gradient alike."""
    columns = one_convolution(size, kernel, stride, channels).graph.columns
    asked = columns.kind == KIND_INDEX[OpKind.CONV]
    assert asked.sum() == 3
    assert _is_direct(columns)[asked].tolist() == [direct] * 3


def test_a_framework_that_reorders_filters_pays_for_them_at_every_call() -> None:
    usual, profiles = Constants(), Constants().frameworks
    assert profiles["tensorflow"].filter_passes > profiles["pytorch"].filter_passes == 0.0
    still = replace(profiles["tensorflow"], filter_passes=0.0)
    never = Constants(frameworks={**profiles, "tensorflow": still})
    wide = one_convolution(4, 3, channels=1024, framework="TensorFlow 2.5")
    assert seconds(wide, usual) > 1.1 * seconds(wide, never)
    other = wide.with_(framework="PyTorch")
    assert seconds(other, usual) == seconds(other, never)


@pytest.mark.parametrize(("kernel", "matters"), [(3, True), (1, False), (7, False)])
def test_winograd_moves_filters_in_its_own_form(kernel: int, matters: bool) -> None:
    wide = one_convolution(4, kernel, channels=1024)
    assert (seconds(wide, Constants()) > seconds(wide, Constants(winograd_passes=0.0))) == matters


@pytest.mark.parametrize(("precision", "matters"), [("fp32", True), ("fp16", False)])
def test_vector_units_fill_more_slowly_than_matrix_units(precision: str, matters: bool) -> None:
    small = one_convolution(3, 3, channels=1024, precision=precision)
    usual, alike = (seconds(small, Constants(vector_wave_share=s)) for s in (0.2, 1.0))
    assert (usual > alike) == matters


@pytest.mark.parametrize(("size", "side"), [(32, 4), (64, 6), (224, 16)])
def test_the_wide_keras_alexnet_has_its_parameters(size: int, side: int) -> None:
    """0.8 G at 224 pixels: nearly all in the first dense layer."""
    found = zoo_workload("keras-alexnet-stride1", image_size=size)
    classes = {32: 10, 64: 200, 224: 1000}[size]
    convs = ((3, 96, 121), (96, 256, 25), (256, 512, 9), (512, 1024, 9), (1024, 1024, 9))
    expected = sum(a * b * area + 3 * b for a, b, area in convs)
    expected += sum(a * b + 3 * b for a, b in ((side**2 * 1024, 3072), (3072, 4096)))
    assert found.params == expected + 4097 * classes
