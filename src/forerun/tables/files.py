"""Runs tables in files: CSV always, Parquet with pyarrow; a file is written whole or not at all."""

from __future__ import annotations

import contextlib
import csv
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from forerun.errors import RequestError, optional
from forerun.paths import check_file
from forerun.tables.own_headers import check_headers, columns_meant, mapped_headers, meant_now
from forerun.tables.table import COLUMNS, Lines, Table, canonical_names, factor_of

Cells = Sequence[Any] | NDArray[Any]
PARQUET_ENDINGS = (".parquet", ".pq")
# Rows held at a time: a million rows never exist as a million lists.
_CHUNK_ROWS = 16384


def read_table(path: str | Path, columns: Mapping[str, str] | None = None) -> Table:
    """Return the runs table in a CSV or Parquet file.

    columns: what headers of its own mean, {"my batch": "global_batch", "Step (ms)": "step_time_s"}: numbers
    under a header that ends in another unit are converted.

    Raises RequestError where it cannot be read, or lacks a header of `columns`; MissingExtraError for
    Parquet without pyarrow.
    """
    path = Path(path)
    asked = f"reading {path}"
    own = meant_now() if columns is None else columns_meant(columns)
    # What a whole command states is checked against all of its files, but for pipes, which are read once.
    strict = columns is not None or not os.path.isfile(path)  # noqa: PTH113 - it never raises
    near = sorted(p.name for p in path.parent.glob("*.csv"))[:5] if len(str(path)) < 256 else []
    check_file(path, asked, f" (there: {', '.join(near)})" if near else "")
    if path.suffix.lower() in PARQUET_ENDINGS:
        return _read_parquet(path, own, strict)
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            raw, lines, factors = _read_cells(stream, str(path), own, strict)
    except UnicodeDecodeError:
        raise RequestError(asked, "it is not text in UTF-8", "save it as CSV in UTF-8") from None
    except (csv.Error, OSError) as error:
        raise RequestError(asked, str(error), "check the file") from None
    table = _scaled(Table.from_columns(raw, str(path)), factors)
    return replace(table, lines=Lines.of_file(path.name, np.concatenate(lines)))


def headers_of(path: Path) -> list[str]:
    """Return the headers of a table's file as they are written. Raises as `read_table`."""
    check_file(path, f"reading {path}")
    if path.suffix.lower() in PARQUET_ENDINGS:
        _, pq = _pyarrow(f"reading {path}")
        return [str(name) for name in pq.read_schema(path).names]
    with (
        path.open(encoding="utf-8-sig", newline="", errors="replace") as stream,
        contextlib.suppress(csv.Error),
    ):
        return next(csv.reader(stream), [])
    return []


def _named(
    headers: Sequence[str], where: str, own: Mapping[str, str], strict: bool
) -> tuple[list[str], dict[str, float]]:
    """Return the columns' names, and what numbers of some of them are multiplied by. Raises RequestError."""
    if strict:
        check_headers(own, headers, f"reading {where}")
    mapped = mapped_headers(headers, own, where)
    names = canonical_names([mapped.get(i, header) for i, header in enumerate(headers)], where)
    return names, {name: factor_of(headers[i], name) for i, name in mapped.items()}


def _scaled(table: Table, factors: Mapping[str, float]) -> Table:
    numbers = {name: table.columns[name] * f for name, f in factors.items() if f != 1}
    return replace(table, columns={**table.columns, **numbers})


def _read_cells(
    stream: IO[str], where: str, own: Mapping[str, str], strict: bool
) -> tuple[dict[str, Cells], list[NDArray[np.int32]], dict[str, float]]:
    """Return the columns' cells, the line on which each row ends, and what numbers are multiplied by."""
    asked = f"reading {where}"
    # Strict: a quote that is never closed would swallow the rows below it without a word.
    reader = csv.reader(_no_nulls(stream, asked), strict=True)
    header = next(reader, None)
    if not header or not any(h.strip() for h in header):
        raise RequestError(asked, "it is empty", "give a header line and one line a row")
    for mark, word in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
        if len(header) == 1 and mark in header[0]:
            found = f"its columns are separated by {word}"
            raise RequestError(asked, found, "save it with commas between columns")
    names, factors = _named(header, where, own, strict)
    pieces: dict[str, list[Cells]] = {name: [] for name in names}
    ends: list[int] = []
    lines: list[NDArray[np.int32]] = []
    rows = _even_rows(reader, len(names), asked, ends)
    while chunk := list(islice(rows, _CHUNK_ROWS)):
        lines.append(np.array(ends, dtype=np.int32))
        ends.clear()
        for name, cells in zip(names, zip(*chunk, strict=True), strict=True):
            pieces[name].append(_compact(cells, name))
    if not pieces[names[0]]:
        raise RequestError(asked, "it has a header and no rows", "add at least one row")
    return {name: _joined(column) for name, column in pieces.items()}, lines, factors


