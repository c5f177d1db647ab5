"""Rows: what the plan-level formulas read, gathered from keys, workloads and clusters as columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from forerun.domain.graph import (
    BLOCK_INDEX,
    KIND_INDEX,
    PHASE_INDEX,
    SHARD_INDEX,
    Block,
    OpKind,
    Phase,
    Shard,
)
from forerun.domain.hardware import Cluster
from forerun.domain.workload import ACTIVATION_BYTES, OPTIMIZER_STATES, Workload
from forerun.predictors.analytic.activations import saved_bytes
from forerun.predictors.analytic.constants import Constants, framework_key
from forerun.predictors.analytic.floors import fastest_rate, floor_flops_per_sample
from forerun.predictors.analytic.inside_layers import links_of
from forerun.predictors.analytic.keys import Keys
from forerun.predictors.analytic.operations import cost_keys
from forerun.tables import Jobs

FloatArray = NDArray[np.float64]
T = TypeVar("T")
_KEY_FIELDS = ("micro_batch", "tp", "cp", "ep", "sequence_parallel", "recompute", "memory_format")


@dataclass(frozen=True)
class Rows:
    """n resolved jobs as float columns (n,): plan degrees, key costs, and facts by their names.

    `key` maps the fields of `operations.KeyCosts` to (n,); `work` the workload's facts and `node`
    the cluster's.
    """

    plan: dict[str, FloatArray]
    key: dict[str, FloatArray]
    work: dict[str, FloatArray]
    node: dict[str, FloatArray]
    sync: NDArray[np.int32]
    memo: dict[str, Any] = field(default_factory=dict)

    def once(self, name: str, make: Callable[[Rows], T]) -> T:
        """Return make(self), computed at the first call: several formulas read it."""
        if name not in self.memo:
            self.memo[name] = make(self)
        value: T = self.memo[name]
        return value

    def __len__(self) -> int:
        return len(self.sync)


def gather(jobs: Jobs, constants: Constants, cache: dict[Any, Any], static: dict[Any, Any]) -> Rows:
    """Return the columns for jobs that are all resolved.

    cache: keeps facts of clusters between calls (keyed by identity, holding the objects so that an
    identity is never used again); static: facts of workloads that no fitted constant moves.
    """
    plans = jobs.plans
    work_facts = [
        _remember(static, "work", w, workload_facts, w, constants) for w in jobs.workloads
    ]
    node_facts = [_remember(cache, "node", c, cluster_facts, c, constants) for c in jobs.clusters]
    work = _spread(work_facts, jobs.workload_index)
    node = _spread(node_facts, jobs.cluster_index)
    names = ("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch", "global_batch", "zero_stage")
    columns = {name: getattr(plans, name).astype(np.float64) for name in names}
    columns["sequence_parallel"] = plans.sequence_parallel.astype(np.float64)
    columns["servers"] = plans.parameter_servers.astype(np.float64)
    return Rows(columns, _key_columns(jobs, constants, static), work, node, plans.sync)


def _remember(cache: dict[Any, Any], kind: Hashable, owner: object, make: Any, *args: Any) -> Any:
    slot = (kind, id(owner))
    if slot not in cache:
        cache[slot] = (owner, make(*args))
    return cache[slot][1]


def _spread(facts: list[dict[str, float]], index: NDArray[np.int32]) -> dict[str, FloatArray]:
    if len(facts) == 1:
        return {k: np.full(len(index), v) for k, v in facts[0].items()}
    return {k: np.array([f[k] for f in facts])[index] for k in facts[0]}


def compact(values: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return (position among the distinct values, the distinct values) of small integers.

    A presence table instead of a sort: linear in the number of rows.
    """
    top = int(values.max(initial=0))
    if top > 4 * len(values) + 65536:
        distinct, position = np.unique(values, return_inverse=True)
        return position.astype(np.int64), distinct
    present = np.zeros(top + 1, dtype=bool)
    present[values] = True
    distinct = np.flatnonzero(present)
    table = np.empty(top + 1, dtype=np.int64)
    table[distinct] = np.arange(len(distinct))
    return table[values], distinct


def node_kinds(clusters: tuple[Cluster, ...]) -> NDArray[np.int64]:
    """Return for each cluster the position of its kind.

    Clusters of one kind differ only in the number of nodes and the price, so a micro-batch costs
    the same on them.
    """
    seen: dict[Any, int] = {}
    kinds = [
        seen.setdefault(
            (c.device.id, c.device.memory_bytes_per_second, tuple(c.device.peak_flops.items()),
             c.devices_per_node, c.intra, c.inter, max(c.placement, default=0),
             min(c.nodes, 2), c.devices if c.nodes == 1 else 0),
            len(seen),
        )
        for c in clusters
    ]  # fmt: skip
    return np.array(kinds, dtype=np.int64)


