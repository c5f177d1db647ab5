"""OwnLabels: a label that given runs use for a workload of their own means that workload in a question.

Whoever means the zoo's network of that name writes its full name (`mlp-mnist`), or states the shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
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

# Which columns state the structure, and which of them a question may change.
_STRUCTURE = ("seq_len", "image_size", "params", "layers", "hidden", "heads", "kv_heads", "ffn",
              "vocab", "experts", "gmacs", "mactivations")  # fmt: skip
_TRAINING = ("framework", "dataset", "dataset_size", "precision", "optimizer", "task")
_TOLERANCE = 1e-3  # a share; cells are rounded where they are written
_AS_GIVEN = "as the given runs have it"


@dataclass(frozen=True)
class _RunWorkload:
    """One distinct workload of the runs: its cells, what it is, and how many runs have it."""

    cells: RowCells
    workload: Workload
    runs: int

    def agrees(self, row: RowCells, columns: Sequence[str] = _STRUCTURE) -> bool:
        """Whether a row states nothing else of the structure; a blank cell of the runs is their workload's figure."""
        one = self.workload
        for column in columns:
            mine = self.cells.number(column)
            if not mine and column == "gmacs":
                mine = one.graph.forward_flops / 2e9
            mine = mine or float(getattr(one, column, 0) or getattr(one.shape, column, 0))
            if mine and row.text(column) and not _alike(row.number(column), mine):
                return False
        return True

    @cached_property
    def structure(self) -> tuple[Any, ...]:
        one = self.workload
        return (one.params, one.graph.forward_flops, one.shape, one.seq_len, one.image_size)

    @cached_property
    def is_own(self) -> bool:
        named = ("seq_len", "image_size")
        bare = {n: v for n, v in self.cells.values.items() if n in named or n not in _STRUCTURE}
        usual, mine = workload_from_columns(bare), self.workload
        return not (
            isinstance(usual, Workload)
            and usual.name == mine.name
            and _alike(usual.params, mine.params)
            and _alike(usual.graph.forward_flops, mine.graph.forward_flops)
        )


def _alike(one: float, other: float) -> bool:
    return abs(one - other) <= _TOLERANCE * max(one, other)


@dataclass(frozen=True)
class OwnLabels:
    """The labels that runs use, each with the distinct workloads that they mean by it."""

    by_label: Mapping[str, Sequence[_RunWorkload]] = field(default_factory=dict)

    @staticmethod
    def of(jobs: Jobs | None) -> OwnLabels:
        """Return the labels of n jobs that were run; rows without a workload use none."""
        if jobs is None or jobs.labels is None:
            return OwnLabels()
        first, group = jobs.labels.groups(WORKLOAD_COLUMNS)
        counts = np.bincount(group, minlength=len(first))
        names = [name for name in WORKLOAD_COLUMNS if name in jobs.labels]
        part = Table({name: jobs.labels.columns[name] for name in names}, len(jobs))
        found: dict[str, list[_RunWorkload]] = {}
        for row, count in zip(first.tolist(), counts.tolist(), strict=True):
            cells, at = RowCells(part.row(row)), int(jobs.workload_index[row])
            label = cells.text("workload").lower()
            if at >= 0 and label:
                found.setdefault(label, []).append(_RunWorkload(cells, jobs.workloads[at], count))
        return OwnLabels(found)

    def has_own(self, label: str) -> bool:
        """Return whether any run uses a label for another workload than the zoo's of that name."""
        return any(one.is_own for one in self.by_label.get(label.strip().lower(), ()))

    def read(self, row: Mapping[str, Any]) -> Workload | str:
        """Return the workload of a row, or why its columns do not determine it.

        As `workload_from_columns`, but a label of which the runs have one structure that agrees with
        the row is theirs; how it is trained is the row's own cells, then what all these runs share.
        """
        cells, usual = RowCells(row), workload_from_columns(row)
        try:
            return self._meant(cells, usual)
        except ValueError as error:
            return str(error)

    def _meant(self, row: RowCells, usual: Workload | str) -> Workload | str:
        label = row.text("workload")
        known = self.by_label.get(label.lower(), ())
        states_itself = isinstance(usual, Workload) and usual.source in COLUMN_SOURCES
        near = [one for one in known if one.agrees(row)]
        own = [one for one in near if one.is_own]
        if not own:
            if not known or states_itself or not all(one.is_own for one in known):
                return usual
            stated = [
                column
                for column in _STRUCTURE
                if row.text(column) and not any(one.agrees(row, (column,)) for one in known)
            ]
            theirs = _values(stated, known) or "not in these columns together"
            zoo = "" if isinstance(usual, str) else f", or write {usual.name} if the zoo's is meant"
            return (
                f"workload {label!r}: the given runs have it with {theirs}; state its shape or"
                f" params and gmacs{zoo}"
            )
        if len(own) < len(near):  # some runs say no more than this row does, and are the zoo's
            if isinstance(usual, str):
                return usual
            doubt = f"of the given runs of {label!r} some are another workload"
            note = f"taken as the zoo's {usual.name}, though {doubt}"
            return usual.with_(notes=(*usual.notes, note))
        structures = len({one.structure for one in own})
        if structures > 1 and not states_itself:
            apart = [c for c in _STRUCTURE if len({one.cells.text(c) for one in own}) > 1][:3]
            return (
                f"workload {label!r}: the given runs have {structures} workloads of that label"
                f" ({_values(apart, own)}): state {' or '.join(apart) or 'which'}"
            )
        return usual if structures > 1 else _as_run(row, own, usual)


def meant_note(workload: Workload) -> str:
    """Return the note on a workload that a label of runs stands for, "" of any other."""
    return next((note for note in workload.notes if _AS_GIVEN in note), "")


def _as_run(row: RowCells, own: Sequence[_RunWorkload], usual: Workload | str) -> Workload:
    """Return the runs' workload, stated by the row's cells, else by those that all runs have."""
    most = max(own, key=lambda one: one.runs)
    values = dict(row.values)
    notes = []
    if isinstance(usual, str) or usual.source not in COLUMN_SOURCES:
        size, runs = format_count(own[0].workload.params), sum(one.runs for one in own)
        other = "" if isinstance(usual, str) else f", not the zoo's {usual.name}"
        notes.append(
            f"{row.text('workload')!r} is the workload of {size} parameters {_AS_GIVEN}"
            f" ({counted(runs, 'run')}){other}"
        )
    for column in _TRAINING:
        if row.text(column):
            continue
        had = {one.cells.text(column) or "none" for one in own}
        values[column] = most.cells.text(column)
        if len(had) > 1:
            notes.append(f"{column} is not stated, and these runs have {', '.join(sorted(had))}:"
                         f" {values[column] or 'none'} taken")  # fmt: skip
    merged, workload = RowCells(values), most.workload
    stated = (*workload.notes, *notes)
    return described(merged, workload.with_(**merged.trained, notes=stated))


def _values(columns: Sequence[str], known: Sequence[_RunWorkload]) -> str:
    texts = {c: list(dict.fromkeys(one.cells.text(c) or "blank" for one in known)) for c in columns}
    return ", ".join(
        f"{c} {' or '.join(has[:4])}{' ...' if len(has) > 4 else ''}" for c, has in texts.items()
    )
