"""Table: the runs table as columns (floats with NaN for blanks, or strings), and its schema."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun import packaged
from forerun.arrays import ColumnRows, FloatArray, alike, taken
from forerun.domain.plan import ALIASES as PLAN_ALIASES
from forerun.errors import RequestError, likely_name
from forerun.units import GROUPED


@dataclass(frozen=True, slots=True)
class Column:
    """One column: `number` columns hold floats (NaN where blank), `text` ones strings."""

    name: str
    group: str
    kind: str
    unit: str = ""
    help: str = ""


# `columns.csv` has a row for each column, with the names that other tools give it.
_ROWS = packaged.table(__file__, "columns.csv")
COLUMNS: Mapping[str, Column] = {
    row["name"]: Column(*(row[f.name] for f in fields(Column))) for row in _ROWS
}
ALIASES: Mapping[str, str] = {
    **PLAN_ALIASES, **{alias: row["name"] for row in _ROWS for alias in row["aliases"].split()},
}  # fmt: skip
# Headers that usually mean a column, and may mean something else: they are suggested, and not read.
_HINTS: Mapping[str, str] = {
    hint: row["name"]
    for row in packaged.table(__file__, "hints.csv")
    for hint in row["hints"].split()
}
MEASURED: tuple[str, ...] = (
    "step_time_s", "samples_per_s", "tokens_per_s", "tflops_per_device", "epoch_time_s",
    "time_to_train_s", "memory_gb", "samples_to_target", "status",
)  # fmt: skip

# A column with one of these stems and another ending is the same quantity in another unit.
_STEMS = {
    re.sub(r"(_s|_per_s|_gb|_usd|_usd_per_hour|_per_device)$", "", c.name): c
    for c in COLUMNS.values()
    if c.unit and c.name.endswith(("_s", "_gb", "_usd", "_per_hour", "_per_device"))
}
_UNIT_ENDING = re.compile(
    r"_(ns|us|ms|s|sec|secs|seconds|min|mins|minutes|h|hr|hours|days|kb|mb|gb|gib|mib|tb|bytes|usd|"
    r"eur|cents|((usd|eur|gbp|cents)_)?"
    r"per_(ms|s|sec|second|min|minute|h|hour|day|week|month|year))$"
)
# What a header's unit is in the unit of its column, for seconds and for 1e9 bytes.
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, **dict.fromkeys(("min", "mins", "minute", "minutes"), 60.0),
            **dict.fromkeys(("h", "hr", "hour", "hours"), 3600.0)}  # fmt: skip
_GIGABYTES = {
    "bytes": 1e-9, "kb": 1e-6, "mb": 1e-3, "mib": 2**20 / 1e9, "gib": 2**30 / 1e9, "tb": 1e3,
}  # fmt: skip


def _plain_header(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


_CONVERTED = ("s", "1/s", "1e9 bytes")


def factor_of(header: str, column: str) -> float:
    """Return what a header's unit is in the unit of a column; 1 where it is the same, or none is known.

    It ends the header; parts of a second may stand anywhere (`ms per iter`), as no other words are written so.
    """
    *words, ending = _plain_header(header).split("_")
    unit = COLUMNS[column].unit
    if ending not in _SECONDS:
        ending = next((word for word in words if word in ("ns", "us", "ms")), ending)
    if unit == "1/s":
        return 1 / _SECONDS.get(ending, 1.0)
    return {"s": _SECONDS, "1e9 bytes": _GIGABYTES}.get(unit, {}).get(ending, 1.0)


def canonical_names(names: Sequence[str], where: str) -> list[str]:
    """Return column names in the schema's spelling, aliases resolved; others are kept.

    Raises RequestError for a blank or duplicate name, or a known quantity in another unit.
    """
    if not names:
        raise RequestError(f"reading {where}", "it has no columns", "give a header line")
    result: list[str] = []
    for raw in names:
        plain = str(raw).strip().lstrip("\ufeff")
        lowered = re.sub(r"\s+", "_", plain.lower())
        name = lowered if lowered in COLUMNS else ALIASES.get(lowered, plain)
        if not name:
            raise RequestError(f"reading {where}", "a column has no name", "name every column")
        known = _STEMS.get(_UNIT_ENDING.sub("", name.lower()))
        if known is not None and name not in COLUMNS and _UNIT_ENDING.search(name.lower()):
            raise RequestError(
                f"reading {where}", f"column {name!r} has a unit that the runs table does not use",
                f"convert it to {known.unit} and name it {known.name!r}"
                + (f", or give --map '{plain}={known.name}'" if known.unit in _CONVERTED else ""),
            )  # fmt: skip
        if name in result:
            raise RequestError(
                f"reading {where}", f"column {name!r} appears twice"
                + (f" (once as {plain!r})" if plain != name else ""),
                "keep one of them",
            )  # fmt: skip
        result.append(name)
    return result


def unknown_columns(names: Iterable[str]) -> dict[str, str]:
    """Return the columns that the schema does not know, with the one likely meant ("" for none)."""
    near = {name: _meant(name) for name in names if name not in COLUMNS}
    return {name: ALIASES.get(close, close) for name, close in near.items()}


def _meant(name: str) -> str:
    plain = _plain_header(name)
    stem = _UNIT_ENDING.sub("", plain)
    known = _STEMS.get(stem)
    if (known is not None and stem != plain) or (plain in ALIASES and plain != name):
        return plain if known is None else known.name
    return _HINTS.get(plain) or _HINTS.get(stem) or likely_name(name, (*COLUMNS, *ALIASES))


def misspelt_columns(names: Iterable[str]) -> dict[str, str]:
    """Return the columns that the schema does not know and that look like one that it does."""
    return {name: near for name, near in unknown_columns(names).items() if near}


def map_words(meant: Mapping[str, str]) -> str:
    """Return how columns are read as those that were likely meant, by their names; "" for none."""
    options = " ".join(f"--map '{name}={column}'" for name, column in meant.items() if column)
    return f"; if so: {options}" if options else ""


@dataclass(frozen=True)
class Lines(ColumnRows):
    """The file ("" of none) and line (or row, as `word` says of each file) of n rows, counted from 1."""

    files: tuple[str, ...]
    file: NDArray[np.int32]
    line: NDArray[np.int32]
    word: tuple[str, ...]

    @staticmethod
    def of_file(name: str, line: Sequence[int] | NDArray[Any], word: str = "line") -> Lines:
        """Return the places of one file's rows."""
        lines = np.asarray(line, dtype=np.int32)
        return Lines((name,), np.zeros(len(lines), dtype=np.int32), lines, (word,))

    def text(self, row: int) -> str:
        """Return where a row stands: `runs.csv line 17`, or `row 16`."""
        at = int(self.file[row])
        return f"{self.files[at]} {self.word[at]} {int(self.line[row])}".strip()


