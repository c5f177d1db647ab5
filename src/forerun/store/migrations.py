"""Migrations: the steps by which a store's tables came to be as they are; the list only grows.

A step that was released never changes. Tables as they are now stand in `layout`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

VERSION_TABLE = "forerun_version"
_version = sa.Table(
    VERSION_TABLE, sa.MetaData(), sa.Column("version_num", sa.String(32), primary_key=True)
)

# Columns of the runs table that are columns of the database, by the step that made them. What the
# schema gained later, and columns of one's own, lie in `rest` as JSON until a step gives them a column.
TEXTS = (
    "source", "ref", "note", "workload", "family", "framework", "dataset", "precision",
    "optimizer", "device", "instance_type", "cluster", "placement", "interconnect", "plan",
    "recompute", "sequence_parallel", "memory_format", "task", "sync", "target", "status",
)  # fmt: skip
FIRST_NUMBERS = (
    "dataset_size", "params", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "experts",
    "seq_len", "image_size", "gmacs", "mactivations", "learning_rate", "nodes", "devices",
    "devices_per_node", "price_usd_per_hour", "global_batch", "micro_batch", "grad_accum", "dp",
    "tp", "pp", "cp", "ep", "vpp", "zero_stage", "parameter_servers", "steps", "samples", "tokens",
    "epochs", "step_time_s", "sync_time_s", "samples_per_s", "tokens_per_s", "tflops_per_device",
    "epoch_time_s", "time_to_train_s", "cost_usd", "memory_gb", "samples_to_target",
    "epochs_to_target", "grad_sqr", "grad_var", "repeats", "std_s",
)  # fmt: skip
MEASURED_NUMBERS = (
    "cpus_per_worker", "node_gbps", "step_mean_s", "step_std_s", "step_low_s", "step_high_s",
    "measured_steps", "input_time_s", "forward_time_s", "backward_time_s", "optimizer_time_s",
    "comm_time_s", "comm_gb", "cpu_share", "gpu_share", "network_bytes_per_s", "run_time_s",
)  # fmt: skip
# A rowid of SQLite is of type INTEGER by that very name; PostgreSQL's counters are 64 bits wide.
Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_ROWS = 5000


def _text(name: str, **options: Any) -> sa.Column[str]:
    return sa.Column(name, sa.Text, **{"nullable": False, **options})


def _table(op: Any, name: str, *columns: Any) -> None:
    op.create_table(name, sa.Column("id", Id, primary_key=True), *columns)


def _index(op: Any, name: str, *columns: str, partial: bool = False) -> None:
    """Make an index; a partial one leaves out the rows whose first column is blank."""
    only = sa.text(f"{columns[0]} IS NOT NULL") if partial else None
    op.create_index(name, "runs", list(columns), sqlite_where=only, postgresql_where=only)


def _runs(op: Any) -> None:
    """Runs, with the workloads, clusters and fingerprints that they share, and which columns any run fills."""
    for name in ("workloads", "clusters"):
        _table(op, name, _text("hash", unique=True), _text("name"), _text("body"))
    _table(op, "fingerprints", _text("hash", unique=True), _text("body"))
    op.create_table("filled_columns", _text("name", primary_key=True))
    _table(
        op, "runs", _text("key", unique=True), sa.Column("digest", sa.LargeBinary, nullable=False),
        _text("added"), *(sa.Column(name, sa.Text) for name in ("started", "campaign", "point")),
        sa.Column("workload_id", Id, sa.ForeignKey("workloads.id")),
        sa.Column("cluster_id", Id, sa.ForeignKey("clusters.id")),
        sa.Column("fingerprint_id", Id, sa.ForeignKey("fingerprints.id")),
        *(sa.Column(name, sa.Text) for name in TEXTS),
        *(sa.Column(name, sa.Double) for name in FIRST_NUMBERS),
        sa.Column("rest", sa.Text),
    )  # fmt: skip
    _index(op, "runs_by_workload", "workload", "device", "devices", "global_batch", "status")
    _index(op, "runs_by_device", "device", "devices", "workload")
    _index(op, "runs_by_status", "status", "workload")
    # Most runs have none of these.
    _index(op, "runs_by_batch", "global_batch", "devices", partial=True)
    _index(op, "runs_by_machine", "instance_type", "nodes", partial=True)
    _index(op, "runs_by_framework", "framework", "devices", partial=True)
    _index(op, "runs_by_source", "source", partial=True)
    _index(op, "runs_by_campaign", "campaign", "point", partial=True)


def _campaigns(op: Any) -> None:
    """Campaigns with their points, and searches with their steps."""
    for name, points in (("campaigns", "campaign_points"), ("searches", "search_steps")):
        _table(op, name, _text("name", unique=True), _text("spec"), _text("created"))
        _table(
            op, points, sa.Column("owner_id", Id, sa.ForeignKey(f"{name}.id"), nullable=False),
            _text("point"), _text("status"), _text("run_key", nullable=True),
            _text("note", nullable=True), _text("updated"), sa.UniqueConstraint("owner_id", "point"),
        )  # fmt: skip


def _artifacts(op: Any) -> None:
    """Artifacts: models, plots and reports, with the runs that they were made from."""
    _table(
        op, "artifacts", _text("digest"), _text("name"), _text("kind"),
        sa.Column("size_bytes", Id, nullable=False), _text("path", nullable=True),
        sa.Column("content", sa.LargeBinary), sa.Column("seed", Id), _text("commit", nullable=True),
        _text("command", nullable=True), _text("created"), sa.UniqueConstraint("digest", "name"),
    )  # fmt: skip
    op.create_table(
        "artifact_runs",
        sa.Column("artifact_id", Id, sa.ForeignKey("artifacts.id"), primary_key=True),
        _text("run_key", primary_key=True),
    )


class _Number(str):
    """A number of a JSON text, as it was written."""

    __slots__ = ()


def _measured(op: Any) -> None:
    """Columns for what a measured run says of its step; cells that lay in `rest` move into them."""
    for name in MEASURED_NUMBERS:
        op.add_column("runs", sa.Column(name, sa.Double))
    connection = op.get_bind()
    runs = sa.table("runs", *map(sa.column, ("id", "rest", *MEASURED_NUMBERS)))
    last = 0
    while rows := _after(connection, runs, last):
        last = rows[-1].id
        changed = [change for row in rows if (change := _change(row.id, row.rest)) is not None]
        if changed:
            values: dict[str, Any] = {name: sa.bindparam(f"b_{name}") for name in MEASURED_NUMBERS}
            move = sa.update(runs).where(runs.c.id == sa.bindparam("b_id"))
            connection.execute(move.values(rest=sa.bindparam("b_rest"), **values), changed)


def _after(connection: Any, runs: Any, last: int) -> list[Any]:
    query = sa.select(runs.c.id, runs.c.rest).where(runs.c.id > last, runs.c.rest.is_not(None))
    return list(connection.execute(query.order_by(runs.c.id).limit(_ROWS)))


def _change(row: int, rest: str) -> dict[str, Any] | None:
    """Return the new cells of a row, None where it has none of the columns."""
    members = json.loads(rest, parse_float=_Number, parse_int=_Number)
    # A text is a cell that could not be read as a number: it stays beside the blank.
    moved = {
        n: float(members.pop(n)) for n in MEASURED_NUMBERS if isinstance(members.get(n), _Number)
    }
    if not moved:
        return None
    left = ",".join(
        f"{json.dumps(name, ensure_ascii=False)}:"
        + (value if isinstance(value, _Number) else json.dumps(value, ensure_ascii=False))
        for name, value in members.items()
    )
    return {
        "b_id": row, "b_rest": f"{{{left}}}" if left else None,
        **{f"b_{name}": moved.get(name) for name in MEASURED_NUMBERS},
    }  # fmt: skip


def _indexes(op: Any) -> None:
    """Indexes that alone answer what is asked most: few rows are read for nothing."""
    for name, columns in (
        ("runs_by_device", ("device", "devices", "global_batch")),
        ("runs_by_status", ("status", "devices", "workload")),
    ):
        op.drop_index(name, "runs")
        op.create_index(name, "runs", list(columns))


STEPS: Mapping[str, Callable[[Any], None]] = {
    "0001": _runs, "0002": _campaigns, "0003": _artifacts, "0004": _measured, "0005": _indexes,
}  # fmt: skip
HEAD = max(STEPS)


def version_of(connection: Connection) -> str:
    """Return the newest step that a store has."""
    return str(connection.execute(sa.select(_version.c.version_num)).scalar() or "")


def upgrade(connection: Connection, found: str, newest: str) -> None:
    """Carry out the steps after `found`, in the caller's transaction: all of them or none."""
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext

    op = Operations(MigrationContext.configure(connection))
    for name, step in STEPS.items():
        if found < name <= newest:
            step(op)
    _version.create(connection, checkfirst=True)
    connection.execute(sa.delete(_version))
    connection.execute(sa.insert(_version).values(version_num=newest))
