"""Campaigns with their points, and searches with their steps."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the tables."""
    for name, points in (("campaigns", "campaign_points"), ("searches", "search_steps")):
        op.create_table(
            name,
            sa.Column("id", _ID, primary_key=True),
            sa.Column("name", sa.Text, nullable=False, unique=True),
            sa.Column("spec", sa.Text, nullable=False),
            sa.Column("created", sa.Text, nullable=False),
        )
        op.create_table(
            points,
            sa.Column("id", _ID, primary_key=True),
            sa.Column("owner_id", _ID, sa.ForeignKey(f"{name}.id"), nullable=False),
            sa.Column("point", sa.Text, nullable=False),
            sa.Column("status", sa.Text, nullable=False),
            sa.Column("run_key", sa.Text),
            sa.Column("note", sa.Text),
            sa.Column("updated", sa.Text, nullable=False),
            sa.UniqueConstraint("owner_id", "point"),
        )