def _compact(cells: Sequence[str], name: str) -> Cells:
    """Return cells in little memory: numbers as an array, equal texts as one object."""
    known = COLUMNS.get(name)
    if known is not None and known.kind == "number":
        try:
            return np.array([cell or "nan" for cell in cells], dtype=np.float64)
        except ValueError:
            return cells  # left as text: whoever joins the pieces names the cell at fault
    seen: dict[str, str] = {}
    return [seen.setdefault(cell, cell) for cell in cells]


def _joined(pieces: Sequence[Cells]) -> Cells:
    if all(isinstance(piece, np.ndarray) for piece in pieces):
        return np.concatenate(pieces)
    return [cell for piece in pieces for cell in piece]


def _even_rows(reader: Any, width: int, asked: str, ends: list[int]) -> Iterator[list[str]]:
    """Yield rows of `width` cells but blank ones, and add the line on which each ends to `ends`."""
    for row in reader:
        if len(row) != width:
            if not any(row):
                continue
            if len(row) > width:
                raise RequestError(
                    asked, f"line {reader.line_num} has {len(row)} cells, the header {width}",
                    "quote cells that hold commas",
                )  # fmt: skip
            row += [""] * (width - len(row))
        ends.append(reader.line_num)
        yield row


def _no_nulls(stream: IO[str], asked: str) -> Iterator[str]:
    for line in stream:
        if "\0" in line:
            raise RequestError(asked, "it holds NUL bytes, so it is not text", "save it as CSV")
        yield line


