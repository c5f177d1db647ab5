"""Operation costs: what one micro-batch costs on one device, for every instance at once.

Each operation is a roofline with a rounded corner whose compute side sinks where a product is thin or
too small to fill the device: 1 / fill = 1 + tile/m + tile/n + tile/2k + wave/elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from forerun.arrays import BoolArray, FloatArray
from forerun.domain.graph import KIND_INDEX, KINDS, OpKind, Phase
from forerun.domain.hardware import Device
from forerun.domain.plan import RECOMPUTE
from forerun.domain.workload import ACTIVATION_BYTES, Workload
from forerun.errors import RequestError
from forerun.predictors.analytic.communication import LayerComm, p_norm
from forerun.predictors.analytic.constants import PRIORS, Constants, constant_of
from forerun.predictors.analytic.flat import (
    IS_CONV,
    IS_FUSED_AWAY,
    IS_MATRIX,
    SLOT_INDEX,
    FlatOps,
    Keys,
    convolution_reads,
    distinct_ops,
    slots_of,
)
from forerun.predictors.analytic.measured import MeasuredOps

# What may compute products; each has its table of efficiencies in `Constants`.
UNITS = ("tensor", "vector", "double", "narrow")
_ATTENTION, _REDUCE = KIND_INDEX[OpKind.ATTENTION], KIND_INDEX[OpKind.REDUCE]
_CONV, _NORM = KIND_INDEX[OpKind.CONV], KIND_INDEX[OpKind.NORM]
_ELEMENTWISE = KIND_INDEX[OpKind.ELEMENTWISE]
_BACKWARD = [i for name, i in SLOT_INDEX.items() if name.endswith("_backward")]
_FORWARD = [i for name, i in SLOT_INDEX.items() if not name.endswith("_backward")]
# Of a convolution's multiplications: F(4x4, 3x3) and F(4x4, 5x5), the smallest of Winograd's algorithms
# in vendor libraries, which take these kernels at stride 1 (Lavin and Gray 2015; cuDNN).
WINOGRAD_SHARE = 36.0 / 144.0
WIDE_WINOGRAD_SHARE = 64.0 / 400.0
# Of a 5 x 5 kernel: pixels, and how many are read for each that is written: fewer with strides, more
# where images lose their edges (3 x 3 kernels that look alike read 25/9).
_WIDE, _LEAST_READ, _MOST_READ = 25.0, 0.95, 2.7
# Stated boost clocks, GHz: vendors' data sheets. Boards in racks run at them at most. On desks and in
# laptops a board runs as fast as its chip can until it meets its power limit: power goes with f V^2
# and V rises with f, so the clock goes with the watts a core to the power 0.4. Other boards are taken
# to run at their stated rate.
DESK_GHZ: Mapping[str, float] = PRIORS["desk_ghz"]
RACK_GHZ: Mapping[str, float] = PRIORS["rack_ghz"]
# What chips of a generation reach, GHz, and the watts a core that this takes; round numbers.
CHIPS: Mapping[str, tuple[float, float]] = {
    "pascal": (1.85, 0.065), "volta": (1.75, 0.055), "turing": (1.85, 0.060),
    "ampere": (1.85, 0.035), "ada": (2.70, 0.028),
}  # fmt: skip
POWER = 0.4
# Watts a TFLOP/s of 16 bits that the SXM boards of a generation are allowed.
JOULES_PER_TFLOP: Mapping[str, float] = {"volta": 2.4, "ampere": 1.28, "hopper": 0.708}
# Operations that are priced at a time: larger arrays cost more to get from the system than to fill.
_BLOCK = 8192
# A precision with less than this share of the fp32 rate meets no power limit.
DARK_SHARE = 0.25


@lru_cache(maxsize=4096)
def clock_share(device: Device, precision: str) -> float:
    """Return the clock at which a device computes in a precision, over its stated one."""
    stated, chip = stated_ghz(device), CHIPS.get(device.generation.lower())
    if chip is None or not stated:
        return 1.0
    top, watts = chip
    if device.flops(precision) >= DARK_SHARE * device.flops("fp32"):
        cores = device.flops("fp32") / (2e9 * stated)
        top = top * min((device.watts / cores / watts) ** POWER, 1.0)
    return (min(top, stated) if device.id in RACK_GHZ else top) / stated


def most_clock_share(device: Device) -> float:
    """Return how far a device's clock can lie over its stated one, at least 1."""
    chip = CHIPS.get(device.generation.lower())
    if chip is None or device.id not in DESK_GHZ:
        return 1.0
    return max(chip[0] / DESK_GHZ[device.id], 1.0)


