"""What a plan without degrees must have been: a model that no device holds was cut somehow.

A row of Megatron whose tp, pp, dp and zero_stage are blank would mean data parallelism alone. Where
one device cannot hold the model's states, it is read as its users lay such models out (Narayanan et
al. 2021, section 5.1): tensor parallel over the devices of a node, and the fewest pipeline stages
with which the states fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from forerun.domain.hardware import Cluster
from forerun.domain.plan_columns import PlanColumns
from forerun.domain.workload import Workload
from forerun.tables import Table

# Weights, gradients and Adam's states of a parameter in mixed precision (Rajbhandari et al. 2020).
STATE_BYTES = 16.0
# Share of the device's memory that states may take: activations and buffers need the rest.
STATE_SHARE = 0.6
_DEGREES = ("tp", "pp", "dp", "cp", "ep", "zero_stage", "sync")


def implied_plans(
    plans: PlanColumns,
    table: Table,
    workloads: Sequence[Workload],
    workload_index: NDArray[np.int32],
    clusters: Sequence[Cluster],
    cluster_index: NDArray[np.int32],
) -> PlanColumns:
    """Return the plans of n rows with the degrees that blank cells imply; -1 in an index: unknown.

    Rows of which no such layout fits keep the plan that they have.
    """
    silent = (workload_index >= 0) & (cluster_index >= 0)
    for name in _DEGREES:
        silent &= table.texts(name) == ""
    if not silent.any():
        return plans
    pair = workload_index.astype(np.int64) * max(len(clusters), 1) + cluster_index
    columns = {name: getattr(plans, name).copy() for name in ("tp", "pp", "dp")}
    for code in np.unique(pair[silent]):
        workload = workloads[int(code) // len(clusters)]
        cluster = clusters[int(code) % len(clusters)]
        degrees = _degrees(workload, cluster)
        if degrees is not None:
            rows = silent & (pair == code)
            for name, value in zip(("tp", "pp", "dp"), degrees, strict=True):
                columns[name][rows] = value
    return replace(plans, **columns)


def _degrees(workload: Workload, cluster: Cluster) -> tuple[int, int, int] | None:
    """Return (tp, pp, dp), None where data parallelism can have been meant or nothing fits."""
    states, memory = STATE_BYTES * workload.params, cluster.device.memory_bytes
    layers, heads, devices = workload.shape.layers, workload.shape.heads, cluster.devices
    if "megatron" not in workload.framework.lower() or not layers or states <= memory:
        return None
    tp = max(
        (t for t in range(1, cluster.devices_per_node + 1) if not (heads % t or devices % t)),
        default=1,
    )
    for pp in range(1, layers + 1):
        even = layers % pp == 0 and devices % (tp * pp) == 0
        if even and states / (tp * pp) <= STATE_SHARE * memory:
            return tp, pp, devices // (tp * pp)
    return None
