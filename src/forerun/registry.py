"""Registry: names to things, imported when used.

A plug-in is an installed package with an entry point in a group such as `forerun.predictors`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from forerun import packaged
from forerun.errors import RequestError, UnknownNameError, nearest_names


@dataclass(frozen=True, slots=True)
class Registration:
    """One name: where it lives (`package.module:attribute`), what it is, and who brought it."""

    name: str
    target: str
    help: str = ""
    origin: str = "forerun"


# `registry.csv` has the built-ins, each with its group.
_BUILT_IN: dict[str, list[Registration]] = {}
for _row in packaged.table(__file__, "registry.csv"):
    _BUILT_IN.setdefault(_row.pop("group"), []).append(Registration(**_row))
GROUPS: tuple[str, ...] = tuple(_BUILT_IN)


@cache
def _plugins(group: str) -> tuple[Registration, ...]:
    from importlib.metadata import entry_points

    return tuple(
        Registration(
            point.name, point.value, f"from {point.value}", point.dist.name if point.dist else "?"
        )
        for point in entry_points(group=f"forerun.{group}")
    )


def entries(group: str) -> tuple[Registration, ...]:
    """Return every entry of a group, built-ins first. Raises RequestError for no such group or a name taken twice."""
    if group not in _BUILT_IN:
        raise UnknownNameError("registry group", group, GROUPS)
    found = {entry.name: entry for entry in _BUILT_IN[group]}
    for plugin in _plugins(group):
        if plugin.name in found:
            raise RequestError(
                f"{group} {plugin.name!r} of the package {plugin.origin}",
                f"{found[plugin.name].origin} already has that name",
                "give the entry point another name, or uninstall the package",
            )
        found[plugin.name] = plugin
    return tuple(found.values())


def names(group: str) -> tuple[str, ...]:
    """Return the names of a group, built-ins first. Raises as `entries` does."""
    return tuple(entry.name for entry in entries(group))


def load(group: str, name: str) -> Any:
    """Return the thing behind a name, importing its module now. Raises RequestError."""
    for entry in _BUILT_IN.get(group, ()):
        if entry.name == name:  # a built-in needs no look at the installed packages
            return _import(entry)
    for entry in entries(group):
        if entry.name == name:
            return _import(entry)
    known = names(group)
    raise UnknownNameError(group.removesuffix("s"), name, known, f"({', '.join(known)})")


def _import(entry: Registration) -> Any:
    module, _, attribute = entry.target.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        if entry.origin == "forerun":
            raise
        raise RequestError(
            f"loading {entry.name!r} from {entry.target}", str(error),
            f"correct or uninstall the package {entry.origin}",
        ) from error  # fmt: skip


def imported(what: str, reference: str, form: str) -> Any:
    """Return what `package.module:attribute` names. Raises RequestError where there is no such thing.

    what, form: the thing, and how its reference is written, in words.
    """
    module_name, _, attribute = reference.partition(":")
    try:
        target: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        own = module_name == missing or module_name.startswith(f"{missing}.")
        found = "no such module" if own else f"it imports {missing!r}, which is not installed"
        raise RequestError(
            f"{what} {reference!r}", f"{module_name}: {found}",
            "run from the folder that holds it, or install it",
        ) from error  # fmt: skip
    for part in attribute.split("."):
        if not hasattr(target, part):
            near = nearest_names(part, [name for name in dir(target) if not name.startswith("_")])
            raise RequestError(
                f"{what} {reference!r}", f"{module_name} has no attribute {part!r}",
                f"did you mean {', '.join(near)}?" if near else form,
            )  # fmt: skip
        target = getattr(target, part)
    return target
