"""Resources: what each worker is given to work with, as numbers that laws of physics scale by.

A worker that is held to a part of a core (a quota of its scheduler) computes that much slower. Of several
cores its threads make what they can, and cores beyond its threads none at all. A link is as fast as the
row says, else as its cluster is known to be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.predictors.laws.law_rows import LawRows

Span = tuple[float, float]

_BITS = 8.0  # in a byte
# Log standard deviation of an answer to a row that states what no run did.
UNREAD_SIGMA = 0.3
# Powers by which speed goes with a part of a core and with whole cores (Amdahl, 1967: some of the work is
# not divided), and with those beside an accelerator, which computes itself.
SHARE_POWER, CORES_POWER, BESIDE_POWER = 1.0, 0.85, 0.1


@dataclass(frozen=True)
class Resources:
    """What n jobs are given; NaN where a row does not say."""

    rows: LawRows

    @cached_property
    def log_cores(self) -> FloatArray:
        """Log of the cores that a worker can use, (n,): those it is given, no more than its threads."""
        given, threads = self._stated("cpus_per_worker"), self._stated("threads")
        return np.log(np.where(threads < given, threads, given))

    @cached_property
    def log_wire(self) -> FloatArray:
        """Log of the stated GB/s of a machine's network, (n,)."""
        return np.log(self._stated("node_gbps") / _BITS)

    @cached_property
    def log_speed(self) -> FloatArray:
        """Log of the speed of a worker over that of one core, (n,), as it is believed to go with cores."""
        share, cores = np.minimum(self.log_cores, 0.0), np.maximum(self.log_cores, 0.0)
        alone = SHARE_POWER * share + CORES_POWER * cores
        return np.where(self.kinds[1], BESIDE_POWER * (share + cores), alone)

    @cached_property
    def kinds(self) -> tuple[BoolArray, BoolArray]:
        """Which jobs compute on a processor, and which on something else, as far as is known, (n,)."""
        known = [cluster.device.kind == "cpu" for cluster in self.rows.jobs.clusters]
        index = self.rows.jobs.cluster_index
        here = index >= 0
        return np.array([*known, False])[index] & here, ~np.array([*known, True])[index] & here

    def _stated(self, name: str) -> FloatArray:
        values = self.rows.labels.numbers(name)
        return np.where(values > 0, values, np.nan)


def spans(values: FloatArray, group: IntArray, groups: int) -> list[Span | None]:
    """Return least and most of each group's stated values, None where fewer than half are stated."""
    found: list[Span | None] = []
    for i in range(groups):
        mine = values[group == i]
        stated = mine[np.isfinite(mine)]
        few = not len(stated) or 2 * len(stated) < len(mine)
        found.append(None if few else (float(stated.min()), float(stated.max())))
    return found


@dataclass(frozen=True)
class Read:
    """One resource of n jobs as a law reads it.

    Attributes:
        values: logs, (n,): as stated; the middle of what the runs state where a row does not say; NaN
            where the runs of its group state none.
        unsure: log standard deviation that this adds, (n,).
        beyond: logs by which the value lies outside what the runs had, (n,).
        offset: of the value from the middle of what the runs state, (n,), 0 where it is not read.
    """

    values: FloatArray
    unsure: FloatArray
    beyond: FloatArray
    offset: FloatArray

    @staticmethod
    def of(values: FloatArray, group: IntArray, known: Sequence[Span | None]) -> Read:
        """Return what is read of stated logs (n,), NaN where not stated.

        Args:
            values: as rows state them. group: whose runs speak of each, (n,), -1 for none.
            known: of each group, see `spans`.
        """
        nothing = (np.nan, np.nan)
        low, high = np.array([*(one or nothing for one in known), nothing])[group].T
        stated, taught = np.isfinite(values), np.isfinite(low)
        filled = np.where(stated, values, (low + high) / 2.0)
        unsure = np.where(stated, np.where(taught, 0.0, UNREAD_SIGMA), (high - low) / 2.0)
        beyond = np.fmax(filled - high, low - filled)
        offset = np.where(taught, filled - (low + high) / 2.0, 0.0)
        read = np.where(taught, filled, np.nan)
        return Read(read, np.nan_to_num(unsure), np.fmax(beyond, 0.0), np.nan_to_num(offset))

    @property
    def ambiguous(self) -> BoolArray:
        """Which rows say nothing where the runs of their group differ, (n,)."""
        return np.asarray((self.unsure > 0) & np.isfinite(self.values))
