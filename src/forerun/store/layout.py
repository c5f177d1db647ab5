"""Layout: the tables of a store.

A run's cells lie in one JSON text; what is asked for often has a column of its own beside it.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sql

# A store of the layout before is brought over as it is opened (`task_table.bring_over`).
LAYOUT, BEFORE, VERSION_TABLE = "0008", "0007", "forerun_version"
INDEXED_TEXTS = ("workload", "device", "status", "instance_type", "framework", "precision", "source")  # fmt: skip
INDEXED_NUMBERS = ("devices", "nodes", "global_batch")
# A rowid of SQLite is of type INTEGER by that very name; PostgreSQL's counters are 64 bits wide.
Id = sql.BigInteger().with_variant(sql.Integer(), "sqlite")
metadata = sql.MetaData()
version = sql.Table(VERSION_TABLE, metadata, sql.Column("version_num", sql.String(32), primary_key=True))  # fmt: skip


def _table(name: str, *columns: Any) -> sql.Table:
    return sql.Table(name, metadata, sql.Column("id", Id, primary_key=True), *columns)


def _text(name: str, **options: Any) -> sql.Column[str]:
    return sql.Column(name, sql.Text, **{"nullable": False, **options})


workloads, clusters = (
    _table(name, _text("hash", unique=True), _text("name"), _text("body")) for name in ("workloads", "clusters")
)  # fmt: skip
fingerprints = _table("fingerprints", _text("hash", unique=True), _text("body"))
# Names of the columns of runs tables that any run fills.
filled_columns = sql.Table("filled_columns", metadata, _text("name", primary_key=True))
runs = _table(
    "runs", _text("key", unique=True), _text("added"), _text("cells"),
    *(sql.Column(name, sql.Text) for name in ("started", "campaign", "point")),
    sql.Column("workload_id", Id, sql.ForeignKey("workloads.id")),
    sql.Column("cluster_id", Id, sql.ForeignKey("clusters.id")),
    sql.Column("fingerprint_id", Id, sql.ForeignKey("fingerprints.id")),
    *(sql.Column(name, sql.Text) for name in INDEXED_TEXTS),
    *(sql.Column(name, sql.Double) for name in INDEXED_NUMBERS),
)  # fmt: skip


def _index(name: str, *columns: str, partial: bool = False) -> None:
    """Add an index; a partial one leaves out the rows whose first column is blank."""
    first = runs.c[columns[0]]
    only = {f"{kind}_where": first.is_not(None) for kind in ("sqlite", "postgresql")}
    sql.Index(name, *(runs.c[c] for c in columns), **(only if partial else {}))


# What is asked for together stands in one index, which then tells the wanted rows and their order
# alone; `benchmarks/store_speed.py` times it.
_index("runs_by_workload", "workload", "device", "devices", "global_batch", "status")
_index("runs_by_device", "device", "devices", "global_batch")
_index("runs_by_status", "status", "devices", "workload")
_index("runs_by_batch", "global_batch", "devices", partial=True)
_index("runs_by_machine", "instance_type", "nodes", partial=True)
_index("runs_by_framework", "framework", "devices", partial=True)
_index("runs_by_source", "source", partial=True)
_index("runs_by_campaign", "campaign", "point", partial=True)

campaigns, searches = (
    _table(name, _text("name", unique=True), _text("spec"), _text("created")) for name in ("campaigns", "searches")
)  # fmt: skip
campaign_points, search_steps = (
    _table(
        name, sql.Column("owner_id", Id, sql.ForeignKey(owner.c.id), nullable=False), _text("point"),
        _text("status"), _text("run_key"), _text("note"), _text("updated"),
        sql.UniqueConstraint("owner_id", "point"),
    )
    for name, owner in (("campaign_points", campaigns), ("search_steps", searches))
)  # fmt: skip
artifacts = _table(
    "artifacts", _text("digest"), _text("name"), _text("kind"),
    sql.Column("size_bytes", Id, nullable=False), _text("path"), sql.Column("content", sql.LargeBinary),
    sql.Column("seed", Id), _text("commit"), _text("command"), _text("created"),
    sql.UniqueConstraint("digest", "name"),
)  # fmt: skip
artifact_runs = sql.Table(
    "artifact_runs", metadata,
    sql.Column("artifact_id", Id, sql.ForeignKey("artifacts.id"), primary_key=True),
    _text("run_key", primary_key=True),
)  # fmt: skip
# idempotency: of who asked, so that the same request asked again is the same task. cancel: 1 where somebody
# asked for the end of a running one. worker: whose turn it is; attempts: how often it was begun. asked: "" once
# it has ended; brief, digest and size (bytes) stay. eta: quantiles of the seconds from `reported` to the end.
tasks = _table(
    "tasks", _text("key", unique=True), _text("what"), _text("state"), _text("created"),
    sql.Column("started", sql.Text), sql.Column("ended", sql.Text),
    sql.Column("idempotency", sql.Text, unique=True), _text("worker"), _text("note"),
    *(sql.Column(name, Id, nullable=False) for name in ("cancel", "attempts", "done")),
    sql.Column("total", Id), sql.Column("size", Id),
    *(sql.Column(name, sql.Text) for name in ("problem", "digest", "eta", "reported", "brief")),
    # Last, since SQLite walks through what is long to what stands behind it.
    sql.Column("result", sql.Text), _text("asked"), sql.Index("tasks_by_state", "state"),
)  # fmt: skip
task_events = _table(
    "task_events", sql.Column("task_id", Id, sql.ForeignKey("tasks.id"), nullable=False),
    _text("kind"), _text("body"), sql.Index("events_by_task", "task_id", "id"),
)  # fmt: skip
