"""Fallbacks: what a constant is for a key that its table lacks; prediction and fits read it here."""

from __future__ import annotations

from collections.abc import Mapping

# Of a generation that no table knows, nor one that its name begins with.
NEW_GENERATION = 0.85
# The kind of a link whose figures a probe measured.
MEASURED = "measured"
_LINKS = ("link_efficiency", "link_latency")


def constant_of(family: str, known: Mapping[str, float], key: str) -> float:
    """Return the constant of a key of a family (a field of `Constants` that is a table).

    A measured link's rate is what software reached. A link of an unknown kind is as `unknown` ones are; a generation as the one whose name its own
    begins with; anything else is 1, a multiplier that changes nothing.
    """
    if key in known:
        return known[key]
    if family in _LINKS:
        return 1.0 if key == MEASURED else known["unknown"]
    if family == "generation_factor":
        return next((v for k, v in known.items() if key.startswith(k)), NEW_GENERATION)
    return 1.0
