"""Rows: what the plan-level formulas read, as columns.

A `Layout` holds what no constant moves: which jobs share an instance, the flat operations, facts of
workloads and clusters. `Layout.rows` prices it with constants; calibration prices one layout again
and again.

Links: the latency and effective rate of many clusters' connections, as columns.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.domain.hardware import Cluster
from forerun.domain.workload import Workload
from forerun.predictors.analytic.activations import held_bytes, saved_bytes
from forerun.predictors.analytic.constants import (
    Constants,
    Framework,
    framework_key,
    scale_key,
)
from forerun.predictors.analytic.facts import (
    cluster_facts,
    taught_cluster,
    taught_workload,
    workload_facts,
)
from forerun.predictors.analytic.fallbacks import constant_of
from forerun.predictors.analytic.flat import FlatOps, distinct_ops, flatten
from forerun.predictors.analytic.floors import fastest_rate
from forerun.predictors.analytic.inside_layers import Traffic, layer_comm, traffic_of
from forerun.predictors.analytic.keys import Keys
from forerun.predictors.analytic.layer_shapes import cut_shape, layer_shape
from forerun.predictors.analytic.measured_facts import held_back, with_probed
from forerun.predictors.analytic.measured_ops import MeasuredOps, measured_ops
from forerun.predictors.analytic.operations import anchored, instance_costs
from forerun.predictors.analytic.places import taught_places
from forerun.tables import Jobs

Link = tuple[FloatArray, FloatArray, FloatArray, FloatArray]


@dataclass(frozen=True)
class Links:
    """The links of c clusters: nominal rates (bytes/s a device), latencies and kinds, each (c,).

    A node's network is stated for each of its devices; where a placement uses only some of them,
    these have all of it.
    """

    kinds: tuple[str, ...]
    intra_kind: NDArray[np.int64]
    inter_kind: NDArray[np.int64]
    intra_latency: FloatArray
    intra_rate: FloatArray
    inter_latency: FloatArray
    inter_rate: FloatArray
    host_rate: FloatArray

    def take(self, index: NDArray[Any]) -> Links:
        """Return the links of the clusters at the given positions."""
        columns = {name: v[index] for name, v in vars(self).items() if name != "kinds"}
        return Links(self.kinds, **columns)

    def effective(self, constants: Constants) -> Link:
        """Return (intra latency, intra rate, inter latency, inter rate) as software meets them."""
        share = self._by_kind("link_efficiency", constants.link_efficiency)
        slower = self._by_kind("link_latency", constants.link_latency)
        return (
            self.intra_latency * slower[self.intra_kind], self.intra_rate * share[self.intra_kind],
            self.inter_latency * slower[self.inter_kind], self.inter_rate * share[self.inter_kind],
        )  # fmt: skip

    def host(self, constants: Constants) -> FloatArray:
        """Return bytes/s between device and host; the node's own link where it is not known."""
        pcie = self.host_rate * constants.link_efficiency["pcie"]
        return np.where(pcie > 0, pcie, self.effective(constants)[1])

    def _by_kind(self, family: str, known: Mapping[str, float]) -> FloatArray:
        return np.array([constant_of(family, known, kind) for kind in self.kinds])


def links_of(clusters: Sequence[Cluster]) -> Links:
    """Return the links of clusters."""
    kinds = sorted({k for c in clusters for k in (c.intra.kind, c.inter.kind)})
    place = {kind: i for i, kind in enumerate(kinds)}
    rows = [
        (
            c.intra.latency_seconds, c.intra.bytes_per_second, c.inter.latency_seconds,
            c.inter.bytes_per_second
            * max(c.devices_per_node / max(c.placement, default=c.devices_per_node), 1.0),
            c.device.host_bytes_per_second,
        )
        for c in clusters
    ]  # fmt: skip
    numbers = np.array(rows, dtype=np.float64).T
    return Links(
        tuple(kinds),
        np.array([place[c.intra.kind] for c in clusters]),
        np.array([place[c.inter.kind] for c in clusters]),
        *numbers,
    )


