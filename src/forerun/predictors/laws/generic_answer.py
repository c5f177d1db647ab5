"""Answers of many generic laws at once: those that read the same columns are asked together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from forerun.predictors.laws.generic_columns import BLANK, STRICT
from forerun.predictors.laws.generic_form import FormRows
from forerun.predictors.laws.generic_law import MOST_VARIANCE, GenericLaw, Texts
from forerun.predictors.laws.grouping import Answers, Columns, banded

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
# Up to so many laws a product for each is faster than a matrix for each job.
_FEW = 12
Alike = tuple[tuple[str, ...], ...]


def alike(law: GenericLaw) -> Alike:
    """Return what laws share that are asked together: the columns that they read, and their order."""
    words = [f"{name}={word}" for name, of in law.categories.items() for word in of]
    return tuple(map(tuple, (law.numbers, words, law.scaling, law.bounds, law.held)))


@dataclass(frozen=True)
class LawStack:
    """Laws that read the same columns, as arrays.

    Attributes:
        laws: at least one.
        texts: the words of each text column.
    """

    laws: Sequence[GenericLaw]
    texts: Texts

    def answers(self, index: IntArray, columns: Columns) -> Answers:
        """Return what the laws say of n jobs; NaN where one cannot speak.

        Args:
            index: which law each job is answered by, (n,).
            columns: of the jobs, (n,) each.
        """
        n = len(index)
        seconds, parts, beyond = np.full((n, 3), np.nan), np.full((n, 2), np.nan), np.zeros(n)
        said = np.flatnonzero(self._speaks(index, columns))
        of, read = index[said], {name: values[said] for name, values in columns.items()}
        rows, known = self._rows(of, read)
        said, of, rows = said[known], of[known], rows.take(np.flatnonzero(known))
        if not len(said):
            return Answers(seconds, parts, beyond)
        parts[said], variance = self._said(of, rows)
        seconds[said] = banded(parts[said].sum(axis=1), self._reach[of], variance)
        beyond[said] = self._beyond(of, {name: values[known] for name, values in read.items()})
        return Answers(seconds, parts, beyond)

    @property
    def _first(self) -> GenericLaw:
        return self.laws[0]

    @cached_property
    def _reach(self) -> FloatArray:
        return np.array([law.reach for law in self.laws])

    @cached_property
    def _bounds(self) -> FloatArray:
        """Least and most of each column, (columns, laws, 2)."""
        found = [[law.bounds[name] for law in self.laws] for name in self._first.bounds]
        return np.array(found, dtype=np.float64).reshape(len(found), len(self.laws), 2)

    def _speaks(self, index: IntArray, columns: Columns) -> BoolArray:
        """Return which jobs state what their law reads, and are as its runs where these never change."""
        ok = np.ones(len(index), dtype=bool)
        for name in (*self._first.numbers, *self._first.scaling):
            ok &= columns[name] > 0
        for name, bounds in zip(self._first.bounds, self._bounds, strict=True):
            if name in STRICT:
                low, high = bounds[index].T
                ok &= (low != high) | (columns[name] == low) | ~(columns[name] > 0)
        for name in self._first.held:
            codes = columns[name]
            held = np.array([law.code(name, self.texts) for law in self.laws])[index]
            ok &= (codes == held) | (codes == BLANK)
        return ok

    def _rows(self, index: IntArray, columns: Columns) -> tuple[FormRows, BoolArray]:
        """Return n jobs as the expressions read them, (n, 1, .), and which have known words, (n,)."""
        n, first = len(index), self._first
        flags = [np.ones((n, 0))]
        known = np.ones(n, dtype=bool)
        for name, of in first.categories.items():
            places = first.places(name, columns[name], self.texts)
            known &= places >= 0
            flags.append((places[:, None] == np.arange(len(of))).astype(np.float64))
        if not first.numbers and not first.categories:
            flags = [np.ones((n, 1))]
        logs = []
        for field in ("numbers", "scaling"):
            by = np.log([[*getattr(law, field).values()] for law in self.laws])[index]
            of_jobs = [np.log(np.maximum(columns[name], 1e-300)) for name in getattr(first, field)]
            made = np.stack(of_jobs, axis=1) - by if of_jobs else np.zeros((n, 0))
            logs.append(made[:, None])
        return FormRows(logs[0], logs[1], np.concatenate(flags, axis=1)[:, None]), known

    def _said(self, index: IntArray, rows: FormRows) -> tuple[FloatArray, FloatArray]:
        """Return the parts of n jobs (n, 2), what scales and what does not, and the log variance."""
        coefficients = np.stack([law.coefficients for law in self.laws])[index]
        exponents = np.stack([law.exponents for law in self.laws])[index]
        spread = np.stack([law.covariance for law in self.laws])
        columns = rows.columns(exponents)
        terms = columns[:, 0] * coefficients
        parts = np.stack([terms[:, :-1].sum(axis=1), terms[:, -1]], axis=1)
        slopes = np.concatenate([columns, rows.slopes(columns, coefficients)], axis=2)[:, 0]
        turned = np.empty_like(slopes)
        if len(self.laws) <= _FEW:
            for i, matrix in enumerate(spread):
                turned[index == i] = slopes[index == i] @ matrix
        else:
            turned = (slopes[:, None] @ spread[index])[:, 0]
        variance = np.einsum("ni,ni->n", turned, slopes)
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = np.minimum(variance / parts.sum(axis=1) ** 2, MOST_VARIANCE)
        return parts, relative

    def _beyond(self, index: IntArray, columns: Columns) -> FloatArray:
        """Return by how many doublings n jobs lie beyond the runs, over all columns, (n,)."""
        total = np.zeros(len(index))
        for name, bounds in zip(self._first.bounds, np.log2(self._bounds), strict=True):
            low, high = bounds[index].T
            value = np.log2(np.where(columns[name] > 0, columns[name], 1.0))
            outside = np.maximum(np.maximum(value - high, low - value), 0.0)
            total += np.where(columns[name] > 0, outside, 0.0)
        return total
