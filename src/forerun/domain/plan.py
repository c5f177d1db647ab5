"""Plan: how a workload is laid on a cluster; PlanColumns: many of them, and which are legal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from forerun.arrays import ColumnRows
from forerun.errors import RequestError, UnknownNameError, nearest_names, one_of

RECOMPUTE = ("none", "selective", "full")
SYNC = ("allreduce", "ps-sync", "ps-async", "dataparallel", "ps-stale")
ALL_REDUCE, PS_SYNC, PS_ASYNC, ONE_PROCESS, PS_STALE = range(len(SYNC))
SERVER_SYNCS = (PS_SYNC, PS_ASYNC, PS_STALE)
ZERO_STAGES = (0, 1, 2, 3)
MEMORY_FORMATS = ("nchw", "nhwc")
OFFLOAD = ("none", "optimizer", "parameters", "nvme")
# Assumptions, which notes state: times its devices' memory that a host has, and what a node's drives move together.
USUAL_HOST, NVME_BYTES_PER_SECOND = 2.0, 5e9
# The fields that columns hold as positions among these words.
WORDS: Mapping[str, tuple[str, ...]] = {
    "recompute": RECOMPUTE, "sync": SYNC, "memory_format": MEMORY_FORMATS,
    "offload": OFFLOAD,
}  # fmt: skip

MOST = {"gradient_bits": 64}  # a number has no more
FROM_ZERO = ("zero_stage", "parameter_servers", "stale_bound", "gradient_bits")  # not from 1
INTEGER_FIELDS = ("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch", "global_batch",
                  "partitions", *FROM_ZERO)  # fmt: skip
BOOLEAN_FIELDS = ("sequence_parallel", "servers_with_workers", "offload_activations")

# Names that other tools use for the same thing; accepted on input.
ALIASES: Mapping[str, str] = {
    "data_parallel_size": "dp", "data_parallel_degree": "dp", "data_parallel": "dp",
    "data_parallel_shard_degree": "dp", "data_parallel_replicate_degree": "dp",
    "tensor_model_parallel_size": "tp", "tensor_parallel_degree": "tp", "tensor_parallel": "tp",
    "tensor_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp", "pipeline_parallel_degree": "pp",
    "pipeline_parallel": "pp", "pipeline_parallel_size": "pp",
    "context_parallel_size": "cp", "context_parallel_degree": "cp", "context_parallel": "cp",
    "expert_model_parallel_size": "ep", "expert_parallel_degree": "ep", "expert_parallel": "ep",
    "virtual_pipeline_model_parallel_size": "vpp", "virtual_pipeline": "vpp",
    "micro_batch_size": "micro_batch", "mbs": "micro_batch",
    "train_micro_batch_size_per_gpu": "micro_batch", "per_device_train_batch_size": "micro_batch",
    "global_batch_size": "global_batch", "gbs": "global_batch", "train_batch_size": "global_batch",
    "zero": "zero_stage", "zero_optimization_stage": "zero_stage", "stage": "zero_stage",
    "recompute_granularity": "recompute", "activation_checkpoint": "recompute",
    "activation_checkpointing": "recompute", "gradient_checkpointing": "recompute",
    "use_gradient_checkpointing": "recompute", "activation_offloading": "offload_activations",
    "cpu_offload": "offload", "sp": "sequence_parallel", "ps": "parameter_servers",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """How a workload is laid on a cluster; checked against both when a Job is born.

    Attributes:
        dp, tp, pp, cp: data, tensor, pipeline and context parallel degrees, whose product (times
            `partitions`) is the number of devices; ep (expert parallel) lies inside dp x cp x tp.
        vpp: model chunks on each pipeline stage (1: not interleaved).
        micro_batch, global_batch: samples of a device's pass, and of a step over all devices.
        zero_stage: 0 nothing sharded, 1 optimizer, 2 and gradients, 3 and parameters (FSDP).
        recompute: activations recomputed in backward: none, selective (attention) or full.
        sequence_parallel: norms and dropouts split along the sequence over the tp group.
        sync: allreduce; ps-sync, ps-async, ps-stale (parameter servers: workers wait for one another,
            or not, or once they are `stale_bound` steps ahead); dataparallel (one process, many GPUs).
            A step of ps-async is one worker's update, of ps-sync and ps-stale an update of every worker.
        parameter_servers: shards of the parameters, each with a server; 0 where none is stated.
        stale_bound: steps that a worker may be ahead of the slowest (ps-stale; 0: in lock-step).
        servers_with_workers: servers share the workers' nodes; else they have nodes of their own.
        gradient_bits: of a number of a gradient that is pushed to servers, which decompress it; 0: whole.
        partitions: devices of each replica, over which its layers are cut; dp replicas lie on dp x partitions devices.
        offload: to the host's memory go gradients and what the optimizer keeps (optimizer), weights too (parameters);
            or all of them to its drives (nvme). offload_activations: what backward needs waits on the host.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    vpp: int = 1
    micro_batch: int = 1
    global_batch: int = 1
    zero_stage: int = 0
    recompute: str = "none"
    sequence_parallel: bool = False
    sync: str = "allreduce"
    parameter_servers: int = 0
    memory_format: str = "nchw"
    stale_bound: int = 0
    servers_with_workers: bool = False
    gradient_bits: int = 0
    partitions: int = 1
    offload: str = "none"
    offload_activations: bool = False

    def __post_init__(self) -> None:
        for name in INTEGER_FIELDS:
            value, least = getattr(self, name), int(name not in FROM_ZERO)
            most = MOST.get(name, 2**31 - 1)
            if not isinstance(value, int) or not least <= value <= most:
                bounds = f"{least} to {most}" if name in MOST else f"{least} or more"
                raise RequestError(
                    f"a plan with {name}={value}", f"{name} must be a whole number, {bounds}",
                    f"give {name}={bounds}",
                )  # fmt: skip
        for name, allowed in {"zero_stage": ZERO_STAGES, **WORDS}.items():
            value = getattr(self, name)
            if value not in allowed:
                asked = f"a plan with {name}={value}"
                raise RequestError(asked, f"no such {name}", one_of(value, allowed))

    @property
    def world_size(self) -> int:
        """Devices that the plan uses."""
        return self.dp * self.tp * self.pp * self.cp * self.partitions

    @property
    def micro_batches(self) -> float:
        """Forward-backward passes of a device in one step."""
        return self.global_batch / (self.micro_batch * self.dp)

    @property
    def step_samples(self) -> float:
        """Samples that a step takes in: of one worker where each updates by itself, else of all."""
        return float(step_samples(self.global_batch, self.dp, SYNC.index(self.sync)))

    @property
    def server_machines(self) -> int:
        """Machines that parameter servers have for themselves, beside those of the cluster."""
        return int(PlanColumns.of([self]).server_machines[0])

    def as_dict(self) -> dict[str, int | str | bool]:
        """Return the plan's fields by name."""
        return asdict(self)

    def __str__(self) -> str:
        usual = _DEFAULTS.as_dict()
        shown = [
            f"{name}={str(value).lower()}" for name, value in self.as_dict().items()
            if name in ("dp", "micro_batch")
            or (value != usual[name] and name not in ("global_batch", "memory_format"))
        ]  # fmt: skip
        return " ".join(shown)


