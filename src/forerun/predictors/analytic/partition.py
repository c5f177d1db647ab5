"""Partition: a replica's layers cut over machines: what each part computes, exchanges and holds.

After Yan, Ruwase, He and Chilimbi 2015, equations (2.1) to (2.7), reconstructed. A layer is an operation with
weights (or an attention) and the cheap ones behind it; layers follow one another as operations do, so that
branches count as if they stood in a row. `units` cuts neurons, channels, heads or rows of tables, `space`
the rows of images, whose weights every part then holds. Machine j has the j-th part of every cut layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray, IntArray, taken
from forerun.domain.graph import KIND_INDEX, PHASE_INDEX, SHARD_INDEX, Graph, OpKind, Phase, Shard
from forerun.domain.hardware import Device
from forerun.domain.plan import PS_ASYNC
from forerun.domain.workload import ACTIVATION_BYTES, Workload
from forerun.predictors.analytic.communication import LINK_FIELDS, Link, all_reduce, p_norm
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.flat import (
    IS_CONV,
    IS_GROUPED,
    IS_MATRIX,
    FlatOps,
    Keys,
    Rows,
    columns_of,
    remember,
    total,
)
from forerun.predictors.analytic.layout import lay_out, sparse_tables
from forerun.predictors.analytic.memory import replica_groups, state_bytes
from forerun.predictors.analytic.operations import operation_seconds, rates_of
from forerun.predictors.analytic.step import COMPUTED, step_and_floor
from forerun.tables import Jobs

# Last-level cache of a core, bytes: 1.4 to 4 MB on servers' data sheets since 2017.
CACHE_BYTES_PER_CORE = 2.0 * 2**20
_ATTENTION, _EMBEDDING = KIND_INDEX[OpKind.ATTENTION], KIND_INDEX[OpKind.EMBEDDING]
_CONV = KIND_INDEX[OpKind.CONV]
# Facts of a workload that are cut with its weights.
_OWNED = ("_tensor", "_whole", "_expert", "head_copied", "params", "looked_up")
# What of a micro-batch is no time, and what is the host's: a part launches as many kernels as the whole.
_UNTIMED = ("held_", "boundary", "bucket_")
_HOST = ("host_", "layer_host", "layer_launches", "ends_host")
_USUAL_KERNEL = 9.0  # pixels, of a convolution whose input's channels are not stated


@dataclass(frozen=True)
class Layers:
    """The distinct layers of a graph, L of them; `order`: which of them stands at each depth, (D,).

    lead: the operation that names a layer; layer: of each forward and backward operation, `ops`. units, rows: the most parts of each cut, 0 where
    none can be. reads: elements of a sample that a layer takes from the one before; halo: of these, what a part
    of an image needs of its neighbours. own: whether a part by units needs its own share of them alone.
    """

    names: tuple[str, ...]
    lead: IntArray
    order: IntArray
    ops: IntArray
    layer: IntArray
    units: IntArray
    rows: IntArray
    reads: FloatArray
    halo: FloatArray
    own: BoolArray
    writes: FloatArray
    params: FloatArray
    saved: FloatArray


def layers_of(graph: Graph) -> Layers:
    """Return the layers of a graph (found once)."""
    return remember(graph, _layers)


def _layers(graph: Graph) -> Layers:
    columns, ops = graph.columns, graph.ops
    forward = np.flatnonzero(columns.phase == PHASE_INDEX[Phase.FORWARD])
    kind, repeat = columns.kind[forward], columns.repeat[forward]
    leads = IS_MATRIX[kind] | ((kind == _EMBEDDING) & (columns.params[forward] > 0))
    # The products of one attention are one layer; so is all between two changes of `repeat`, at least.
    last = np.maximum.accumulate(np.where(leads, np.arange(len(kind)), -1))
    before = np.concatenate([[-1], last[:-1]])
    leads &= (kind != _ATTENTION) | (before < 0) | (kind[before] != _ATTENTION)
    segment = np.cumsum(np.concatenate([[False], repeat[1:] != repeat[:-1]]))
    counted = np.cumsum(leads)
    start = np.searchsorted(segment, segment)
    counted = np.maximum(counted - (counted[start] - leads[start]), 1)  # within the segment
    pairs, member = np.unique(np.stack([segment, counted]), axis=1, return_inverse=True)
    member = member.ravel()
    lead = np.array([
        next(iter(here[leads[here]]), here[0])
        for here in (np.flatnonzero(member == i) for i in range(pairs.shape[1]))
    ], dtype=np.int64)  # fmt: skip
    order = np.concatenate([
        np.tile(np.flatnonzero(pairs[0] == s), int(repeat[np.searchsorted(segment, s)]))
        for s in np.unique(segment)
    ] or [np.zeros(0, dtype=np.int64)])  # fmt: skip
    place = np.full(len(ops), -1, dtype=np.int64)
    place[forward] = member
    backward = np.flatnonzero(columns.phase == PHASE_INDEX[Phase.BACKWARD])
    place[backward] = [place[ops[i].inputs[0]] if ops[i].inputs else -1 for i in backward]
    used = np.flatnonzero(place >= 0)
    heads = forward[lead]

    def summed(values: FloatArray) -> FloatArray:
        return np.bincount(member, values[forward], len(lead)).astype(np.float64)

    kind, dims = columns.kind[heads], columns.dims[heads]
    reads = columns.reads[heads]
    sides = np.array([_image(graph, int(i)) for i in heads]).reshape(-1, 3)
    convolves, table = IS_CONV[kind], kind == _EMBEDDING
    tall = np.where(convolves, sides[:, 0], 0.0)
    halo = np.where(convolves, reads * (sides[:, 2] - 1.0) / np.maximum(sides[:, 1], 1.0), 0.0)
    several = np.where(np.isin(kind, (_ATTENTION, KIND_INDEX[OpKind.CONV_DEPTHWISE])) | (dims[:, 3] > 1),
                       dims[:, 3], 1.0)  # fmt: skip
    units = np.where(kind == _ATTENTION, several, dims[:, 1] * several)
    widths = np.array([ops[i].shape[-1] if ops[i].shape else 0.0 for i in heads])
    written = np.where(widths > 0, widths, columns.writes[heads])
    units = np.where(table, columns.params[heads] / np.maximum(written, 1.0), units)
    return Layers(
        names=tuple(ops[i].name for i in heads), lead=heads, order=order, ops=used, layer=place[used],
        units=units.astype(np.int64), rows=tall.astype(np.int64), reads=reads, halo=np.maximum(halo, 0.0),
        own=(kind == _ATTENTION) | IS_GROUPED[kind], writes=columns.writes[heads], params=summed(columns.params), saved=summed(columns.saved),
    )  # fmt: skip


def _image(graph: Graph, i: int) -> tuple[float, float, float]:
    """Return of a convolution: rows of pixels that it writes and reads, and rows of its kernel."""
    op, columns = graph.ops[i], graph.columns
    m, _, k, groups = columns.dims[i]
    tall = float(op.shape[1]) if len(op.shape) == 3 else np.sqrt(m)
    before = graph.ops[op.inputs[0]].shape if op.inputs else ()
    area = _USUAL_KERNEL if columns.kind[i] == _CONV else 1.0
    if len(before) == 3 and before[0] > 0:
        area = max(k * groups / before[0], 1.0)
    return tall, float(before[1]) if len(before) == 3 else tall, float(np.sqrt(area))


@dataclass(frozen=True)
class Ways:
    """The o ways to cut a layer, whole first: how many parts, and whether of space."""

    parts: IntArray
    space: BoolArray

    @staticmethod
    def of(counts: Sequence[int], with_space: bool = True) -> Ways:
        """Return the ways with so many parts each; counts above 1."""
        cut = sorted({int(count) for count in counts if count > 1})
        parts = [1, *cut, *(cut if with_space else [])]
        return Ways(np.array(parts), np.arange(len(parts)) > len(cut))


@dataclass(frozen=True)
class LayerCosts:
    """What the busiest machine of one replica needs, for D layers in a row and o ways to cut each.

    seconds: forward, backward and what replicas of weights within it cost, (D, o), infinite where a layer cannot be
    cut so; exchange: seconds in which activations and errors pass between neighbours, (D - 1, o, o).
    sent: gradients that a machine sends, of tables with sparse gradients those of rows that samples look up; held:
    bytes of weights, gradients, states and activations, (D, o). parts: of each way, (o,).
    """

    seconds: FloatArray
    exchange: FloatArray
    sent: FloatArray
    held: FloatArray
    parts: IntArray


def layer_costs(
    workload: Workload, device: Device, ways: Ways, samples: float, passes: float, link: Link,
    near: float, bytes_per_param: float, constants: Constants, speeds: Sequence[float] = (),
    threads: float = 0.0, cores: float = 0.0, channels_last: bool = False,
) -> LayerCosts:  # fmt: skip
    """Return the costs of one step of a replica: `passes` over so many samples each.

    link: between machines, as `communication.Link`; the first pair joins `near` of them. speeds: of the replica's
    machines, the fastest first; 1 by default. A part gets units by its speed. threads: that a worker
    computes with, where the device's rates are those of `cores`; 0: as many.
    """
    layers = layers_of(workload.graph)
    size = ACTIVATION_BYTES[workload.precision]
    share = _largest_share(layers, ways, speeds)[0]
    seconds = _seconds(workload, device, ways, samples, constants, threads, cores, channels_last)
    seconds = seconds * passes * share * ways.parts
    sparse = sparse_tables(workload)[-1][layers.lead]
    sent = np.where(sparse, samples * passes * layers.writes, layers.params)[:, None] / ways.parts
    copies = layers.params[:, None] * np.where(ways.space, 4.0, 0.0)
    shared = all_reduce(copies, ways.parts, np.minimum(ways.parts, near), link)
    held = layer_bytes(workload, ways, samples, bytes_per_param, speeds)
    known = device.measured
    if device.kind == "cpu" and known is not None and known.message_seconds:
        # What a message, and one back, take of a CPU that a probe timed them on; as all of a replica's
        # seconds, they are slowed by its neighbours later (`ReplicaSteps`).
        message = known.message_seconds + constants.message_calls * known.forward_call_seconds
        both = 2.0 * known.message_byte_seconds
        rates = (rate / (1.0 + both * rate) if both else rate for rate in link[1::2])
        link = (link[0] + message, next(rates), link[2] + message, next(rates))
    exchange = passes * _exchange(layers, ways, samples * size, link, near)
    here = layers.order
    seconds = np.where(np.isfinite(share), seconds + np.where(ways.space, shared, 0.0), np.inf)
    return LayerCosts(seconds[here], exchange[here[1:]], sent[here], held, ways.parts)


def layer_bytes(
    workload: Workload, ways: Ways, samples: float, bytes_per_param: float, speeds: Sequence[float] = ()
) -> FloatArray:  # fmt: skip
    """Return bytes that the busiest machine of a replica holds of each layer, (D, o), infinite where none can be."""
    layers, size = layers_of(workload.graph), ACTIVATION_BYTES[workload.precision]
    share = _largest_share(layers, ways, speeds)[1]
    cut = np.where(np.isfinite(share), share, 0.0)
    held = layers.params[:, None] * np.where(ways.space, 1.0, cut) * bytes_per_param
    gathered = np.where((ways.parts > 1) & ~ways.space & ~layers.own[:, None], 1.0, 0.0)
    inputs = layers.reads[:, None] * gathered * (1.0 - cut)
    held = held + samples * size * (layers.saved[:, None] * cut + inputs)
    return np.asarray(np.where(np.isfinite(share), held, np.inf)[layers.order])


def _largest_share(
    layers: Layers, ways: Ways, speeds: Sequence[float]
) -> tuple[FloatArray, FloatArray]:
    """Return the busiest part's time over that of the whole at speed 1, and the largest's size over the whole's, (L, o)."""
    most = np.where(ways.space, layers.rows[:, None], layers.units[:, None])
    if set(speeds) <= {1.0}:
        shares = np.ceil(most / ways.parts) / np.maximum(most, 1)
        shares = np.where(ways.parts == 1, 1.0, np.where(most >= ways.parts, shares, np.inf))
        return shares, shares
    times, shares = np.full((2, *most.shape), np.inf)
    for o, parts in enumerate(ways.parts):
        if parts == 1:
            times[:, o], shares[:, o] = 1.0 / speeds[0], 1.0
            continue
        speed = np.array(speeds[:parts], dtype=np.float64)
        distinct, place = np.unique(most[:, o], return_inverse=True)
        count = np.maximum(distinct, 1)[:, None]
        ideal = count * speed / speed.sum()
        given = np.floor(ideal)
        # Units that are left go where they end soonest.
        left = (count[:, 0] - given.sum(axis=1)).astype(np.int64)
        order = np.argsort((given + 1.0) / speed, axis=1, kind="stable")
        rank = np.empty_like(order)
        np.put_along_axis(rank, order, np.arange(parts)[None, :], axis=1)
        given = given + (rank < left[:, None])
        for found, each in ((times, given / count / speed), (shares, given / count)):
            found[:, o] = np.where(most[:, o] >= parts, each.max(axis=1)[place], np.inf)
    return times, shares