T = TypeVar("T")
FEW_ROWS = 4096
# What is kept between calls at most: facts of workloads and clusters, and columns of instances.
MOST_FACTS, MOST_SAVED = 4096, 256
_KEY_FIELDS = ("micro_batch", "tp", "cp", "ep", "sequence_parallel", "recompute", "memory_format")
_PLAN_FIELDS = ("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch", "global_batch", "zero_stage")
# What a framework costs beside its operations: fields of `constants.Framework` read row by row.
_SOFTWARE_FIELDS = tuple(f.name for f in fields(Framework))


@dataclass(frozen=True)
class Rows:
    """n resolved jobs as float columns (n,): plan degrees, key costs, and facts by their names.

    `key` maps what `operations.instance_costs` and `activations.held_bytes` return to (n,);
    `work` the workload's facts, `node` the cluster's and `software` the framework's constants.
    """

    plan: dict[str, FloatArray]
    key: dict[str, FloatArray]
    work: dict[str, FloatArray]
    node: dict[str, FloatArray]
    software: dict[str, FloatArray]
    sync: NDArray[np.int32]
    memo: dict[str, Any] = field(default_factory=dict)

    def once(self, name: str, make: Callable[[Rows], T]) -> T:
        """Return make(self), computed at the first call: several formulas read it.

        Only for what no constant moves: it is kept for all rows of one layout.
        """
        if name not in self.memo:
            self.memo[name] = make(self)
        value: T = self.memo[name]
        return value

    def __len__(self) -> int:
        return len(self.sync)


@dataclass(frozen=True)
class Layout:
    """n resolved jobs on I instances: all that no constant moves.

    position: (n,) instance of each row; framework, row_framework: whose profile, (I,) and (n,);
    scaled: names of instances in `workload_scale`, layers: of their layers, places: their clusters,
    transformer: which are one, (I,). links: of instances, and of rows.
    """

    jobs: Jobs
    plan: dict[str, FloatArray]
    work: dict[str, FloatArray]
    node: dict[str, FloatArray]
    row_links: Links
    row_framework: IntArray
    frameworks: tuple[str, ...]
    position: IntArray
    keys: Keys
    flat: FlatOps
    saved: dict[str, FloatArray]
    traffic: Traffic
    links: Links
    scaled: tuple[str, ...]
    layers: tuple[str, ...]
    places: tuple[Cluster, ...]
    framework: IntArray
    transformer: NDArray[np.bool_]
    measured: MeasuredOps | None = None
    memo: dict[str, Any] = field(default_factory=dict)

    def anchor(self, constants: Constants) -> None:
        """Price the operations, so that `rows` of constants nearby need only price what differs."""
        self.memo["anchor"] = anchored(self.flat, constants)

    def rows(self, constants: Constants) -> Rows:
        """Return the rows priced with constants."""
        comm = layer_comm(self.traffic, self.keys, self.links.effective(constants), constants)
        own = constants.workload_scale
        scale = np.array([own.get(name, 1.0) for name in self.scaled]) if own else 1.0
        costs = instance_costs(
            self.flat,
            self.keys,
            np.asarray(scale),
            comm,
            constants,
            self.memo.get("anchor"),
            self.measured,
        )
        shaped = self._shape_scale(constants)
        if shaped is not None:
            layers = {name: v * shaped for name, v in costs.items() if name.startswith("layer_")}
            costs.update(layers)
        key = {name: values[self.position] for name, values in costs.items()} | self.held(constants)
        names = ("intra_latency", "intra_rate", "inter_latency", "inter_rate")
        link = dict(zip(names, self.row_links.effective(constants), strict=True))
        rate = self.node["nominal_memory_rate"] * constants.bandwidth_efficiency["optimizer"]
        host = {"host_rate": self.row_links.host(constants), "memory_rate": rate}
        software = self.software(constants)
        node = {**self.node, **link, **host}
        return Rows(self.plan, key, self.work, node, software, self.jobs.plans.sync, self.memo)

    def _shape_scale(self, constants: Constants) -> FloatArray | None:
        """Return the instances' scales of their cut layers, (I,), None where none is known."""
        known = constants.shape_scale
        if constants.scaled_layers.isdisjoint(self.layers):
            return None
        keys = zip(self.keys.micro_batch, self.keys.tp, self.keys.cp, self.keys.ep, strict=True)
        if "shapes" not in self.memo:
            self.memo["shapes"] = [
                cut_shape(layer, place, *cut)
                for layer, place, cut in zip(self.layers, self.places, keys, strict=True)
            ]
        return np.array([known.get(name, 1.0) for name in self.memo["shapes"]])

    def held(self, constants: Constants) -> dict[str, FloatArray]:
        """Return what each row's framework holds in memory, (n,); see `activations`."""
        software = {k: v[self.framework] for k, v in self._profiles(constants).items()}
        held = held_bytes(self.saved, software, self.transformer)
        return {name: values[self.position] for name, values in held.items()}

    def software(self, constants: Constants) -> dict[str, FloatArray]:
        """Return the constants of each row's framework by name, (n,)."""
        table = self._profiles(constants)
        if len(self.frameworks) == 1:  # a view costs nothing, and there is one in every search
            shape = self.row_framework.shape
            # A view is free for many rows; for a few it costs more than the rows.
            make = np.full if len(self.position) < FEW_ROWS else _viewed
            return {name: make(shape, values[0]) for name, values in table.items()}
        return {name: values[self.row_framework] for name, values in table.items()}

    def _profiles(self, constants: Constants) -> dict[str, FloatArray]:
        profiles = [constants.frameworks[name] for name in self.frameworks]
        return {f: np.array([getattr(p, f) for p in profiles]) for f in _SOFTWARE_FIELDS}