def step_samples(batch: ArrayLike, workers: ArrayLike, sync: ArrayLike) -> NDArray[np.float64]:
    """Return samples of steps by global batch, workers and position in `SYNC`; see `Plan.step_samples`."""
    each = np.where(np.equal(sync, PS_ASYNC), np.maximum(workers, 1), 1)
    return np.asarray(np.asarray(batch) / each, dtype=np.float64)


FIELDS: tuple[str, ...] = tuple(Plan.__dataclass_fields__)
_TRUE = {"true", "yes", "1", "on"}
_FALSE = {"false", "no", "0", "off"}


def unknown_field(name: str) -> UnknownNameError:
    """Return the error for a name that is no plan field."""
    near = dict.fromkeys(ALIASES.get(n, n) for n in nearest_names(name, (*FIELDS, *ALIASES)))
    hint = "" if near else f"({', '.join(FIELDS)})"
    return UnknownNameError("plan field", name, FIELDS, hint, near)


def parse_plan(text: str) -> dict[str, int | str | bool]:
    """Return the fields named in text such as `tp=2,pp=4 recompute=full`. Raises RequestError."""
    fields: dict[str, int | str | bool] = {}
    for part in filter(None, re.split(r"[,\s;]+", text.strip())):
        name, separator, value = part.partition("=")
        if not separator or not value:
            raise RequestError(
                f"plan {text!r}", f"{part!r} is not name=value", "write for example tp=2,pp=4"
            )
        key = ALIASES.get(name.lower(), name.lower())
        if key not in FIELDS:
            raise unknown_field(name)
        if key in fields:
            raise RequestError(f"plan {text!r}", f"{key} is given twice", "give it once")
        fields[key] = plan_value(key, value)
    return fields


