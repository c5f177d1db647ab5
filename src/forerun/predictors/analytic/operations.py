"""Operation costs: what one micro-batch costs on one device, for every instance at once.

Each operation takes ||FLOPs / (peak eff(class) fill), bytes / (bandwidth eff(class))||_p + launch: a
roofline with a rounded corner, whose compute side sinks where the matrix is thin (tile) or too
small to fill the device: 1 / fill = 1 + tile/m + tile/n + tile/2k + wave/elements. The losses add,
so that time never falls when a product grows. What is no product does a few scalar operations for
each element that it moves.

Clocks: a data sheet's rate is cores x 2 x a stated boost clock. Boards for data centres run at that
clock at most. On desks and in laptops a board runs as fast as its chip can, whatever is stated,
until it meets its power limit: the power of a chip goes with f V^2, and V rises with f, so that the
clock goes with the watts a core to the power 0.4. A laptop part of 1.19 GHz runs at 1.47, a board of
1.55 GHz and 250 W at 1.8. Arithmetic that few units do, such as fp64 on these boards, meets no limit.
A board without a stated clock here is taken to run at its stated rate.

Floors: the least time that physics allows, whatever the software.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from forerun.arrays import FloatArray
from forerun.domain.graph import KIND_INDEX, OpKind
from forerun.domain.hardware import Device
from forerun.domain.plan import RECOMPUTE
from forerun.domain.workload import ACTIVATION_BYTES, Workload
from forerun.predictors.analytic.communication import LayerComm, p_norm
from forerun.predictors.analytic.constants import Constants, by_kind, constant_of
from forerun.predictors.analytic.flat import (
    IS_CONV,
    IS_FUSED_AWAY,
    IS_MATRIX,
    SLOTS,
    FlatOps,
    Keys,
    convolution_reads,
    is_weight_gradient,
)
from forerun.predictors.analytic.measured import MeasuredOps

# What may compute products; each has its table of efficiencies in `Constants`.
UNITS = ("tensor", "vector", "double", "narrow")
_ATTENTION, _REDUCE = KIND_INDEX[OpKind.ATTENTION], KIND_INDEX[OpKind.REDUCE]
_CONV = KIND_INDEX[OpKind.CONV]
_SLOT = {name: i for i, name in enumerate(SLOTS)}
_BACKWARD = [i for name, i in _SLOT.items() if name.endswith("_backward")]
_FORWARD = [i for name, i in _SLOT.items() if not name.endswith("_backward")]
# Of a convolution's multiplications Winograd's F(4x4, 3x3) does 36 of 144 and F(4x4, 5x5) 64 of 400,
# the smallest shares of his algorithms in vendor libraries, which take these two kernels at stride 1
# (Lavin and Gray 2015; cuDNN's WINOGRAD_NONFUSED).
WINOGRAD_SHARE = 36.0 / 144.0
WIDE_WINOGRAD_SHARE = 64.0 / 400.0
# Of a 5 x 5 kernel: pixels, and how many are read for each that is written: fewer where the stride is
# more than 1, more where images lose their edges (3 x 3 kernels that look alike read 25/9).
_WIDE, _LEAST_READ, _MOST_READ = 25.0, 0.95, 2.7
# Stated boost clocks, GHz: vendors' data sheets.
DESK_GHZ: Mapping[str, float] = {
    "gtx-1070": 1.683, "gtx-1080": 1.733, "gtx-1080ti": 1.582, "titan-xp": 1.582, "titan-v": 1.455,
    "titan-rtx": 1.770, "rtx-2060": 1.680, "rtx-2060-max-q": 1.185, "rtx-2070": 1.620,
    "rtx-2070-max-q": 1.185, "rtx-2080": 1.710, "rtx-2080-max-q": 1.095, "rtx-2080-super": 1.815,
    "rtx-2080-super-max-q": 1.080, "rtx-2080ti": 1.545, "quadro-rtx-4000": 1.545,
    "quadro-rtx-5000": 1.815, "quadro-rtx-6000": 1.770, "quadro-rtx-8000": 1.770,
    "rtx-3060": 1.777, "rtx-3070": 1.725, "rtx-3080": 1.710, "rtx-3080-max-q": 1.245,
    "rtx-3080ti": 1.665, "rtx-3090": 1.695, "rtx-3090ti": 1.860, "rtx-a2000": 1.200,
    "rtx-a4000": 1.560, "rtx-a4500": 1.650, "rtx-a5000": 1.695, "rtx-a5500": 1.665,
    "rtx-a6000": 1.800, "rtx-4070ti": 2.610, "rtx-4080": 2.505, "rtx-4090": 2.520,
    "rtx-6000-ada": 2.505,
}  # fmt: skip
RACK_GHZ: Mapping[str, float] = {"t4": 1.590, "t4g": 1.590, "a10": 1.695, "a40": 1.740}
# What chips of a generation reach, GHz, and the watts of a board for each core that this takes. One
# pair for all boards of a generation; round numbers.
CHIPS: Mapping[str, tuple[float, float]] = {
    "pascal": (1.85, 0.065), "volta": (1.75, 0.055), "turing": (1.85, 0.060),
    "ampere": (1.85, 0.035), "ada": (2.70, 0.028),
}  # fmt: skip
POWER = 0.4
# A precision with less than this share of the fp32 rate leaves most of a chip dark.
DARK_SHARE = 0.25


def clock_share(device: Device, precision: str) -> float:
    """Return the clock at which a device computes in a precision, over its stated one."""
    stated, chip = _stated(device), CHIPS.get(device.generation.lower())
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


def has_clock(device: Device) -> bool:
    """Whether a device's stated clock is known here."""
    return _stated(device) > 0


