"""Measured devices: what operations and steps cost where a probe has timed them.

Curves price operations; buckets of gradients are followed one by one, as DistributedDataParallel
fills and sends them (Li et al. 2020).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from forerun.arrays import BoolArray, FloatArray
from forerun.domain.graph import PHASE_INDEX, Op, OpKind, Phase
from forerun.domain.hardware import Cluster, Device
from forerun.domain.measured import Curve, Exchange, Measured, Update
from forerun.domain.plan import ALL_REDUCE
from forerun.domain.workload import ACTIVATION_BYTES, Workload
from forerun.predictors.analytic import flat
from forerun.tables import Jobs

if TYPE_CHECKING:
    from forerun.predictors.analytic.flat import Rows

# Which measured optimizer stands for one with so many states a parameter.
_BY_STATES = ("sgd", "momentum", "adamw")
# Buffers whose all-reduces a cluster's facts state; times of others lie between.
REDUCED_BYTES = (4.0, 4096.0, 65536.0, 262144.0, 1048576.0, 4194304.0, 16777216.0, 67108864.0)
_UPDATE_FIELDS = tuple(Update.__dataclass_fields__)
BUCKETS = 6  # more are joined
# DistributedDataParallel's defaults.
FIRST_BYTES, NEXT_BYTES = 2.0**20, 25.0 * 2.0**20
_NUMBER = re.compile(r"_\d+$")
_ANY_PRODUCT = "matmul.forward"  # stands for products whose own curve was not measured
_GROUP_WIDTH, _KERNEL_AREA = 16.0, 9.0
# Kernels of fused attention skip whole blocks of what a causal mask hides, never less.
_BLOCK = 64.0
# Parts of a step that are computed on the device.
_COMPUTED = ("forward", "backward", "recompute")


@dataclass(frozen=True)
class MeasuredOps:
    """Seconds of instances by slot, (I, slots), which a probe timed (I,), and their `bucket_columns`."""

    measured: BoolArray
    products: FloatArray
    others: FloatArray
    columns: Mapping[str, FloatArray]

    def seconds(self, products: FloatArray, others: FloatArray) -> FloatArray:
        """Return device seconds by slot, (I, slots); rates over those measured, each (I,)."""
        return self.products / products[:, None] + self.others / others[:, None]


def measured_ops(
    workloads: Sequence[Workload], devices: Sequence[Device], keys: flat.Keys
) -> MeasuredOps | None:
    """Return the measured operations of I instances, None where no device was measured."""
    pairs: dict[tuple[int, int], list[int]] = {}
    for i, (workload, device) in enumerate(zip(workloads, devices, strict=True)):
        # Its curves must price any product and any operation that moves elements in the precision.
        named = ((_ANY_PRODUCT,), ("elementwise",))
        found = device.measured
        if found is not None and all(found.curve(workload.precision, names) for names in named):
            pairs.setdefault((id(workload), id(device)), []).append(i)
    if not pairs:
        return None
    known = np.zeros(len(workloads), dtype=bool)
    products, others = np.zeros((2, len(workloads), len(flat.SLOTS)))
    columns = bucket_columns((), np.zeros((len(workloads), 0)))
    for rows in pairs.values():
        measured = devices[rows[0]].measured
        assert measured is not None
        known[rows] = True
        products[rows], others[rows], buckets = _one(
            workloads[rows[0]], measured, keys.take(np.array(rows))
        )
        for name, values in buckets.items():
            columns[name][rows] = values
    return MeasuredOps(known, products, others, columns)


def _one(
    workload: Workload, measured: Measured, keys: flat.Keys
) -> tuple[FloatArray, FloatArray, dict[str, FloatArray]]:
    ops = workload.graph.columns
    samples, work = (keys.micro_batch / keys.cp)[:, None], flat.activation_cut(ops, keys)
    sizes, flops = flat.product_sizes(ops, keys), ops.flops * samples / work
    tp = np.where(flat.cut_by_tensor(ops), keys.tp[:, None], 1.0)
    moved = (ops.reads + ops.writes) * samples / work + ops.weights / tp
    slots = flat.slots_of(workload, ops)
    products, others = np.zeros((2, len(keys), len(flat.SLOTS)))
    each = _cold_seconds(workload, measured, keys, moved)
    computed = [i for i, op in enumerate(workload.graph.ops) if op.phase is not Phase.OPTIMIZER]
    asked = {
        i: _product(workload, measured, i, [size[:, i] for size in sizes], flops[:, i])
        if flat.IS_MATRIX[ops.kind[i]] and workload.graph.ops[i].dims
        else _moving(workload.precision, measured, workload.graph.ops[i], moved[:, i])
        for i in computed
    }  # fmt: skip
    timed = _read(asked, len(keys))
    for i, op in enumerate(workload.graph.ops):
        if op.phase is Phase.OPTIMIZER:
            each[:, i] = 0.0
            continue
        each[:, i] += timed[i]
        forward = op.phase is Phase.FORWARD
        each[:, i] += measured.forward_call_seconds if forward else measured.backward_call_seconds
        into = products if flat.IS_MATRIX[ops.kind[i]] else others
        into[:, slots[i]] += each[:, i] * op.repeat
        if op.params > 0:  # its gradient is kept when backward has come there
            block = flat.SLOTS[slots[i]].partition("_")[0]
            there = flat.SLOTS.index(f"{block}_backward")
            others[:, there] += tensors_of(op) * measured.gradient_seconds * op.repeat
    return products, others, bucket_columns(workload.graph.ops, each)


class CurveTimes(NamedTuple):
    """Seconds of one operation in k instances: a factor (k,), times what curves say at sizes (k,), or over it."""

    factor: FloatArray | float
    times: tuple[tuple[Curve, Sequence[FloatArray]], ...]
    over: tuple[tuple[Curve, Sequence[FloatArray]], ...] = ()


def _read(asked: Mapping[int, CurveTimes], count: int) -> dict[int, FloatArray]:
    """Return the seconds of each operation in k instances, (k,); each curve is read once, at all sizes that are asked."""
    curves: dict[int, Curve] = {}
    places: dict[int, list[tuple[int, float, Sequence[FloatArray]]]] = {}
    for i, reading in asked.items():
        for power, terms in ((1.0, reading.times), (-1.0, reading.over)):
            for curve, sizes in terms:
                curves[id(curve)] = curve
                places.setdefault(id(curve), []).append((i, power, sizes))
    found = {i: np.ones(count) * reading.factor for i, reading in asked.items()}
    for key, terms_of in places.items():
        stacked = [
            np.stack(axis) for axis in zip(*(sizes for _, _, sizes in terms_of), strict=True)
        ]
        for (i, power, _), values in zip(terms_of, curves[key].at(*stacked), strict=True):
            found[i] = found[i] * values**power
    return found


def _cold_seconds(
    workload: Workload, measured: Measured, keys: flat.Keys, moved: FloatArray
) -> FloatArray:
    ops = workload.graph.columns
    curve = measured.curve(workload.precision, ("memory",))
    if curve is None:
        return np.zeros(moved.shape)
    size = ACTIVATION_BYTES[workload.precision]
    samples = (keys.micro_batch / keys.cp)[:, None]
    saved = (ops.saved * ops.repeat).sum() * samples
    footprint = size * (saved + 2.0 * workload.params / keys.tp[:, None])
    least, most = curve.axes[0][0], curve.axes[0][-1]
    far = curve.at(np.clip(footprint, least, most))
    near = curve.at(np.clip(size * moved, least, most))
    backward = ops.phase == PHASE_INDEX[Phase.BACKWARD]
    gone = np.where(backward, 0.5 * ops.reads, ops.writes) * samples + ops.weights
    # A curve's element is read and written.
    return np.maximum(far - near, 0.0) * 0.5 * gone


def _kind_of(op: Op) -> str:
    """Return the framework's name of an operation, as a trace numbers it."""
    return _NUMBER.sub("", op.name.rpartition(".")[2])


