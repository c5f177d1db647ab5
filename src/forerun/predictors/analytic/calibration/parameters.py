"""Parameters: which constants runs may move, and how they are set.

Each is a log multiplier of one constant, 0 at the prior. Levels nest: a device moves about its
generation, a framework about its kind, a workload about the physics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.domain.graph import KINDS
from forerun.domain.hardware import Cluster
from forerun.domain.plan import SERVER_SYNCS
from forerun.domain.workload import Workload
from forerun.predictors.analytic.constants import (
    FRAMEWORK_KINDS,
    FRAMEWORKS,
    GENERATION_LATENCY,
    Constants,
    Framework,
    constant_of,
    framework_key,
    link_key,
    scale_key,
)
from forerun.predictors.analytic.families import FAMILIES, KNOWN_SD, bounds_of
from forerun.predictors.analytic.flat import IS_MATRIX
from forerun.predictors.analytic.layout import shapes_of_rows
from forerun.predictors.analytic.operations import UNITS, unit_of
from forerun.predictors.analytic.uncertainty import settings_of
from forerun.tables import Jobs

# Of a workload whose graph is only totals, or a guess.
LOOSE_SD = 0.5
FRAMEWORK_FIELDS = ("compute", "bandwidth", "fusion", "host_seconds", "step_seconds", "bare_gradients",
                    "recompute", "shard_power", "gap_seconds", "loss_traffic",
                    "tensor_pipeline_seconds")  # fmt: skip
_OF_SERVERS = ("server_bytes_per_second", "incast_share", "stagger_share", "message_calls", "server_variability",
               "worker_spread")  # fmt: skip
# Families that are tables of constants by key.
TABLES = frozenset(name for name, value in vars(Constants()).items() if isinstance(value, Mapping))


@dataclass(frozen=True, slots=True)
class Parameter:
    """One constant: its family and, in a table, its key; loose: of a workload not known in detail."""

    family: str
    key: str = ""
    loose: bool = False

    @property
    def name(self) -> str:
        """As it is printed: `tensor_efficiency[matmul]`."""
        keyed = self.family in TABLES or "." in self.family
        return f"{self.family}[{self.key or 'other'}]" if keyed else self.family

    @property
    def prior_sd(self) -> float:
        """Log standard deviation of the prior."""
        return KNOWN_SD.get(self.name, LOOSE_SD if self.loose else FAMILIES[self.family].sd)


def parameters_for(jobs: Jobs) -> tuple[Parameter, ...]:
    """Return the parameters that forecasts of jobs may read: all scalars, and tables by the jobs' keys."""
    workloads = [jobs.workloads[i] for i in np.unique(jobs.workload_index)]
    clusters = [jobs.clusters[i] for i in np.unique(jobs.cluster_index)]
    kinds = np.unique(np.concatenate([w.graph.columns.kind for w in workloads]))
    links = {link_key(link.kind) for c in clusters for link in (c.intra, c.inter)}
    loose = {scale_key(w) for w in workloads if not w.detailed}
    pairs = np.unique(np.stack([jobs.workload_index, jobs.cluster_index]), axis=1).T.tolist()
    # Beside their unit's, attention and convolutions may read the tensor unit's constants.
    units = {unit_of(jobs.clusters[c].device, jobs.workloads[w]) for w, c in pairs} | {"tensor"}
    found = [Parameter(f"{unit}_efficiency", str(KINDS[k]))
             for unit in UNITS if unit in units for k in kinds[IS_MATRIX[kinds]]]  # fmt: skip
    found += [Parameter("bandwidth_efficiency", str(KINDS[k])) for k in kinds]
    found += [Parameter(family, key)
              for family in ("link_efficiency", "link_latency") for key in sorted(links)]  # fmt: skip
    for family, keys in _row_keys(jobs).items():
        found += [Parameter(family, key, family == "workload_scale" and key in loose)
                  for key in sorted(set(keys.tolist()) - {None})]  # fmt: skip
    scalars = [name for name in FAMILIES if name not in TABLES and "." not in name]
    if not any(w.precision == "fp64" for w in workloads):
        scalars.remove("pointwise_flops")  # elsewhere too small to be told from the rest
    if not np.isin(jobs.plans.sync, SERVER_SYNCS).any():
        scalars = [name for name in scalars if name not in _OF_SERVERS]
    return (*found, *map(Parameter, scalars))


