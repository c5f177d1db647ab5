"""Parameters: which constants runs may move, how far priors let them, and how they are set.

Each parameter is a log multiplier of one constant, 0 where the prior stands. Levels nest: a device
moves about its generation, a framework about its kind, a workload about the physics, so that what
is new borrows from what it belongs to.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.domain.graph import KINDS, OpKind
from forerun.domain.plan import ONE_PROCESS, PS_ASYNC, PS_SYNC, RECOMPUTE
from forerun.predictors.analytic.constants import (
    FRAMEWORK_KINDS,
    FRAMEWORKS,
    GENERATION_LATENCY,
    MEASURED,
    Constants,
    Framework,
    constant_of,
    framework_key,
    scale_key,
)
from forerun.predictors.analytic.flat import IS_MATRIX
from forerun.predictors.analytic.layout import shapes_of_rows
from forerun.predictors.analytic.operations import UNITS, unit_of
from forerun.tables import Jobs

_GROUPED = KINDS.index(OpKind.CONV_GROUPED)

# Log standard deviations of priors: how far a constant of each family usually lies from its prior.
# Links inside nodes and made for clusters carry much the same share everywhere; Ethernet does not.
PRIOR_SD = {
    "tensor_efficiency": 0.25, "vector_efficiency": 0.30, "bandwidth_efficiency": 0.25,
    "double_efficiency": 0.30, "narrow_efficiency": 0.40,
    "generation_factor": 0.15, "generation_latency": 0.40, "precision_factor": 0.15, "link_efficiency": 0.50,
    "device_compute": 0.15, "device_bandwidth": 0.15, "device_host": 0.40,
    "workload_scale": 0.12, "shape_scale": 0.10,
    "framework.compute": 0.15, "framework.bandwidth": 0.25, "framework.host_seconds": 0.60,
    "framework.gap_seconds": 0.50, "framework.step_seconds": 0.60, "framework.recompute": 0.15, "framework.shard_power": 0.15,
    "kind.compute": 0.10, "kind.bandwidth": 0.15, "kind.host_seconds": 0.40,
    "link_latency": 0.20, "attention_factor": 0.25, "tensor_jitter": 0.60,
    "launch_seconds": 0.40, "tile": 0.50, "wave_flops_per_element": 0.40, "layer_power": 0.30,
    "overlap_power": 0.25, "gather_exposed": 0.30, "tensor_hop_seconds": 0.25,
    "framework.fusion": 0.30, "framework.loss_traffic": 0.30,
    "framework.bare_gradients": 0.60, "framework.tensor_pipeline_seconds": 0.30,
    "point_to_point_exposed": 0.40, "expert_exposed": 0.40,
    "expert_imbalance": 0.30, "straggler_share": 0.60,
    "roofline_power": 0.30, "double_share": 0.40, "narrow_bandwidth_share": 0.30,
    "pointwise_flops": 0.50, "direct_share": 0.30, "group_width_power": 0.30, "replicate_share": 0.40,
    "channels_last_share": 0.15, "channels_last_grouped": 0.50,
    "dataparallel_contention": 0.40, "pageable_bytes_per_second": 0.40, "server_power": 0.20,
}  # fmt: skip
# Of single constants that are known better than their family (vendors' collective benchmarks reach
# 0.7-0.8 of NVLink on every machine with a switch), or worse: runs without a framework may be of any,
# and the profiles lie this far apart.
KNOWN_SD = {
    ("link_efficiency", "nvlink"): 0.15, ("link_efficiency", "infiniband"): 0.30,
    ("link_efficiency", MEASURED): 0.10,
    ("framework.compute", ""): 0.25, ("framework.bandwidth", ""): 0.40, ("framework.fusion", ""): 0.45,
}  # fmt: skip
# Of a workload whose graph is only totals, or a guess.
LOOSE_SD = 0.5
# Powers of norms below 1 and shares above 1 mean nothing, nor a fullest expert below the mean.
BOUNDS = {
    "layer_power": (1.0, 24.0), "overlap_power": (1.0, 12.0), "framework.shard_power": (1.0, 12.0),
    "roofline_power": (1.0, 12.0), "server_power": (1.0, 12.0), "gather_exposed": (0.0, 1.0),
    "point_to_point_exposed": (0.0, 1.5), "expert_exposed": (0.0, 1.5),
    "expert_imbalance": (1.0, 24.0),
    "framework.recompute": (0.3, 1.5), "framework.bare_gradients": (0.0, 1.0),
}  # fmt: skip
# What no unit, memory or link can pass; Winograd's algorithm spares three quarters of a 3 x 3
# convolution's products, fp32 products ran on TF32 units in some runs, units wider than their
# 16-bit numbers may pack two, and graphs count traffic that fusions and caches spare.
MOST = {
    "tensor_efficiency": 1.0, "vector_efficiency": 1.2, "double_efficiency": 1.0,
    "narrow_efficiency": 2.0, "bandwidth_efficiency": 1.25, "link_efficiency": 1.0,
    "vector_efficiency[conv]": 4.0, "narrow_efficiency[conv]": 8.0,
    f"link_efficiency[{MEASURED}]": 2.0,
}  # fmt: skip
# What only some frameworks do: moved where their profile has it.
OWN_WAYS = ("gap_seconds", "loss_traffic", "tensor_pipeline_seconds")
_MAPPINGS = (
    "tensor_efficiency", "vector_efficiency", "double_efficiency", "narrow_efficiency",
    "bandwidth_efficiency", "generation_factor", "generation_latency",
    "precision_factor", "link_efficiency",
    "link_latency", "attention_factor", "device_compute", "device_bandwidth", "device_host",
    "workload_scale", "shape_scale",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Parameter:
    """One constant: its family (a field of `Constants`) and, in a mapping, its key.

    A loose one is of a workload whose structure is not known in detail.
    """

    family: str
    key: str = ""
    loose: bool = False

    @property
    def name(self) -> str:
        """As it is printed: `tensor_efficiency[matmul]`."""
        return f"{self.family}[{self.key or 'other'}]" if self.keyed else self.family

    @property
    def prior_sd(self) -> float:
        """Log standard deviation of the prior."""
        usual = LOOSE_SD if self.loose else PRIOR_SD[self.family]
        return KNOWN_SD.get((self.family, self.key), usual)

    @property
    def keyed(self) -> bool:
        """Whether it is one of several of its family."""
        return self.family in _MAPPINGS or self.family.startswith(("framework.", "kind."))


def parameters_for(jobs: Jobs) -> tuple[Parameter, ...]:
    """Return the parameters that jobs could identify: those their forecasts read at all."""
    workloads = [jobs.workloads[i] for i in np.unique(jobs.workload_index)]
    clusters = [jobs.clusters[i] for i in np.unique(jobs.cluster_index)]
    kinds = np.unique(np.concatenate([w.graph.columns.kind for w in workloads]))
    precisions = sorted({w.precision for w in workloads})
    frameworks = sorted({framework_key(w.framework) for w in workloads})
    links = {c.intra.kind for c in clusters if c.devices > 1}
    links |= {c.inter.kind for c in clusters if c.nodes > 1}
    fused = any(w.fused_attention and w.shape.heads > 0 for w in workloads)
    shapes = Counter(shapes_of_rows(jobs).tolist())
    found = [
        *(parameter for unit in _units(jobs) for parameter in _kinds(
            f"{unit}_efficiency", (k for k in kinds if IS_MATRIX[k]))),
        *_kinds("bandwidth_efficiency", kinds),
        *_keys("generation_factor", {c.device.generation.lower() for c in clusters}),
        *_keys("generation_latency", {c.device.generation.lower() for c in clusters}
               & set(GENERATION_LATENCY)),
        *_keys("precision_factor", set(precisions) & {"fp8", "fp4", "tf32"}),
        *_keys("device_compute", {c.device.id for c in clusters}),
        *_keys("device_bandwidth", {c.device.id for c in clusters}),
        *_keys("device_host", {c.device.id for c in clusters}),
        *(Parameter("workload_scale", key, loose)
          for key, loose in sorted({(scale_key(w), not w.detailed) for w in workloads})),
        # One row cannot tell a layer's shape from its model.
        *_keys("shape_scale", (s for s, n in shapes.items() if s and n > 1)),
        *_keys("link_efficiency", links),
        *_keys("link_latency", links),
        *_keys("attention_factor", {c.device.generation.lower() for c in clusters} if fused else ()),
    ]  # fmt: skip
    for field in _framework_fields(jobs):
        found += _keys(f"framework.{field}", frameworks)
    found += [Parameter(f"framework.{field}", key) for field in OWN_WAYS for key in frameworks
              if getattr(FRAMEWORKS[key], field) > 0]  # fmt: skip
    # With one framework of a kind there is nothing to tell it from its kind.
    kinds_met = [FRAMEWORK_KINDS.get(name, "") for name in frameworks]
    several = {kind for kind in kinds_met if kind and kinds_met.count(kind) > 1}
    for field in ("compute", "bandwidth", "host_seconds"):
        found += _keys(f"kind.{field}", several)
    found += [Parameter(name) for name in _scalars(jobs)]
    return tuple(found)


def owners(parameters: Sequence[Parameter], jobs: Jobs) -> dict[str, NDArray[np.int64]]:
    """Return for each family that divides the rows the position of each row's own parameter, (n,).

    -1 where it has none. Parameters of such a family are told apart by the rows: one change of all
    of them shows what each does.
    """
    names = {
        "workload_scale": [scale_key(w) for w in jobs.workloads],
        "precision_factor": [w.precision for w in jobs.workloads],
        "device_compute": [c.device.id for c in jobs.clusters],
        "generation_factor": [c.device.generation.lower() for c in jobs.clusters],
    }
    names["generation_latency"] = names["generation_factor"]
    names["device_bandwidth"] = names["device_host"] = names["device_compute"]
    names["attention_factor"] = names["generation_factor"]
    frameworks = [framework_key(w.framework) for w in jobs.workloads]
    result: dict[str, NDArray[np.int64]] = {}
    for family in dict.fromkeys(p.family for p in parameters):
        if family == "shape_scale":
            place = {p.key: i for i, p in enumerate(parameters) if p.family == family}
            result[family] = np.array([place.get(key, -1) for key in shapes_of_rows(jobs)])
            continue
        keys = frameworks if family.startswith("framework.") else names.get(family)
        if family.startswith("kind."):
            keys = [FRAMEWORK_KINDS.get(name, "") for name in frameworks]
        if keys is None:
            continue
        by_key = {p.key: i for i, p in enumerate(parameters) if p.family == family}
        by_cluster = family.startswith(("device_", "generation_", "attention_"))
        index = jobs.cluster_index if by_cluster else jobs.workload_index
        result[family] = np.array([by_key.get(key, -1) for key in keys])[index]
    return result


def _framework_fields(jobs: Jobs) -> list[str]:
    plans = jobs.plans
    fields = ["compute", "bandwidth", "fusion", "host_seconds", "step_seconds"]
    if (plans.dp > 1).any():
        fields.append("bare_gradients")
    if (plans.recompute == RECOMPUTE.index("full")).any():
        fields.append("recompute")
    if (plans.zero_stage > 2).any():
        fields.append("shard_power")
    return fields


def _units(jobs: Jobs) -> tuple[str, ...]:
    """Return which tables of efficiencies the jobs read: `operations.unit_of`."""
    pairs = np.unique(np.stack([jobs.cluster_index, jobs.workload_index]), axis=1).T
    used = {unit_of(jobs.clusters[c].device, jobs.workloads[w]) for c, w in pairs}
    return tuple(unit for unit in UNITS if unit in used)


def _scalars(jobs: Jobs) -> list[str]:
    """Return the constants without a key that the jobs' forecasts read."""
    names = ["launch_seconds", "tile", "wave_flops_per_element", "layer_power", "roofline_power"]
    read = {**_read_by_plans(jobs), **_read_by_operations(jobs)}
    return names + [name for name, used in read.items() if used]


