"""Planning: the plan fields that nobody fixed are chosen, or it is said that nothing fits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from forerun.contracts import Predictor
from forerun.domain.hardware import Cluster
from forerun.domain.job import Job
from forerun.domain.objective import Objective
from forerun.domain.plan import Plan
from forerun.domain.workload import Length, Workload
from forerun.errors import UnsatisfiedError
from forerun.units import chance_text, format_bytes

# Whoever states all of these has decided how much memory a device needs.
_DECISIVE = frozenset(("dp", "tp", "pp", "micro_batch", "zero_stage", "recompute"))
_SHOWN = ("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch", "zero_stage", "recompute")


def chosen_plan(
    predictor: Predictor,
    workload: Workload,
    cluster: Cluster,
    fixed: Mapping[str, Any],
    global_batch: int,
) -> tuple[Plan, tuple[str, ...]]:
    """Return the fastest plan that holds the fixed fields and fits, and notes on the choice.

    Where the fixed fields leave nothing to choose, that plan is returned whether it fits or not.

    Raises:
        RequestError: no plan with the fixed fields is legal.
        UnsatisfiedError: no plan with the fixed fields fits (the one that comes nearest is
            named), or the predictor declines.
    """
    from forerun.search import best_plan

    try:
        return best_plan(workload, cluster, predictor, fixed=fixed, global_batch=global_batch)
    except UnsatisfiedError as error:
        return _nearest(predictor, workload, cluster, fixed, global_batch, error)


def planner_of(predictor: Predictor) -> Predictor:
    """Return who tells the plans of one job apart for a predictor: itself, or one that it names."""
    planner: Predictor = getattr(predictor, "planner", predictor)
    return planner


def _nearest(
    predictor: Predictor, workload: Workload, cluster: Cluster, fixed: Mapping[str, Any],
    global_batch: int, error: UnsatisfiedError,
) -> tuple[Plan, tuple[str, ...]]:  # fmt: skip
    """Return the plan that comes nearest to fitting, where it is the one that was asked for."""
    from forerun.search import recommend

    found = recommend(
        workload, [cluster], Objective(aim="time"), Length("steps", 1000, "assumed"), predictor,
        fixed={**fixed, "global_batch": global_batch}, max_front=1,
    )  # fmt: skip
    if not found.legal and fixed:
        # The rule that is broken is said with its numbers; what the search merely never looks at
        # is answered.
        plan = Job(workload, cluster, _with_defaults(cluster, fixed, global_batch)).plan
        return plan, ("the search looks at no such plan: the other fields are at their defaults",)
    if not found.near_misses:
        _raise_refusal(predictor, workload, cluster, _with_defaults(cluster, fixed, global_batch))
        if not found.legal or not _knows_no_memory(predictor, workload, cluster):
            raise error
        plan = _with_defaults(cluster, fixed, global_batch)
        return plan, (
            f"{predictor.name} knows no memory, so that the plan fields which were not given are at"
            " their defaults",
        )
    near = found.near_misses[0]
    plan, fits = near.job.plan, near.estimate.fit_probability
    if found.legal == 1 or set(fixed) >= _DECISIVE:
        return plan, ()
    peak = near.estimate.forecast.peak_bytes[1] if near.estimate.forecast else math.nan
    held = f" with {_text(fixed)}" if fixed else ""
    raise UnsatisfiedError(
        f"a plan for {workload.name} on {cluster.name}{held}",
        f"none of {found.legal:,} legal plans fits; the nearest ({plan}) needs {format_bytes(peak)}"
        f" of {format_bytes(cluster.device.memory_bytes)} a device, {chance_text('fits', fits)}"
        f" where {found.objective.fit_confidence:g} is asked",
        "use more devices, devices with more memory, or another batch or sequence length; for its"
        f" figures all the same: --plan {_text({n: getattr(plan, n) for n in _SHOWN})}",
    )


def _knows_no_memory(predictor: Predictor, workload: Workload, cluster: Cluster) -> bool:
    """Whether the predictor answers, and says nothing of memory."""
    from forerun.domain.plan_columns import PlanColumns
    from forerun.tables import Jobs

    plan = PlanColumns.build(1, dp=cluster.devices, global_batch=cluster.devices)
    answer = predictor.predict(Jobs.grid(workload, cluster, plan))[0]
    return answer.declined is None and math.isnan(answer.fit_probability)


def _raise_refusal(predictor: Predictor, workload: Workload, cluster: Cluster, plan: Plan) -> None:
    """Raise UnsatisfiedError with the predictor's own words where it declines even a usual plan."""
    from forerun.tables import Jobs

    reason = predictor.predict(Jobs.of([Job(workload, cluster, plan)]))[0].declined
    if reason is not None:
        raise UnsatisfiedError(
            f"{workload.name} on {cluster.name}", f"{predictor.name} declines: {reason}",
            "give it runs to learn from (--fit RUNS.csv), or name another predictor",
        )  # fmt: skip


def _text(fields: Mapping[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in fields.items())


def _with_defaults(cluster: Cluster, fixed: Mapping[str, Any], global_batch: int) -> Plan:
    fields = dict(fixed)
    used = math.prod(int(fields.get(name, 1)) for name in ("tp", "pp", "cp"))
    fields.setdefault("dp", max(cluster.devices // used, 1))
    return Plan(global_batch=global_batch, **fields)
