"""Cells: a table's rows as values of the database, and what tells one row from another.

Keys: what makes a run itself: its cells, its provenance, and which of equal ones it is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b, sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.errors import RequestError
from forerun.store.kept import PROVENANCE
from forerun.store.layout import NUMBERS, TEXTS
from forerun.tables import Table
from forerun.wire import clean

MOST_CHARACTERS = 512


@dataclass(frozen=True)
class Origins:
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
        table: Table, keys: Sequence[str] | None, started: str | Sequence[str], campaign: str,
        points: Sequence[str] | None, fingerprint: Mapping[str, Any] | None,
    ) -> tuple[Table, Origins]:  # fmt: skip
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
        columns["run_fingerprint"] = _objects(columns["run_fingerprint"])
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
        return Table(left, n, table.problems, table.lines, table.unread), Origins(*columns.values())


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
        values = [str(v) for v in table.texts(name)] if name in table else [""] * n
    elif isinstance(given, str):
        values = [given] * n
    else:
        values = [str(v) for v in given]
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


def _objects(texts: Sequence[str]) -> list[str]:
    """Return fingerprints as canonical JSON, each distinct text read once."""
    read = {"": ""}
    for text in dict.fromkeys(texts):
        if text:
            read[text] = _json_object(text)
    return [read[text] for text in texts]


def _json_object(text: str) -> str:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise RequestError(
            f"storing the fingerprint {text[:60]!r}", "it is no JSON object",
            'write {"name": value, ...}, or leave it blank',
        )  # fmt: skip
    return canonical(value)


class Keys:
    """Gives keys to the rows of one call: to the second of two equal rows another than the first.

    So the same rows given once more get the same keys, and repeats that measured the same figure
    stay runs of their own.
    """

    def __init__(self) -> None:
        self._seen: dict[bytes, int] = {}

    def of(self, digest: bytes, *facts: str) -> str:
        """Return the key of a row.

        Args:
            digest: of its cells.
            facts: what else it is known by.
        """
        whole = blake2b(digest + "\x1f".join(facts).encode(), digest_size=16)
        base = whole.digest()
        count = self._seen[base] = self._seen.get(base, 0) + 1
        return whole.hexdigest() if count == 1 else f"{whole.hexdigest()}-{count}"


def ids_column(index: Any, ids: Sequence[int | None]) -> list[int | None]:
    """Return each row's id of what it shares, None where its position is -1."""
    table = np.array([*ids, None], dtype=object)  # position -1 is the last
    chosen: list[int | None] = table[np.asarray(index, dtype=np.intp)].tolist()
    return chosen


CHUNK_ROWS = 4096
DIGEST_BYTES = 16
REAL = frozenset(TEXTS) | frozenset(NUMBERS)
_NUMBERS = frozenset(NUMBERS)


@dataclass(frozen=True)
class Cells:
    """Some rows, ready to be stored.

    Attributes:
        columns: by column of the database, values with None for blanks; `rest` is one of them.
        digests: of each row's cells, whatever the order and the place of its columns.
    """

    columns: Mapping[str, Sequence[Any]]
    digests: Sequence[bytes]


def cells_of(table: Table) -> Iterator[Cells]:
    """Yield the rows of a table in order, some thousands at a time.

    Raises:
        RequestError: a text that no database takes.
    """
    for start in range(0, len(table), CHUNK_ROWS):
        yield _chunk(table, start, min(start + CHUNK_ROWS, len(table)))


def _chunk(table: Table, start: int, stop: int) -> Cells:
    columns: dict[str, Sequence[Any]] = {}
    said: list[Sequence[str]] = []  # of each column: what it adds to a row's digest
    rest: list[Sequence[str]] = []  # and to its JSON
    for name in sorted(table.columns):
        values = _values(table.columns[name][start:stop], name)
        texts = _written(values, name)
        marks = _in_digest(values, name, texts)
        unread = table.unread.get(name)
        if name in REAL:
            columns[name] = values
        else:
            rest.append(_in_json(values, name, texts))
        if unread is not None:
            # A cell that could not be read keeps its text beside the blank.
            told = [str(text) or None for text in unread[start:stop]]
            texts = _written(told, name)
            marks = [b or a for a, b in zip(marks, _in_digest(told, name, texts), strict=True)]
            rest.append(_as_texts(told, name))
        said.append(marks)
    n = stop - start
    if rest:
        columns["rest"] = [_object(parts) for parts in zip(*rest, strict=True)]
    lines = ("".join(parts) for parts in zip(*said, strict=True)) if said else [""] * n
    return Cells(columns, [_digest(line) for line in lines])


