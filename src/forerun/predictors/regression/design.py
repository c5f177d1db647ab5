"""Design: which numbers of a block of runs become features, and how questions are told in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.predictors.regression.questions import RANGES

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

# A feature is a mixture of others where less than this share of its variance is its own.
COLLINEAR = 1e-6
# Derived of the numbers, beside their logarithms: work that devices share, and whether a network
# lies between them.
_SHARE, _SPREAD = "1/devices", "several nodes"
DERIVED = (_SHARE, _SPREAD)
_MISSING = "no "


@dataclass(frozen=True)
class Design:
    """Features of one block.

    Attributes:
        names: of the features: a number (its logarithm), or a derived one.
        fills: logarithm that stands where a number is not stated, for those where some runs do not
            state it either; these have a feature that says so.
        reach: least and most of each number whose range was measured.
        left_out: features left out because they are mixtures of those before them.
    """

    names: tuple[str, ...]
    fills: Mapping[str, float]
    reach: Mapping[str, tuple[float, float]]
    left_out: tuple[str, ...] = ()

    def matrix(self, numbers: Mapping[str, FloatArray]) -> FloatArray:
        """Return the features of n jobs, (n, d); NaN where a number is lacking."""
        n = len(numbers["devices"])
        columns = [self._column(name, numbers) for name in self.names]
        return np.stack(columns, axis=1) if columns else np.zeros((n, 0))

    def _column(self, name: str, numbers: Mapping[str, FloatArray]) -> FloatArray:
        if name.startswith(_MISSING):
            return np.isnan(numbers[name.removeprefix(_MISSING)]).astype(np.float64)
        values = _feature(name, numbers)
        return np.where(np.isnan(values), self.fills.get(name, np.nan), values)

    def lacking(self, numbers: Mapping[str, FloatArray]) -> Mapping[str, BoolArray]:
        """Return by number which jobs do not state it and would have to, each (n,)."""
        needed = [name for name in self.names if name in numbers and name not in self.fills]
        return {name: np.isnan(numbers[name]) for name in needed}

    def beyond(self, numbers: Mapping[str, FloatArray]) -> FloatArray:
        """Return by how many doublings jobs lie beyond the measured ranges, added up, (n,)."""
        total = np.zeros(len(numbers["devices"]))
        for name, (low, high) in self.reach.items():
            values = numbers[name]
            values = np.where(np.isnan(values), low, values)
            total += np.maximum(np.log2(values / high), 0.0)
            total += np.maximum(np.log2(low / values), 0.0)
        return total

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Design:
        """Return what `to_dict` wrote. Raises KeyError, TypeError or ValueError where it is not."""
        reach = {name: (float(a), float(b)) for name, (a, b) in values["reach"].items()}
        fills = {str(name): float(v) for name, v in values["fills"].items()}
        return Design(tuple(values["names"]), fills, reach, tuple(values["left_out"]))


def designed(numbers: Mapping[str, FloatArray]) -> Design:
    """Return the features of a block of n runs: numbers that change and are no mixture of others.

    A number that fewer than half of the runs state is left out.
    """
    names: list[str] = []
    fills: dict[str, float] = {}
    reach: dict[str, tuple[float, float]] = {}
    for name, values in numbers.items():
        stated = values[np.isfinite(values)]
        if 2 * len(stated) < len(values) or not len(stated):
            continue
        if name in RANGES:
            reach[name] = (float(stated.min()), float(stated.max()))
        if len(stated) < len(values):
            fills[name] = float(np.median(np.log(stated)))
            names.append(_MISSING + name)
        if stated.min() < stated.max():
            names.append(name)
            if name == "devices":
                names.append(_SHARE)
            if name == "nodes":
                names.append(_SPREAD)
    every = Design(tuple(names), fills, reach)
    kept, left_out = _independent(every, numbers)
    return Design(kept, fills, reach, left_out)


def _feature(name: str, numbers: Mapping[str, FloatArray]) -> FloatArray:
    if name == _SHARE:
        return 1.0 / numbers["devices"]
    if name == _SPREAD:
        nodes = numbers["nodes"]
        return np.where(np.isnan(nodes), np.nan, (nodes > 1).astype(np.float64))
    return np.log(numbers[name])


def _independent(
    design: Design, numbers: Mapping[str, FloatArray]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the features that are no mixture of those before them, and the others."""
    x = design.matrix(numbers)
    x = x - x.mean(axis=0) if len(x) else x
    basis = np.zeros((len(x), 0))
    kept, left_out = [], []
    for name, column in zip(design.names, x.T, strict=True):
        own = column - basis @ (basis.T @ column)
        own = own - basis @ (basis.T @ own)  # once more, against rounding
        if own @ own <= COLLINEAR * max(float(column @ column), 1e-12):
            left_out.append(name)
            continue
        kept.append(name)
        basis = np.column_stack([basis, own / np.sqrt(own @ own)])
    return tuple(kept), tuple(left_out)
