"""Models: fitted regressions as plain arrays: predicted in NumPy, saved as JSON, nothing executed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray

_CELLS = 2_000_000  # rows x trees, or rows x support vectors, that are held at a time


class FittedModel(Protocol):
    """A fitted regression."""

    kind: ClassVar[str]

    def predict(self, x: FloatArray) -> FloatArray:
        """Return the values of n rows (n, k), (n,)."""
        ...


@dataclass(frozen=True)
class Linear:
    """intercept + x . weights; `converged`: whether the search of them ended by itself."""

    intercept: float
    weights: FloatArray
    converged: bool = True
    kind: ClassVar[str] = "linear"

    def predict(self, x: FloatArray) -> FloatArray:
        """Return the values of n rows, (n,)."""
        result: FloatArray = self.intercept + x @ self.weights
        return result


@dataclass(frozen=True)
class Trees:
    """base + sum of trees. The nodes of all trees lie one after another.

    A row goes left where its feature is below the threshold (`strict`, XGBoost, which compares
    32-bit numbers), or at most the threshold (scikit-learn).
    """

    base: float
    roots: NDArray[np.int64]
    feature: NDArray[np.int64]
    threshold: FloatArray
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    value: FloatArray
    strict: bool
    kind: ClassVar[str] = "trees"

    def predict(self, x: FloatArray) -> FloatArray:
        """Return the values of n rows, (n,)."""
        total = np.full(len(x), self.base)
        step = max(_CELLS // max(len(self.roots), 1), 1)
        low = x.astype(np.float32).astype(np.float64)
        for start in range(0, len(x), step):
            some = low[start : start + step]
            total[start : start + step] += self.value[self._leaves(some)].sum(axis=1)
        return total

    def _leaves(self, x: FloatArray) -> NDArray[np.int64]:
        """Return the leaf of each row in each tree, (n, trees)."""
        shape = (len(x), len(self.roots))
        node = np.broadcast_to(self.roots, shape).reshape(-1).copy()
        row = np.repeat(np.arange(len(x)), len(self.roots))
        going = np.flatnonzero(self.left[node] >= 0)
        while len(going):
            at = node[going]
            value, bound = x[row[going], self.feature[at]], self.threshold[at]
            left = value < bound if self.strict else value <= bound
            node[going] = np.where(left, self.left[at], self.right[at])
            going = going[self.left[node[going]] >= 0]
        return node.reshape(shape)


@dataclass(frozen=True)
class SupportVectors:
    """intercept + sum of duals x k(support, x); k is `rbf` or `poly` (gamma x . s + 0)^degree."""

    intercept: float
    support: FloatArray
    duals: FloatArray
    gamma: float
    degree: int
    form: str
    converged: bool = True
    kind: ClassVar[str] = "kernel"

    def predict(self, x: FloatArray) -> FloatArray:
        """Return the values of n rows, (n,)."""
        total = np.full(len(x), self.intercept)
        step = max(_CELLS // max(len(self.support), 1), 1)
        for start in range(0, len(x), step):
            some = x[start : start + step]
            inner = some @ self.support.T
            if self.form == "rbf":
                own, theirs = np.sum(some**2, axis=1), np.sum(self.support**2, axis=1)
                near = np.exp(-self.gamma * (own[:, None] + theirs[None, :] - 2 * inner))
            else:
                near = (self.gamma * inner) ** self.degree
            total[start : start + step] += near @ self.duals
        return total


@dataclass(frozen=True)
class DenseNetwork:
    """Dense layers with relu between them."""

    weights: tuple[FloatArray, ...]
    biases: tuple[FloatArray, ...]
    kind: ClassVar[str] = "network"

    def predict(self, x: FloatArray) -> FloatArray:
        """Return the values of n rows, (n,)."""
        h = x
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            h = h @ weight + bias
            if i < len(self.weights) - 1:
                h = np.maximum(h, 0.0)
        return h[:, 0]


@dataclass(frozen=True)
class Scaled:
    """A model of standardised features and standardised values."""

    model: FittedModel
    centre: FloatArray
    scale: FloatArray
    middle: float
    unit: float
    kind: ClassVar[str] = "scaled"

    def predict(self, x: FloatArray) -> FloatArray:
        """Return the values of n rows, (n,)."""
        standard = (x - self.centre) / self.scale
        return self.middle + self.unit * self.model.predict(standard)


_KINDS: Mapping[str, type] = {
    c.kind: c for c in (Linear, Trees, SupportVectors, DenseNetwork, Scaled)
}


def settled(model: FittedModel) -> bool:
    """Return whether the fit of a model converged; trees and networks have no such end."""
    inner = model.model if isinstance(model, Scaled) else model
    return bool(getattr(inner, "converged", True))


def model_dict(model: FittedModel) -> dict[str, Any]:
    """Return a model as plain values for JSON."""
    return {"kind": model.kind, **{name: _plain(v) for name, v in vars(model).items()}}


def model_of(values: Mapping[str, Any]) -> FittedModel:
    """Return what `model_dict` wrote. Raises KeyError, TypeError or ValueError where it is not."""
    given = dict(values)
    made = _KINDS[given.pop("kind")]
    model: FittedModel = made(**{name: _read(name, v) for name, v in given.items()})
    return model


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return model_dict(value) if hasattr(value, "kind") else value


def _read(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return model_of(value)
    if name in ("roots", "feature", "left", "right"):
        return np.array(value, dtype=np.int64)
    if isinstance(value, list):
        nested = bool(value) and isinstance(value[0], list)
        if nested and name in ("weights", "biases"):
            return tuple(np.array(v, dtype=float) for v in value)
        return np.array(value, dtype=float)
    return value