def power_share(device: Device) -> float:
    """Return what a board's power limit leaves of its matrix units' rate, over its generation's best-fed board."""
    usual = JOULES_PER_TFLOP.get(device.generation.lower(), 0.0)
    if device.kind != "gpu" or not usual or stated_ghz(device):
        return 1.0
    fed = device.watts / (device.flops("fp16") / 1e12)
    return float(min(fed / usual, 1.0) ** POWER)


def stated_ghz(device: Device) -> float:
    """Return a board's stated boost clock, 0 where it is not known."""
    return DESK_GHZ.get(device.id) or RACK_GHZ.get(device.id, 0.0)


def floor_flops_per_sample(workload: Workload) -> float:
    """Return a lower bound of the FLOPs of one sample: dense convolutions may be Winograd's."""
    columns = workload.graph.columns
    depth, _, ratio = convolution_reads(columns)
    read = _WIDE * ratio
    wide = (depth % _WIDE == 0) & (read > _LEAST_READ) & (read < _MOST_READ)
    least = np.where(wide, WIDE_WINOGRAD_SHARE, WINOGRAD_SHARE)
    share = np.where(columns.kind == _CONV, least, 1.0)
    share = np.where(IS_MATRIX[columns.kind], share, 0.0)
    if not workload.detailed:
        share = share * WINOGRAD_SHARE
    return float((columns.flops * columns.repeat * share).sum())


def fastest_rate(device: Device, workload: Workload) -> float:
    """Return the highest FLOP/s that the workload's precision could run at: on TF32 units, overclocked."""
    rate = device.flops(workload.precision)
    if workload.precision == "fp32":
        rate = max(rate, device.peak_flops.get("tf32", 0.0))
    rate = max(rate, device.flops("fp32") if workload.precision != "fp64" else 0.0)
    return rate * most_clock_share(device)


def model_flops(workload: Workload) -> tuple[float, float, float]:
    """Return FLOPs of one sample: forward and backward, then what each kind of recomputation adds.

    The first are the model FLOPs of Chowdhery et al. 2022 (appendix B), of causal attention the half that
    is computed, without what fused attention computes again in its own backward pass. The others: of selective and of full recomputation.
    """
    ops, graph = distinct_ops(workload), workload.graph
    flops, slots = ops.flops * ops.repeat, slots_of(workload, ops)
    before, after = (
        graph.total("flops", p, OpKind.ATTENTION) for p in (Phase.FORWARD, Phase.BACKWARD)
    )
    kept, cheap = (flops[slots == SLOT_INDEX[n]].sum() for n in ("layer_forward", "layer_selected"))
    return (float(flops.sum() - max(after - 2.0 * before, 0.0)), float(cheap), float(kept + cheap))


def peak_flops(device: Device, workload: Workload) -> float:
    """Return the dense peak FLOP/s of a workload's precision, NaN where not known.

    Convolutions in fp32 count at the TF32 rate where they run at it, in the share that they have.
    """
    try:
        peak = device.flops(workload.precision)
    except RequestError:
        return np.nan
    if not convolves_on_tf32(device, workload):
        return peak
    ops = workload.graph.columns
    flops = ops.flops * ops.repeat
    share = flops[IS_CONV[ops.kind]].sum() / max(flops.sum(), 1.0)
    return float(1.0 / (share / device.peak_flops["tf32"] + (1.0 - share) / peak))