def _stated(device: Device) -> float:
    return DESK_GHZ.get(device.id) or RACK_GHZ.get(device.id, 0.0)


def floor_flops_per_sample(workload: Workload) -> float:
    """Return a lower bound of the FLOPs of one sample, forward and backward.

    Dense convolutions may be done by Winograd's algorithm; everything else as stated.
    """
    columns = workload.graph.columns
    depth, _, ratio = convolution_reads(columns)
    read = _WIDE * ratio
    wide = (depth % _WIDE == 0) & (read > _LEAST_READ) & (read < _MOST_READ)
    least = np.where(wide, WIDE_WINOGRAD_SHARE, WINOGRAD_SHARE)
    share = np.where(columns.kind == _CONV, least, 1.0)
    share = np.where(IS_MATRIX[columns.kind], share, 0.0)
    if workload.task == "lora":
        share = np.where(is_weight_gradient(columns), 0.0, share)
    if not workload.detailed:
        share = share * WINOGRAD_SHARE
    return float((columns.flops * columns.repeat * share).sum())


def fastest_rate(device: Device, workload: Workload) -> float:
    """Return the highest FLOP/s that the precision could possibly run at on this device.

    fp32 work may run on TF32 units; 16-bit mixed precision never passes the 16-bit rate. A board
    may clock higher than its data sheet states.
    """
    rate = device.flops(workload.precision)
    if workload.precision == "fp32":
        rate = max(rate, device.peak_flops.get("tf32", 0.0))
    rate = max(rate, device.flops("fp32") if workload.precision != "fp64" else 0.0)
    return rate * most_clock_share(device)


