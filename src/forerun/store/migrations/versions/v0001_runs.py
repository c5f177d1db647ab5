"""Runs, with the workloads, clusters and fingerprints that they share, and which columns any run fills."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_TEXTS = (
    "source", "ref", "note", "workload", "family", "framework", "dataset", "precision",
    "optimizer", "device", "instance_type", "cluster", "placement", "interconnect", "plan",
    "recompute", "sequence_parallel", "memory_format", "task", "sync", "target", "status",
)  # fmt: skip
_NUMBERS = (
    "dataset_size", "params", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "experts",
    "seq_len", "image_size", "gmacs", "mactivations", "learning_rate", "nodes", "devices",
    "devices_per_node", "price_usd_per_hour", "global_batch", "micro_batch", "grad_accum", "dp",
    "tp", "pp", "cp", "ep", "vpp", "zero_stage", "parameter_servers", "steps", "samples", "tokens",
    "epochs", "step_time_s", "sync_time_s", "samples_per_s", "tokens_per_s", "tflops_per_device",
    "epoch_time_s", "time_to_train_s", "cost_usd", "memory_gb", "samples_to_target",
    "epochs_to_target", "grad_sqr", "grad_var", "repeats", "std_s",
)  # fmt: skip
_INDEXES = {
    "runs_by_workload": ("workload", "device", "devices", "global_batch", "status"),
    "runs_by_device": ("device", "devices", "workload"),
    "runs_by_status": ("status", "workload"),
}
_PARTIAL_INDEXES = {  # most runs have none of these
    "runs_by_batch": ("global_batch", "devices"),
    "runs_by_machine": ("instance_type", "nodes"),
    "runs_by_framework": ("framework", "devices"),
    "runs_by_source": ("source",),
    "runs_by_campaign": ("campaign", "point"),
}
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the tables."""
    for name in ("workloads", "clusters"):
        op.create_table(
            name,
            sa.Column("id", _ID, primary_key=True),
            sa.Column("hash", sa.Text, nullable=False, unique=True),
            sa.Column("name", sa.Text, nullable=False),
            sa.Column("body", sa.Text, nullable=False),
        )
    op.create_table(
        "fingerprints",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("hash", sa.Text, nullable=False, unique=True),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_table("filled_columns", sa.Column("name", sa.Text, primary_key=True))
    op.create_table(
        "runs",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("key", sa.Text, nullable=False, unique=True),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("added", sa.Text, nullable=False),
        sa.Column("started", sa.Text),
        sa.Column("campaign", sa.Text),
        sa.Column("point", sa.Text),
        sa.Column("workload_id", _ID, sa.ForeignKey("workloads.id")),
        sa.Column("cluster_id", _ID, sa.ForeignKey("clusters.id")),
        sa.Column("fingerprint_id", _ID, sa.ForeignKey("fingerprints.id")),
        *(sa.Column(name, sa.Text) for name in _TEXTS),
        *(sa.Column(name, sa.Double) for name in _NUMBERS),
        sa.Column("rest", sa.Text),
    )
    for name, columns in _INDEXES.items():
        op.create_index(name, "runs", list(columns))
    for name, columns in _PARTIAL_INDEXES.items():
        only = sa.text(f"{columns[0]} IS NOT NULL")
        op.create_index(name, "runs", list(columns), sqlite_where=only, postgresql_where=only)
