"""Entries: one predictor on one table by one split, and what tells that it need not be judged again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib import resources
from importlib.metadata import version
from typing import Any

import numpy as np

from forerun.evaluate.evaluation import Score
from forerun.tables import Table

FORMAT = 1
# Folders that no figure depends on.
_NO_MATTER = ("cli", "advisor", "search", "server", "systems", "testing", "__pycache__")
_SOURCES = (".py", ".json", ".csv", ".yaml", ".toml")


@dataclass(frozen=True)
class Key:
    """What an entry's figures depend on; equal keys have equal figures.

    Attributes:
        table: name; table_code: of its content (`table_code`).
        predictor, split, seed, folds, start: as they were asked for.
        code: of the program (`program_code`).
    """

    table: str
    table_code: str
    predictor: str
    split: str
    seed: int
    folds: int
    start: str
    code: str


@dataclass(frozen=True)
class Entry:
    """A predictor's figures on a table, or why there are none.

    Attributes:
        score: None where it could not be judged.
        reason: why there is no figure; "" where there is one.
        defect: whether the reason is a mistake of the predictor's code; such an entry is not kept.
        notes: what must be known of how the table was divided.
        start: what the predictor knew before it was fitted.
        seconds: of a core, that fitting and answering took, over all folds.
        version, date: of the program that judged, and when.
    """

    key: Key
    score: Score | None
    reason: str = ""
    defect: bool = False
    notes: tuple[str, ...] = ()
    start: str = ""
    seconds: float = 0.0
    version: str = ""
    date: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, NaN as None."""
        return {
            "format": FORMAT, **vars(self.key),
            "score": None if self.score is None else self.score.as_dict(),
            "reason": self.reason, "defect": self.defect, "notes": list(self.notes),
            "started": self.start, "seconds": round(self.seconds, 3), "version": self.version,
            "date": self.date,
        }  # fmt: skip

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Entry:
        """Return the entry that `as_dict` wrote.

        Raises:
            KeyError, TypeError, ValueError: it did not write this, or in another format.
        """
        if values["format"] != FORMAT:
            raise ValueError(values["format"])
        score = values["score"]
        return Entry(
            key=Key(**{name: values[name] for name in Key.__dataclass_fields__}),
            score=None if score is None else Score.from_dict(score),
            reason=str(values["reason"]), defect=bool(values["defect"]),
            notes=tuple(values["notes"]), start=str(values["started"]),
            seconds=float(values["seconds"]), version=str(values["version"]),
            date=str(values["date"]),
        )  # fmt: skip


def table_code(table: Table) -> str:
    """Return a short text that differs for tables of other columns, cells or order of rows."""
    code = blake2b(digest_size=8)
    for name in sorted(table.columns):
        code.update(f"{name}\x1e".encode())
        column = table.columns[name]
        if column.dtype == object:
            code.update("\x1f".join(map(str, column.tolist())).encode())
        else:
            code.update(np.ascontiguousarray(column, dtype=np.float64).tobytes())
    return code.hexdigest()


@cache
def program_code() -> str:
    """Return a short text that differs where the program does, as far as figures depend on it.

    It is of the files of the package as they lie there, so that a change which no release or commit
    knows of is noticed too; and of what else is installed and brings predictors.
    """
    from forerun import registry

    code = blake2b(digest_size=6)
    root = resources.files("forerun")
    for path, text in sorted(_files(root, "")):
        code.update(path.encode() + b"\x1e" + text)
    for entry in registry.entries("predictors"):
        if entry.origin != "forerun":
            code.update(f"{entry.name} {entry.origin} {version(entry.origin)}".encode())
    return code.hexdigest()


def _files(folder: Any, name: str) -> list[tuple[str, bytes]]:
    """Return the sources below a folder of the package, by their path."""
    found: list[tuple[str, bytes]] = []
    for child in folder.iterdir():
        path = f"{name}/{child.name}"
        if child.is_dir():
            if child.name not in _NO_MATTER:
                found += _files(child, path)
        elif child.name.endswith(_SOURCES):
            found.append((path, child.read_bytes()))
    return found
