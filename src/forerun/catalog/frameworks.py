"""Frameworks: training software by the names people use, its time profile, and which plans it cannot run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from forerun import packaged
from forerun.arrays import BoolArray
from forerun.domain.plan import BOOLEAN_FIELDS, WORDS, PlanColumns
from forerun.errors import RequestError, UnknownNameError, likely_name


@dataclass(frozen=True)
class Software:
    """A framework.

    Attributes:
        profile: the analytic profile that times it, its own or the nearest.
        words: a label that holds one of them means it.
        cannot: a plan field (any value but off), `field=value`, `task=` or `device=` what begins a generation
            of devices, and why no such plan runs.
    """

    name: str
    profile: str
    words: Sequence[str]
    cannot: Mapping[str, str]

    def refusal(self, fields: Mapping[str, Any]) -> tuple[str, str] | None:
        """Return the first of some plan fields that it cannot run, as text, and why; None where it can."""
        for feature, reason in self.cannot.items():
            if feature == "task=lora" and fields.get("task") == "dpo" and fields.get("lora_rank"):
                return f"lora_rank={fields['lora_rank']}", reason
            name, _, value = feature.partition("=")
            given = fields.get(name)
            found = str(given).lower()
            held = found.startswith(value) if name == "device" else found == value
            if held if value else given is True or int(given or 0) > 1:
                return f"{name}={found}", reason
        return None


@lru_cache(maxsize=1)
def frameworks() -> tuple[Software, ...]:
    """Return all frameworks; the first that a label fits is meant."""
    rows = packaged.table(__file__, "data/frameworks.json")
    return tuple(
        Software(
            row["name"], row["profile"], row["words"],
            {feature: why for key, why in row.get("cannot", {}).items() for feature in key.split()},
        )
        for row in rows
    )  # fmt: skip


def _folded(label: str) -> str:
    return re.sub(r"[\s_]+", "-", label.strip().lower())


@lru_cache(maxsize=4096)
def framework_of(label: str) -> Software | None:
    """Return the framework that a label means, None for none or an unknown one."""
    text = _folded(label)
    return next((s for s in frameworks() if any(word in text for word in s.words)), None)


@lru_cache(maxsize=4096)
def cannot_run(label: str) -> Mapping[str, str]:
    """Return what plans of a framework's label cannot have, and why; nothing where it is not known."""
    found = framework_of(label)
    return {} if found is None else found.cannot


def having(plans: PlanColumns, feature: str) -> BoolArray:
    """Return which plans have a feature of such a table, (n,); none where it is of no plan."""
    name, _, value = feature.partition("=")
    column = getattr(plans, name, None)
    if column is None:
        return np.zeros(len(plans), dtype=np.bool_)
    if value:
        return np.asarray(column == (WORDS[name].index(value) if name in WORDS else int(value)))
    return np.asarray(column > (name not in BOOLEAN_FIELDS))


@lru_cache(maxsize=4096)
def framework_slip(label: str) -> str:
    """Return the framework that a label is likely a slip of, "" where it is none."""
    words = [word for software in frameworks() for word in (software.name, *software.words)]
    near = likely_name(label, words)  # `torchtitn` holds torch too
    meant = framework_of(near) if near and near not in _folded(label) else None
    return "" if meant is None or meant is framework_of(label) else meant.name


def checked_framework(label: str) -> None:
    """Raise UnknownNameError for a framework that is not known; its release may stand beside it."""
    if framework_of(label) is None or framework_slip(label):
        known, slip = [software.name for software in frameworks()], framework_slip(label)
        tuned = "tuned is any of them with CUDA graphs and fused nhwc kernels"
        hint = f"({', '.join(sorted(known))}; {tuned}; leave it out for any other)"
        raise UnknownNameError("framework", label, known, hint, [slip] if slip else None)


def refuse_plan(label: str, fields: Mapping[str, Any]) -> None:
    """Raise RequestError where a framework cannot run some plan fields, a task (and LoRA's rank) or a generation of devices."""
    found = framework_of(label)
    broken = found.refusal(fields) if found else None
    if found is None or broken is None:
        return
    able = [s.name for s in frameworks() if s.name != "tuned" and s.refusal(fields) is None]
    other = f", or name a framework that can ({', '.join(able)})" if able else ""
    name, _, value = broken[0].partition("=")
    todo = f"choose another {name}" if name in ("device", "task") else f"leave {name} out"
    raise RequestError(
        f"{value if name == 'device' else broken[0]} with --framework {label}",
        f"{found.name} cannot run it: {broken[1]}", f"{todo}{other}",
    )  # fmt: skip


def stated_fields(label: str) -> dict[str, int]:
    """Return the plan fields that a framework's label states, as `DeepSpeed ZeRO-3` does."""
    found = re.search(r"zero-?(?:stage-?)?([0-3])(?![0-9])", _folded(label))
    return {"zero_stage": int(found[1])} if found else {}


@lru_cache(maxsize=4096)
def framework_note(label: str) -> str:
    """Return how a framework's label is read and what its plans lack; "" where that says nothing."""
    found = framework_of(label)
    if found is None:
        return ""
    plain = re.search(rf"(?<![a-z]){re.escape(found.name)}(?![a-z])", _folded(label))
    words = "" if plain else f"{label!r} is read as {found.name}"
    if found.name != found.profile:
        words = f"{words or found.name}, timed as {found.profile}"
    lacking = [f for f in found.cannot if not f.startswith(("device=", "task="))]
    lacks = f"{found.name} runs no plan with {', '.join(lacking)}" if lacking else ""
    words = f"framework {words}" if words else ""
    return "; ".join(filter(None, (words, lacks)))
