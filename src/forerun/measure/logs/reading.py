"""Reading: a path becomes the series of the runs that are logged in it."""

from __future__ import annotations

from pathlib import Path

from forerun.errors import RequestError
from forerun.measure.logs.readers import reader_of
from forerun.measure.logs.series import LogSeries

_TABLES = (".csv", ".parquet", ".pq")


def read_logs(path: str | Path, *, reader: str = "", pattern: str = "") -> tuple[LogSeries, ...]:
    """Return every run that is logged in a file, a folder or a tracking store.

    Args:
        path: see `readers.READERS` for what is known.
        reader: a reader's name; "" lets the content decide.
        pattern: for plain logs, a regular expression with named groups (see `patterns`).

    Raises:
        RequestError: the path is missing, empty, of no known format, or has no step.
        UnknownNameError: no reader has that name.
    """
    path = Path(path)
    return reader_of(path, reader, pattern).read(path, pattern)


def read_log(path: str | Path, *, reader: str = "", pattern: str = "") -> LogSeries:
    """Return the one run that is logged in a path.

    Raises:
        RequestError: as `read_logs`, or several runs are there.
    """
    found = read_logs(path, reader=reader, pattern=pattern)
    if len(found) > 1:
        names = ", ".join(series.name for series in found[:5])
        raise RequestError(
            f"reading {path}", f"{len(found)} runs are in it ({names} ...)", "name one run's path"
        )
    return found[0]


def is_log(path: str | Path) -> bool:
    """Return whether a path is for these readers: anything that is there and is no runs table."""
    path = Path(path)
    return path.exists() and path.suffix.lower() not in _TABLES
