"""The page of a system in Markdown: what docs/systems/ holds, and what the command prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from forerun.systems.recipe import STATUSES, Part, System


def page(system: System) -> str:
    """Return the page of a recipe, ending in a newline."""
    return "\n".join(_lines(system)).rstrip() + "\n"


def settings_text(part: Part) -> str:
    """Return the settings of a part as they are written in a call."""
    return ", ".join(f"{name}={_brief(value)}" for name, value in part.settings.items())


def _brief(value: Any) -> str:
    """Return a value as it is written in a call; of a dataclass only what is not the default."""
    if not is_dataclass(value) or isinstance(value, type):
        return repr(value)
    usual = type(value)()
    told = [
        f"{f.name}={_brief(getattr(value, f.name))}"
        for f in fields(value)
        if getattr(value, f.name) != getattr(usual, f.name)
    ]
    return f"{type(value).__name__}({', '.join(told)})"


def _lines(system: System) -> Iterator[str]:
    yield f"# {system.title}\n"
    yield f"`forerun systems {system.name}` prints this page; it is written from the recipe.\n"
    yield f"{system.summary}\n"
    yield f"**Citation.** {system.citation}\n"
    yield "## The recipe\n"
    rows = [
        (part.role, f"`{part.name}`", _code(settings_text(part)), part.why)
        for part in system.parts
    ]  # fmt: skip
    yield from _table(("part", "mechanism", "faithful settings", "what for"), rows)
    yield "## Equations and where they are computed\n"
    told = [(e.number, _code(e.text), f"`{e.symbol}`", e.status) for e in system.equations]
    yield from _table(("no.", "equation", "symbol", "status"), told)
    used = dict.fromkeys(e.status for e in system.equations)
    yield "Status: " + "; ".join(f"*{s}*: {STATUSES[s]}" for s in used) + ".\n"
    yield "## Claims\n"
    claims = [(c.text, c.verdict, c.found, _code(c.shown)) for c in system.claims]
    yield from _table(("claim", "here", "what was found", "shown by"), claims)
    yield from _list("What could not be reproduced", system.missing)
    yield from _list("Traps", system.traps)
    if system.commands:
        yield "## In use\n"
        yield "\n".join(["```", *system.commands, "```", ""])


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(headers)} |"
    yield f"|{'---|' * len(headers)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
    yield ""


def _list(title: str, items: Sequence[str]) -> Iterator[str]:
    if items:
        yield f"## {title}\n"
        yield "\n".join([*(f"* {item}" for item in items), ""])
