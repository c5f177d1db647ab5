"""forerun runs: what the store keeps: runs and artifacts are listed, shown, brought in and out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forerun import wire
from forerun.cli import options as shared
from forerun.cli.inputs import FILE, NAMES, TABLES, WHOLE, check_kind, pair, writable, write_text
from forerun.cli.printing import echo
from forerun.cli.showing import Screen, waiting
from forerun.errors import RequestError, UnsatisfiedError
from forerun.store import open_store
from forerun.tables import Table, read_table
from forerun.tables.table import measured_rows
from forerun.units import counted, format_bytes

if TYPE_CHECKING:
    from forerun.store.sql_store import SqlStore

# Columns of a list; of several in one string, the first that any run has.
_USUAL = ("workload", "device instance_type cluster", "devices", "global_batch",
          "step_time_s samples_per_s epoch_time_s time_to_train_s", "memory_gb", "status",
          "run_campaign")  # fmt: skip
_DIGITS = 10  # of a key or digest that are shown
_selection = shared.together(
    shared.where_option("Only these runs, e.g. 'devices<=8', device=t4,v100 or campaign=night"),
    shared.store_option,
    shared.json_option,
)


@click.group()
def runs() -> None:
    """The runs that the store keeps: every one that was measured or imported, with its origin."""


@runs.command("list")
@click.option("--limit", type=WHOLE, default=20, show_default=True, help="The most runs to show.")
@click.option("--oldest", is_flag=True, help="The first ones, not the last ones.")
@click.option("--columns", type=NAMES, help="Which columns, e.g. workload,devices,step_time_s.")
@shared.server_options
@_selection
def list_runs(
    limit: int, oldest: bool, columns: Sequence[str] | None, conditions: tuple[str, ...],
    where: str, as_json: bool,
) -> None:  # fmt: skip
    """The last runs, newest first; `forerun runs show KEY` has all of one."""
    with _opened(where, new=False) as store:
        count = store.count(where=conditions)
        table = store.table(where=conditions, limit=limit, newest=not oldest, provenance=True)
        every, why = _none(store, conditions, count)
    if as_json:
        rows = [table.row(i) for i in range(len(table))]
        body = {"store": store.where, "count": count, "why_none": why, "runs": rows}
        shared.write_json("runs", body)
        return
    screen = Screen()
    if not len(table):
        none = f"no run is in {store.where} yet: `forerun runs import` or `forerun profile`"
        screen.line(f"none of {counted(every, 'run')} in {store.where} matches" if every else none)
        screen.items("why", why)
        return
    for name in columns or ():
        if name not in table:
            raise RequestError(
                f"--columns {name}", "none of these runs has such a column",
                f"choose among {', '.join(table.columns)}",
            )  # fmt: skip
    usual = [name for names in _USUAL for name in [n for n in names.split() if n in table][:1]]
    shown = columns or usual
    cells = [[key[:_DIGITS] for key in table.texts("run_key")]]
    for name in shown:  # cells that could not be read are shown as they were written
        texts = table.texts(name)
        unread = table.unread.get(name, texts)
        cells.append([_short(u or text) for text, u in zip(texts, unread, strict=True)])
    screen.table(["key", *shown], zip(*cells, strict=True))
    screen.line(f"{len(table):,} of {counted(count, 'run')} in {store.where}")


def _opened(where: str, new: bool = True) -> Any:
    """Return the store of this machine, or that of the service that is asked."""
    client = shared.service()
    if client is None:
        return open_store(where, new=new)
    if where:
        found, todo = "the service has its own store", "leave --store out, or give --server ''"
        raise RequestError(f"--store {where} with a server", found, todo)
    from forerun.cli.remote import RemoteStore

    return RemoteStore(client)


def _write(kind: str, as_json: bool, text: str, body: dict[str, Any]) -> None:
    if as_json:
        shared.write_json(kind, body)
    else:
        echo(text)


def _none(store: SqlStore, conditions: tuple[str, ...], count: int) -> tuple[int, list[str]]:
    from forerun.store.queries import why_none

    every = count or store.count()
    if not every or count:
        return every, []
    remote = getattr(store, "why_none", None)
    return every, why_none(store, conditions) if remote is None else remote(conditions)


@runs.command()
@click.argument("key")
@shared.store_option
@shared.json_option
def show(key: str, where: str, as_json: bool) -> None:
    """All that is known of one run, by its KEY or the first 8 or more characters of it."""
    with open_store(where, new=False) as store:
        run = store.get(key)
    about = wire.fields_of(run, "key started added campaign point")
    if as_json:
        job = None if run.job is None else wire.job_summary(run.job)
        body = {"fingerprint": run.fingerprint, "columns": run.row, "job": job}
        shared.write_json("run", {"run": {**about, **body}})
        return
    screen = Screen()
    rows = [(name, value) for name, value in about.items() if value]
    rows += [(name, _short(value, 9)) for name, value in run.row.items()]
    rows += [(f"fingerprint: {name}", str(value)) for name, value in run.fingerprint.items()]
    screen.table(("what", "value"), rows)
    if run.job is None:
        screen.line("it came as a row of a table: its names are looked up when it is fitted")


@runs.command("import")
@click.argument("files", nargs=-1, required=True, type=FILE, metavar="FILE...")
@click.option("--campaign", default="", metavar="NAME", help="Keep them under a campaign's name.")
@click.option(
    "--with", "given", multiple=True, metavar="COLUMN=VALUE",
    help="What the files do not say, e.g. workload=resnet50 (may be repeated).",
)  # fmt: skip
@shared.map_option
@shared.log_options
@click.option(
    "--target", default="", metavar="METRIC=VALUE",
    help="For logs: when training is done, e.g. loss=2.0; the samples and epochs until then are kept.",
)  # fmt: skip
@shared.store_option
@shared.server_options
@shared.json_option
def import_runs(
    files: tuple[Path, ...], campaign: str, given: tuple[str, ...], reader: str, pattern: str,
    target: str, where: str, as_json: bool,
) -> None:  # fmt: skip
    """Bring runs in from tables (CSV, Parquet) and logs (TensorBoard, MLflow, traces, JSON lines).

    All FILEs come in, or none. A run that is in the store already is not kept twice, so that a
    table that has grown may be imported again; a row without a measured figure is no run, and is
    left out.
    """
    stated = dict(pair("--with", text, "COLUMN=VALUE", "workload=resnet50") for text in given)
    with waiting("reads and keeps the runs"):
        tables = [
            (name, len(table), measured_rows(name, table))
            for path in dict.fromkeys(files)
            for name, table in _tables(path, stated, reader, pattern, _target(target))
        ]
        with _opened(where) as store:
            added = store.add_tables([runs for _, _, runs in tables], campaign=campaign)
    items, lines = [], []
    for (name, rows, runs), one in zip(tables, added, strict=True):
        problems = () if runs.problems is None else runs.problems
        bad = [i for i, problem in enumerate(problems) if problem is not None]
        items.append({"file": name, "rows": rows, "new": one.new, "known_already": one.known,
                      "no_run": rows - len(runs), "unread": len(bad)})  # fmt: skip
        words = [counted(one.new, "new run")]
        if one.known:
            words.append(f"{one.known:,} known already")
        if rows > len(runs):
            words.append(f"{counted(rows - len(runs), 'row')} without a measured figure left out")
        if bad:
            first = f"{runs.places().text(bad[0])}, {problems[bad[0]]}"
            words.append(f"{len(bad):,} with a cell that is kept but not understood: {first}")
        lines.append(f"{name}: {', '.join(words)}")
    lines.append(f"{counted(sum(one.new for one in added), 'new run')} in {store.where}")
    _write("import", as_json, "\n".join(lines), {"store": store.where, "files": items})


def _tables(
    path: Path, stated: Mapping[str, str], reader: str, pattern: str,
    target: tuple[str, float] | None,
) -> Iterator[tuple[str, Table]]:  # fmt: skip
    """Yield the tables of a file by name; a folder stands for the tables in it, else for its logs."""
    if not reader and not pattern:
        check_kind(path, f"importing {path}", "a table of runs or a log", "table")
    inside = sorted(path.glob("*.csv")) if path.is_dir() and not reader else []
    is_log = reader or pattern or (path.exists() and path.suffix.lower() not in TABLES)
    if is_log and not inside:
        from forerun.measure.logs import read_runs

        given: dict[str, Any] = dict(stated)
        yield str(path), read_runs(path, reader=reader, pattern=pattern, target=target, **given)
        return
    if target is not None:
        raise RequestError(
            f"importing {path} with --target", "it is a table, whose rows say that themselves",
            "fill its columns target and samples_to_target, or leave --target out",
        )  # fmt: skip
    for file in inside or [path]:
        table = read_table(file)
        columns = {name: [value] * len(table) for name, value in stated.items()}
        added = Table.from_columns(columns, "--with").columns if stated else {}
        yield str(file), table.with_columns(**added)


def _target(text: str) -> tuple[str, float] | None:
    if not text:
        return None
    name, value = pair("--target", text, "METRIC=VALUE", "loss=2.0")
    with suppress(ValueError):
        return name, float(value)
    raise RequestError(f"--target {text}", "it is not METRIC=VALUE", "write e.g. loss=2.0")


@runs.command()
@click.option("--out", type=FILE, required=True, metavar="RUNS.csv", help="CSV or Parquet.")
@shared.force_option
@click.option(
    "--plain", is_flag=True,
    help="Without the columns run_key, run_started, run_campaign, run_point and run_fingerprint, by"
    " which an import knows runs again.",
)  # fmt: skip
@shared.server_options
@_selection
def export(
    out: Path, force: bool, plain: bool, conditions: tuple[str, ...], where: str, as_json: bool
) -> None:
    """Write runs as a table that `--fit`, `--runs` and `forerun runs import` read."""
    from forerun.tables.files import write_table

    writable(out, TABLES, replace=force)
    with _opened(where, new=False) as store:
        table = store.table(where=conditions, provenance=not plain)
        every, why = _none(store, conditions, len(table))
    if not len(table):
        raise UnsatisfiedError(
            f"runs of {store.where}" + "".join(f" --where {text}" for text in conditions),
            f"there are none among its {counted(every, 'run')}" if every else "it has none yet",
            "; ".join(why) or "bring some in: `forerun runs import` or `forerun profile`",
        )  # fmt: skip
    write_table(table, out, exact=True)
    text = f"{counted(len(table), 'run')} of {store.where}, written to {out}"
    _write("export", as_json, text, {"store": store.where, "out": str(out), "count": len(table)})


@runs.command()
@click.option("--yes", is_flag=True, help="Do it, rather than say how many runs it would be.")
@_selection
def remove(conditions: tuple[str, ...], yes: bool, where: str, as_json: bool) -> None:
    """Forget the runs that --where names, e.g. those of a table that was imported by mistake."""
    if not conditions:
        raise RequestError(
            "forerun runs remove", "no --where says which",
            "name them, e.g. --where source=mistake or --where key=KEY",
        )  # fmt: skip
    with open_store(where, new=False) as store:
        count = store.remove(where=conditions) if yes else store.count(where=conditions)
        every, why = _none(store, conditions, count)
    text = f"it would remove {counted(count, 'run')} from {store.where}; give --yes to do it"
    if not count:
        reasons = "".join(f"\n  - {reason}" for reason in why)
        text = f"none of {counted(every, 'run')} in {store.where} matches{reasons}"
    elif yes:
        text = f"{counted(count, 'run')} removed from {store.where}"
    _write("remove", as_json, text, {"store": store.where, "count": count, "removed": yes})


def _short(value: Any, digits: int = 5) -> str:
    text = " ".join(str(value).split())
    if not re.fullmatch(r"-?\d*\.?\d+(e[-+]?\d+)?", text):
        return text
    number = float(text)
    whole = number.is_integer() and abs(number) < 1e15
    return f"{number:,.0f}" if whole else f"{number:.{digits}g}"


@runs.group()
def artifacts() -> None:
    """Models, plots and reports, kept with the hash of their content and the runs that made them."""


@artifacts.command("list")
@click.option("--kind", default="", metavar="KIND", help="Only these, e.g. model.")
@shared.store_option
@shared.json_option
def list_artifacts(kind: str, where: str, as_json: bool) -> None:
    """The artifacts, oldest first."""
    with open_store(where, new=False) as store:
        every = store.artifacts.every()
    found = [one for one in every if kind in ("", one.kind)]
    if as_json:
        items = [asdict(one) for one in found]
        shared.write_json("artifacts", {"store": store.where, "artifacts": items})
        return
    screen = Screen()
    rows = [
        (one.digest[:_DIGITS], one.name, one.kind, format_bytes(one.size_bytes),
         counted(len(one.runs), "run") if one.runs else "", one.created[:19], one.path)
        for one in found
    ]  # fmt: skip
    if rows:
        screen.table(("digest", "name", "kind", "size", "of", "kept", "lies in"), rows)
    screen.line(f"{counted(len(found), 'artifact')} in {store.where}")
    if every and not found:
        screen.line(f"there are kinds: {', '.join(sorted({one.kind for one in every}))}")


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
@click.option("--command", default="", metavar="TEXT", help="That made it.")
@click.option("--leave", is_flag=True, help="Leave the file where it is; keep its path and hash.")
@shared.store_option
@shared.json_option
def put_artifact(
    file: Path, name: str, keys: tuple[str, ...], leave: bool, where: str, as_json: bool,
    **about: Any,
) -> None:  # fmt: skip
    """Keep FILE, and what made it; the same content under the same name is kept once."""
    with open_store(where) as store:
        made_from = [store.get(key).key for key in keys]
        found = store.artifacts.put(
            name or file.name, file, runs=made_from, keep=not leave, **about
        )
    size = format_bytes(found.size_bytes)
    text = f"{found.name} ({found.digest[:_DIGITS]}, {size}) is kept in {store.where}"
    _write("artifact", as_json, text, {"store": store.where, "artifact": asdict(found)})


@artifacts.command("get")
@click.argument("name")
@click.option("--out", type=FILE, metavar="FILE", help="Where to write it (NAME, in this folder).")
@shared.force_option
@shared.store_option
@shared.json_option
def get_artifact(name: str, out: Path | None, force: bool, where: str, as_json: bool) -> None:
    """Write the newest artifact of a NAME, or the one of a digest (8 digits or more), to a file.

    Content that has changed since it was kept is never given out.
    """
    with open_store(where, new=False) as store:
        found = store.artifacts.get(name)
        body = store.artifacts.read(found.digest)
    path = out or Path(Path(found.name).name)
    writable(path, replace=force)
    write_text(path, body)
    text = f"{found.name} ({found.digest[:_DIGITS]}) of {store.where}, written to {path}"
    answer = {"store": store.where, "artifact": asdict(found), "out": str(path)}
    _write("artifact", as_json, text, answer)