def _read_by_operations(jobs: Jobs) -> dict[str, bool]:
    units = set(_units(jobs))
    wide = any(w.precision == "fp64" for w in jobs.workloads)
    nhwc = bool((jobs.plans.memory_format > 0).any())
    grouped = any(bool((w.graph.columns.kind == _GROUPED).any()) for w in jobs.workloads)
    return {
        "double_share": wide,
        "pointwise_flops": wide,
        "direct_share": bool({"vector", "narrow"} & units),
        "narrow_bandwidth_share": "narrow" in units,
        "group_width_power": grouped,
        "channels_last_share": nhwc,
        "channels_last_grouped": nhwc,
    }


def _read_by_plans(jobs: Jobs) -> dict[str, bool]:
    plans = jobs.plans
    near = np.array([c.near_devices for c in jobs.clusters])[jobs.cluster_index]
    replicas, stage = plans.dp > 1, plans.zero_stage
    experts, one_process = bool((plans.ep > 1).any()), bool((plans.sync == ONE_PROCESS).any())
    return {
        "overlap_power": bool(replicas.any()),
        "gather_exposed": bool((replicas & (stage > 0) & (stage < 3)).any()),
        "tensor_jitter": bool((plans.tp > 1).any()),
        "point_to_point_exposed": bool((plans.pp > 1).any()),
        "tensor_hop_seconds": bool(((plans.sequence_parallel > 0) & (plans.tp > near)).any()),
        "expert_exposed": experts,
        "expert_imbalance": experts,
        "straggler_share": any(c.nodes > 1 for c in jobs.clusters),
        "dataparallel_contention": one_process,
        "replicate_share": one_process,
        "pageable_bytes_per_second": one_process,
        "server_power": bool(np.isin(plans.sync, (PS_SYNC, PS_ASYNC)).any()),
    }


