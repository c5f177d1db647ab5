"""Rows of a catalogue file as text, with the place of each field and checked numbers, and their sources."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from forerun.domain.hardware import Fact
from forerun.errors import RequestError, UnknownNameError
from forerun.paths import check_file

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True)
class NumberRange:
    """The range that a number must lie in; `unit` is for the message."""

    low: float
    high: float
    unit: str = ""
    above_low: bool = False
    whole: bool = False

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        lower = "above" if self.above_low else "of at least"
        return f"{kind} {lower} {self.low:g} and at most {self.high:g} {self.unit}".strip()


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a file: its values as stripped text, blanks left out, and where they stand."""

    values: Mapping[str, str]
    file: str
    line: int
    lines: Mapping[str, int] = field(default_factory=dict)

    def get(self, name: str) -> str:
        """Return the text of a field, '' where it is blank or missing."""
        return self.values.get(name, "")

    def at(self, name: str) -> str:
        """Return file, line and field in words, for an error."""
        return f"{self.file}, line {self.lines.get(name, self.line)}, field {name!r}"

    def number(self, name: str, limits: NumberRange, default: float | None = None) -> float:
        """Return a field as a number within its limits, or the default where it is blank. Raises RequestError."""
        text = self.get(name)
        if not text:
            if default is None:
                raise RequestError(self.at(name), "it is missing", f"give {limits}")
            return default
        try:
            value = float(text)
        except ValueError:
            raise RequestError(self.at(name), f"{text!r} is no number", f"give {limits}") from None
        low_ok = value > limits.low if limits.above_low else value >= limits.low
        whole_ok = not limits.whole or value.is_integer()
        if not (math.isfinite(value) and low_ok and value <= limits.high and whole_ok):
            raise RequestError(self.at(name), f"it is {text}", f"give {limits}")
        return value

    def price(self, name: str, limits: NumberRange) -> float | None:
        """Return a field as a number within its limits, or None where it is blank."""
        return self.number(name, limits) if self.get(name) else None

    def check_names(self, known: Iterable[str], kind: str) -> None:
        """Refuse a field that is no known one, naming its place and the nearest known ones."""
        known = list(known)
        for name in self.values:
            if name not in known:
                hint = f"({self.at(name)}; docs/spec.md lists the fields)"
                raise UnknownNameError(f"{kind} field", name, known, hint)


def read_csv(path: Path) -> list[Row]:
    """Return the rows of a CSV file; its first lines may be # comments. Raises RequestError."""
    import csv  # only when a row is needed: names alone are found without it

    check_file(path, f"catalogue file {path}")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return _rows(file, path.name)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RequestError(
            f"catalogue file {path}", f"it cannot be read: {error}", "give a readable CSV file"
        ) from None


def _rows(lines: Iterable[str], name: str) -> list[Row]:
    import csv

    # A comment counts as a blank line, so that the reader knows the line in the file.
    reader = csv.reader("" if text.startswith("#") else text for text in lines)
    header = [column.strip() for column in next(filter(None, reader), [])]
    rows = []
    for cells in reader:
        line = reader.line_num
        if len(cells) > len(header):
            raise RequestError(
                f"{name}, line {line}", f"{len(cells)} fields under {len(header)} columns",
                "quote a field that has a comma in it",
            )  # fmt: skip
        values = {k: v for k, c in zip(header, cells, strict=False) if (v := c.strip())}
        if values:
            rows.append(Row(values, name, line))
    return rows


@lru_cache(maxsize=1)
def known_sources() -> dict[str, Fact]:
    """Return the packaged sources by key."""
    return {
        row.get("key"): Fact(row.get("source"), row.get("verified") == "true")
        for row in read_csv(DATA / "sources.csv")
    }


def fact_of(text: str) -> Fact:
    """Return the fact of a source key; any other text is a source in a user's own words."""
    return known_sources().get(text) or Fact(text)
