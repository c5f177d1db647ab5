"""OwnHeaders: which columns of the runs table a table's own headers mean, as `--map` and `read_table` state it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from forerun.errors import RequestError, likely_name, one_of
from forerun.tables.table import ALIASES, COLUMNS

NONE: Mapping[str, str] = {}
_MEANT: ContextVar[Mapping[str, str]] = ContextVar("meant", default=NONE)


def columns_meant(columns: Mapping[str, str]) -> dict[str, str]:
    """Return the column that each header, in lower case, means. Raises RequestError for no such column."""
    found = {}
    for header, name in columns.items():
        column = ALIASES.get(name.strip().lower(), name.strip().lower())
        if column not in COLUMNS:
            near = likely_name(name, COLUMNS)
            raise RequestError(
                f"--map '{header}={name}'", f"{name!r} is no column of the runs table",
                (f"did you mean {near}? " if near else "") + "docs/tables.md lists the columns",
            )  # fmt: skip
        found[header.strip().lower()] = column
    return found


@contextmanager
def headers_mean(columns: Mapping[str, str]) -> Iterator[None]:
    """Let headers of every table that is read in the block mean columns. Raises as `columns_meant`."""
    token = _MEANT.set(columns_meant(columns))
    try:
        yield
    finally:
        _MEANT.reset(token)


def meant_now() -> Mapping[str, str]:
    """Return what `headers_mean` set for the present block."""
    return _MEANT.get()


def mapped_headers(headers: Sequence[str], meant: Mapping[str, str], where: str) -> dict[int, str]:
    """Return the columns of those headers that mean one, by position. Raises RequestError where two mean the same."""
    found: dict[int, str] = {}
    for at, header in enumerate(headers):
        column = meant.get(str(header).strip().lower(), "")
        if column in found.values():
            both = f"{header!r} and another column are both mapped to {column}"
            raise RequestError(f"reading {where}", both, "map one of them")
        found |= {at: column} if column else {}
    return found


def check_headers(meant: Mapping[str, str], headers: Iterable[str], asked: str) -> None:
    """Raise RequestError for a header that is meant to be a column and is not among a table's."""
    headers = [name for name in dict.fromkeys(headers) if not name.startswith("predicted_")]
    known = {str(header).strip().lower() for header in headers}
    for header in meant:
        if header.lower() not in known:
            step = one_of(header, headers) if headers else "it is for tables: give one"
            raise RequestError(asked, f"there is no column {header!r}", step)
