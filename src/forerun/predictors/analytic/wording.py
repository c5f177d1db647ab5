"""Wording: what each constant is called where people read it, and how its value is written.

Names such as `framework.host_seconds[megatron]` are for programs; a person reads "host time a
kernel, megatron: 93.0 us".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from forerun.units import format_bytes, format_seconds


def _share(value: float) -> str:
    return f"{100 * value:.3g} %"


def _times(value: float) -> str:
    return f"{value:.3g}x"


def _plain(value: float) -> str:
    return f"{value:.3g}"


def _flops(value: float) -> str:
    return f"{value / 1e9:.3g} GFLOP/s"


def _rate(value: float) -> str:
    return f"{value / 1e9:.3g} GB/s"


# Families: what the constant says, and how it is written. A key follows after a comma.
WORDS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "tensor_efficiency": ("peak reached on matrix units", _share),
    "vector_efficiency": ("stated peak reached on vector units", _share),
    "double_efficiency": ("stated fp64 peak reached", _share),
    "narrow_efficiency": ("stated fp32 peak reached by 16-bit numbers without a unit", _share),
    "bandwidth_efficiency": ("device memory's bandwidth reached", _share),
    "generation_factor": ("matrix units reach, times the class's share", _times),
    "generation_latency": ("latency of kernels and reductions, times the newest's", _times),
    "precision_factor": ("peak reached, times 16-bit's", _times),
    "link_efficiency": ("link's bandwidth reached", _share),
    "link_latency": ("latency of a hop in a collective, times the bare link's", _times),
    "attention_factor": ("rate of fused attention, times Ampere's", _times),
    "device_compute": ("arithmetic rate, times its generation's", _times),
    "device_bandwidth": ("memory rate, times its data sheet's usual share", _times),
    "device_host": ("host time a kernel beside it, times the usual", _times),
    "workload_scale": ("device time, times its operations'", _times),
    "shape_scale": ("layer's time, times its parts'", _times),
    "framework.compute": ("arithmetic rate, times the device's usual", _times),
    "framework.bandwidth": ("memory rate, times the device's usual", _times),
    "framework.host_seconds": ("host time a kernel", format_seconds),
    "framework.step_seconds": ("fixed time a step", format_seconds),
    "framework.gap_seconds": ("idle time between kernels", format_seconds),
    "framework.fusion": ("element-wise traffic left after fusions", _share),
    "framework.recompute": ("forward done again by full recomputation", _share),
    "framework.shard_power": ("ZeRO-3 traffic hidden (power of a norm; 1: none)", _plain),
    "framework.loss_traffic": ("bytes that the loss moves, times one pass", _times),
    "framework.bare_gradients": ("gradient traffic that nothing hides", _share),
    "framework.tensor_pipeline_seconds": (
        "host time a layer where tensor groups meet pipelines", format_seconds,
    ),
    "framework.states_share": ("weights and states, times what their types say", _times),
    "framework.kept_share": ("activations kept, times what operations need", _times),
    "framework.chosen_share": ("activations kept by selective recomputation, times the need", _times),
    "framework.logits_share": ("memory of logits, times what their types say", _times),
    "framework.bucket_copies": ("copies of gradients in buckets", _plain),
    "framework.whole_inputs": ("gathered layer inputs held at once", _plain),
    "framework.inputs_ahead": ("gathered layer inputs held ahead", _plain),
    "framework.workspace_bytes": ("workspace of matrix libraries", format_bytes),
    "framework.usable_share": ("stated device memory that can be filled", _share),
    "kind.compute": ("arithmetic rate, times the prior", _times),
    "kind.bandwidth": ("memory rate, times the prior", _times),
    "kind.host_seconds": ("host time a kernel, times the prior", _times),
    "roofline_power": ("arithmetic joins traffic of an operation (power of a norm)", _plain),
    "pointwise_flops": ("scalar operations for each element moved in fp64", _plain),
    "direct_share": ("rate of dense convolutions not 3x3 or 5x5, of those that are", _share),
    "double_share": ("fp64 products' limit, of the fp32 rate", _share),
    "narrow_bandwidth_share": ("bandwidth of 16-bit numbers without a unit", _share),
    "group_width_power": ("grouped convolutions gain with a group's width (power)", _plain),
    "replicate_share": ("DataParallel's copying on the host, of a forward's launches", _share),
    "channels_last_share": ("time of 16-bit convolutions in nhwc over nchw", _share),
    "channels_last_grouped": ("rate of grouped ones in nhwc over 16 wide in nchw", _share),
    "tensor_jitter": ("host time of a layer gained with each tensor rank", _share),
    "launch_seconds": ("device time lost at each kernel", format_seconds),
    "tile": ("matrix side at which a matrix unit is half filled", _plain),
    "wave_flops_per_element": ("rate for each output element in flight", _flops),
    "layer_power": ("device time joins the host's floor (power of a norm)", _plain),
    "overlap_power": ("gradients hide behind backward (power of a norm; 1: not)", _plain),
    "gather_exposed": ("gathering of ZeRO-1 and 2 that nothing hides", _share),
    "tensor_hop_seconds": ("wait at a hop of a tensor group over nodes", format_seconds),
    "point_to_point_exposed": ("pipeline transfers that nothing hides", _share),
    "expert_exposed": ("experts' all-to-alls that nothing hides", _share),
    "expert_imbalance": ("load of the fullest expert, times the mean", _times),
    "straggler_share": ("step time lost at each doubling of nodes", _share),
    "dataparallel_contention": ("host time that DataParallel adds with each device", _share),
    "pageable_bytes_per_second": ("copying of samples to a device by DataParallel", _rate),
    "server_power": ("parameter servers join workers (power of a norm)", _plain),
}  # fmt: skip
_KEYS = {"other": "other frameworks", "conv": "convolutions", "conv_1x1": "1x1 convolutions",
         "conv_grouped": "grouped convolutions", "conv_depthwise": "depthwise convolutions",
         "matmul": "matrix products", "norm": "layer norms", "batch_norm": "batch norms",
         "eager": "frameworks that run eagerly", "graph": "frameworks that run graphs",
         "fused": "frameworks with fused kernels"}  # fmt: skip


def family_words(name: str) -> str:
    """Return what a constant's family is called, its own name where that has no words."""
    family = name.partition("[")[0]
    return WORDS[family][0] if family in WORDS else family.replace("_", " ")


