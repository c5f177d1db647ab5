"""Shipped constants: what published runs taught, as two small JSON files beside this module.

`constants.json` holds only what departs from the priors of `constants`, with what was learned of
each constant and how it was made (tables, split, seed, commit, command). Scales of single workloads
and layers stand where they were learned; under `constants` are those that too few runs spoke of to
be worth a line. `taught_rows.json` holds
fingerprints of the runs that taught, so that nobody is judged on them by mistake.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from forerun.errors import RequestError
from forerun.predictors.analytic.calibration import Learned
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.saving import learned_of, scales_of, settled_by, with_changes

FILE, ROWS_FILE = "constants.json", "taught_rows.json"
FORMAT = "forerun-constants/2"


def place() -> Traversable:
    """Return the folder that the files lie in."""
    return files("forerun.predictors.analytic")


def has_shipped() -> bool:
    """Return whether constants come with this package; a checkout may hold none yet."""
    return (place() / FILE).is_file()


def shipped_constants() -> tuple[Constants, tuple[Learned, ...]]:
    """Return the shipped constants, and what was learned of each.

    Raises:
        RequestError: the file is missing, or not one of this format.
    """
    content = _content(FILE)
    try:
        learned = learned_of(content["learned"])
        constants = with_changes(
            with_changes(Constants(), content["constants"]), scales_of(learned)
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(FILE, str(error)) from None
    return replace(constants, settled=settled_by(learned)), learned


def shipped_made() -> Mapping[str, Any]:
    """Return how the file was made: tables with counts, split, seed, commit, date and command.

    Raises as `shipped_constants`.
    """
    made: Mapping[str, Any] = _content(FILE)["made"]
    return made


def shipped_rows() -> Mapping[str, str]:
    """Return the fingerprints of the runs that taught, as `tables.fingerprints` packs them, by table.

    Raises:
        RequestError: the file is missing, of another format, or made with other constants.
    """
    content = _content(ROWS_FILE)
    made = shipped_made()
    if content.get("made") != {name: made[name] for name in ("date", "commit")}:
        raise _unreadable(ROWS_FILE, f"it was not made with {FILE}")
    rows: Mapping[str, str] = content["rows"]
    return rows


def _content(name: str) -> dict[str, Any]:
    return _read(name, str(place()))


@cache
def _read(name: str, folder: str) -> dict[str, Any]:
    """Return a file's content, read once; `folder` tells where it lies."""
    file = place() / name
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        found = content.get("format")
    except (OSError, ValueError, AttributeError) as error:
        raise _unreadable(file.name, str(error)) from None
    if found != FORMAT:
        raise _unreadable(file.name, f"its format is {found!r}, this is {FORMAT!r}")
    return content


def _unreadable(name: str, found: str) -> RequestError:
    return RequestError(
        f"reading the shipped {name}", found,
        "install forerun again (in a checkout: `make constants`), or start from the priors with"
        " --start priors",
    )  # fmt: skip