def _moving(precision: str, measured: Measured, op: Op, moved: FloatArray) -> CurveTimes:
    if op.kind is OpKind.COPY and op.reads + op.writes <= 0:
        moved = np.maximum(moved, 1.0)
    name = _kind_of(op)
    phase = "forward" if op.phase is Phase.FORWARD else "backward"
    names = (name, f"{op.kind}.{phase}", str(op.kind))
    curve = measured.curve(precision, names) or measured.curve(precision, ("elementwise",))
    assert curve is not None  # `measured_ops`
    if len(curve.axes) == 1:
        return CurveTimes(1.0, ((curve, (moved,)),))
    width = np.full(len(moved), float(op.shape[-1]) if op.shape else curve.axes[1][-1])
    return CurveTimes(1.0, ((curve, (moved, width)),))


def _product(
    workload: Workload, measured: Measured, i: int, sizes: Sequence[FloatArray], flops: FloatArray
) -> CurveTimes:
    op, precision = workload.graph.ops[i], workload.precision
    (rows, columns, depth, copies), kind = sizes, op.kind
    forward = op.phase is Phase.FORWARD
    weights = bool(flat.is_weight_gradient(workload.graph.columns)[i])
    role = "wgrad" if weights else "forward" if forward else "dgrad"
    if kind is OpKind.ATTENTION:
        phase = "forward" if forward else "backward"
        curve = measured.curve(precision, (f"attention.{phase}",))
        if curve is not None:
            whole = (4.0 if forward else 10.0) * rows * columns * depth * copies
            share = np.clip(flops / whole, 0.0, 1.0)
            share = share + (1.0 - share) * np.minimum(_BLOCK / rows, 1.0)
            return CurveTimes(share, ((curve, (rows, depth, copies)),))
    if flat.IS_GROUPED[workload.graph.columns.kind[i]]:
        curve = measured.curve(precision, (f"{kind}.{role}",))
        if curve is not None:
            pixels = depth if weights else rows
            width = 1.0 if kind is OpKind.CONV_DEPTHWISE else _GROUP_WIDTH
            timed = 2.0 * _KERNEL_AREA * pixels * copies * width * width
            # Fewer pixels than were timed are as much work as fewer groups.
            known = np.maximum(pixels, curve.axes[0][0])
            return CurveTimes(flops / timed, ((curve, (known, copies * pixels / known)),))
    curve = measured.curve(precision, (f"{kind}.{role}", f"matmul.{role}", _ANY_PRODUCT))
    assert curve is not None  # `measured_ops`
    # Copies of a product are one with more rows.
    asked = (rows * copies, columns, depth)
    plain = measured.curve(precision, (f"matmul.{role}", _ANY_PRODUCT))
    if plain is None or plain is curve:
        return CurveTimes(1.0, ((curve, asked),))
    # Beyond the sizes at which convolutions were timed they change as plain products do.
    inside = tuple(np.clip(n, axis[0], axis[-1]) for n, axis in zip(asked, curve.axes, strict=True))
    return CurveTimes(1.0, ((curve, inside), (plain, asked)), ((plain, inside),))