def _pyarrow(asked: str) -> tuple[Any, Any]:
    with optional(asked, "pyarrow", "parquet"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    return pa, pq


def _read_parquet(path: Path, own: Mapping[str, str], strict: bool) -> Table:
    pa, pq = _pyarrow(f"reading {path}")
    try:
        names, factors = _named(pq.read_schema(path).names, str(path), own, strict)
        data = pq.read_table(path).rename_columns(names)
    except (pa.ArrowException, OSError) as error:
        raise RequestError(f"reading {path}", f"not Parquet: {error}", "check the file") from None
    if data.num_rows == 0:
        raise RequestError(f"reading {path}", "it has no rows", "add at least one row")
    raw: dict[str, Any] = {}
    for name in names:
        column, kind = data.column(name), data.column(name).type
        numeric = pa.types.is_floating(kind) or pa.types.is_integer(kind)
        raw[name] = column.to_numpy() if numeric else column.to_pylist()
    lines = Lines.of_file(path.name, np.arange(1, data.num_rows + 1), "row")
    return replace(_scaled(Table.from_columns(raw, str(path)), factors), lines=lines)


def write_table(table: Table, path: str | Path, exact: bool = False) -> None:
    """Write a table as CSV or Parquet (.parquet, .pq), whole or not at all.

    exact: numbers of one's own columns are written to the last bit, else to ten digits. Raises
    RequestError where it cannot be written, MissingExtraError for Parquet without pyarrow.
    """
    path = Path(path)
    if path.suffix.lower() in PARQUET_ENDINGS:
        write_whole(path, lambda name: _write_parquet(table, name))
    else:
        write_whole(path, lambda name: _write_csv(table, name, exact))


def _write_csv(table: Table, name: str, exact: bool) -> None:
    with Path(name).open("w", encoding="utf-8", newline="") as stream:
        # Python before 3.13 quotes a lone carriage return only where it is in the line's end.
        writer = csv.writer(_LineFeeds(stream), lineterminator="\r\n")
        writer.writerow(table.columns)
        for start in range(0, len(table), _CHUNK_ROWS):
            stop = start + _CHUNK_ROWS
            cells = (_written(table, name, start, stop, exact) for name in table.columns)
            writer.writerows(zip(*cells, strict=True))


def _written(table: Table, name: str, start: int, stop: int, exact: bool = False) -> Sequence[str]:
    """Return a column's cells as text, those that could not be read as they were."""
    cells = _cells(table.columns[name][start:stop], exact or name in COLUMNS)
    if name not in table.unread:
        return cells
    return [text or cell for text, cell in zip(table.unread[name][start:stop], cells, strict=True)]


class _LineFeeds:
    """A stream that ends each line of a CSV writer by a line feed alone."""

    def __init__(self, stream: IO[str]) -> None:
        self._write = stream.write

    def write(self, line: str) -> int:
        return self._write(line[:-2] + "\n")


def _cells(column: NDArray[Any], exact: bool) -> Sequence[str]:
    if column.dtype == object:
        return ["" if v is None else v if type(v) is str else str(v) for v in column]
    if column.dtype == bool:
        return ["true" if v else "false" for v in column]
    if exact:  # the shortest text that reads back as the same number
        return ["" if v != v else repr(v).removesuffix(".0") for v in column.tolist()]
    return ["" if v != v else f"{v:.10g}" for v in column.tolist()]


def _write_parquet(table: Table, name: str) -> None:
    pa, pq = _pyarrow("writing Parquet")
    arrays = {}
    for n, c in table.columns.items():
        if n in table.unread:  # a text where a number should be: the column stays one of texts
            c = np.array(_written(table, n, 0, len(table)), dtype=object)
        cells = [None if v == "" else v for v in c] if c.dtype == object else c
        arrays[n] = pa.array(cells, from_pandas=True)
    pq.write_table(pa.table(arrays), name)


def write_whole(path: Path, write: Callable[[str], object]) -> None:
    """Call `write` with a temporary name beside `path`, then move it there: never a half file."""
    asked = f"writing {path}"
    path = Path(os.path.realpath(path))  # a link goes on pointing at the file
    if os.path.isdir(path):  # noqa: PTH112  (these two never raise, whatever the name)
        raise RequestError(asked, "it is a folder", "name a file")
    if not os.path.isdir(path.parent):  # noqa: PTH112
        raise RequestError(asked, f"there is no folder {path.parent}", "make it first")
    try:
        # A device or a pipe, such as /dev/stdout, is written into: nothing may replace it.
        moved = not path.exists() or path.is_file()
        name = _beside(path) if moved else str(path)
    except OSError as error:
        raise RequestError(asked, str(error.strerror), "choose a folder you may write") from None
    try:
        write(name)
        if moved:
            Path(name).replace(path)
    except OSError as error:
        raise RequestError(asked, str(error.strerror or error), "free space or rights") from None
    except UnicodeEncodeError as error:
        raise RequestError(asked, f"a text is not Unicode: {error}", "correct the text") from None
    finally:
        if moved:
            with contextlib.suppress(FileNotFoundError):
                Path(name).unlink()


def _beside(path: Path) -> str:
    """Make an empty file beside `path`, with its rights or those of any new file."""
    if path.exists():
        mode = path.stat().st_mode & 0o777
    else:
        umask = os.umask(0)
        os.umask(umask)
        mode = 0o666 & ~umask
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    Path(name).chmod(mode)
    return name


def to_frame(table: Table) -> Any:
    """Return a pandas DataFrame; pandas is the extra `frames`."""
    with optional("a data frame", "pandas", "frames"):
        import pandas as pd
    return pd.DataFrame(dict(table.columns))


def from_frame(frame: Any) -> Table:
    """Return the table of a data frame (anything with `.columns` and `[name]`)."""
    names = [str(name) for name in frame.columns]
    for name in names:
        if names.count(name) > 1:
            found = f"column {name!r} appears twice"
            raise RequestError("reading the data frame", found, "keep one of them")
    raw = {}
    for name in frame.columns:
        column, values = frame[name], np.asarray(frame[name])
        if values.dtype == object and hasattr(column, "isna"):
            values = values.copy()
            values[np.asarray(column.isna(), dtype=bool)] = None
        raw[str(name)] = values
    return Table.from_columns(raw, "the data frame")
