"""Layout: n jobs as the columns that formulas read, and all that no constant moves of them.

Layers of one shape cut alike run the same kernels on a device, in models of any depth: which kernels a
library picks follows no smooth law, so `shape_scale` scales all that such a layer's micro-batch takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import count, pairwise
from typing import Any
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray, IntArray, alike
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
from forerun.domain.plan import SERVER_SYNCS
from forerun.domain.workload import ACTIVATION_BYTES, OPTIMIZER_STATES, Workload
from forerun.predictors.analytic import communication
from forerun.predictors.analytic.constants import Constants, Framework, framework_key, scale_key
from forerun.predictors.analytic.flat import (
    IS_CONV,
    FlatOps,
    Keys,
    Rows,
    flatten,
    remember,
    runs_of_equal,
    spread_over,
    thin,
)
from forerun.predictors.analytic.measured import MeasuredOps, held_back, measured_ops, with_probed
from forerun.predictors.analytic.memory import held_bytes, saved_bytes
from forerun.predictors.analytic.operations import (
    fastest_rate,
    floor_flops_per_sample,
    instance_costs,
)
from forerun.predictors.analytic.uncertainty import settings_of
from forerun.tables import Jobs

# What instances cost, by constants, workload, kind of cluster and key, beside constants and workload themselves.
_KEPT: dict[Any, tuple[Any, Any, tuple[str, ...], Any]] = {}
_KINDS, _NUMBERS = dict[Any, int](), count()  # two threads never get one number
_FEW_INSTANCES, _MOST_KEPT = 1000, 20_000  # of one question; of all (15 MB)
_ROWS_ALONE = 5000  # of a cluster, from which a block of their own pays
# In the order of `Keys`.
_KEY_FIELDS = ("micro_batch", "tp", "cp", "ep", "sequence_parallel", "recompute", "memory_format")
_PLAN_FIELDS = ("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch", "global_batch", "zero_stage",
                "sequence_parallel", "recompute", "parameter_servers")  # fmt: skip
_OFFLOAD_FIELDS = ("offload", "offload_activations")
_SERVER_FIELDS = ("stale_bound", "servers_with_workers", "gradient_bits")
_SOFTWARE_FIELDS = tuple(f.name for f in fields(Framework))


@dataclass(frozen=True)
class Layout:
    """n resolved jobs on I instances: all that no constant moves, but those that operations were flattened with.

    position: (n,) instance of each row; cluster: (I,) position of its cluster among the jobs';
    frameworks: names of profiles, framework: (I,) position of each instance's.
    """

    jobs: Jobs
    plan: dict[str, FloatArray]
    work: dict[str, FloatArray]
    node: dict[str, FloatArray]
    links: communication.Links
    position: IntArray
    workloads: tuple[Workload, ...]
    clusters: tuple[Cluster, ...]
    cluster: IntArray
    keys: Keys
    frameworks: tuple[str, ...]
    framework: IntArray
    constants: Constants
    measured: MeasuredOps | None

    @cached_property
    def flat(self) -> FlatOps:
        """The instances' operations."""
        return flatten(self.workloads, [c.device for c in self.clusters], self.keys, self.constants)

    @cached_property
    def saved(self) -> dict[str, FloatArray]:
        """What each instance keeps for backward, (I,); see `memory.saved_bytes`."""
        runs = runs_of_equal(self.workloads)
        pieces = [saved_bytes(self.workloads[i[0]], self.keys.take(i)) for i in runs]
        return {name: np.concatenate([p[name] for p in pieces]) for name in pieces[0]}

    @cached_property
    def row_framework(self) -> IntArray:
        """Position of each row's framework, (n,)."""
        return np.asarray(self.framework[self.position])

    @cached_property
    def _shapes(self) -> list[str]:
        return cut_shapes(self.workloads, self.clusters, self.keys)

    def rows(self, constants: Constants) -> Rows:
        """Return the rows priced with constants."""
        return next(self.blocks(constants, [slice(None)]))

    def blocks(self, constants: Constants, parts: Iterable[slice]) -> Iterator[Rows]:
        """Yield parts of the rows priced with constants."""
        link, costs = self.links.effective(constants), self._kept_costs(constants)
        profiles, share = self._profiles(constants), constants.bandwidth_efficiency["optimizer"]
        own = np.ones(0)
        if constants.setting_scale:
            places, row = np.unique(settings_of(self.jobs).astype(str), return_inverse=True)
            own = np.array([constants.setting_scale.get(str(p), 1.0) for p in places])[row]
        for part in parts:
            position, index = self.position[part], thin(self.jobs.cluster_index[part])
            framework = thin(self.row_framework[part])
            plan, work, node = (
                {name: values[part] for name, values in columns.items()}
                for columns in (self.plan, self.work, self.node)
            )
            node |= {name: spread_over(values, index) for name, values in link.items()}
            node["memory_rate"] = node["nominal_memory_rate"] * share
            if len(own):
                node["setting_scale"] = own[part]
            key = {name: values[position] for name, values in costs.items()}
            software = {name: spread_over(v, framework) for name, v in profiles.items()}
            yield Rows(plan, key, work, node, software, self.jobs.plans.sync[part])

    def _costs(self, constants: Constants) -> dict[str, FloatArray]:
        """Return what a micro-batch of each instance costs and holds, (I,)."""
        link = self.links.effective(constants)
        traffic = communication.traffic_of(self.workloads, self.clusters, self.keys)
        inside = tuple(link[name][self.cluster] for name in communication.LINK_FIELDS)
        tensor, expert, context = communication.layer_comm(traffic, self.keys, inside, constants)
        comm = tensor, expert * self._profiles(constants)["expert_share"][self.framework], context
        scale = np.array(
            [constants.workload_scale.get(key, 1.0) for key in map(scale_key, self.workloads)]
        )
        costs = instance_costs(self.flat, self.keys, scale, comm, constants, self.measured)
        known = constants.shape_scale
        if known and not known.keys().isdisjoint(self._shapes):
            shaped = np.array([known.get(name, 1.0) for name in self._shapes])
            costs |= {name: v * shaped for name, v in costs.items() if name.startswith("layer_")}
        return costs | self._held(constants)

    def _kept_costs(self, constants: Constants) -> dict[str, FloatArray]:
        """Return what `_costs` does; of instances that were asked before as it was then."""
        kept = constants is self.constants and self.measured is None
        if not kept or not 0 < len(self.keys) <= _FEW_INSTANCES:
            return self._costs(constants)
        work, cuts = self.workloads, (column.tolist() for column in vars(self.keys).values())
        cases = [
            (id(constants), id(workload), remember(cluster, kind_of), *cut)
            for workload, cluster, *cut in zip(work, self.clusters, *cuts, strict=True)
        ]
        found = [_KEPT.get(case, (type(None), type(None), (), [])) for case in cases]
        new = [i for i, (a, b, *_) in enumerate(found) if not (a() is constants and b() is work[i])]
        if new:
            part = replace(
                self, workloads=tuple(work[i] for i in new), keys=self.keys.take(np.array(new)),
                clusters=tuple(self.clusters[i] for i in new), cluster=self.cluster[new],
                framework=self.framework[new],
            )  # fmt: skip
            costs = part._costs(constants)
            for i, row in zip(new, np.array(list(costs.values())).T, strict=True):
                found[i] = _KEPT[cases[i]] = ref(constants), ref(work[i]), tuple(costs), row
        if len(_KEPT) > _MOST_KEPT:
            _KEPT.clear()
        if len(_KINDS) > _MOST_KEPT:  # no number comes again
            _KINDS.clear()
        return dict(zip(found[0][2], np.array([row for *_, row in found]).T.copy(), strict=True))

    def _held(self, constants: Constants) -> dict[str, FloatArray]:
        software = {k: v[self.framework] for k, v in self._profiles(constants).items()}
        transformer = np.array([w.shape.heads > 0 for w in self.workloads])
        return held_bytes(self.saved, software, transformer)

    def held(self, constants: Constants) -> dict[str, FloatArray]:
        """Return what each row's framework holds in memory, (n,); see `memory.held_bytes`."""
        return {name: values[self.position] for name, values in self._held(constants).items()}

    def software(self, constants: Constants) -> dict[str, FloatArray]:
        """Return the constants of each row's framework by name, (n,)."""
        table = self._profiles(constants)
        return {name: spread_over(values, self.row_framework) for name, values in table.items()}

    def _profiles(self, constants: Constants) -> dict[str, FloatArray]:
        profiles = [tuple(vars(constants.frameworks[name]).values()) for name in self.frameworks]
        return dict(zip(_SOFTWARE_FIELDS, np.array(profiles).T, strict=True))


