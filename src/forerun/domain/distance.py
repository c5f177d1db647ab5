"""Distance from what was measured, in words: what the number means, and what would make it less."""

from __future__ import annotations

import math
from collections.abc import Mapping

# What a distance is made of, by the names that a predictor uses for its parts.
WORKLOAD, DEVICE, FRAMEWORK, PLACE, STRUCTURE, OPERATIONS, DATA_SHEET, SCALE = (
    "workload", "device", "framework", "place", "structure", "operations", "data sheet", "scale",
)  # fmt: skip
_MEASURED = (WORKLOAD, DEVICE, FRAMEWORK)
# What of it was never measured, and runs of what would change that.
_LACKING = {WORKLOAD: "of this workload", DEVICE: "on this device",
            FRAMEWORK: "with this framework", PLACE: "where it will run"}  # fmt: skip
# Up to so much, the words are these; a whole 1 is physics with nothing measured.
_NOTHING = "physics only, nothing measured of this"
_MEANS = (
    (0.15, "beside measured runs"),
    (0.55, "near measured runs"),
    (0.95, "only partly measured"),
    (1.05, _NOTHING),
    (math.inf, "physics only, and farther than a known device and a known structure"),
)
_BEYOND = {
    STRUCTURE: "the workload is known by totals only",
    OPERATIONS: "some of its operations are not known",
    DATA_SHEET: "figures of the device are unverified",
    SCALE: "more devices than any run had",
}
_NEARER = {
    STRUCTURE: "the workload's structure in place of its totals",
    OPERATIONS: "what its unknown operations do (a spec)",
    DATA_SHEET: "the device's verified data sheet, or runs on it",
    SCALE: "runs on as many devices",
}
# A part below this is not worth a word; of what was measured this share still lacks something.
_SMALL = 0.02
_UNMEASURED = 0.2


def meaning(distance: float, parts: Mapping[str, float]) -> str:
    """Return what a distance means, in words; "" where it is not known.

    Args:
        distance: see `Forecast.distance`.
        parts: what it is made of, by the names above; empty where the predictor does not say.
    """
    if not math.isfinite(distance):
        return ""
    words = next(text for most, text in _MEANS if distance <= most)
    lacking = [name for name in _LACKING if parts.get(name, 0.0) > _UNMEASURED]
    nothing = set(lacking) >= set(_MEASURED)
    if nothing:
        words = _NOTHING
    elif lacking and distance <= 1.05:
        words += f", nothing measured {_listed([_LACKING[name] for name in lacking])}"
    beyond = [
        text for name, text in _BEYOND.items()
        if parts.get(name, 0.0) > _SMALL and not (nothing and name == SCALE)
    ]  # fmt: skip
    return "; ".join([words, *beyond])


def nearer(distance: float, parts: Mapping[str, float]) -> tuple[str, ...]:
    """Return what would make a distance less, with by how much, the most first."""
    if not parts:
        if not distance > _MEANS[0][0]:
            return ()
        return ("measured runs of this workload on this device",)
    lacking = {name: parts[name] for name in _LACKING if parts.get(name, 0.0) > _SMALL}
    gains = [(parts[name], text) for name, text in _NEARER.items() if parts.get(name, 0.0) > _SMALL]
    if lacking:
        runs = " ".join(["measured runs", *(_LACKING[name] for name in lacking)])
        gains.append((sum(lacking.values()), runs))
    gains.sort(key=lambda gain: -gain[0])
    return tuple(f"{text} (up to {amount:.2f})" for amount, text in gains)


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
