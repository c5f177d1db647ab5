"""Options of predictors, `generic:mode=faithful:penalty=l1`, and the constants that they start from.

A predictor lists them in `options`; they are arguments of its constructor, or of `with_options`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from forerun import registry
from forerun.contracts import Predictor
from forerun.errors import RequestError, UnknownNameError
from forerun.units import counted

PRIORS, SHIPPED = "priors", "shipped"
STARTS = (SHIPPED, PRIORS)


def has_shipped(kind: Any) -> bool:
    """Return whether a kind of predictor comes with constants fitted to published runs."""
    if not hasattr(kind, "shipped"):
        return False
    return not hasattr(kind, "shipped_made") or kind.shipped_made() is not None


def shipped_made(name: str) -> Mapping[str, Any]:
    """Return how the constants of a registered predictor were made; empty where it has none."""
    kind = registry.load("predictors", name)
    return dict(kind.shipped_made() or {}) if hasattr(kind, "shipped_made") else {}


def started(name: str, start: str = "") -> Predictor:
    """Return a registered predictor, with options where wanted (`generic:mode=faithful`), as it starts.

    start: one of `STARTS`; "" for shipped constants where it has any.

    Raises:
        UnknownNameError: no such predictor, or no such start.
        RequestError: shipped constants are asked for and there are none, or they cannot be read.
    """
    if start and start not in STARTS:
        raise UnknownNameError("start", start, STARTS)
    kind, values = read_spec(name)
    has = start != PRIORS and has_shipped(kind)
    if start == SHIPPED and not has:
        raise nothing_shipped([name])
    if values or not has:
        return configured(kind, values)
    made: Predictor = kind.shipped()
    return made


def nothing_shipped(names: Sequence[str]) -> RequestError:
    """Return the error for shipped constants of predictors that have none."""
    return RequestError(
        "--start shipped", f"{', '.join(names)} comes without constants of its own",
        "leave --start out, or name a predictor that has them",
    )  # fmt: skip


def known_by(predictor: Predictor) -> dict[str, Any]:
    """Return which constants answer, for JSON (`start`, `fitted_runs`); empty where a predictor does not say."""
    start = getattr(predictor, "start", "")
    return {"start": start, "fitted_runs": getattr(predictor, "fitted_runs", 0)} if start else {}


def known_words(known: Mapping[str, Any]) -> str:
    """Return what `known_by` returned in words: `shipped constants, fitted to 12 runs`; or ""."""
    if not known:
        return ""
    words = "shipped constants" if known["start"] == SHIPPED else known["start"]
    return (
        f"{words}, fitted to {counted(known['fitted_runs'], 'run')}"
        if known["fitted_runs"]
        else words
    )


Value = str | int | float | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PredictorOption:
    """One option of a predictor, written `NAME:key=value`.

    The type of the default is that of every value; choices: the texts that it, or each part of a tuple,
    may be; empty allows any.
    """

    name: str
    default: Value
    help: str
    choices: tuple[str, ...] = ()

    def read(self, text: str, spec: str) -> Value:
        """Return the value of a text; parts of a tuple are joined by `+`. Raises RequestError where it is none."""
        several = isinstance(self.default, tuple)
        parts = tuple(text.split("+")) if several else (text,)
        with suppress(ValueError):
            if isinstance(self.default, int | float):
                return type(self.default)(text)
            if not self.choices or {*parts} <= {*self.choices}:
                return parts if several else text
        found = f"{self.name} cannot be {text!r}"
        raise RequestError(f"--predictor {spec}", found, f"give {self.allowed()}")

    def allowed(self) -> str:
        """Return what it may be, in words."""
        joined = " or ".join(self.choices)
        if isinstance(self.default, tuple):
            some = f"some of {', '.join(self.choices)}" if self.choices else "texts"
            return f"{some}, joined by +"
        return joined or {str: "a text", int: "an integer", float: "a number"}[type(self.default)]

    def written(self, value: Value | None = None) -> str:
        """Return a value, by default the default one, as it is written in a specification."""
        value = self.default if value is None else value
        return "+".join(value) if isinstance(value, tuple) else str(value)


def options_of(kind: Any) -> tuple[PredictorOption, ...]:
    """Return the options of a predictor class."""
    return tuple(getattr(kind, "options", ()))


def kind_of(spec: str) -> Any:
    """Return the class of a predictor by name, whatever its options. Raises UnknownNameError."""
    return registry.load("predictors", spec.partition(":")[0])


def read_spec(spec: str) -> tuple[Any, dict[str, Value]]:
    """Return the class and the option values of `NAME` or `NAME:key=value:key=value`.

    Raises:
        UnknownNameError: no such predictor or option.
        RequestError: a part is not `key=value`, or its value is not allowed.
    """
    name, *parts = spec.split(":")
    kind = registry.load("predictors", name)
    known = {option.name: option for option in options_of(kind)}
    values: dict[str, Value] = {}
    for part in parts:
        key, equals, text = part.partition("=")
        if not equals:
            raise RequestError(
                f"--predictor {spec}", f"{part!r} is no key=value",
                f"write {name}:key=value; `forerun predictors {name}` lists the options",
            )  # fmt: skip
        if key not in known:
            if not known:
                raise RequestError(f"--predictor {spec}", f"{name} has no options", f"write {name}")
            raise UnknownNameError(f"option of {name}", key, list(known))
        values[key] = known[key].read(text, spec)
    return kind, values


def configured(kind: Any, values: Mapping[str, Value]) -> Predictor:
    """Return a predictor of a class with some of its options set."""
    make = getattr(kind, "with_options", kind)
    made: Predictor = make(**values) if values else kind()
    return made


def write_spec(name: str, values: Mapping[str, Value]) -> str:
    """Return a predictor with option values as `NAME:key=value:...`. Raises UnknownNameError."""
    known = {option.name: option for option in options_of(registry.load("predictors", name))}
    return ":".join(
        [name, *(f"{key}={known[key].written(value)}" for key, value in values.items())]
    )
