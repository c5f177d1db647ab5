"""Completion: names that the shell may offer for workloads, clusters, devices and machines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import click
from click.shell_completion import CompletionItem

_FILES = ("/", ".", "~")
_COUNTS = re.compile(r"(?:[0-9]+x){0,2}")


def complete_workload(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the zoo's names that begin so; for a path the shell's own files."""
    if incomplete.startswith(_FILES):
        return [CompletionItem(incomplete, type="file")]
    from forerun.workloads.zoo import zoo_names

    return _items("", incomplete, zoo_names())


def complete_cluster(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return devices and machines behind the counts that are written; one node of each before."""
    match = _COUNTS.match(incomplete)
    counts = match[0] if match else ""
    names = _machines(instances=counts.count("x") < 2)
    return _items(counts or "1x", incomplete[len(counts) :], names)


def complete_clusters(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return devices and machines for the last of several with commas between them."""
    done, comma, last = incomplete.rpartition(",")
    match = _COUNTS.match(last)
    counts = match[0] if match else ""
    return _items(f"{done}{comma}{counts}", last[len(counts) :], _machines())


def _machines(instances: bool = True) -> Iterator[str]:
    from forerun.catalog import load_catalog
    from forerun.errors import ForerunError
    from forerun.settings import load_settings

    try:
        catalog = load_catalog(load_settings().catalog_files)
    except ForerunError:  # a shell that completes is no place to mend a file of settings
        catalog = load_catalog()
    yield from catalog.devices
    if instances:
        yield from sorted({machine.name for machine in catalog.instances})


def _items(before: str, incomplete: str, names: Iterable[str]) -> list[CompletionItem]:
    wanted = incomplete.lower()
    return [CompletionItem(before + name) for name in names if name.lower().startswith(wanted)]
