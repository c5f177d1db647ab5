"""PlanColumns: many plans as NumPy columns, and the rules of a legal plan applied to all at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from forerun.domain.plan import MEMORY_FORMATS, RECOMPUTE, SYNC, Plan

IntArray = NDArray[np.int32]

_CODED: Mapping[str, tuple[str, ...]] = {
    "recompute": RECOMPUTE,
    "sync": SYNC,
    "memory_format": MEMORY_FORMATS,
}
_DEFAULTS = Plan()


@dataclass(frozen=True)
class PlanColumns:
    """Plans as int32 columns of length n.

    recompute, sync and memory_format hold positions in `RECOMPUTE`, `SYNC` and
    `MEMORY_FORMATS`; sequence_parallel holds 0 or 1.
    """

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

    @staticmethod
    def build(n: int, **columns: ArrayLike) -> PlanColumns:
        """Return n plans from the named columns (scalars are spread; the rest are defaults)."""
        arrays: dict[str, Any] = {}
        for name in NAMES:
            value = columns.pop(name, None)
            if value is None:
                default = getattr(_DEFAULTS, name)
                value = _CODED[name].index(default) if name in _CODED else int(default)
            array = np.asarray(value, dtype=np.int32)
            arrays[name] = np.broadcast_to(array, (n,)) if array.shape != (n,) else array
        if columns:
            raise TypeError(f"unknown plan columns {sorted(columns)}")
        return PlanColumns(**arrays)

    @staticmethod
    def of(plans: Sequence[Plan]) -> PlanColumns:
        """Return plans as columns."""
        columns: dict[str, ArrayLike] = {}
        for name in NAMES:
            values: Iterable[Any] = (getattr(p, name) for p in plans)
            if name in _CODED:
                values = (_CODED[name].index(v) for v in values)
            columns[name] = np.fromiter((int(v) for v in values), np.int32, len(plans))
        return PlanColumns.build(len(plans), **columns)

    def __len__(self) -> int:
        return len(self.dp)

    def take(self, index: NDArray[Any]) -> PlanColumns:
        """Return the plans at the given positions (or where a mask is true)."""
        return PlanColumns(**{name: getattr(self, name)[index] for name in NAMES})

    def __getitem__(self, i: int) -> Plan:
        values: dict[str, Any] = {name: int(getattr(self, name)[i]) for name in NAMES}
        for name, words in _CODED.items():
            values[name] = words[values[name]]
        values["sequence_parallel"] = bool(values["sequence_parallel"])
        return Plan(**values)

    @property
    def world_size(self) -> IntArray:
        """Devices each plan uses, shape (n,)."""
        return self.dp * self.tp * self.pp * self.cp


NAMES: tuple[str, ...] = tuple(f.name for f in fields(PlanColumns))


def concatenate(parts: Sequence[PlanColumns]) -> PlanColumns:
    """Return the plans of all parts, in order."""
    return PlanColumns(**{n: np.concatenate([getattr(p, n) for p in parts]) for n in NAMES})


# Legality, in the order in which it is tested: the first rule broken names the problem.
PROBLEMS: tuple[str, ...] = (
    "",
    "the plan uses tp x pp x dp x cp = {world} devices, but the cluster has {devices}; choose a"
    " product of {devices}",
    "micro_batch x dp = {samples} samples exceeds the global batch of {global_batch}; lower one"
    " of them or raise the global batch",
    "tp={tp} needs attention heads to divide, and {workload} states none; use tp=1",
    "{heads} attention heads are not divisible by tp={tp}; choose a divisor",
    "{kv_heads} key-value heads and tp={tp} do not divide one another; choose a divisor",
    "pp={pp} needs repeated layers to cut, and {workload} states none; use pp=1",
    "pp x vpp = {chunks} stages, but {workload} has {layers} layers; lower pp or vpp",
    "vpp={vpp} interleaves pipeline stages, but pp=1; use vpp=1",
    "cp={cp} splits sequences, and a sample of {workload} has no attention over a sequence; use"
    " cp=1",
    "ep={ep} divides experts, and {workload} has {experts}; choose a divisor of them",
    "ep={ep} must divide dp x cp x tp = {dpcp}; choose a divisor",
    "sync={sync} is data parallel only; use tp=1, pp=1, cp=1 and zero_stage=0",
    "dataparallel is one process in one node, but the cluster has {nodes} nodes; use"
    " sync=allreduce",
    "the sequence of {seq_len} tokens is not divisible by 2 x cp = {cp2}; choose a divisor",
)
(OK, WORLD, BATCH, NO_HEADS, HEADS, KV_HEADS, NO_LAYERS, LAYERS, VPP, NO_SEQUENCE, EXPERTS, EP_DP,
 DP_ONLY, ONE_NODE, CP_SEQUENCE) = range(len(PROBLEMS))  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """What plans must divide: columns of length n (or scalars) of workload and cluster."""

    layers: ArrayLike
    heads: ArrayLike
    kv_heads: ArrayLike
    experts: ArrayLike
    seq_len: ArrayLike
    devices: ArrayLike
    nodes: ArrayLike


def plan_problems(plans: PlanColumns, limits: Limits) -> NDArray[np.int8]:
    """Return for each plan the position in `PROBLEMS` of the first rule it breaks, 0 where legal.

    Shape (n,). A world size, heads, layers, experts or sequence that does not divide is a
    problem; an accumulation that does not multiply out is not (it is rounded, with a warning).
    """
    heads, kv_heads = np.asarray(limits.heads), np.asarray(limits.kv_heads)
    layers, experts = np.asarray(limits.layers), np.asarray(limits.experts)
    seq_len = np.asarray(limits.seq_len)
    tp, pp, cp, ep = plans.tp, plans.pp, plans.cp, plans.ep
    kv = np.maximum(np.where(kv_heads > 0, kv_heads, heads), 1)
    world_rate = plans.micro_batch.astype(np.int64) * plans.dp
    # Degrees of absurd size must not wrap round to a legal product: floats and int64 cannot.
    world = plans.dp.astype(np.float64) * tp * pp * cp
    chunks = pp.astype(np.int64) * plans.vpp
    data_only = plans.sync != 0
    broken: tuple[tuple[int, NDArray[np.bool_]], ...] = (
        (WORLD, world != limits.devices),
        (BATCH, world_rate > plans.global_batch),
        (NO_HEADS, (tp > 1) & (heads < 1)),
        (HEADS, (heads > 0) & (heads % tp != 0)),
        (KV_HEADS, (heads > 0) & (kv % tp != 0) & (tp % kv != 0)),
        (NO_LAYERS, (pp > 1) & (layers < 1)),
        (LAYERS, (pp > 1) & (chunks > layers)),
        (VPP, (plans.vpp > 1) & (pp < 2)),
        (NO_SEQUENCE, (cp > 1) & ((heads < 1) | (seq_len < 2))),
        (EXPERTS, (ep > 1) & ((experts < 1) | (experts % ep != 0))),
        (EP_DP, (plans.dp * cp * tp) % ep != 0),
        (DP_ONLY, data_only & ((tp * pp * cp > 1) | (plans.zero_stage > 0))),
        (ONE_NODE, (plans.sync == SYNC.index("dataparallel")) & (np.asarray(limits.nodes) > 1)),
        (CP_SEQUENCE, (cp > 1) & (seq_len % (2 * cp) != 0)),
    )
    result = np.zeros(len(plans), dtype=np.int8)
    for code, mask in reversed(broken):
        result[np.broadcast_to(mask, result.shape)] = code
    return result
