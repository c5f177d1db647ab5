"""forerun runs: what the store keeps: list, show, import, export and remove.

forerun runs artifacts: models, plots and reports that the store keeps, with what made them.

The files that `forerun runs import` reads: which rows of them are runs, and what the flags of the command state about them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forerun import wire
from forerun.cli.inputs import FILE, NAMES, TABLES, WHOLE, writable
from forerun.cli.options import json_option, opened, say, store_option, together
from forerun.cli.screen import Screen
from forerun.errors import RequestError
from forerun.settings import load_settings
from forerun.units import counted

if TYPE_CHECKING:
    from forerun.store.sql_store import SqlStore
    from forerun.tables import Table

from typing import TYPE_CHECKING

from forerun.units import format_bytes

if TYPE_CHECKING:
    from forerun.store import Artifact

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from forerun.cli.inputs import check_kind
from forerun.store import Added
from forerun.tables import COLUMNS, Table, read_table

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class FileRuns:
    """The runs of one file.

    Attributes:
        name: of the file.
        rows: how many it has. runs: those that are runs.
        no_run: how many have no measured figure.
        unread: how many runs have a cell that could not be read; it is kept as it is written.
        first: the first such cell, in words.
    """

    name: str
    rows: int
    runs: Table
    no_run: int
    unread: int
    first: str

    def words(self, added: Added) -> str:
        """Return what became of its rows."""
        parts = [counted(added.new, "new run")]
        if added.known:
            parts.append(f"{added.known:,} known already")
        if self.no_run:
            parts.append(f"{counted(self.no_run, 'row')} without a measured figure left out")
        if self.unread:
            parts.append(
                f"{self.unread:,} with a cell that is kept but not understood: {self.first}"
            )
        return ", ".join(parts)


def target_of(text: str) -> tuple[str, float] | None:
    """Return METRIC=VALUE as a metric and the value at which training is done; None for "".

    Raises:
        RequestError: it is of another form.
    """
    if not text:
        return None
    name, sign, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not sign or not name.strip() or not math.isfinite(number):
        raise RequestError(f"--target {text}", "it is not METRIC=VALUE", "write e.g. loss=2.0")
    return name.strip(), number


def tables_of(
    paths: Sequence[Path], given: Mapping[str, str], reader: str, pattern: str,
    target: tuple[str, float] | None = None,
) -> list[FileRuns]:  # fmt: skip
    """Return the runs of each file; a folder stands for the tables in it, else for its logs.

    Raises:
        RequestError: a file cannot be read, no row of it is a run, or a table is given a target.
    """
    found: list[FileRuns] = []
    for path in dict.fromkeys(paths):
        if not reader and not pattern:
            check_kind(path, f"importing {path}", "a table of runs or a log", "table")
        inside = sorted(path.glob("*.csv")) if path.is_dir() else []
        log = reader or pattern or (path.exists() and path.suffix.lower() not in TABLES)
        if target is not None and (inside or not log) and not reader:
            raise RequestError(
                f"importing {path} with --target", "it is a table, whose rows say that themselves",
                "fill its columns target and samples_to_target, or leave --target out",
            )  # fmt: skip
        if inside and not reader:
            found += [_runs(str(p), _stated(read_table(p), given)) for p in inside]
        elif log:
            from forerun.measure.logs import read_runs

            stated: dict[str, Any] = dict(given)
            table = read_runs(path, reader=reader, pattern=pattern, target=target, **stated)
            found.append(_runs(str(path), table))
        else:
            found.append(_runs(str(path), _stated(read_table(path), given)))
    return found


def _stated(table: Table, given: Mapping[str, str]) -> Table:
    """Return the table with columns that a person stated for all of its rows."""
    if not given:
        return table
    stated = Table.from_columns({n: [v] * len(table) for n, v in given.items()}, "--with")
    return table.with_columns(**stated.columns)


def _runs(name: str, table: Table) -> FileRuns:
    measured = _measured(table)
    if not measured.any():
        raise RequestError(
            f"importing {name}", "no row has a measured figure, so none is a run",
            "fill step_time_s, another measured column, or status; see docs/tables.md",
        )  # fmt: skip
    runs = table.take(np.flatnonzero(measured))
    problems = () if runs.problems is None else runs.problems
    bad = [i for i, problem in enumerate(problems) if problem is not None]
    first = f"{runs.places().text(bad[0])}, {problems[bad[0]]}" if bad else ""
    return FileRuns(name, len(table), runs, int((~measured).sum()), len(bad), first)


def _measured(table: Table) -> NDArray[np.bool_]:
    """Return which rows have a measured cell, (n,), also one that could not be read."""
    found = np.zeros(len(table), dtype=bool)
    for name, column in table.columns.items():
        if name in COLUMNS and COLUMNS[name].group == "measured":
            found |= ~np.isnan(column) if column.dtype != object else column != ""
            if name in table.unread:
                found |= table.unread[name] != ""
    return found


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


_SHOWN = ("devices", "global_batch")
_MACHINES = ("device", "instance_type", "cluster")  # the first that any of them has
_TIMES = ("step_time_s", "samples_per_s", "epoch_time_s", "time_to_train_s")  # the first is enough
_KEY_DIGITS = 10
_where_option = click.option(
    "--where", "conditions", multiple=True, metavar="CONDITION",
    help="Only these runs, e.g. 'devices<=8', device=t4,v100 or campaign=night (may be repeated).",
)  # fmt: skip
_asking = together(_where_option, store_option, json_option)


@click.group()
def runs() -> None:
    """The runs that the store keeps: every one that was measured or imported, with its origin."""


runs.add_command(artifacts)


@runs.command("list")
@click.option("--limit", type=WHOLE, default=20, show_default=True, help="The most runs to show.")
@click.option("--oldest", is_flag=True, help="The first ones, not the last ones.")
@click.option("--columns", type=NAMES, help="Which columns, e.g. workload,devices,step_time_s.")
@_asking
def list_runs(
    limit: int, oldest: bool, columns: Sequence[str] | None, conditions: tuple[str, ...],
    where: str, as_json: bool,
) -> None:  # fmt: skip
    """The last runs, newest first; `forerun runs show KEY` has all of one."""
    with opened(where) as store:
        count = store.count(where=conditions)
        table = store.table(where=conditions, limit=limit, newest=not oldest, provenance=True)
        place = store.where
        every, why = (count, []) if count else _none(store, conditions)
    if as_json:
        rows = [table.row(i) for i in range(len(table))]
        say("runs", {"store": place, "count": count, "why_none": why, "runs": rows})
        return
    for name in columns or ():
        if name not in table and len(table):
            raise RequestError(
                f"--columns {name}", "none of these runs has such a column",
                f"choose among {', '.join(table.columns)}",
            )  # fmt: skip
    times = [name for name in _TIMES if name in table][:1]
    machine = [name for name in _MACHINES if name in table][:1]
    usual = ("workload", *machine, *_SHOWN, *times, "memory_gb", "status", "run_campaign")
    shown = [name for name in columns or usual if name in table]
    cells = [_cells(table, name) for name in shown]
    keys = table.texts("run_key")
    screen = Screen(load_settings())
    short = ([keys[i][:_KEY_DIGITS], *(_short(c[i]) for c in cells)] for i in range(len(table)))
    if len(table):
        screen.table(["key", *shown], short)
        screen.line(f"{len(table):,} of {counted(count, 'run')} in {place}")
    elif every:
        screen.line(f"none of {counted(every, 'run')} in {place} matches")
        screen.items("why", why)
    else:
        screen.line(f"no run is in {place} yet: `forerun runs import` or `forerun profile`")


def _none(store: SqlStore, conditions: tuple[str, ...]) -> tuple[int, list[str]]:
    """Return how many runs there are in all, and why none of them meets the conditions."""
    from forerun.store.queries import why_none

    every = store.count()
    return every, why_none(store, conditions) if every else []


@runs.command()
@click.argument("key")
@store_option
@json_option
def show(key: str, where: str, as_json: bool) -> None:
    """All that is known of one run, by its KEY or the first 8 or more characters of it."""
    with opened(where) as store:
        run = store.get(key)
    about = {
        "key": run.key, "started": run.started, "added": run.added, "campaign": run.campaign,
        "point": run.point,
    }  # fmt: skip
    if as_json:
        job = None if run.job is None else wire.job_summary(run.job)
        body = {"fingerprint": run.fingerprint, "columns": run.row, "job": job}
        say("run", {"run": {**about, **body}})
        return
    screen = Screen(load_settings())
    rows = [(name, value) for name, value in about.items() if value]
    rows += [(name, _short(value, 9)) for name, value in run.row.items()]
    rows += [(f"fingerprint: {name}", str(value)) for name, value in run.fingerprint.items()]
    screen.table(("what", "value"), rows)
    if run.job is None:
        screen.line("it came as a row of a table: its names are looked up when it teaches")


@runs.command("import")
@click.argument("files", nargs=-1, required=True, type=FILE, metavar="FILE...")
@click.option("--campaign", default="", metavar="NAME", help="Keep them under a campaign's name.")
@click.option(
    "--with", "given", multiple=True, metavar="COLUMN=VALUE",
    help="What the files do not say, e.g. workload=resnet50 (may be repeated).",
)  # fmt: skip
@click.option("--reader", default="", help="A log's format, where its content misleads.")
@click.option(
    "--pattern", default="", metavar="REGEX",
    help="For plain logs: an expression with named groups (step, step_time_ms, loss ...).",
)  # fmt: skip
@click.option(
    "--target", default="", metavar="METRIC=VALUE",
    help="For logs: when training is done, e.g. loss=2.0; the samples and epochs until then are kept.",
)  # fmt: skip
@store_option
@json_option
def import_runs(
    files: tuple[Path, ...], campaign: str, given: tuple[str, ...], reader: str, pattern: str,
    target: str, where: str, as_json: bool,
) -> None:  # fmt: skip
    """Bring runs in from tables (CSV, Parquet) and logs (TensorBoard, MLflow, traces, JSON lines).

    All FILEs come in, or none. A run that is in the store already is not kept twice, so that a
    table that has grown may be imported again; a row without a measured figure is no run, and is
    left out.
    """
    stated, done = dict(_given(text) for text in given), target_of(target)
    tables = tables_of(files, stated, reader, pattern, done)
    with opened(where, new=True) as store:
        added = store.add_tables([table.runs for table in tables], campaign=campaign)
        place = store.where
    files_json = []
    for table, one in zip(tables, added, strict=True):
        files_json.append({
            "file": table.name, "rows": table.rows, "new": one.new, "known_already": one.known,
            "no_run": table.no_run, "unread": table.unread,
        })  # fmt: skip
        if not as_json:
            click.echo(f"{table.name}: {table.words(one)}")
    if as_json:
        say("import", {"store": place, "files": files_json})
    else:
        click.echo(f"{counted(sum(one.new for one in added), 'new run')} in {place}")


@runs.command()
@click.option(
    "--out", type=FILE, required=True, metavar="RUNS.csv", help="The file, CSV or Parquet."
)
@click.option("--force", is_flag=True, help="Replace the file where there is one.")
@click.option(
    "--plain", is_flag=True,
    help="Without the columns run_key, run_started, run_campaign, run_point and run_fingerprint, by"
    " which an import knows runs again.",
)  # fmt: skip
@_asking
def export(
    out: Path, force: bool, plain: bool, conditions: tuple[str, ...], where: str, as_json: bool
) -> None:
    """Write runs as a table that `--fit`, `--runs` and `forerun runs import` read."""
    writable(out, "writing", TABLES)
    if out.exists() and not force:
        raise RequestError(
            f"writing {out}", "the file is there already", "name another, or give --force"
        )
    from forerun.errors import UnsatisfiedError
    from forerun.tables.files import write_table

    with opened(where) as store:
        table = store.table(where=conditions, provenance=not plain)
        place = store.where
        every, why = (len(table), []) if len(table) else _none(store, conditions)
    if not len(table):
        raise UnsatisfiedError(
            f"runs of {place}" + "".join(f" --where {text}" for text in conditions),
            f"there are none among its {counted(every, 'run')}" if every else "it has none yet",
            "; ".join(why) or "bring some in: `forerun runs import` or `forerun profile`",
        )  # fmt: skip
    write_table(table, out, exact=True)
    if as_json:
        say("export", {"store": place, "out": str(out), "count": len(table)})
    else:
        click.echo(f"{counted(len(table), 'run')} of {place}, written to {out}")


@runs.command()
@click.option("--yes", is_flag=True, help="Do it, rather than say how many runs it would be.")
@_asking
def remove(conditions: tuple[str, ...], yes: bool, where: str, as_json: bool) -> None:
    """Forget the runs that --where names, e.g. those of a table that was imported by mistake."""
    if not conditions:
        raise RequestError(
            "forerun runs remove", "no --where says which",
            "name them, e.g. --where source=mistake or --where key=KEY",
        )  # fmt: skip
    with opened(where) as store:
        count = store.remove(where=conditions) if yes else store.count(where=conditions)
        place = store.where
        every, why = (count, []) if count else _none(store, conditions)
    if as_json:
        say("remove", {"store": place, "count": count, "removed": yes})
    elif not count:
        click.echo(f"none of {counted(every, 'run')} in {place} matches")
        for text in why:
            click.echo(f"  - {text}")
    elif yes:
        click.echo(f"{counted(count, 'run')} removed from {place}")
    else:
        click.echo(f"it would remove {counted(count, 'run')} from {place}; give --yes to do it")


def _cells(table: Table, name: str) -> Sequence[str]:
    """Return a column's cells as texts, those that could not be read as they are written."""
    cells, unread = list(table.texts(name)), table.unread.get(name)
    return cells if unread is None else [b or a for a, b in zip(cells, unread, strict=True)]


def _short(value: Any, digits: int = 5) -> str:
    """Return a cell for people: numbers to some digits, texts in one line."""
    text = str(value)
    try:
        number = float(text)
    except ValueError:
        return " ".join(text.split())
    if not text.replace(".", "").lstrip("-").isdigit() and "e" not in text.lower():
        return text
    return (
        f"{number:,.0f}" if number.is_integer() and abs(number) < 1e15 else f"{number:.{digits}g}"
    )


def _given(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name.strip() or not value.strip():
        raise RequestError(
            f"--with {text}", "it is not COLUMN=VALUE", "write e.g. workload=resnet50"
        )
    return name.strip(), value.strip()
