"""BestPlan: the fastest legal plan of one job that fits in memory: every plan scored once, and the least taken."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from forerun.contracts import Predictor
from forerun.domain.forecast import is_none
from forerun.domain.hardware import Cluster
from forerun.domain.job import Job
from forerun.domain.objective import Objective
from forerun.domain.plan import Plan
from forerun.domain.quantiles import at_probability
from forerun.domain.workload import Workload
from forerun.errors import UnsatisfiedError
from forerun.search.score import burden, predict_briefly, simplest, usable_bytes
from forerun.search.space import Space, refuse_fixed
from forerun.tables import Jobs
from forerun.units import chance_text, counted, format_bytes

# Whoever states all of these has decided how much memory a device needs.
_DECISIVE = frozenset(("dp", "tp", "pp", "micro_batch", "zero_stage", "recompute"))
_FITS = Objective().fit_confidence
_SHOWN = ("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch", "zero_stage", "recompute")


def best_plan(
    workload: Workload,
    cluster: Cluster,
    predictor: Predictor,
    *,
    fixed: Mapping[str, Any],
    global_batch: int,
) -> tuple[Plan, str]:
    """Return the fastest plan that holds the fixed fields and fits, and a note on how it was chosen.

    One legal plan is returned as it is, without a forecast and without a note; so is the plan that
    comes nearest where the fixed fields decide its memory. Where the predictor knows no memory, open
    fields are at their defaults.

    Raises:
        RequestError: no plan with the fixed fields is legal.
        UnsatisfiedError: none fits (the one that comes nearest is named), or the predictor declines.
    """
    predictor = getattr(predictor, "planner", predictor)  # one that tells plans of a job apart
    space = Space(workload, (cluster,), (global_batch,), dict(fixed))
    plans, _, refused = next(space.worlds())
    if len(plans) == 1:
        return plans[0], ""
    if not len(plans):
        return _not_searched(space, refused)
    jobs = Jobs.grid(workload, cluster, plans)
    forecasts = predict_briefly(predictor, jobs)
    seconds, fits = forecasts.seconds[:, 1], forecasts.fit_probability
    rows = np.flatnonzero(np.isfinite(seconds) & (fits >= _FITS))
    if len(rows):
        plan = plans[int(rows[simplest(seconds[rows], burden(plans.take(rows)))])]
        free = "the plan was" if not fixed else f"plan fields other than {', '.join(fixed)} were"
        names = [name for name in (*_SHOWN, "sequence_parallel") if name not in fixed]
        chosen = " ".join(f"{name}={str(getattr(plan, name)).lower()}" for name in names)
        return plan, f"{free} chosen by search among {counted(len(plans), 'legal plan')}: {chosen}"
    if not is_none(forecasts.declined).any():
        raise UnsatisfiedError(
            f"{workload.name} on {cluster.name}",
            f"{predictor.name} declines: {forecasts.declined[0]}",
            "give it runs to learn from (--fit RUNS.csv), or name another predictor",
        )
    if np.isnan(fits).all():
        return _usual(space), (
            f"{predictor.name} knows no memory, so that the plan fields which were not given are at"
            " their defaults"
        )
    peaks = forecasts.peak_bytes
    near = int(np.nanargmin(at_probability(peaks, _FITS) / usable_bytes(jobs, forecasts)))
    if set(fixed) >= _DECISIVE:
        return plans[near], ""
    held = f" with {_text(fixed)}" if fixed else ""
    raise UnsatisfiedError(
        f"a plan for {workload.name} on {cluster.name}{held}",
        f"none of {len(plans):,} legal plans fits; the nearest ({plans[near]}) needs"
        f" {format_bytes(peaks[near, 1])} of {format_bytes(cluster.device.memory_bytes)} a device,"
        f" {chance_text('fits', float(fits[near]))} where {_FITS:g} is asked",
        "use more devices, devices with more memory, or another batch or sequence length; for its"
        f" figures all the same: --plan {_text({n: getattr(plans[near], n) for n in _SHOWN})}",
    )


def _not_searched(space: Space, refused: dict[str, int]) -> tuple[Plan, str]:
    """Return a legal plan that the search leaves out, where all fixed fields state it."""
    refuse_fixed(space, refused)
    if space.fixed:
        plan = Job(space.workload, space.clusters[0], _usual(space)).plan
        return plan, "the search looks at no such plan: the other fields are at their defaults"
    reasons = "; ".join(f"{reason} ({n:,} plans)" for reason, n in [*refused.items()][:3])
    raise UnsatisfiedError(
        f"a plan for {space.workload.name} on {space.clusters[0].name}",
        f"no legal plan: {reasons}", "raise the global batch, or use fewer devices",
    )  # fmt: skip


def _usual(space: Space) -> Plan:
    """Return the fixed fields with all others at their defaults, dp filling the cluster."""
    fields = dict(space.fixed)
    used = math.prod(int(fields.get(name, 1)) for name in ("tp", "pp", "cp"))
    fields.setdefault("dp", max(space.clusters[0].devices // used, 1))
    return Plan(global_batch=space.global_batches[0], **fields)


def _text(fields: Mapping[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in fields.items())
