"""Findings: what runs taught of each constant, in words and in order, and what they left open."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forerun.contracts import Predictor

_SUREST = 1e-9  # nothing is surer, so that nothing is divided by zero

if TYPE_CHECKING:
    from forerun.predictors.analytic.calibration import Learned


@dataclass(frozen=True)
class Finding:
    """One constant after a fit.

    Attributes:
        entry: its value, interval, prior and sources.
        gain: what the runs told of it, in nats: from what was believed to what is believed now.
        identified: whether they said more than was known before.
        words: what it is called.
    """

    entry: Learned
    gain: float
    identified: bool
    words: str

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            **self.entry.to_dict(), "identified": self.identified, "gain_nats": self.gain,
            "words": self.words,
        }  # fmt: skip


def findings(predictor: Predictor, before: Predictor | None = None) -> tuple[Finding, ...]:
    """Return what runs taught a predictor, what they told most of first.

    Args:
        predictor: one whose `learned` says so; none of others.
        before: what it was fitted from; constants of which the runs could not speak are left out.
            None tells of all that it has ever learned.
    """
    known = {entry.name: entry for entry in getattr(before, "learned", ())}
    entries: Iterable[Learned] = getattr(predictor, "learned", ())
    found = [_finding(entry) for entry in entries if known.get(entry.name) != entry]
    return tuple(sorted(found, key=lambda finding: -finding.gain))


def _finding(entry: Learned) -> Finding:
    from forerun.predictors.analytic.wording import constant_words

    free = max(entry.prior_log_sd, _SUREST)
    narrowed = max(entry.log_sd / free, 1e-9)
    shift = math.log(entry.value / entry.prior) / free if entry.value and entry.prior else 0.0
    gain = 0.5 * (narrowed**2 + shift**2 - 1.0) - math.log(narrowed)
    return Finding(entry, gain, entry.runs > 0 and _says_more(narrowed), constant_words(entry.name))


def _says_more(narrowed: float) -> bool:
    from forerun.predictors.analytic.calibration.learned import UNIDENTIFIED

    return narrowed <= UNIDENTIFIED


def open_questions(found: Sequence[Finding]) -> tuple[str, ...]:
    """Return the constants that the runs do not identify, each family in one piece of text.

    First those of which most runs spoke, without telling them apart from others.
    """
    from forerun.predictors.analytic.wording import family_words, key_words

    families: dict[str, list[str]] = {}
    for finding in sorted(found, key=lambda finding: (-finding.entry.runs, finding.words)):
        if not finding.identified:
            name = finding.entry.name
            families.setdefault(family_words(name), []).append(key_words(name))
    return tuple(
        f"{family} ({', '.join(keys)})" if any(keys) else family
        for family, keys in families.items()
    )
