"""forerun workloads, devices, instances, predictors, systems, version: what there is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from forerun import wire
from forerun.cli.options import catalog_option, json_option
from forerun.cli.screen import Screen
from forerun.errors import UnknownNameError
from forerun.settings import load_settings
from forerun.units import GIGA, TERA, format_dollars

_SEARCH = click.argument("search", required=False)


def _show(
    kind: str, headers: Sequence[str], rows: list[tuple[Any, ...]], search: str | None,
    as_json: bool, shown: Sequence[tuple[str, ...]] | None = None,
) -> None:  # fmt: skip
    """Write rows (those that hold the searched text), as JSON by header or as a table."""
    texts = list(shown or [tuple(map(str, row)) for row in rows])
    if search:
        wanted = search.lower()
        kept = [i for i, row in enumerate(rows) if any(wanted in str(c).lower() for c in row)]
        if not kept:
            raise UnknownNameError(kind, search, [str(row[0]) for row in rows])
        rows, texts = [rows[i] for i in kept], [texts[i] for i in kept]
    if not rows and not as_json:
        click.echo(f"no {kind}s are registered")
    elif as_json:
        items = [dict(zip(headers, row, strict=True)) for row in rows]
        click.echo(wire.dumps({"schema": wire.SCHEMA, "kind": f"{kind}s", f"{kind}s": items}))
    else:
        Screen(load_settings()).table(headers, texts)


def _catalog(files: tuple[Path, ...]) -> Any:
    from forerun.catalog import load_catalog

    return load_catalog((*load_settings().catalog_files, *files))


@click.command()
@_SEARCH
@json_option
def workloads(search: str | None, as_json: bool) -> None:
    """The named workloads; with SEARCH only those whose line holds that text."""
    from forerun.workloads.zoo import zoo_entry, zoo_names

    rows: list[tuple[Any, ...]] = []
    for name in zoo_names():
        entry = zoo_entry(name)
        size = f"{entry.default_seq_len} tokens" if entry.default_seq_len else ""
        size = size or (f"{entry.default_image_size} px" if entry.default_image_size else "")
        rows.append((name, entry.family, size, entry.description, entry.source))
    _show("workload", ("name", "family", "sample", "description", "source"), rows, search, as_json)


@click.command()
@_SEARCH
@catalog_option
@json_option
def devices(search: str | None, catalog_files: tuple[Path, ...], as_json: bool) -> None:
    """The known accelerators and CPUs; with SEARCH only those whose line holds that text."""
    headers = ("id", "name", "kind", "year", "memory_bytes", "memory_bytes_per_second",
               "bf16_or_fp16_flops", "fp32_flops", "watts", "link_bytes_per_second")  # fmt: skip
    rows, shown = [], []
    for device in _catalog(catalog_files).devices.values():
        half = device.peak_flops.get("bf16") or device.peak_flops.get("fp16") or 0.0
        single = device.peak_flops.get("fp32", 0.0)
        first = (device.id, device.name, device.kind, device.year)
        rows.append((*first, device.memory_bytes, device.memory_bytes_per_second, half, single,
                     device.watts, device.link_bytes_per_second))  # fmt: skip
        shown.append((
            *map(str, first), f"{device.memory_bytes / GIGA:.4g}",
            f"{device.memory_bytes_per_second / GIGA:.4g}", f"{half / TERA:.4g}",
            f"{single / TERA:.4g}", f"{device.watts:.4g}",
            f"{device.link_bytes_per_second / GIGA:.4g}",
        ))  # fmt: skip
    if not as_json:
        headers = ("id", "name", "kind", "year", "GB", "GB/s", "16-bit TFLOP/s", "fp32 TFLOP/s",
                   "W", "link GB/s")  # fmt: skip
    _show("device", headers, rows, search, as_json, shown)


@click.command()
@_SEARCH
@catalog_option
@json_option
def instances(search: str | None, catalog_files: tuple[Path, ...], as_json: bool) -> None:
    """The known machines with their prices; with SEARCH only those whose line holds that text."""
    headers = ("name", "region", "device", "device_count", "dollars_per_hour",
               "spot_dollars_per_hour", "network_bytes_per_second", "source")  # fmt: skip
    rows, shown = [], []
    for machine in _catalog(catalog_files).instances:
        first = (machine.name, machine.region, machine.device, machine.device_count)
        rows.append((*first, machine.dollars_per_hour, machine.spot_dollars_per_hour,
                     machine.nic_bytes_per_second, machine.source))  # fmt: skip
        shown.append((
            *map(str, first), _price(machine.dollars_per_hour),
            _price(machine.spot_dollars_per_hour), f"{machine.nic_bytes_per_second / GIGA:.4g}",
            machine.source,
        ))  # fmt: skip
    if not as_json:
        headers = ("name", "region", "device", "devices", "$/h", "spot $/h", "network GB/s",
                   "source")  # fmt: skip
    _show("instance", headers, rows, search, as_json, shown)


def _price(dollars: float | None) -> str:
    return "" if dollars is None else format_dollars(dollars)


@click.command()
@_SEARCH
@click.option(
    "--constants", is_flag=True,
    help="Print the constants that come with each predictor, and how they were made; with SEARCH"
    " only those whose name or source holds that text.",
)  # fmt: skip
@json_option
def predictors(search: str | None, constants: bool, as_json: bool) -> None:
    """The registered predictors; guests come from the entry point group forerun.predictors.

    With the name of one, its options: they follow the name as NAME:OPTION=VALUE, also several
    (`generic:mode=faithful:penalty=l1`). With --constants, the constants fitted to published runs: from
    which tables, of what date and commit.
    """
    from forerun import registry
    from forerun.predictors.options import options_of

    if constants:
        from forerun.cli.learned import show_shipped

        show_shipped(Screen(load_settings()), search, as_json)
        return
    if search in registry.names("predictors"):
        options = options_of(registry.load("predictors", search))
        if options:
            cells = [(o.name, o.written() or "(blank)", o.allowed(), o.help) for o in options]
            heads = ("option", "default", "may be", "what it does")
            _show(f"option of {search}", heads, cells, None, as_json)
            return
    rows = [(entry.name, entry.help, entry.origin) for entry in registry.entries("predictors")]
    _show("predictor", ("name", "what it is", "from"), list(rows), search, as_json)


@click.command()
@click.argument("name", required=False)
@json_option
def systems(name: str | None, as_json: bool) -> None:
    """Published methods, as recipes of this package's mechanisms; with NAME the page of one.

    A page has the citation, the mechanisms with the settings that are faithful to the paper, its
    equations with the code that computes each, its claims with what was found of them, and what could not
    be reproduced.
    """
    from forerun import registry

    if name is None:
        rows = [(entry.name, entry.help, entry.origin) for entry in registry.entries("systems")]
        _show("system", ("name", "what it is", "from"), list(rows), None, as_json)
        return
    from dataclasses import asdict

    from forerun.systems.recipe import page

    system = registry.load("systems", name)
    if as_json:
        click.echo(wire.dumps({"schema": wire.SCHEMA, "kind": "system", "system": asdict(system)}))
    else:
        click.echo(page(system), nl=False)


@click.command()
@json_option
def version(as_json: bool) -> None:
    """The versions of forerun and of what it uses."""
    import platform
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as of

    parts = {"forerun": of("forerun"), "python": platform.python_version()}
    for name in ("numpy", "torch", "onnx", "pandas", "pyarrow"):
        try:
            parts[name] = of(name)
        except PackageNotFoundError:
            parts[name] = "not installed"
    parts["constants"] = _constants()
    if as_json:
        click.echo(wire.dumps({"schema": wire.SCHEMA, "kind": "version", "versions": parts}))
        return
    for name, number in parts.items():
        click.echo(f"{name} {number}")


def _constants() -> str:
    """Return of what date and commit the constants are that come with the predictors."""
    from forerun.predictors.starts import shipped_made

    made = shipped_made("analytic")
    return f"{made['date']}, commit {made['commit'] or 'not known'}" if made else "none"


__all__ = [
    "devices", "instances", "predictors", "systems", "version", "workloads",
]  # fmt: skip
