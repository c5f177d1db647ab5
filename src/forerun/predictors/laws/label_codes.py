"""Kinds by label: rows that no zoo and no catalogue knows go by what their cells say."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import IntArray
from forerun.tables import Table

Kind = tuple[str, ...]

MOST_COUNTED = 1_000_000


def completed(
    known: list[Kind], index: NDArray[np.int32], labels: Table, names: tuple[str, ...]
) -> tuple[list[Kind], IntArray]:
    """Return the distinct kinds, and which each of n rows is, (n,).

    Args:
        known: kinds of what was resolved; equal ones are merged.
        index: positions in `known`, -1 where a row's labels say what it is, (n,).
        labels: the rows as they were asked.
        names: the columns that make up a kind.
    """
    kinds, index = list(known), index.astype(np.int64)
    rows = np.flatnonzero(index < 0)
    if len(rows):
        first, group = _groups(labels, names, rows)
        texts = [labels.take(rows[first]).texts(name).tolist() for name in names]
        index[rows] = len(kinds) + group
        kinds += [tuple(text.strip() for text in label) for label in zip(*texts, strict=True)]
    merged = list(dict.fromkeys(kinds))
    order = {kind: i for i, kind in enumerate(merged)}
    return merged, np.array([order[kind] for kind in kinds], dtype=np.int64)[index]


def _groups(labels: Table, names: tuple[str, ...], rows: IntArray) -> tuple[IntArray, IntArray]:
    """Return the first of each group of rows with the same cells, and the group of each."""
    code, count = np.zeros(len(rows), dtype=np.int64), 1
    for name in names:
        if name not in labels:
            continue
        values, most = codes(labels.columns[name][rows])
        if most > 1:
            # Made small again at once, so that no product of many columns can overflow.
            distinct, code = compact(code * most + values, count * most)
            count = len(distinct)
    first = np.empty(count, dtype=np.int64)
    first[code[::-1]] = np.arange(len(rows))[::-1]  # of several the last one written stays
    return first, code


def compact(code: IntArray, most: int) -> tuple[IntArray, IntArray]:
    """Return the distinct codes in order, and the position of each of n among them.

    Without sorting where there can be few of them: a million codes are then met in one pass.

    Args:
        code: from 0 to below `most`, (n,).
        most: how many there can be.
    """
    if most > MOST_COUNTED:
        distinct, index = np.unique(code, return_inverse=True)
        return distinct, index.reshape(-1).astype(np.int64)
    present = np.zeros(most, dtype=bool)
    present[code] = True
    place = np.cumsum(present) - 1
    return np.flatnonzero(present), place[code]


def codes(column: NDArray[Any]) -> tuple[IntArray, int]:
    """Return a small number for each distinct cell, (n,), and how many there are."""
    if column.dtype == object:
        # A dictionary meets a million texts faster than sorting them does.
        cells = column.tolist()
        place = {cell: i for i, cell in enumerate(dict.fromkeys(cells))}
        if len(place) == 1:
            return np.zeros(len(cells), dtype=np.int64), 1
        return np.fromiter(map(place.__getitem__, cells), np.int64, len(cells)), len(place)
    if len(column) and (np.isnan(column).all() or (column == column[0]).all()):
        return np.zeros(len(column), dtype=np.int64), 1
    distinct, code = np.unique(column, return_inverse=True)
    return code.reshape(-1).astype(np.int64), len(distinct)
