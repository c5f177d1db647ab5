"""Partitions: the Ray study's ways to set rows aside: for hyper-parameters, and for validation.

What is set aside at random are whole configurations: of a row whose repeat was fitted, an error says
nothing of how a configuration that nobody measured is foretold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.errors import RequestError, one_of

Partition = tuple[IntArray, IntArray]  # rows that are fitted, rows that are judged

MODES = ("all", "hold-out", "k-fold", "interpolation", "extrapolation")


@dataclass(frozen=True)
class SetAside:
    """How rows are set aside.

    Attributes:
        mode: `all` judges the rows that were fitted; `hold-out` a share of the configurations;
            `k-fold` each part of them in turn; `interpolation` every h-th of the sorted values of a column, from the
            smallest, which is therefore always judged; `extrapolation` rows of which a column lies
            strictly above its bound.
        share: of a hold-out.
        folds: of `k-fold`.
        every: by column, the h of an interpolation.
        values: by column, the judged values of an interpolation.
        bounds: by column, of an extrapolation.
    """

    mode: str = "hold-out"
    share: float = 0.2
    folds: int = 5
    every: Mapping[str, int] = field(default_factory=dict)
    values: Mapping[str, Sequence[float]] = field(default_factory=dict)
    bounds: Mapping[str, float] = field(default_factory=dict)

    def partitions(
        self,
        columns: Mapping[str, FloatArray],
        n: int,
        seed: int,
        configurations: IntArray | None = None,
    ) -> list[Partition]:
        """Return what is fitted and what is judged, in turn, of n rows.

        Args:
            columns: numbers of the rows by name, each (n,).
            n: rows.
            seed: of the draws.
            configurations: which each row repeats, (n,); by default every row is one of its own,
                and so it is where all rows repeat a single one.

        Raises:
            RequestError: no such mode or column, or nothing is left on one side.
        """
        rows = np.arange(n)
        if self.mode == "all":
            return [(rows, rows)]
        if self.mode == "hold-out":
            of, m = _numbered(configurations, n)
            turn = np.random.default_rng(seed).permutation(m)
            aside = np.isin(of, turn[: min(max(round(self.share * m), 1), m - 1)])
            return [self._checked(rows[~aside], rows[aside], n)]
        if self.mode == "k-fold":
            of, m = _numbered(configurations, n)
            part = (np.random.default_rng(seed).permutation(m) % max(min(self.folds, m), 2))[of]
            return [
                self._checked(rows[part != i], rows[part == i], n) for i in range(part.max() + 1)
            ]
        if self.mode not in MODES:
            raise RequestError(f"rows set aside by {self.mode!r}", "there is no such way",
                               one_of(self.mode, MODES))  # fmt: skip
        judged = np.zeros(n, dtype=bool)
        for name in {**self.every, **self.values, **self.bounds}:
            judged |= self._judged(name, columns, n)
        return [self._checked(rows[~judged], rows[judged], n)]

    def _judged(self, name: str, columns: Mapping[str, FloatArray], n: int) -> NDArray[np.bool_]:
        if name not in columns:
            raise RequestError(
                f"{self.mode} by {name}", f"the {n} runs have no such column that changes",
                one_of(name, columns),
            )  # fmt: skip
        found = columns[name]
        if self.mode == "extrapolation":
            return np.asarray(found > self.bounds[name])
        listed = self.values.get(name)
        if listed is None:
            listed = np.unique(found)[:: max(int(self.every[name]), 1)].tolist()
        return np.asarray(np.isin(found, np.asarray(listed, dtype=float)))

    def _checked(self, fitted: IntArray, judged: IntArray, n: int) -> Partition:
        if len(fitted) and len(judged):
            return fitted, judged
        side = "fitted" if len(judged) else "judged"
        raise RequestError(
            f"{n} runs set aside by {self.mode}", f"none is left to be {side}",
            "set aside another way, or give more runs",
        )  # fmt: skip


def _numbered(configurations: IntArray | None, n: int) -> tuple[IntArray, int]:
    """Return the configuration of each row from 0 on, (n,), and how many there are."""
    if configurations is not None:
        distinct, of = np.unique(configurations, return_inverse=True)
        if len(distinct) > 1:
            return of.reshape(-1).astype(np.int64), len(distinct)
    return np.arange(n), n