def blocks_of(jobs: Jobs, size: int) -> list[slice]:
    """Return parts of n jobs, so many rows at most, of one cluster each where clusters have many."""
    n, size = len(jobs), max(size, 1)
    changes = (np.flatnonzero(np.diff(jobs.cluster_index)) + 1).tolist()
    ends = [0, *(changes if len(changes) * _ROWS_ALONE < n else ()), n]
    return [
        slice(begin, min(begin + size, end))
        for start, end in pairwise(ends)
        for begin in range(start, end, size)
    ] or [slice(0, 0)]


def lay_out(jobs: Jobs, constants: Constants) -> Layout:
    """Return the layout of jobs that are all resolved."""
    work = [remember(w, workload_facts) for w in jobs.workloads]
    node = [remember(c, cluster_facts) for c in jobs.clusters]
    probed = any(c.device.measured is not None for c in jobs.clusters)
    if probed:
        work, node = with_probed(work, node, jobs.workloads, jobs.clusters)
    by_row = _spread(node, jobs.cluster_index)
    if probed:
        by_row = held_back(by_row, jobs)
    served = _SERVER_FIELDS if np.isin(jobs.plans.sync, SERVER_SYNCS).any() else ()
    away = any(getattr(jobs.plans, name).any() for name in _OFFLOAD_FIELDS)
    names = (*_PLAN_FIELDS, *served, *(_OFFLOAD_FIELDS if away else ()))
    plan = {n: getattr(jobs.plans, n).astype(np.float64) for n in names}
    frameworks = [framework_key(w.framework) for w in jobs.workloads]
    distinct = tuple(sorted(set(frameworks)))
    place = np.array([distinct.index(f) for f in frameworks])
    position, workload, cluster, keys = _instances(jobs)
    workloads = tuple(jobs.workloads[i] for i in workload)
    clusters = tuple(jobs.clusters[i] for i in cluster)
    devices = [c.device for c in clusters]
    pairs = {(id(d), w.precision): (d, w) for d, w in zip(devices, workloads, strict=True)}
    fastest = {key: fastest_rate(*pair) for key, pair in pairs.items()}
    most = np.array([fastest[id(d), w.precision] for d, w in zip(devices, workloads, strict=True)])
    return Layout(
        jobs, plan, _spread(work, jobs.workload_index),
        {**by_row, "most_flops": most[position]}, communication.links_of(jobs.clusters),
        position, workloads, clusters, cluster, keys, distinct, place[workload], constants,
        measured_ops(workloads, devices, keys) if probed else None,
    )  # fmt: skip


