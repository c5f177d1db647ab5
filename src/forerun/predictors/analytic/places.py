"""Places: how well runs have taught what is peculiar to where a job will run.

A place is a setting (machines of one `cluster` label have hosts and builds in common) and a device in
it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.predictors.analytic.constants import Constants
from forerun.tables import Jobs

# Hosts, builds and habits stay where the device changes, clocks and machines do not: what runs on
# another device of the setting tell.
ELSEWHERE = 0.5


def settings_of(jobs: Jobs) -> NDArray[np.object_]:
    """Return where each row runs, (n,): its label `cluster`, "" where there is none."""
    if jobs.labels is None:
        return np.full(len(jobs), "", dtype=object)
    return jobs.labels.texts("cluster")


def taught_places(jobs: Jobs, constants: Constants) -> tuple[FloatArray, FloatArray]:
    """Return (how well the place is taught, 0 to 1, doublings beyond its runs), (n,) each.

    A job without a label is asked where the last runs were measured. Doublings are those of the
    devices over the most that a run of the setting used; NaN where there was none.
    """
    names, label = np.array([""]), np.zeros(1, dtype=np.int64)
    if jobs.labels is not None:
        names, label = np.unique(settings_of(jobs).astype(str), return_inverse=True)
    table = np.array([
        [_taught(str(name), c.device.id, c.devices, constants) for c in jobs.clusters]
        for name in names
    ])  # fmt: skip
    found = table[label, jobs.cluster_index]
    return found[:, 0], found[:, 1]


def _taught(name: str, device: str, devices: int, constants: Constants) -> tuple[float, float]:
    here = constants.taught_share("setting", f"{name} on {device}")
    share = max(here, ELSEWHERE * constants.taught_share("setting", name))
    most = constants.taught.get(devices_key(name), math.nan)
    return share, float(np.maximum(np.log2(devices / most), 0.0))


def seen_in(name: str, jobs: Jobs) -> dict[str, float]:
    """Return how many runs of a setting there are, in all and on each device, repeats as their root.

    Keys are those of `Constants.taught`.
    """
    found = {f"setting:{name}": float(len(jobs))}
    counts = np.bincount(jobs.cluster_index, minlength=len(jobs.clusters))
    for cluster, count in zip(jobs.clusters, counts.tolist(), strict=True):
        key = f"setting:{name} on {cluster.device.id}"
        found[key] = found.get(key, 0.0) + count
    return {key: count**0.5 for key, count in found.items() if count}


def devices_key(name: str) -> str:
    """Return the key in `Constants.taught` of the most devices that a run of a setting used."""
    return f"setting:{name} devices"
