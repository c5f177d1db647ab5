"""Models: a predictor by name, or as a model file that `fit` wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from forerun import registry
from forerun.contracts import Predictor
from forerun.errors import RequestError

if TYPE_CHECKING:
    from forerun.advisor.given_runs import MadeRuns


def model_text(predictor: Predictor, made: MadeRuns | None = None) -> str:
    """Return a fitted predictor, and which jobs taught it, as JSON text.

    Raises:
        RequestError: it has no such form.
    """
    to_json = getattr(predictor, "to_json", None)
    if to_json is None:
        raise RequestError(
            f"saving the predictor {predictor.name!r}", "it has no JSON form",
            "use one that has, or fit it anew each time with --fit",
        )  # fmt: skip
    text = str(to_json())
    return text if made is None else made.written_into(text)


def load_model(path: Path) -> Predictor:
    """Return the predictor of a model file. Raises RequestError where it is none."""
    asked = f"reading the model {path}"
    text, name = read_model(path)
    kind = registry.load("predictors", name)
    if not hasattr(kind, "from_json"):
        raise RequestError(asked, f"{name} cannot be loaded from a file", "fit it anew with --fit")
    try:
        loaded: Predictor = kind.from_json(text)
    except RequestError as error:
        raise RequestError(asked, error.found, error.next_step) from None
    return loaded


def read_model(path: Path) -> tuple[str, str]:
    """Return the text of a model file, and the name of its predictor."""
    asked = f"reading the model {path}"
    try:
        text = path.read_text(encoding="utf-8")
        return text, str(json.loads(text)["predictor"])
    except OSError as error:
        raise RequestError(asked, str(error.strerror), "check the path") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise RequestError(
            asked, "it is not a whole model that `forerun fit` wrote", "fit it again"
        ) from None
