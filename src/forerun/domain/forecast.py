"""Forecast: a predictor's answer, physics only: seconds and peak bytes as quantiles.

Distance from what was measured, in words: what the number means, and what would make it less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, row, taken

# What a distance is made of, by the names that a predictor uses for its parts.
WORKLOAD, DEVICE, FRAMEWORK, PLACE, STRUCTURE, OPERATIONS, DATA_SHEET, SCALE = (
    "workload", "device", "framework", "place", "structure", "operations", "data sheet", "scale",
)  # fmt: skip
# What of it was never measured, and runs of what would change that.
_LACKING = {WORKLOAD: "of this workload", DEVICE: "on this device",
            FRAMEWORK: "with this framework", PLACE: "where it will run"}  # fmt: skip
# What lies beyond physics, and what would mend it.
_BEYOND = {
    STRUCTURE: ("the workload is known by totals only", "the workload's structure in place of its totals"),
    OPERATIONS: ("some of its operations are not known", "what its unknown operations do (a spec)"),
    DATA_SHEET: ("figures of the device are unverified", "the device's verified data sheet, or runs on it"),
    SCALE: ("more devices than any run had", "runs on as many devices"),
}  # fmt: skip
# Up to so much, the words are these; a whole 1 is physics with nothing measured.
_NOTHING = "physics only, nothing measured"
_MEANS = (
    (0.15, "beside measured runs"),
    (0.55, "near measured runs"),
    (0.95, "only partly measured"),
    (1.05, _NOTHING),
    (math.inf, "physics only, and farther than a known device and a known structure"),
)
# A part below this is not worth a word; of what was measured this share still lacks something.
_SMALL, _UNMEASURED = 0.02, 0.2


def meaning(distance: float, parts: Mapping[str, float]) -> str:
    """Return what a distance means, in words; "" where it is not known.

    Args:
        distance: see `Forecast.distance`.
        parts: what it is made of, by the names above; empty where the predictor does not say.
    """
    if not math.isfinite(distance):
        return ""
    words = next(text for most, text in _MEANS if distance <= most)
    lacking = [text for name, text in _LACKING.items() if parts.get(name, 0.0) > _UNMEASURED]
    nothing = all(parts.get(name, 0.0) > _UNMEASURED for name in (WORKLOAD, DEVICE, FRAMEWORK))
    if nothing:
        words = _NOTHING
    elif lacking and distance <= 1.05:
        words += "" if words == _NOTHING else ", nothing measured"
        words += f" {' or '.join(lacking)}"
    beyond = [
        text for name, (text, _) in _BEYOND.items()
        if parts.get(name, 0.0) > _SMALL and not (nothing and name == SCALE)
    ]  # fmt: skip
    return "; ".join([words, *beyond])


def nearer(distance: float, parts: Mapping[str, float]) -> tuple[str, ...]:
    """Return what would make a distance less, with by how much, the most first."""
    if not parts:
        far = distance > _MEANS[0][0]
        return ("measured runs of this workload on this device",) if far else ()
    gains = [(parts.get(name, 0.0), text) for name, (_, text) in _BEYOND.items()]
    lacking = [name for name in _LACKING if parts.get(name, 0.0) > _SMALL]
    runs = " ".join(["measured runs", *(_LACKING[name] for name in lacking)])
    gains = sorted(
        [*gains, (sum(parts[name] for name in lacking), runs)], key=lambda gain: -gain[0]
    )
    return tuple(f"{text} (up to {amount:.2f})" for amount, text in gains if amount > _SMALL)


QUANTITIES = ("step", "epoch", "run")
# Columns by name that a predictor gives where details are asked for.
DETAILS = ("parts", "memory_parts", "causes", "distance_parts", "frameworks")
_NONE = np.array(None, dtype=object)


def is_none(values: NDArray[np.object_]) -> NDArray[np.bool_]:
    """Return which elements of an object array (n,) are None."""
    return np.asarray(np.equal(values, _NONE), dtype=bool)


@dataclass(frozen=True)
class Forecast:
    """One answer.

    Attributes:
        quantity: what `seconds` times: a step, an epoch or a whole run.
        seconds, peak_bytes: quantiles (p05, p50, p95); NaN where not answered.
        fit_probability: that the peak stays within device memory, 0 for an impossible plan.
        floor_seconds: the physical lower bound.
        parts: exposed seconds of the median step by cause; they add up to the median.
        memory_parts: bytes of the median peak by cause, on the most-loaded device.
        distance: from what was measured: 0 beside a measured run, 1 physics alone, more beyond.
        declined: why there is no answer, or None.
        causes: log variance of the seconds by cause of error; they add up to that of the band
            (see `domain.quantiles`). Empty where the predictor states none.
        distance_parts: what the distance is made of (`WORKLOAD`, `DEVICE` and so on).
        usable_bytes: how high the median peak may be before allocation fails; NaN where not stated.
        frameworks: median seconds under each framework that the answer covers where the question
            names none; empty where it names one.
    """

    quantity: str
    seconds: tuple[float, float, float]
    peak_bytes: tuple[float, float, float]
    fit_probability: float
    floor_seconds: float
    parts: Mapping[str, float]
    memory_parts: Mapping[str, float]
    distance: float
    predictor: str
    declined: str | None = None
    samples_to_target: tuple[float, float, float] | None = None
    warnings: tuple[str, ...] = ()
    causes: Mapping[str, float] = field(default_factory=dict)
    distance_parts: Mapping[str, float] = field(default_factory=dict)
    usable_bytes: float = math.nan
    frameworks: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Forecasts:
    """Answers as columns: n rows.

    Attributes:
        seconds, peak_bytes: (n, 3) quantiles; NaN where declined or not answered.
        fit_probability, floor_seconds, distance: (n,).
        parts, memory_parts, causes, distance_parts, frameworks: name to (n,); empty where details were
            not asked for, or the predictor states none.
        declined: (n,) of str or None.
        samples_to_target: (n, 3) or None. usable_bytes: (n,) or None.
        by: (n,) who answered each row, where a predictor has several to ask; else None.
    """

    quantity: str
    seconds: FloatArray
    peak_bytes: FloatArray
    fit_probability: FloatArray
    floor_seconds: FloatArray
    distance: FloatArray
    predictor: str
    declined: NDArray[np.object_]
    parts: Mapping[str, FloatArray] = field(default_factory=dict)
    memory_parts: Mapping[str, FloatArray] = field(default_factory=dict)
    samples_to_target: FloatArray | None = None
    warnings: tuple[str, ...] = ()
    causes: Mapping[str, FloatArray] = field(default_factory=dict)
    distance_parts: Mapping[str, FloatArray] = field(default_factory=dict)
    usable_bytes: FloatArray | None = None
    frameworks: Mapping[str, FloatArray] = field(default_factory=dict)
    by: NDArray[np.object_] | None = None

    def __len__(self) -> int:
        return len(self.seconds)

    def __getitem__(self, i: int) -> Forecast:
        values = row(self, i)
        values["predictor"] = values.pop("by") or self.predictor
        if self.usable_bytes is None:
            values["usable_bytes"] = math.nan
        return Forecast(**values)

    def take(self, index: NDArray[Any]) -> Forecasts:
        """Return the rows at the given positions (or where a mask is true)."""
        return taken(self, index)

    def details(self, change: Callable[[FloatArray], Any]) -> dict[str, Any]:
        """Return the detail columns by their field, each changed (taken, scattered ...)."""
        return {
            name: {key: change(column) for key, column in getattr(self, name).items()}
            for name in DETAILS
        }

    @property
    def answered(self) -> NDArray[np.bool_]:
        """Which rows have an answer, (n,)."""
        return is_none(self.declined)

    @staticmethod
    def blank(n: int, predictor: str, quantity: str = "step") -> Forecasts:
        """Return n rows without an answer, to be filled where there is one."""
        nan = np.full(n, np.nan)
        return Forecasts(
            quantity=quantity,
            seconds=np.full((n, 3), np.nan),
            peak_bytes=np.full((n, 3), np.nan),
            fit_probability=nan.copy(),
            floor_seconds=nan.copy(),
            distance=nan.copy(),
            predictor=predictor,
            declined=np.full(n, None, dtype=object),
        )