def plan_value(key: str, value: object) -> int | str | bool:
    """Return a plan field's value from text or a number. Raises RequestError where it cannot be."""
    text = str(value).strip().lower()
    if key in BOOLEAN_FIELDS:
        if text in _TRUE | {"1.0"}:
            return True
        if text in _FALSE | {"0.0"}:
            return False
        raise RequestError(f"{key}={value}", "neither true nor false", "write true or false")
    if key in INTEGER_FIELDS:
        try:
            number = float(text)
        except ValueError:
            number = float("nan")
        if not number.is_integer():
            raise RequestError(f"{key}={value}", "not a whole number", f"write for example {key}=2")
        return int(number)
    if key == "recompute" and text in _TRUE | _FALSE:
        return "full" if text in _TRUE else "none"
    if key == "offload" and text in _TRUE | _FALSE | {"cpu"}:
        return "none" if text in _FALSE else "optimizer"
    return text


IntArray = NDArray[np.int32]

_DEFAULTS = Plan()


@dataclass(frozen=True)
class PlanColumns(ColumnRows):
    """Plans as int32 columns of length n; fields of `WORDS` hold positions among their words."""

    dp: IntArray
    tp: IntArray
    pp: IntArray
    cp: IntArray
    ep: IntArray
    vpp: IntArray
    micro_batch: IntArray
    global_batch: IntArray
    zero_stage: IntArray
    recompute: IntArray
    sequence_parallel: IntArray
    sync: IntArray
    parameter_servers: IntArray
    memory_format: IntArray
    stale_bound: IntArray
    servers_with_workers: IntArray
    gradient_bits: IntArray
    partitions: IntArray
    offload: IntArray
    offload_activations: IntArray

    @staticmethod
    def build(n: int, **columns: ArrayLike) -> PlanColumns:
        """Return n plans from the named columns (scalars are spread; the rest are defaults)."""
        arrays: dict[str, Any] = {}
        for name in NAMES:
            value = columns.pop(name, None)
            if value is None:
                default = getattr(_DEFAULTS, name)
                value = WORDS[name].index(default) if name in WORDS else int(default)
            array = np.asarray(value, dtype=np.int32)
            arrays[name] = np.broadcast_to(array, (n,)) if array.shape != (n,) else array
        if columns:
            raise TypeError(f"unknown plan columns {sorted(columns)}")
        return PlanColumns(**arrays)

    @staticmethod
    def of(plans: Sequence[Plan]) -> PlanColumns:
        """Return plans as columns."""
        if not plans:
            return PlanColumns.build(0)
        rows = zip(*map(attrgetter(*NAMES), plans), strict=True)
        columns: dict[str, ArrayLike] = {
            name: list(map(WORDS[name].index, values)) if name in WORDS else values
            for name, values in zip(NAMES, rows, strict=True)
        }
        return PlanColumns.build(len(plans), **columns)

    def __getitem__(self, i: int) -> Plan:
        values: dict[str, Any] = {name: int(getattr(self, name)[i]) for name in NAMES}
        for name, words in WORDS.items():
            values[name] = words[values[name]]
        values |= {name: bool(values[name]) for name in BOOLEAN_FIELDS}
        return Plan(**values)

    @property
    def world_size(self) -> IntArray:
        """Devices each plan uses, shape (n,)."""
        return self.dp * self.tp * self.pp * self.cp * self.partitions

    @property
    def step_samples(self) -> NDArray[np.float64]:
        """Samples that each plan's step takes in, (n,); see `Plan.step_samples`."""
        return step_samples(self.global_batch, self.dp, self.sync)

    @property
    def server_machines(self) -> IntArray:
        """Machines of each plan's servers beside those of the cluster, (n,)."""
        apart = np.isin(self.sync, SERVER_SYNCS) & (self.servers_with_workers == 0)
        return np.where(apart, np.maximum(self.parameter_servers, 1), 0).astype(np.int32)


