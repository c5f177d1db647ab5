"""Augment: the Ray study's features: one-hot, inverses, logarithms, products, Ernest's terms, checks.

No product holds a number and its own inverse, or two columns of one class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.errors import RequestError

# A factor of a product: how it is made (`x`, `1/x`, `ln` or `is`), of which column, of which class.
Factor = tuple[str, str, str]
Term = tuple[Factor, ...]

MOST_TERMS = 2000


@dataclass(frozen=True)
class Columns:
    """n rows before augmentation: positive numbers and texts by name, each (n,)."""

    numbers: Mapping[str, FloatArray]
    texts: Mapping[str, NDArray[np.object_]]

    def __len__(self) -> int:
        return len(next(iter({**self.numbers, **self.texts}.values())))

    def take(self, rows: NDArray[Any]) -> Columns:
        """Return the rows at the given positions (or where a mask is true)."""
        return Columns(
            {name: v[rows] for name, v in self.numbers.items()},
            {name: v[rows] for name, v in self.texts.items()},
        )

    @cached_property
    def configurations(self) -> IntArray:
        """Number of the configuration that each row is of, (n,), whatever order the rows come in."""
        columns = {**self.numbers, **self.texts}
        places = [np.unique(columns[name], return_inverse=True)[1] for name in sorted(columns)]
        _, of = np.unique(np.stack(places, axis=1), axis=0, return_inverse=True)
        return of.reshape(-1).astype(np.int64)


@dataclass(frozen=True)
class AugmentedFeatures:
    """The augmented features, as products of factors."""

    terms: tuple[Term, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Each feature in words, as `1/devices x ln micro_batch`."""
        forms = {"is": "[{} is {}]", "x": "{}", "1/x": "1/{}", "ln": "ln {}"}
        return tuple(
            " x ".join(forms[how].format(name, text) for how, name, text in term)
            for term in self.terms
        )

    def matrix(self, columns: Columns) -> FloatArray:
        """Return the features of n rows, (n, k)."""
        made = {factor: _made(factor, columns) for factor in {f for t in self.terms for f in t}}
        x = np.ones((len(columns), len(self.terms)))
        for i, term in enumerate(self.terms):
            for factor in term:
                x[:, i] *= made[factor]
        return x


def augmented(columns: Columns, degree: int, sizes: Sequence[str] = ()) -> AugmentedFeatures:
    """Return the features of rows: none is constant, and none says what another says.

    degree: most factors of a product; sizes: columns that may be Ernest's size, the first that is there is.

    Raises:
        RequestError: a number is not positive and finite, no column changes, or the features are too many.
    """
    what = f"features of {len(columns)} runs"
    for name, values in columns.numbers.items():
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise RequestError(
                what, f"{name} is not above 0 in some", "leave the column out, or correct it"
            )
    singles = _singles(columns)
    terms: list[Term] = [(factor,) for factor in singles]
    for factors in range(2, degree + 1):
        terms += filter(_allowed, combinations_with_replacement(singles, factors))
        if len(terms) > MOST_TERMS:
            raise RequestError(
                f"{what} with products of {degree} factors",
                f"more than {MOST_TERMS} of them", "ask for a lower degree, or fewer columns",
            )  # fmt: skip
    if "devices" in columns.numbers:
        # size / machines and ln machines (Venkataraman et al., NSDI 2016, equation 1)
        size = next((name for name in sizes if name in columns.numbers), None)
        over: Term = (("1/x", "devices", ""),)
        terms += [over if size is None else (("x", size, ""), *over)]
        terms += [(("ln", "devices", ""),), (("x", "devices", ""),)]
    every = tuple(dict.fromkeys(terms))
    kept = _distinct(AugmentedFeatures(every).matrix(columns))
    if not kept:
        raise RequestError(
            what, "no column changes from run to run",
            "give runs that differ in devices, batch or size",
        )  # fmt: skip
    return AugmentedFeatures(tuple(every[i] for i in kept))


def _singles(columns: Columns) -> list[Factor]:
    """Return one-hot columns, numbers, their inverses and their logarithms, in this order."""
    hot: list[Factor] = [
        ("is", name, text)
        for name, values in columns.texts.items()
        for text in sorted(set(values.tolist()))
    ]
    names = [name for name, v in columns.numbers.items() if v.min() < v.max()]
    return hot + [(form, name, "") for form in ("x", "1/x", "ln") for name in names]


def _allowed(term: Term) -> bool:
    numbers = {(how, name) for how, name, _ in term if how != "is"}
    if any(how == "x" and ("1/x", name) in numbers for how, name in numbers):
        return False
    classes = [name for how, name, _ in term if how == "is"]
    return len(set(classes)) == len(classes)  # a class squared is itself, and two are never both


def _distinct(x: FloatArray) -> list[int]:
    """Return which features change and repeat no earlier one, up to a factor and a constant."""
    low, high = x.min(axis=0), x.max(axis=0)
    size = np.maximum(np.abs(low), np.abs(high))
    changes = high - low > 1e-9 * np.maximum(size, 1e-300)
    seen: set[bytes] = set()
    kept = []
    for i in np.flatnonzero(changes & np.isfinite(size)):
        unit = (x[:, i] - low[i]) / (high[i] - low[i])
        # A feature and its mirror say the same.
        keys = [np.round(v, 9).tobytes() for v in (unit + 0.0, 1.0 - unit + 0.0)]
        if not seen.intersection(keys):
            kept.append(int(i))
            seen.update(keys)
    return kept


def _made(factor: Factor, columns: Columns) -> FloatArray:
    how, name, text = factor
    if how == "is":
        return np.asarray(columns.texts[name] == text, dtype=np.float64)
    values = columns.numbers[name]
    return {"x": values, "1/x": 1.0 / values, "ln": np.log(values)}[how]
