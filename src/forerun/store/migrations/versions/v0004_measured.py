"""Columns for what a measured run says of its step; cells that lay in `rest` move into them."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_NUMBERS = (
    "cpus_per_worker", "node_gbps", "step_mean_s", "step_std_s", "step_low_s", "step_high_s",
    "measured_steps", "input_time_s", "forward_time_s", "backward_time_s", "optimizer_time_s",
    "comm_time_s", "comm_gb", "cpu_share", "gpu_share", "network_bytes_per_s", "run_time_s",
)  # fmt: skip
_ROWS = 5000


class _Number(str):
    """A number of a JSON text, as it was written."""

    __slots__ = ()


def upgrade() -> None:
    """Add the columns, and move what earlier stores kept of them as JSON."""
    for name in _NUMBERS:
        op.add_column("runs", sa.Column(name, sa.Double))
    connection = op.get_bind()
    runs = sa.table("runs", *map(sa.column, ("id", "rest", *_NUMBERS)))
    last = 0
    while rows := _after(connection, runs, last):
        last = rows[-1].id
        changed = [change for row in rows if (change := _change(row.id, row.rest)) is not None]
        if changed:
            values: dict[str, Any] = {name: sa.bindparam(f"b_{name}") for name in _NUMBERS}
            move = sa.update(runs).where(runs.c.id == sa.bindparam("b_id"))
            connection.execute(move.values(rest=sa.bindparam("b_rest"), **values), changed)


def _after(connection: Any, runs: Any, last: int) -> list[Any]:
    query = sa.select(runs.c.id, runs.c.rest).where(runs.c.id > last, runs.c.rest.is_not(None))
    return list(connection.execute(query.order_by(runs.c.id).limit(_ROWS)))


def _change(row: int, rest: str) -> dict[str, Any] | None:
    """Return the new cells of a row, None where it has none of the columns."""
    members = json.loads(rest, parse_float=_Number, parse_int=_Number)
    # A text is a cell that could not be read as a number: it stays beside the blank.
    moved = {n: float(members.pop(n)) for n in _NUMBERS if isinstance(members.get(n), _Number)}
    if not moved:
        return None
    left = ",".join(
        f"{json.dumps(name, ensure_ascii=False)}:"
        + (value if isinstance(value, _Number) else json.dumps(value, ensure_ascii=False))
        for name, value in members.items()
    )
    return {
        "b_id": row, "b_rest": f"{{{left}}}" if left else None,
        **{f"b_{name}": moved.get(name) for name in _NUMBERS},
    }  # fmt: skip
