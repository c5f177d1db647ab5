"""OwnLabels: a label that given runs use for a workload of their own means that workload when asked.

A label such as `mlp` may be a name of the zoo too. Who gives runs of their own `mlp` and asks rows that
say `mlp` and no more means what was run; whoever means the zoo's writes its name (`mlp-mnist`), or
states the shape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from forerun.domain.workload import Workload
from forerun.tables import Jobs, Table
from forerun.units import counted, format_count
from forerun.workloads.columns import (
    COLUMN_SOURCES,
    WORKLOAD_COLUMNS,
    RowCells,
    described,
    workload_from_columns,
)

# What says which structure is meant, and what of it may be asked otherwise.
_SIZES = ("seq_len", "image_size")
_STRUCTURE = ("params", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "experts", "gmacs",
              "mactivations")  # fmt: skip
_TRAINING = ("framework", "dataset", "dataset_size", "precision", "optimizer", "task")
_TOLERANCE = 1e-3  # a share; cells are rounded where they are written
_AS_GIVEN = "as the given runs have it"


@dataclass(frozen=True)
class _Known:
    """One distinct workload of the runs: its cells, what it is, and how many runs have it."""

    cells: RowCells
    workload: Workload
    runs: int

    def agrees(self, row: RowCells) -> bool:
        """Return whether nothing that a row states of its structure is otherwise here."""
        return all(self._has(row, column) for column in (*_STRUCTURE, *_SIZES))

    def _has(self, row: RowCells, column: str) -> bool:
        """Return whether a cell that the row states is the runs'; where theirs is blank, what it means."""
        if not row.text(column):
            return True
        stated, mine = row.number(column), self.cells.number(column) or self._implied(column)
        return not mine or abs(stated - mine) <= _TOLERANCE * max(stated, mine)

    def _implied(self, column: str) -> float:
        """Return a figure of the workload itself, 0 where it does not say it."""
        one = self.workload
        if column == "gmacs":
            return one.graph.forward_flops / 2e9
        return float(getattr(one, column, 0) or getattr(one.shape, column, 0))

    @property
    def structure(self) -> tuple[Any, ...]:
        """What tells structures apart, whatever they are trained in and on."""
        one = self.workload
        return (one.params, one.graph.forward_flops, one.shape, one.seq_len, one.image_size)

    @property
    def own(self) -> bool:
        """Whether it is another workload than the zoo's of that name."""
        bare = {n: v for n, v in self.cells.values.items() if n not in _STRUCTURE}
        usual = workload_from_columns(bare)
        if isinstance(usual, str):
            return True
        mine = self.workload
        return usual.name != mine.name or any(
            abs(a - b) > _TOLERANCE * max(a, b)
            for a, b in ((usual.params, mine.params),
                         (usual.graph.forward_flops, mine.graph.forward_flops))
        )  # fmt: skip


@dataclass(frozen=True)
class OwnLabels:
    """The labels that runs use, each with the distinct workloads that they mean by it."""

    by_label: Mapping[str, Sequence[_Known]] = field(default_factory=dict)

    @staticmethod
    def of(jobs: Jobs | None) -> OwnLabels:
        """Return the labels of n jobs that were run; rows without a workload use none."""
        if jobs is None or jobs.labels is None:
            return OwnLabels()
        first, group = jobs.labels.groups(WORKLOAD_COLUMNS)
        counts = np.bincount(group, minlength=len(first))
        names = [name for name in WORKLOAD_COLUMNS if name in jobs.labels]
        part = Table({name: jobs.labels.columns[name] for name in names}, len(jobs))
        found: dict[str, list[_Known]] = {}
        for row, count in zip(first.tolist(), counts.tolist(), strict=True):
            cells, at = RowCells(part.row(row)), int(jobs.workload_index[row])
            if at >= 0 and cells.text("workload"):
                known = _Known(cells, jobs.workloads[at], count)
                found.setdefault(_label(cells), []).append(known)
        return OwnLabels(found)

    def has_own(self, label: str) -> bool:
        """Return whether any run uses a label for another workload than the zoo's of that name."""
        return any(one.own for one in self.by_label.get(label.strip().lower(), ()))

    def read(self, row: Mapping[str, Any]) -> Workload | str:
        """Return the workload of a row, or why its columns do not tell it.

        As `workload_from_columns`, but that a label of which the runs have one structure of their
        own, which agrees with all that the row states, is theirs; of how it is trained the row's
        own cells count, then those that all these runs have.
        """
        cells = RowCells(row)
        usual = workload_from_columns(row)
        try:
            return self._meant(cells, usual)
        except ValueError as error:
            return str(error)

    def _meant(self, row: RowCells, usual: Workload | str) -> Workload | str:
        known = self.by_label.get(_label(row), ())
        stands_alone = not isinstance(usual, str) and usual.source in COLUMN_SOURCES
        near = [one for one in known if one.agrees(row)]
        own = [one for one in near if one.own]
        if not own:
            if known and not stands_alone and all(one.own for one in known):
                return _another(row, known, usual)
            return usual
        if len(own) < len(near):  # some runs say no more than this row does, and are the zoo's
            return _with_doubt(
                usual, f"of the given runs of {row.text('workload')!r} some are another workload"
            )
        if len({one.structure for one in own}) > 1:
            return usual if stands_alone else _several(row, own)
        return _as_run(row, own, usual)


