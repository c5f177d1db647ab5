"""The constants that runs may move: what they are called, unit, prior width and bounds.

Names such as `framework.host_seconds[megatron]` are for programs; a person reads "host time a
kernel, megatron: 93.0 us".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from forerun.predictors.analytic.constants import MEASURED
from forerun.units import format_bytes, format_seconds


@dataclass(frozen=True)
class Family:
    """A constant, table or, as `framework.` or `kind.`, field of a profile that runs may move.

    words: its name, before its key. sd: log standard deviation of the prior; `shared_sd` that of a
    shift of all frameworks. low, high: bounds, in the unit.
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
FAMILIES: Mapping[str, Family] = {
    "tensor_efficiency": Family("peak reached on matrix units", "share", 0.25, high=1.0),
    "vector_efficiency": Family("stated peak reached on vector units", "share", 0.30, high=1.2),
    "double_efficiency": Family("stated fp64 peak reached", "share", 0.30, high=1.0),
    "narrow_efficiency": Family(
        "stated fp32 peak reached by 16-bit numbers without a unit", "share", 0.40, high=2.0),
    "bandwidth_efficiency": Family("device memory's bandwidth reached", "share", 0.25, high=1.25),
    "generation_factor": Family("matrix units reach, times the class's share", "times", 0.15),
    "generation_latency": Family(
        "latency of kernels and reductions, times the newest's", "times", 0.40),
    "precision_factor": Family("peak reached, times 16-bit's", "times", 0.15),
    "link_efficiency": Family("link's bandwidth reached", "share", 0.50, high=1.0),
    "link_latency": Family(
        "latency of a hop in a collective, times the bare link's", "times", 0.20),
    "attention_factor": Family("rate of fused attention, times Ampere's", "times", 0.25),
    "device_compute": Family("arithmetic rate, times its generation's", "times", 0.15),
    "device_bandwidth": Family("memory rate, times its data sheet's usual share", "times", 0.15),
    "device_host": Family("host time a kernel beside it, times the usual", "times", 0.40),
    "workload_scale": Family("device time, times its operations'", "times", 0.12),
    "shape_scale": Family("layer's time, times its parts'", "times", 0.10),
    "framework.compute": Family("arithmetic rate, times the device's usual", "times", 0.15),
    "framework.bandwidth": Family("memory rate, times the device's usual", "times", 0.25),
    "framework.host_seconds": Family("host time a kernel", "s", 0.60),
    "framework.step_seconds": Family("fixed time a step", "s", 0.60),
    "framework.gap_seconds": Family("idle time between kernels", "s", 0.50),
    "framework.fusion": Family("element-wise traffic left after fusions", "share", 0.30),
    "framework.recompute": Family(
        "forward done again by full recomputation", "share", 0.15, 0.3, 1.5),
    "framework.shard_power": Family(
        "ZeRO-3 traffic hidden (power of a norm; 1: none)", "power", 0.15, 1.0, 12.0),
    "framework.loss_traffic": Family("bytes that the loss moves, times one pass", "times", 0.30),
    "framework.bare_gradients": Family(
        "gradient traffic that nothing hides", "share", 0.60, high=1.0),
    "framework.tensor_pipeline_seconds": Family(
        "host time a layer where tensor groups meet pipelines", "s", 0.30),
    "framework.states_share": Family(
        "weights and states, times what their types say", "times", 0.05, shared_sd=0.03),
    "framework.kept_share": Family(
        "activations kept, times what operations need", "times", 0.12, shared_sd=0.10),
    "framework.chosen_share": Family(
        "activations kept by selective recomputation, times the need", "times", 0.15,
        shared_sd=0.10),
    "framework.logits_share": Family(
        "memory of logits, times what their types say", "times", 0.25, shared_sd=0.10),
    "framework.bucket_copies": Family(
        "copies of gradients in buckets", "copies", 0.30, shared_sd=0.20),
    "framework.whole_inputs": Family(
        "gathered layer inputs held at once", "tensors", 0.50, shared_sd=0.30),
    "framework.inputs_ahead": Family(
        "gathered layer inputs held ahead", "tensors", 0.50, shared_sd=0.30),
    "framework.workspace_bytes": Family(
        "workspace of matrix libraries", "bytes", 0.50, shared_sd=0.30),
    "framework.usable_share": Family(
        "stated device memory that can be filled", "share", 0.06, shared_sd=0.04),
    "kind.compute": Family("arithmetic rate, times the prior", "times", 0.10),
    "kind.bandwidth": Family("memory rate, times the prior", "times", 0.15),
    "kind.host_seconds": Family("host time a kernel, times the prior", "s", 0.40),
    "roofline_power": Family(
        "arithmetic joins traffic of an operation (power of a norm)", "power", 0.30, 1.0, 12.0),
    "pointwise_flops": Family(
        "scalar operations for each element moved in fp64", "FLOP an element", 0.50),
    "direct_share": Family(
        "rate of dense convolutions not 3x3 or 5x5, of those that are", "share", 0.30),
    "double_share": Family("fp64 products' limit, of the fp32 rate", "share", 0.40),
    "narrow_bandwidth_share": Family("bandwidth of 16-bit numbers without a unit", "share", 0.30),
    "group_width_power": Family(
        "grouped convolutions gain with a group's width (power)", "power", 0.30),
    "replicate_share": Family(
        "DataParallel's copying on the host, of a forward's launches", "share", 0.40),
    "channels_last_share": Family(
        "time of 16-bit convolutions in nhwc over nchw", "share", 0.15),
    "channels_last_grouped": Family(
        "rate of grouped ones in nhwc over 16 wide in nchw", "share", 0.50),
    "tensor_jitter": Family("host time of a layer gained with each tensor rank", "share", 0.60),
    "launch_seconds": Family("device time lost at each kernel", "s", 0.40),
    "tile": Family("matrix side at which a matrix unit is half filled", "elements", 0.50),
    "wave_flops_per_element": Family(
        "rate for each output element in flight", "FLOP/s an element", 0.40),
    "layer_power": Family(
        "device time joins the host's floor (power of a norm)", "power", 0.30, 1.0, 24.0),
    "overlap_power": Family(
        "gradients hide behind backward (power of a norm; 1: not)", "power", 0.25, 1.0, 12.0),
    "gather_exposed": Family(
        "gathering of ZeRO-1 and 2 that nothing hides", "share", 0.30, high=1.0),
    "tensor_hop_seconds": Family("wait at a hop of a tensor group over nodes", "s", 0.25),
    "point_to_point_exposed": Family(
        "pipeline transfers that nothing hides", "share", 0.40, high=1.5),
    "expert_exposed": Family(
        "experts' all-to-alls that nothing hides", "share", 0.40, high=1.5),
    "expert_imbalance": Family(
        "load of the fullest expert, times the mean", "times", 0.30, 1.0, 24.0),
    "straggler_share": Family("step time lost at each doubling of nodes", "share", 0.60),
    "dataparallel_contention": Family(
        "host time that DataParallel adds with each device", "share", 0.40),
    "pageable_bytes_per_second": Family(
        "copying of samples to a device by DataParallel", "bytes/s", 0.40),
    "server_power": Family(
        "parameter servers join workers (power of a norm)", "power", 0.20, 1.0, 12.0),
}  # fmt: skip
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
_SHAPE_LETTERS = {
    "h": "hidden", "f": "ffn", "a": "heads", "e": "experts", "s": "sequence", "b": "micro-batch",
    "tp": "tp", "cp": "cp", "ep": "ep",
}  # fmt: skip


def family_words(name: str) -> str:
    """Return what a constant's family is called, its own name where that has no words."""
    family = name.partition("[")[0]
    return FAMILIES[family].words if family in FAMILIES else family.replace("_", " ")


def key_words(name: str) -> str:
    """Return which of its family a constant is; "" where it is the only one."""
    key = name.partition("[")[2].removesuffix("]")
    return _shape_words(key) if name.startswith("shape_scale") else _KEYS.get(key, key)


def _shape_words(key: str) -> str:
    """Return a name of `layout.cut_shapes` in words, without ways to cut it that are 1."""
    words = []
    for word in key.split():
        letters = word.rstrip("0123456789/")
        count = word[len(letters) :]
        if letters not in _SHAPE_LETTERS or not count:
            words.append(word)
        elif count != "1" or letters == "b":
            words.append(f"{_SHAPE_LETTERS[letters]} {count}")
    return " ".join(words)


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
