"""Space: the legal plans of a workload, enumerated once for all clusters of one number of devices."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray
from forerun.catalog.frameworks import cannot_run
from forerun.domain import plan
from forerun.domain.hardware import Cluster
from forerun.domain.workload import Workload
from forerun.errors import RequestError
from forerun.search.batches import filled_batch

MAX_TENSOR = 64
MAX_CONTEXT = 32
MAX_EXPERT = 64
# A micro-batch beyond these fills any device: larger ones gain nothing.
MAX_MICRO = 1024
MAX_TOKENS = 262_144
# A context-parallel rank with fewer tokens than this spends its time on the ring.
MIN_TOKENS_A_RANK = 1024
# Which plans (n,) of so many layers what starts them cannot run, by the reason.
Lacking = Callable[[plan.PlanColumns, int], Mapping[str, BoolArray]]
_MANY = 8192  # plans, beyond which every second micro-batch is usual
_FEW_TWOS = 64  # replicas of fewer samples a step need micro-batches that are no power of two
PARTIAL = "global_batch is no multiple of micro_batch x dp"
INTERLEAVED = "vpp wants equal stages, and micro-batches in multiples of pp"


@dataclass(frozen=True)
class Space:
    """The plans to look at: of each global batch and micro-batch, fixed plan fields not searched.

    filled: nobody gave the batch, so that each cluster rounds it up to what its devices can share.
    exact: accumulation is whole in every plan. lacking: of a launch target.
    """

    workload: Workload
    clusters: tuple[Cluster, ...]
    global_batches: tuple[int, ...]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    filled: bool = False
    exact: bool = True
    lacking: Lacking | None = None

    def __post_init__(self) -> None:
        if not self.clusters:
            advice = "name at least one with --clusters"
            raise RequestError(f"plans for {self.workload.name}", "no cluster to look at", advice)
        if not self.global_batches or min(self.global_batches) < 1:
            found = f"global batches {list(self.global_batches)}"
            advice = "give whole numbers above zero"
            raise RequestError(f"plans for {self.workload.name}", found, advice)

    def worlds(self) -> Iterator[tuple[plan.PlanColumns, list[int], dict[str, int]]]:
        """Yield (legal plans, positions of the clusters they are for, refused counts) by size."""
        sizes: dict[tuple[int, int], list[int]] = {}
        for position, cluster in enumerate(self.clusters):
            # Only one kind of plan asks how many nodes there are; the others are shared.
            nodes = min(cluster.nodes, 2) if self._sync == "dataparallel" else 1
            sizes.setdefault((cluster.devices, nodes), []).append(position)
        for (size, nodes), positions in sorted(sizes.items()):
            plans, refused = self.plans(size, nodes)
            yield plans, positions, {why: n * len(positions) for why, n in refused.items()}

    def plans(self, devices: int, nodes: int = 1) -> tuple[plan.PlanColumns, dict[str, int]]:
        """Return every plan that can run on a number of devices, each once, and refused counts by reason."""
        if self.filled:
            batches = tuple(filled_batch(batch, devices) for batch in self.global_batches)
            if batches != self.global_batches:
                return replace(self, global_batches=batches, filled=False).plans(devices, nodes)
        shape = self.workload.shape
        limits = plan.Divisors(
            shape.layers, shape.heads, shape.kv_heads, shape.experts, self.workload.seq_len,
            devices, nodes, self.workload.params,
        )  # fmt: skip
        refused: Counter[str] = Counter()
        degrees = self._degrees(devices)
        codes, looked = plan.plan_problems(degrees, limits), self._distinct(degrees)
        for code in np.unique(codes[codes != plan.OK]):
            refused[rule_words(int(code))] += int(looked[codes == code].sum())
        row, option = np.nonzero(looked & (codes == plan.OK)[:, None])
        columns = {name: values[option] for name, values in self._options.items()}
        columns |= {name: getattr(degrees, name)[row] for name in ("dp", "tp", "pp", "cp", "ep")}
        plans = plan.PlanColumns.build(len(row), **columns)
        codes = plan.plan_problems(plans, limits)
        for code in np.unique(codes[codes != plan.OK]):
            refused[rule_words(int(code))] += int((codes == code).sum())
        plans = plans.take(np.flatnonzero(codes == plan.OK))
        passes, rest = np.divmod(plans.global_batch, plans.micro_batch * plans.dp)
        partial = (rest > 0) & self.exact
        # Stages take turns evenly: Megatron counts embedding and loss as layers where asked.
        layers, chunks = self.workload.shape.layers, plans.pp * plans.vpp
        even = (layers % chunks == 0) | ((layers + 2) % chunks == 0)
        uneven = ~partial & (plans.vpp > 1) & ~(even & (passes % plans.pp == 0))
        refused |= {PARTIAL: int(partial.sum()), INTERLEAVED: int(uneven.sum())}
        out = partial | uneven
        for why, mask in (self.lacking(plans, layers) if self.lacking else {}).items():
            refused[why] = int((mask & ~out).sum())
            out = out | mask
        plans = plans.take(np.flatnonzero(~out))
        return plans, {why: n for why, n in refused.items() if n}

    def usual(self, plans: plan.PlanColumns) -> plan.PlanColumns:
        """Return the plans that tell most of a cluster: the best of them is hardly slower than the best of all.

        Of each layout and recomputation: where plans are many every second micro-batch, activations divided as far
        as they can be, fewest and most chunks of layers a stage, optimizer states divided or all states or none.
        No other plan needs less memory; where some is offloaded one may, and there are none.
        """
        if not len(plans) or plans.offload.any() or plans.offload_activations.any():
            return plans.take(np.arange(0))
        zero, parallel, vpp = plans.zero_stage, plans.sequence_parallel, plans.vpp
        sizes = np.unique(plans.micro_batch)[:: 2 if len(plans) > _MANY else 1]
        kept = np.isin(plans.micro_batch, sizes) & ((zero != 2) | (zero.max() == 2))
        kept &= (plans.tp == 1) | (parallel == parallel.max())
        rows = np.flatnonzero(kept)
        codes = layout_codes(plans)[rows] * (MAX_MICRO + 1) + plans.micro_batch[rows]
        group = np.unique(codes, return_inverse=True)[1]
        most = np.zeros(group.max(initial=0) + 1, dtype=vpp.dtype)
        np.maximum.at(most, group, vpp[rows])
        return plans.take(rows[(vpp[rows] == vpp.min()) | (vpp[rows] == most[group])])

    @property
    def _sync(self) -> str:
        return str(self.fixed.get("sync", plan.SYNC[0]))

    @cached_property
    def _options(self) -> dict[str, NDArray[np.int32]]:
        """What does not depend on the degrees: every combination, as columns."""
        workload = self.workload
        attention = workload.shape.heads > 0
        recompute = ("none", "selective", "full") if attention else ("none", "full")
        axes: dict[str, Sequence[int]] = {
            "global_batch": self.global_batches,
            "micro_batch": default_micro_batches(workload, max(self.global_batches)),
            "zero_stage": (0,) if self._sync != plan.SYNC[0] else (0, 1, 2, 3),
            "recompute": [plan.RECOMPUTE.index(word) for word in recompute],
            "sequence_parallel": (0, 1), "vpp": (1, 2, 4, 8) if workload.shape.layers > 1 else (1,),
            "memory_format": (usual_memory_format(workload),),
        }  # fmt: skip
        self._leave_out(axes)
        served = ("parameter_servers", "stale_bound", "servers_with_workers", "gradient_bits", "offload",
                  "offload_activations")  # fmt: skip
        for name in (*axes, "sync", "partitions", *served):
            if (value := self.fixed.get(name)) is not None:
                axes[name] = (
                    plan.WORDS[name].index(str(value)) if name in plan.WORDS else int(value),
                )
        grids = np.meshgrid(*[np.array(v, dtype=np.int32) for v in axes.values()], indexing="ij")
        return {name: grid.ravel() for name, grid in zip(axes, grids, strict=True)}

    def _leave_out(self, axes: dict[str, Sequence[int]]) -> None:
        """Take from open axes, each from its least value on, what the framework cannot run."""
        for feature in cannot_run(self.workload.framework):
            name, _, value = feature.partition("=")
            if name not in axes:
                continue
            code = plan.WORDS[name].index(value) if name in plan.WORDS else int(value or 0)
            axes[name] = [v for v in axes[name] if v != code] if value else axes[name][:1]

    def _degrees(self, devices: int) -> plan.PlanColumns:
        shape = self.workload.shape
        divisors = _divisors(devices) if shape.heads > 0 and self._sync == plan.SYNC[0] else [1]
        longest = min(MAX_CONTEXT, self.workload.seq_len // MIN_TOKENS_A_RANK)
        # Pipelines of networks without attention are legal, and hardly any framework runs them:
        # they are looked at only where a person fixes pp.
        axes: dict[str, Sequence[int]] = {
            "tp": [d for d in divisors if d <= MAX_TENSOR],
            "pp": [d for d in divisors if d <= max(shape.layers, 1)],
            "cp": [d for d in divisors if d <= max(longest, 1)],
            "ep": [d for d in _divisors(shape.experts) if d <= MAX_EXPERT] or [1],
        }
        self._leave_out(axes)
        for name in axes.keys() & self.fixed.keys():
            axes[name] = [int(self.fixed[name])]
        grids = np.meshgrid(*(np.array(v, dtype=np.int64) for v in axes.values()), indexing="ij")
        t, p, c, e = (grid.ravel() for grid in grids)
        parts = int(self.fixed.get("partitions", 1))
        rest = np.maximum(t * p * c * parts, 1)
        dp = np.full_like(rest, int(self.fixed["dp"])) if "dp" in self.fixed else devices // rest
        keep = dp * rest == devices
        if "ep" not in self.fixed:
            keep &= (dp * c * t) % e == 0
        if not keep.any():
            keep[0], dp = True, np.maximum(dp, 1)
        t, p, c, e, dp = (a[keep] for a in (t, p, c, e, dp))
        return plan.PlanColumns.build(
            len(dp), dp=dp, tp=t, pp=p, cp=c, ep=e, partitions=parts, micro_batch=1, global_batch=2**31 - 1,
            sync=plan.SYNC.index(self._sync), parameter_servers=int(self.fixed.get("parameter_servers", 0)),
        )  # fmt: skip

    def _distinct(self, degrees: plan.PlanColumns) -> NDArray[np.bool_]:
        options = self._options
        tp, pp = degrees.tp[:, None], degrees.pp[:, None]
        replicas = degrees.dp[:, None] * degrees.cp[:, None]
        zero, vpp = options["zero_stage"], options["vpp"]
        looked = np.ones((len(degrees), len(zero)), dtype=bool)
        if "vpp" not in self.fixed:
            spare = self.workload.shape.layers - pp * vpp
            looked &= (vpp == 1) | ((pp > 1) & ((spare >= 0) | (spare == -2)))
        if "sequence_parallel" not in self.fixed:
            looked &= (options["sequence_parallel"] == 0) | (tp > 1)
        if "zero_stage" not in self.fixed:
            looked &= (zero == 0) | (replicas > 1)
            looked &= (zero < 2) | (pp == 1)
        return looked


def layout_codes(plans: plan.PlanColumns) -> NDArray[np.int64]:
    """Return a number for the degrees of each plan, (n,), the same for the same degrees."""
    code = np.zeros(len(plans), dtype=np.int64)
    for degree, above in (
        (plans.tp, MAX_TENSOR),
        (plans.pp, 1024),
        (plans.cp, MAX_CONTEXT),
        (plans.ep, MAX_EXPERT),
    ):
        code = code * (above + 1) + degree
    return code


def default_micro_batches(workload: Workload, global_batch: int = MAX_MICRO) -> tuple[int, ...]:
    """Return powers of two up to the global batch, `MAX_MICRO` samples and `MAX_TOKENS` tokens.

    Where a batch has few factors of two, its other divisors too.
    """
    top = MAX_MICRO
    if workload.seq_len > 0:
        top = min(top, MAX_TOKENS // workload.seq_len)
    top = max(1, min(top, global_batch))
    powers = {2**i for i in range(top.bit_length())}
    few = global_batch & -global_batch < _FEW_TWOS
    return tuple(sorted(powers | {d for d in _divisors(global_batch) if few and d <= top}))


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, min(number, 4096) + 1) if number % d == 0]


# What stands for the numbers of one job in a rule of `PROBLEMS` that is counted over many plans.
_WORDS = {"workload.name": "the workload", "cluster.devices": "another number",
          "workload.shape.layers": "fewer", "workload.shape.experts": "others",
          "cluster.nodes": "several", "plan.global_batch": "a step"}  # fmt: skip


def rule_words(code: int) -> str:
    """Return a broken rule, a position in `PROBLEMS`, in words that fit every plan."""
    text = plan.PROBLEMS[code].partition(";")[0]
    for name, word in _WORDS.items():
        text = text.replace(f"{{{name}}}", word)
    return re.sub(r"[ =]*\{[\w.]+\}", "", text).strip()


def refuse_fixed(space: Space, refused: Mapping[str, int]) -> None:
    """Raise RequestError where the fixed fields leave no legal plan; `refused` counts reasons."""
    fields = {name: value for name, value in space.fixed.items() if name != "global_batch"}
    if not any(len(plans) for plans, _, _ in replace(space, fixed={}).worlds()):
        if refused.get(PARTIAL):
            batch, count = space.global_batches[0], space.clusters[0].devices
            raise RequestError(
                f"{space.workload.name} with a global batch of {batch} on {space.clusters[0].name}",
                f"{count} devices cannot share it out evenly: {PARTIAL}",
                f"choose another, such as {filled_batch(batch, count)}",
            )
        return
    reasons = sorted(refused, key=lambda reason: -refused[reason])[:2]
    names, sizes = ({getattr(c, of) for c in space.clusters} for of in ("name", "devices"))
    where = f"{names.pop()} cannot" if len(names) == 1 else "no cluster that was looked at can"
    text = ", ".join(f"{name}={str(value).lower()}" for name, value in fields.items())
    codes = {rule_words(code): code for code in range(1, len(plan.PROBLEMS))}
    # A free micro-batch may be any that the batch allows.
    binding = [
        codes.get(reason, plan.OK)
        for reason in reasons
        if reason != rule_words(plan.BATCH) or "micro_batch" in fields
    ]
    fixes = [plan.PROBLEMS[code].partition("; ")[2] for code in binding]
    advice = next((fix for fix in fixes if fix and "{" not in fix), "change it")
    worlds = [rule_words(code) for code in (plan.WORLD, plan.CUT_WORLD)]
    if world := next(filter(reasons.__contains__, worlds), ""):
        axes = ("dp", "tp", "pp", "cp", "partitions")
        degrees = {n: int(space.fixed[n]) for n in axes if n in space.fixed}
        product, devices = math.prod(degrees.values()), " and ".join(map(str, sorted(sizes)))
        named = " x ".join(f"{name}={degree}" for name, degree in degrees.items())
        named += f" = {product} devices" if len(degrees) > 1 else ""
        advice = f"choose degrees with a product of {devices}"
        fault = "divisible" if all(size % product for size in sizes) else "filled"
        reasons[reasons.index(world)] = f"{devices} devices are not {fault} by {named}"
    elif rule_words(plan.SHARDS) in reasons:
        advice = f"give at most {space.workload.params:.0f} servers"
    elif PARTIAL in reasons:
        batches = " or ".join(map(str, space.global_batches))
        reasons[reasons.index(PARTIAL)] = f"a global batch of {batches} {PARTIAL.split(' ', 1)[1]}"
        advice = "choose a global batch that is"
    raise RequestError(
        f"{space.workload.name} with {text}",
        f"{where} take {text}: {'; '.join(reasons)}",
        f"leave {next(iter(fields)) if len(fields) == 1 else 'one of them'} to the search, or {advice}",
    )


def usual_memory_format(workload: Workload) -> int:
    """Return the position among `MEMORY_FORMATS` that a workload is searched with: nhwc for images."""
    return int(bool(workload.image_size) and workload.sample == "image")
