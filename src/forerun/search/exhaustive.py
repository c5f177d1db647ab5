"""Exhaustive search: all plans scored in chunks, reduced as they come, the winners explained.

Fixed: when no cluster can take the plan fields that a person fixed, say which and why.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from forerun.contracts import Predictor
from forerun.domain.hardware import Cluster
from forerun.domain.objective import Objective
from forerun.domain.plan import Plan
from forerun.domain.recommendation import Recommendation
from forerun.domain.workload import Length, Workload
from forerun.errors import RequestError, UnsatisfiedError
from forerun.search.choose import choose
from forerun.search.reduce import Reduction
from forerun.search.score import score_space
from forerun.search.space import RULES, Space
from forerun.search.words import memory_words
from forerun.units import counted, format_bytes

_SEPARATE = ("global_batch",)  # asked for beside the plan, and searched by itself


def refuse_fixed(space: Space, refused: Mapping[str, int]) -> None:
    """Raise where the fixed fields are what leaves the space without a legal plan.

    Args:
        space: it has no legal plan.
        refused: why, counted.

    Raises:
        RequestError: naming the fields, without which there would be legal plans.
    """
    fields = [name for name in space.fixed if name not in _SEPARATE]
    guilty = [name for name in fields if _any_legal(_without(space, (name,)))]
    if not guilty and len(fields) > 1 and _any_legal(_without(space, fields)):
        guilty = fields
    if not guilty:
        return
    named = ", ".join(f"{name}={_text(space.fixed[name])}" for name in guilty)
    reasons = sorted(refused, key=lambda reason: -refused[reason])
    alone = len({cluster.name for cluster in space.clusters}) == 1
    where = f"{space.clusters[0].name} cannot" if alone else "no cluster that was looked at can"
    raise RequestError(
        f"{space.workload.name} with {', '.join(f'{n}={_text(space.fixed[n])}' for n in fields)}",
        f"{where} take {named}: {'; '.join(reasons[:2])}{_sizes(space, reasons[:2])}",
        f"leave {guilty[0] if len(guilty) == 1 else 'one of them'} to the search, or change it",
    )


def _without(space: Space, names: Iterable[str]) -> Space:
    return replace(space, fixed={k: v for k, v in space.fixed.items() if k not in names})


def _any_legal(space: Space) -> bool:
    return any(len(plans) for plans, _, _ in space.worlds())


def _sizes(space: Space, reasons: Iterable[str]) -> str:
    """Return the numbers of devices, where the number is what does not agree."""
    if RULES[1] not in reasons:
        return ""
    sizes = sorted({cluster.devices for cluster in space.clusters})
    shown = ", ".join(f"{size:,}" for size in sizes[:6]) + (" ..." if len(sizes) > 6 else "")
    return f" ({shown} devices)"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# What the search chooses where nobody says it.
_SEARCHED = ("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch", "zero_stage", "recompute",
             "sequence_parallel")  # fmt: skip


def recommend(
    workload: Workload,
    clusters: Sequence[Cluster],
    objective: Objective,
    length: Length,
    predictor: Predictor,
    *,
    fixed: Mapping[str, Any] | None = None,
    global_batches: Sequence[int] | None = None,
    max_front: int = 40,
    energy: bool = False,
) -> Recommendation:
    """Return the best job under the objective, the Pareto front and the refused jobs.

    Args:
        workload: what is trained.
        objective: what is best, and the limits.
        length: how much training the run is.
        predictor: who forecasts.
        clusters: where it may run; one without a price can win only where time alone matters.
        fixed: plan fields that are given.
        global_batches: those to look at; by default the workload's own.
        max_front: the most options shown on the front (evenly thinned beyond).
        energy: make kWh a third axis of the front.

    Raises:
        RequestError: no cluster, a length that the workload cannot be counted in, or a fixed plan
            field that no cluster can take.
    """
    started = time.perf_counter()
    batches = tuple(global_batches or default_batches(workload, fixed or {}))
    space = Space(workload, tuple(clusters), batches, dict(fixed or {}))
    reduction = Reduction(objective, energy=energy or objective.aim == "energy")
    refused: dict[str, int] = {}
    for scored in score_space(space, predictor, objective, length, refused):
        reduction.add(scored)
    if not reduction.considered:
        refuse_fixed(space, refused)
    return choose(space, reduction, predictor, objective, length, refused, max_front,
                  started, energy)  # fmt: skip


def default_batches(workload: Workload, fixed: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the global batches to look at: the given one, the workload's usual one, or 256."""
    if "global_batch" in fixed:
        return (int(fixed["global_batch"]),)
    return (workload.default_global_batch or 256,)


def best_plan(
    workload: Workload,
    cluster: Cluster,
    predictor: Predictor,
    *,
    fixed: Mapping[str, Any] | None = None,
    global_batch: int | None = None,
    aim: str = "time",
) -> tuple[Plan, tuple[str, ...]]:
    """Return the plan that serves the aim best on one cluster, and notes on how it was chosen.

    Raises:
        UnsatisfiedError: no legal plan, or none that is likely to fit in memory.
        RequestError: as `recommend`.
    """
    given = dict(fixed or {})
    if global_batch is not None:
        given["global_batch"] = global_batch
    result = recommend(
        workload, [cluster], Objective(aim=aim), Length("steps", 1000, "assumed"), predictor,
        fixed=given, max_front=1,
    )  # fmt: skip
    asked = f"a plan for {workload.name} on {cluster.name}"
    if result.best is not None:
        plan = result.best.job.plan
        free = "the plan was" if not fixed else f"plan fields other than {', '.join(given)} were"
        return plan, (
            f"{free} chosen by search among {counted(result.legal, 'legal plan')}:"
            f" {_fields(plan, given)}",
        )
    if result.near_misses:
        near = result.near_misses[0]
        said = near.estimate.forecast
        need, usable = (said.peak_bytes[1], said.usable_bytes) if said else (math.nan, math.nan)
        raise UnsatisfiedError(
            asked,
            f"none of {result.legal:,} legal plans fits; the nearest ({near.job.plan}) needs"
            f" {format_bytes(need)} of {memory_words(usable, cluster.device.memory_bytes)} a device",
            "use more devices, devices with more memory, or another batch or sequence length",
        )
    reasons = "; ".join(f"{r} ({n:,} plans)" for r, n in list(result.refused_counts.items())[:3])
    raise UnsatisfiedError(
        asked, f"no legal plan: {reasons or 'nothing to search'}",
        "raise the global batch, free a fixed plan field, or use fewer devices",
    )  # fmt: skip


def _fields(plan: Plan, given: Mapping[str, Any]) -> str:
    """Return the fields that the search chose with their values, those at their defaults too."""
    values = ((name, getattr(plan, name)) for name in _SEARCHED if name not in given)
    return " ".join(f"{n}={str(v).lower() if v is True or v is False else v}" for n, v in values)