def workload_facts(workload: Workload) -> dict[str, float]:
    """Return the numbers of a workload that plan-level formulas read."""
    graph = workload.graph
    columns, trained = graph.columns, graph.params - graph.frozen
    owned = columns.params * columns.repeat
    sparse, looked_up, width, tables = sparse_tables(workload)
    facts = {}
    for block in Block:
        for word, shards in _SHARDS.items():
            cut = np.isin(columns.shard, [SHARD_INDEX[shard] for shard in shards])
            mask = cut & (columns.block == BLOCK_INDEX[block]) & ~tables
            facts[f"{block}_{word}"] = float(owned[mask].sum())
    forward = columns.phase == PHASE_INDEX[Phase.FORWARD]
    heads = forward & (columns.block == BLOCK_INDEX[Block.HEAD])
    head_weights = float((columns.weights * columns.repeat)[heads].sum())
    owned_heads = sum(facts[f"{Block.HEAD}_{word}"] for word in _SHARDS)
    copied = max(head_weights - owned_heads, 0.0)
    has_images = len(columns.kind) and IS_CONV[columns.kind[0]]
    return {
        **facts,
        "layers": float(workload.shape.layers),
        # A tied output embedding owns nothing, but the last pipeline stage keeps a copy of it, unless it
        # has an output of its own (DeepSeek-V3's, which predicts further tokens too).
        "head_copied": copied if copied > facts["head_tensor"] else 0.0,
        "sparse_params": sparse,
        "looked_up": looked_up,
        "tables": float(tables.sum()),
        "table_width": width,
        "sparse_fraction": workload.sparse_fraction or 0.0,
        "optimizer_bytes_per_param": 4.0 * _updated(workload) / max(trained - sparse, 1.0),
        "states": float(OPTIMIZER_STATES[workload.optimizer]),
        "paged": float(workload.optimizer.startswith("paged")),
        "activation_bytes": ACTIVATION_BYTES[workload.precision],
        "mixed": float(ACTIVATION_BYTES[workload.precision] < 4.0),
        "fp16": float(workload.precision == "fp16"),
        "transformer": float(workload.shape.heads > 0),
        "trained_share": trained / graph.params if graph.frozen else 1.0,
        "adapted": float(graph.frozen > 0 and any(".lora_" in op.name for op in graph.ops)),
        "quantized_share": graph.quantized / max(graph.params, 1.0),
        "input_bytes": workload.input_bytes,
        "image_elements": float(columns.reads[0]) if has_images else 0.0,
        "floor_flops": floor_flops_per_sample(workload),
        "detailed": float(workload.detailed),
        "unknown_share": min(1.0, len(workload.graph.unknown) / max(len(workload.graph.ops), 1)),
        "framework_known": float(bool(workload.framework)),
        "real_input": float("synth" not in workload.dataset.lower()),
    }


