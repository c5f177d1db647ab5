"""GenericForm: the expression of the generic model, its columns for many exponents, and its cost.

Kavarakuntla et al., A generic performance model for deep learning in a distributed environment
(2023): time = (sum of a_i I_i^p_i) (product of E_j^q_j) + C (5.1 to 5.3), judged by the mean
square of what it misses and a penalty on its constants (5.4). The form is reconstructed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray

PENALTIES = ("l1", "l2")
# Exponents beyond these are no law of training: twice the work takes at most eight times as long.
MOST_EXPONENT = 3.0


@dataclass(frozen=True)
class GenericForm:
    """Which columns the expression has, and what each number is divided by.

    Attributes:
        numbers: intrinsic columns I_i that are numbers, and their references.
        categories: intrinsic columns that are texts, and the categories of each.
        scaling: extrinsic columns E_j and their references.
    """

    numbers: Mapping[str, float] = field(default_factory=dict)
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    scaling: Mapping[str, float] = field(default_factory=dict)

    @property
    def exponents(self) -> int:
        """How many exponents it has: p of the numbers, then q of the scaling."""
        return len(self.numbers) + len(self.scaling)

    @property
    def coefficients(self) -> int:
        """How many constants it has beside: the a_i (at least one), then C."""
        texts = sum(map(len, self.categories.values()))
        return max(len(self.numbers) + texts, 1) + 1

    @property
    def constants(self) -> int:
        """How many constants it has in all."""
        return self.exponents + self.coefficients

    def rows(self, numbers: Mapping[str, FloatArray], texts: Mapping[str, FloatArray]) -> FormRows:
        """Return n jobs as the expression reads them.

        Args:
            numbers: the columns of `numbers` and `scaling`, positive, (n,) each.
            texts: for each column of `categories`, which category a job has, (n,).
        """
        n = len(next(iter([*numbers.values(), *texts.values()])))
        intrinsic = [np.log(numbers[name] / by) for name, by in self.numbers.items()]
        extrinsic = [np.log(numbers[name] / by) for name, by in self.scaling.items()]
        flags = [
            texts[name][:, None] == np.arange(len(of))[None, :]
            for name, of in self.categories.items()
        ]
        if not intrinsic and not flags:
            flags = [np.ones((n, 1))]
        return FormRows(
            _columns(intrinsic, n), _columns(extrinsic, n),
            np.concatenate([np.zeros((n, 0)), *flags], axis=1),
        )  # fmt: skip


def _columns(values: list[FloatArray], n: int) -> FloatArray:
    return np.stack(values, axis=1) if values else np.zeros((n, 0))


@dataclass(frozen=True)
class FormRows:
    """n jobs as the expression reads them.

    Attributes:
        intrinsic: logs of the numbers over their references, (n, i), or (p, n, i) of p problems.
        extrinsic: the same of the scaling, (n, j) or (p, n, j).
        flags: 1 where a job has a category, (n, c) or (p, n, c).
    """

    intrinsic: FloatArray
    extrinsic: FloatArray
    flags: FloatArray

    def __len__(self) -> int:
        return int(self.flags.shape[-2])

    @property
    def exponents(self) -> int:
        """How many exponents the expression has."""
        return int(self.intrinsic.shape[-1] + self.extrinsic.shape[-1])

    def take(self, index: NDArray[np.int64] | slice) -> FormRows:
        """Return the rows at the given positions, or the problems."""
        return FormRows(self.intrinsic[index], self.extrinsic[index], self.flags[index])

    def columns(self, exponents: FloatArray) -> FloatArray:
        """Return what the coefficients multiply, (p, n, k), for p members of exponents (p, d)."""
        i = self.intrinsic.shape[-1]
        if self.extrinsic.ndim == 2:
            factor = np.exp(exponents[:, i:] @ self.extrinsic.T)[:, None]  # (5.3)
        else:
            factor = np.exp(self.extrinsic @ exponents[:, i:, None]).transpose(0, 2, 1)
        # A column's rows lie beside one another, so that no loop is as short as a row.
        made = np.empty((len(exponents), i + self.flags.shape[-1] + 1, len(self)))
        if i:
            terms = np.exp(exponents[:, :i, None] * self.intrinsic.swapaxes(-1, -2))  # (5.2)
            np.multiply(terms, factor, out=made[:, :i])
        np.multiply(self.flags.swapaxes(-1, -2), factor, out=made[:, i:-1])
        made[:, -1] = 1.0
        return made.transpose(0, 2, 1)

    def slopes(self, columns: FloatArray, coefficients: FloatArray) -> FloatArray:
        """Return the derivative of the time by each exponent, (p, n, d)."""
        i = self.intrinsic.shape[-1]
        parts = columns[:, :, :-1] * coefficients[:, None, :-1]
        scaled = parts.sum(axis=2, keepdims=True) * self.extrinsic
        return np.concatenate([parts[:, :, :i] * self.intrinsic, scaled], axis=2) if i else scaled


@dataclass(frozen=True)
class Cost:
    """The cost (5.4) of runs: the weighted mean square missed and a penalty on the constants.

    Attributes:
        rows: the runs.
        seconds: measured, divided by what makes them near 1, so that the penalty has no unit, (n,),
            or (p, n) for p problems.
        weights: of the squares, (n,) or (p, n); those of a problem add up to 1.
        penalty: `l1`, the sum of sizes, or `l2`, the sum of squares.
        strength: lambda, one number or (p,).
    """

    rows: FormRows
    seconds: FloatArray
    weights: FloatArray
    penalty: str = "l2"
    strength: FloatArray | float = 0.0

    def penalised(self, constants: FloatArray) -> FloatArray:
        """Return lambda R of constants (p, m), (p,)."""
        sizes = np.abs(constants) if self.penalty == "l1" else constants**2
        result: FloatArray = self.strength * sizes.sum(axis=1)
        return result

    def of(self, constants: FloatArray) -> FloatArray:
        """Return the cost of all constants (p, m): coefficients first, then exponents, (p,)."""
        k = constants.shape[1] - self.rows.exponents
        fitted = np.einsum("pnk,pk->pn", self.rows.columns(constants[:, k:]), constants[:, :k])
        missed: FloatArray = np.sum(self.weights * (fitted - self.seconds) ** 2, axis=1)
        return missed + self.penalised(constants)