def _seconds(
    workload: Workload, device: Device, ways: Ways, samples: float, constants: Constants,
    threads: float, cores: float, channels_last: bool,
) -> FloatArray:  # fmt: skip
    """Return forward and backward seconds of an equal part, (L, o): (2.1), (2.3) and (2.5) as rooflines."""
    layers, columns = layers_of(workload.graph), workload.graph.columns
    picked = {name: values[layers.ops] for name, values in vars(columns).items()}
    picked["shard"] = np.full(len(layers.ops), SHARD_INDEX[Shard.TENSOR], dtype=np.int16)
    ops, n = replace(columns, **{**picked, "repeat": np.ones(len(layers.ops))}), len(ways.parts)
    one = np.ones(n)
    keys = Keys(
        np.where(ways.space, samples / ways.parts, samples), np.where(ways.space, one, ways.parts),
        one, one, one, np.zeros(n, dtype=np.int64), one * channels_last,
    )  # fmt: skip
    machine = np.zeros(n, dtype=np.int64)
    peaks = np.full(n, device.flops(workload.precision))
    made = columns_of(workload, ops, keys, peaks, machine, machine, constants)
    columns_flat = {name: values.ravel() for name, values in made.items()}
    flat = FlatOps(columns_flat, np.zeros((n, 1)), ((device, workload),), machine)
    rates = dict(rates_of(flat, constants))
    probed = device.measured if device.measured and device.measured.co_running else None
    if threads in (0, cores):
        seconds = operation_seconds(flat, rates, constants)
    elif probed is not None:
        slower, all_slower = (
            probed.thread_slowdown(columns_flat["weights"], h) for h in (threads, cores)
        )
        seconds = operation_seconds(flat, rates, constants) * cores / threads * slower / all_slower
    else:
        # (2.7): threads add arithmetic; once weights spill the cache they share the memory's rate.
        own = threads / cores
        rates["flops"] = rates["flops"] * own
        spilled = operation_seconds(flat, rates, constants)
        rates["bandwidth"] = rates["bandwidth"] * own
        cached = operation_seconds(flat, rates, constants)
        seconds = np.where(columns_flat["weights"] > cores * CACHE_BYTES_PER_CORE, spilled, cached)
    count = len(layers.names)
    return np.stack(
        [np.bincount(layers.layer, row, count) for row in seconds.reshape(n, -1)], axis=1
    )