def _key_columns(jobs: Jobs, constants: Constants, static: dict[Any, Any]) -> dict[str, FloatArray]:
    kinds = node_kinds(jobs.clusters)
    code, distinct_pairs = compact(
        jobs.workload_index.astype(np.int64) * (int(kinds.max()) + 1) + kinds[jobs.cluster_index]
    )
    levels: list[NDArray[Any]] = [distinct_pairs]
    for name in _KEY_FIELDS:
        position, values = compact(getattr(jobs.plans, name))
        code = code * len(values) + position
        levels.append(values)
    position, codes = compact(code)
    parts: list[NDArray[Any]] = []
    rest = codes
    for values in reversed(levels):
        parts.append(values[rest % len(values)])
        rest = rest // len(values)
    micro_batch, tp, cp, ep, sp, recompute, layout = list(reversed(parts))[1:]
    pairs = parts[-1]
    first_of_kind = {int(k): i for i, k in reversed(list(enumerate(kinds)))}
    costs: dict[str, FloatArray] = {}
    width = int(kinds.max()) + 1
    for pair in np.unique(pairs):
        rows = np.flatnonzero(pairs == pair)
        workload = jobs.workloads[int(pair) // width]
        cluster = jobs.clusters[first_of_kind[int(pair) % width]]
        keys = Keys(
            micro_batch=micro_batch[rows].astype(np.float64), tp=tp[rows].astype(np.float64),
            cp=cp[rows].astype(np.float64), ep=ep[rows].astype(np.float64),
            sequence_parallel=sp[rows].astype(np.float64), recompute=recompute[rows],
            channels_last=layout[rows].astype(np.float64),
        )  # fmt: skip
        saved = _remember(static, ("saved", keys.digest()), workload, saved_bytes, workload, keys)
        for name, values in cost_keys(workload, cluster, keys, constants, saved).stacked().items():
            costs.setdefault(name, np.empty(len(codes)))[rows] = values
    return {name: values[position] for name, values in costs.items()}


def workload_facts(workload: Workload, constants: Constants) -> dict[str, float]:
    """Return the numbers of a workload that plan-level formulas read."""
    columns = workload.graph.columns
    owned = columns.params * columns.repeat

    sparse, looked_up, tables = sparse_tables(workload)

    def params(block: Block, *shards: Shard) -> float:
        mask = (columns.block == BLOCK_INDEX[block]) & np.isin(
            columns.shard, [SHARD_INDEX[s] for s in shards]
        )
        mask &= ~tables
        return float(owned[mask].sum())

    whole = (Shard.NONE, Shard.SEQUENCE)
    optimizer = columns.phase == PHASE_INDEX[Phase.OPTIMIZER]
    touched = float(((columns.reads + columns.writes) * columns.repeat)[optimizer].sum()) * 4.0
    total = max(workload.params - sparse, 1.0)
    heads = (columns.block == BLOCK_INDEX[Block.HEAD]) & (
        columns.phase == PHASE_INDEX[Phase.FORWARD]
    )
    head_weights = float((columns.weights * columns.repeat)[heads].sum())
    head_tensor, head_whole = params(Block.HEAD, Shard.TENSOR), params(Block.HEAD, *whole)
    # A tied output embedding owns nothing, but the last pipeline stage keeps a copy of it.
    copied = max(head_weights - head_tensor - head_whole, 0.0)
    trains = constants.lora_trained_share if workload.task == "lora" else 1.0
    return {
        "layers": float(workload.shape.layers),
        "layer_tensor": params(Block.LAYER, Shard.TENSOR),
        "layer_expert": params(Block.LAYER, Shard.EXPERT),
        "layer_whole": params(Block.LAYER, *whole),
        "embed_tensor": params(Block.EMBED, Shard.TENSOR),
        "embed_whole": params(Block.EMBED, *whole),
        "head_tensor": head_tensor,
        "head_whole": head_whole,
        "head_copied": copied,
        "sparse_params": sparse,
        "looked_up": looked_up,
        "optimizer_bytes_per_param": touched / total,
        "states": float(OPTIMIZER_STATES[workload.optimizer]),
        "activation_bytes": ACTIVATION_BYTES[workload.precision],
        "mixed": float(ACTIVATION_BYTES[workload.precision] < 4.0),
        "transformer": float(workload.shape.heads > 0),
        "trained_share": trains,
        "input_bytes": workload.input_bytes,
        "floor_flops": floor_flops_per_sample(workload),
        "detailed": float(workload.detailed),
        "unknown_share": min(1.0, len(workload.graph.unknown) / max(len(workload.graph.ops), 1)),
        "framework_known": float(bool(workload.framework)),
        "framework_taught": constants.taught_share("framework", framework_key(workload.framework)),
        "workload_taught": constants.taught_share("workload", workload.name),
        "real_input": float("synth" not in workload.dataset.lower()),
    }


def sparse_tables(workload: Workload) -> tuple[float, float, NDArray[np.bool_]]:
    """Return (parameters of sparse tables, elements looked up a sample, which operations).

    A recommender's optimizer operation leaves out the tables whose gradients are sparse: where it
    touches fewer parameters than there are, the embeddings are spread over the devices and rows
    travel, instead of being copied to each and reduced.
    """
    columns = workload.graph.columns
    optimizer = columns.phase == PHASE_INDEX[Phase.OPTIMIZER]
    # Gradient, weight and states are read, weight and states written: `backward.optimizer_op`.
    each = 3.0 + 2.0 * OPTIMIZER_STATES[workload.optimizer]
    elements = float(((columns.reads + columns.writes) * columns.repeat)[optimizer].sum())
    tables = (columns.kind == KIND_INDEX[OpKind.EMBEDDING]) & (columns.params > 0)
    sparse = float((columns.params * columns.repeat)[tables].sum())
    if sparse <= 0 or elements <= 0 or elements / each > 0.5 * workload.params:
        return 0.0, 0.0, np.zeros(len(tables), dtype=bool)
    return sparse, float((columns.writes * columns.repeat)[tables].sum()), tables


def cluster_facts(cluster: Cluster, constants: Constants) -> dict[str, float]:
    """Return the numbers of a cluster that plan-level formulas read."""
    intra_latency, intra_rate, inter_latency, inter_rate = links_of(cluster, constants)
    device = cluster.device
    eff = constants.link_efficiency
    used = cluster.inter if cluster.nodes > 1 else cluster.intra
    return {
        "nodes": float(cluster.nodes),
        "devices": float(cluster.devices),
        "node_devices": float(max(cluster.placement, default=cluster.devices_per_node)),
        "intra_latency": intra_latency,
        "intra_rate": intra_rate,
        "inter_latency": inter_latency,
        "inter_rate": inter_rate,
        "host_rate": device.host_bytes_per_second * eff["pcie"] or intra_rate,
        "memory": device.memory_bytes,
        "memory_rate": device.memory_bytes_per_second * constants.bandwidth_efficiency["optimizer"],
        "vcpus": cluster.vcpus_per_device,
        "unverified": float(any(not f.verified for f in device.facts.values())),
        "is_gpu": float(device.kind != "cpu"),
        "device_taught": constants.taught_share("device", device.id),
        "link_taught": constants.taught_share("link", used.kind) if cluster.devices > 1 else 1.0,
        "doublings": max(math.log2(cluster.devices / constants.taught.get("devices", 1.0)), 0.0),
    }


@dataclass(frozen=True)
class Software:
    """What the framework of each row costs, columns (n,); see `constants.Framework`."""

    step_seconds: FloatArray
    grad_bytes: FloatArray
    context_bytes: FloatArray
    tensor_pipeline_seconds: FloatArray


def software(jobs: Jobs, constants: Constants) -> Software:
    """Return the framework's numbers for each row."""
    rows = []
    for workload in jobs.workloads:
        key = framework_key(workload.framework)
        profile = constants.frameworks[key]
        lost = constants.tensor_pipeline_seconds.get(key, 0.0)
        rows.append((profile.step_seconds, profile.grad_bytes, profile.context_bytes, lost))
    columns = np.array(rows)[jobs.workload_index].T
    return Software(*columns)


def fastest_rates(jobs: Jobs) -> FloatArray:
    """Return for each row the FLOP/s that its device cannot pass, (n,)."""
    pair = jobs.workload_index.astype(np.int64) * len(jobs.clusters) + jobs.cluster_index
    position, distinct = compact(pair)
    fastest = np.empty(len(distinct))
    for i, code in enumerate(distinct):
        workload = jobs.workloads[int(code) // len(jobs.clusters)]
        device = jobs.clusters[int(code) % len(jobs.clusters)].device
        fastest[i] = fastest_rate(device, workload)
    return fastest[position]
