"""Saved predictors: how they are written as JSON and read back, and the error where they cannot be."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, ClassVar, Self, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from forerun import registry
from forerun.contracts import Predictor
from forerun.domain.forecast import Forecasts
from forerun.errors import RequestError
from forerun.tables import Jobs

Made = TypeVar("Made")


def read_saved(
    text: str, what: str, version: int, made: Callable[[Mapping[str, Any]], Made]
) -> Made:
    """Return what `made` makes of a saved predictor's content, `what` in words: "an analytic model".

    Raises:
        RequestError: `made` raises ValueError, KeyError, TypeError or AttributeError, or the content is of
            another version.
    """
    asked = f"reading {what}"
    try:
        saved = json.loads(text)
        found = saved.get("version", 1)
        if found == version:
            return made(saved)
    except ValueError as error:
        raise RequestError(asked, f"not its JSON: {error}", "fit it again") from None
    except (LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        shape = "not its JSON: a part is missing, or of another shape"
        raise RequestError(asked, shape, "fit it again") from None
    raise RequestError(asked, f"its version is {found}, this is {version}", "fit it again")


class SavedPredictor(ABC):
    """A predictor that is a dataclass of plain values, arrays and dataclasses, and so can be saved.

    version: of the saved form.
    """

    name: ClassVar[str]
    version: ClassVar[int]

    @abstractmethod
    def predict(self, jobs: Jobs) -> Forecasts:
        """Return n forecasts for n jobs; a declined row carries its reason and NaN."""

    def declines(self, jobs: Jobs) -> list[str | None]:
        """Return for each job why it has no answer, or None."""
        return list(self.predict(jobs).declined)

    def to_json(self) -> str:
        """Return the predictor as JSON text."""
        content = {f.name: plain(getattr(self, f.name)) for f in fields(self)}  # type: ignore[arg-type]
        return json.dumps({"predictor": self.name, "version": self.version, **content})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return a saved predictor. Raises RequestError where it is not its JSON, or of another version."""

        def made(saved: Mapping[str, Any]) -> Any:
            if saved["predictor"] != cls.name:
                raise ValueError(f"it is of {saved['predictor']!r}")
            hints = get_type_hints(cls) | cls._types()
            return cls(**{f.name: restored(hints[f.name], saved[f.name]) for f in fields(cls)})  # type: ignore[arg-type]

        found: Self = read_saved(text, f"a saved {cls.name} model", cls.version, made)
        return found

    @classmethod
    def _types(cls) -> dict[str, Any]:
        """Return the types of fields whose annotation is a type variable."""
        return {}


def plain(value: Any) -> Any:
    """Return predictors, dataclasses, mappings, arrays and plain values as plain values for JSON."""
    if hasattr(value, "to_json"):
        return json.loads(value.to_json())
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: plain(one) for key, one in value.items()}
        return [[plain(key), plain(one)] for key, one in value.items()]
    if isinstance(value, tuple | list | frozenset):
        return [plain(one) for one in value]
    return value.tolist() if isinstance(value, np.ndarray) else value


def restored(kind: Any, value: Any) -> Any:
    """Return a value of an annotated type from its JSON.

    Raises:
        KeyError, TypeError or ValueError: it is not that.
        RequestError: a predictor in it is of another version.
    """
    if kind is Predictor:
        kind = registry.load("predictors", value["predictor"])
    if hasattr(kind, "from_json"):
        return kind.from_json(json.dumps(value))
    origin, inner = get_origin(kind), get_args(kind)
    if origin is UnionType:  # of a class and None, or of several classes with other fields each
        if value is None:
            return None
        alike = [k for k in inner if is_dataclass(k) and {f.name for f in fields(k)} == set(value)]
        return restored((alike or inner)[0], value)
    if origin is np.ndarray:
        array = np.array(value, dtype=get_args(inner[1])[0])
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError("a number is not finite")
        return array
    if origin is frozenset:
        return frozenset(restored(inner[0], one) for one in value)
    if origin is tuple:
        kinds = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        return tuple(restored(k, one) for k, one in zip(kinds, value, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        pairs = value.items() if isinstance(value, Mapping) else value
        return {restored(inner[0], key): restored(inner[1], one) for key, one in pairs}
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{f.name: restored(hints[f.name], value[f.name]) for f in fields(kind)})
    return _scalar(kind, value) if kind in (str, bool, int, float) else value


def _scalar(kind: type, value: Any) -> Any:
    number = kind is float and type(value) is int
    if not (number or type(value) is kind) or (kind is float and not math.isfinite(value)):
        raise ValueError(f"{value!r:.40} is no finite {kind.__name__}")
    return kind(value)