def _viewed(shape: tuple[int, ...], value: float) -> FloatArray:
    return np.broadcast_to(np.float64(value), shape)


def lay_out(jobs: Jobs, constants: Constants, kept: dict[Any, Any]) -> Layout:
    """Return the layout of jobs that are all resolved.

    kept: facts of workloads and clusters between calls (by identity, holding the objects so that
    an identity is never used again); what was not used for longest is dropped.
    """
    clusters = jobs.clusters
    work = [remember(kept, "work", w, workload_facts, w, constants) for w in jobs.workloads]
    node = [remember(kept, "node", c, cluster_facts, c) for c in clusters]
    work, node = with_probed(work, node, jobs.workloads, clusters)
    columns = {name: getattr(jobs.plans, name).astype(np.float64) for name in _PLAN_FIELDS}
    columns["sequence_parallel"] = jobs.plans.sequence_parallel.astype(np.float64)
    columns["recompute"] = jobs.plans.recompute.astype(np.float64)
    columns["servers"] = jobs.plans.parameter_servers.astype(np.float64)
    frameworks = [framework_key(w.framework) for w in jobs.workloads]
    distinct = tuple(sorted(set(frameworks)))
    place = np.array([distinct.index(f) for f in frameworks])
    position, workload, cluster, keys = _instances(jobs)
    owners, places = [jobs.workloads[i] for i in workload], [clusters[i] for i in cluster]

    def ops_of(w: Workload) -> Any:
        return remember(kept, "ops", w, distinct_ops, w)

    layout = Layout(
        jobs, columns, _spread(work, jobs.workload_index),
        held_back(_spread(node, jobs.cluster_index), jobs),
        links_of(clusters).take(jobs.cluster_index),
        place[jobs.workload_index], distinct, position, keys,
        flatten(owners, [c.device for c in places], keys, ops_of, constants),
        _saved(owners, keys, kept), traffic_of(owners, places, keys),
        links_of(clusters).take(cluster), tuple(scale_key(w) for w in owners),
        tuple(layer_shape(w, c.device) for w, c in zip(owners, places, strict=True)),
        tuple(places), place[workload], np.array([w.shape.heads > 0 for w in owners]),
        measured_ops(owners, [c.device for c in places], keys),
    )  # fmt: skip
    if len(kept) > MOST_SAVED:
        _forget(kept)
    return layout


