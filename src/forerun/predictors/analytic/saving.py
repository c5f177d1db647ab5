"""Saving: constants and what was learned of them as readable JSON, and back, every value checked."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from forerun.predictors.analytic.calibration import Learned
from forerun.predictors.analytic.constants import Constants, Framework

DIGITS = 4  # significant ones of a constant; its intervals and spreads have one less
# What a row of `learned` holds, in this order.
COLUMNS = (
    "unit", "value", "low", "high", "prior", "log_sd", "prior_log_sd", "runs", "sources",
)  # fmt: skip
# Families of single workloads and layers: many, and each tells of itself alone.
SCALES = ("workload_scale", "shape_scale")
_COARSE = ("low", "high", "log_sd", "prior_log_sd")
_FRAMEWORK = {f.name for f in fields(Framework)}
_CONSTANTS = {f.name for f in fields(Constants)}


def rows_of(learned: Iterable[Learned]) -> dict[str, list[Any]]:
    """Return what was learned, by name: values in the order of `COLUMNS`, rounded."""
    return {
        entry.name: [
            round_off(values[name], DIGITS - (name in _COARSE)) for name in COLUMNS
        ]
        for entry in learned
        for values in (entry.to_dict(),)
    }  # fmt: skip


def learned_of(rows: Mapping[str, Any]) -> tuple[Learned, ...]:
    """Return what `rows_of` wrote. Raises ValueError where it did not write it."""
    found = []
    for name, row in rows.items():
        if not isinstance(row, list) or len(row) != len(COLUMNS):
            raise ValueError(f"{name} has not the {len(COLUMNS)} values {', '.join(COLUMNS)}")
        values = dict(zip(COLUMNS, row, strict=True))
        for column in COLUMNS[1:-1]:
            _checked(values[column], f"{column} of {name}")
        values["sources"] = tuple(map(str, values["sources"]))
        found.append(Learned(name=name, **values))
    return tuple(found)


def scales_of(learned: Iterable[Learned]) -> dict[str, dict[str, float]]:
    """Return what was learned of single workloads and layers: by family of `SCALES` and by key."""
    found: dict[str, dict[str, float]] = {family: {} for family in SCALES}
    for entry in learned:
        family, _, key = entry.name.partition("[")
        if family in found:
            found[family][key.removesuffix("]")] = entry.value
    return found


def settled_by(learned: Iterable[Learned]) -> dict[str, float]:
    """Return the posterior log standard deviations of what runs identified, by name."""
    return {entry.name: entry.log_sd for entry in learned if entry.identified}


def changes_of(constants: Constants, prior: Constants | None = None) -> dict[str, Any]:
    """Return the fields that depart from the priors, rounded; of mappings, the keys that do."""
    before, now = asdict(prior or Constants()), asdict(constants)
    return {name: diff for name in now if (diff := _diff(before[name], now[name])) is not None}


def _diff(before: Any, now: Any) -> Any:
    if isinstance(now, Mapping):
        found = {str(k): d for k in now if (d := _diff(before.get(k), now[k])) is not None}
        return found or None
    return None if now == before else round_off(now)


def round_off(value: Any, digits: int = DIGITS) -> Any:
    """Return a number with so many significant digits, anything else as it is."""
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def with_changes(prior: Constants, changes: Mapping[str, Any]) -> Constants:
    """Return the priors with saved values put in: all of them, or what `changes_of` returned.

    Raises:
        ValueError: a name that is no constant, or a value that is no number from zero upward.
    """
    made: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in _CONSTANTS:
            raise ValueError(f"{name!r} is no constant")
        old = getattr(prior, name)
        if name == "frameworks":
            made[name] = {**old, **{k: _profile(old, k, v) for k, v in value.items()}}
        elif isinstance(old, Mapping):
            made[name] = {**old, **{k: _checked(v, f"{name}[{k}]") for k, v in value.items()}}
        else:
            made[name] = _checked(value, name)
    return replace(prior, **made)


def _profile(known: Mapping[str, Framework], name: str, values: Mapping[str, Any]) -> Framework:
    if name not in known or not values.keys() <= _FRAMEWORK:
        raise ValueError(f"frameworks[{name}] holds no framework's constants")
    checked = {k: _checked(v, f"{k} of {name or 'other'}") for k, v in values.items()}
    return replace(known[name], **checked)


def _checked(value: Any, name: str) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0.0 <= value < math.inf:
        raise ValueError(f"{name} is {value!r}, no number from zero upward")
    return value


def text_of(values: Mapping[str, Any]) -> str:
    """Return JSON with one line for each member of the groups in it, so that a person can read it."""
    return "{\n" + ",\n".join(f"{json.dumps(k)}: {_group(v)}" for k, v in values.items()) + "\n}\n"


def _group(value: Any) -> str:
    if not isinstance(value, Mapping) or not value:
        return json.dumps(value)
    return (
        "{\n" + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()) + "\n}"
    )
