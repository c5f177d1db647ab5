"""Artifacts: models, plots and reports, with the runs that they were made from."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "artifacts",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("size_bytes", _ID, nullable=False),
        sa.Column("path", sa.Text),
        sa.Column("content", sa.LargeBinary),
        sa.Column("seed", _ID),
        sa.Column("commit", sa.Text),
        sa.Column("command", sa.Text),
        sa.Column("created", sa.Text, nullable=False),
        sa.UniqueConstraint("digest", "name"),
    )
    op.create_table(
        "artifact_runs",
        sa.Column("artifact_id", _ID, sa.ForeignKey("artifacts.id"), primary_key=True),
        sa.Column("run_key", sa.Text, primary_key=True),
    )