def _digest(line: str) -> bytes:
    try:
        return blake2b(line.encode(), digest_size=DIGEST_BYTES).digest()
    except UnicodeEncodeError as error:
        raise RequestError(
            "storing runs",
            f"a text is not Unicode: {error}",
            "take the half character out of it (text.encode(errors='replace'))",
        ) from None


def _values(column: NDArray[Any], name: str) -> list[Any]:
    """Return a column's cells as floats and texts, None where blank."""
    if column.dtype == object:
        if name in _NUMBERS:
            raise RequestError(
                f"storing the column {name!r}",
                "it holds texts",
                "make the table by Table.from_rows",
            )
        return [None if v is None or v == "" else v if type(v) is str else str(v) for v in column]
    numbers = column.astype(np.float64)
    values: list[Any] = numbers.tolist()
    if np.isnan(numbers).any():
        values = [None if v != v else v for v in values]
    return values if name not in TEXTS else [None if v is None else plain(v) for v in values]


def plain(value: float | str) -> str:
    """Return a cell as the shortest text that reads back as the same number."""
    return value if isinstance(value, str) else repr(value).removesuffix(".0")


def _written(values: Sequence[Any], name: str) -> dict[Any, str]:
    """Return each distinct cell as text. Raises RequestError where no database takes it."""
    texts = {value: plain(value) for value in dict.fromkeys(values) if value is not None}
    for text in texts.values():
        if "\0" in text:
            raise RequestError(
                f"storing the column {name!r}", "a text holds a NUL character", "take it out"
            )
    return texts


def _in_digest(values: Sequence[Any], name: str, texts: Mapping[Any, str]) -> list[str]:
    """Return what each cell adds to its row's digest, "" for a blank."""
    said = {value: f"{name}\x1f{text}\x1e" for value, text in texts.items()}
    said[None] = ""
    return [said[value] for value in values]


def _in_json(values: Sequence[Any], name: str, texts: Mapping[Any, str]) -> list[str]:
    """Return each cell as a member of a JSON object, "" for a blank.

    A text that is exactly how its number is written becomes that number: so a column of one's own
    is the same whether it came from CSV, where all is text, or from a table of numbers.
    """
    start = f"{json.dumps(name, ensure_ascii=False)}:"
    said: dict[Any, str] = {None: ""}
    for value, text in texts.items():
        number = _number(value)
        said[value] = start + (
            json.dumps(text, ensure_ascii=False) if number is None else _json_number(number, text)
        )
    return [said[value] for value in values]


def _as_texts(values: Sequence[str | None], name: str) -> list[str]:
    """Return texts as members of a JSON object, "" for a blank; what looks like a number too."""
    start = f"{json.dumps(name, ensure_ascii=False)}:"
    return ["" if v is None else start + json.dumps(v, ensure_ascii=False) for v in values]


def _number(value: Any) -> float | None:
    """Return the number that a cell is, None where its text would not come back from it."""
    if isinstance(value, float):
        return value
    try:
        number = float(value)
    except ValueError:
        return None
    return number if plain(number) == value and not math.isnan(number) else None


def _json_number(value: float, text: str) -> str:
    """Return a number that JSON can hold; the largest exponents read back as infinite."""
    if math.isinf(value):
        return "1e999" if value > 0 else "-1e999"
    return text if value else repr(value)  # -0 alone would read back as 0


def _object(parts: Sequence[str]) -> str | None:
    members = [part for part in parts if part]
    return f"{{{','.join(members)}}}" if members else None


def filled_names(table: Table) -> set[str]:
    """Return the columns that have a cell, also one that could not be read."""
    return {
        name for name, column in table.columns.items()
        if name in table.unread
        or any(cell not in ("", None) and cell == cell for cell in column.tolist())
    }  # fmt: skip
