"""Convolutional nets: algorithms of single convolutions, and samples that one process copies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forerun.catalog import load_catalog
from forerun.domain.job import Job
from forerun.domain.plan import Plan
from forerun.domain.workload import Workload
from forerun.predictors.analytic import AnalyticPredictor, Constants
from forerun.predictors.analytic.flat import _is_direct, distinct_ops
from forerun.predictors.analytic.layout import workload_facts
from forerun.tables import Jobs
from forerun.workloads.zoo import zoo_workload


def network(name: str, **changes: object) -> Workload:
    """Return a network of the zoo in fp32 with PyTorch."""
    return zoo_workload(name).with_(precision="fp32", framework="PyTorch", **changes)


def direct_kernels(name: str, channels: int) -> dict[int, set[bool]]:
    """Return, by pixels of the kernel, whether forward convolutions of so many inputs are direct."""
    ops = distinct_ops(network(name))
    chosen = (ops.phase == 0) & (ops.dims[:, 2] % channels == 0) & (ops.dims[:, 0] > 0)
    direct, depth = _is_direct(ops)[chosen], ops.dims[chosen, 2]
    return {int(k): set(direct[depth == k * channels].tolist()) for k in depth / channels}


def test_five_by_five_convolutions_of_many_channels_are_winograds() -> None:
    assert direct_kernels("alexnet", 64)[25] == {False}  # 64 -> 192 at stride 1
    assert direct_kernels("inception-v3", 48)[25] == {False}
    assert direct_kernels("keras-lenet5", 6)[25] == {True}  # 6 channels are not worth transforms


def test_stems_and_asymmetric_kernels_are_direct() -> None:
    assert direct_kernels("alexnet", 3)[121] == {True}
    assert direct_kernels("resnet50", 3)[49] == {True}
    assert direct_kernels("inception-v3", 192)[7] == {True}


def seconds(workload: Workload, plan: Plan, device: str, **constants: float) -> float:
    cluster = load_catalog().cluster(f"1x{plan.dp}x{device}")
    predictor = AnalyticPredictor(replace(Constants(), **constants))  # type: ignore[arg-type]
    return float(predictor.predict(Jobs.of([Job(workload, cluster, plan)])).seconds[0, 1])


@pytest.mark.parametrize("count", [1, 2, 4])
def test_one_process_copies_the_samples_of_all_devices(count: int) -> None:
    net = network("resnet18")
    plan = Plan(dp=count, global_batch=12 * count, micro_batch=12, sync="dataparallel")
    usual = seconds(net, plan, "titan-rtx")
    pinned = seconds(net, plan, "titan-rtx", pageable_bytes_per_second=1e30)
    copied = 12 * count * 3 * 224 * 224 * 4 / Constants().pageable_bytes_per_second
    assert usual - pinned == pytest.approx(copied, rel=1e-6)


def test_processes_of_their_own_do_not_wait_for_copies() -> None:
    net, plan = network("resnet18"), Plan(dp=4, global_batch=48, micro_batch=12)
    usual = seconds(net, plan, "titan-rtx")
    assert usual == seconds(net, plan, "titan-rtx", pageable_bytes_per_second=1e3)


def test_a_sample_is_the_images_elements_or_nothing() -> None:
    facts = workload_facts(network("vgg16"))
    assert facts["image_elements"] == 3 * 224 * 224
    assert workload_facts(zoo_workload("gpt2"))["image_elements"] == 0.0


def test_boards_near_their_chips_clock_gain_less_than_those_far_below() -> None:
    """Work bound by arithmetic follows the clock: vgg16 in fp64 meets no power limit."""
    net, plan = network("vgg16").with_(precision="fp64"), Plan(global_batch=12, micro_batch=12)
    ratio = seconds(net, plan, "rtx-2060-max-q") / seconds(net, plan, "titan-rtx")
    stated = 0.509375 / 0.142187
    assert np.sqrt(stated) < ratio < 0.8 * stated