def _exchange(layers: Layers, ways: Ways, size: float, link: Link, near: float) -> FloatArray:
    """Return seconds between neighbours, (L, o, o): (2.2) forward, and as much for the errors.

    Each machine receives what it lacks of its layer's inputs and sends what others lack; the fuller
    direction counts [own: the paper has the receiver's alone].
    """
    p, q = ways.parts[:, None], ways.parts[None, :]
    before, after = ways.space[:, None], ways.space[None, :]
    p, q, before, after = np.broadcast_arrays(p, q, before, after)
    # All of it: a receiver that held a part of the layer before lacks the others' parts.
    lacks = np.where(q > p, 1.0, 1.0 - 1.0 / p)
    sends = np.where(p > q, q, q - 1) / p
    peers = np.where(q > p, p, p - 1)
    whole = np.maximum(lacks, sends), np.maximum(peers, np.where(p > q, q, q - 1))
    across = np.maximum(lacks / q, np.where(p > q, 1.0, 1.0 - 1.0 / q) / p), whole[1]
    counts, place = np.unique(ways.parts, return_inverse=True)
    same = tuple(each[np.ix_(place, place)] for each in _aligned(tuple(counts.tolist())))
    turned = before != after
    own = tuple(np.where(turned, a, b) for a, b in zip(across, same, strict=True))
    strips = tuple(np.where(before, b, a) for a, b in zip(across, same, strict=True))
    cut = after & (q > 1)
    one = np.maximum(p, q) <= near
    latency, rate = (np.where(one, link[j], link[j + 2]) for j in (0, 1))
    result = np.zeros((len(layers.names), *p.shape))
    for by_units, is_own in ((own, True), (whole, False)):
        share, messages = (
            np.where(after, strip, unit) for strip, unit in zip(strips, by_units, strict=True)
        )
        here = layers.own == is_own
        reads, halo = layers.reads[here, None, None], layers.halo[here, None, None]
        moved = size * (reads * share + np.where(cut, halo, 0.0))
        count = messages + np.where(cut, 2.0, 0.0) * (halo > 0)
        result[here] = 2.0 * np.where((p == 1) & (q == 1), 0.0, count * latency + moved / rate)
    return result


