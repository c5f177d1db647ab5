"""Flags: what looks wrong in a runs table, row by row, as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.tables.table import Lines, OwnColumns, Table

Texts = NDArray[np.object_]


class FlagKind(StrEnum):
    """What can be wrong with a row: its name, its meaning, and what becomes of the time in a fit."""

    meaning: str
    fate: str

    def __new__(cls, name: str, meaning: str, fate: str) -> FlagKind:
        """Return the kind as a text that is its name."""
        kind = str.__new__(cls, name)
        kind._value_, kind.meaning, kind.fate = name, meaning, fate
        return kind

    UNIT = "unit", "a figure in another unit than its column's", "left out where certainly wrong"
    FLOOR = "below-floor", "faster than the device could compute it at its peak", "left out"
    CAPACITY = "above-capacity", "more memory than the device has", "its memory left out"
    COLUMNS = "columns-disagree", "measured columns of one row contradict one another", "kept"
    REPEATS = "contradictory-repeats", "the same job with another time, beyond noise", "kept"
    ACCUMULATION = "accumulation", "global_batch is not micro_batch x dp x grad_accum", "kept"
    BATCH = "batch", "global_batch is blank, and taken as micro_batch x dp", "kept"
    PLACEMENT = "placement", "devices that do not divide among the nodes, and no placement", "kept"
    CELL = "cell", "a cell that cannot be read, or a figure that is not above zero", "left out"
    WORKLOAD = "workload", "a workload that is not known nor described", "left out"
    CLUSTER = "cluster", "a device that is not known, or counts that contradict", "left out"
    DEVICES = "devices", "a plan that does not multiply to the devices", "left out"
    PLAN = "plan", "a plan that is not stated in full, or not legal", "left out"
    STATUS = "status", "a status that is none of ok oom failed timeout", "left out"
    ENDED = "ended", "ended oom, failed or timeout", "not a fault: no time to learn"
    UNMEASURED = ("unmeasured", "no step time, nor rate with a batch size",
                  "not a fault: no time to learn")  # fmt: skip
    CUT = "cut", "layers cut over devices, of which no fit learns", "not a fault: left out"


KINDS: tuple[FlagKind, ...] = tuple(FlagKind)
_AT = {kind: i for i, kind in enumerate(KINDS)}
# Not faults: they explain why the time of a row is not fitted by physics, or what was assumed.
EXPLAINED = (
    FlagKind.PLACEMENT, FlagKind.WORKLOAD, FlagKind.CLUSTER, FlagKind.PLAN, FlagKind.ENDED,
    FlagKind.UNMEASURED, FlagKind.CUT,
)  # fmt: skip


@dataclass(frozen=True)
class Flags:
    """m flags on n rows, ordered by row; a row may bear several.

    Attributes:
        row, kind: (m,) positions of the rows, and in `KINDS`.
        column, found, expected, advice: (m,) texts; several columns are joined by spaces.
        void, out_step, out_memory: (m,) whether the figure is not to be used, and whether the row is
            kept out of the fit of time, or memory.
        wholes, unread: findings on whole columns and on frameworks' names; columns that nobody reads, with the likely name.
        own: columns of the user's own that are part of a configuration, and why others are not.
        by_label: (n,) rows that were fitted by their labels, without physics, if any can be.
    """

    rows: int
    row: NDArray[np.int64]
    kind: NDArray[np.int8]
    column: Texts
    found: Texts
    expected: Texts
    advice: Texts
    void: NDArray[np.bool_]
    out_step: NDArray[np.bool_]
    out_memory: NDArray[np.bool_]
    places: Lines
    wholes: tuple[str, ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict)
    own: OwnColumns = field(default_factory=OwnColumns)
    by_label: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.row)

    def of(self, *kinds: FlagKind) -> NDArray[np.bool_]:
        """Return which flags are of the given kinds, (m,)."""
        return np.isin(self.kind, [_AT[kind] for kind in kinds])

    @property
    def suspect(self) -> NDArray[np.bool_]:
        """Which flags speak of a fault, and not only explain why a row is not fitted, (m,)."""
        return ~self.of(*EXPLAINED)

    def rows_with(self, flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which rows bear one of the flags of a mask (m,), shape (n,)."""
        found = np.zeros(self.rows, dtype=bool)
        found[self.row[flags]] = True
        return found

    @property
    def teaches_step(self) -> NDArray[np.bool_]:
        """Whose time may be fitted, (n,)."""
        return ~self.rows_with(self.out_step)

    @property
    def teaches_time(self) -> NDArray[np.bool_]:
        """Whose time was fitted, by physics or by label, (n,)."""
        return self.teaches_step if self.by_label is None else self.teaches_step | self.by_label

    def counts(self) -> dict[str, int]:
        """Return the number of rows that bear each kind, in the order of `KINDS`."""
        found = {kind: int(self.rows_with(self.of(kind)).sum()) for kind in KINDS}
        return {str(kind): count for kind, count in found.items() if count}

    def text(self, i: int) -> str:
        """Return flag i as a sentence: where, the value found, what was expected, what to do."""
        where = self.places.text(int(self.row[i]))
        # Without an expected value, `found` is a sentence of its own.
        named = f"{self.column[i]} is {self.found[i]}" if self.expected[i] else str(self.found[i])
        wanted = f"expected {self.expected[i]}" if self.expected[i] else ""
        return "; ".join(str(p) for p in (f"{where}: {named}", wanted, self.advice[i]) if p)

    def as_table(self) -> Table:
        """Return the flags as a table, one row a flag."""
        places, row = self.places, self.row
        files = np.array(places.files, dtype=object)
        kinds = np.array([str(kind) for kind in KINDS], dtype=object)
        return Table(
            {
                "file": files[places.file[row]], "line": places.line[row].astype(np.float64),
                "kind": kinds[self.kind], "column": self.column, "found": self.found,
                "expected": self.expected, "advice": self.advice,
                "teaches_step_time": ~self.out_step, "teaches_memory": ~self.out_memory,
            },
            len(self),
        )  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        """Return the counts, and every flag as columns of equal length, as plain values for JSON."""
        columns = {name: c.tolist() for name, c in self.as_table().columns.items()}
        columns["line"] = [int(line) for line in columns["line"]]
        return {
            "rows": self.rows,
            "flagged_rows": int(self.rows_with(np.ones(len(self), dtype=bool)).sum()),
            "suspect_rows": int(self.rows_with(self.suspect).sum()),
            "rows_that_teach_time": int(self.teaches_time.sum()), "counts": self.counts(),
            "whole_columns": list(self.wholes), "unread_columns": dict(self.unread),
            "own_columns": list(self.own.factors), "own_columns_left_out": dict(self.own.left_out),
            "flags": columns,
        }  # fmt: skip


