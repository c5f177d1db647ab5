"""Keys: what makes a run itself: its cells, its provenance, and which of equal ones it is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b, sha256
from typing import Any

import numpy as np

from forerun.errors import RequestError
from forerun.store.kept import PROVENANCE
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
            read[text] = _object(text)
    return [read[text] for text in texts]


def _object(text: str) -> str:
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
