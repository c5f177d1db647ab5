"""Metrics: what a forecast is worth against what was measured; arrays in, one number out.

Every function takes rows that can be compared (finite, above zero) and returns NaN for no rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forerun.arrays import BoolArray, FloatArray

NAN = float("nan")


def absolute_percentage_errors(forecast: FloatArray, measured: FloatArray) -> FloatArray:
    """Return 100 |forecast - measured| / measured, (n,)."""
    return 100.0 * np.abs(forecast - measured) / measured


def shortfalls(forecast: FloatArray, bound: FloatArray) -> FloatArray:
    """Return 100 (bound - forecast) / bound where a forecast is below its lower bound, else 0, (n,)."""
    return 100.0 * np.maximum(bound - forecast, 0.0) / bound


def mean(values: FloatArray) -> float:
    """Return the mean, NaN of nothing."""
    return float(values.mean()) if len(values) else NAN


def quantile(values: FloatArray, level: float) -> float:
    """Return a quantile, NaN of nothing."""
    return float(np.quantile(values, level)) if len(values) else NAN


def bias(forecast: FloatArray, measured: FloatArray) -> float:
    """Return the median of log(forecast / measured): below zero where forecasts are too low."""
    return quantile(np.log(forecast / measured), 0.5)


def widths(seconds: FloatArray) -> FloatArray:
    """Return the ratio of the 95 % to the 5 % quantile of rows (n, 3), (n,)."""
    return np.asarray(seconds[:, 2] / seconds[:, 0])


def inside(seconds: FloatArray, measured: FloatArray) -> BoolArray:
    """Return which measured values (n,) lie in the 5-95 % band of their row (n, 3)."""
    return (measured >= seconds[:, 0]) & (measured <= seconds[:, 2])


def share_interval(hits: int, rows: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Return the interval of a share that `hits` of `rows` support (95 % unless z is given).

    Source: Wilson 1927, score interval.
    """
    if rows == 0:
        return NAN, NAN
    p = hits / rows
    middle = (p + z * z / (2 * rows)) / (1 + z * z / rows)
    half = z / (1 + z * z / rows) * np.sqrt(p * (1 - p) / rows + z * z / (4 * rows * rows))
    return max(0.0, float(middle - half)), min(1.0, float(middle + half))


@dataclass(frozen=True, slots=True)
class Detection:
    """How well out-of-memory was foreseen: positives are the runs that ran out."""

    rows: int
    out_of_memory: int
    precision: float
    recall: float
    f1: float


def detection(foreseen: BoolArray, happened: BoolArray) -> Detection:
    """Return precision, recall and F1 of foreseen against happened, both (n,)."""
    hits = int((foreseen & happened).sum())
    named, real = int(foreseen.sum()), int(happened.sum())
    precision = hits / named if named else NAN
    recall = hits / real if real else NAN
    # With nothing named and nothing real there is nothing to score; with one of them F1 is 0.
    f1 = 2 * hits / (named + real) if named + real else NAN
    return Detection(len(happened), real, precision, recall, f1)
