"""Kinds: option values as words become numbers with units; a wrong one is told in three parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forerun.errors import RequestError
from forerun.tables.files import PARQUET_ENDINGS
from forerun.units import parse_count, parse_dollars, parse_duration

LARGEST_WHOLE = 2**31 - 1


if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # older releases of click have no type argument


class Kind(_ParamType):
    """An option's kind by a function from text (and the option's name) to a value."""

    def __init__(self, name: str, read: Callable[[str, str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value. Raises RequestError where the text is none of this kind."""
        if not isinstance(value, str):
            return value
        return self._read(value, param.opts[-1] if param else self.name)


def _whole(text: str, asked: str) -> int:
    try:
        number = parse_count(text, asked)
    except RequestError:
        number = math.nan  # its advice is for lengths: fractions and millions
    if not number.is_integer() or number > LARGEST_WHOLE:
        raise RequestError(
            f"{asked} {text!r}", f"not a whole number from 1 to {LARGEST_WHOLE:,}",
            "write a whole number, for example 256",
        )  # fmt: skip
    return int(number)


def _from_zero(text: str, asked: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise RequestError(
            f"{asked} {text!r}", "not a number from zero upward", "write a number, for example 0.05"
        )
    return number


def _probability(text: str, asked: str) -> float:
    try:
        number = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        number = math.nan
    if not 0 < number < 1:
        raise RequestError(
            f"{asked} {text!r}", "not a probability", "write a number between 0 and 1 such as 0.9"
        )
    return number


def _price(text: str, asked: str) -> float:
    return 0.0 if text.strip() in ("0", "0.0", "$0") else parse_dollars(text, asked)


def _list(text: str, asked: str) -> tuple[str, ...]:
    items = tuple(part.strip() for part in text.split(",") if part.strip())
    if not items:
        raise RequestError(f"{asked} {text!r}", "the list is empty", "write names with commas")
    return items


def _wholes(text: str, asked: str) -> tuple[int, ...]:
    return tuple(_whole(item, asked) for item in _list(text, asked))


WHOLE = Kind("number", _whole)
WHOLES = Kind("number,...", _wholes)
COUNT = Kind("count", parse_count)
DURATION = Kind("duration", parse_duration)
DOLLARS = Kind("dollars", _price)
BUDGET = Kind("dollars", parse_dollars)
PROBABILITY = Kind("probability", _probability)
FROM_ZERO = Kind("number", _from_zero)
NAMES = Kind("name,...", _list)


TABLES = (".csv", *PARQUET_ENDINGS)


def writable(
    path: Path | None,
    asked: str = "writing",
    endings: Sequence[str] = (),
    inputs: Iterable[str | Path] = (),
) -> Path | None:
    """Return a path that can be written, before anything is computed.

    Args:
        path: the file, or None.
        asked: for the message.
        endings: what a new or plain file's name may end in; any where empty.
        inputs: files that this command reads.

    Raises:
        RequestError: it is a folder or one of the inputs, its folder is missing or may not be
            written, or its ending is another format's.
    """
    if path is None:
        return None
    asked = f"{asked} {path}"
    if path.is_dir():
        raise RequestError(asked, "it is a folder", "name a file")
    if not path.parent.is_dir():
        raise RequestError(asked, f"there is no folder {path.parent}", "make it first")
    import os

    if not os.access(path.parent, os.W_OK):
        raise RequestError(
            asked, f"the folder {path.parent} may not be written", "choose another folder"
        )
    if any(path.resolve() == Path(given).resolve() for given in inputs):
        raise RequestError(asked, "it is read by this very command", "name another file")
    plain = path.is_file() or not path.exists()  # a device or a pipe may be named anything
    if endings and plain and path.suffix.lower() not in endings:
        ending = f"it ends in {path.suffix!r}" if path.suffix else "its name has no ending"
        raise RequestError(asked, ending, f"name a file that ends in {' or '.join(endings)}")
    return path


FILE = click.Path(path_type=Path)
