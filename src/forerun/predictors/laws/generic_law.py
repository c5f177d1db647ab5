"""GenericLaw: one fitted expression with its bootstrap, what it says of jobs, and of scaling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from forerun.arrays import FloatArray
from forerun.predictors.laws.generic_columns import BLANK, UNKNOWN
from forerun.predictors.laws.generic_form import GenericForm
from forerun.predictors.laws.generic_words import formula_of, limit_of

Texts = Mapping[str, tuple[str, ...]]

# However badly a few runs say what its constants are, a band need not pass this log variance.
MOST_VARIANCE = 1.0


@dataclass(frozen=True)
class GenericLaw:
    """The law of one kind of runs.

    Attributes:
        numbers, categories, scaling: the columns of the expression, see `GenericForm`.
        coefficients: seconds: the a_i in the order of the form, then C, (k,).
        exponents: p of the numbers, then q of the scaling, (d,).
        covariance: of both, by a bootstrap of the residuals, (k + d, k + d).
        intervals: 5 % and 95 % of each exponent in the bootstrap, (d, 2).
        reach: how far below and above the 5 % and 95 % residual lies, as logs.
        bounds: least and most of each number column of the form, and of those held.
        held: text columns that no run changes, and their word.
        left_out: columns that change and are not in the expression, and why.
        machines: fewest and most devices that a run had.
        runs: how many taught it.
        strength: lambda.
        quantity: what its seconds time: a step, an epoch or a run.
        notes: what was noticed while fitting.
    """

    numbers: Mapping[str, float]
    categories: Texts
    scaling: Mapping[str, float]
    coefficients: FloatArray
    exponents: FloatArray
    covariance: FloatArray
    intervals: FloatArray
    reach: tuple[float, float]
    bounds: Mapping[str, tuple[float, float]]
    machines: tuple[float, float]
    runs: int
    strength: float
    quantity: str = "step"
    held: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    size = ""  # sizes are columns like any other

    @cached_property
    def form(self) -> GenericForm:
        """The expression without its constants."""
        return GenericForm(self.numbers, self.categories, self.scaling)

    @staticmethod
    def saved(entry: Mapping[str, Any]) -> GenericLaw:
        """Return a law from its saved fields; may raise ValueError, KeyError or TypeError."""
        arrays = {
            name: np.array(entry[name], dtype=float)
            for name in ("coefficients", "exponents", "covariance")
        }
        made = {
            **entry, **arrays,
            "intervals": np.array(entry["intervals"], dtype=float).reshape(-1, 2),
            "categories": {name: tuple(of) for name, of in entry["categories"].items()},
            "bounds": {name: _pair(of) for name, of in entry["bounds"].items()},
            "machines": _pair(entry["machines"]), "reach": _pair(entry["reach"]),
            "notes": tuple(entry["notes"]),
        }  # fmt: skip
        law = GenericLaw(**made)
        k, d = law.form.coefficients, law.form.exponents
        shapes = (law.coefficients.shape, law.exponents.shape, law.covariance.shape)
        if shapes != ((k,), (d,), (k + d, k + d)):
            raise ValueError("a law has as many constants as its columns say")
        return law

    def formula(self, quantity: str) -> str:
        """Return the law with units, references and the intervals of its exponents."""
        return formula_of(self, quantity)

    def limit(self) -> str:
        """Return what the exponent of the devices says of scaling, and which columns are left out."""
        return limit_of(self)

    def places(self, name: str, codes: FloatArray, texts: Texts) -> FloatArray:
        """Return which category of a column each code is, (n,), UNKNOWN where no run had its word."""
        place = {word: float(i) for i, word in enumerate(self.categories[name])}
        known = np.array([place.get(word, UNKNOWN) for word in texts[name]] + [UNKNOWN])
        blank = place.get("", UNKNOWN)
        found = known[np.where(codes < 0, len(known) - 1, codes).astype(np.int64)]
        return np.where(codes == BLANK, blank, found)

    def code(self, name: str, texts: Texts) -> float:
        """Return the code of the word of a held text column."""
        word = self.held[name]
        return float(texts[name].index(word)) if word in texts[name] else BLANK

    def why_not(
        self, columns: Mapping[str, FloatArray], texts: Texts, strict: tuple[str, ...]
    ) -> Any:
        """Return why the law cannot speak of n jobs, or None, (n,) of object.

        Args:
            columns: of the jobs.
            texts: the words of each text column.
            strict: number columns that must be as in the runs where no run changes them.
        """
        reasons = np.full(len(next(iter(columns.values()))), None, dtype=object)
        for name in (*self.numbers, *self.scaling):
            reasons[~(columns[name] > 0)] = f"the row says no {name}"
        for name, (low, high) in self.bounds.items():
            if name in strict and low == high:
                other = (columns[name] > 0) & (columns[name] != low)
                reasons[other] = f"its runs all have {name} {low:g}, and this is another"
        for name in self.categories:
            reasons[self.places(name, columns[name], texts) < 0] = f"no run of it has such {name}"
        for name, word in self.held.items():
            codes = columns[name]
            code = self.code(name, texts)
            other = (codes != code) & (codes != BLANK)
            reasons[other] = f"its runs all have {name} {word or '(blank)'}, and this is another"
        return reasons


def _pair(values: Any) -> tuple[float, float]:
    low, high = map(float, values)
    return low, high