@dataclass(frozen=True)
class RaisedFlags:
    """Flags of one kind on m rows, before they are joined; texts and marks may be one for all."""

    kind: FlagKind
    row: NDArray[np.int64]
    column: str | Texts
    found: str | Texts
    expected: str | Texts
    advice: str | Texts
    void: bool | NDArray[np.bool_] = False
    out_step: bool | NDArray[np.bool_] = False
    out_memory: bool | NDArray[np.bool_] = False


def joined(raised: Sequence[RaisedFlags], places: Lines, wholes: Sequence[str] = ()) -> Flags:
    """Return the flags of several checks on the rows of one table, ordered by row."""
    rows = np.concatenate([np.empty(0, dtype=np.int64), *(r.row for r in raised)])
    order = np.argsort(rows, kind="stable")

    def column(name: str, kind: Any) -> NDArray[Any]:
        pieces = [np.broadcast_to(np.array(getattr(r, name), kind), r.row.shape) for r in raised]
        return np.concatenate([np.empty(0, kind), *pieces])[order]

    kinds = dict.fromkeys(("column", "found", "expected", "advice"), object)
    kinds |= dict.fromkeys(("void", "out_step", "out_memory"), bool)
    columns: dict[str, Any] = {name: column(name, kind) for name, kind in kinds.items()}
    numbers = [np.full(len(r.row), _AT[r.kind], dtype=np.int8) for r in raised]
    number = np.concatenate([np.empty(0, dtype=np.int8), *numbers])[order]
    return Flags(len(places), rows[order], number, **columns, places=places, wholes=tuple(wholes))


def numbers_text(values: NDArray[Any], unit: str = "") -> Texts:
    """Return numbers as text with their unit, (m,)."""
    plain = (f"{v:,.0f}" if 1e4 <= abs(v) < 1e15 else f"{v:.4g}" for v in values.tolist())
    return np.array([f"{text} {unit}".rstrip() for text in plain], dtype=object)


def finding(
    kind: FlagKind, rows: NDArray[np.bool_], column: str,
    found: str | tuple[NDArray[Any], str], expected: str | tuple[NDArray[Any], str], advice: str,
    void: bool = False, out_step: bool = False, out_memory: bool = False,
) -> RaisedFlags:  # fmt: skip
    """Return flags on the rows of a mask (n,); figures are (n,) with their unit."""
    row = np.flatnonzero(rows)
    was, wanted = (
        t if isinstance(t, str) else numbers_text(t[0][row], t[1]) for t in (found, expected)
    )
    return RaisedFlags(kind, row, column, was, wanted, advice, void, out_step, out_memory)
