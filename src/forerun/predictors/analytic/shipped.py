"""Shipped constants: what published runs taught, as a small JSON file beside this module.

The file holds only what departs from the priors of `constants`, with what was learned of each
constant and how the file was made (tables, split, seed, commit, command).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from functools import cache
from importlib.resources import files
from typing import Any

from forerun.errors import RequestError
from forerun.predictors.analytic.calibration import Learned
from forerun.predictors.analytic.constants import Constants, Framework

FILE = "constants.json"
FORMAT = "forerun-constants/1"
DIGITS = 4


@cache
def shipped_file() -> dict[str, Any]:
    """Return the shipped file's content. Raises RequestError where it is missing or not it."""
    place = files("forerun.predictors.analytic") / FILE
    try:
        content: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RequestError(
            f"reading the shipped constants {FILE}", str(error), "install forerun again"
        ) from None
    if content.get("format") != FORMAT:
        raise RequestError(
            f"reading the shipped constants {FILE}",
            f"its format is {content.get('format')!r}, this is {FORMAT!r}",
            "refit them with `make constants`",
        )
    return content


def shipped_constants() -> tuple[Constants, tuple[Learned, ...]]:
    """Return the shipped constants, and what was learned of each."""
    content = shipped_file()
    learned = tuple(Learned.from_dict(entry) for entry in content["learned"])
    return with_changes(Constants(), content["constants"]), learned


def changes_of(constants: Constants, prior: Constants | None = None) -> dict[str, Any]:
    """Return the fields that depart from the priors, rounded; of mappings, the keys that do."""
    before, now = asdict(prior or Constants()), asdict(constants)
    return {name: diff for name in now if (diff := _diff(before[name], now[name])) is not None}


def _diff(before: Any, now: Any) -> Any:
    if isinstance(now, Mapping):
        found = {str(k): d for k in now if (d := _diff(before.get(k), now[k])) is not None}
        return found or None
    return None if now == before else round_off(now)


def round_off(value: Any) -> Any:
    """Return a number with `DIGITS` significant digits, anything else as it is."""
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def with_changes(prior: Constants, changes: Mapping[str, Any]) -> Constants:
    """Return the priors with what `changes_of` returned put in."""
    known = {f.name for f in fields(Constants)}
    made: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in known:
            raise RequestError(
                "reading constants", f"{name!r} is no constant", "refit them with `make constants`"
            )
        old = getattr(prior, name)
        if name == "frameworks":
            moved = {k: Framework(**{**asdict(old[k]), **v}) for k, v in value.items()}
            made[name] = {**old, **moved}
        else:
            made[name] = {**old, **value} if isinstance(value, Mapping) else value
    return replace(prior, **made)