NAMES: tuple[str, ...] = tuple(f.name for f in fields(PlanColumns))


def concatenate(parts: Sequence[PlanColumns]) -> PlanColumns:
    """Return the plans of all parts, in order."""
    return PlanColumns(**{n: np.concatenate([getattr(p, n) for p in parts]) for n in NAMES})


# Legality, in the order in which it is tested: the first rule broken names the problem.
PROBLEMS: tuple[str, ...] = (
    "",
    "the plan uses tp x pp x dp x cp = {plan.world_size} devices, but the cluster has {cluster.devices}; choose a"
    " product of {cluster.devices}",
    "micro_batch x dp = {samples} exceeds the global batch of {plan.global_batch}; lower one"
    " of them or raise the global batch",
    "tp={plan.tp} needs attention heads to divide, and {workload.name} states none; use tp=1",
    "{workload.shape.heads} attention heads are not divisible by tp={plan.tp}; choose a divisor",
    "{workload.shape.kv_heads} key-value heads and tp={plan.tp} do not divide one another; choose a divisor",
    "pp={plan.pp} needs repeated layers to cut, and {workload.name} states none; use pp=1",
    "pp x vpp = {chunks} stages, but {workload.name} has {workload.shape.layers} layers; lower pp or vpp",
    "vpp={plan.vpp} interleaves pipeline stages, but pp=1; use vpp=1",
    "cp={plan.cp} splits sequences, and a sample of {workload.name} has no attention over a sequence; use"
    " cp=1",
    "ep={plan.ep} divides experts, and {workload.name} has {workload.shape.experts}; choose a divisor of them",
    "ep={plan.ep} must divide dp x cp x tp = {dpcp}; choose a divisor",
    "sync={plan.sync} is data parallel only; use tp=1, pp=1, cp=1 and zero_stage=0",
    "dataparallel is one process in one node, but the cluster has {cluster.nodes} nodes; use"
    " sync=allreduce",
    "the sequence of {workload.seq_len} tokens is not divisible by 2 x cp = {cp2}; choose a divisor",
    "stale_bound={plan.stale_bound} bounds workers that run ahead, which sync={plan.sync} does not; use"
    " sync=ps-stale or stale_bound=0",
    "the {params} parameters of {workload.name} do not make parameter_servers={plan.parameter_servers} shards;"
    " give at most {params}",
    "partitions={plan.partitions} cuts the layers of data-parallel replicas alone; use tp=1, pp=1, cp=1, ep=1,"
    " zero_stage=0 and a sync other than dataparallel",
    "dp={plan.dp} x partitions={plan.partitions} make {plan.world_size} devices, but the cluster has {cluster.devices};"
    " choose a product of {cluster.devices}",
    "offload={plan.offload} takes weights from where replicas share them; use zero_stage=3, or offload=optimizer",
    "offload={plan.offload} with sync={plan.sync}, partitions={plan.partitions} and pp={plan.pp}: only replicas that"
    " all-reduce, whole, offload; use sync=allreduce, partitions=1 and pp=1",
)
(OK, WORLD, BATCH, NO_HEADS, HEADS, KV_HEADS, NO_LAYERS, LAYERS, VPP, NO_SEQUENCE, EXPERTS, EP_DP,
 DP_ONLY, ONE_NODE, CP_SEQUENCE, BOUND, SHARDS, CUT_ONLY, CUT_WORLD, OFFLOAD_SHARED, OFFLOAD_WHOLE) = range(len(PROBLEMS))  # fmt: skip