def effective_rates(
    device: Device, workload: Workload, constants: Constants
) -> tuple[FloatArray, FloatArray]:
    """Return (FLOP/s, bytes/s) that large operations of each class reach, each of shape (kinds,).

    fp32 convolutions run on TF32 units where the device has them, as frameworks do by default
    since 2020; fp32 matrix products do not.
    """
    precision = device.computed_as(workload.precision)
    on_unit = device.has_matrix_unit(precision)
    vector = device.flops("fp64" if precision == "fp64" else "fp32")
    framework = constants.framework(workload.framework)
    matrix = device.flops(precision) * (
        _generation_factor(device, constants) * constants.precision_factor.get(precision, 1.0)
        if on_unit
        else constants.vector_share.get(device.generation.lower(), 1.0)
    )
    unit = unit_of(device, workload)
    shares: Mapping[str, float] = getattr(constants, f"{unit}_efficiency")
    rates = np.array(by_kind(shares, 0.25)) * np.where(IS_MATRIX, matrix, vector)
    if precision == "fp64":
        most = constants.double_share * device.flops("fp32")
        rates = np.where(IS_MATRIX, (rates**-2.0 + most**-2.0) ** -0.5, rates)
    if precision in ("fp8", "fp4"):  # recipes keep attention in 16 bits
        half = device.flops("bf16") * _generation_factor(device, constants)
        rates[_ATTENTION] = constants.tensor_efficiency[OpKind.ATTENTION] * half
    if on_unit and workload.fused_attention:
        rates[_ATTENTION] *= constants.attention_factor.get(device.generation.lower(), 1.0)
    if convolves_on_tf32(device, workload):
        conv = np.array(by_kind(constants.tensor_efficiency, 0.25)) * device.peak_flops["tf32"]
        conv = conv * _generation_factor(device, constants) * constants.precision_factor["tf32"]
        rates = np.where(IS_CONV, np.maximum(rates, conv), rates)
    clock = clock_share(device, precision)
    if not has_clock(device) and device.kind == "gpu" and device.watts < constants.low_power_watts:
        clock = constants.low_power_share
    rates, vector = rates * clock, vector * clock
    own = constants.device_compute.get(device.id, 1.0) * framework.compute
    rates = np.where(IS_MATRIX, rates * own, vector)
    bandwidth = np.array(by_kind(constants.bandwidth_efficiency, 0.5)) * framework.bandwidth
    bandwidth = bandwidth * constants.device_bandwidth.get(device.id, 1.0)
    if unit == "narrow":
        bandwidth = bandwidth * constants.narrow_bandwidth_share
    return rates, bandwidth * device.memory_bytes_per_second


def convolves_on_tf32(device: Device, workload: Workload) -> bool:
    """Whether fp32 convolutions run on TF32 units, as frameworks do by default since 2020."""
    tf32 = device.peak_flops.get("tf32", 0.0)
    return device.computed_as(workload.precision) == "fp32" and tf32 > device.flops("fp32")


def unit_of(device: Device, workload: Workload) -> str:
    """Return which of `UNITS` computes a workload's products on a device.

    A matrix unit (tensor), fp64 (double), wider units than the 16 bits of the numbers (narrow: a
    GPU before Volta), or fp32 ones (vector).
    """
    precision = device.computed_as(workload.precision)
    if device.has_matrix_unit(precision):
        return "tensor"
    if precision == "fp64":
        return "double"
    return "narrow" if ACTIVATION_BYTES[workload.precision] < 4.0 else "vector"


def _generation_factor(device: Device, constants: Constants) -> float:
    generation = device.generation.lower()
    return constant_of("generation_factor", constants.generation_factor, generation)


@dataclass(frozen=True)
class Rates:
    """What R machines, a device running a workload's framework and precision, reach.

    flops, bandwidth: FLOP/s and bytes/s, (R, kinds); fusion: share of the activations' traffic that
    remains, (R, kinds); wave: what filling the device costs over a new matrix unit, launch, host:
    seconds a kernel of device and host; direct: efficiency of dense convolutions without Winograd's
    algorithm over those with it; filters, transforms: passes over a convolution's filter to bring it
    into the library's order, and into Winograd's form; recompute: share of forward done again, (R,).
    """

    flops: FloatArray
    bandwidth: FloatArray
    fusion: FloatArray
    wave: FloatArray
    launch: FloatArray
    host: FloatArray
    direct: FloatArray
    filters: FloatArray
    transforms: FloatArray
    recompute: FloatArray