def joined_lines(parts: Sequence[Lines]) -> Lines:
    """Return the places of the rows of all parts, in order."""
    starts = np.cumsum([0, *(len(part.files) for part in parts)])
    moved = [part.file + start for part, start in zip(parts, starts, strict=False)]
    return Lines(
        tuple(name for part in parts for name in part.files),
        np.concatenate(moved).astype(np.int32), np.concatenate([part.line for part in parts]),
        tuple(word for part in parts for word in part.word),
    )  # fmt: skip


_LOOSE = ("dataset",)  # columns whose labels are spelled in several ways
_TIMES = ("step_time_s", "epoch_time_s", "time_to_train_s")
_RATES = ("samples_per_s", "tokens_per_s", "tflops_per_device")


def bounds(name: str) -> tuple[float, float, str]:
    """Return the least above zero and the most that a number column can hold, and both in words."""
    if name in _TIMES:  # a nanosecond is a few ticks of a clock, and 10^12 s are 30,000 years
        return 1e-9, 1e12, "1e-09 to 1e+12 s"
    return (1e-12, 1e18, "1e-12 to 1e+18") if name in _RATES else (0.0, 1e18, "1e+18 at most")


@dataclass(frozen=True)
class OwnColumns:
    """Columns of a user's own: the factors, which are part of a configuration, and why others are none.

    words: factors that are no numbers in all runs, and so are texts in every row.
    """

    factors: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """Columns of equal length by name; unknown columns are kept, missing ones are blank.

    Number columns are float64 with NaN for blanks, text columns object arrays of str with "". A cell that
    could not be read is blank: `problems` (n,) says why (None: all of the row was read), `unread` what it
    was, by column. `lines` is where rows were written, None where no file holds them. `own`: see
    `own_columns.with_own_columns`.
    """

    columns: Mapping[str, NDArray[Any]]
    rows: int
    problems: NDArray[np.object_] | None = None
    lines: Lines | None = None
    unread: Mapping[str, NDArray[np.object_]] = field(default_factory=dict)
    own: OwnColumns = field(default_factory=OwnColumns)

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
            numbers, bad = _read_numbers(column)
            for row, cell in bad.items():
                raise _no_number("the table", row, cell, name)
            return numbers
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
        values = {name: column[i] for name, column in self.columns.items()}
        return {n: float(v) if isinstance(v, np.floating) else v for n, v in values.items()
                if not _is_blank(v)}  # fmt: skip

    def take(self, index: NDArray[Any]) -> Table:
        """Return the rows at the given positions (or where a mask is true)."""
        rows = int(index.sum()) if index.dtype == bool else len(index)
        return replace(taken(self, index), rows=rows)

    def with_columns(self, **columns: NDArray[Any]) -> Table:
        """Return the table with columns added or replaced."""
        unread = {name: texts for name, texts in self.unread.items() if name not in columns}
        return replace(self, columns={**self.columns, **columns}, unread=unread)

    def places(self) -> Lines:
        """Return where each row was written; rows that no file holds are counted from 1."""
        if self.lines is not None:
            return self.lines
        return Lines.of_file("", np.arange(1, self.rows + 1), "row")

    def groups(self, names: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first row of each distinct value of the columns (groups,), and each row's group (n,)."""
        cells = [sortable(matched(name, self.columns[name])) for name in names if name in self]
        ranks = [np.unique(column, return_inverse=True)[1] for column in cells]
        return alike([np.zeros(self.rows, dtype=np.int64), *ranks])[::-1]

    @staticmethod
    def from_rows(rows: Iterable[Mapping[str, Any]], where: str = "rows") -> Table:
        """Return a table from mappings; a name missing from a row is blank."""
        rows = list(rows)
        names = dict.fromkeys(name for row in rows for name in row)
        raw = {name: [row.get(name, "") for row in rows] for name in names}
        return Table.from_columns(raw, where)

    @staticmethod
    def from_columns(
        raw: Mapping[str, Sequence[Any] | NDArray[Any]], where: str = "columns"
    ) -> Table:
        """Return a table from raw columns of text or numbers; a cell that is no number is a row's problem.

        Raises RequestError for wrong names, unequal lengths, or a number column without a number.
        """
        names = canonical_names(list(raw), where)
        lengths = {len(values) for values in raw.values()}
        if len(lengths) > 1:
            raise RequestError(
                f"reading {where}", f"columns of {sorted(lengths)} rows", "give equal lengths"
            )
        columns: dict[str, NDArray[Any]] = {}
        bad: dict[int, str] = {}
        rows, unread = lengths.pop(), {}
        for name, values in zip(names, raw.values(), strict=True):
            columns[name], wrong = _typed(name, values, where)
            if wrong:
                unread[name] = by_row({row: str(values[row]) for row in wrong}, rows, "")
            bad = {**wrong, **bad}
        return Table(columns, rows, by_row(bad, rows, None) if bad else None, unread=unread)


def _read_numbers(values: Sequence[Any] | NDArray[Any]) -> tuple[FloatArray, dict[int, Any]]:
    """Return text cells as float64 and, by row, those that are no number (they are NaN)."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "fiub":
        return values.astype(np.float64), {}
    cells = ["nan" if v is None or v == "" else v for v in values]
    try:
        return np.array(cells, dtype=np.float64), {}
    except (ValueError, TypeError, OverflowError):
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
    """Return a column in its kind, and by row what is wrong with a cell of it."""
    known = COLUMNS.get(name)
    if known is not None and known.kind == "number":
        numbers, bad = _read_numbers(values)
        if bad and np.isnan(numbers).all():
            row = next(iter(bad))
            raise _no_number(where, row, bad[row], name)
        wrong = {r: f"{name}={str(c)[:40]!r} is not a number; correct it" for r, c in bad.items()}
        (least, most, words), size = bounds(name), np.abs(numbers)
        with np.errstate(invalid="ignore"):
            beyond = np.isfinite(size) & (size > 0) & ((size < least) | (size > most))
        absurd = np.flatnonzero(beyond).tolist()
        wrong |= {
            row: f"{name}={numbers[row]:g} is no figure of a run ({words}); correct it"
            for row in absurd
        }
        numbers[absurd] = np.nan
        return numbers, wrong
    if isinstance(values, np.ndarray) and np.issubdtype(values.dtype, np.number):
        return (values.astype(np.float64) if known is None else _texts(values)), {}
    return _texts(values), {}


def by_row(texts: Mapping[int, str], rows: int, other: str | None) -> NDArray[np.object_]:
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


def matched(name: str, column: NDArray[Any]) -> NDArray[Any]:
    """Return a column with labels that mean the same spelled as the first of them, (n,): see `label_key`."""
    if name not in _LOOSE or column.dtype != object:
        return column
    first: dict[str, str] = {}
    spelled = {c: first.setdefault(label_key(name, c), c) for c in dict.fromkeys(column.tolist())}
    return np.array([spelled[cell] for cell in column.tolist()], dtype=object)


def label_key(name: str, text: str) -> str:
    """Return what a label of a column is known by: of a dataset without case, hyphens and spaces."""
    return re.sub(r"[\s_-]+", "", text.lower()) if name in _LOOSE else text.strip()


def sortable(column: NDArray[Any]) -> NDArray[Any]:
    """Return a column as numbers that sort as its cells do, (n,)."""
    if column.dtype != object:
        return column
    cells = column.tolist()
    place = {cell: i for i, cell in enumerate(sorted(set(cells)))}
    return np.fromiter(map(place.__getitem__, cells), np.int64, len(cells))


def iter_rows(table: Table) -> Iterator[dict[str, Any]]:
    """Yield rows without their blanks."""
    yield from map(table.row, range(len(table)))


def configurations(table: Table) -> tuple[int, NDArray[np.int64]]:
    """Return the number of distinct configurations, and each row's (n,); repeats of a run share it."""
    asked = [
        name for name in table.columns
        if name in table.own.factors
        or (name in COLUMNS and COLUMNS[name].group not in ("origin", "measured"))
    ]  # fmt: skip
    first, groups = table.groups(asked)
    return len(first), groups


def measured_rows(name: str, table: Table) -> Table:
    """Return the rows with a measured figure or status. Raises RequestError, about `name`, where none has one."""
    measured = np.zeros(len(table), dtype=bool)
    for title, column in table.columns.items():
        if title in COLUMNS and COLUMNS[title].group == "measured":
            measured |= ~np.isnan(column) if column.dtype != object else column != ""
            if title in table.unread:
                measured |= table.unread[title] != ""
    if not measured.any():
        raise RequestError(
            f"importing {name}", "no row has a measured figure, so none is a run",
            "fill step_time_s, another measured column, or status; see docs/tables.md",
        )  # fmt: skip
    return table.take(np.flatnonzero(measured))
