"""Cells: a table's rows as values of the database, where they come from, and the key of each.

A key is the hash of a run's cells, its provenance and its job.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b, sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.errors import RequestError
from forerun.store import PROVENANCE
from forerun.store.layout import NUMBERS, REAL
from forerun.tables import Table
from forerun.wire import clean

MOST_CHARACTERS = 512
CHUNK_ROWS = 4096
DIGEST_BYTES = 16


@dataclass(frozen=True)
class Provenance:
    """Where n runs come from: each attribute one value a row, "" where nobody said.

    `fingerprints` holds canonical JSON.
    """

    keys: Sequence[str]
    started: Sequence[str]
    campaigns: Sequence[str]
    points: Sequence[str]
    fingerprints: Sequence[str]

    @staticmethod
    def of(
        table: Table, keys: Sequence[str] | None = None, started: str | Sequence[str] = "",
        campaign: str = "", points: Sequence[str] | None = None,
        fingerprint: Mapping[str, Any] | None = None,
    ) -> tuple[Table, Provenance]:  # fmt: skip
        """Return the table without its provenance columns, and the provenance of its rows.

        Raises:
            RequestError: a list is not as long as the table, a key is blank or too long, or a
                fingerprint is no JSON object.
        """
        n = len(table)
        given: dict[str, Any] = {
            "run_key": keys,
            "run_started": started or None,
            "run_campaign": campaign or None,
            "run_point": points,
            "run_fingerprint": None if fingerprint is None else canonical(fingerprint),
        }
        columns = {name: _column(table, name, given[name], n) for name in PROVENANCE}
        texts = columns["run_fingerprint"]
        prints = {text: _fingerprint(text) for text in dict.fromkeys(texts)}
        columns["run_fingerprint"] = [prints[text] for text in texts]
        for key in columns["run_key"]:
            if len(key) > MOST_CHARACTERS:
                raise RequestError(
                    f"storing a run as {key[:40]!r}...", f"its key has {len(key)} characters",
                    f"give one of at most {MOST_CHARACTERS}",
                )  # fmt: skip
        if keys is not None and not all(columns["run_key"]):
            raise RequestError(
                "storing runs under given keys",
                "a key is blank",
                "give every run a key, or none and let the store make them",
            )
        left = {name: c for name, c in table.columns.items() if name not in PROVENANCE}
        rows = Table(left, n, table.problems, table.lines, table.unread)
        return rows, Provenance(*columns.values())

    def keyed(
        self, start: int, digests: Sequence[bytes], jobs: Sequence[tuple[str, ...]],
        used: Counter[str],
    ) -> list[str]:  # fmt: skip
        """Return the keys of rows from `start` on: given ones, or hashes.

        The second of equal rows gets another key than the first: so the same rows given once more
        get the same keys, and repeats that measured the same figure stay runs of their own.

        digests: of each row's cells. jobs: what tells each row's job, n or none. used: how often each
        hash came so far in this call; it is counted on.
        """
        keys = []
        for row, digest in enumerate(digests, start):
            key = self.keys[row]
            if not key:
                facts = (
                    self.started[row],
                    self.campaigns[row],
                    self.points[row],
                    self.fingerprints[row],
                )
                text = "\x1f".join((*facts, *(jobs[row] if jobs else ())))
                key = blake2b(digest + text.encode(), digest_size=DIGEST_BYTES).hexdigest()
                used[key] += 1
                key = key if used[key] == 1 else f"{key}-{used[key]}"
            keys.append(key)
        return keys


def canonical(value: Mapping[str, Any]) -> str:
    """Return JSON that is the same text for the same value, "" for an empty one.

    Raises:
        RequestError: a value has no JSON form.
    """
    if not value:
        return ""
    try:
        return json.dumps(
            clean(value), sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False
        )
    except (TypeError, ValueError) as error:
        raise RequestError(
            "storing JSON", str(error), "give numbers, texts, lists and mappings"
        ) from None


def hash_of(text: str) -> str:
    """Return the SHA-256 of a text, 64 hexadecimal digits."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _column(table: Table, name: str, given: Any, n: int) -> list[str]:
    """Return one value a row: what the caller gave, else what the table has."""
    if given is None:
        given = table.texts(name) if name in table else ""
    values = [given] * n if isinstance(given, str) else list(map(str, given))
    if len(values) != n:
        raise RequestError(
            f"storing {n} runs", f"{len(values)} values were given for {name}", "give one for each"
        )
    for text in set(values):
        checked_text(text, name)
    return values


def checked_text(text: str, name: str) -> str:
    """Return a text that every database takes. Raises RequestError for a NUL or half a character."""
    if "\0" in text or (not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text)):
        raise RequestError(
            f"storing {name}", "it holds a NUL, or a character that is not Unicode", "take it out"
        )
    return text


