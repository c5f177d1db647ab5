"""Notes: what a reader must know of how one table was divided, in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from forerun.evaluate.aliases import grounded
from forerun.evaluate.folds import Fold
from forerun.evaluate.splits import Split
from forerun.tables import Table
from forerun.units import counted

FloatArray = NDArray[np.float64]


def notes_of(split: Split, table: Table, folds: Sequence[Fold]) -> tuple[str, ...]:
    """Return what was put for a word or bound of the split, and the trap of interpolation."""
    here, notes = grounded(split, table)
    if here.kind != "interpolation" or table.columns[here.column].dtype == object:
        return notes
    values = table.numbers(here.column)
    return (*notes, *_ends(here.column, values[folds[0].train], values[folds[0].test]))


def _ends(column: str, taught: FloatArray, judged: FloatArray) -> tuple[str, ...]:
    """Return how many judged rows lie below or above everything that teaches."""
    said = []
    for name, beyond in (("below", judged < taught.min()), ("above", judged > taught.max())):
        if beyond.any():
            values = ", ".join(f"{v:g}" for v in np.unique(judged[beyond]))
            rows = counted(int(beyond.sum()), "row")
            said.append(f"{rows} of {len(judged):,} ({column} {values}) {name} all that teach")
    if not said:
        return ()
    return (
        f"interpolation:{column} judges {' and '.join(said)}: extrapolation;"
        f" between:{column} leaves the ends out",
    )
