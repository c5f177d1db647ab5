"""Learned: fitted constants and laws, as tables and lines for a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from forerun import wire
from forerun.cli.options import write_json
from forerun.cli.showing import Screen
from forerun.errors import RequestError, UnknownNameError
from forerun.units import counted

if TYPE_CHECKING:
    from forerun.advisor.fit_summary import Finding

_FIRST, _KINDS, _SOURCES, _LAWS = 15, 8, 3, 6


def show_learned(screen: Screen, found: Sequence[Finding], everything: bool, prior: str) -> None:
    """Write what was learned, the most telling first, and what stays as it was."""
    from forerun.advisor.fit_summary import open_questions
    from forerun.predictors.analytic.families import value_words

    identified = [finding for finding in found if finding.identified]
    rows = []
    for finding in identified if everything else identified[:_FIRST]:
        entry = finding.entry
        value, low, high, before = (
            value_words(entry.name, v, entry.prior)
            for v in (entry.value, entry.low, entry.high, entry.prior)
        )
        more = ["..."] if len(entry.sources) > _SOURCES else []
        sources = ", ".join([*entry.sources[:_SOURCES], *more])
        rows.append((finding.words, value, f"{low} to {high}", before, f"{entry.runs:,}", sources))
    if rows:
        screen.table(("constant", "learned", "5 to 95 %", prior, "runs", "from"), rows)
    if len(identified) > len(rows):
        screen.line(f"and {len(identified) - len(rows):,} more (--constants shows all)")
    far = [finding for finding in identified if finding.entry.absorbs_misfit]
    far.sort(key=lambda finding: -finding.entry.sds_from_prior)
    distances = [f"{one.words} {one.entry.sds_from_prior:.1f} sd" for one in far]
    where = "their priors" if prior == "prior" else "what is shipped"
    for title, pieces in (
        ("absorbs misfit (so far from its prior)", distances),
        (f"not identified, so they stay near {where}", list(open_questions(found))),
    ):
        first = pieces if everything else pieces[:_KINDS]
        if more := pieces[len(first) :]:
            first.append(f"and {len(more)} more (--constants)")
        if first:
            screen.line(f"{title}: {'; '.join(first)}")


def show_formulas(screen: Screen, laws: Mapping[str, str], everything: bool) -> None:
    """Write laws by what they are of, the first of them or all."""
    formulas = list(laws.items())
    shown = formulas if everything else formulas[:_LAWS]
    for kind, text in shown:
        screen.line(f"law of {kind}:")
        for line in str(text).splitlines():
            screen.line(f"  {line}")
    if more := len(formulas) - len(shown):
        screen.line(f"and {counted(more, 'more law')} (--constants shows all)")


def show_experiments(screen: Screen, tried: Sequence[Mapping[str, Any]], everything: bool) -> None:
    """Write how each regression that was tried did on each set of rows, the best first."""
    shown = tried if everything else tried[:_FIRST]
    sets = {"training": "training", "selection": "hp_selection", "test": "validation"}
    rows = [
        (
            one["kind"], one["technique"],
            " ".join(f"{name}={value}" for name, value in one["parameters"].items()),
            *(f"{one[f'{key}_{figure}']:.{digits}f}" for key in sets.values()
              for figure, digits in (("mape", 1), ("rmse", 4), ("r2", 3))),
        )
        for one in shown
    ]  # fmt: skip
    if rows:
        figures = (f"{name} {figure}" for name in sets for figure in ("MAPE %", "RMSE s", "R2"))
        screen.table(("kind", "technique", "settings", *figures), rows, "regressions that were tried")  # fmt: skip
    if more := len(tried) - len(shown):
        screen.line(f"and {more:,} more (--constants shows all)")


def show_shipped(screen: Screen, search: str | None, as_json: bool) -> None:
    """Write the constants that predictors come with, and how they were made."""
    from forerun import registry
    from forerun.advisor.fit_summary import findings
    from forerun.predictors.options import has_shipped, shipped_made

    kinds = [registry.load("predictors", name) for name in registry.names("predictors")]
    groups: dict[str, list[Any]] = {}
    for kind in filter(has_shipped, kinds):
        made = shipped_made(kind.name)
        groups.setdefault(wire.dumps(made) if made else kind.name, []).append(kind)
    if not groups:
        raise RequestError(
            "forerun predictors --constants", "no predictor comes with constants of its own",
            "install a release that has them (in a checkout: `make constants`)",
        )  # fmt: skip
    wanted, names = (search or "").lower(), []
    kept: list[tuple[list[Any], list[Finding]]] = []
    for group in groups.values():
        found = sorted(findings(group[0].shipped()), key=lambda f: f.words)
        names += [f.entry.name for f in found]
        kept.append((group, [
            f for f in found if wanted in " ".join((f.entry.name, f.words, *f.entry.sources)).lower()
        ]))  # fmt: skip
    if not any(found for _, found in kept):
        raise UnknownNameError("constant", str(search), names)
    if as_json:
        items = [
            {"predictors": [kind.name for kind in group], "made": shipped_made(group[0].name),
             "learned": [finding.as_dict() for finding in found]}
            for group, found in kept
        ]  # fmt: skip
        write_json("constants", {"constants": items})
        return
    for group, found in kept:
        screen.title(f"constants shipped with {', '.join(kind.name for kind in group)}")
        for key, value in shipped_made(group[0].name).items():
            if isinstance(value, Mapping):
                total = sum(value.values())
                value = f"{total:,} of {', '.join(f'{k} {n:,}' for k, n in value.items())}"
            screen.line(f"{key:<8}{value}")
        screen.line()
        show_learned(screen, found, everything=True, prior="prior")
