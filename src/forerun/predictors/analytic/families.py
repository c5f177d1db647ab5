"""The constants that runs may move: what people call them, unit, prior width and bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from forerun import packaged
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
# count traffic that fusions and caches spare); powers of norms below 1 mean nothing. Whoever measured
# has hosts, builds and habits that shift all of their runs: `setting_scale`.
_USUAL = {"sd": math.nan, "low": 0.0, "high": math.inf, "shared_sd": 0.0}
FAMILIES = {
    row["name"]: Family(
        row["words"], row["unit"], *(float(row[n] or usual) for n, usual in _USUAL.items())
    )
    for row in packaged.table(__file__, "families.csv")
}
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
    "share": lambda value: f"{100 * value:.3g} %", "times": lambda value: f"{value:.3g}x",
    "s": format_seconds, "bytes": format_bytes, "bytes/s": lambda value: f"{value / 1e9:.3g} GB/s",
    "FLOP/s an element": lambda value: f"{value / 1e9:.3g} GFLOP/s",
}  # fmt: skip
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
