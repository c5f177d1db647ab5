"""Facts: the numbers of workloads and clusters that plan-level formulas read."""

from __future__ import annotations

import math

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
from forerun.predictors.analytic.constants import Constants, framework_name, scale_key
from forerun.predictors.analytic.fallbacks import MEASURED
from forerun.predictors.analytic.floors import floor_flops_per_sample
from forerun.predictors.analytic.keys import IS_CONV

# What micro-benchmarks on the device itself leave unknown of it, as if so many runs had spoken.
PROBED_TAUGHT = 0.8


def workload_facts(workload: Workload, constants: Constants) -> dict[str, float]:
    """Return the numbers of a workload that plan-level formulas read."""
    columns = workload.graph.columns
    owned = columns.params * columns.repeat

    sparse, looked_up, tables = sparse_tables(workload)

    def params(block: Block, *shards: Shard) -> float:
        cut = np.zeros(len(owned), dtype=bool)
        for shard in shards:
            cut |= columns.shard == SHARD_INDEX[shard]
        mask = cut & (columns.block == BLOCK_INDEX[block]) & ~tables
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
        "fp16": float(workload.precision == "fp16"),
        "transformer": float(workload.shape.heads > 0),
        "trained_share": trains,
        "input_bytes": workload.input_bytes,
        "image_elements": _image_elements(workload),
        "floor_flops": floor_flops_per_sample(workload),
        "detailed": float(workload.detailed),
        "unknown_share": min(1.0, len(workload.graph.unknown) / max(len(workload.graph.ops), 1)),
        "framework_known": float(bool(workload.framework)),
        "real_input": float("synth" not in workload.dataset.lower()),
    }


def _image_elements(workload: Workload) -> float:
    """Return the elements of one sample that a network of images reads, else 0."""
    columns = workload.graph.columns
    if not len(columns.kind) or not IS_CONV[columns.kind[0]]:
        return 0.0
    return float(columns.reads[0])


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


def cluster_facts(cluster: Cluster) -> dict[str, float]:
    """Return the numbers of a cluster that no constant moves; its links are in `links`."""
    device = cluster.device
    return {
        "nodes": float(cluster.nodes),
        "devices": float(cluster.devices),
        "node_devices": float(cluster.near_devices),
        "memory": device.memory_bytes,
        "nominal_memory_rate": device.memory_bytes_per_second,
        "vcpus": cluster.vcpus_per_device,
        "unverified": float(any(not f.verified for f in device.facts.values())),
        "is_gpu": float(device.kind != "cpu"),
    }


def taught_workload(workload: Workload, constants: Constants) -> dict[str, float]:
    """Return how well runs have taught the constants of a workload, 0 to 1."""
    key = framework_name(workload.framework)
    return {
        "framework_taught": constants.taught_share("framework", key),
        "workload_taught": constants.taught_share("workload", scale_key(workload)),
    }


def taught_cluster(cluster: Cluster, constants: Constants) -> dict[str, float]:
    """Return how well runs have taught the constants of a cluster, and its doublings beyond."""
    used = cluster.inter if cluster.nodes > 1 else cluster.intra
    most = constants.taught.get("devices", 1.0)
    probed = cluster.device.measured
    least = PROBED_TAUGHT * probed.sureness if probed is not None else 0.0
    link = constants.taught_share("link", used.kind) if cluster.devices > 1 else 1.0
    return {
        "device_taught": max(constants.taught_share("device", cluster.device.id), least),
        "link_taught": max(link, least if used.kind == MEASURED else 0.0),
        "doublings": max(math.log2(cluster.devices / most), 0.0),
        "framework_probed": least,
    }