def rates_of(flat: FlatOps, constants: Constants) -> Rates:
    """Return what the machines of flat operations reach."""
    rows = []
    for device, workload in flat.machines:
        framework = constants.framework(workload.framework)
        flops, bandwidth = effective_rates(device, workload, constants)
        fusion = np.where(IS_FUSED_AWAY, framework.fusion, 1.0)
        fusion[_REDUCE] = framework.loss_traffic
        slower = constants.generation_latency.get(device.generation.lower(), 1.0)
        gap = (constants.launch_seconds + framework.gap_seconds) * slower
        host = framework.host_seconds * constants.device_host.get(device.id, 1.0)
        on_vectors = unit_of(device, workload) in ("vector", "narrow")
        on_vectors = on_vectors and not convolves_on_tf32(device, workload)
        rows.append((
            flops, bandwidth, fusion,
            slower / (constants.vector_wave_share if on_vectors else 1.0),
            constants.cpu_launch_seconds if device.kind == "cpu" else gap,
            host,
            constants.direct_share if on_vectors else 1.0,
            framework.filter_passes,
            constants.winograd_passes if on_vectors else 0.0,
            framework.recompute,
        ))  # fmt: skip
    return Rates(*(np.array(column) for column in zip(*rows, strict=True)))


def operation_seconds(flat: FlatOps, rates: Rates, constants: Constants) -> FloatArray:
    """Return device seconds of each operation with its repeats, (E,)."""
    flops, traffic = flat.flops, flat.traffic
    if flat.experts.any():
        imbalance = np.where(flat.experts, constants.expert_imbalance, 1.0)
        flops, traffic = flops * imbalance, traffic * imbalance
    machine = flat.rate // rates.flops.shape[1]
    waves = flat.waves * rates.wave[machine] / constants.wave_flops_per_element
    lost = constants.tile * flat.tiles + waves
    lost = np.minimum(1.0 + lost, 1e4) * flat.width**-constants.group_width_power
    compute = flops * lost + flat.moved * constants.pointwise_flops
    compute = compute / rates.flops.ravel()[flat.rate]
    if flat.direct.any():
        compute = compute / np.where(flat.direct, rates.direct[machine], 1.0)
    if flat.half_grouped.any():
        share = constants.channels_last_grouped
        compute = compute / np.where(flat.half_grouped, share, 1.0)
    moved = traffic * rates.fusion.ravel()[flat.rate] + flat.weights * _filter_passes(flat, rates)
    moved = moved / rates.bandwidth.ravel()[flat.rate]
    seconds = p_norm(compute, moved, constants.roofline_power)
    if flat.half_conv.any():
        seconds = seconds * np.where(flat.half_conv, constants.channels_last_share, 1.0)
    seconds = seconds + flat.launches * rates.launch[machine]
    if flat.gradients.any():
        seconds = seconds * np.where(flat.gradients, constants.lora_gradient_share, 1.0)
    return np.asarray(seconds * flat.repeat)


def _filter_passes(flat: FlatOps, rates: Rates) -> FloatArray:
    """Return how often each operation moves its weights, (E,): once, convolutions on the way more.

    Before a kernel reads them, filters are brought into the order that it wants, and into
    Winograd's form, which is larger; with few pixels that is most of a convolution's time.
    """
    kinds = rates.flops.shape[1]
    machine, kind = flat.rate // kinds, flat.rate % kinds
    more = np.where(IS_CONV[kind], rates.filters[machine], 0.0)
    winograd = (kind == _CONV) & ~flat.direct
    return np.asarray(1.0 + more + np.where(winograd, rates.transforms[machine], 0.0))


