"""Opening: a log's bytes and lines, compressed or not, while it may still be written."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from forerun.errors import RequestError, nearest_names

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
_HEAD_BYTES = 4096
_MAX_LINE = 20_000  # characters; a longer line is no step


def head_of(path: Path) -> bytes:
    """Return a file's first bytes, uncompressed.

    Raises:
        RequestError: it is missing or may not be read.
    """
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


def bytes_of(path: Path) -> tuple[bytes, bool]:
    """Return all of a file, uncompressed, and whether it is whole (a cut gzip file is not).

    Raises:
        RequestError: it is missing, may not be read, or is no gzip file where it says so.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from None
    if data[:2] != b"\x1f\x8b":
        return data, True
    out, whole = bytearray(), True
    while data:
        inflater = zlib.decompressobj(wbits=31)
        try:
            out += inflater.decompress(data)
        except zlib.error:
            whole = False
            break
        if not inflater.eof:
            whole = False
            break
        data = inflater.unused_data
    if not out:
        raise RequestError(
            f"reading {path}",
            "it is no whole gzip file",
            "copy it again from where it was written, or unpack what is whole: gzip -dc FILE",
        )
    return bytes(out), whole


def lines_of(path: Path) -> Iterator[str]:
    """Yield a text log's lines, without colours; a progress bar's rewritten line is several.

    Raises:
        RequestError: it is missing, may not be read, or is not text.
    """
    data, _ = bytes_of(path)
    if not is_text(data[:_HEAD_BYTES]):
        raise RequestError(
            f"reading {path}", "it is neither text nor a log format that is known",
            "give a plain log, JSON lines, a TensorBoard event file, an MLflow store or a Chrome trace",
        )  # fmt: skip
    text = data.decode("utf-8-sig", errors="replace")
    for line in text.replace("\r", "\n").split("\n"):
        if line and len(line) <= _MAX_LINE:
            yield _ANSI.sub("", line) if "\x1b" in line else line


def is_text(head: bytes) -> bool:
    """Return whether a file that begins so is text."""
    if b"\0" in head:
        return False
    odd = sum(b < 32 and b not in b"\t\n\r\x08\x0c\x1b" for b in head)
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 4:
            odd += sum(b > 127 for b in head)
    return odd <= len(head) * 0.1


def written_s(*paths: Path) -> float:
    """Return when the newest of the files was written, in seconds since 1970."""
    times = []
    for path in paths:
        try:
            times.append(path.stat().st_mtime)
        except OSError:
            continue
    return max(times, default=float("nan"))


def there(path: Path) -> str:
    """Return what to do where a path does not exist: what lies beside it, the likeliest first."""
    folder = path.parent
    try:
        names = sorted(one.name for one in folder.iterdir())
    except OSError:
        return f"give another path: there is no folder {folder}"
    near = nearest_names(path.name, names)
    if near:
        return f"did you mean {', '.join(str(folder / name) for name in near)}?"
    shown = f"{', '.join(names[:5])}{' ...' if len(names) > 5 else ''}" or "nothing"
    return f"give another path; in {folder.resolve()} there is {shown}"


def _unreadable(path: Path, error: OSError) -> RequestError:
    if isinstance(error, FileNotFoundError):
        return RequestError(f"reading {path}", "there is no such file", there(path))
    if isinstance(error, IsADirectoryError):
        return RequestError(f"reading {path}", "it is a folder", "name a file in it")
    return RequestError(
        f"reading {path}",
        str(error.strerror or error),
        "let your user read it (ls -l shows who may)",
    )
