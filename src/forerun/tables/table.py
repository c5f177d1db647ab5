"""Table: rows of the runs table as columns: floats with NaN for blanks, or strings.

Bounds: how large and how small a figure of a column can be, whatever was run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.errors import RequestError
from forerun.tables.lines import Lines
from forerun.tables.schema import COLUMNS, canonical_names
from forerun.units import GROUPED

# A nanosecond is a few ticks of a clock, and 10^12 s are thirty thousand years.
_LEAST_SECONDS, _MOST_SECONDS = 1e-9, 1e12
_LEAST_RATE, _MOST = 1e-12, 1e18
_TIMES = ("step_time_s", "epoch_time_s", "time_to_train_s")
_RATES = ("samples_per_s", "tokens_per_s", "tflops_per_device")


def limits(name: str) -> tuple[float, float]:
    """Return the least above zero and the most that a figure of a number column can be."""
    if name in _TIMES:
        return _LEAST_SECONDS, _MOST_SECONDS
    return (_LEAST_RATE if name in _RATES else 0.0), _MOST


def beyond(name: str, values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which finite figures of a column no run can have, (n,)."""
    least, most = limits(name)
    size = np.abs(values)
    return np.asarray(np.isfinite(values) & (size > 0) & ((size < least) | (size > most)))


def words(name: str) -> str:
    """Return the bounds of a column in words."""
    least, most = limits(name)
    unit = " s" if name in _TIMES else ""
    return f"{least:g} to {most:g}{unit}" if least else f"{most:g}{unit} at most"


