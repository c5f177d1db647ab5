"""Folds: the runs divided as a question divides them from its job: within, beyond, apart, few.

Each fold teaches some runs and judges others. Which question a judged run then is, its place among
the teaching runs says (see `questions`), as for any job that is asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.predictors.choice.columns import JobColumns

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

WITHIN, PARTS = 3, 3
# Runs that are left of a workload on a device, to see who answers from few.
FEW = (2, 5)
_FEWEST = 2  # questions without which nothing can be divided


@dataclass(frozen=True)
class Fold:
    """Positions of the runs that teach and of those that are judged; `words` says how divided."""

    words: str
    teach: IntArray
    judge: IntArray


def folds_of(columns: JobColumns, config: IntArray, timed: BoolArray) -> list[Fold]:
    """Return the folds of n runs; none where too few are timed.

    Args:
        columns: of their jobs.
        config: number of each run's question, (n,): repeats share it and stay together.
        timed: which runs can be judged, (n,). The others only teach.
    """
    rng = np.random.default_rng(0)
    families: dict[str, list[Fold]] = {}
    for words, out in _outs(columns, config, timed, rng):
        judge, teach = np.flatnonzero(out & timed), np.flatnonzero(~out)
        if len(judge) and timed[teach].any():
            families.setdefault(words, []).append(Fold(words, teach, judge))
    # In turn, so that who is stopped early has been seen at every kind of question.
    turns = range(max(map(len, families.values()), default=0))
    return [family[turn] for turn in turns for family in families.values() if turn < len(family)]


def _outs(
    columns: JobColumns, config: IntArray, timed: BoolArray, rng: np.random.Generator
) -> Iterator[tuple[str, BoolArray]]:
    """Yield (words, which runs are left out), of each fold."""
    questions = np.unique(config[timed])
    if len(questions) < _FEWEST:
        return
    parts = WITHIN if len(questions) >= 2 * WITHIN else len(questions)
    dealt = rng.permutation(int(config.max()) + 1)
    rank = np.argsort(np.argsort(dealt[questions], kind="stable"), kind="stable")
    part = np.full(int(config.max()) + 1, -1)
    part[questions] = rank % parts
    for i in range(parts):
        yield "runs left out by chance", part[config] == i
    groups, group = columns.groups
    cores, wire = columns.given
    for name, values in (("devices", columns.machines), ("samples a device", columns.share),
                         ("samples of an epoch", columns.dataset), ("cores of a worker", cores),
                         ("rates of the network", wire)):  # fmt: skip
        for words, bound in (("the upper half", 0.5), ("the most", 1.0)):
            out = _upper(values, group, len(groups), bound)
            if out.any():
                yield f"{words} of {name} left out", out
    workloads = np.array([g[0] for g in groups], dtype=object)[group]
    devices = np.array([g[1] for g in groups], dtype=object)[group]
    apart = [("workload", workloads), ("device", devices)]
    if not _same(columns.cluster, devices):
        apart.append(("cluster", columns.cluster))
    for name, labels in apart:
        distinct, label = np.unique(labels.astype(str), return_inverse=True)
        count = len(distinct)
        if count < 2 or (name == "cluster" and "" in distinct):
            continue
        share = rng.permutation(count)[label.reshape(-1)] % min(PARTS, count)
        for i in range(min(PARTS, count)):
            yield f"every {name} of a part left out", share == i
    yield from _few(config, group, devices if len(set(devices)) > 1 else workloads, timed, rng)


def _upper(values: FloatArray, group: IntArray, groups: int, bound: float) -> BoolArray:
    """Return which runs are above, in their own group, the lower half of distinct values (n,).

    bound: 0.5 for the lower half, 1.0 for all values but the largest.
    """
    out = np.zeros(len(values), dtype=bool)
    told = np.isfinite(values)
    for g in range(groups):
        mine = np.flatnonzero((group == g) & told)
        distinct = np.unique(values[mine])
        if len(distinct) < 2 or (bound == 1.0 and len(distinct) < 3):
            continue
        last = len(distinct) - 2 if bound == 1.0 else (len(distinct) - 1) // 2
        out[mine] = values[mine] > distinct[last]
    return out


def _few(
    config: IntArray, group: IntArray, places: NDArray[np.object_], timed: BoolArray,
    rng: np.random.Generator,
) -> Iterator[tuple[str, BoolArray]]:  # fmt: skip
    """Yield folds in which half of the places keep only a few runs of each of their groups."""
    distinct, place = np.unique(places.astype(str), return_inverse=True)
    place = place.reshape(-1)
    if len(distinct) < 2:
        return
    half = rng.permutation(len(distinct)) < (len(distinct) + 1) // 2
    drawn = rng.permutation(int(config.max()) + 1)[config]
    for turn, count in enumerate(FEW):
        thin = half[place] if turn % 2 == 0 else ~half[place]
        out = np.zeros(len(config), dtype=bool)
        for g in np.unique(group[thin]):
            mine = np.flatnonzero((group == g) & thin)
            keep = np.unique(drawn[mine[timed[mine]]])[:count]
            out[mine] = ~np.isin(drawn[mine], keep)
        yield "all but a few runs of a workload and device left out", out


def _same(a: NDArray[np.object_], b: NDArray[np.object_]) -> bool:
    """Whether two labels divide the runs alike."""
    pairs = set(zip(a.tolist(), b.tolist(), strict=True))
    return len(pairs) == len({one for one, _ in pairs}) == len({other for _, other in pairs})


def thinned(config: IntArray, group: IntArray, most: int) -> IntArray:
    """Return positions of at most `most` runs (m,): repeats go first, then evenly of all groups.

    config, group: number of each run's question, and of its workload and device, (n,).
    """
    if len(config) <= most:
        return np.arange(len(config))
    rng = np.random.default_rng(0)
    shuffled = rng.permutation(len(config))
    repeat, turn = np.empty((2, len(config)), dtype=np.int64)
    repeat[shuffled] = _rank_within(config[shuffled])
    turn[shuffled] = _rank_within(group[shuffled])
    return np.sort(np.lexsort((turn, repeat))[:most])


def _rank_within(labels: IntArray) -> IntArray:
    """Return how many rows before each have the same label, (n,)."""
    order = np.argsort(labels, kind="stable")
    ordered = labels[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    sizes = np.diff(np.r_[starts, len(labels)])
    rank = np.empty(len(labels), dtype=np.int64)
    rank[order] = np.arange(len(labels)) - np.repeat(starts, sizes)
    return rank
