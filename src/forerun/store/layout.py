"""Layout: the tables of a store.

No release has shipped another layout than `LAYOUT`; the first change after one brings its own step.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)  # fmt: skip

LAYOUT, VERSION_TABLE = "0005", "forerun_version"
# Columns of the runs table that are columns of the database. What the schema gained later, and
# columns of one's own, lie in `rest` as JSON.
TEXTS = (
    "source", "ref", "note", "workload", "family", "framework", "dataset", "precision",
    "optimizer", "device", "instance_type", "cluster", "placement", "interconnect", "plan",
    "recompute", "sequence_parallel", "memory_format", "task", "sync", "target", "status",
)  # fmt: skip
NUMBERS = (
    "dataset_size", "params", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "experts",
    "seq_len", "image_size", "gmacs", "mactivations", "learning_rate", "nodes", "devices",
    "devices_per_node", "price_usd_per_hour", "global_batch", "micro_batch", "grad_accum", "dp",
    "tp", "pp", "cp", "ep", "vpp", "zero_stage", "parameter_servers", "steps", "samples", "tokens",
    "epochs", "step_time_s", "sync_time_s", "samples_per_s", "tokens_per_s", "tflops_per_device",
    "epoch_time_s", "time_to_train_s", "cost_usd", "memory_gb", "samples_to_target",
    "epochs_to_target", "grad_sqr", "grad_var", "repeats", "std_s",
    "cpus_per_worker", "node_gbps", "step_mean_s", "step_std_s", "step_low_s", "step_high_s",
    "measured_steps", "input_time_s", "forward_time_s", "backward_time_s", "optimizer_time_s",
    "comm_time_s", "comm_gb", "cpu_share", "gpu_share", "network_bytes_per_s", "run_time_s",
)  # fmt: skip
# A rowid of SQLite is of type INTEGER by that very name; PostgreSQL's counters are 64 bits wide.
Id = BigInteger().with_variant(Integer(), "sqlite")
REAL = frozenset(TEXTS) | frozenset(NUMBERS)
metadata = MetaData()
version = Table(VERSION_TABLE, metadata, Column("version_num", String(32), primary_key=True))


def _table(name: str, *columns: Any) -> Table:
    return Table(name, metadata, Column("id", Id, primary_key=True), *columns)


def _text(name: str, **options: Any) -> Column[str]:
    return Column(name, Text, **{"nullable": False, **options})


workloads, clusters = (
    _table(name, _text("hash", unique=True), _text("name"), _text("body"))
    for name in ("workloads", "clusters")
)
fingerprints = _table("fingerprints", _text("hash", unique=True), _text("body"))
# Names of the columns of runs tables, real ones and those in `rest`, that any run fills.
filled_columns = Table("filled_columns", metadata, _text("name", primary_key=True))
runs = _table(
    "runs", _text("key", unique=True), Column("digest", LargeBinary, nullable=False), _text("added"),
    *(Column(name, Text) for name in ("started", "campaign", "point")),
    Column("workload_id", Id, ForeignKey("workloads.id")),
    Column("cluster_id", Id, ForeignKey("clusters.id")),
    Column("fingerprint_id", Id, ForeignKey("fingerprints.id")),
    *(Column(name, Text) for name in TEXTS),
    *(Column(name, Double) for name in NUMBERS),
    Column("rest", Text),
)  # fmt: skip


def _index(name: str, *columns: str, partial: bool = False) -> None:
    """Add an index; a partial one leaves out the rows whose first column is blank."""
    first = runs.c[columns[0]]
    only = {f"{kind}_where": first.is_not(None) for kind in ("sqlite", "postgresql")}
    Index(name, *(runs.c[c] for c in columns), **(only if partial else {}))


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
    _table(name, _text("name", unique=True), _text("spec"), _text("created"))
    for name in ("campaigns", "searches")
)
campaign_points, search_steps = (
    _table(
        name, Column("owner_id", Id, ForeignKey(owner.c.id), nullable=False), _text("point"),
        _text("status"), Column("run_key", Text), Column("note", Text), _text("updated"),
        UniqueConstraint("owner_id", "point"),
    )
    for name, owner in (("campaign_points", campaigns), ("search_steps", searches))
)  # fmt: skip
artifacts = _table(
    "artifacts", _text("digest"), _text("name"), _text("kind"),
    Column("size_bytes", Id, nullable=False), Column("path", Text), Column("content", LargeBinary),
    Column("seed", Id), Column("commit", Text), Column("command", Text), _text("created"),
    UniqueConstraint("digest", "name"),
)  # fmt: skip
artifact_runs = Table(
    "artifact_runs", metadata,
    Column("artifact_id", Id, ForeignKey("artifacts.id"), primary_key=True),
    _text("run_key", primary_key=True),
)  # fmt: skip
