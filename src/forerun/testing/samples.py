"""Small workloads, clusters, jobs and runs that need no zoo and no catalogue."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from forerun.domain.graph import Block, Graph, Op, OpKind, Phase, Shard
from forerun.domain.hardware import Cluster, Device, Link
from forerun.domain.job import Job
from forerun.domain.plan import Plan
from forerun.domain.workload import LayerShape, Workload
from forerun.tables import Jobs, Runs, Table


def tiny_workload(
    name: str = "tiny-transformer", layers: int = 4, hidden: int = 256, **changes: Any
) -> Workload:
    """Return a small transformer; FLOPs grow with the square of `hidden`; changes: of the Workload."""
    seq_len, vocab = 128, 1000
    tokens = float(seq_len)
    product_flops = 2.0 * tokens * 12 * hidden * hidden
    head_flops = 2.0 * tokens * hidden * vocab
    cells = tokens * hidden
    layer: dict[str, Any] = {"repeat": layers, "shard": Shard.TENSOR}
    ops = (
        Op("embed", OpKind.EMBEDDING, reads=cells, writes=cells, params=vocab * hidden,
           block=Block.EMBED, saved=tokens),
        Op("layer.norm", OpKind.NORM, reads=cells, writes=cells, params=2 * hidden, saved=cells,
           repeat=layers),
        Op("layer.mix", OpKind.MATMUL, flops=product_flops, reads=cells, writes=12 * cells,
           weights=12 * hidden * hidden, params=12 * hidden * hidden, saved=12 * cells,
           dims=(seq_len, 12 * hidden, hidden, 1), **layer),
        Op("head", OpKind.MATMUL, flops=head_flops, reads=cells, writes=tokens * vocab,
           weights=vocab * hidden, params=vocab * hidden, saved=tokens * vocab,
           dims=(seq_len, vocab, hidden, 1), block=Block.HEAD, shard=Shard.TENSOR),
        Op("head.backward", OpKind.MATMUL, Phase.BACKWARD, flops=2 * head_flops,
           reads=tokens * vocab, writes=cells, weights=vocab * hidden, block=Block.HEAD,
           dims=(seq_len, hidden, 2 * vocab, 1), shard=Shard.TENSOR),
        Op("layer.mix.backward", OpKind.MATMUL, Phase.BACKWARD, flops=2 * product_flops,
           reads=12 * cells, writes=cells, weights=12 * hidden * hidden,
           dims=(seq_len, hidden, 24 * hidden, 1), **layer),
        Op("optimizer", OpKind.OPTIMIZER, Phase.OPTIMIZER,
           weights=layers * 12 * hidden * hidden + 2 * vocab * hidden),
    )  # fmt: skip
    given: dict[str, Any] = {
        "shape": LayerShape(
            layers=layers, hidden=hidden, heads=8, kv_heads=8, ffn=4 * hidden, vocab=vocab
        ),
        "family": "tiny", "sample": "sequence", "seq_len": seq_len, "dataset": "synthetic",
        "dataset_size": 10_000.0, "framework": "sample-framework", "source": "forerun.testing",
    }  # fmt: skip
    return Workload(**{"name": name, "graph": Graph(ops), **given, **changes})


def tiny_device(id: str = "sample-gpu", **changes: Any) -> Device:
    """Return a made-up accelerator of 100 TFLOP/s, 1 TB/s and 40 GB; `changes` replace fields."""
    fields: dict[str, Any] = {
        "id": id, "name": "Sample GPU", "vendor": "nobody", "kind": "gpu", "generation": "sample",
        "year": 2020, "memory_bytes": 40e9, "memory_bytes_per_second": 1e12,
        "peak_flops": {"fp32": 20e12, "tf32": 50e12, "fp16": 100e12, "bf16": 100e12},
        "watts": 300.0, "link_bytes_per_second": 100e9, "host_bytes_per_second": 16e9,
        "node_bytes_per_second": 10e9, "devices_per_node": 8,
    }  # fmt: skip
    return Device(**{**fields, **changes})


def tiny_cluster(
    nodes: int = 2, devices_per_node: int = 4, device: Device | None = None, **changes: Any
) -> Cluster:
    """Return nodes of sample devices at 2 dollars a device and hour."""
    device = device or tiny_device()
    fields: dict[str, Any] = {
        "name": f"{nodes}x{devices_per_node}x{device.id}", "intra": Link("nvlink", 5e-6, 100e9),
        "inter": Link("ethernet", 2e-5, 10e9), "dollars_per_hour": 2.0 * nodes * devices_per_node,
    }  # fmt: skip
    return Cluster(
        device=device, nodes=nodes, devices_per_node=devices_per_node, **{**fields, **changes}
    )


def tiny_jobs(
    clusters: Sequence[Cluster] = (),
    workloads: Sequence[Workload] = (),
    global_batches: Sequence[int] = (64, 128),
) -> Jobs:
    """Return every legal mix of tp 1-2, pp 1-2 and micro-batch 1-4 on small clusters, labelled."""
    jobs = []
    for workload, cluster, batch, tp, pp, micro in product(
        workloads or (tiny_workload(), tiny_workload("tiny-wide", hidden=512)),
        clusters or (tiny_cluster(1, 1), tiny_cluster(1, 4), tiny_cluster(2, 4)),
        global_batches, (1, 2), (1, 2), (1, 4),
    ):  # fmt: skip
        if cluster.devices % (tp * pp):
            continue
        dp = cluster.devices // (tp * pp)
        plan = Plan(dp=dp, tp=tp, pp=pp, micro_batch=micro, global_batch=batch)
        jobs.append(Job(workload, cluster, plan))
    return labelled(Jobs.of(jobs))


def labelled(jobs: Jobs) -> Jobs:
    """Return the jobs with the labels that a runs table would have for them."""
    from dataclasses import replace

    rows = [
        {
            "workload": job.workload.name, "framework": job.workload.framework,
            "precision": job.workload.precision, "seq_len": job.workload.seq_len,
            "dataset_size": job.workload.dataset_size, "device": job.cluster.device.id,
            "nodes": job.cluster.nodes, "devices": job.cluster.devices,
            "devices_per_node": job.cluster.devices_per_node,
            **{k: str(v) if isinstance(v, bool) else v for k, v in job.plan.as_dict().items()},
        }
        for job in jobs
    ]  # fmt: skip
    return replace(jobs, labels=Table.from_rows(rows, "sample jobs") if rows else None)


def tiny_runs(jobs: Jobs | None = None, mfu: float = 0.4, **columns: ArrayLike) -> Runs:
    """Return runs of the jobs whose steps take what a device at `mfu` of its peak takes.

    columns: measured columns (n,) or scalars, added or replaced.
    """
    jobs = tiny_jobs() if jobs is None else jobs
    flops = np.array([w.graph.forward_flops + w.graph.backward_flops for w in jobs.workloads])
    peaks = np.array([c.device.flops("bf16") * c.devices for c in jobs.clusters])
    work = flops[jobs.workload_index] * jobs.plans.global_batch
    measured: dict[str, Any] = {
        "step_time_s": work / (peaks[jobs.cluster_index] * mfu),
        "status": np.full(len(jobs), "ok", dtype=object),
    }
    for name, values in columns.items():
        array = np.asarray(values)
        kind = object if array.dtype.kind in "OU" else np.float64
        measured[name] = np.broadcast_to(array, (len(jobs),)).astype(kind)
    table = jobs.cells
    return Runs(jobs, table.with_columns(**measured))