def effective_rates(
    device: Device, workload: Workload, constants: Constants
) -> tuple[FloatArray, FloatArray]:
    """Return (FLOP/s, bytes/s) that large operations of each class reach, each (kinds,)."""
    precision, generation = device.computed_as(workload.precision), device.generation.lower()
    unit, framework = unit_of(device, workload), constants.framework(workload.framework)
    on_unit = unit == "tensor"
    factor = constant_of("generation_factor", constants.generation_factor, generation)
    vector = device.flops("fp64" if precision == "fp64" else "fp32")
    matrix = device.flops(precision) * (
        factor * constants.precision_factor.get(precision, 1.0)
        if on_unit
        else constants.vector_share.get(generation, 1.0)
    )
    shares: Mapping[str, float] = getattr(constants, f"{unit}_efficiency")
    rates = _by_kind(shares, 0.25) * np.where(IS_MATRIX, matrix, vector)
    if precision == "fp64":
        most = constants.double_share * device.flops("fp32")
        rates = np.where(IS_MATRIX, (rates**-2.0 + most**-2.0) ** -0.5, rates)
    if precision in ("fp8", "fp4"):  # recipes keep attention in 16 bits
        half = device.flops("bf16") * factor
        rates[_ATTENTION] = constants.tensor_efficiency[OpKind.ATTENTION] * half
    if on_unit and workload.fused_attention:
        older = constants.attention_factor.get(generation, 1.0)
        rates[_ATTENTION] *= older ** (1.0 - framework.own_attention)
    if convolves_on_tf32(device, workload):
        conv = _by_kind(constants.tensor_efficiency, 0.25) * device.peak_flops["tf32"]
        conv = conv * factor * constants.precision_factor["tf32"]
        rates = np.where(IS_CONV, np.maximum(rates, conv), rates)
    clock = _clock(device, precision, constants)
    own = constants.device_compute.get(device.id, 1.0) * framework.compute
    if on_unit:
        own = own * power_share(device)
    rates = np.where(IS_MATRIX, rates * clock * own, vector * clock)
    bandwidth = _by_kind(constants.bandwidth_efficiency, 0.5) * framework.bandwidth
    bandwidth = bandwidth * constants.device_bandwidth.get(device.id, 1.0)
    if unit == "narrow":
        bandwidth = bandwidth * constants.narrow_bandwidth_share
    return rates, bandwidth * device.memory_bytes_per_second


def _clock(device: Device, precision: str, constants: Constants) -> float:
    slow = device.kind == "gpu" and device.watts < constants.low_power_watts
    slow = slow and not stated_ghz(device)
    return constants.low_power_share if slow else clock_share(device, precision)


def convolves_on_tf32(device: Device, workload: Workload) -> bool:
    """Whether fp32 convolutions run on TF32 units, as frameworks do by default since 2020."""
    tf32 = device.peak_flops.get("tf32", 0.0)
    return device.computed_as(workload.precision) == "fp32" and tf32 > device.flops("fp32")


def unit_of(device: Device, workload: Workload) -> str:
    """Return which of `UNITS` computes a workload's products; narrow: 16 bits on fp32 units."""
    precision = device.computed_as(workload.precision)
    if device.has_matrix_unit(precision):
        return "tensor"
    if precision == "fp64":
        return "double"
    return "narrow" if ACTIVATION_BYTES[workload.precision] < 4.0 else "vector"


def _by_kind(values: Mapping[str, float], default: float) -> FloatArray:
    return np.array([values.get(kind, default) for kind in KINDS])


# What R machines, a device running a workload's framework and precision, reach.
Rates = Mapping[str, FloatArray]


