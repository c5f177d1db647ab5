"""forerun workloads, devices, instances, predictors, systems, version: what there is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forerun import registry
from forerun.cli.options import catalog_option, json_option, server_options, service, write_json
from forerun.cli.printing import echo
from forerun.cli.showing import Screen
from forerun.errors import RequestError
from forerun.settings import load_settings
from forerun.units import GIGA, TERA, format_dollars

if TYPE_CHECKING:
    from forerun.advisor.listings import Rows
    from forerun.catalog import Catalog

_SEARCH = click.argument("search", required=False)
# Fields that a person sees under another header, and divided into another unit.
_SHOWN = {
    "memory_bytes": ("GB", GIGA), "memory_bytes_per_second": ("GB/s", GIGA),
    "bf16_flops": ("bf16 TFLOP/s", TERA), "fp16_flops": ("fp16 TFLOP/s", TERA),
    "fp32_flops": ("fp32 TFLOP/s", TERA),
    "watts": ("W", 1.0), "link_bytes_per_second": ("link GB/s", GIGA),
    "device_count": ("devices", 1.0), "dollars_per_hour": ("$/h", 0.0),
    "spot_dollars_per_hour": ("spot $/h", 0.0), "network_bytes_per_second": ("network GB/s", GIGA),
}  # fmt: skip


def _cell(name: str, value: Any) -> str:
    _, unit = _SHOWN.get(name, ("", None))
    if unit == 0.0:
        return "" if value is None else format_dollars(value)
    return f"{value / unit:.4g}" if unit and isinstance(value, float) else str(value)


def _rows(kind: str, search: str | None, local: Callable[[], Rows], *own: Any) -> Rows:
    """Return a list's rows, of this machine or of the service that is asked; own: what that does not take."""
    client = service()
    if client is not None:
        if any(own):
            todo = "leave it out, or give --server ''"
            raise RequestError(f"{kind}s of a server with own options", "it has its own", todo)
        rows: Rows = client.listing(f"{kind}s", *filter(None, [search]))
        return rows
    from forerun.advisor.listings import rows_with

    return rows_with(kind, local(), search)


def _show(kind: str, rows: Rows, as_json: bool) -> None:
    if as_json:
        write_json(f"{kind}s", {f"{kind}s": rows})
    elif not rows:
        echo(f"no {kind}s are registered")
    else:
        cells = [[_cell(name, value) for name, value in row.items()] for row in rows]
        heads = [_SHOWN.get(name, (name, None))[0] for name in rows[0]]
        Screen().table(heads, cells)


def _catalog(files: tuple[Path, ...]) -> Catalog:
    from forerun.catalog import load_catalog

    return load_catalog((*load_settings().catalog_files, *files))


@click.command()
@_SEARCH
@server_options
@json_option
def workloads(search: str | None, as_json: bool) -> None:
    """The named workloads; with SEARCH only those whose line holds that text."""
    from forerun.advisor.listings import workload_rows

    _show("workload", _rows("workload", search, workload_rows), as_json)


@click.command()
@_SEARCH
@catalog_option
@server_options
@json_option
def devices(search: str | None, catalog_files: tuple[Path, ...], as_json: bool) -> None:
    """The known accelerators and CPUs; with SEARCH only those whose line holds that text.

    Where the figures of one device come from stands below it; of all with --json.
    """
    from forerun.advisor.listings import device_rows, with_sources
    from forerun.wire import clean

    def own() -> Rows:
        catalog = _catalog(catalog_files)
        return with_sources(device_rows(catalog), catalog)

    rows = _rows("device", search, own, catalog_files)
    if as_json:
        _show("device", rows, as_json)
        return
    sources = {row["id"]: clean(row["sources"]) for row in rows}
    _show("device", [{n: v for n, v in row.items() if n != "sources"} for row in rows], as_json)
    one = str(rows[0]["id"] if len(rows) == 1 else search)
    if one not in sources:
        return
    fields: dict[str, list[str]] = {}
    for name, fact in sources[one].items():
        if name not in ("measured", "peak_flops"):
            fields.setdefault(fact["source"], []).append(name)
    lines = [f"{', '.join(names)}: {source}" for source, names in fields.items()]
    Screen().line()
    Screen().items(f"sources of {one}", lines)


@click.command()
@_SEARCH
@catalog_option
@server_options
@json_option
def instances(search: str | None, catalog_files: tuple[Path, ...], as_json: bool) -> None:
    """The known machines with their prices; with SEARCH only those whose line holds that text."""
    from forerun.advisor.listings import instance_rows

    rows = _rows("instance", search, lambda: instance_rows(_catalog(catalog_files)), catalog_files)
    _show("instance", rows, as_json)


@click.command()
@_SEARCH
@click.option("--constants", is_flag=True, help="The shipped constants, and how they were made.")
@server_options
@json_option
def predictors(search: str | None, constants: bool, as_json: bool) -> None:
    """The registered predictors; plug-ins come from the entry point group forerun.predictors.

    With the name of one, its options: they follow the name as NAME:OPTION=VALUE, also several
    (`generic:mode=faithful:penalty=l1`). With --constants, the constants fitted to published runs: from
    which tables, of what date and commit; with SEARCH only those whose name or source holds that text.
    """
    from forerun.advisor.listings import registered_rows
    from forerun.predictors.options import options_of

    if constants and service() is None:
        from forerun.cli.learned import show_shipped

        show_shipped(Screen(), search, as_json)
        return
    named = search in registry.names("predictors")
    options = [
        {"option": o.name, "default": o.written() or "(blank)", "may be": o.allowed(),
         "what it does": o.help}
        for o in (options_of(registry.load("predictors", str(search))) if named else ())
    ]  # fmt: skip
    if options and service() is None:
        _show(f"option of {search}", options, as_json)
    else:
        rows = _rows("predictor", search, lambda: registered_rows("predictors"), constants)
        _show("predictor", rows, as_json)


@click.command()
@click.argument("name", required=False)
@server_options
@json_option
def systems(name: str | None, as_json: bool) -> None:
    """Published methods, as recipes of this package's mechanisms; with NAME the page of one.

    A page has the citation, the mechanisms with the settings that are faithful to the paper, its
    equations with the code that computes each, its claims with what was found of them, and what could not
    be reproduced.
    """
    if name is None:
        from forerun.advisor.listings import registered_rows

        rows = _rows("system", None, lambda: registered_rows("systems"))
        _show("system", rows, as_json)
        return
    from dataclasses import asdict

    from forerun.systems.recipe import page

    system = registry.load("systems", name)
    if as_json:
        write_json("system", {"system": asdict(system)})
    else:
        echo(page(system), nl=False)


@click.command()
@server_options
@json_option
def version(as_json: bool) -> None:
    """The versions of forerun and of what it uses."""
    from forerun.advisor.listings import versions

    client = service()
    parts = versions() if client is None else client.ask("version")["versions"]
    if as_json:
        write_json("version", {"versions": parts})
        return
    for name, number in parts.items():
        echo(f"{name} {number}")