def _kinds(family: str, kinds: Iterable[int]) -> list[Parameter]:
    return [Parameter(family, str(KINDS[int(k)])) for k in kinds]


def _keys(family: str, keys: Iterable[str]) -> list[Parameter]:
    return [Parameter(family, key) for key in sorted(keys)]


def moved(constants: Constants, parameters: Sequence[Parameter], theta: FloatArray) -> Constants:
    """Return the constants with each parameter multiplied by exp(theta), theta of shape (p,)."""
    mappings: dict[str, dict[str, float]] = {}
    profiles: dict[str, dict[str, float]] = {}
    changes: dict[str, Any] = {}
    for parameter, shift, factor in zip(
        parameters, theta.tolist(), np.exp(theta).tolist(), strict=True
    ):
        family, key = parameter.family, parameter.key
        if shift == 0.0:
            continue
        if family in _MAPPINGS:
            known = mappings.setdefault(family, dict(getattr(constants, family)))
            most = bounds_of(parameter)[1]
            before = constant_of(family, getattr(constants, family), key)
            known[key] = min(before * factor, most)
        elif parameter.keyed:
            level, _, field = family.partition(".")
            for name in _members(level, key):
                fields = profiles.setdefault(name, dict(vars(constants.frameworks[name])))
                fields[field] = _bounded(family, fields[field] * factor)
        else:
            changes[family] = _bounded(family, getattr(constants, family) * factor)
    if profiles:
        made = {name: Framework(**fields) for name, fields in profiles.items()}
        changes["frameworks"] = {**constants.frameworks, **made}
    return replace(constants, **changes, **mappings)  # type: ignore[arg-type]


def _members(level: str, key: str) -> Sequence[str]:
    """Return the frameworks that a parameter of a framework or of a kind of them moves."""
    return (key,) if level == "framework" else [f for f, k in FRAMEWORK_KINDS.items() if k == key]


def value_of(constants: Constants, parameter: Parameter) -> float:
    """Return a parameter's constant in its own unit; a kind's is that of its first member."""
    family, key = parameter.family, parameter.key
    if family in _MAPPINGS:
        return float(constant_of(family, getattr(constants, family), key))
    level, _, field = family.partition(".")
    if field:
        return float(getattr(constants.frameworks[_members(level, key)[0]], field))
    return float(getattr(constants, family))


def bounds_of(parameter: Parameter) -> tuple[float, float]:
    """Return the least and the most that a parameter's constant can be, in its own unit."""
    low, high = BOUNDS.get(parameter.family, (0.0, math.inf))
    most = MOST.get(parameter.name, MOST.get(parameter.family, math.inf))
    return low, min(high, most)


def _bounded(family: str, value: float) -> float:
    low, high = BOUNDS.get(family, (0.0, float("inf")))
    return min(max(value, low), high)
