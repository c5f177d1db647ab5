"""Forecast: a predictor's answer, physics only, and what its distance from measured runs means."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, ColumnRows, FloatArray, row

# What a distance is made of: kinds of measured runs that are lacking, and what lies beyond physics,
# each with what would mend it.
_LACKING = {"workload": "of this workload", "device": "on this device",
            "framework": "with this framework", "place": "where it will run"}  # fmt: skip
_BEYOND = {
    "structure": ("the workload is known by totals only", "the workload's structure in place of its totals"),
    "operations": ("some of its operations are not known", "what its unknown operations do (a spec)"),
    "data sheet": ("figures of the device are unverified", "the device's verified data sheet, or runs on it"),
    "scale": ("more devices than any run had", "runs on as many devices"),
}  # fmt: skip
_NOTHING = "physics only, nothing measured"
_NEAR = ((0.15, "beside measured runs"), (0.55, "partly measured"), (0.95, "hardly measured"))
_MEANS = (
    *_NEAR, (1.05, _NOTHING),
    (math.inf, "physics only, and farther than a known device and a known structure"),
)  # fmt: skip
# The same of a distance without parts, by predictors that are not physics.
_MEANS_ALONE = (*_NEAR, (1.05, "nothing measured"), (math.inf, "far from all that was measured"))
# A part below this is not worth a word; of what was measured this share still lacks something.
_SMALL, _UNMEASURED = 0.02, 0.2


def meaning(distance: float, parts: Mapping[str, float]) -> str:
    """Return what a distance with these parts (see `Forecast`) means, "" where it is not known."""
    if not math.isfinite(distance):
        return ""
    means = _MEANS if parts else _MEANS_ALONE
    words = next(text for most, text in means if distance <= most)
    lacking = {n: text for n, text in _LACKING.items() if parts.get(n, 0.0) > _UNMEASURED}
    nothing = lacking.keys() >= {"workload", "device", "framework"}
    if nothing:
        words = _NOTHING
    elif lacking and distance <= 1.05:
        words = f"{words.partition(',')[0]}, no run {' or '.join(lacking.values())}"
    beyond = [
        text for name, (text, _) in _BEYOND.items()
        if parts.get(name, 0.0) > _SMALL and not (nothing and name == "scale")
    ]  # fmt: skip
    return "; ".join([words, *beyond])


def nearer(distance: float, parts: Mapping[str, float]) -> tuple[str, ...]:
    """Return what would make a distance less, with by how much, the most first."""
    if not parts:
        far = distance > _MEANS[0][0]
        return ("measured runs of this workload on this device",) if far else ()
    lacking = [name for name in _LACKING if parts.get(name, 0.0) > _SMALL]
    runs = " ".join(["measured runs", *(_LACKING[name] for name in lacking)])
    gains = [(parts.get(name, 0.0), text) for name, (_, text) in _BEYOND.items()]
    gains.append((sum(parts[name] for name in lacking), runs))
    gains.sort(key=lambda gain: -gain[0])
    return tuple(f"{text} (by up to {amount:.2f})" for amount, text in gains if amount > _SMALL)


MOST_SURE = 0.99  # of what concerns a device on which nothing was measured


def sure_at_most(unmeasured: BoolArray | None, n: int) -> FloatArray:
    """Return the highest probability that may be stated of each of n answers: not sure without a run on the device."""
    return np.where(np.zeros(n, dtype=bool) if unmeasured is None else unmeasured, MOST_SURE, 1.0)


def capped(chances: FloatArray, unmeasured: BoolArray) -> FloatArray:
    """Return probabilities of an order, neither way surer than may be stated; unmeasured: either side, alike in shape."""
    most = np.where(unmeasured, MOST_SURE, 1.0)
    return np.clip(chances, 1.0 - most, most)


QUANTITIES = ("step", "epoch", "run")
# Columns by name that a predictor gives where details are asked for.
DETAILS = ("parts", "memory_parts", "causes", "distance_parts", "frameworks", "staleness")
_NONE = np.array(None, dtype=object)


def is_none(values: NDArray[np.object_]) -> NDArray[np.bool_]:
    """Return which elements of an object array (n,) are None."""
    return np.asarray(np.equal(values, _NONE), dtype=bool)


@dataclass(frozen=True)
class Forecast:
    """One answer; quantiles are (p05, p50, p95), NaN where not answered.

    Attributes:
        quantity: what `seconds` times: a step, an epoch or a whole run.
        fit_probability: that the peak stays within device memory, 0 for an impossible plan.
        floor_seconds: the physical lower bound.
        parts, memory_parts: seconds and bytes of the medians by cause; they add up.
        distance: from what was measured: 0 beside a measured run, 1 physics alone, more beyond.
        declined: why there is no answer, or None.
        causes: log variance of the seconds by cause of error (see `domain.quantiles`).
        usable_bytes: how high the median peak may be before allocation fails; NaN if not stated.
        frameworks: median seconds under each framework covered, where the question names none.
        staleness: mean, p05, p50 and p95 of the updates by other workers between a worker's pull from
            parameter servers and the update that it makes of it; empty where there are none.
        nearest: the measured network that is most alike and how far it is, where a predictor compares networks.
        unmeasured: whether neither a run nor a probe of the device is behind it.
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
    staleness: Mapping[str, float] = field(default_factory=dict)
    nearest: str | None = None
    unmeasured: bool = False


@dataclass(frozen=True)
class Forecasts(ColumnRows):
    """Answers as columns of n rows; quantiles (n, 3), NaN where not answered; by: who answered each row."""

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
    staleness: Mapping[str, FloatArray] = field(default_factory=dict)
    by: NDArray[np.object_] | None = None
    nearest: NDArray[np.object_] | None = None
    unmeasured: BoolArray | None = None

    def __getitem__(self, i: int) -> Forecast:
        values = row(self, i)
        values["predictor"] = values.pop("by") or self.predictor
        if self.usable_bytes is None:
            values["usable_bytes"] = math.nan
        values["unmeasured"] = bool(values["unmeasured"])
        return Forecast(**values)

    @property
    def answered(self) -> NDArray[np.bool_]:
        """Which rows have an answer, (n,)."""
        return is_none(self.declined)

    @staticmethod
    def blank(n: int, predictor: str, quantity: str = "step") -> Forecasts:
        """Return n rows without an answer, to be filled where there is one."""
        fit_probability, floor_seconds, distance = np.full((3, n), np.nan)
        return Forecasts(
            quantity=quantity, seconds=np.full((n, 3), np.nan), peak_bytes=np.full((n, 3), np.nan),
            fit_probability=fit_probability, floor_seconds=floor_seconds, distance=distance,
            predictor=predictor, declined=np.full(n, None, dtype=object),
        )  # fmt: skip


def join_forecasts(pieces: Sequence[Forecasts]) -> Forecasts:
    """Return forecasts of jobs one after another."""
    found: dict[str, Any] = {}
    for name, first in vars(pieces[0]).items():
        values = [getattr(p, name) for p in pieces]
        if name in DETAILS:
            keys = dict.fromkeys(key for details in values for key in details)
            blanks = [np.full(len(p), np.nan) for p in pieces]
            found[name] = {
                key: np.concatenate(
                    [each.get(key, nan) for each, nan in zip(values, blanks, strict=True)]
                )
                for key in keys
            }
        elif isinstance(first, np.ndarray):
            found[name] = np.concatenate(values)
    return replace(pieces[0], **found)