def bucket_columns(ops: Sequence[Op], seconds: FloatArray) -> dict[str, FloatArray]:
    """Return `bucket_I_share` of the bytes and `bucket_I_ready`, the share of backward, each (k,)."""
    table = np.array([buckets_of(_arrivals(ops, times)) for times in seconds])  # (k, buckets, 2)
    return {
        f"bucket_{i}_{word}": table[:, i, j]
        for i in range(BUCKETS)
        for j, word in enumerate(("share", "ready"))
    }


def _arrivals(ops: Sequence[Op], times: FloatArray) -> list[tuple[float, float]]:
    forward = [(op, float(t)) for op, t in zip(ops, times, strict=True)
               if op.phase is Phase.FORWARD]  # fmt: skip
    before, passed = [], 0.0
    for repeat, run in itertools.groupby(forward, key=lambda pair: pair[0].repeat):
        block = list(run)
        for _ in range(repeat):
            for op, seconds in block:
                if op.params > 0:
                    before.append((4.0 * op.params, passed))
                passed += seconds
    whole = passed or 1.0
    return [(size, 1.0 - start / whole) for size, start in reversed(before)]


def buckets_of(
    gradients: Sequence[tuple[float, float]], first: float = FIRST_BYTES, more: float = NEXT_BYTES
) -> list[tuple[float, float]]:
    """Return (share of the bytes, share of backward after which it can go) of `BUCKETS` buckets."""
    total = sum(size for size, _ in gradients) or 1.0
    closed: list[tuple[float, float]] = []
    held = ready = 0.0
    for size, at in gradients:
        held, ready = held + size, max(ready, at)
        if held >= (more if closed else first):
            closed.append((held / total, ready))
            held = 0.0
    if held > 0:
        closed.append((held / total, ready))
    while len(closed) > BUCKETS:
        sizes = [a[0] + b[0] for a, b in itertools.pairwise(closed)]
        least = sizes.index(min(sizes))
        closed[least : least + 2] = [(sizes[least], closed[least + 1][1])]
    return closed + [(0.0, 1.0)] * (BUCKETS - len(closed))


