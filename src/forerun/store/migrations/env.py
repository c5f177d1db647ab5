"""What Alembic runs: every step that is missing, on the connection and in its transaction."""

from __future__ import annotations

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    version_table=context.config.attributes["version_table"],
    # The caller holds one transaction around all steps: a store is upgraded whole or not at all.
    transactional_ddl=True,
)
context.run_migrations()
