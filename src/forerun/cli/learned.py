"""Learned: fitted constants as a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from forerun import wire
from forerun.cli.screen import Screen
from forerun.errors import RequestError, UnknownNameError
from forerun.units import counted

if TYPE_CHECKING:
    from forerun.advisor.fit_summary import Finding
    from forerun.contracts import Predictor

_FIRST, _SCALES, _KINDS, _SOURCES, _LAWS = 15, 3, 8, 3, 6
# Of single workloads and layers: see `predictors.analytic.saving.SCALES`.
_SINGLE = ("workload_scale", "shape_scale")


def show_learned(screen: Screen, found: Sequence[Finding], everything: bool, prior: str) -> None:
    """Write what was learned, the most telling first, and what stays as it was.

    Args:
        screen: where to.
        found: in the order in which they are shown.
        everything: all constants; else the first of them.
        prior: the header of what was believed before.
    """
    identified = [finding for finding in found if finding.identified]
    shown = identified if everything else _first(identified)
    if shown:
        headers = ("constant", "learned", "5 to 95 %", prior, "runs", "from")
        screen.table(headers, [_row(finding) for finding in shown])
    if len(identified) > len(shown):
        screen.line(f"and {len(identified) - len(shown):,} more (--constants shows all)")
    _show_far(screen, identified, everything)
    _show_open(screen, found, everything, prior)


def _first(identified: Sequence[Finding]) -> list[Finding]:
    """Return what tells most of the physics, and the workloads and layers farthest off it."""
    single = [finding for finding in identified if finding.entry.name.startswith(_SINGLE)]
    single.sort(key=lambda finding: -abs(math.log(finding.entry.value or 1.0)))
    general = [finding for finding in identified if not finding.entry.name.startswith(_SINGLE)]
    return general[:_FIRST] + single[:_SCALES]


def _row(finding: Finding) -> tuple[str, ...]:
    from forerun.predictors.analytic.wording import value_words

    entry = finding.entry
    value, low, high, prior = (
        value_words(entry.name, v, entry.prior)
        for v in (entry.value, entry.low, entry.high, entry.prior)
    )
    more = len(entry.sources) - _SOURCES
    sources = ", ".join(entry.sources[:_SOURCES]) + (f" and {more} more" if more > 0 else "")
    return (finding.words, value, f"{low} to {high}", prior, f"{entry.runs:,}", sources)


def _show_far(screen: Screen, identified: Sequence[Finding], everything: bool) -> None:
    """Write in one line which constants went where none such lies, the farthest first."""
    far = [finding for finding in identified if finding.entry.absorbs_misfit]
    far.sort(key=lambda finding: -finding.entry.sds_from_prior)
    shown = far if everything else far[:_KINDS]
    pieces = [f"{f.words} {f.entry.sds_from_prior:.1f} sd" for f in shown]
    if len(far) > len(shown):
        pieces.append(f"and {len(far) - len(shown)} more (--constants)")
    if pieces:
        screen.line(f"absorbs misfit (so far from its prior): {'; '.join(pieces)}")


def _show_open(screen: Screen, found: Sequence[Finding], everything: bool, prior: str) -> None:
    """Write in one line which constants the runs do not identify."""
    from forerun.advisor.fit_summary import open_questions

    pieces = open_questions(found)
    if not pieces:
        return
    shown = pieces if everything else pieces[:_KINDS]
    more = len(pieces) - len(shown)
    rest = f"; and {more} more kind{'s' * (more > 1)} (--constants)" if more else ""
    where = "their priors" if prior == "prior" else "what is shipped"
    screen.line(f"not identified, so they stay near {where}: {'; '.join(shown)}{rest}")


def show_formulas(screen: Screen, predictor: Predictor, everything: bool) -> None:
    """Write the laws that a predictor has fitted, each kind of job on lines of its own.

    Args:
        screen: where to.
        predictor: one whose `formulas` says what its laws are; nothing is written of others.
        everything: all laws; else the first of them.
    """
    formulas = dict(getattr(predictor, "formulas", {}))
    shown = list(formulas.items()) if everything else list(formulas.items())[:_LAWS]
    for kind, text in shown:
        screen.line(f"law of {kind}:")
        for line in str(text).splitlines():
            screen.line(f"  {line}")
    if len(formulas) > len(shown):
        more = counted(len(formulas) - len(shown), "more law")
        screen.line(f"and {more} (--constants shows all)")


def show_shipped(screen: Screen, search: str | None, as_json: bool) -> None:
    """Write the constants that predictors come with, and how they were made.

    Predictors that come with the same ones share a list.

    Raises:
        RequestError: none comes with any, or none holds the searched text.
    """
    from forerun.advisor.fit_summary import findings

    kinds = _shipping()
    every = [sorted(findings(some[0].shipped()), key=lambda f: f.words) for some in kinds]
    kept = [[f for f in found if _holds(f, search)] for found in every]
    if not any(kept):
        names = [finding.entry.name for found in every for finding in found]
        raise UnknownNameError("constant", str(search), names)
    if as_json:
        items = [_json(some, found) for some, found in zip(kinds, kept, strict=True)]
        click.echo(wire.dumps({"schema": wire.SCHEMA, "kind": "constants", "constants": items}))
        return
    for some, found in zip(kinds, kept, strict=True):
        _show_made(screen, ", ".join(kind.name for kind in some), _made(some[0]))
        show_learned(screen, found, everything=True, prior="prior")


def _shipping() -> list[list[Any]]:
    """Return the kinds of predictors that come with constants; those with the same stand together.

    Raises:
        RequestError: there are none.
    """
    from forerun import registry
    from forerun.predictors.starts import has_shipped

    groups: dict[str, list[Any]] = {}
    for entry in registry.entries("predictors"):
        kind = registry.load("predictors", entry.name)
        if has_shipped(kind):
            made = wire.dumps(_made(kind)) if hasattr(kind, "shipped_made") else entry.name
            groups.setdefault(made, []).append(kind)
    if not groups:
        raise RequestError(
            "forerun predictors --constants", "no predictor comes with constants of its own",
            "install a release that has them (in a checkout: `make constants`)",
        )  # fmt: skip
    return list(groups.values())


def _made(kind: Any) -> Mapping[str, Any]:
    return dict(kind.shipped_made()) if hasattr(kind, "shipped_made") else {}


def _holds(finding: Finding, search: str | None) -> bool:
    entry = finding.entry
    text = " ".join((entry.name, finding.words, *entry.sources)).lower()
    return not search or search.lower() in text


def _json(kinds: Sequence[Any], found: Sequence[Finding]) -> dict[str, Any]:
    names, learned = [kind.name for kind in kinds], [finding.as_dict() for finding in found]
    return {"predictors": names, "made": _made(kinds[0]), "learned": learned}


def _show_made(screen: Screen, name: str, made: Mapping[str, Any]) -> None:
    screen.title(f"constants shipped with {name}")
    for key, value in made.items():
        if isinstance(value, Mapping):
            total = sum(value.values())
            value = f"{total:,} of {', '.join(f'{k} {n:,}' for k, n in value.items())}"
        screen.line(f"{key:<8}{value}")
    screen.line()