def rates_of(flat: FlatOps, constants: Constants) -> Rates:
    """Return what the machines of flat operations reach."""
    rows: list[dict[str, Any]] = []
    for device, workload in flat.machines:
        framework = constants.framework(workload.framework)
        flops, bandwidth = effective_rates(device, workload, constants)
        fusion = np.where(IS_FUSED_AWAY, framework.fusion, 1.0)
        fusion[_REDUCE] = framework.loss_traffic
        if ACTIVATION_BYTES[workload.precision] < 4.0:
            fusion[_NORM] *= framework.norm_traffic
        slower = constants.generation_latency.get(device.generation.lower(), 1.0)
        gap = (constants.launch_seconds + framework.gap_seconds) * slower
        on_vectors = unit_of(device, workload) in ("vector", "narrow")
        on_vectors = on_vectors and not convolves_on_tf32(device, workload)
        # What is in flight must cover the latency at the clock that the device runs at.
        own = device.computed_as(workload.precision)
        clock = _clock(device, own, constants)
        # What 8 and 4 bits bring where a device has them: what products in 16 bits reach, over theirs.
        narrow, half_rate = own in ("fp8", "fp4"), 1.0
        if narrow:
            reached = device.flops(own) * constants.precision_factor.get(own, 1.0)
            half_rate = device.flops("bf16") / reached
        rows.append({
            # Each (kinds,): FLOP/s, bytes/s, and the share of activations' traffic that remains.
            "flops": flops, "bandwidth": bandwidth, "fusion": fusion,
            "wave": slower * clock / (constants.vector_wave_share if on_vectors else 1.0),
            "launch": constants.cpu_launch_seconds if device.kind == "cpu" else gap,
            "host": framework.host_seconds * constants.device_host.get(device.id, 1.0),
            "direct": constants.direct_share if on_vectors else 1.0,
            "half_rate": half_rate,
            # Seconds of a byte that a cast moves, as element-wise work does.
            "cast": fusion[_ELEMENTWISE] / bandwidth[_ELEMENTWISE] if narrow else 0.0,
            # Passes over a filter to bring it into the kernel's order, and into Winograd's form.
            "filters": framework.filter_passes,
            "transforms": constants.winograd_passes if on_vectors else 0.0,
            **{n: getattr(framework, n) for n in ("recompute", "forward_overlap", "backward_overlap")},
        })  # fmt: skip
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def operation_seconds(flat: FlatOps, rates: Rates, constants: Constants) -> FloatArray:
    """Return device seconds of each operation with its repeats, (E,)."""
    starts = range(0, max(len(flat.columns["rate"]), 1), _BLOCK)
    blocks = ({n: v[i : i + _BLOCK] for n, v in flat.columns.items()} for i in starts)
    return np.concatenate([_block_seconds(ops, rates, constants) for ops in blocks])


def _block_seconds(ops: Mapping[str, Any], rates: Rates, constants: Constants) -> FloatArray:
    def where(mask: BoolArray, factor: ArrayLike) -> FloatArray:
        return np.where(mask, factor, 1.0)

    machine, kind = np.divmod(ops["rate"], len(KINDS))
    imbalance = where(ops["experts"], constants.expert_imbalance)
    waves = ops["waves"] * rates["wave"][machine] / constants.wave_flops_per_element
    lost = np.minimum(1.0 + (constants.tile * ops["tiles"] + waves), 1e4)
    lost = lost * ops["width"] ** -constants.group_width_power
    compute = ops["flops"] * imbalance * lost + ops["moved"] * constants.pointwise_flops
    compute = compute / rates["flops"].ravel()[ops["rate"]]
    compute = compute / where(ops["direct"], rates["direct"][machine])
    compute = compute / where(ops["half_grouped"], constants.channels_last_grouped)
    compute = compute / where(ops["half_head"], rates["half_rate"][machine])
    winograd = (kind == _CONV) & ~ops["direct"]
    passes = 1.0 + np.where(IS_CONV[kind], rates["filters"][machine], 0.0)
    passes = passes + np.where(winograd, rates["transforms"][machine], 0.0)
    moved = (
        ops["traffic"] * imbalance * rates["fusion"].ravel()[ops["rate"]] + ops["weights"] * passes
    )
    moved = moved / rates["bandwidth"].ravel()[ops["rate"]]
    seconds = p_norm(compute, moved, constants.roofline_power)
    seconds = seconds * where(ops["half_conv"], constants.channels_last_share)
    seconds = seconds + ops["cast"] * rates["cast"][machine]
    seconds = seconds + (ops["launches"] + ops["loops"]) * rates["launch"][machine]
    return np.asarray(seconds * ops["repeat"])


def _bare(
    sent: FloatArray, products: FloatArray, overlap: FloatArray, constants: Constants
) -> FloatArray:
    """Return the seconds of traffic that no products hide, all where `overlap` is 0."""
    left = p_norm(products, sent, constants.overlap_power) - products
    return sent + overlap * (left - sent)