@dataclass(frozen=True)
class Divisors:
    """What plans must divide: columns of length n (or scalars) of workload and cluster; params: 0 if not known."""

    layers: ArrayLike
    heads: ArrayLike
    kv_heads: ArrayLike
    experts: ArrayLike
    seq_len: ArrayLike
    devices: ArrayLike
    nodes: ArrayLike
    params: ArrayLike = 0


def plan_problems(plans: PlanColumns, limits: Divisors) -> NDArray[np.int8]:
    """Return for each plan (n,) the position in `PROBLEMS` of the first rule it breaks, 0 if legal."""
    heads, kv_heads = np.asarray(limits.heads), np.asarray(limits.kv_heads)
    layers, experts = np.asarray(limits.layers), np.asarray(limits.experts)
    seq_len, params = np.asarray(limits.seq_len), np.asarray(limits.params)
    tp, pp, cp, ep = plans.tp, plans.pp, plans.cp, plans.ep
    kv = np.maximum(np.where(kv_heads > 0, kv_heads, heads), 1)
    world_rate = plans.micro_batch.astype(np.int64) * plans.dp
    # Degrees of absurd size must not wrap round to a legal product: floats and int64 cannot.
    world = plans.dp.astype(np.float64) * tp * pp * cp * plans.partitions
    chunks = pp.astype(np.int64) * plans.vpp
    data_only, is_cut = plans.sync != 0, plans.partitions > 1
    alone = (tp * pp * cp > 1) | (plans.zero_stage > 0)
    broken: tuple[tuple[int, NDArray[np.bool_]], ...] = (
        (CUT_ONLY, is_cut & (alone | (ep > 1) | (plans.sync == ONE_PROCESS))),
        (CUT_WORLD, is_cut & (world != limits.devices)),
        (WORLD, world != limits.devices),
        (BATCH, world_rate > plans.global_batch),
        (NO_HEADS, (tp > 1) & (heads < 1)),
        (HEADS, (heads > 0) & (heads % tp != 0)),
        (KV_HEADS, (heads > 0) & (kv % tp != 0) & (tp % kv != 0)),
        (NO_LAYERS, (pp > 1) & (layers < 1)),
        # Embedding and loss may count as a layer each (Llama 3.1 405B: 126 layers in 128 chunks).
        (LAYERS, (pp > 1) & (chunks > layers) & ((plans.vpp == 1) | (chunks != layers + 2))),
        (VPP, (plans.vpp > 1) & (pp < 2)),
        (NO_SEQUENCE, (cp > 1) & ((heads < 1) | (seq_len < 2))),
        (EXPERTS, (ep > 1) & ((experts < 1) | (experts % ep != 0))),
        (EP_DP, (plans.dp * cp * tp) % ep != 0),
        (DP_ONLY, data_only & alone),
        (ONE_NODE, (plans.sync == SYNC.index("dataparallel")) & (np.asarray(limits.nodes) > 1)),
        (CP_SEQUENCE, (cp > 1) & (seq_len % (2 * cp) != 0)),
        (BOUND, (plans.stale_bound > 0) & (plans.sync != PS_STALE)),
        (SHARDS, (params > 0) & (plans.parameter_servers > params)),
        (OFFLOAD_SHARED, (plans.offload >= 2) & (plans.dp * cp > 1) & (plans.zero_stage < 3)),
        (OFFLOAD_WHOLE, (plans.offload > 0) & (data_only | is_cut | (pp > 1))),
    )
    result = np.zeros(len(plans), dtype=np.int8)
    for code, mask in reversed(broken):
        result[np.broadcast_to(mask, result.shape)] = code
    return result
