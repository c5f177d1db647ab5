"""Files: a log's bytes and lines, compressed or not, and the runs that its format's reader finds."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forerun.errors import RequestError, UnknownNameError, nearest_names
from forerun.paths import refuse_url

if TYPE_CHECKING:
    from forerun.measure.logs.series import LogSeries

# Formats in the order in which they are tried. Each module has `accepts(path)` and `read(path, pattern)`.
READERS: Mapping[str, str] = {
    "tensorboard": "event files, a folder of them, and folders of runs",
    "mlflow": "a store's folder (mlruns), an experiment's or a run's, or its SQLite file",
    "kineto": "Chrome traces of torch.profiler, gz too, one file a rank",
    "json": "JSON records, one a line; HuggingFace's trainer_state.json",
    "csv": "a header and a row a step or an epoch; Lightning's metrics.csv, or its folder",
    "text": "plain logs by built-in patterns or one of your own",
}
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
_HEAD_BYTES = 4096
_MAX_LINE = 20_000  # characters; a longer line is no step


def read_logs(path: str | Path, *, reader: str = "", pattern: str = "") -> tuple[LogSeries, ...]:
    """Return every run logged in a file, folder or store, by its content or a `READERS` name. Raises RequestError."""
    path = Path(path)
    asked = f"reading {path}"
    if reader and reader not in READERS:
        raise UnknownNameError("log reader", reader, READERS, f"({', '.join(READERS)})")
    if not path.exists():
        refuse_url(path)
        beside = [str(one) for one in path.parent.iterdir()] if path.parent.is_dir() else []
        near = ", ".join(nearest_names(str(path), beside))
        todo = f"did you mean {near}?" if near else f"see what {path.parent.resolve()} holds"
        raise RequestError(asked, "there is no such file or folder", todo)
    reader = reader or ("text" if pattern else "")
    if not reader and path.is_file() and path.stat().st_size == 0:
        raise RequestError(asked, "it is empty", "wait until the job has logged steps")
    for name in (reader,) if reader else READERS:
        module = import_module(f"{__package__}.{name}{'lines' if name in ('json', 'csv') else ''}")
        if reader or module.accepts(path):
            read: Callable[[Path, str], tuple[LogSeries, ...]] = module.read
            return read(path, pattern)
    found = "nothing in this folder is a log that is known"
    known = "; ".join(f"{name}: {words}" for name, words in READERS.items())
    why = found if path.is_dir() else "it is no log that is known"
    raise RequestError(asked, why, f"name one of these with --reader, or its --pattern: {known}")


def read_log(path: str | Path, *, reader: str = "", pattern: str = "") -> LogSeries:
    """Return the one run that is logged in a path. Raises as `read_logs`, and where there are several."""
    found = read_logs(path, reader=reader, pattern=pattern)
    if len(found) > 1:
        why = f"{len(found)} runs are in it ({', '.join(one.name for one in found[:5])} ...)"
        raise RequestError(f"reading {path}", why, "name one run's path")
    return found[0]


def head_of(path: Path) -> bytes:
    """Return a file's first bytes, uncompressed. Raises RequestError where it may not be read."""
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEAD_BYTES)
        if head[:2] != b"\x1f\x8b":
            return head
        with gzip.open(path, "rb") as stream:
            return stream.read(_HEAD_BYTES)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return b""
    except OSError as error:
        raise _unreadable(path, error) from None


def bytes_of(path: Path) -> bytes:
    """Return all of a file, uncompressed; of a gzip file that is cut, what is whole. Raises RequestError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from None
    if data[:2] != b"\x1f\x8b":
        return data
    out = b""
    while data:
        inflater = zlib.decompressobj(wbits=31)
        try:
            out += inflater.decompress(data)
        except zlib.error:
            break
        data = inflater.unused_data
    if not out:
        todo = "copy it again from where it was written, or unpack what is whole: gzip -dc FILE"
        raise RequestError(f"reading {path}", "it is no whole gzip file", todo)
    return out


def lines_of(path: Path) -> Iterator[str]:
    """Yield a text log's lines, without colours; a rewritten line is several. Raises RequestError."""
    data = bytes_of(path)
    if not is_text(data[:_HEAD_BYTES]):
        found = "it is neither text nor a log format that is known"
        raise RequestError(f"reading {path}", found, f"give one of: {', '.join(READERS)}")
    text = data.decode("utf-8-sig", errors="replace")
    for line in text.replace("\r", "\n").split("\n"):
        if line and len(line) <= _MAX_LINE:
            yield _ANSI.sub("", line) if "\x1b" in line else line


def is_text(head: bytes) -> bool:
    """Return whether a file that begins so is text: UTF-8, or nearly all of it."""
    text = head.decode("utf-8", errors="replace")
    odd = sum((c < " " and c not in "\t\n\r\b\f\x1b") or c == "\ufffd" for c in text)
    return b"\0" not in head and odd <= len(text) * 0.1


def written_s(*paths: Path) -> float:
    """Return when the newest of the files was written, in seconds since 1970; NaN for none."""
    return max((path.stat().st_mtime for path in paths if path.exists()), default=float("nan"))


def mapping_of(value: Any) -> Mapping[str, Any]:
    """Return a value of somebody's JSON or YAML where it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def _unreadable(path: Path, error: OSError) -> RequestError:
    todo = "name a file that your user may read (ls -l shows who may)"
    return RequestError(f"reading {path}", str(error.strerror or error), todo)