@lru_cache(maxsize=64)
def _aligned(parts: tuple[int, ...]) -> tuple[FloatArray, FloatArray]:
    """Return (share of the whole that the busiest machine moves, messages) where p parts in a row become q."""
    n = len(parts)
    share, count = np.zeros((n, n)), np.zeros((n, n))
    for a, p in enumerate(parts):
        for b, q in enumerate(parts):
            edges, old = np.arange(q + 1) / q, np.arange(p + 1) / p
            low = np.maximum(edges[:-1, None], old[None, :-1])
            both = np.minimum(edges[1:, None], old[None, 1:]) - low
            both = np.where(both > 1e-12, both, 0.0)
            np.fill_diagonal(both, 0.0)
            share[a, b] = max(both.sum(axis=1).max(), both.sum(axis=0).max())
            count[a, b] = max((both > 0).sum(axis=1).max(), (both > 0).sum(axis=0).max())
    return share, count


class ReplicaSteps:
    """What steps of n jobs take whose replicas are cut, by the formulas of whole ones.

    jobs: of whole replicas, each on as many devices as `parts`, (n,), times its replicas have. What reduces
    or passes servers is a part's; each part is one of the workers that servers see.
    """

    def __init__(self, jobs: Jobs, parts: IntArray, constants: Constants) -> None:
        self.constants = constants
        self._rows = _of_parts(lay_out(jobs, constants).rows(constants), parts)
        group = replica_groups(self._rows)[0]
        self.bytes_per_param = float(total(state_bytes(self._rows, group))[0])

    def parts(
        self, index: IntArray, longer: FloatArray, share: FloatArray,
        slower: FloatArray | float = 1.0,
    ) -> dict[str, FloatArray]:  # fmt: skip
        """Return the parts of steps of jobs `index`, (k,) each.

        longer: time of a replica's layers over that of the whole; share: of its gradients on one machine.
        slower: of that time, what is the machine's, whose host is as slow.
        """
        rows = taken(self._rows, index)
        timed = _timed(rows, longer, share, self.constants, slower)
        return step_and_floor(timed, self.constants)[0]


