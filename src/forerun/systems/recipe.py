"""Recipes: a published method as a choice among mechanisms, with equations, claims and traps.

A recipe is a YAML file in `systems/data`; mechanisms live in predictors, search and evaluate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from forerun import registry
from forerun.errors import RequestError
from forerun.packaged import filled, table
from forerun.predictors.options import configured, write_spec

STATUSES: Mapping[str, str] = {
    "paper": "read in the paper or its code",
    "library": "read in the group's open library; of the paper only the abstract was available",
    "reconstructed": "reconstructed from what is known of the paper",
    "derived": "derived here and checked numerically",
    "own": "this package's own",
}
VERDICTS = ("reproduced", "in part", "not reproduced", "not tried")


@dataclass(frozen=True)
class Mechanism:
    """One mechanism of a recipe.

    role: `predictor`, `searcher`, `design`, `split` ... name: in the registry's `group`, or
    `package.module:attribute` without one. why: what it is there for. settings: as published.
    """

    role: str
    name: str
    why: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""

    def made(self) -> Any:
        """Return the mechanism with its settings, or the function itself. Raises UnknownNameError."""
        if not self.group:
            return symbol(self.name)
        return configured(registry.load(self.group, self.name), self.settings)

    @property
    def spec(self) -> str:
        """Name and settings as on the command line: `generic:mode=faithful`."""
        return write_spec(self.name, self.settings) if self.settings else self.name


@dataclass(frozen=True)
class Equation:
    """An equation: its number in the paper, its text, the symbol that computes it, one of `STATUSES`."""

    number: str
    text: str
    symbol: str
    status: str = "paper"


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, one of `VERDICTS`, what was found here, and the test that shows it."""

    text: str
    verdict: str
    found: str
    shown: str = ""


@dataclass(frozen=True)
class System:
    """A published method: its mechanisms, equations, claims, what is missing here, and traps."""

    name: str
    title: str
    citation: str
    summary: str
    parts: tuple[Mechanism, ...]
    equations: tuple[Equation, ...]
    claims: tuple[Claim, ...]
    missing: tuple[str, ...] = ()
    traps: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()

    def part(self, role: str) -> Mechanism:
        """Return the mechanism of a role. Raises RequestError where the recipe has none."""
        for part in self.parts:
            if part.role == role:
                return part
        roles = ", ".join(part.role for part in self.parts)
        raise RequestError(
            f"the {role} of the system {self.name}", f"it has {roles}",
            f"`forerun systems {self.name}` shows how it is used",
        )  # fmt: skip


def predictor_spec(name: str) -> str:
    """Return a system's predictor with its published settings; hyphens count as underscores.

    Raises:
        RequestError: no such system, or it has no predictor.
    """
    system: System = registry.load("systems", name.replace("-", "_"))
    return system.part("predictor").spec


@cache
def packaged(name: str) -> System:
    """Return a recipe that comes with the package."""
    values = table(__file__, f"data/{name}.yaml")
    kinds: Mapping[str, Any] = {"parts": Mechanism, "equations": Equation, "claims": Claim}
    fields: dict[str, Any] = {
        key: tuple(kinds[key](**one) for one in value) if key in kinds
        else tuple(value) if isinstance(value, list) else value
        for key, value in values.items()
    }  # fmt: skip
    return System(**fields)


def __getattr__(name: str) -> System:
    """Return a packaged recipe as an attribute, as the registry names it."""
    if name.startswith("_"):
        raise AttributeError(name)
    try:
        return packaged(name)
    except FileNotFoundError:
        raise AttributeError(name) from None


def symbol(target: str) -> Any:
    """Return what `package.module:attribute` names. Raises ImportError or AttributeError."""
    module, _, path = target.partition(":")
    found: Any = import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found


def page(system: System) -> str:
    """Return the page of a recipe in Markdown: docs/systems/, and `forerun systems NAME`."""
    template = Path(__file__).with_name("page.md.j2")
    return filled(template, system=system, statuses=STATUSES).rstrip() + "\n"
