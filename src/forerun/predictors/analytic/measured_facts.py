"""Measured facts: the numbers of probed devices and of workloads that measured steps read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from forerun.arrays import FloatArray
from forerun.domain.graph import Op, OpKind
from forerun.domain.hardware import Cluster
from forerun.domain.measured import Exchange, Update
from forerun.domain.workload import Workload
from forerun.tables import Jobs

# Which measured optimizer stands for one with so many states a parameter.
_BY_STATES = ("sgd", "momentum", "adamw")
# Buffers whose all-reduces a cluster's facts state; times of others lie between.
REDUCED_BYTES = (4.0, 4096.0, 65536.0, 262144.0, 1048576.0, 4194304.0, 16777216.0, 67108864.0)
UPDATE_FIELDS = tuple(Update.__dataclass_fields__)
_NAMES = ("measured", "step_fixed", "batch_fixed", "sample", "slowdown", "jitter", "replica_step", "replica_tensor",
          "replica_parameter", "exchange_rate", "exchange_busy",
          *(f"{word}_{i}" for word in ("reduce", "rested") for i in range(len(REDUCED_BYTES))),
          *(f"update_{i}_{part}" for i in range(3) for part in UPDATE_FIELDS))  # fmt: skip


def with_probed(
    work: list[dict[str, float]], node: list[dict[str, float]],
    workloads: Sequence[Workload], clusters: Sequence[Cluster],
) -> tuple[list[dict[str, float]], list[dict[str, float]]]:  # fmt: skip
    """Return the facts of workloads and clusters with those that steps of probed devices read.

    Where no device was probed they come back as they are: each fact is a column of every row.
    """
    if all(cluster.device.measured is None for cluster in clusters):
        return work, node
    more = [{"params": float(w.params), "tensors": parameter_tensors(w)} for w in workloads]
    return (
        [{**facts, **added} for facts, added in zip(work, more, strict=True)],
        [{**facts, **measured_facts(c)} for facts, c in zip(node, clusters, strict=True)],
    )


def measured_facts(cluster: Cluster) -> dict[str, float]:
    """Return the numbers of a cluster of probed devices; zeros where its device was not probed."""
    known = cluster.device.measured
    if known is None:
        return dict.fromkeys(_NAMES, 0.0)
    nothing = Update(0.0, 0.0, 0.0)
    updates = [_update(known.updates, name) or nothing for name in _BY_STATES]
    link = known.links.get("inter" if cluster.nodes > 1 else "intra", Exchange(0.0, 1.0))
    found = {
        "measured": 1.0,
        "step_fixed": known.step_seconds,
        "batch_fixed": known.batch_seconds,
        "sample": known.sample_seconds,
        "slowdown": known.slowdown(cluster.devices / cluster.nodes, cluster.nodes),
        "jitter": known.jitter_seconds,
        "replica_step": known.replica_seconds,
        "replica_tensor": known.replica_tensor_seconds,
        "replica_parameter": known.replica_parameter_seconds,
        "exchange_rate": link.bytes_per_second,
        "exchange_busy": link.busy_seconds_per_byte,
    }
    for i, size in enumerate(REDUCED_BYTES):
        found[f"reduce_{i}"] = link.all_reduce_seconds(size, cluster.devices)
        spared = link.spared_seconds(size, cluster.devices)
        found[f"rested_{i}"] = max(found[f"reduce_{i}"] - spared, 0.0)
    for i, update in enumerate(updates):
        found |= {f"update_{i}_{part}": getattr(update, part) for part in UPDATE_FIELDS}
    return found


def held_back(node: dict[str, FloatArray], jobs: Jobs) -> dict[str, FloatArray]:
    """Return clusters' facts by row, (n,) each, where a row states the share that workers are held to.

    A quota is time on the processor: what it does in the probe's share takes so much longer in a
    smaller one. No more counts than the threads that were timed.
    """
    if "measured" not in node or jobs.labels is None:
        return node
    probed = [_share(c) for c in jobs.clusters]
    share, threads = (np.array(values)[jobs.cluster_index] for values in zip(*probed, strict=True))
    stated = jobs.labels.numbers("cpus_per_worker")
    given = np.minimum(np.where(stated > 0, stated, np.inf), threads)
    known = (stated > 0) & (share > 0)
    slower = np.where(known, share / np.where(known, given, 1.0), 1.0)
    return {**node, "slowdown": node["slowdown"] * slower}


def _share(cluster: Cluster) -> tuple[float, float]:
    """Return (cores that a probed process got, its threads); zeros where that was not measured."""
    known = cluster.device.measured
    return (known.cores, known.threads) if known is not None else (0.0, 0.0)


def _update(updates: Mapping[str, Update], name: str) -> Update | None:
    """Return an optimizer's update, else that of the dearest one known."""
    dearest = max(updates.values(), key=lambda u: u.parameter_seconds, default=None)
    return updates.get(name, dearest)


def parameter_tensors(workload: Workload) -> float:
    """Return how many parameter tensors a workload has."""
    return sum(tensors_of(op) * op.repeat for op in workload.graph.ops)


def tensors_of(op: Op) -> float:
    """Return how many parameter tensors an operation owns: a weight, and a bias where it has one.

    A product's bias is what it owns beyond its weight; a norm has two, a table one.
    """
    if op.params <= 0:
        return 0.0
    weight = op.dims[1] * op.dims[2] * op.dims[3] if len(op.dims) == 4 else 0
    single = op.kind in (OpKind.EMBEDDING, OpKind.ELEMENTWISE)
    return 1.0 if single or op.params == weight else 2.0
