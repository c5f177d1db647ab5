"""Provisioning: replicas, cuts of layers, threads and servers on so many machines, or for so much an hour."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, TypeGuard

import numpy as np

from forerun.advisor.recommending import LEADING_COUNT
from forerun.arrays import FloatArray, IntArray
from forerun.catalog import Catalog
from forerun.catalog.frameworks import framework_of
from forerun.contracts import Predictor
from forerun.domain.hardware import Cluster
from forerun.domain.plan import MEMORY_FORMATS, PS_ASYNC, PS_STALE, SERVER_SYNCS, SYNC, PlanColumns
from forerun.domain.workload import Length, Workload
from forerun.errors import RequestError, UnknownNameError, UnsatisfiedError
from forerun.predictors.analytic import AnalyticPredictor, partition
from forerun.predictors.analytic.communication import LINK_FIELDS, links_of
from forerun.predictors.analytic.flat import total
from forerun.predictors.analytic.predictor import unnamed_prior
from forerun.predictors.analytic.servers import SERVER_PARTS
from forerun.predictors.analytic.step import COMPUTED
from forerun.search.batches import usual_batch
from forerun.search.provisioning import TICK, Setups, Solution, provision
from forerun.search.score import step_seconds, steps_of
from forerun.search.space import usual_memory_format
from forerun.tables import Jobs
from forerun.units import (
    SECONDS_PER_HOUR,
    counted,
    format_bytes,
    format_dollars,
    format_percent,
    format_seconds,
)

KINDS = ("allreduce", "ps-sync", "ps-async", "ps-stale", "partitioned")
FIXED = ("dp", "sync", "parameter_servers", "stale_bound", "gradient_bits", "micro_batch",
         "global_batch", "memory_format")  # fmt: skip
MOST_MACHINES = 4096
_EACH = 32  # counts up to which all are tried; above, every tenth more
# What parts of a step say of its bottleneck.
BOTTLENECKS: Mapping[str, tuple[str, ...]] = {
    "compute": ("forward", "backward", "recompute", "optimizer", "floor"),
    "exchange between parts": ("exchange",),
    "synchronisation": ("data comm",),
    "worker link": ("worker link",),
    "server link": ("server link",),
    "server compute": ("server compute",),
    "straggler": ("straggler",),
    "host": ("host", "overhead", "input"),
    "model-parallel exchange": ("tensor comm", "expert comm", "context comm", "pipeline comm"),
    "pipeline bubble": ("pipeline bubble", "imbalance"),
}


@dataclass(frozen=True)
class Provisioned:
    """One way to use the machines.

    partitions: (layer, parts, `units` or `space`) of each layer that is cut. threads: of a worker on a CPU,
    else 0. step_seconds: of an update of all replicas, or of one where they do not wait; step_samples: in it. steps,
    run_seconds, dollars: of the whole run, to its target where the predictor forecasts one; no time is lost to failures. step_range_seconds:
    its 5 and 95 % quantiles, as the predictor has them with every layer cut that can be; None where it declines that. peak_bytes: of
    the busiest machine. behind: its time over the best one's; loses_by: what takes most of the difference, of `BOTTLENECKS`.
    """

    kind: str
    sync: str
    replicas: int
    largest_partition: int
    partitions: tuple[tuple[str, int, str], ...]
    threads: int
    servers: int
    machines: int
    global_batch: int
    micro_batch: int
    step_samples: int
    step_seconds: float
    epoch_seconds: float | None
    steps: float
    run_seconds: float
    dollars_per_hour: float | None
    dollars: float | None
    peak_bytes: float
    parts: Mapping[str, float]
    bottleneck: str
    behind: float = 1.0
    loses_by: str = ""
    why: str = ""
    step_range_seconds: tuple[float, float] | None = None


@dataclass(frozen=True)
class Provision:
    """The best choice, the best of each other kind, and the curve: the best with no more machines than each has.

    price_source: of what a machine costs; "" where no price is known.
    """

    workload: str
    machine: str
    most_machines: int
    length: Length
    best: Provisioned
    runners_up: tuple[Provisioned, ...]
    curve: tuple[Provisioned, ...]
    considered: int
    notes: tuple[str, ...] = ()
    price_source: str = ""


def _grouped(parts: Mapping[str, float]) -> dict[str, float]:
    """Return seconds by bottleneck, of `BOTTLENECKS`, and those of other parts by their own names."""
    found: dict[str, float] = {}
    for part, seconds in parts.items():
        name = next((n for n, members in BOTTLENECKS.items() if part in members), part)
        found[name] = found.get(name, 0.0) + seconds
    return found


def bottleneck_of(parts: Mapping[str, float]) -> tuple[str, float]:
    """Return what takes most of a step, and its share; "" where no parts are known."""
    groups = _grouped(parts)
    name = max(groups, key=lambda n: groups[n], default="")
    return name, groups.get(name, 0.0) / max(sum(groups.values()), 1e-300)


def _lost(choice: Provisioned, best: Provisioned) -> Provisioned:
    """Return a choice that says why it lost to the best: what binds it, and what takes most of its longer run."""
    if choice.run_seconds <= best.run_seconds:
        return replace(choice, why=f"{choice.why}; as fast as the best, which is simpler")

    spent, least = (
        {name: s * one.run_seconds / one.step_seconds for name, s in _grouped(one.parts).items()}
        for one in (choice, best)
    )
    groups = {name: seconds - least.get(name, 0.0) for name, seconds in spent.items()}
    name = max(groups, key=lambda n: groups[n])
    longer = format_seconds(choice.run_seconds - best.run_seconds)
    words = f"{longer} longer than the best, {choice.behind:.3g} times as long: {name} takes {format_seconds(groups[name])} more"
    return replace(choice, loses_by=name, why=f"{choice.why}; {words}")


@dataclass(frozen=True)
class ProvisionRequest:
    """What is asked: `machine` is one node, of which there are up to `machines`; `fixed`: plan fields of `FIXED`.

    partitions: parts of the most-cut layer, or of layers by name or pattern. threads: of a worker.
    """

    workload: Workload
    machine: Cluster
    machines: int
    length: Length
    fixed: Mapping[str, Any] = field(default_factory=dict)
    partitions: int | Mapping[str, int] | None = None
    speeds: tuple[float, ...] = ()
    threads: int | None = None

    def __post_init__(self) -> None:
        name, graph = self.workload.name, self.workload.graph
        others = [n for n in self.fixed if n not in FIXED]
        if others:
            raise RequestError(
                f"provisioning with {others[0]}={self.fixed[others[0]]}",
                "it cuts layers itself, gives servers machines of their own, and knows no other parallel plan",
                f"leave {others[0]} out, or use forerun recommend without --provision",
            )
        if graph.params <= 0 or graph.forward_flops <= 0:
            lacks = "parameters" if graph.params <= 0 else "operations to time"
            raise RequestError(
                f"provisioning for {name}", f"its graph has no {lacks}",
                "name a workload with both, such as resnet50",
            )  # fmt: skip
        if not (_is_whole(self.machines) and 1 <= self.machines <= MOST_MACHINES):
            raise RequestError(
                f"{self.machines} machines", f"not a whole number between 1 and {MOST_MACHINES:,}",
                "give a number such as 16",
            )  # fmt: skip
        if self.length.unit == "steps":  # of one size, so that all kinds have the same samples
            count = self.length.count * self.batch
            object.__setattr__(self, "length", replace(self.length, unit="samples", count=count))
        if self.partitions is not None and not isinstance(self.partitions, Mapping):
            widest = int(self._widest.max())
            _check_parts(self.partitions, "a layer", name, widest, "its widest layer")
        servers, sync = self.fixed.get("parameter_servers", 0), self.fixed.get("sync", "allreduce")
        if servers and sync == "allreduce":
            raise RequestError(
                f"{servers} parameter servers", "no sync with servers is named",
                "give sync=ps-sync or sync=ps-async too",
            )  # fmt: skip
        if self.fixed.get("stale_bound") and sync != "ps-stale":
            raise RequestError(
                f"stale_bound={self.fixed['stale_bound']}", f"it bounds workers that run ahead, which sync={sync} has not",
                "give sync=ps-stale too, or leave stale_bound out",
            )  # fmt: skip
        speeds: list[Any] = [*self.speeds]
        shares = all(isinstance(s, (int, float)) and 0 < s <= 1 for s in speeds)
        falls = shares and speeds == sorted(speeds, reverse=True)
        if speeds and not (falls and len(speeds) >= self.machines):
            raise RequestError(
                f"speeds of {counted(self.machines, 'machine')}: {self.speeds}",
                "not a share of the fastest's, above 0 and at most 1, for each, by falling speed",
                f"give {self.machines} shares such as {(1.0, *[0.5] * min(self.machines - 1, 3))}",
            )
        replicas = self._least_replicas()
        parts = self.largest[0]
        workers = math.ceil(replicas * parts / self.machine.devices)
        served = sync in SYNC and SYNC.index(sync) in SERVER_SYNCS
        least = workers + (servers or int(served))
        if least > self.machines:
            left = workers <= self.machines
            raise RequestError(
                f"{counted(replicas, 'replica')} of {counted(parts, 'part')} and {counted(least - workers, 'server')} on {counted(self.machines, 'machine')}",
                "no machine is left for the servers" if left else f"the replicas need {counted(workers, 'machine')}",
                f"allow at least {counted(least, 'machine')}",
            )  # fmt: skip

    def _least_replicas(self) -> int:
        """Return the replicas that are fixed, or the fewest that can be. Raises RequestError where they cannot."""
        given, parts, each = self.fixed.get("dp"), self.largest[0], self.machine.devices
        batch, micro = (0, 1) if self.weak else (self.batch, self.fixed.get("micro_batch", 1))
        counts = np.arange(1, MOST_MACHINES * each + 1)
        used = counts[:, None] * (self.largest if self.partitions else [1])
        whole = counts[((used < each) | (used % each == 0)).any(axis=1)]
        able = whole[(batch % whole == 0) & (batch // whole % micro == 0)]
        if len(able) and (given is None or given in able):
            return int(given or able[0])
        wanted = given or 1
        near = f"dp={able[np.abs(able - wanted).argmin()]}" if len(able) else ""
        fills = given is None or given in whole
        named = given or parts > 1
        asked = f"{wanted} replicas of {parts} parts" if named else f"micro_batch={micro}"
        if near and not fills:
            raise RequestError(
                f"{asked} on machines of {each} devices", "they do not fill them", f"give {near}"
            )
        shared = int(whole[whole >= wanted].min()) * micro
        raise RequestError(
            f"{asked} with a global batch of {batch:,}", "they do not share it out evenly",
            f"give a global batch that they share, such as {math.ceil(batch / shared) * shared}"
            + (f", or {near}" if near else ""),
        )  # fmt: skip

    @cached_property
    def _widest(self) -> IntArray:
        """The most parts of each distinct layer, (L,)."""
        layers = partition.layers_of(self.workload.graph)
        return np.maximum(np.maximum(layers.units, layers.rows), 1)

    @cached_property
    def stated(self) -> IntArray:
        """Parts of each distinct layer, (L,), 0 where they are free. Raises RequestError or UnknownNameError."""
        names = partition.layers_of(self.workload.graph).names
        found = np.zeros(len(names), dtype=np.int64)
        asked = self.partitions if isinstance(self.partitions, Mapping) else {}
        # A name counts before a pattern, and a later pattern before an earlier one.
        for name, parts in sorted(asked.items(), key=lambda item: item[0] in names):
            at = np.flatnonzero([n == name or fnmatchcase(n, str(name)) for n in names])
            if not len(at):
                hint = f"the answer prints layers' names, such as {names[-1]}"
                raise UnknownNameError("layer", str(name), dict.fromkeys(names), hint)
            most, layer = min((int(self._widest[i]), names[i]) for i in at)
            _check_parts(parts, layer, self.workload.name, most, "that layer")
            found[at] = parts
        return found

    @cached_property
    def counts(self) -> list[int]:
        """Parts that layers may have: those that are stated, powers of two, and three times these."""
        one = self.partitions if _is_whole(self.partitions) else 0
        powers = [2**i for i in range(1, 13)] + [3 * 2**i for i in range(12)]
        free = int(self._widest[self.stated == 0].max(initial=1))
        most = min(self.machines * self.machine.devices, free, one or free)
        return sorted({1, one, *self.stated.tolist(), *(p for p in powers if p <= most)} - {0})

    @property
    def largest(self) -> list[int]:
        """Parts that the most-cut layer may have, rising."""
        one = self.partitions
        return [one] if _is_whole(one) else [n for n in self.counts if n >= self.stated.max()]

    @property
    def weak(self) -> bool:
        """Whether each replica has so many samples of its own, not a share of a global batch."""
        return "micro_batch" in self.fixed and "global_batch" not in self.fixed

    @cached_property
    def batch(self) -> int:
        """Samples in a step over all replicas; of one replica where `weak`."""
        given = self.fixed.get("micro_batch" if self.weak else "global_batch")
        return int(given or usual_batch(self.workload)[0])

    def cluster(self, devices: int) -> Cluster:
        """Return the machines of so many devices."""
        nodes, each = -(-devices // self.machine.devices), min(devices, self.machine.devices)
        name = f"{nodes}x{self.machine.name.partition('x')[2]}"
        return replace(self.machine, name=name, nodes=nodes, devices_per_node=each)

    @cached_property
    def paces(self) -> FloatArray:
        """Speeds of the 1, 2, ... fastest devices: of the slowest and in the mean, (2, devices)."""
        each = np.repeat(np.array(self.speeds or [1.0] * self.machines), self.machine.devices)
        return np.stack([each, np.cumsum(each) / np.arange(1, len(each) + 1)])

    def speeds_of(self, replicas: int) -> tuple[float, ...]:
        """Return the speeds of the parts of so many replicas, each the slowest of its machines; fastest first."""
        slowest = self.paces[0]
        last = np.arange(1, len(slowest) + 1) * replicas - 1
        return tuple(slowest[np.minimum(last, len(slowest) - 1)].tolist())


def machine_of(catalog: Catalog, text: str | Cluster, region: str | None) -> tuple[Cluster, int]:
    """Return one node, and how many of them are named. Raises RequestError or UnknownNameError."""
    if isinstance(text, Cluster):
        found = text
    else:
        name = text.strip()
        if not LEADING_COUNT.match(name):
            name = f"1x{name}" if catalog.is_instance(name.partition("@")[0]) else f"1x1x{name}"
        found = catalog.cluster(name, region=region)
    if found.placement:
        raise RequestError(
            f"provisioning on {found.name}", "its nodes have unequal numbers of devices",
            "name one kind of node",
        )  # fmt: skip
    one = LEADING_COUNT.sub("1x", found.name)
    return replace(found.of_nodes(1), name=one), found.nodes


def machines_for(budget: float, machine: Cluster) -> int:
    """Return how many machines a budget of dollars an hour pays. Raises RequestError for less than one."""
    price = machine.dollars_per_hour
    if not math.isfinite(budget):
        raise RequestError(
            f"a budget of {budget} an hour", "not a finite number of dollars", "give one such as 20"
        )
    if not price:
        raise RequestError(
            f"{machine.name} for {format_dollars(budget)} an hour", "its price is not known",
            "give --machines, or add a price with --catalog",
        )  # fmt: skip
    if budget < price:
        raise RequestError(
            f"a budget of {format_dollars(budget)} an hour",
            f"one replica on one {machine.name} costs {format_dollars(price)}",
            f"give at least {format_dollars(price)}",
        )
    return min(int(budget / price + 1e-9), MOST_MACHINES)


def _check_parts(parts: object, layer: str, workload: str, most: int, of: str) -> None:
    if not (_is_whole(parts) and 1 <= parts <= most):
        raise RequestError(
            f"{parts} partitions of {layer} of {workload}",
            f"not a whole number of the {most:,} channels, neurons or rows of {of}",
            f"give a number between 1 and {most:,}",
        )


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _counts(most: int) -> list[int]:
    found = list(range(1, min(most, _EACH) + 1))
    while found and found[-1] < most:
        found.append(min(math.ceil(found[-1] * 1.1), most))
    return found


class _Search:
    """The setups of a request as columns, and what each costs."""

    def __init__(self, request: ProvisionRequest, predictor: Predictor) -> None:
        self.request, self.predictor = request, predictor
        own = predictor if isinstance(predictor, AnalyticPredictor) else AnalyticPredictor.shipped()
        self.physics = own.constants
        self.refused: dict[str, str] = {}
        given = request.fixed.get("memory_format")
        self.format = (
            MEMORY_FORMATS.index(given) if given else usual_memory_format(request.workload)
        )
        self.layers = layers = partition.layers_of(request.workload.graph)
        self.ways = partition.Ways.of(request.counts, bool((layers.rows > 1).any()))
        stated = request.stated[layers.order, None]
        self.barred = (stated > 0) & (self.ways.parts != stated)
        self.columns = self._setups()

    def _setups(self) -> dict[str, IntArray]:
        request, given, each = self.request, self.request.fixed, self.request.machine.devices
        most, batch, micro = request.machines * each, request.batch, given.get("micro_batch", 1)
        counts: Iterable[int] = _counts(most) if request.weak else range(1, min(most, batch) + 1)
        shared = [
            (count, batch if request.weak else batch // count)
            for count in ([given["dp"]] if given.get("dp") else counts)
            if request.weak or batch % count == batch // count % micro == 0
        ]
        blocks: list[tuple[int, ...]] = []
        choices = itertools.product(self._syncs(), shared, request.largest)
        for sync, (replicas, own), parts in choices:
            used = replicas * parts
            left = request.machines - -(-used // each)
            fills = left >= 0 and (used < each or used % each == 0)
            if fills:
                servers = [0] if sync not in SERVER_SYNCS else _counts(left)
                if sync in SERVER_SYNCS and given.get("parameter_servers"):
                    servers = [given["parameter_servers"]]
                blocks += [(sync, replicas, parts, own, n) for n in servers if n <= left]
        rows = np.array(blocks, dtype=np.int64).reshape(-1, 5)
        if not len(rows):
            raise RequestError(
                f"{request.workload.name} on {request.machines} x {request.machine.name}",
                "no number of replicas shares the global batch and fills so many machines",
                "allow more machines, or give micro_batch in the global batch's place",
            )
        columns = dict(zip(("sync", "replicas", "parts", "batch", "servers"), rows.T, strict=True))
        columns["machines"] = -(-columns["replicas"] * columns["parts"] // request.machine.devices)
        columns["machines"] = columns["machines"] + columns["servers"]
        return columns

    def _syncs(self) -> Iterator[int]:
        request = self.request
        software = framework_of(request.workload.framework)
        given = request.fixed.get("sync")
        for name in [given] if given else KINDS[:3]:
            refusal = software.refusal({"sync": name}) if software else None
            if name == "dataparallel" or (refusal and given):
                raise RequestError(
                    f"provisioning with sync={name}", refusal[1] if refusal else "it is one process on one machine",
                    f"use one of {', '.join(KINDS[:3])}",
                )  # fmt: skip
            if refusal:
                self.refused[name] = refusal[1]
            else:
                yield SYNC.index(name)

    def _jobs(
        self, columns: Mapping[str, IntArray], devices: IntArray, micro: IntArray,
        parts: IntArray | int = 1,
    ) -> Jobs:  # fmt: skip
        request, fixed = self.request, self.request.fixed
        kinds, index = np.unique(devices, return_inverse=True)
        stale = np.where(columns["sync"] == SYNC.index("ps-stale"), fixed.get("stale_bound", 0), 0)
        plans = PlanColumns.build(
            len(devices), dp=columns["replicas"], micro_batch=micro, global_batch=columns["replicas"] * columns["batch"],
            sync=columns["sync"], parameter_servers=columns["servers"], stale_bound=stale,
            memory_format=self.format, gradient_bits=fixed.get("gradient_bits", 0), partitions=parts,
        )  # fmt: skip
        return Jobs(
            (request.workload,), tuple(request.cluster(int(k)) for k in kinds),
            np.zeros(len(devices), dtype=np.int32), index.astype(np.int32).reshape(-1), plans,
        )  # fmt: skip

    def solved(self) -> Provision:
        """Return the answer. Raises UnsatisfiedError where nothing fits in memory or is answered."""
        request, columns = self.request, self.columns
        one = {name: values[:1] for name, values in columns.items()}
        first = self._jobs(one, one["replicas"], one["batch"])
        self.typical = unnamed_prior(first, self.physics)
        self.bytes_per_param = partition.ReplicaSteps(
            first, np.ones(1, int), self.typical
        ).bytes_per_param
        device = request.machine.device
        threads, cores = self._threads()
        chains: dict[tuple[int, ...], partition.LayerCosts] = {}
        micro = self._micro_batches()
        columns["micro"] = np.array([
            micro[pair] for pair in zip(columns["batch"].tolist(), columns["parts"].tolist(), strict=True)
        ])  # fmt: skip
        # Machines of one speed: the layers of a replica cost the same whatever the number of replicas.
        columns["across"] = columns["replicas"] if request.speeds else columns["replicas"] * 0 + 1
        shapes = np.stack([columns[name] for name in ("batch", "micro", "across")])
        link = links_of([request.cluster(2 * request.machine.devices)]).effective(self.physics)
        pairs = tuple(float(link[name][0]) for name in LINK_FIELDS)
        distinct, of = np.unique(shapes, axis=1, return_inverse=True)
        wholes = []
        for at, (batch, size, replicas) in enumerate(distinct.T.tolist()):
            speeds = request.speeds_of(replicas)
            for own in (0, *threads):
                made = partition.layer_costs(
                    request.workload, device, self.ways, float(size), batch / size, pairs,
                    float(request.machine.devices), self.bytes_per_param, self.physics,
                    speeds, own, cores, self.format > 0,
                )  # fmt: skip
                seconds = np.where(self.barred, np.inf, made.seconds)
                # Threads that no layer gains from are left out; 0 stands for all.
                if own in (0, request.threads) or (seconds < chains[at, 0].seconds).any():
                    chains[at, own] = replace(made, seconds=seconds)
                    wholes.append((made.seconds[:, 0].sum() * speeds[0], made.sent[:, 0].sum()))
        self.chains, self.wholes = list(chains.values()), np.array(wholes)
        shape, count = np.array(list(chains)).T
        may = (count > 0) if threads and request.threads else count >= 0
        rows, chain = np.nonzero((of.reshape(-1, 1) == shape) & may)
        self.columns = columns = {name: values[rows] for name, values in columns.items()}
        # That of the device's own rates comes before those of other threads.
        self.base = np.maximum.accumulate(np.where(count, 0, np.arange(len(count))))[chain]
        used = np.where(count, count, round(cores))[chain]
        parts = columns["parts"]
        kinds = np.array([KINDS.index(name) if name in KINDS else -1 for name in SYNC])
        kind = np.where(parts > 1, KINDS.index("partitioned"), kinds[columns["sync"]])
        order = (parts, columns["replicas"], used, columns["servers"], kind, columns["machines"])
        rank = np.lexsort(order).argsort()
        devices = columns["replicas"] * parts
        self.jobs = self._jobs(columns, devices, columns["micro"])
        self.steps = partition.ReplicaSteps(self.jobs, parts, self.typical)
        capacity = self._predicted()
        setups = Setups(chain, parts, kind, columns["machines"], rank, capacity)
        found = provision(self.chains, setups, self._cost)
        if (best := found.best()) is None:
            raise self._nothing(setups)
        return self._answer(found, best, used)

    def _threads(self) -> tuple[list[int], float]:
        """Return the threads of a worker that are tried, and those that the device's rates are of.

        Only a probe says how threads are in one another's way; its rates are then those of one thread.
        """
        machine, threads = self.request.machine, self.request.threads
        measured = machine.device.measured
        cores = machine.vcpus_per_device if machine.device.kind == "cpu" else 0.0
        beside = measured.co_running if measured is not None else None
        self.unprobed = round(cores) if cores > 1 and beside is None else 0
        known = cores or (beside.axes[1][-1] / machine.devices if beside else 0.0)
        most, rates = (max(int(known), 1) if known else 0), 1.0 if beside else cores
        if threads is None:
            return [2**i for i in range(1, most.bit_length())] if beside else [], rates
        if not (_is_whole(threads) and 1 <= threads <= most):
            lacks = "it is no CPU whose cores are known", "leave threads out"
            range_of = f"not a whole number from 1 to its {counted(most, 'core')}"
            found = (range_of, f"give a number between 1 and {most}") if most else lacks
            raise RequestError(f"{threads} threads a worker on {machine.name}", *found)
        return [threads] if threads != max(round(rates), 1) else [], rates

    def _micro_batches(self) -> dict[tuple[int, int], int]:
        """Return the samples of a pass by (samples of a step, parts): the most of which some cut fits."""
        request, columns, fixed = self.request, self.columns, self.request.fixed
        given = fixed.get("micro_batch")
        pairs = [
            (batch, size) for batch in np.unique(columns["batch"]).tolist()
            for size in ([given] if given else [batch >> i for i in range(batch.bit_length()) if batch % 2**i == 0])
        ]  # fmt: skip
        held = {
            size: partition.layer_bytes(request.workload, self.ways, size, self.bytes_per_param, request.speeds_of(1))
            for size in {size for _, size in pairs}
        }  # fmt: skip
        batches, micro = np.array(pairs).T
        two = np.full(len(pairs), min(2, request.machines * request.machine.devices))
        columns = {"sync": two * 0, "replicas": two, "batch": batches, "servers": two * 0}
        whole = np.array([held[size][:, 0].sum() for _, size in pairs])
        room = self._room(self._jobs(columns, two, micro), whole)
        found: dict[tuple[int, int], int] = {}
        fitting: set[tuple[int, int]] = set()
        for parts in request.largest:
            barred = self.barred | (self.ways.parts > parts)
            least = {s: np.where(barred, np.inf, b).min(axis=1).sum() for s, b in held.items()}
            for (batch, size), most in zip(pairs, room, strict=True):
                # The largest that fits comes first; where none does, the smallest stays.
                if (batch, parts) not in fitting:
                    found[batch, parts] = size
                if least[size] <= most:
                    fitting.add((batch, parts))
        return found

    def _room(self, jobs: Jobs, whole: FloatArray) -> FloatArray:
        """Return the bytes that layers may hold, (n,), so that a device holds the 95 % peak; `whole`: uncut ones."""
        forecasts = self.predictor.predict(jobs)
        usable, peak = forecasts.usable_bytes, forecasts.peak_bytes[:, 2]
        if usable is None:
            usable = np.full(len(jobs), self.request.machine.device.memory_bytes)
        self.forecasts = forecasts
        return np.asarray(usable / np.where(np.isfinite(peak), peak / whole, 1.0))

    def _predicted(self) -> FloatArray:
        """Keep what the predictor says of whole replicas over what the formulas say; return the room, (n,)."""
        columns = self.columns
        names = ("sync", "replicas", "batch", "servers", "micro")
        _, first, place = np.unique(
            np.stack([columns[n] for n in names]), axis=1, return_index=True, return_inverse=True
        )
        some, place = {name: values[first] for name, values in columns.items()}, place.reshape(-1)
        jobs = self._jobs(some, some["replicas"], some["micro"])
        whole = np.array([chain.held[:, 0].sum() for chain in self.chains])
        room = self._room(jobs, whole[self.base[first]])
        one = np.ones(len(first), dtype=np.int64)
        formulas = partition.ReplicaSteps(jobs, one, self.typical)
        parts = formulas.parts(np.arange(len(first)), np.ones(len(first)), np.ones(len(first)))
        count, unsure = steps_of(jobs, self.forecasts, self.request.length)
        self.has_target = bool(unsure.any())
        predicted = step_seconds(jobs, self.forecasts, count)[:, 1]
        self.declined = next(filter(None, self.forecasts.declined), "")
        self.scale = (predicted / sum(parts.values()))[place]
        self.count = count[place]
        return np.where(np.isfinite(self.scale), room[place], -1.0)

    def _parts(
        self, index: IntArray, seconds: FloatArray, sent: FloatArray
    ) -> dict[str, FloatArray]:
        time, gradients = self.wholes[self.base[index]].T
        replicas, parts, sync = (self.columns[n][index] for n in ("replicas", "parts", "sync"))
        # Whole replicas that wait for none go each at its own pace: their rates add up.
        alone = (sync == PS_ASYNC) & (parts == 1)
        slowest, mean = self.request.paces[:, replicas - 1]
        longer = seconds / time * np.where(alone, slowest / mean, 1.0)
        slower = 1.0 / np.where(alone, mean, self.request.paces[0, replicas * parts - 1])
        found = self.steps.parts(index, longer, sent / np.maximum(gradients, 1.0), slower)
        scale = np.where(np.isfinite(self.scale), self.scale, 0.0)[index]
        if self.request.speeds and alone.any():
            step, waited = total(found.values()), total(found[name] for name in SERVER_PARTS)
            # A cycle is computed, at the replica's speed, and waited for; those of the fastest have a harmonic mean.
            speeds, first, count = np.unique(
                -self.request.paces[0], return_index=True, return_counts=True
            )
            used = np.clip(replicas[:, None] - first, 0, count)
            computed = ((step - waited) * mean)[:, None] / -speeds
            cycles = replicas / (used / (computed + waited[:, None])).sum(axis=1)
            scale = scale * np.where(alone, cycles / step, 1.0)
        return {name: values * scale for name, values in found.items()}

    def _cost(self, index: IntArray, seconds: FloatArray, sent: FloatArray) -> FloatArray:
        return np.asarray(sum(self._parts(index, seconds, sent).values()) * self.count[index])

    def _nothing(self, setups: Setups) -> UnsatisfiedError:
        request, name = self.request, self.request.workload.name
        asked = f"{name} on up to {request.machines} x {request.machine.name}"
        if (setups.capacity < 0).all():
            return UnsatisfiedError(
                asked, self.declined or "no plan is answered", "name another predictor"
            )
        held = [
            np.where(self.barred, np.inf, c.held)[:, self.ways.parts <= largest].min(axis=1).sum()
            for c, largest in ((self.chains[i], p) for i, p in zip(setups.chain, setups.largest, strict=True))
        ]  # fmt: skip
        short = np.array(held) / np.maximum(setups.capacity, 1.0)
        i = int(np.where(setups.capacity > 0, short, np.inf).argmin())
        return UnsatisfiedError(
            asked, f"no cut fits in memory: the nearest, {setups.largest[i]} parts, needs {short[i]:.2g} times the"
            f" {format_bytes(request.machine.device.memory_bytes)} of a device", "allow more machines, name larger devices, or a smaller batch",
        )  # fmt: skip

    def _answer(self, found: Solution, best: int, used: IntArray) -> Provision:
        request, kinds = self.request, found.setups.kind
        least = float(found.value[best])
        others = [found.best(kinds == kind) for kind in np.unique(kinds) if kind != kinds[best]]
        others, curve = [row for row in others if row is not None], found.curve()
        shown = np.array([best, *others, *curve])
        parts = self._parts(shown, found.seconds[shown] * TICK, found.sent[shown])
        # The 5 and 95 % quantiles of a step over its median, with all layers cut; NaN where that is declined.
        columns = {name: values[shown] for name, values in self.columns.items()}
        devices = columns["replicas"] * columns["parts"]
        jobs = self._jobs(columns, devices, columns["micro"], columns["parts"])
        quantiles = step_seconds(jobs, self.predictor.predict(jobs), self.count[shown])
        bands = quantiles[:, ::2] / quantiles[:, 1:2]
        choices = [
            self._choice(found, int(row), int(used[row]), least, {name: float(v[i]) for name, v in parts.items()}, bands[i])
            for i, row in enumerate(shown)
        ]  # fmt: skip
        notes = [f"{name} is left out: {reason}" for name, reason in self.refused.items()]
        notes += [
            f"{KINDS[kind]} does not fit in memory" for kind in np.unique(kinds)
            if found.best(kinds == kind) is None
        ]  # fmt: skip
        shared = f"the global batch of {request.batch} is shared by replicas that divide it"
        if request.weak:
            shared = f"each replica has {request.batch} samples a step: the global batch grows with replicas"
        some = f"{request.threads} of their" if request.threads else "all"
        cores = f"workers compute with {some} {self.unprobed} cores: no probe has measured threads on this machine"
        most = int(found.setups.machines[curve[-1]])
        asynchronous = np.isin(self.columns["sync"], (PS_ASYNC, PS_STALE)).any()
        notes += [words for words, counts in (
            ("asynchronous updates are stale, so that the same quality may need more samples", asynchronous),
            ("times of divided layers were checked on small hosts alone: measure one before you rely on it",
             KINDS[kinds[best]] == "partitioned"),
            ("only the layers named are cut; forerun predict --partitions cuts all that can be", KINDS[kinds[best]] == "partitioned"),
            (cores, self.unprobed),
            (shared, True),
            (f"no choice with more than {counted(most, 'machine')} ends the run sooner", most < request.machines),
            ("runs end at their target where the predictor forecasts it, not after that length", self.has_target),
        ) if counts]  # fmt: skip
        return Provision(
            request.workload.name, request.machine.name, request.machines, request.length, choices[0],
            tuple(_lost(choice, choices[0]) for choice in choices[1 : 1 + len(others)]), tuple(choices[1 + len(others) :]), len(found.value), tuple(notes),
            request.machine.price_source,
        )  # fmt: skip

    def _choice(
        self, found: Solution, row: int, threads: int, least: float, parts: dict[str, float], band: FloatArray
    ) -> Provisioned:  # fmt: skip
        request, columns = self.request, {name: int(v[row]) for name, v in self.columns.items()}
        path, chain = found.paths[found.path[row]], self.chains[found.setups.chain[row]]
        depth, seconds = np.arange(len(path)), float(found.seconds[row] * TICK)
        passed = float(chain.exchange[depth[:-1], path[:-1], path[1:]].sum() / seconds)
        shared = 0.0
        for name in COMPUTED:
            shared += parts[name] * passed
            parts[name] *= 1.0 - passed
        parts["exchange"] = shared
        name, share = bottleneck_of(parts)
        step = sum(parts.values())
        each = columns["batch"] * (1 if columns["sync"] == PS_ASYNC else columns["replicas"])
        price, run = request.machine.dollars_per_hour, float(found.value[row])
        hourly = None if price is None else price * columns["machines"]
        passes = request.workload.dataset_size > 0
        names = [self.layers.names[i] for i in self.layers.order]
        cut = tuple(
            (names[i], int(self.ways.parts[w]), "space" if self.ways.space[w] else "units")
            for i, w in enumerate(path) if self.ways.parts[w] > 1
        )  # fmt: skip
        memory = float(found.held[row] / max(found.setups.capacity[row], 1.0))
        why = f"{name} is {format_percent(share)} of a step"
        return Provisioned(
            KINDS[found.setups.kind[row]], SYNC[columns["sync"]], columns["replicas"], columns["parts"], cut, threads,
            columns["servers"], columns["machines"], columns["replicas"] * columns["batch"], columns["micro"],
            each, step, step * request.workload.steps(Length("epochs", 1), each) if passes else None,
            float(self.count[row]), run, hourly, None if hourly is None else hourly * run / SECONDS_PER_HOUR,
            memory * request.machine.device.memory_bytes,
            {n: s for n, s in parts.items() if s}, name, run / least, why=why,
            step_range_seconds=(step * float(band[0]), step * float(band[1])) if np.isfinite(band).all() else None,
        )  # fmt: skip


def provisioned(predictor: Predictor, request: ProvisionRequest) -> Provision:
    """Return the best use of the machines, what each other kind falls short by, and the curve.

    Raises:
        RequestError: no setup can be made of the request.
        UnsatisfiedError: nothing fits in memory, or the predictor declines all.
    """
    return _Search(request, predictor).solved()