def owners(parameters: Sequence[Parameter], jobs: Jobs) -> dict[str, IntArray]:
    """Return for each family that divides the rows each row's own parameter, (n,), or -1."""
    place = {(p.family, p.key): i for i, p in enumerate(parameters)}
    return {
        family: np.array([place.get((family, key), -1) for key in keys.tolist()])
        for family, keys in _row_keys(jobs).items()
    }


def _row_keys(jobs: Jobs) -> dict[str, NDArray[np.object_]]:
    """Return each row's key of the families that divide the rows, (n,); None where it has none."""

    def by_workload(read: Callable[[Workload], str | None]) -> NDArray[np.object_]:
        return np.array([read(w) for w in jobs.workloads], dtype=object)[jobs.workload_index]

    def by_cluster(read: Callable[[Cluster], str]) -> NDArray[np.object_]:
        return np.array([read(c) for c in jobs.clusters], dtype=object)[jobs.cluster_index]

    def among(keys: NDArray[np.object_], known: Iterable[str]) -> NDArray[np.object_]:
        some = set(known)
        return np.array([key if key in some else None for key in keys], dtype=object)

    def shared(keys: NDArray[np.object_], count: Counter[str | None]) -> NDArray[np.object_]:
        return among(keys, [key for key, times in count.items() if key and times > 1])

    generation = by_cluster(lambda c: c.device.generation.lower())
    device = by_cluster(lambda c: c.device.id)
    framework = by_workload(lambda w: framework_key(w.framework))
    kind = np.array([FRAMEWORK_KINDS.get(key) for key in framework], dtype=object)
    # With one framework of a kind there is nothing to tell it from its kind, and one row cannot
    # tell a layer's shape from its model.
    kinds = Counter(FRAMEWORK_KINDS.get(key) for key in set(framework.tolist()))
    shape = shapes_of_rows(jobs)
    setting = settings_of(jobs)
    places = sorted(set(setting.tolist()))
    return {
        "generation_factor": generation,
        "generation_latency": among(generation, GENERATION_LATENCY),
        "precision_factor": among(by_workload(lambda w: w.precision), ("fp8", "fp4", "tf32")),
        "device_compute": device,
        "device_bandwidth": device,
        "device_host": device,
        "workload_scale": by_workload(scale_key),
        "shape_scale": shared(shape, Counter(shape.tolist())),
        # With one there is nothing to tell it from the constants; runs without a label are no setting.
        "setting_scale": among(setting, filter(None, places) if len(places) > 1 else ()),
        "attention_factor": generation,
        # What only some frameworks do is moved where their profile has it.
        **{
            f"framework.{field}": among(
                framework, [k for k, profile in FRAMEWORKS.items() if getattr(profile, field) > 0]
            )
            for field in FRAMEWORK_FIELDS
        },
        **{
            f"kind.{field}": shared(kind, kinds)
            for field in ("compute", "bandwidth", "host_seconds")
        },
    }


def moved(constants: Constants, parameters: Sequence[Parameter], theta: FloatArray) -> Constants:
    """Return the constants with each parameter multiplied by exp(theta), theta of shape (p,)."""
    tables: dict[str, Any] = {}
    profiles: dict[str, dict[str, float]] = {}
    changes: dict[str, Any] = {}
    for i in np.flatnonzero(theta).tolist():
        parameter, factor = parameters[i], float(np.exp(theta[i]))
        family, key = parameter.family, parameter.key
        level, _, field = family.partition(".")
        low, high = bounds_of(parameter.name)
        if family in TABLES:
            before = constant_of(family, getattr(constants, family), key)
            known = tables.setdefault(family, dict(getattr(constants, family)))
            known[key] = min(before * factor, high)
        elif field:
            for name in _members(level, key):
                values = profiles.setdefault(name, vars(constants.frameworks[name]).copy())
                values[field] = min(max(values[field] * factor, low), high)
        else:
            changes[family] = min(max(getattr(constants, family) * factor, low), high)
    if profiles:
        made = {name: Framework(**values) for name, values in profiles.items()}
        changes["frameworks"] = {**constants.frameworks, **made}
    return replace(constants, **changes, **tables)


def _members(level: str, key: str) -> Sequence[str]:
    return (key,) if level == "framework" else [f for f, k in FRAMEWORK_KINDS.items() if k == key]


def value_of(constants: Constants, parameter: Parameter) -> float:
    """Return a parameter's constant in its own unit; a kind's is that of its first member."""
    family, key = parameter.family, parameter.key
    level, _, field = family.partition(".")
    if family in TABLES:
        return float(constant_of(family, getattr(constants, family), key))
    if field:
        return float(getattr(constants.frameworks[_members(level, key)[0]], field))
    return float(getattr(constants, family))
