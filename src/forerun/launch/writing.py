"""Writing: the file of a target is its template in this folder, `TARGET.*.j2`, filled with a request."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from forerun.launch.request import LaunchRequest
from forerun.packaged import filled
from forerun.units import counted

_DRIVES, _SCRIPT = "/local_nvme", "train.py"  # placeholders: the user names their own


def write(request: LaunchRequest) -> str:
    """Return the launch configuration of the request's target.

    A template of JSON is written as YAML, which needs no commas.
    """
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