def _of_parts(rows: Rows, parts: NDArray[np.integer[Any]]) -> Rows:
    """Return rows of replicas on so many devices each, (n,), of which each is a worker to servers."""
    times = np.where(rows.served, parts, 1.0)
    # A step of ps-async is the update of one part.
    updates = np.where(rows.sync == PS_ASYNC, parts, 1.0)
    node = {**rows.node, "setting_scale": updates * rows.node.get("setting_scale", 1.0)}
    work = {**rows.work, "floor_flops": rows.work["floor_flops"] * updates / times}
    more = {name: rows.plan[name] * times for name in ("dp", "global_batch")}
    more |= {"parts": times, "partitions": parts.astype(np.float64)}
    return replace(rows, plan={**rows.plan, **more}, node=node, work=work)


def _timed(
    rows: Rows, longer: FloatArray, share: FloatArray, constants: Constants, slower: FloatArray | float = 1.0
) -> Rows:  # fmt: skip
    key = {
        name: values if name.startswith(_UNTIMED)
        else values * (slower if name.startswith(_HOST) else longer)
        for name, values in rows.key.items()
    }  # fmt: skip
    # A host that hid behind whole layers shows behind parts of them.
    computed, host = total(rows.key[f"layer_{name}"] for name in COMPUTED), key["layer_host"]
    whole, less = computed * slower, computed * np.minimum(longer, slower)
    joined, before = (
        p_norm(t, key["layer_launches"], constants.layer_power) for t in (less, whole)
    )
    key["layer_host"] = shown = host + (joined - less) - (before - whole)
    stretch = (computed * longer + shown) / np.maximum(whole + host, 1e-300) * slower
    key["layer_backward_span"] = rows.key["layer_backward_span"] * stretch
    return replace(rows, key=key, work=_owning(rows, share))


