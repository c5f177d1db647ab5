"""forerun runs artifacts: models, plots and reports that the store keeps, with what made them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forerun.cli.kinds import FILE, writable
from forerun.cli.options import json_option
from forerun.cli.screen import Screen
from forerun.cli.stored import opened, say, store_option
from forerun.errors import RequestError
from forerun.settings import load_settings
from forerun.units import counted, format_bytes

if TYPE_CHECKING:
    from forerun.store import Artifact

_DIGITS = 10


@click.group()
def artifacts() -> None:
    """Models, plots and reports, kept with the hash of their content and the runs that made them."""


@artifacts.command("list")
@click.option("--kind", default="", metavar="KIND", help="Only these, e.g. model.")
@store_option
@json_option
def list_artifacts(kind: str, where: str, as_json: bool) -> None:
    """The artifacts, oldest first."""
    with opened(where) as store:
        found, place = store.artifacts.every(kind), store.where
        others = store.artifacts.every() if kind and not found else []
    if as_json:
        say("artifacts", {"store": place, "artifacts": [_json(one) for one in found]})
        return
    screen = Screen(load_settings())
    if found:
        rows = [
            (one.digest[:_DIGITS], one.name, one.kind, format_bytes(one.size_bytes),
             counted(len(one.runs), "run") if one.runs else "", one.created[:19], one.path)
            for one in found
        ]  # fmt: skip
        screen.table(("digest", "name", "kind", "size", "of", "kept", "lies in"), rows)
    if others:
        kinds = ", ".join(sorted({one.kind for one in others if one.kind})) or "no kind at all"
        screen.line(
            f"none of {counted(len(others), 'artifact')} in {place} is of kind {kind}: {kinds}"
        )
        return
    screen.line(f"{counted(len(found), 'artifact')} in {place}")


@artifacts.command("put")
@click.argument("file", type=FILE)
@click.option("--name", default="", help="What it is asked by later (the file's name).")
@click.option("--kind", default="", help="A word such as model, plot or report.")
@click.option(
    "--run", "keys", multiple=True, metavar="KEY",
    help="A run that it was made from, by its key or the first 8 characters (may be repeated).",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(), help="That it was made with.")
@click.option("--commit", default="", help="Of the code that made it.")
@click.option("--command", "made_by", default="", metavar="TEXT", help="That made it.")
@click.option("--leave", is_flag=True, help="Leave the file where it is; keep its path and hash.")
@store_option
@json_option
def put_artifact(
    file: Path, name: str, kind: str, keys: tuple[str, ...], seed: int | None, commit: str,
    made_by: str, leave: bool, where: str, as_json: bool,
) -> None:  # fmt: skip
    """Keep FILE, and what made it; the same content under the same name is kept once."""
    with opened(where, new=True) as store:
        runs = [store.get(key).key for key in keys]
        found = store.artifacts.put(
            name or file.name, file, kind, runs, seed, commit, made_by, keep=not leave
        )
        place = store.where
    if as_json:
        say("artifact", {"store": place, "artifact": _json(found)})
    else:
        size = format_bytes(found.size_bytes)
        click.echo(f"{found.name} ({found.digest[:_DIGITS]}, {size}) is kept in {place}")


@artifacts.command("get")
@click.argument("name")
@click.option("--out", type=FILE, metavar="FILE", help="Where to write it (NAME, in this folder).")
@click.option("--force", is_flag=True, help="Replace the file where there is one.")
@store_option
@json_option
def get_artifact(name: str, out: Path | None, force: bool, where: str, as_json: bool) -> None:
    """Write the newest artifact of a NAME, or the one of a digest (8 digits or more), to a file.

    Content that has changed since it was kept is never given out.
    """
    from forerun.tables.files import write_whole

    with opened(where) as store:
        found = store.artifacts.get(name)
        body = store.artifacts.read(found.digest)
        place = store.where
    path = out or Path(Path(found.name).name)
    writable(path)
    if path.exists() and not force:
        raise RequestError(
            f"writing {path}", "the file is there already", "name another with --out, or give --force"
        )  # fmt: skip
    write_whole(path, lambda at: _write(at, body))
    if as_json:
        say("artifact", {"store": place, "artifact": _json(found), "out": str(path)})
    else:
        click.echo(f"{found.name} ({found.digest[:_DIGITS]}) of {place}, written to {path}")


def _write(name: str, body: bytes) -> None:
    Path(name).write_bytes(body)


def _json(one: Artifact) -> dict[str, Any]:
    return {**vars(one), "runs": list(one.runs)}
