"""The `plan` column of a runs table: its text (`tp=2,pp=4`) put into the plan columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.domain.forecast import is_none
from forerun.domain.plan import FIELDS, parse_plan
from forerun.errors import RequestError
from forerun.tables import COLUMNS, Table

Reasons = NDArray[np.object_]


def spread_plans(table: Table) -> tuple[Table, Reasons]:
    """Return the table with each row's plan text in the plan columns, and what is wrong with it.

    A field that the text names and a cell of its own must not contradict one another. Reasons
    are (n,), None where there is none.
    """
    problems: Reasons = np.full(len(table), None, dtype=object)
    if "plan" not in table:
        return table, problems
    texts = table.texts("plan")
    columns: dict[str, NDArray[Any]] = {}
    for text in dict.fromkeys(texts.tolist()):
        if not text.strip():
            continue
        rows = np.asarray(texts == text, dtype=bool)
        try:
            fields = parse_plan(text)
        except RequestError as error:
            problems[rows] = str(error)
            continue
        for name, value in fields.items():
            if name not in columns:
                columns[name] = _column(table, name)
            _fill(columns[name], rows, name, value, problems)
    return table.with_columns(**columns), problems


def _column(table: Table, name: str) -> NDArray[Any]:
    number = COLUMNS[name].kind == "number"
    return (table.numbers(name) if number else table.texts(name)).copy()


def _fill(
    column: NDArray[Any], rows: NDArray[np.bool_], name: str, value: object, problems: Reasons
) -> None:
    """Put a field into the blank cells of some rows; a cell that says otherwise is a problem."""
    if column.dtype == object:
        text = str(value).lower()
        blank = np.asarray(column == "", dtype=bool)
        other = ~blank & np.array([str(cell).strip().lower() != text for cell in column])
    else:
        text = f"{value}"
        blank = np.isnan(column)
        other = ~blank & (column != value)
    clash = rows & other & is_none(problems)
    if clash.any():
        problems[clash] = f"the plan says {name}={text} and its own column another; give it once"
    column[rows & blank] = text if column.dtype == object else value


assert set(FIELDS) <= set(COLUMNS)