_SHARDS = {
    "tensor": (Shard.TENSOR,), "expert": (Shard.EXPERT,), "whole": (Shard.NONE, Shard.SEQUENCE),
}  # fmt: skip


def _updated(workload: Workload) -> float:
    columns = workload.graph.columns
    optimizer = columns.phase == PHASE_INDEX[Phase.OPTIMIZER]
    return float(((columns.reads + columns.writes) * columns.repeat)[optimizer].sum())


def sparse_tables(workload: Workload) -> tuple[float, float, float, BoolArray]:
    """Return of tables left out of the optimizer (parameters, elements looked up a sample, elements a row, which ops)."""
    columns = workload.graph.columns
    # Gradient, weight and states are read, weight and states written: `backward.optimizer_op`.
    each = 3.0 + 2.0 * OPTIMIZER_STATES[workload.optimizer]
    elements = _updated(workload)
    tables = (columns.kind == KIND_INDEX[OpKind.EMBEDDING]) & (columns.params > 0)
    sparse = float((columns.params * columns.repeat)[tables].sum())
    if (
        sparse <= 0
        or elements <= 0
        or elements / each + workload.graph.frozen > workload.params - 0.5 * sparse
    ):
        return 0.0, 0.0, 1.0, np.zeros(len(tables), dtype=bool)
    looked_up = (columns.writes * columns.repeat)[tables]
    ops = [workload.graph.ops[i] for i in np.flatnonzero(tables)]
    widths = np.array([float(op.shape[-1]) if op.shape else 1.0 for op in ops])
    width = looked_up.sum() / max((looked_up / np.maximum(widths, 1.0)).sum(), 1e-300)
    return sparse, float(looked_up.sum()), float(width), tables