def instance_costs(
    flat: FlatOps, keys: Keys, scale: FloatArray, comm: LayerComm, constants: Constants,
    measured: MeasuredOps | None = None,
) -> dict[str, FloatArray]:  # fmt: skip
    """Return what one micro-batch costs on one device, for I instances: columns of shape (I,).

    Seconds of all layers, the host's as its excess. `ends`: entry and exit. scale: of device time, (I,).
    """
    rates = rates_of(flat, constants)
    seconds = operation_seconds(flat, rates, constants)
    by_slot = np.bincount(flat.columns["slot"], seconds, flat.launched.size).astype(np.float64)
    sums = by_slot.reshape(flat.launched.shape)
    host = flat.launched * rates["host"][flat.machine][:, None]
    more: dict[str, FloatArray] = {}
    if measured is not None:
        ids = [flat.machines[i][0].id for i in flat.machine]
        own = (constants.device_compute, constants.device_bandwidth)
        products, others = (np.array([table.get(name, 1.0) for name in ids]) for table in own)
        known = measured.measured[:, None]
        sums = np.where(known, measured.seconds(products, others), sums)
        host = np.where(known, 0.0, host)
        more = dict(measured.columns)
    time = {name: sums[:, i] * scale for name, i in SLOT_INDEX.items()}
    host[:, : SLOT_INDEX["embed_forward"]] *= 1.0 + constants.tensor_jitter * (
        keys.tp[:, None] - 1.0
    )
    launch = {name: host[:, i] for name, i in SLOT_INDEX.items()}
    full = keys.recompute == RECOMPUTE.index("full")
    selective = keys.recompute == RECOMPUTE.index("selective")

    def again(whole: FloatArray, selected: FloatArray) -> FloatArray:
        return np.where(full, whole, np.where(selective, selected, 0.0))

    forward = time["layer_forward"] + time["layer_selected"]
    recomputed = again(forward * rates["recompute"][flat.machine], time["layer_selected"])
    tensor, expert, context = comm
    # Sums over tensor ranks hide in backward behind gradients of weights, half of its products.
    machine, half = flat.machine, 0.5 * time["layer_backward"]
    back = _bare(tensor, half, rates["backward_overlap"][machine], constants)
    tensor = _bare(tensor, forward, rates["forward_overlap"][machine], constants)
    inside = tensor + expert + context
    device_forward = forward + inside
    # Backward repeats expert traffic, and moves keys and values and their gradients.
    sent = back + expert + 2.0 * context + np.where(full, inside, 0.0)
    device_backward = time["layer_backward"] + recomputed + sent
    host_forward = launch["layer_forward"] + launch["layer_selected"]
    host_backward = launch["layer_backward"] + again(host_forward, launch["layer_selected"])
    power = constants.layer_power
    span = p_norm(device_backward, host_backward, power)
    excess = (
        p_norm(device_forward, host_forward, power) - device_forward
        + span - device_backward
    )  # fmt: skip
    ends_forward = time["embed_forward"] + time["head_forward"]
    ends_backward = time["embed_backward"] + time["head_backward"]
    ends = ends_forward + ends_backward
    ends_host = host[:, SLOT_INDEX["embed_forward"] :].sum(axis=1)
    return {
        "layer_forward": forward, "layer_backward": time["layer_backward"],
        "layer_recompute": recomputed, "layer_tensor_comm": tensor * (1.0 + full) + back,
        "layer_expert_comm": expert * (2.0 + full), "layer_context_comm": context * (3.0 + full),
        "layer_host": excess, "layer_backward_span": span,
        "host_forward": host[:, _FORWARD].sum(axis=1),
        "host_backward": host[:, _BACKWARD].sum(axis=1), "ends_forward": ends_forward,
        "ends_backward": ends_backward, "ends_host": p_norm(ends, ends_host, power) - ends,
        "layer_launches": host_forward + host_backward,
        "first_end": time["embed_forward"] + time["embed_backward"],
        "last_end": time["head_forward"] + time["head_backward"], **more,
    }  # fmt: skip
