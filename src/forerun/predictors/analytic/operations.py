"""Operation costs: what one micro-batch costs on one device, for every instance at once.

Each operation takes ||FLOPs / (peak eff(class) fill), bytes / (bandwidth eff(class))||_p + launch: a
roofline with a rounded corner, whose compute side sinks where the matrix is thin (tile) or too
small to fill the device: 1 / fill = 1 + tile/m + tile/n + tile/2k + wave/elements. The losses add,
so that time never falls when a product grows. What is no product does a few scalar operations for
each element that it moves.
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
from forerun.predictors.analytic import collectives
from forerun.predictors.analytic.clocks import clock_share, has_clock
from forerun.predictors.analytic.constants import Constants, by_kind
from forerun.predictors.analytic.fallbacks import constant_of
from forerun.predictors.analytic.flat import FlatOps
from forerun.predictors.analytic.inside_layers import LayerComm
from forerun.predictors.analytic.keys import IS_CONV, IS_FUSED_AWAY, IS_MATRIX, Keys
from forerun.predictors.analytic.measured_ops import MeasuredOps
from forerun.predictors.analytic.slots import SLOTS

# What may compute products; each has its table of efficiencies in `Constants`.
UNITS = ("tensor", "vector", "double", "narrow")
_ATTENTION, _REDUCE = KIND_INDEX[OpKind.ATTENTION], KIND_INDEX[OpKind.REDUCE]
_CONV = KIND_INDEX[OpKind.CONV]
_SLOT = {name: i for i, name in enumerate(SLOTS)}
_BACKWARD = [i for name, i in _SLOT.items() if name.endswith("_backward")]
_FORWARD = [i for name, i in _SLOT.items() if not name.endswith("_backward")]


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
    flops, bandwidth, fusion, wave, launch = [], [], [], [], []
    host, direct, filters, transforms, again = [], [], [], [], []
    for device, workload in flat.machines:
        framework = constants.framework(workload.framework)
        most = effective_rates(device, workload, constants)
        flops.append(most[0])
        bandwidth.append(most[1])
        kept = np.where(IS_FUSED_AWAY, framework.fusion, 1.0)
        kept[_REDUCE] = framework.loss_traffic
        fusion.append(kept)
        on_cpu = device.kind == "cpu"
        slower = constants.generation_latency.get(device.generation.lower(), 1.0)
        gap = (constants.launch_seconds + framework.gap_seconds) * slower
        launch.append(constants.cpu_launch_seconds if on_cpu else gap)
        host.append(framework.host_seconds * constants.device_host.get(device.id, 1.0))
        on_vectors = unit_of(device, workload) in ("vector", "narrow")
        on_vectors = on_vectors and not convolves_on_tf32(device, workload)
        direct.append(constants.direct_share if on_vectors else 1.0)
        transforms.append(constants.winograd_passes if on_vectors else 0.0)
        wave.append(slower / (constants.vector_wave_share if on_vectors else 1.0))
        filters.append(framework.filter_passes)
        again.append(framework.recompute)
    columns = (flops, bandwidth, fusion, wave, launch, host, direct, filters, transforms, again)
    return Rates(*(np.array(values) for values in columns))


def operation_seconds(flat: FlatOps, rates: Rates, constants: Constants) -> FloatArray:
    """Return device seconds of each operation, one copy of it, (E,)."""
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
    seconds = collectives.p_norm(compute, moved, constants.roofline_power)
    if flat.half_conv.any():
        seconds = seconds * np.where(flat.half_conv, constants.channels_last_share, 1.0)
    seconds = seconds + flat.launches * rates.launch[machine]
    if flat.gradients.any():
        seconds = seconds * np.where(flat.gradients, constants.lora_gradient_share, 1.0)
    result: FloatArray = seconds
    return result


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


# Scalars that `operation_seconds` reads.
_SCALARS = (
    "expert_imbalance", "wave_flops_per_element", "tile", "group_width_power", "pointwise_flops",
    "channels_last_grouped", "roofline_power", "channels_last_share", "lora_gradient_share",
)  # fmt: skip


@dataclass(frozen=True)
class Anchor:
    """Operations priced with some constants, beside which others that differ little are priced.

    seconds: of each operation with its repeats, (E,); sums: the same by instance and slot.
    """

    rates: Rates
    scalars: tuple[float, ...]
    seconds: FloatArray
    sums: FloatArray


def anchored(flat: FlatOps, constants: Constants) -> Anchor:
    """Return the flat operations priced with constants."""
    rates = rates_of(flat, constants)
    seconds = operation_seconds(flat, rates, constants) * flat.repeat
    sums = np.bincount(flat.slot, seconds, flat.launched.size)
    return Anchor(rates, _scalars(constants), seconds, np.asarray(sums, dtype=np.float64))


def _scalars(constants: Constants) -> tuple[float, ...]:
    return tuple(float(getattr(constants, name)) for name in _SCALARS)


def slot_sums(
    flat: FlatOps, rates: Rates, constants: Constants, anchor: Anchor | None
) -> FloatArray:
    """Return device seconds by instance and slot, (I, slots).

    With an anchor only the operations whose rates differ from its own are priced again.
    """
    shape = flat.launched.shape
    if anchor is None or not _alike(anchor, rates, _scalars(constants)):
        seconds = operation_seconds(flat, rates, constants) * flat.repeat
        whole = np.bincount(flat.slot, seconds, flat.launched.size)
        return np.asarray(whole.reshape(shape), dtype=np.float64)
    pairs = (
        (getattr(rates, n), getattr(anchor.rates, n)) for n in ("flops", "bandwidth", "fusion")
    )
    differs = np.logical_or.reduce([now != then for now, then in pairs]).ravel()
    if not differs.any():
        return anchor.sums.reshape(shape)
    index = np.flatnonzero(differs[flat.rate])
    part = flat.part(index)
    gained = operation_seconds(part, rates, constants) * part.repeat - anchor.seconds[index]
    sums = anchor.sums + np.bincount(part.slot, gained, flat.launched.size)
    return np.asarray(sums.reshape(shape))


def _alike(anchor: Anchor, rates: Rates, scalars: tuple[float, ...]) -> bool:
    """Whether what every operation of a machine reads is the anchor's."""
    return scalars == anchor.scalars and all(
        np.array_equal(getattr(rates, n), getattr(anchor.rates, n))
        for n in ("wave", "launch", "direct", "filters", "transforms")
    )


def instance_costs(
    flat: FlatOps, keys: Keys, scale: FloatArray, comm: LayerComm, constants: Constants,
    anchor: Anchor | None = None, measured: MeasuredOps | None = None,
) -> dict[str, FloatArray]:  # fmt: skip
    """Return what one micro-batch costs on one device, for I instances: columns of shape (I,).

    Seconds are summed over all repeated layers (a stage takes its share of them): device work,
    tensor/expert/context communication inside the layers, and the host's excess over both
    (`host_forward`, `host_backward`: all that the host needs for its launches).
    `ends` are the entry and exit blocks together, `end` the larger of the two.

    scale: the workloads' own device time over what their operations say, (I,). anchor: see
    `Anchor`. measured: of instances whose devices were probed; the host's work is in it.
    """
    rates = rates_of(flat, constants)
    sums = slot_sums(flat, rates, constants, anchor)
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
    span = collectives.p_norm(device_backward, host_backward, power)
    excess = (
        collectives.p_norm(device_forward, host_forward, power) - device_forward
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
        "ends_host": collectives.p_norm(ends, ends_host, power) - ends,
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