def taught(jobs: Jobs, constants: Constants) -> dict[str, FloatArray]:
    """Return how well runs have taught the constants that each row hangs on, columns (n,)."""
    work = [taught_workload(w, constants) for w in jobs.workloads]
    node = [taught_cluster(c, constants) for c in jobs.clusters]
    found = {**_spread(work, jobs.workload_index), **_spread(node, jobs.cluster_index)}
    place, doublings = taught_places(jobs, constants)
    beyond = np.where(np.isnan(doublings), found["doublings"], doublings)
    probed = found.pop("framework_probed")  # the probe timed the framework's own calls there
    found["framework_taught"] = np.maximum(found["framework_taught"], probed)
    return {**found, "setting_taught": place, "doublings": beyond}


def remember(
    kept: dict[Any, Any], kind: Hashable, owner: object, make: Any, *args: Any, **named: Any
) -> Any:
    """Return make(*args), made once for each owner (by identity) and kind of fact."""
    slot = (kind, id(owner))
    # Whatever is used goes to the end, so that the first are those that were not for longest.
    found = kept.pop(slot, None) or (owner, make(*args, **named))
    kept[slot] = found
    return found[1]


def _forget(kept: dict[Any, Any]) -> None:
    """Drop what was not used for longest where too much is kept: a server asks of ever new jobs."""
    for most, of_facts in ((MOST_FACTS, True), (MOST_SAVED, False)):
        slots = [slot for slot in list(kept) if isinstance(slot[0], str) == of_facts]
        for slot in slots[: max(len(slots) - most, 0)]:
            kept.pop(slot, None)


def _saved(owners: Sequence[Workload], keys: Keys, kept: dict[Any, Any]) -> dict[str, FloatArray]:
    """Return the activation bytes of instances, (I,); equal workloads stand side by side."""
    starts = [i for i in range(len(owners)) if i == 0 or owners[i] is not owners[i - 1]]
    pieces = []
    for start, end in zip(starts, [*starts[1:], len(owners)], strict=True):
        some = keys.take(np.arange(start, end))
        pieces.append(
            remember(kept, some.digest(), owners[start], saved_bytes, owners[start], some)
        )
    return {name: np.concatenate([p[name] for p in pieces]) for name in pieces[0]}


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
             c.devices_per_node, c.intra, c.inter, max(c.placement, default=0), c.fabric_devices,
             min(c.nodes, 2), c.devices if c.nodes == 1 else 0),
            len(seen),
        )
        for c in clusters
    ]  # fmt: skip
    return np.array(kinds, dtype=np.int64)


def _instances(jobs: Jobs) -> tuple[IntArray, IntArray, IntArray, Keys]:
    """Return (each row's instance, the instances' workloads and clusters by position, and keys)."""
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
    width = int(kinds.max()) + 1
    first_of_kind = np.zeros(width, dtype=np.int64)
    first_of_kind[kinds[::-1]] = np.arange(len(kinds))[::-1]
    keys = Keys(
        micro_batch=micro_batch.astype(np.float64), tp=tp.astype(np.float64),
        cp=cp.astype(np.float64), ep=ep.astype(np.float64),
        sequence_parallel=sp.astype(np.float64), recompute=recompute,
        channels_last=layout.astype(np.float64),
    )  # fmt: skip
    return position, parts[-1] // width, first_of_kind[parts[-1] % width], keys


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
