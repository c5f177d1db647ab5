"""The constants that runs may move: what people call them, unit, prior width and bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from forerun.predictors.analytic.constants import MEASURED
from forerun.units import format_bytes, format_seconds


@dataclass(frozen=True)
class Family:
    """A constant, table or, as `framework.` or `kind.`, field of a profile that runs may move.

    sd: log standard deviation of the prior; `shared_sd` that of a shift of all frameworks.
    """

    words: str
    unit: str
    sd: float
    low: float = 0.0
    high: float = math.inf
    shared_sd: float = 0.0


# Bounds: of shares the most is what no unit, memory or link can pass (Winograd's algorithm spares
# products, fp32 products ran on TF32 units, wide units may pack two 16-bit numbers, and graphs
# count traffic that fusions and caches spare); powers of norms below 1 mean nothing.
# Words, unit and prior, and where they are not the usual ones low, high and the shared spread.
_ROWS: Mapping[str, tuple[Any, ...]] = {
    "tensor_efficiency": ("peak reached on matrix units", "share", 0.25, 0.0, 1.0),
    "vector_efficiency": ("stated peak reached on vector units", "share", 0.30, 0.0, 1.2),
    "double_efficiency": ("stated fp64 peak reached", "share", 0.30, 0.0, 1.0),
    "narrow_efficiency": (
        "stated fp32 peak reached by 16-bit numbers without a unit", "share", 0.40, 0.0, 2.0),
    "bandwidth_efficiency": ("device memory's bandwidth reached", "share", 0.25, 0.0, 1.25),
    "generation_factor": ("matrix units reach, times the class's share", "times", 0.15),
    "generation_latency": ("latency of kernels and reductions, times the newest's", "times", 0.40),
    "precision_factor": ("peak reached, times 16-bit's", "times", 0.15),
    "link_efficiency": ("link's bandwidth reached", "share", 0.50, 0.0, 1.0),
    "tcp_bytes_per_second": ("TCP between two nodes at most", "bytes/s", 0.50),
    "link_latency": ("latency of a hop in a collective, times the bare link's", "times", 0.20),
    "attention_factor": ("rate of fused attention, times Ampere's", "times", 0.25),
    "device_compute": ("arithmetic rate, times its generation's", "times", 0.15),
    "device_bandwidth": ("memory rate, times its data sheet's usual share", "times", 0.15),
    "device_host": ("host time a kernel beside it, times the usual", "times", 0.40),
    "workload_scale": ("device time, times its operations'", "times", 0.12),
    "shape_scale": ("layer's time, times its parts'", "times", 0.10),
    # Whoever measured has hosts, builds and habits that shift all of their runs.
    "setting_scale": ("whole step, times other settings'", "times", 0.12),
    "framework.compute": ("arithmetic rate, times the device's usual", "times", 0.15),
    "framework.bandwidth": ("memory rate, times the device's usual", "times", 0.25),
    "framework.host_seconds": ("host time a kernel", "s", 0.60),
    "framework.step_seconds": ("fixed time a step", "s", 0.60),
    "framework.gap_seconds": ("idle time between kernels", "s", 0.50),
    "framework.fusion": ("element-wise traffic left after fusions", "share", 0.30),
    "framework.recompute": ("forward done again by full recomputation", "share", 0.15, 0.3, 1.5),
    "framework.shard_power": (
        "ZeRO-3 traffic hidden (power of a norm; 1: none)", "power", 0.15, 1.0, 12.0),
    "framework.loss_traffic": ("bytes that the loss moves, times one pass", "times", 0.30),
    "framework.bare_gradients": ("gradient traffic that nothing hides", "share", 0.60, 0.0, 1.0),
    "framework.tensor_pipeline_seconds": (
        "host time a layer where tensor groups meet pipelines", "s", 0.30),
    "framework.states_share": (
        "weights and states, times what their types say", "times", 0.05, 0.0, math.inf, 0.03),
    "framework.kept_share": (
        "activations kept, times what operations need", "times", 0.12, 0.0, math.inf, 0.1),
    "framework.chosen_share": (
        "activations kept by selective recomputation, times the need", "times", 0.15, 0.0, math.inf, 0.1),
    "framework.logits_share": (
        "memory of logits, times what their types say", "times", 0.25, 0.0, math.inf, 0.1),
    "framework.bucket_copies": (
        "copies of gradients in buckets", "copies", 0.30, 0.0, math.inf, 0.2),
    "framework.whole_inputs": (
        "gathered layer inputs held at once", "tensors", 0.50, 0.0, math.inf, 0.3),
    "framework.inputs_ahead": (
        "gathered layer inputs held ahead", "tensors", 0.50, 0.0, math.inf, 0.3),
    "framework.workspace_bytes": (
        "workspace of matrix libraries", "bytes", 0.50, 0.0, math.inf, 0.3),
    "framework.usable_share": (
        "stated device memory that can be filled", "share", 0.06, 0.0, math.inf, 0.04),
    "kind.compute": ("arithmetic rate, times the prior", "times", 0.10),
    "kind.bandwidth": ("memory rate, times the prior", "times", 0.15),
    "kind.host_seconds": ("host time a kernel, times the prior", "s", 0.40),
    "roofline_power": (
        "arithmetic joins traffic of an operation (power of a norm)", "power", 0.30, 1.0, 12.0),
    "pointwise_flops": (
        "scalar operations for each element moved in fp64", "FLOP an element", 0.50),
    "direct_share": ("rate of dense convolutions not 3x3 or 5x5, of those that are", "share", 0.30),
    "double_share": ("fp64 products' limit, of the fp32 rate", "share", 0.40),
    "narrow_bandwidth_share": ("bandwidth of 16-bit numbers without a unit", "share", 0.30),
    "group_width_power": ("grouped convolutions gain with a group's width (power)", "power", 0.30),
    "replicate_share": (
        "DataParallel's copying on the host, of a forward's launches", "share", 0.40),
    "channels_last_share": ("time of 16-bit convolutions in nhwc over nchw", "share", 0.15),
    "channels_last_grouped": ("rate of grouped ones in nhwc over 16 wide in nchw", "share", 0.50),
    "tensor_jitter": ("host time of a layer gained with each tensor rank", "share", 0.60),
    "launch_seconds": ("device time lost at each kernel", "s", 0.40),
    "tile": ("matrix side at which a matrix unit is half filled", "elements", 0.50),
    "wave_flops_per_element": ("rate for each output element in flight", "FLOP/s an element", 0.40),
    "layer_power": (
        "device time joins the host's floor (power of a norm)", "power", 0.30, 1.0, 24.0),
    "overlap_power": (
        "gradients hide behind backward (power of a norm; 1: not)", "power", 0.25, 1.0, 12.0),
    "gather_exposed": ("gathering of ZeRO-1 and 2 that nothing hides", "share", 0.30, 0.0, 1.0),
    "tensor_hop_seconds": ("wait at a hop of a tensor group over nodes", "s", 0.25),
    "point_to_point_exposed": ("pipeline transfers that nothing hides", "share", 0.40, 0.0, 1.5),
    "expert_exposed": ("experts' all-to-alls that nothing hides", "share", 0.40, 0.0, 1.5),
    "expert_imbalance": ("load of the fullest expert, times the mean", "times", 0.30, 1.0, 24.0),
    "straggler_share": ("step time lost at each doubling of nodes", "share", 0.60),
    "dataparallel_contention": ("host time that DataParallel adds with each device", "share", 0.40),
    "pageable_bytes_per_second": (
        "copying of samples to a device by DataParallel", "bytes/s", 0.40),
    "server_power": ("parameter servers join workers (power of a norm)", "power", 0.20, 1.0, 12.0),
}  # fmt: skip
FAMILIES = {name: Family(*row) for name, row in _ROWS.items()}
# Of single constants: priors known better than their family's (vendors' collective benchmarks reach
# 0.7-0.8 of NVLink on every machine with a switch), or worse: runs without a framework may be of
# any, and the profiles lie this far apart.
KNOWN_SD = {
    "link_efficiency[nvlink]": 0.15, "link_efficiency[infiniband]": 0.30,
    f"link_efficiency[{MEASURED}]": 0.10, "framework.compute[other]": 0.25,
    "framework.bandwidth[other]": 0.40, "framework.fusion[other]": 0.45,
}  # fmt: skip
_KNOWN_MOST = {
    "vector_efficiency[conv]": 4.0, "narrow_efficiency[conv]": 8.0,
    f"link_efficiency[{MEASURED}]": 2.0,
}  # fmt: skip


def bounds_of(name: str) -> tuple[float, float]:
    """Return the least and the most that a constant can be, in its own unit."""
    family = FAMILIES[name.partition("[")[0]]
    return family.low, _KNOWN_MOST.get(name, family.high)


_FORMATS: Mapping[str, Callable[[float], str]] = {
    "share": lambda value: f"{100 * value:.3g} %",
    "times": lambda value: f"{value:.3g}x",
    "s": format_seconds,
    "bytes": format_bytes,
    "bytes/s": lambda value: f"{value / 1e9:.3g} GB/s",
    "FLOP/s an element": lambda value: f"{value / 1e9:.3g} GFLOP/s",
}
_KEYS = {
    "other": "other frameworks", "conv": "convolutions", "conv_1x1": "1x1 convolutions",
    "conv_grouped": "grouped convolutions", "conv_depthwise": "depthwise convolutions",
    "matmul": "matrix products", "norm": "layer norms", "batch_norm": "batch norms",
    "eager": "frameworks that run eagerly", "graph": "frameworks that run graphs",
    "fused": "frameworks with fused kernels",
}  # fmt: skip


def family_words(name: str) -> str:
    """Return what a constant's family is called, its own name where that has no words."""
    family = name.partition("[")[0]
    return FAMILIES[family].words if family in FAMILIES else family.replace("_", " ")


def key_words(name: str) -> str:
    """Return which of its family a constant is; "" where it is the only one."""
    key = name.partition("[")[2].removesuffix("]")
    return _KEYS.get(key, key)


def constant_words(name: str) -> str:
    """Return what a constant is called: `host time a kernel, megatron`."""
    return ", ".join(filter(None, (family_words(name), key_words(name))))


def value_words(name: str, value: float, prior: float = 1.0) -> str:
    """Return a constant's value with its unit; what moves a kind of frameworks over its prior."""
    family = name.partition("[")[0]
    unit = FAMILIES[family].unit if family in FAMILIES else ""
    if family.startswith("kind.") and prior:
        value, unit = value / prior, "times"
    return _FORMATS[unit](value) if unit in _FORMATS else f"{value:.3g}"
