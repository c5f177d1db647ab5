"""Asked: numbers and classes of jobs, or of some of them, as blocks of runs read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from forerun.predictors.laws.law_rows import GROUP, Kind
from forerun.predictors.regression.block import Categories
from forerun.predictors.regression.questions import Questions

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Asked:
    """Numbers and classes of n jobs, or of some of them."""

    questions: Questions
    some: IntArray | None = None

    def take(self, rows: IntArray) -> Asked:
        """Return some of the jobs."""
        return Asked(self.questions, rows if self.some is None else self.some[rows])

    @cached_property
    def numbers(self) -> Mapping[str, FloatArray]:
        """Positive numbers by name, each (n,), NaN where nothing says one."""
        every = self.questions.numbers
        return every if self.some is None else {k: v[self.some] for k, v in every.items()}

    @property
    def kinds(self) -> tuple[list[Kind], IntArray]:
        """Distinct kinds, and which each job is, (n,)."""
        names, index = self.questions.kinds
        return names, index if self.some is None else index[self.some]

    @cached_property
    def categories(self) -> Categories:
        """Workload, device, kind, and session within a kind."""
        names, kind = self.kinds
        texts, index = self.questions.sessions
        session = index if self.some is None else index[self.some]
        both, place = np.unique(kind * max(len(texts), 1) + session, return_inverse=True)
        pairs = [divmod(value, max(len(texts), 1)) for value in both.tolist()]
        found: dict[str, tuple[list[str], IntArray]] = {}
        for column, name in enumerate(GROUP):
            found[name] = _renumbered([k[column] for k in names], kind)
        found["kind"] = _renumbered(["|".join(k) for k in names], kind)
        words = ["|".join((*names[one], texts[other])) for one, other in pairs]
        found["session"] = _renumbered(words, place.reshape(-1).astype(np.int64))
        return found


def _renumbered(texts: list[str], index: IntArray) -> tuple[list[str], IntArray]:
    """Return the distinct texts that occur, and which each row has, (n,)."""
    used = np.unique(index)
    merged = list(dict.fromkeys(texts[i] for i in used.tolist()))
    order = {text: i for i, text in enumerate(merged)}
    place = np.full(len(texts), -1, dtype=np.int64)
    place[used] = [order[texts[i]] for i in used.tolist()]
    return merged, place[index]