def cluster_facts(cluster: Cluster) -> dict[str, float]:
    """Return the numbers of a cluster that no constant moves, beside its links."""
    device = cluster.device
    return {
        "nodes": float(cluster.nodes),
        "devices": float(cluster.devices),
        "node_devices": float(cluster.near_devices),
        "memory": device.memory_bytes,
        "host_memory": cluster.host_memory_bytes
        or (device.memory_bytes * cluster.near_devices if device.kind == "cpu" else np.inf),
        "nominal_memory_rate": device.memory_bytes_per_second,
        "vcpus": cluster.vcpus_per_device,
        "unverified": float(any(not f.verified for f in device.facts.values())),
        "is_gpu": float(device.kind != "cpu"),
    }


def _spread(facts: list[dict[str, float]], index: NDArray[np.int32]) -> dict[str, FloatArray]:
    return {name: spread_over(np.array([f[name] for f in facts]), index) for name in facts[0]}


def kind_of(c: Cluster) -> int:
    """Return a number of the clusters on which an instance costs the same."""
    kind = (
        c.device, c.devices_per_node, c.intra, c.inter, max(c.placement, default=0), c.fabric_devices,
        min(c.nodes, 2), c.devices if c.nodes == 1 else 0,
    )  # fmt: skip
    return _KINDS.setdefault(kind, next(_NUMBERS))


def _instances(jobs: Jobs) -> tuple[IntArray, IntArray, IntArray, Keys]:
    """Return (each row's instance, the instances' workloads and clusters by position, and keys)."""
    kinds = np.array([remember(c, kind_of) for c in jobs.clusters], dtype=np.int64)
    plans, kind = jobs.plans, kinds[jobs.cluster_index]
    cuts = (getattr(plans, name) for name in _KEY_FIELDS)
    position, first = alike([jobs.workload_index, kind, *cuts])
    keys = Keys(*(
        getattr(plans, name)[first].astype(np.int64 if name == "recompute" else np.float64)
        for name in _KEY_FIELDS
    ))  # fmt: skip
    pair = (jobs.workload_index, jobs.cluster_index)
    workload, cluster = (codes[first].astype(np.int64) for codes in pair)
    return position, workload, cluster, keys


def cut_shapes(workloads: Sequence[Workload], clusters: Sequence[Cluster], keys: Keys) -> list[str]:
    """Return the names of instances' layers as they are cut, (I,); "" where they have none."""
    names = []
    cuts = zip(keys.micro_batch, keys.tp, keys.cp, keys.ep, strict=True)
    for workload, cluster, cut in zip(workloads, clusters, cuts, strict=True):
        shape, (micro_batch, tp, cp, ep) = workload.shape, cut
        if not (shape.hidden and shape.heads and workload.seq_len):
            names.append("")
            continue
        experts = f" e{shape.experts}" if shape.experts else ""
        spans = cluster.nodes > 1 and tp * max(cp, ep) > cluster.near_devices
        over = f" over {cluster.inter.kind}" if spans else ""
        names.append(
            f"h{shape.hidden} f{shape.ffn} a{shape.heads}/{shape.kv_heads}{experts}"
            f" s{workload.seq_len} {workload.precision} {framework_key(workload.framework)}"
            f" {cluster.device.id} b{micro_batch:.0f} tp{tp:.0f} cp{cp:.0f} ep{ep:.0f}{over}"
        )
    return names


def shapes_of_rows(jobs: Jobs) -> NDArray[np.object_]:
    """Return the name of each row's cut layer, (n,)."""
    position, workload, cluster, keys = _instances(jobs)
    names = cut_shapes(
        [jobs.workloads[i] for i in workload], [jobs.clusters[i] for i in cluster], keys
    )
    return np.array(names, dtype=object)[position]
