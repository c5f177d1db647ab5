"""Formulas of laws by kind: each law told once, with how its brackets and logarithms are read."""

from __future__ import annotations

from collections.abc import Mapping

from forerun.predictors.laws.group_words import kind_words, reading_words, tells_sync
from forerun.predictors.laws.grouping import Law
from forerun.predictors.laws.law_rows import GROUP, Kind


def formulas_of(laws: Mapping[Kind, Law], quantity: str) -> dict[str, str]:
    """Return each law as a formula with units, and what limits it, by the name of its kind.

    The law of a workload and device over all settings is left out where it says what that of one
    setting says: it is the same law (also after it was saved, when it is another object).
    """
    texts = {kind: _text(law, quantity) for kind, law in laws.items()}
    own = {(kind[: len(GROUP)], text) for kind, text in texts.items() if len(kind) > len(GROUP)}
    sync = tells_sync(laws)
    return {
        kind_words(kind, sync): text
        for kind, text in texts.items()
        if len(kind) > len(GROUP) or (kind, text) not in own
    }


def _text(law: Law, quantity: str) -> str:
    formula = law.formula(quantity)
    return f"{formula} ({law.runs} runs; {reading_words(formula)}{law.limit()})"
