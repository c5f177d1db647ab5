"""Clocks: at which rate a board runs, over the rate that its data sheet states.

A data sheet's rate is cores x 2 x a stated boost clock. Boards for data centres run at that clock at
most. On desks and in laptops a board runs as fast as its chip can, whatever is stated, until it
meets its power limit: the power of a chip goes with f V^2, and V rises with f, so that the clock
goes with the watts a core to the power 0.4. A laptop part of 1.19 GHz runs at 1.47, a board of 1.55
GHz and 250 W at 1.8. Arithmetic that few units do, such as fp64 on these boards, meets no limit.

A board without a stated clock here is taken to run at its stated rate.
"""

from __future__ import annotations

from collections.abc import Mapping

from forerun.domain.hardware import Device

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