def instance_costs(
    flat: FlatOps, keys: Keys, scale: FloatArray, comm: LayerComm, constants: Constants,
    measured: MeasuredOps | None = None,
) -> dict[str, FloatArray]:  # fmt: skip
    """Return what one micro-batch costs on one device, for I instances: columns of shape (I,).

    Seconds are summed over all repeated layers (a stage takes its share of them): device work,
    tensor/expert/context communication inside the layers, and the host's excess over both
    (`host_forward`, `host_backward`: all that the host needs for its launches).
    `ends` are the entry and exit blocks together, `end` the larger of the two.

    scale: the workloads' own device time over what their operations say, (I,). measured: of
    instances whose devices were probed; the host's work is in it.
    """
    rates = rates_of(flat, constants)
    seconds = operation_seconds(flat, rates, constants)
    by_slot = np.bincount(flat.slot, seconds, flat.launched.size).astype(np.float64)
    sums = by_slot.reshape(flat.launched.shape)
    host = flat.launched * rates.host[flat.machine][:, None]
    more: dict[str, FloatArray] = {}
    if measured is not None:
        sums, host = _with_measured(flat, sums, host, measured, constants)
        more = dict(measured.columns)
    time = {name: sums[:, i] * scale for name, i in _SLOT.items()}
    together = 1.0 + constants.tensor_jitter * (keys.tp - 1.0)
    host[:, : _SLOT["embed_forward"]] *= together[:, None]
    full = keys.recompute == RECOMPUTE.index("full")
    selective = keys.recompute == RECOMPUTE.index("selective")
    selected = time["layer_selected"]
    forward, backward = time["layer_forward"] + selected, time["layer_backward"]
    whole = forward * rates.recompute[flat.machine]
    again = np.where(full, whole, np.where(selective, selected, 0.0))
    host_forward = host[:, _SLOT["layer_forward"]] + host[:, _SLOT["layer_selected"]]
    host_selected = np.where(selective, host[:, _SLOT["layer_selected"]], 0.0)
    host_again = np.where(full, host_forward, host_selected)
    power = constants.layer_power
    device_forward = forward + comm.forward
    device_backward = backward + again + comm.backward + np.where(full, comm.forward, 0.0)
    host_backward = host[:, _SLOT["layer_backward"]] + host_again
    span = p_norm(device_backward, host_backward, power)
    excess = (
        p_norm(device_forward, host_forward, power) - device_forward
        + span - device_backward
    )  # fmt: skip
    ends_forward = time["embed_forward"] + time["head_forward"]
    ends_backward = time["embed_backward"] + time["head_backward"]
    ends, ends_host = ends_forward + ends_backward, host[:, _SLOT["embed_forward"] :].sum(axis=1)
    return {
        "layer_forward": forward,
        "layer_backward": backward,
        "layer_recompute": again,
        "layer_tensor_comm": comm.tensor * (2.0 + full),
        "layer_expert_comm": comm.expert * (2.0 + full),
        "layer_context_comm": comm.context * (3.0 + full),
        "layer_host": excess,
        "layer_backward_span": span,
        "host_forward": host[:, _FORWARD].sum(axis=1),
        "host_backward": host[:, _BACKWARD].sum(axis=1),
        "ends_forward": ends_forward,
        "ends_backward": ends_backward,
        "ends_host": p_norm(ends, ends_host, power) - ends,
        "layer_launches": host_forward + host_backward,
        "first_end": time["embed_forward"] + time["embed_backward"],
        "last_end": time["head_forward"] + time["head_backward"],
        **more,
    }


def _with_measured(
    flat: FlatOps, sums: FloatArray, host: FloatArray, measured: MeasuredOps, constants: Constants
) -> tuple[FloatArray, FloatArray]:
    """Return sums and host seconds, (I, slots), with those of measured instances in their place."""
    ids = [flat.machines[i][0].id for i in flat.machine]
    products = np.array([constants.device_compute.get(name, 1.0) for name in ids])
    others = np.array([constants.device_bandwidth.get(name, 1.0) for name in ids])
    known = measured.measured[:, None]
    return (
        np.where(known, measured.seconds(products, others), sums),
        np.where(known, 0.0, host),
    )