def _owning(rows: Rows, share: FloatArray) -> dict[str, FloatArray]:
    return {n: v * share if n.endswith(_OWNED) else v for n, v in rows.work.items()}


def cut_rows(rows: Rows, jobs: Jobs, constants: Constants) -> tuple[Rows, Rows]:
    """Return the rows of n jobs as their busiest parts have them, for the formulas of steps, and for those of memory.

    Each layer with units enough is cut by units, as forerun's own loop cuts it; one with fewer stays whole. What
    parts exchange is a share, `exchanged`, of what a replica's layers take.
    """
    names = ("partitions", "micro_batch", "global_batch", "dp", "memory_format")
    columns = [getattr(jobs.plans, name) for name in names]
    asked = np.stack([jobs.workload_index, jobs.cluster_index, *columns])
    _, first, of = np.unique(asked, axis=1, return_index=True, return_inverse=True)
    shares = np.array([_cut_shares(rows, jobs, int(i), constants) for i in first])
    longer, exchanged, sent, owned, saved = shares[of.reshape(-1)].T
    whole = _of_parts(rows, jobs.plans.partitions)
    held = {n: v * saved if n.startswith("held_") else v for n, v in rows.key.items()}
    timed = _timed(whole, longer, sent, constants)
    return (
        replace(timed, key={**timed.key, "exchanged": exchanged}),
        replace(whole, key=held, work=_owning(whole, owned)),
    )


def _cut_shares(rows: Rows, jobs: Jobs, i: int, constants: Constants) -> tuple[float, ...]:
    """Return of a row's busiest part: its seconds over the whole's, of these the exchange, and what it sends, owns and saves."""
    plans, count = jobs.plans, int(jobs.plans.partitions[i])
    if count == 1:
        return 1.0, 0.0, 1.0, 1.0, 1.0
    job, ways = jobs[i], Ways.of([count], with_space=False)
    near, rate, far, far_rate = (float(rows.node[name][i]) for name in LINK_FIELDS)
    workload = job.workload
    costs = layer_costs(
        workload, job.cluster.device, ways, float(job.plan.micro_batch), float(rows.micro_batches[i]), (near, rate, far, far_rate),
        float(rows.node["node_devices"][i]), 0.0, constants, channels_last=bool(plans.memory_format[i]),
    )  # fmt: skip
    depth, way = np.arange(len(costs.seconds)), np.isfinite(costs.seconds[:, 1]) * 1
    moved = float(costs.exchange[depth[:-1], way[:-1], way[1:]].sum())
    owned = layer_bytes(workload, ways, 0.0, 1.0)
    seconds, *shares = (
        float(each[depth, way].sum() / max(each[:, 0].sum(), 1e-30))
        for each in (costs.seconds, costs.sent, owned, costs.held)
    )
    longer = seconds + moved / costs.seconds[:, 0].sum()
    return longer, 1.0 - seconds / longer, *shares