def _fingerprint(text: str) -> str:
    """Return a fingerprint as canonical JSON."""
    try:
        value = json.loads(text) if text else {}
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise RequestError(
            f"storing the fingerprint {text[:60]!r}", "it is no JSON object",
            'write {"name": value, ...}, or leave it blank',
        )  # fmt: skip
    return canonical(value)


@dataclass(frozen=True)
class RowBlock:
    """Some rows, ready to be stored.

    Attributes:
        columns: by column of the database, values with None for blanks; `rest` is one of them.
        digests: of each row's cells, whatever the order and the place of its columns.
    """

    columns: Mapping[str, Sequence[Any]]
    digests: Sequence[bytes]


def blocks_of(table: Table) -> Iterator[RowBlock]:
    """Yield the rows of a table in order, some thousands at a time.

    Raises:
        RequestError: a text that no database takes.
    """
    for start in range(0, len(table), CHUNK_ROWS):
        yield _block(table, start, min(start + CHUNK_ROWS, len(table)))


def _block(table: Table, start: int, stop: int) -> RowBlock:
    columns: dict[str, Sequence[Any]] = {}
    marks: list[Sequence[str]] = []  # of each column: what it adds to a row's digest
    rest: list[Sequence[str]] = []  # and to its JSON
    for name in sorted(table.columns):
        values = _values(table.columns[name][start:stop], checked_text(name, "a column's name"))
        if name in REAL:
            columns[name] = values
        else:
            rest.append(_members(values, name))
        mark = _each(values, name, lambda value, name=name: f"{name}\x1f{plain(value)}\x1e")
        if name in table.unread:
            # A cell that could not be read keeps its text beside the blank.
            texts = [str(text) or None for text in table.unread[name][start:stop]]
            other = _each(texts, name, lambda text, name=name: f"{name}\x1f{text}\x1e")
            mark = [b or a for a, b in zip(mark, other, strict=True)]
            rest.append(_members(texts, name, as_texts=True))
        marks.append(mark)
    if rest:
        joined = (",".join(filter(None, parts)) for parts in zip(*rest, strict=True))
        columns["rest"] = [f"{{{text}}}" if text else None for text in joined]
    lines = (
        ("".join(parts) for parts in zip(*marks, strict=True)) if marks else [""] * (stop - start)
    )
    return RowBlock(
        columns, [blake2b(line.encode(), digest_size=DIGEST_BYTES).digest() for line in lines]
    )


def _values(column: NDArray[Any], name: str) -> list[Any]:
    """Return a column's cells as floats and texts, None where blank."""
    if column.dtype == object:
        if name in NUMBERS:
            raise RequestError(
                f"storing the column {name!r}",
                "it holds texts",
                "make the table by Table.from_rows",
            )
        return [None if v is None or v == "" else str(v) for v in column]
    values: list[Any] = column.astype(np.float64).tolist()
    values = [None if v != v else v for v in values]
    numeric = name in NUMBERS or name not in REAL
    return values if numeric else [None if v is None else plain(v) for v in values]


def plain(value: float | str) -> str:
    """Return a cell as the shortest text that reads back as the same number."""
    return value if isinstance(value, str) else repr(value).removesuffix(".0")


def _each(values: Sequence[Any], name: str, write: Any) -> list[str]:
    """Return each cell as text, made once for each distinct one; "" for a blank."""
    distinct = [value for value in dict.fromkeys(values) if value is not None]
    texts = {
        v: write(checked_text(v, f"the column {name!r}") if isinstance(v, str) else v)
        for v in distinct
    }
    texts[None] = ""
    return [texts[value] for value in values]


def _members(values: Sequence[Any], name: str, as_texts: bool = False) -> list[str]:
    """Return each cell as a member of a JSON object, "" for a blank.

    A text that is exactly how its number is written becomes that number (unless `as_texts`): so a
    column of one's own is the same whether it came from CSV, where all is text, or from a table of
    numbers.
    """
    start = f"{json.dumps(name, ensure_ascii=False)}:"

    def write(value: Any) -> str:
        number = None if as_texts else _number(value)
        if number is None:
            return start + json.dumps(value, ensure_ascii=False)
        if math.isinf(number):  # the largest exponents read back as infinite
            return start + ("1e999" if number > 0 else "-1e999")
        return start + (plain(number) if number else repr(number))  # -0 alone would read back as 0

    return _each(values, name, write)


def _number(value: Any) -> float | None:
    """Return the number that a cell is, None where its text would not come back from it."""
    try:
        number = float(value)
    except ValueError:
        return None
    return number if plain(number) == plain(value) and not math.isnan(number) else None


def filled_names(table: Table) -> set[str]:
    """Return the columns that have a cell, also one that could not be read."""
    return {
        name for name, column in table.columns.items()
        if name in table.unread
        or any(cell not in ("", None) and cell == cell for cell in column.tolist())
    }  # fmt: skip
