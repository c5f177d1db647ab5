"""PhysicsFeatures: what of a job decides how far physics misses it, as numbers rather than names.

Two jobs of the same features are the same work to physics, whatever they are called. Sizes are
powers of two, and shares are spread so that a quarter counts as much as a doubling.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.domain.graph import KINDS
from forerun.domain.workload import OPERAND_BYTES
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.flat import SLOTS
from forerun.predictors.analytic.layout import Layout
from forerun.predictors.analytic.operations import operation_seconds, rates_of
from forerun.predictors.analytic.rows import Rows
from forerun.predictors.analytic.step import step_and_floor

# A share of a quarter counts as one doubling of a size.
SHARE = 4.0
# A step of a plan that is no size (a ZeRO stage, recomputation) counts as so many doublings.
CHOICE = 2.0
# What a micro-batch is on one device: shared by all jobs that do it, however many times.
WORK = (
    "layer seconds", "host share", "tensor share", "ends share", "tokens", "micro-batch", "hidden",
    "flops", "intensity", "peak", "bandwidth", "host seconds", "operand bytes", "tp", "cp", "ep",
    "sequence parallel", "recompute", "channels last", *(f"share of {kind}" for kind in KINDS),
)  # fmt: skip
# How many there are and what joins them.
PLAN = (
    "dp", "pp", "vpp", "nodes", "devices a node", "micro-batches", "ZeRO", "parameters",
    "data share", "server share", "pipeline share", "transfer share", "overhead share", "sync",
    "rate inside", "rate between",
)  # fmt: skip
NAMES = (*WORK, *PLAN)
# Parts of a step that grow with the work of a micro-batch.
_WORK_PARTS = (
    "forward", "backward", "recompute", "tensor comm", "expert comm", "context comm", "host",
    "imbalance", "pipeline bubble",
)  # fmt: skip


@dataclass(frozen=True)
class PhysicsFeatures:
    """n jobs: values (n, d) in the order of `NAMES`, the part of the step that is work, (n,).

    median: physics' seconds, (n,).
    """

    values: FloatArray
    share: FloatArray
    median: FloatArray

    def __len__(self) -> int:
        return len(self.share)

    def take(self, rows: NDArray[np.int64]) -> PhysicsFeatures:
        """Return the features of some of the jobs."""
        return PhysicsFeatures(self.values[rows], self.share[rows], self.median[rows])


def features_of(layout: Layout, constants: Constants) -> PhysicsFeatures:
    """Return the features of jobs laid out, as physics with these constants sees them."""
    rows = layout.rows(constants)
    parts, median, _ = step_and_floor(rows, constants)
    whole = np.maximum(sum(parts.values(), np.zeros(len(rows))), 1e-12)
    columns = {**_work(layout, rows), **_plan(rows, parts, whole)}
    columns |= _operation_shares(layout, constants)
    work = sum((parts[name] for name in _WORK_PARTS), np.zeros(len(rows)))
    values = np.stack([columns[name] for name in NAMES], axis=1)
    return PhysicsFeatures(values, work / whole, median)


def _doublings(values: FloatArray) -> FloatArray:
    return np.asarray(np.log2(np.maximum(values, 1e-12)))


def _work(layout: Layout, rows: Rows) -> dict[str, FloatArray]:
    key, plan, jobs = rows.key, rows.plan, layout.jobs
    layers = np.maximum(rows.work["layers"], 1.0)
    device = key["layer_forward"] + key["layer_backward"] + key["layer_recompute"]
    comm = key["layer_tensor_comm"] + key["layer_expert_comm"] + key["layer_context_comm"]
    ends = key["ends_forward"] + key["ends_backward"]
    whole = np.maximum(device + comm + key["layer_host"] + ends, 1e-12)
    tokens = np.maximum(jobs.per_workload("seq_len").astype(np.float64), 1.0)
    written = np.array([w.graph.activations for w in jobs.workloads], dtype=np.float64)
    flops = rows.work["floor_flops"]
    operand = np.array([OPERAND_BYTES[w.precision] for w in jobs.workloads])
    return {
        "layer seconds": _doublings((device + ends) / layers),
        "host share": SHARE * key["layer_host"] / whole,
        "tensor share": SHARE * comm / whole,
        "ends share": SHARE * ends / whole,
        "tokens": _doublings(plan["micro_batch"] * tokens / plan["cp"]),
        "micro-batch": _doublings(plan["micro_batch"]),
        "hidden": _doublings(np.maximum(jobs.per_workload("shape.hidden"), 1.0)),
        "flops": _doublings(flops / layers),
        "intensity": _doublings(flops / np.maximum(written[jobs.workload_index], 1.0)),
        "peak": _doublings(rows.node["most_flops"]),
        "bandwidth": _doublings(rows.node["nominal_memory_rate"]),
        "host seconds": _doublings(rows.software["host_seconds"]),
        "operand bytes": CHOICE * _doublings(operand[jobs.workload_index]),
        "tp": _doublings(plan["tp"]),
        "cp": _doublings(plan["cp"]),
        "ep": _doublings(plan["ep"]),
        "sequence parallel": CHOICE * plan["sequence_parallel"],
        "recompute": CHOICE * plan["recompute"],
        "channels last": CHOICE * layout.keys.channels_last[layout.position],
    }


def _plan(rows: Rows, parts: dict[str, FloatArray], whole: FloatArray) -> dict[str, FloatArray]:
    plan, node = rows.plan, rows.node

    def share(*names: str) -> FloatArray:
        return np.asarray(SHARE * sum(parts[name] for name in names) / whole)

    return {
        "dp": _doublings(plan["dp"]),
        "pp": _doublings(plan["pp"]),
        "vpp": _doublings(plan["vpp"]),
        "nodes": _doublings(node["nodes"]),
        "devices a node": _doublings(node["node_devices"]),
        "micro-batches": _doublings(rows.micro_batches),
        "ZeRO": plan["zero_stage"],
        "parameters": _doublings(
            rows.work["layer_tensor"] + rows.work["layer_expert"] + rows.work["layer_whole"]
        ),
        "data share": share("data comm"),
        "server share": share("parameter server"),
        "pipeline share": share("pipeline bubble", "imbalance"),
        "transfer share": share("pipeline comm"),
        "overhead share": share("overhead", "input", "optimizer"),
        "sync": CHOICE * rows.sync.astype(np.float64),
        "rate inside": _doublings(node["intra_rate"]),
        "rate between": _doublings(np.where(node["nodes"] > 1, node["inter_rate"], 1.0)),
    }


def _operation_shares(layout: Layout, constants: Constants) -> dict[str, FloatArray]:
    """Return which part of a micro-batch's device time each class of operations takes, (n,)."""
    flat, count = layout.flat, len(layout.keys)
    code = flat.slot // len(SLOTS) * len(KINDS) + flat.rate % len(KINDS)
    each = operation_seconds(flat, rates_of(flat, constants), constants)
    seconds = np.bincount(code, each, count * len(KINDS))
    table = seconds.reshape(count, len(KINDS))
    table = SHARE * table / np.maximum(table.sum(axis=1, keepdims=True), 1e-300)
    return {f"share of {kind}": table[layout.position, i] for i, kind in enumerate(KINDS)}