def meant_note(workload: Workload) -> str:
    """Return what is said of a workload that a label of runs stands for, "" of any other."""
    return next((note for note in workload.notes if _AS_GIVEN in note), "")


def _as_run(row: RowCells, own: Sequence[_Known], usual: Workload | str) -> Workload:
    """Return the runs' workload, stated by the row's cells, else by those that all runs have."""
    most = max(own, key=lambda one: one.runs)
    values = dict(row.values)
    notes = []
    for column in _TRAINING:
        if row.text(column):
            continue
        had = Counter[str]()
        for one in own:
            had[one.cells.text(column)] += one.runs
        values[column] = most.cells.text(column)
        if len(had) > 1:
            others = ", ".join(text or "none" for text in sorted(had))
            notes.append(f"{column} is not stated, and these runs have {others}:"
                         f" {values[column] or 'none'} taken")  # fmt: skip
    merged, workload = RowCells(values), most.workload
    if isinstance(usual, str) or usual.source not in COLUMN_SOURCES:
        notes.insert(0, _origin_note(row, own, usual))
    stated = (*workload.notes, *notes)
    return described(merged, workload.with_(**merged.trained, notes=stated))


def _origin_note(row: RowCells, own: Sequence[_Known], usual: Workload | str) -> str:
    runs = counted(sum(one.runs for one in own), "run")
    other = "" if isinstance(usual, str) else f", not the zoo's {usual.name}"
    size = format_count(own[0].workload.params)
    return (
        f"{row.text('workload')!r} is the workload of {size} parameters {_AS_GIVEN} ({runs}){other}"
    )


def _with_doubt(usual: Workload | str, said: str) -> Workload | str:
    if isinstance(usual, str):
        return usual
    return usual.with_(notes=(*usual.notes, f"taken as the zoo's {usual.name}, though {said}"))


def _another(row: RowCells, known: Sequence[_Known], usual: Workload | str) -> str:
    """Return why a row that states another structure than the runs' label is not answered."""
    label = row.text("workload")
    stated = [c for c in (*_STRUCTURE, *_SIZES) if row.text(c) and not any(
        one.agrees(RowCells({c: row.values[c]})) for one in known)]  # fmt: skip
    theirs = (
        ", ".join(f"{c} {_distinct(c, known)}" for c in stated) or "not in these columns together"
    )
    zoo = "" if isinstance(usual, str) else f", or write {usual.name} if the zoo's is meant"
    return (
        f"workload {label!r}: the given runs have it with {theirs}; state its shape or params and"
        f" gmacs{zoo}"
    )


def _several(row: RowCells, own: Sequence[_Known]) -> str:
    apart = [c for c in (*_SIZES, *_STRUCTURE) if len({one.cells.text(c) for one in own}) > 1]
    stated = "; ".join(f"{c} {_distinct(c, own)}" for c in apart[:3])
    return (
        f"workload {row.text('workload')!r}: the given runs have {len({o.structure for o in own})}"
        f" workloads of that label ({stated}): state {' or '.join(apart[:3]) or 'which'}"
    )


def _distinct(column: str, known: Iterable[_Known]) -> str:
    values = dict.fromkeys(one.cells.text(column) or "blank" for one in known)
    return " or ".join(list(values)[:4]) + (" ..." if len(values) > 4 else "")


def _label(row: RowCells) -> str:
    return row.text("workload").lower()
