"""Samples: which of a dataset's samples each worker gets, whatever the number of workers and the batch."""

from __future__ import annotations

import numpy as np

from forerun.arrays import IntArray


class SampleStream:
    """All epochs of a dataset as one row of sample ids; an epoch is a permutation by (seed, epoch).

    A global batch is the next ids of the row and may reach into the next epoch, so that no batch is short:
    each id comes once an epoch, whoever takes it.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.size, self._seed = size, seed
        self._orders: dict[int, IntArray] = {}

    def ids(self, position: int, count: int) -> IntArray:
        """Return the ids (count,) from a position on, which counts samples from the first epoch's begin."""
        parts, until = [], position + count
        while position < until:
            epoch, at = divmod(position, self.size)
            parts.append(self._order(epoch)[at : at + until - position])
            position += len(parts[-1])
        return np.concatenate(parts)

    def share(self, position: int, count: int, rank: int, workers: int) -> IntArray:
        """Return the ids of a global batch that a worker gets: every workers-th, from its rank on."""
        return self.ids(position, count)[rank::workers]

    def _order(self, epoch: int) -> IntArray:
        if epoch not in self._orders:
            order = np.random.default_rng([self._seed, epoch]).permutation(self.size)
            recent = list(self._orders.items())[-1:]  # a batch lies in two epochs at its end
            self._orders = dict([*recent, (epoch, order)])
        return self._orders[epoch]
