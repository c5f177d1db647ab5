"""NumPy arrays by what they hold: the columns on every hot path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Columns = TypeVar("Columns")


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Keep BLAS on one thread: those of small matrices wait for one another, on a busy machine most of the time."""
    import scipy.linalg  # noqa: F401  (it brings a BLAS of its own, which is limited only once loaded)
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, user_api="blas"):
        yield


def taken(columns: Columns, index: NDArray[Any]) -> Columns:
    """Return a dataclass of columns with the rows at the given positions (or where a mask is true).

    Its columns are its arrays, those in its mappings, and its parts that have a `take` of their own,
    all of as many rows; every other field is kept as it is.
    """

    def column(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value[index]
        if isinstance(value, Mapping):
            return {name: column(cells) for name, cells in value.items()}
        return value.take(index) if hasattr(value, "take") else value

    changed = {f.name: column(getattr(columns, f.name)) for f in fields(columns)}  # type: ignore[arg-type]
    return replace(columns, **changed)  # type: ignore[type-var]


class ColumnRows:
    """n rows of a dataclass whose fields are columns, (n,) or (n, ...), or hold for all rows."""

    def __len__(self) -> int:
        return next(len(held) for held in vars(self).values() if isinstance(held, np.ndarray))

    def take(self, index: NDArray[Any]) -> Self:
        """Return the rows at the given positions (or where a mask is true)."""
        return taken(self, index)

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the rows of all parts, in order."""
        names = [f.name for f in fields(cls)]  # type: ignore[arg-type]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def distinct_rows(columns: Sequence[FloatArray]) -> tuple[FloatArray, IntArray]:
    """Return the distinct rows of k columns in order, (m, k), and which each of n rows is, (n,).

    Of few rows a dictionary finds them several times sooner than a sort of arrays.
    """
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    place = {row: i for i, row in enumerate(sorted(set(rows)))}
    return np.array([*place]), np.array([place[row] for row in rows], dtype=np.int64)


def is_even(column: NDArray[Any]) -> bool:
    """Return whether a column, (n,), holds one value."""
    if column.strides == (0,) or not len(column):
        return True
    return bool(column[0] == column[-1] and (column == column[0]).all())


def alike(columns: Sequence[NDArray[Any]]) -> tuple[IntArray, IntArray]:
    """Return which distinct row each of n rows of small whole numbers is, (n,), and the first row of each, (m,)."""
    code = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        if not is_even(column):
            place = _ranks(column)
            code = _ranks(code * (int(place.max()) + 1) + place)
    first = np.empty(int(code.max(initial=-1)) + 1, dtype=np.int64)
    first[code[::-1]] = np.arange(len(code))[::-1]
    return code, first


def _ranks(values: NDArray[Any]) -> IntArray:
    top = int(values.max(initial=0))
    if top > 4 * len(values) + 65536:  # fewer are counted sooner than sorted
        return np.unique(values, return_inverse=True)[1].astype(np.int64)
    present = np.zeros(top + 1, dtype=np.int64)
    present[values] = 1
    return np.asarray(np.cumsum(present)[values] - 1)


def row(columns: Any, i: int) -> dict[str, Any]:
    """Return the i-th row of a dataclass of columns by field, in plain Python values."""

    def cell(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            here = value[i]
            return tuple(here.tolist()) if value.ndim > 1 else getattr(here, "item", lambda: here)()
        if isinstance(value, Mapping):
            return {name: cell(cells) for name, cells in value.items()}
        return value

    return {f.name: cell(getattr(columns, f.name)) for f in fields(columns)}


def group_medians(values: FloatArray, group: IntArray, groups: int) -> FloatArray:
    """Return the lower and the upper median of each group, (2, groups); NaN of an empty one."""
    order = np.lexsort((values, group))
    counts = np.bincount(group, minlength=groups)
    start = np.cumsum(counts) - counts
    middle = start + np.stack([np.maximum(counts - 1, 0) // 2, counts // 2])
    return np.where(counts > 0, np.append(values[order], np.nan)[middle], np.nan)


def thinned(labels: IntArray, most: int) -> IntArray:
    """Return positions of at most `most` rows (m,): turn by turn one of every label, drawn with a fixed seed."""
    rng, rows = np.random.default_rng(0), np.arange(len(labels))
    distinct = np.unique(labels)
    if len(distinct) > most:
        rows = rows[np.isin(labels, rng.choice(distinct, most, replace=False))]
    if len(rows) <= most:
        return rows
    order = rng.permutation(rows)
    order = order[np.argsort(labels[order], kind="stable")]
    return np.sort(order[np.argsort(turns(labels[order]), kind="stable")[:most]])


def turns(labels: IntArray) -> IntArray:
    """Return how many of the same label stand before each of sorted labels, (n,)."""
    return np.arange(len(labels)) - np.searchsorted(labels, labels)
