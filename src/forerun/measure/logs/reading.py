"""Reading: a path becomes the series of the runs that are logged in it.

Readers: the formats of logs by name, tried in order; one more is one more entry here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from forerun.errors import RequestError, UnknownNameError
from forerun.measure.logs.opening import there
from forerun.measure.logs.series import LogSeries


@dataclass(frozen=True, slots=True)
class LogReader:
    """One format.

    Attributes:
        name: what `--reader` calls it.
        module: where it lives.
        read_by: the function (path, pattern) -> runs; beside it is `accepts(path) -> bool`.
        help: what it reads.
    """

    name: str
    module: str
    read_by: str
    help: str

    def accepts(self, path: Path) -> bool:
        """Return whether this reader can read such a path. Raises RequestError where unreadable."""
        return bool(import_module(self.module).accepts(path))

    def read(self, path: Path, pattern: str = "") -> tuple[LogSeries, ...]:
        """Return the runs in a path. Raises RequestError where it cannot be read."""
        read: Callable[[Path, str], tuple[LogSeries, ...]]
        read = getattr(import_module(self.module), self.read_by)
        return read(path, pattern)


_HERE = "forerun.measure.logs"
READERS: tuple[LogReader, ...] = (
    LogReader("tensorboard", f"{_HERE}.tensorboard", "read_tensorboard",
              "event files, a folder of them, and folders of runs"),
    LogReader("mlflow", f"{_HERE}.mlflow", "read_mlflow",
              "a store's folder (mlruns), an experiment's or a run's, or its SQLite file"),
    LogReader("kineto", f"{_HERE}.kineto", "read_traces",
              "Chrome traces of torch.profiler, gz too, one file a rank"),
    LogReader("json", f"{_HERE}.jsonlines", "read_json",
              "JSON records, one a line; HuggingFace's trainer_state.json"),
    LogReader("text", f"{_HERE}.text", "read_text",
              "plain logs by built-in patterns or one of your own"),
)  # fmt: skip


def reader_of(path: Path, name: str = "", pattern: str = "") -> LogReader:
    """Return who reads a path: the named reader, or the first that accepts it.

    Raises:
        UnknownNameError: no reader has that name.
        RequestError: the path is missing, or nobody reads what is there.
    """
    by_name = {reader.name: reader for reader in READERS}
    if name and name not in by_name:
        raise UnknownNameError("log reader", name, by_name, f"({', '.join(by_name)})")
    asked = f"reading {path}"
    if not path.exists():
        raise RequestError(asked, "there is no such file or folder", there(path))
    if pattern and name in ("", "text"):
        return by_name["text"]
    if name:
        return by_name[name]
    if path.is_file() and path.stat().st_size == 0:
        raise RequestError(asked, "it is empty", "wait until the job has logged steps")
    for reader in READERS:
        if reader.accepts(path):
            return reader
    known = "; ".join(f"{reader.name}: {reader.help}" for reader in READERS)
    what = (
        "nothing in this folder is a log that is known"
        if path.is_dir()
        else "it is no log that is known"
    )
    raise RequestError(asked, what, f"name one of these with --reader, or its --pattern: {known}")


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
