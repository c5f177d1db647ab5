"""Asking: words become nouns: lengths, batches and plan fields, with what was assumed said."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from forerun.domain.hardware import Cluster
from forerun.domain.objective import Limits, Objective
from forerun.domain.plan import ALIASES, FIELDS, Plan, parse_plan, plan_value, unknown_field
from forerun.domain.workload import Length, Workload
from forerun.errors import RequestError, UnknownNameError
from forerun.units import parse_dollars, parse_duration

ASSUMED_STEPS = 1000
LARGEST_COUNT = 2**31 - 1
LONGEST = {"steps": 1e12, "samples": 1e18, "tokens": 1e18, "epochs": 1e9}
_WORLD = ("dp", "tp", "pp", "cp")
# Rows and pictures fill a device with tens; sequences with a few thousand tokens.
_ROWS_PER_DEVICE = 32
_TOKENS_PER_DEVICE = 8192


def plan_fields(plan: str | Mapping[str, Any] | Plan | None) -> dict[str, Any]:
    """Return the plan fields that the caller fixes.

    Raises:
        UnknownNameError: no such field; the nearest is offered.
        RequestError: a value of the wrong kind, or out of range.
    """
    if plan is None:
        return {}
    if isinstance(plan, Plan):
        return plan.as_dict()
    fields: dict[str, Any] = {}
    if isinstance(plan, str):
        fields.update(parse_plan(plan))
    else:
        for name, value in plan.items():
            key = ALIASES.get(str(name).lower(), str(name).lower())
            if key not in FIELDS:
                raise unknown_field(str(name))
            fields[key] = plan_value(key, value)
    Plan(**fields)  # its own checks: ranges and choices
    return fields


def with_count(fields: dict[str, Any], name: str, value: int | None) -> dict[str, Any]:
    """Return the fields with a count that was given beside the plan.

    Raises:
        RequestError: not a whole number above zero, or the plan says another one.
    """
    if value is None:
        return fields
    flag = name.replace("_", " ")
    if not 1 <= value <= LARGEST_COUNT or int(value) != value:
        raise RequestError(
            f"a {flag} of {value}", "not a whole number above zero", f"give a {flag} of 1 or more"
        )
    if fields.get(name, value) != value:
        raise RequestError(
            f"a {flag} of {value}", f"the plan says {name}={fields[name]}", "give it once"
        )
    return {**fields, name: int(value)}


def check_divides(workload: Workload, cluster: Cluster, fields: Mapping[str, Any]) -> None:
    """Raise RequestError where no choice of the other degrees fills the cluster."""
    degrees = {name: int(fields[name]) for name in _WORLD if name in fields}
    used, devices = math.prod(degrees.values()), cluster.devices
    if devices % used == 0:
        return
    named = " x ".join(f"{name}={degree}" for name, degree in degrees.items())
    product = f" = {used} devices" if len(degrees) > 1 else ""
    raise RequestError(
        f"{workload.name} on {cluster.name} with {','.join(f'{k}={v}' for k, v in fields.items())}",
        f"its {devices:,} devices are not divisible by {named}{product}",
        f"choose degrees with a product of {devices:,}, or of a divisor of it",
    )


def batch_for(
    workload: Workload, devices: int, fields: Mapping[str, Any]
) -> tuple[int, tuple[str, ...]]:
    """Return the global batch, samples in a step, and a note where it was not given."""
    if "global_batch" in fields:
        return int(fields["global_batch"]), ()
    split = math.prod(int(fields.get(name, 1)) for name in ("tp", "pp", "cp"))
    replicas = int(fields.get("dp", max(devices // split, 1)))
    least = replicas * int(fields.get("micro_batch", 1))
    usual = workload.default_global_batch
    if usual >= least:
        return usual, (f"global batch {usual}: usual for {workload.name}",)
    if usual and "micro_batch" not in fields and "dp" not in fields:
        return least, (
            f"global batch {least}: one sample a device; {workload.name} usually trains at"
            f" {usual}, and a larger batch may need more samples to the same quality",
        )
    if "micro_batch" in fields:
        return least, (f"global batch {least}: micro_batch x data-parallel replicas",)
    each = _ROWS_PER_DEVICE
    if workload.seq_len > 0:
        each = max(1, min(each, _TOKENS_PER_DEVICE // workload.seq_len))
    samples = "1 sample" if each == 1 else f"{each} samples"
    return replicas * each, (f"global batch {replicas * each}: {samples} a device (assumed)",)


def checked_length(length: Length) -> Length:
    """Return a length. Raises RequestError where it is longer than any training."""
    most = LONGEST[length.unit]
    if length.count > most:
        raise RequestError(
            f"a job of {length.count:.4g} {length.unit}", f"more than {most:.0e}",
            "give the length of one training run",
        )  # fmt: skip
    return length


def length_to_meet(
    workload: Workload, length: Length | None, asked: Limits | Objective
) -> tuple[Length, tuple[str, ...]]:
    """Return how long the job is, and a note where that is assumed.

    No length is assumed where a limit on the whole run is to be met.

    Raises:
        RequestError: as `checked_length`; a deadline or a budget, and no length of the run.
    """
    if length is not None:
        return checked_length(length), ()
    if workload.length is not None:
        return workload.length, ()
    limits = {"deadline": asked.deadline_seconds, "budget": asked.budget_dollars}
    given = [name for name, limit in limits.items() if limit is not None]
    if given:
        raise RequestError(
            f"{workload.name} with a {' and a '.join(given)}",
            "it has no usual length, so that nothing says what must end by then",
            "give --steps, --samples, --tokens or --epochs (in Python: length=)",
        )  # fmt: skip
    return Length("steps", ASSUMED_STEPS, "assumed"), (
        f"{workload.name} has no usual length, so {ASSUMED_STEPS:,} steps are assumed; give"
        " --steps, --samples, --tokens or --epochs",
    )


def limits_of(deadline: str | float | None, budget: str | float | None) -> Limits:
    """Return limits from seconds or text such as `24h`, and dollars or text such as `$5,000`.

    Raises:
        RequestError: one of them is wrong.
    """
    return Limits(
        parse_duration(deadline, "deadline") if isinstance(deadline, str) else deadline,
        parse_dollars(budget) if isinstance(budget, str) else budget,
    )


def known_frameworks() -> tuple[str, ...]:
    """Return the frameworks whose habits the predictors know, as `--framework` takes them.

    One of them is a way to run any of them: `tuned`, with CUDA graphs, nhwc and fused normalisation.
    """
    from forerun.predictors.analytic.constants import FRAMEWORKS

    return tuple(sorted(name for name in FRAMEWORKS if name))


def checked_framework(label: str | None) -> None:
    """Raise UnknownNameError for a framework that is not known; its release may stand beside it.

    Rows of tables may bear any label: theirs are measured names, not a request.
    """
    from forerun.predictors.analytic.constants import framework_key

    if label and not framework_key(label):
        known = known_frameworks()
        raise UnknownNameError(
            "framework", label, known,
            f"({', '.join(known)}; tuned is any of them with CUDA graphs and fused nhwc kernels; leave it out for any other)",
        )  # fmt: skip
