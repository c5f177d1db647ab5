"""Novelty: in what a job differs from those that were measured, and what physics lacks for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, IntArray
from forerun.predictors.analytic.calibration.fitting import Fit
from forerun.predictors.analytic.constants import framework_key, scale_key
from forerun.predictors.analytic.layer_shapes import shapes_of_rows
from forerun.predictors.analytic.places import settings_of
from forerun.tables import Jobs

# What may be new about a job; one of which nothing is new is a new plan, or a repeat.
PLAN, SCALE = "plan", "scale"
NEW = ("workload", "device", "framework", "setting")
KINDS = (PLAN, *NEW, SCALE)
# Families of constants that belong to one workload, layer, device or framework: a job of another
# has to do without them.
OWN: Mapping[str, tuple[str, ...]] = {
    "workload": ("workload_scale",),
    "shape": ("shape_scale",),
    "device": ("device_compute", "device_bandwidth", "device_host"),
    "framework": ("framework.",),
}
LACKS = tuple(OWN)


@dataclass(frozen=True)
class Labels:
    """What n jobs are called, columns (n,) of text, and how many devices they use, (n,).

    scale and shape are the names of a workload and of a layer among physics' constants.
    """

    workload: NDArray[np.object_]
    device: NDArray[np.object_]
    framework: NDArray[np.object_]
    setting: NDArray[np.object_]
    scale: NDArray[np.object_]
    shape: NDArray[np.object_]
    devices: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.devices)

    def take(self, rows: IntArray) -> Labels:
        """Return the labels of some of the jobs."""
        return Labels(**{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})

    def named(self, lack: str) -> NDArray[np.object_]:
        """Return what a family of constants calls each job, (n,)."""
        return np.asarray(getattr(self, "scale" if lack == "workload" else lack))


def labels_of(jobs: Jobs) -> Labels:
    """Return what resolved jobs are called."""

    def of_workloads(names: list[str]) -> NDArray[np.object_]:
        return np.array(names, dtype=object)[jobs.workload_index]

    return Labels(
        workload=of_workloads([w.name for w in jobs.workloads]),
        device=np.array([c.device.id for c in jobs.clusters], dtype=object)[jobs.cluster_index],
        framework=of_workloads([framework_key(w.framework) for w in jobs.workloads]),
        setting=settings_of(jobs),
        scale=of_workloads([scale_key(w) for w in jobs.workloads]),
        shape=shapes_of_rows(jobs),
        devices=jobs.per_cluster("devices").astype(np.float64),
    )


@dataclass(frozen=True)
class Known:
    """What was measured: names by label, names with constants of their own, and most devices."""

    names: Mapping[str, frozenset[str]]
    constants: Mapping[str, frozenset[str]]
    devices: float

    def news(self, labels: Labels, labelled: bool) -> dict[str, BoolArray]:
        """Return for each kind of novelty which of n jobs have it, (n,) each.

        labelled: whether the jobs say where they are run; one that does not is run where the runs
        were measured.
        """
        found = {
            kind: ~_among(getattr(labels, kind), self.names[kind])
            for kind in NEW
            if kind != "setting" or labelled
        }
        found[SCALE] = labels.devices > self.devices
        nothing = ~np.logical_or.reduce(list(found.values()))
        return {PLAN: nothing, **found}

    def lacks(self, labels: Labels) -> BoolArray:
        """Return which constants of their own n jobs have to do without, (n, 4) as `LACKS`."""
        return np.stack(
            [~_among(labels.named(lack), self.constants[lack]) for lack in LACKS], axis=1
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "names": {name: sorted(values) for name, values in self.names.items()},
            "constants": {name: sorted(values) for name, values in self.constants.items()},
            "devices": self.devices,
        }

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Known:
        """Return what `to_dict` wrote."""

        def sets(name: str, keys: tuple[str, ...]) -> dict[str, frozenset[str]]:
            return {key: frozenset(map(str, values[name][key])) for key in keys}

        return Known(sets("names", NEW), sets("constants", LACKS), float(values["devices"]))


def known_of(fit: Fit, labels: Labels) -> Known:
    """Return what the runs of a fit have measured; labels: of its jobs."""
    names = {kind: frozenset(map(str, getattr(labels, kind))) for kind in NEW}
    constants = {
        lack: frozenset(p.key for p in fit.parameters if p.family.startswith(families))
        for lack, families in OWN.items()
    }
    return Known(names, constants, float(labels.devices.max()))


def _among(values: NDArray[np.object_], names: frozenset[str]) -> BoolArray:
    """Return which values are among the names, (n,); each distinct value is looked up once."""
    distinct, place = np.unique(values.astype(str), return_inverse=True)
    return np.array([value in names for value in distinct.tolist()], dtype=bool)[place]
