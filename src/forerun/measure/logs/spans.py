"""Spans: sets of times on a line, and a step's wall time divided among what went on in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from forerun.measure.logs.series import FloatArray


def united(begins: Sequence[float] | FloatArray, ends: Sequence[float] | FloatArray) -> FloatArray:
    """Return the union of spans as disjoint ones in order, (m, 2)."""
    if not len(begins):
        return np.zeros((0, 2))
    spans = np.column_stack([np.asarray(begins, float), np.asarray(ends, float)])
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    reach = np.maximum.accumulate(spans[:, 1])
    first = np.flatnonzero(np.r_[True, spans[1:, 0] > reach[:-1]])
    last = np.r_[first[1:] - 1, len(spans) - 1]
    return np.column_stack([spans[first, 0], reach[last]])


def without(spans: FloatArray, taken: FloatArray) -> FloatArray:
    """Return what of disjoint spans (n, 2) lies in none of other disjoint spans (m, 2)."""
    if not len(spans) or not len(taken):
        return spans
    begins, ends = list[float](), list[float]()
    j = 0
    for begin, end in spans:
        while j and taken[j - 1, 1] > begin:
            j -= 1
        while j < len(taken) and taken[j, 1] <= begin:
            j += 1
        at, k = begin, j
        while k < len(taken) and taken[k, 0] < end:
            if taken[k, 0] > at:
                begins.append(at)
                ends.append(taken[k, 0])
            at = max(at, taken[k, 1])
            k += 1
        if at < end:
            begins.append(at)
            ends.append(end)
    return np.column_stack([begins, ends]) if begins else np.zeros((0, 2))


def within(spans: FloatArray, begin: float, end: float) -> float:
    """Return how much of disjoint spans (n, 2) lies between two times."""
    if not len(spans):
        return 0.0
    return float(
        np.clip(np.minimum(spans[:, 1], end) - np.maximum(spans[:, 0], begin), 0, None).sum()
    )


def contains(spans: FloatArray, times: FloatArray) -> NDArray[np.bool_]:
    """Return which of times (n,) lie in one of disjoint spans (m, 2) in order."""
    if not len(spans):
        return np.zeros(len(times), dtype=bool)
    at = np.searchsorted(spans[:, 0], times, side="right") - 1
    inside: NDArray[np.bool_] = (at >= 0) & (times < spans[np.maximum(at, 0), 1])
    return inside


def divided(
    steps: Mapping[int, tuple[float, float]], groups: Mapping[str, FloatArray], rest: str
) -> dict[int, dict[str, float]]:
    """Return for each step how much of it each group takes; the first group that claims a time has it.

    Args:
        steps: begin and end by number.
        groups: disjoint spans (n, 2) by name, in the order of their claims.
        rest: the name of what no group claims.
    """
    taken = np.zeros((0, 2))
    own: dict[str, FloatArray] = {}
    for name, spans in groups.items():
        own[name] = without(spans, taken)
        both = np.concatenate([taken, spans])
        taken = united(both[:, 0], both[:, 1])
    result = {}
    for number, (begin, end) in steps.items():
        parts = {name: within(spans, begin, end) for name, spans in own.items()}
        parts[rest] = max(0.0, end - begin - sum(parts.values()))
        result[number] = parts
    return result
