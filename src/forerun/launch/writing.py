"""Writing: the file of a target is its template in this folder, `TARGET.*.j2`, filled with a request."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from forerun.launch.request import LaunchRequest, refusal
from forerun.packaged import filled
from forerun.units import counted

_DRIVES, _SCRIPT = "/local_nvme", "train.py"  # placeholders: the user names their own


def write(request: LaunchRequest) -> str:
    """Return the launch configuration of the request's target.

    A template of JSON is written as YAML, which needs no commas. Raises RequestError for a plan that the target
    cannot run.
    """
    if (check := _CHECKS.get(request.target)) is not None:
        check(request)
    job, (template,) = request.job, Path(__file__).parent.glob(f"{request.target}.*.j2")
    filters: Mapping[str, Callable[..., str]] = {
        "quote": shlex.quote, "yaml": _yaml, "counted": counted,
        "header": lambda text: request.header(*text.strip("\n").split("\n")),
    }  # fmt: skip
    text = filled(
        template, filters=filters, request=request, plan=job.plan, workload=job.workload,
        shape=job.workload.shape, cluster=job.cluster, drives=_DRIVES,
        script=request.script or _SCRIPT,
    )  # fmt: skip
    if template.suffixes[0] == ".json":
        import yaml

        return json.dumps(yaml.safe_load(text), indent=2) + "\n"
    return text


def _yaml(value: Any) -> str:
    """Return a text, number or mapping as YAML, its fields in their order."""
    import yaml

    text = str(yaml.safe_dump(value, sort_keys=False, width=math.inf))
    return text.removesuffix("\n...\n").rstrip("\n")


def _dividing(layers: int, pp: int) -> str:
    """Return the plan of the most stages, at most pp and a divisor of it, into which layers divide."""
    stages = next(n for n in range(pp, 0, -1) if pp % n == 0 and layers % n == 0)
    return f"pp={stages},vpp=1"


def _check_megatron(request: LaunchRequest) -> None:
    plan, layers = request.job.plan, request.job.workload.shape.layers
    stages = plan.pp * plan.vpp
    # Embedding and loss may count as a layer each.
    if layers % stages and (layers + 2) % stages:
        found = f"{layers} layers do not divide into {stages} equal stages"
        refusal("megatron", f"pp={plan.pp}", found, fixed=_dividing(layers, plan.pp))


def _check_torchtitan(request: LaunchRequest) -> None:
    plan, layers = request.job.plan, request.job.workload.shape.layers
    shard = plan.dp if plan.zero_stage >= 2 else 1
    if (shard * plan.cp * plan.tp) % plan.ep:
        found = "its experts lie on the ranks that shard"
        refusal("torchtitan", f"ep={plan.ep} and zero_stage=0", found, fixed="zero_stage=2")
    stages = plan.pp * plan.vpp
    if plan.vpp > 1 and math.ceil(layers / math.ceil(layers / stages)) != stages:
        found = f"{layers} layers do not divide into {stages} stages"
        refusal("torchtitan", f"vpp={plan.vpp}", found, fixed=_dividing(layers, plan.pp))


def _check_deepspeed(request: LaunchRequest) -> None:
    plan = request.job.plan
    if plan.pp > 1 and plan.zero_stage > 1:
        asked = f"zero_stage={plan.zero_stage} and pp={plan.pp}"
        refusal("deepspeed", asked, "its pipeline takes ZeRO up to stage 1", fixed="zero_stage=1")


_CHECKS: Mapping[str, Callable[[LaunchRequest], None]] = {
    "deepspeed": _check_deepspeed, "megatron": _check_megatron, "torchtitan": _check_torchtitan,
}  # fmt: skip
