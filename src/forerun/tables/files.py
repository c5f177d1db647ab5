"""Runs tables in files: CSV always, Parquet with pyarrow; a file is written whole or not at all."""

from __future__ import annotations

import contextlib
import csv
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from forerun.errors import MissingExtraError, RequestError
from forerun.tables.schema import COLUMNS
from forerun.tables.table import Table

PARQUET_ENDINGS = (".parquet", ".pq")


def read_table(path: str | Path) -> Table:
    """Return the runs table in a CSV or Parquet file.

    Raises:
        RequestError: the file is missing, empty, a folder or not text, a line has more cells
            than the header, or the columns are wrong (see `Table.from_columns`).
        MissingExtraError: Parquet without pyarrow.
    """
    path = Path(path)
    asked = f"reading {path}"
    if not path.exists():
        near = sorted(p.name for p in path.parent.glob("*.csv"))[:5] if path.parent.is_dir() else []
        raise RequestError(
            asked, "there is no such file",
            f"check the path{' (there: ' + ', '.join(near) + ')' if near else ''}",
        )  # fmt: skip
    if path.is_dir():
        raise RequestError(asked, "it is a folder", "name one file in it")
    if path.suffix in PARQUET_ENDINGS:
        return _read_parquet(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            header, cells = _read_cells(stream, asked)
    except UnicodeDecodeError:
        raise RequestError(asked, "it is not text in UTF-8", "save it as CSV in UTF-8") from None
    except (csv.Error, OSError) as error:
        raise RequestError(asked, str(error), "check the file") from None
    if len(set(header)) != len(header):
        twice = sorted({h for h in header if header.count(h) > 1})
        raise RequestError(asked, f"column {twice[0]!r} appears twice", "keep one of them")
    return Table.from_columns(dict(zip(header, cells, strict=True)), str(path))


def _read_cells(stream: IO[str], asked: str) -> tuple[list[str], list[tuple[str, ...]]]:
    reader = csv.reader(_no_nulls(stream, asked))
    header = next(reader, None)
    if not header or not any(h.strip() for h in header):
        raise RequestError(asked, "it is empty", "give a header line and one line a row")
    header = [h.strip() for h in header]
    width = len(header)
    rows = []
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
        rows.append(row)
    if not rows:
        raise RequestError(asked, "it has a header and no rows", "add at least one row")
    return header, list(zip(*rows, strict=True))


def _no_nulls(stream: IO[str], asked: str) -> Iterator[str]:
    for line in stream:
        if "\0" in line:
            raise RequestError(asked, "it holds NUL bytes, so it is not text", "save it as CSV")
        yield line


def _read_parquet(path: Path) -> Table:
    """Read Parquet; pyarrow is the extra `parquet`."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtraError(f"reading {path}", "pyarrow", "parquet") from None
    try:
        data = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise RequestError(f"reading {path}", f"not Parquet: {error}", "check the file") from None
    names = data.column_names
    if len(set(names)) != len(names):
        twice = sorted({n for n in names if names.count(n) > 1})
        raise RequestError(f"reading {path}", f"column {twice[0]!r} appears twice", "keep one")
    if data.num_rows == 0:
        raise RequestError(f"reading {path}", "it has no rows", "add at least one row")
    raw: dict[str, Any] = {}
    for name in names:
        column = data.column(name)
        raw[name] = column.to_numpy() if _is_number(column) else column.to_pylist()
    return Table.from_columns(raw, str(path))


def _is_number(column: Any) -> bool:
    import pyarrow.types as types

    return bool(types.is_floating(column.type) or types.is_integer(column.type))


def write_table(table: Table, path: str | Path) -> None:
    """Write a table as CSV or Parquet, whole or not at all.

    Raises:
        RequestError: the folder is missing or not writable.
        MissingExtraError: Parquet without pyarrow.
    """
    path = Path(path)
    if path.suffix in PARQUET_ENDINGS:
        write_whole(path, lambda name: _write_parquet(table, name))
    else:
        write_whole(path, lambda name: _write_csv(table, name))


def _write_csv(table: Table, name: str) -> None:
    with Path(name).open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(table.columns)
        writer.writerows(zip(*(_cells(c, n) for n, c in table.columns.items()), strict=True))


def _cells(column: NDArray[Any], name: str) -> list[str]:
    if column.dtype == object:
        return ["" if v is None else str(v) for v in column]
    if column.dtype == bool:
        return ["true" if v else "false" for v in column]
    digits = 17 if name in COLUMNS else 10
    return ["" if v != v else f"{v:.{digits}g}" for v in column.tolist()]


def _write_parquet(table: Table, name: str) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtraError("writing Parquet", "pyarrow", "parquet") from None
    arrays = {
        n: pa.array(
            [None if v == "" else v for v in c] if c.dtype == object else c, from_pandas=True
        )
        for n, c in table.columns.items()
    }
    pq.write_table(pa.table(arrays), name)


def write_whole(path: Path, write: Callable[[str], None]) -> None:
    """Call `write` with a temporary name beside `path`, then move it there: never a half file.

    Raises:
        RequestError: the folder is missing or not writable, or the disk is full.
    """
    asked = f"writing {path}"
    if path.is_dir():
        raise RequestError(asked, "it is a folder", "name a file")
    if not path.parent.is_dir():
        raise RequestError(asked, f"there is no folder {path.parent}", "make it first")
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise RequestError(asked, str(error.strerror), "choose a folder you may write") from None
    os.close(handle)
    try:
        write(name)
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)
        Path(name).replace(path)
    except OSError as error:
        raise RequestError(asked, str(error.strerror or error), "free space or rights") from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()


def to_frame(table: Table) -> Any:
    """Return a pandas DataFrame; pandas is the extra `frames`."""
    try:
        import pandas as pd
    except ImportError:
        raise MissingExtraError("a data frame", "pandas", "frames") from None
    return pd.DataFrame(dict(table.columns))


def from_frame(frame: Any) -> Table:
    """Return the table of a data frame (anything with `.columns` and `[name]`)."""
    raw: dict[str, Any] = {str(name): np.asarray(frame[name]) for name in frame.columns}
    return Table.from_columns(raw, "the data frame")
