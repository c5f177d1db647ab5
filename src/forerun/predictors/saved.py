"""Saved predictors: how their JSON is read back, and what is said where it cannot be."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from forerun.errors import RequestError

Made = TypeVar("Made")


def read_saved(
    text: str, what: str, version: int, made: Callable[[Mapping[str, Any]], Made]
) -> Made:
    """Return what `made` makes of a saved predictor's content.

    Args:
        text: the JSON that its `to_json` wrote.
        what: it is, in words: "an analytic model".
        version: of the format that `made` reads; a file without one is of the first.
        made: may raise ValueError, KeyError, TypeError or AttributeError for a wrong content.

    Raises:
        RequestError: not this predictor's JSON, or of another version.
    """
    asked = f"reading {what}"
    try:
        saved = json.loads(text)
        found = saved.get("version", 1)
        if found == version:
            return made(saved)
    except ValueError as error:
        raise RequestError(asked, f"not its JSON: {error}", "fit it again") from None
    except (KeyError, TypeError, AttributeError):
        shape = "not its JSON: a part is missing, or of another shape"
        raise RequestError(asked, shape, "fit it again") from None
    raise RequestError(asked, f"its version is {found}, this is {version}", "fit it again")