def with_probed(
    work: list[dict[str, float]], node: list[dict[str, float]],
    workloads: Sequence[Workload], clusters: Sequence[Cluster],
) -> tuple[list[dict[str, float]], list[dict[str, float]]]:  # fmt: skip
    """Return the facts of workloads and clusters with those that steps of probed devices read."""
    keys = [(id(c.device.measured), c.nodes, c.devices) for c in clusters]
    facts = {key: _cluster_facts(c) for key, c in dict(zip(keys, clusters, strict=True)).items()}
    found = [facts[key] for key in keys]
    zeros = dict.fromkeys(next(filter(None, found)), 0.0)
    more = [
        {"params": float(w.params), "tensors": sum(tensors_of(o) * o.repeat for o in w.graph.ops),
         "kinds": float(len({(_kind_of(o), o.phase) for o in w.graph.ops
                             if o.phase is not Phase.OPTIMIZER}))}
        for w in workloads
    ]  # fmt: skip
    return (
        [{**facts, **added} for facts, added in zip(work, more, strict=True)],
        [{**facts, **zeros, **probed} for facts, probed in zip(node, found, strict=True)],
    )


def _cluster_facts(cluster: Cluster) -> dict[str, float]:
    known = cluster.device.measured
    if known is None:
        return {}
    # An optimizer that was not timed is as the dearest one that was.
    dearest = max(known.updates.values(), key=lambda u: u.parameter_seconds,
                  default=Update(0.0, 0.0, 0.0))  # fmt: skip
    link = known.links.get("inter" if cluster.nodes > 1 else "intra", Exchange(0.0, 1.0))
    found = {
        "measured": 1.0,
        **{name: value for name, value in vars(known).items() if name.endswith("_seconds")},
        "cpu_share": min(known.cores, 1.0),
        "slowdown": known.slowdown(cluster.devices / cluster.nodes, cluster.nodes),
        "exchange_rate": link.bytes_per_second, "exchange_busy": link.busy_seconds_per_byte,
    }  # fmt: skip
    for i, size in enumerate(REDUCED_BYTES):
        found[f"reduce_{i}"] = link.all_reduce_seconds(size, cluster.devices)
        spared = link.spared_seconds(size, cluster.devices)
        found[f"rested_{i}"] = max(found[f"reduce_{i}"] - spared, 0.0)
        across = known.links.get("inter", link)
        found[f"pair_{i}"] = across.spared_seconds(size, 2.0)
    for i, name in enumerate(_BY_STATES):
        update = known.updates.get(name, dearest)
        found |= {f"update_{i}_{part}": getattr(update, part) for part in _UPDATE_FIELDS}
    return found


def held_back(node: dict[str, FloatArray], jobs: Jobs) -> dict[str, FloatArray]:
    """Return clusters' facts by row, (n,) each, slowed where a row states its workers' quota."""
    if jobs.labels is None:
        return node
    probed = [c.device.measured for c in jobs.clusters]
    timed = np.array([(m.cores, m.threads) if m else (0.0, 0.0) for m in probed])
    share, threads = timed[jobs.cluster_index].T
    stated = jobs.labels.numbers("cpus_per_worker")
    given = np.minimum(np.where(stated > 0, stated, np.inf), threads)
    known = (stated > 0) & (share > 0)
    slower = np.where(known, share / np.where(known, given, 1.0), 1.0)
    return {**node, "slowdown": node["slowdown"] * slower}


def tensors_of(op: Op) -> float:
    """Return how many parameter tensors an operation owns: a weight, and a bias where it has one."""
    if op.params <= 0:
        return 0.0
    weight = op.dims[1] * op.dims[2] * op.dims[3] if len(op.dims) == 4 else 0
    single = op.kind in (OpKind.EMBEDDING, OpKind.ELEMENTWISE)
    return 1.0 if single or op.params == weight else 2.0


def with_measured(rows: Rows, parts: dict[str, FloatArray]) -> dict[str, FloatArray]:
    """Return the parts of a step, each (n,), with those of probed devices as they were measured."""
    node, work, plan = rows.node, rows.work, rows.plan
    known = node["measured"] > 0
    slow = np.where(known, node["slowdown"], 1.0)
    tensors, params = (work[name] / plan["tp"] / plan["pp"] for name in ("tensors", "params"))
    trained = params * work["trained_share"]
    updated = trained / np.where(plan["zero_stage"] >= 1, plan["dp"], 1.0)
    states = np.clip(work["states"], 0, 2).astype(int)
    step, tensor, parameter = (
        np.choose(states, [node[f"update_{i}_{part}"] for i in range(3)]) for part in _UPDATE_FIELDS
    )
    replicas = node["replica_seconds"] + node["replica_tensor_seconds"] * tensors
    replicas = replicas + node["replica_parameter_seconds"] * trained
    passes = np.maximum(plan["dp"], 1.0) * plan["micro_batch"]
    passes = np.maximum(plan["global_batch"] / passes, 1.0)
    loaded = passes * (node["batch_seconds"] + node["sample_seconds"] * plan["micro_batch"]) * slow
    ranks = np.maximum(node["devices"], 1.0)
    alike = (plan["dp"] * plan["cp"] > 1) & ~rows.served
    fixed = node["step_seconds"] + np.where(alike, replicas, 0.0)
    found = {
        "optimizer": (step + tensor * tensors + parameter * updated) * slow,
        "overhead": fixed * slow, "input": np.maximum(loaded, parts["input"]),
        "straggler": node["jitter_seconds"] * np.sqrt(2.0 * np.log(ranks)),
        **{name: parts[name] * slow for name in _COMPUTED},
    }  # fmt: skip
    return parts | {name: np.where(known, v, parts[name]) for name, v in found.items()}


