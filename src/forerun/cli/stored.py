"""Stored: what commands about the store share: which one is meant, and how it is opened and told of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from forerun import wire

if TYPE_CHECKING:
    from forerun.store.sql_store import SqlStore

store_option = click.option(
    "--store", "where", default="", metavar="STORE",
    help="An SQLite file, or postgresql://USER@HOST/DATABASE. Default: the setting `store`.",
)  # fmt: skip


def opened(where: str, new: bool = False) -> SqlStore:
    """Return the store at a place. Raises as `forerun.store.open_store`."""
    from forerun.store import open_store

    return open_store(where, new=new)


def say(kind: str, body: dict[str, Any]) -> None:
    """Write an answer as JSON."""
    click.echo(wire.dumps({"schema": wire.SCHEMA, "kind": kind, **body}))