def key_words(name: str) -> str:
    """Return which of its family a constant is; "" where it is the only one."""
    key = name.partition("[")[2].removesuffix("]")
    if name.startswith("shape_scale"):
        return _shape_words(key)
    return _KEYS.get(key, key.replace("_", " ") if key in _CLASSES else key)


def _shape_words(key: str) -> str:
    """Return what `layer_shapes.cut_shape` named; ways to cut it that are 1 are left out."""
    letters = {"h": "hidden", "f": "ffn", "a": "heads", "e": "experts", "s": "sequence",
               "b": "micro-batch", "tp": "tp", "cp": "cp", "ep": "ep"}  # fmt: skip
    said = []
    for word in key.split():
        name = word.rstrip("0123456789/")
        count = word[len(name) :]
        if name not in letters or not count:
            said.append(word)
        elif count != "1" or name == "b":
            said.append(f"{letters[name]} {count}")
    return " ".join(said)


def constant_words(name: str) -> str:
    """Return what a constant is called: `host time a kernel, megatron`."""
    return ", ".join(filter(None, (family_words(name), key_words(name))))


def value_words(name: str, value: float, prior: float = 1.0) -> str:
    """Return a constant's value with its unit; what moves a kind of frameworks over its prior."""
    family = name.partition("[")[0]
    if family.startswith("kind.") and prior:
        value /= prior
    return WORDS[family][1](value) if family in WORDS else _plain(value)


_CLASSES = ("elementwise", "softmax", "pool", "reduce", "embedding", "copy", "optimizer",
            "attention", "recurrent", "unknown")  # fmt: skip
