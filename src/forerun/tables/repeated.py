"""Configurations: which rows of a runs table are repeats of one measurement."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forerun.tables.schema import COLUMNS
from forerun.tables.table import Table


def configurations(table: Table) -> tuple[int, NDArray[np.int64]]:
    """Return the number of distinct questions, and each row's (n,); repeats of a run share it.

    Columns of one's own (a run's id, a seed, a date) are no part of a question: else each repeat
    would be a question by itself, and judged beside its twin.
    """
    asked = [
        name for name in table.columns
        if name in COLUMNS and COLUMNS[name].group not in ("origin", "measured")
    ]  # fmt: skip
    first, groups = table.groups(asked)
    return len(first), groups
