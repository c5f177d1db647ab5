"""System: a published method as a recipe: which mechanisms with which settings, and what they are worth.

Mechanisms live in predictors, search and evaluate under the names of what they do; a paper is a
choice among them. A recipe says the choice that is faithful to the paper, where each equation
stands in the code, what the paper claims, and which of it is shown here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from forerun import registry
from forerun.errors import RequestError

# What is known of an equation or a claim: read in the paper or its code; reconstructed from
# knowledge of the paper; derived here and checked; this package's own.
STATUSES: Mapping[str, str] = {
    "paper": "read in the paper or its code",
    "reconstructed": "reconstructed from what is known of the paper",
    "derived": "derived here and checked numerically",
    "own": "this package's own",
}
VERDICTS = ("reproduced", "in part", "not reproduced", "not tried")


@dataclass(frozen=True)
class Part:
    """One mechanism of a recipe.

    Attributes:
        role: what it does in the method: `predictor`, `searcher`, `design`, `split` ...
        name: its name in the registry, or `package.module:attribute` where it has none there.
        settings: those that are faithful to the paper.
        why: what it is there for, and what else could stand in its place.
        group: of the registry; "" where it is not in there.
    """

    role: str
    name: str
    why: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""

    def made(self) -> Any:
        """Return the mechanism, ready: an object with its settings, or the function itself.

        Raises:
            UnknownNameError: the registry does not know it.
        """
        if not self.group:
            return symbol(self.name)
        return registry.load(self.group, self.name)(**self.settings)


@dataclass(frozen=True)
class Equation:
    """One equation: its number, what it says, and the code that computes it.

    Attributes:
        number: in the paper, or in the list of methods that this package follows.
        text: the equation.
        symbol: `package.module:attribute` (an attribute of an attribute by a dot).
        status: one of `STATUSES`.
    """

    number: str
    text: str
    symbol: str
    status: str = "paper"


@dataclass(frozen=True)
class Claim:
    """What the paper claims, or is known for, and what is found of it here.

    Attributes:
        text: the claim.
        verdict: one of `VERDICTS`.
        found: what was found here, or why it could not be tried.
        shown: the test or benchmark that shows it, a path in the repository; "" where nothing does.
    """

    text: str
    verdict: str
    found: str
    shown: str = ""


@dataclass(frozen=True)
class System:
    """A published method.

    Attributes:
        name: of the recipe.
        title: in words.
        citation: authors, title, where, when.
        summary: what it is for and how it works, a few sentences.
        parts: the mechanisms.
        equations: and where they are computed.
        claims: and what is found of them.
        missing: what of the method is not here, and why.
        traps: what to beware of when using it.
        commands: how it is used from the command line.
    """

    name: str
    title: str
    citation: str
    summary: str
    parts: tuple[Part, ...]
    equations: tuple[Equation, ...]
    claims: tuple[Claim, ...]
    missing: tuple[str, ...] = ()
    traps: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()

    def part(self, role: str) -> Part:
        """Return the part of a role. Raises RequestError where the recipe has none."""
        for part in self.parts:
            if part.role == role:
                return part
        roles = ", ".join(part.role for part in self.parts)
        raise RequestError(
            f"the {role} of the system {self.name}", f"it has {roles}", "ask for one"
        )

    def predictor(self) -> Any:
        """Return its predictor as the paper has it. Raises RequestError where it has none."""
        return self.part("predictor").made()

    def searcher(self) -> Any:
        """Return its searcher as the paper has it. Raises RequestError where it has none."""
        return self.part("searcher").made()


def symbol(target: str) -> Any:
    """Return what `package.module:attribute` names.

    Raises:
        ImportError, AttributeError: there is no such module or attribute.
    """
    module, _, path = target.partition(":")
    found: Any = import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found