def measured_exposed(
    rows: Rows, compute: FloatArray, each: FloatArray, exposed: FloatArray
) -> FloatArray:
    """Return seconds that gradients' all-reduces add to the step, (n,); exposed: of other devices.

    Buckets follow one another and take the processor from backward; the first finds a rested link.
    """
    node, key, plan = rows.node, rows.key, rows.plan
    ranks = plan["dp"] * plan["cp"]
    known = (node["measured"] > 0) & (ranks > 1) & (rows.sync == ALL_REDUCE)
    known &= plan["zero_stage"] == 0
    if not known.any():
        return exposed
    rate = np.where(node["nodes"] > 1, node["inter_rate"], node["intra_rate"])
    # What calibration, or a link stated otherwise, makes of the rate that was measured.
    devices = np.maximum(node["devices"], 2.0)
    slower = node["exchange_rate"] / rate * ((ranks - 1.0) / ranks) / ((devices - 1.0) / devices)
    backward = (key["layer_backward"] + key["ends_backward"]) * node["slowdown"]
    dense = rows.work["params"] - rows.work["sparse_params"]  # rows of tables travel apart
    size = dense / plan["tp"] / plan["pp"] * rows.work["trained_share"] * each
    end = stolen = np.zeros(len(rows))
    for bucket in range(BUCKETS):
        share, ready = key[f"bucket_{bucket}_share"], key[f"bucket_{bucket}_ready"]
        sent = size * share
        taken = _reduce_seconds(node, "reduce", sent) * slower
        if bucket == 0:
            rested = _reduce_seconds(node, "rested", sent) * slower
            taken = np.maximum(rested, taken - compute)
        begun = np.maximum(end, ready * backward + stolen)
        end = np.where(share > 0, begun + taken, end)
        busy = np.minimum(sent * node["exchange_busy"], taken)
        stolen = stolen + np.where((share > 0) & (ready < 1.0), busy, 0.0)
    added = np.maximum(end, backward + stolen) - backward
    return np.where(known, added, exposed)


def rested_seconds(rows: Rows, size: FloatArray) -> FloatArray:
    """Return by how much a message of `size` bytes between two nodes is faster after a pause, (n,)."""
    return np.where(rows.node["measured"] > 0, _reduce_seconds(rows.node, "pair", size), 0.0)


def rested_work(rows: Rows) -> tuple[FloatArray, FloatArray]:
    """Return (share, seconds), (n,) each: work after a pause is done sooner by that share of it, at most so much."""
    node = rows.node
    known = (node["measured"] > 0) & (node["cpu_share"] > 0)
    return (
        np.where(known, 1.0 - node["cpu_share"], 0.0),
        np.where(known, node["rested_work_seconds"], 0.0),
    )


def update_overhead(rows: Rows) -> FloatArray:
    """Return seconds of an optimizer's step of one tensor whatever its size, (n,), 0 where it was not measured."""
    node = rows.node
    states = np.clip(rows.work["states"], 0, 2).astype(int)
    step, tensor, _ = (
        np.choose(states, [node[f"update_{i}_{part}"] for i in range(3)]) for part in _UPDATE_FIELDS
    )
    return np.where(node["measured"] > 0, (step + tensor) * node["slowdown"], 0.0)


def _reduce_seconds(node: dict[str, FloatArray], name: str, size: FloatArray) -> FloatArray:
    bytes_ = np.log(REDUCED_BYTES)
    seconds = np.log(np.maximum([node[f"{name}_{i}"] for i in range(len(bytes_))], 1e-300))
    sizes = np.log(np.maximum(size, REDUCED_BYTES[0]))
    place = np.clip(np.searchsorted(bytes_, sizes) - 1, 0, len(bytes_) - 2)
    rows = np.arange(len(size))
    below, above = seconds[place, rows], seconds[place + 1, rows]
    share = (sizes - bytes_[place]) / (bytes_[place + 1] - bytes_[place])
    return np.asarray(np.exp(below + share * (above - below)))
