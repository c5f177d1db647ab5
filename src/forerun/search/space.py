"""Space: the legal plans of a workload on clusters, enumerated as columns.

Which plans are legal depends on the number of devices and not on their kind, so the plans of a
world size are made once and shared by every cluster of that size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.domain.hardware import Cluster
from forerun.domain.plan import MEMORY_FORMATS, RECOMPUTE, SYNC
from forerun.domain.plan_columns import OK, PROBLEMS, Limits, PlanColumns, plan_problems
from forerun.domain.workload import Workload
from forerun.errors import RequestError

IntArray = NDArray[np.int64]
MAX_TENSOR = 64
MAX_CONTEXT = 32
MAX_EXPERT = 64
# A context-parallel rank with fewer tokens than this spends its time on the ring.
MIN_TOKENS_A_RANK = 1024


@dataclass(frozen=True)
class Space:
    """The plans to look at.

    Attributes:
        workload: what is trained.
        clusters: where it may run.
        global_batches: samples a step, each looked at.
        fixed: plan fields that are given and not searched.
        micro_batches: sizes to try; powers of two by default.
    """

    workload: Workload
    clusters: tuple[Cluster, ...]
    global_batches: tuple[int, ...]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    micro_batches: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.clusters:
            raise RequestError(
                f"searching plans for {self.workload.name}", "no cluster to look at",
                "name at least one with --clusters",
            )  # fmt: skip
        if not self.global_batches or min(self.global_batches) < 1:
            raise RequestError(
                f"searching plans for {self.workload.name}",
                f"global batches {list(self.global_batches)}", "give whole numbers above zero",
            )  # fmt: skip

    def worlds(self) -> Iterator[tuple[PlanColumns, list[int], dict[str, int]]]:
        """Yield (legal plans, positions of the clusters they are for, refused counts) by size."""
        sizes: dict[int, list[int]] = {}
        for position, cluster in enumerate(self.clusters):
            sizes.setdefault(cluster.devices, []).append(position)
        for size, positions in sorted(sizes.items()):
            plans, refused = self.plans(size)
            counts = {reason: n * len(positions) for reason, n in refused.items()}
            yield plans, positions, counts

    def plans(self, devices: int) -> tuple[PlanColumns, dict[str, int]]:
        """Return every legal plan for a number of devices, and refused counts by reason."""
        degrees = self._degrees(devices)
        codes = plan_problems(degrees, self._limits(devices))
        options = self._options
        refused: dict[str, int] = {}
        for code in np.unique(codes[codes != OK]):
            reason = _short(int(code))
            refused[reason] = int((codes == code).sum()) * len(options["micro_batch"])
        legal = degrees.take(np.flatnonzero(codes == OK))
        valid = self._valid(legal, options)
        too_large = (
            legal.dp[:, None].astype(np.int64) * options["micro_batch"] > (options["global_batch"])
        )
        crowded = int((valid & too_large).sum())
        if crowded:
            refused["micro_batch x dp exceeds the global batch"] = crowded
        row, option = np.nonzero(valid & ~too_large)
        columns = {name: values[option] for name, values in options.items()}
        for name in ("dp", "tp", "pp", "cp", "ep"):
            columns[name] = getattr(legal, name)[row]
        return PlanColumns.build(len(row), **columns), refused

    @cached_property
    def _options(self) -> dict[str, NDArray[np.int32]]:
        """What does not depend on the degrees: every combination, as columns."""
        workload = self.workload
        attention = workload.shape.heads > 0
        recompute = ("none", "selective", "full") if attention else ("none", "full")
        axes: dict[str, Sequence[int]] = {
            "global_batch": self.global_batches,
            "micro_batch": self.micro_batches or default_micro_batches(workload),
            "zero_stage": (0, 1, 2, 3),
            "recompute": [RECOMPUTE.index(word) for word in recompute],
            "sequence_parallel": (0, 1),
            "vpp": (1, 2, 4, 8) if workload.shape.layers > 1 else (1,),
            "memory_format": (1,) if workload.image_size and workload.sample == "image" else (0,),
        }
        for name, words in (
            ("recompute", RECOMPUTE), ("sync", SYNC), ("memory_format", MEMORY_FORMATS),
        ):  # fmt: skip
            if name in self.fixed:
                axes[name] = (words.index(str(self.fixed[name])),)
        for name in ("micro_batch", "global_batch", "zero_stage", "vpp", "parameter_servers"):
            if name in self.fixed:
                axes[name] = (int(self.fixed[name]),)
        if "sequence_parallel" in self.fixed:
            axes["sequence_parallel"] = (int(bool(self.fixed["sequence_parallel"])),)
        grids = np.meshgrid(*[np.array(v, dtype=np.int32) for v in axes.values()], indexing="ij")
        return {name: grid.ravel() for name, grid in zip(axes, grids, strict=True)}

    def _degrees(self, devices: int) -> PlanColumns:
        """Return candidate (dp, tp, pp, cp, ep) whose product is the number of devices."""
        shape = self.workload.shape
        divisors = _divisors(devices)
        tp = self._axis("tp", [d for d in divisors if d <= MAX_TENSOR] if shape.heads else [1])
        # Pipelines of networks without attention are legal, and hardly any framework runs them:
        # they are looked at only where a person fixes pp.
        stages = [d for d in divisors if d <= shape.layers] if shape.heads else []
        pp = self._axis("pp", stages or [1])
        longest = min(MAX_CONTEXT, self.workload.seq_len // MIN_TOKENS_A_RANK)
        cp = self._axis("cp", [d for d in divisors if d <= max(longest, 1)] if shape.heads else [1])
        ep = self._axis(
            "ep", [d for d in _divisors(shape.experts) if d <= MAX_EXPERT] if shape.experts else [1]
        )
        t, p, c, e = (a.ravel() for a in np.meshgrid(tp, pp, cp, ep, indexing="ij"))
        rest = t * p * c
        dp = devices // np.maximum(rest, 1)
        keep = (dp * rest == devices) & (dp >= 1)
        if "dp" in self.fixed:
            keep &= dp == int(self.fixed["dp"])
        if "ep" not in self.fixed:
            keep &= (dp * c * t) % e == 0
        t, p, c, e, dp = (a[keep] for a in (t, p, c, e, dp))
        return PlanColumns.build(
            len(dp), dp=dp, tp=t, pp=p, cp=c, ep=e, micro_batch=1, global_batch=2**31 - 1
        )

    def _axis(self, name: str, values: Sequence[int]) -> IntArray:
        if name in self.fixed:
            return np.array([int(self.fixed[name])], dtype=np.int64)
        return np.array(values, dtype=np.int64)

    def _limits(self, devices: int) -> Limits:
        shape = self.workload.shape
        return Limits(
            layers=shape.layers, heads=shape.heads, kv_heads=shape.kv_heads,
            experts=shape.experts, seq_len=self.workload.seq_len, devices=devices, nodes=1,
        )  # fmt: skip

    def _valid(
        self, degrees: PlanColumns, options: Mapping[str, NDArray[np.int32]]
    ) -> NDArray[np.bool_]:
        """Return which (degrees, options) pairs are legal and distinct, (degrees, options).

        What a degree of 1 makes meaningless is looked at once (sequence parallelism with tp = 1,
        ZeRO with one replica), and ZeRO 2 and 3 not with a pipeline, which few frameworks join.
        """
        tp, pp = degrees.tp[:, None], degrees.pp[:, None]
        replicas = degrees.dp[:, None] * degrees.cp[:, None]
        zero, vpp = options["zero_stage"], options["vpp"]
        valid = (vpp == 1) | ((pp > 1) & (pp * vpp <= self.workload.shape.layers))
        if "sequence_parallel" not in self.fixed:
            valid &= (options["sequence_parallel"] == 0) | (tp > 1)
        if "zero_stage" not in self.fixed:
            valid &= (zero == 0) | (replicas > 1)
            valid &= (zero < 2) | (pp == 1)
        return np.asarray(valid)


def default_micro_batches(workload: Workload) -> tuple[int, ...]:
    """Return powers of two: up to 32 sequences of a language model, 1024 images or rows."""
    top = 32 if workload.seq_len and workload.shape.heads else 1024
    return tuple(2**i for i in range(top.bit_length()))


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, min(number, 4096) + 1) if number % d == 0]


def _short(code: int) -> str:
    """Return a broken rule without the numbers of one job."""
    words = PROBLEMS[code].split(";")[0]
    for name, shown in (
        ("{world}", "other"), ("{devices}", "all"), ("{heads} ", ""), ("{kv_heads} ", ""),
        ("{layers} ", ""), ("={tp}", ""), ("={pp}", ""), ("={cp}", ""), ("={ep}", ""),
        ("={vpp}", ""), ("{workload}", "the workload"), ("{chunks} ", ""), ("{experts}", "others"),
        ("{dpcp}", "the replicas"), ("{seq_len} ", ""), ("{cp2}", "cp"), ("{nodes}", "several"),
        ("={sync}", ""), ("= {samples} samples ", ""), (" of {global_batch}", ""),
    ):  # fmt: skip
        words = words.replace(name, shown)
    return words