@dataclass(frozen=True)
class Table:
    """Columns of equal length by name; unknown columns are kept, missing ones are blank.

    Number columns are float64 with NaN for blanks; text columns are object arrays of str with ""
    for blanks. `problems`, where there are any, tells each row's first cell that could not be
    read (n,), None where all could; such a cell is blank. `lines` tells where rows were written,
    None where no file holds them. `unread` holds the texts of cells that could not be read (n,),
    by column, "" where they could: whoever writes the table writes these.
    """

    columns: Mapping[str, NDArray[Any]]
    rows: int
    problems: NDArray[np.object_] | None = None
    lines: Lines | None = None
    unread: Mapping[str, NDArray[np.object_]] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.rows

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def numbers(self, name: str) -> FloatArray:
        """Return a column as float64 (n,), NaN where it is blank or absent."""
        column = self.columns.get(name)
        if column is None:
            return np.full(self.rows, np.nan)
        if column.dtype == object:
            return parse_numbers(column, name, "the table")
        return column.astype(np.float64, copy=False)

    def texts(self, name: str) -> NDArray[np.object_]:
        """Return a column as an object array of str (n,), "" where it is blank or absent."""
        column = self.columns.get(name)
        if column is None:
            return np.full(self.rows, "", dtype=object)
        if column.dtype == object:
            return column
        return np.array(["" if np.isnan(v) else _plain(v) for v in column], dtype=object)

    def row(self, i: int) -> dict[str, Any]:
        """Return one row without its blanks."""
        values = ((name, column[i]) for name, column in self.columns.items())
        return {
            name: (float(v) if isinstance(v, np.floating) else v)
            for name, v in values
            if not _is_blank(v)
        }

    def take(self, index: NDArray[Any]) -> Table:
        """Return the rows at the given positions (or where a mask is true)."""
        columns = {name: column[index] for name, column in self.columns.items()}
        rows = int(index.sum()) if index.dtype == bool else len(index)
        problems = None if self.problems is None else self.problems[index]
        lines = None if self.lines is None else self.lines.take(index)
        unread = {name: texts[index] for name, texts in self.unread.items()}
        return Table(columns, rows, problems, lines, unread)

    def with_columns(self, **columns: NDArray[Any]) -> Table:
        """Return the table with columns added or replaced."""
        unread = {name: texts for name, texts in self.unread.items() if name not in columns}
        return replace(self, columns={**self.columns, **columns}, unread=unread)

    def places(self) -> Lines:
        """Return where each row was written; rows that no file holds are counted from 1."""
        return Lines.nowhere(self.rows) if self.lines is None else self.lines

    def groups(self, names: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first row of each distinct value of the columns, and each row's group.

        Columns that are absent count as blank. Shapes (groups,) and (n,).
        """
        code = np.zeros(self.rows, dtype=np.int64)
        for name in names:
            column = self.columns.get(name)
            if column is None:
                continue
            _, inverse = np.unique(_sortable(column), return_inverse=True)
            code = code * (int(inverse.max(initial=0)) + 1) + inverse
            _, code = np.unique(code, return_inverse=True)
        _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
        return first.astype(np.int64), inverse.astype(np.int64)

    @staticmethod
    def from_rows(rows: Iterable[Mapping[str, Any]], where: str = "rows") -> Table:
        """Return a table from mappings; a name missing from a row is blank."""
        rows = list(rows)
        names: dict[str, None] = {}
        for row in rows:
            names.update(dict.fromkeys(row))
        raw = {name: [row.get(name, "") for row in rows] for name in names}
        return Table.from_columns(raw, where)

    @staticmethod
    def from_columns(
        raw: Mapping[str, Sequence[Any] | NDArray[Any]], where: str = "columns"
    ) -> Table:
        """Return a table from raw columns of text or numbers.

        Raises:
            RequestError: duplicate names, unknown units, unequal lengths, or a number column
                that holds no number (its first cell is named). One cell that is no number is
                that row's problem.
        """
        names = canonical_names(list(raw), where)
        lengths = {len(values) for values in raw.values()}
        if len(lengths) > 1:
            raise RequestError(
                f"reading {where}", f"columns of {sorted(lengths)} rows", "give equal lengths"
            )
        columns: dict[str, NDArray[Any]] = {}
        bad: dict[int, str] = {}
        rows = lengths.pop()
        unread = {}
        for name, values in zip(names, raw.values(), strict=True):
            columns[name], wrong = _typed(name, values, where)
            if wrong:
                unread[name] = _by_row({row: str(values[row]) for row in wrong}, rows, "")
            bad = {**wrong, **bad}
        problems = _by_row(bad, rows, None) if bad else None
        return Table(columns, rows, problems, unread=unread)


def parse_numbers(values: Sequence[Any] | NDArray[Any], name: str, where: str) -> FloatArray:
    """Return text cells as float64, NaN where blank. Raises RequestError at the first non-number."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "fiub":
        return values.astype(np.float64)
    numbers, bad = _read_numbers(values, name)
    for row, cell in bad.items():
        raise _no_number(where, row, cell, name)
    return numbers


def _read_numbers(
    values: Sequence[Any] | NDArray[Any], name: str
) -> tuple[FloatArray, dict[int, Any]]:
    """Return text cells as float64 and, by row, those that are no number (they are NaN)."""
    cells = ["nan" if v is None or v == "" else v for v in values]
    try:
        return np.array(cells, dtype=np.float64), {}
    except (ValueError, TypeError):
        pass
    result, bad = np.empty(len(cells)), dict[int, Any]()
    for i, cell in enumerate(cells):
        try:
            text = str(cell).strip()
            result[i] = float((text.replace(",", "") if GROUPED.match(text) else text) or "nan")
        except ValueError:
            result[i], bad[i] = np.nan, cell
    return result, bad


def _no_number(where: str, row: int, cell: Any, name: str) -> RequestError:
    return RequestError(
        f"reading {where}", f"row {row + 1} has {cell!r} in the number column {name!r}",
        "write a plain number in the column's unit, or leave it blank",
    )  # fmt: skip


def _typed(
    name: str, values: Sequence[Any] | NDArray[Any], where: str
) -> tuple[NDArray[Any], dict[int, str]]:
    """Return a column in its kind, and by row what is wrong with a cell of it.

    Raises:
        RequestError: a number column of which no cell is a number.
    """
    known = COLUMNS.get(name)
    if known is not None and known.kind == "number":
        if isinstance(values, np.ndarray) and values.dtype.kind in "fiub":
            numbers, bad = values.astype(np.float64), dict[int, Any]()
        else:
            numbers, bad = _read_numbers(values, name)
        if bad and np.isnan(numbers).all():
            row = next(iter(bad))
            raise _no_number(where, row, bad[row], name)
        wrong = {
            row: f"{name}={str(cell)[:40]!r} is not a number; correct it"
            for row, cell in bad.items()
        }
        absurd = np.flatnonzero(beyond(name, numbers)).tolist()
        wrong |= {
            row: f"{name}={numbers[row]:g} is no figure of a run ({words(name)}); correct it"
            for row in absurd
        }
        numbers[absurd] = np.nan
        return numbers, wrong
    if isinstance(values, np.ndarray) and np.issubdtype(values.dtype, np.number):
        return (values.astype(np.float64) if known is None else _texts(values)), {}
    return _texts(values), {}


def _by_row(texts: Mapping[int, str], rows: int, other: str | None) -> NDArray[np.object_]:
    """Return texts by row as a column (rows,), `other` where there is none."""
    column = np.full(rows, other, dtype=object)
    for row, text in texts.items():
        column[row] = text
    return column


def _texts(values: Sequence[Any] | NDArray[Any]) -> NDArray[np.object_]:
    out = np.empty(len(values), dtype=object)
    if isinstance(values, np.ndarray):
        values = values.tolist()  # NumPy's own scalars are slow to look at one by one
    out[:] = [v if type(v) is str else "" if _is_blank(v) else _plain(v) for v in values]
    return out


def _plain(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def _is_blank(value: Any) -> bool:
    return (
        value is None or value == "" or (isinstance(value, float | np.floating) and value != value)
    )


def _sortable(column: NDArray[Any]) -> NDArray[Any]:
    return column.astype(str) if column.dtype == object else column


def iter_rows(table: Table) -> Iterator[dict[str, Any]]:
    """Yield rows without their blanks (for people and small tables)."""
    for i in range(len(table)):
        yield table.row(i)
