"""Mistaken: a file that is given where another kind is asked: what it is, and which command takes it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from forerun.errors import RequestError
from forerun.tables.files import PARQUET_ENDINGS

_YAML = (".yaml", ".yml")
_STORES = (".db", ".sqlite", ".sqlite3")
_LARGEST_BYTES = 10_000_000
# Fields by which a mapping is known, what it is then, and who takes it ({file} is its name).
_MAPPINGS = (
    (("workloads",), "campaign", "a campaign", "forerun profile {file}"),
    (("devices", "instances"), "catalogue", "a catalogue of devices",
     "forerun predict ... --catalog {file}"),
    (("transformer", "totals", "operations"), "workload", "a workload",
     "forerun predict {file} --cluster CLUSTER"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kind:
    """What a file is: a word for the kind, the same for a sentence, and the command that takes it."""

    name: str
    words: str
    command: str


def kind_of(path: Path) -> Kind | None:
    """Return what a file is by its name and content, None where it is nothing that is known."""
    ending = path.suffix.lower()
    name = str(path)
    if not path.is_file():
        return None
    if ending in _YAML:
        return _of_mapping(path)
    if ending == ".csv" or ending in PARQUET_ENDINGS:
        return Kind("table", "a table of runs", f"forerun runs import {name}")
    if ending == ".py":
        command = f"forerun profile CAMPAIGN.yaml, where workloads has NAME: {{entry: {name}}}"
        return Kind("script", "a script", command)
    if ending in _STORES and _is_store(path):
        return Kind("store", "a store", f"forerun runs list --store {name}")
    return None


def _is_store(path: Path) -> bool:
    """Whether an SQLite file is a store; others keep their logs in such files (MLflow)."""
    import sqlite3

    query = "SELECT 1 FROM sqlite_master WHERE name = 'forerun_version'"
    try:
        with closing(
            sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro", uri=True)
        ) as file:
            return file.execute(query).fetchone() is not None
    except sqlite3.Error:
        return False


def _of_mapping(path: Path) -> Kind | None:
    import yaml

    if path.stat().st_size > _LARGEST_BYTES:
        return None
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return None
    if not isinstance(found, Mapping):
        return None
    for fields, name, words, command in _MAPPINGS:
        if any(field in found for field in fields):
            return Kind(name, words, command.format(file=path))
    return None


def check_kind(path: Path, asked: str, wanted: str, *allowed: str) -> None:
    """Raise RequestError where a file is known to be of a kind that is not allowed here.

    Args:
        path: the file; one that does not exist passes.
        asked: what the caller wanted with it.
        wanted: what is asked for in its place, e.g. `a campaign`.
        allowed: names of kinds.
    """
    kind = kind_of(path)
    if kind is not None and kind.name not in allowed:
        raise RequestError(asked, f"it is {kind.words}, not {wanted}", f"try: {kind.command}")
