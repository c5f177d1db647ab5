"""Near the runs: what the law leaves of the measured times, smoothed over layout and micro-batch.

A Gaussian process on the law's log residuals of one app on one cluster. Runs of one placement share
its luck, those of one micro-batch an algorithm, those of near layouts a network; far from all of them the
correction dies away and the law alone speaks. It serves where leaving each run out shows a gain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.domain.quantiles import Z95

Layout = tuple[float, ...]

# Standard deviations in units of the noise of one run: of a micro-batch, of one placement, of near layouts;
# and their lengths in logs of the micro-batch and in doublings of devices, nodes, devices a node, cores and
# link rate.
NOISE, BATCH, PLACEMENT, NEAR = 1.0, 0.75, 1.25, 2.0
BATCH_LENGTH, PLACEMENT_LENGTH, NEAR_LENGTH, LAYOUT_LENGTH = 1.0, 2.0, 1.5, 2.0
LEAST_RUNS, MOST_RUNS = 8, 2000
LEAST_GAIN = 0.03  # of the middle residual, by leaving runs out
_OUTLIER = 4.0  # robust standard deviations, beyond which a residual is cut
_MOST_BATCHES = 48
_BEYOND = np.log(2.0) * np.array(
    [1.0, 2.0, 4.0]
)  # micro-batches beyond the runs that are tabulated


@dataclass(frozen=True)
class Near:
    """The runs of one group and their residuals.

    Attributes:
        log_batch, devices, nodes, busy, cores, rate, placement: of each run, (n,): cores of a worker and
            GB/s of the wire; placements are positions in a list of texts.
        residual: log measured over the law's seconds, (n,).
        tables: corrections and supports over `batches` of the layouts asked so far.
    """

    log_batch: FloatArray
    devices: FloatArray
    nodes: FloatArray
    busy: FloatArray
    cores: FloatArray
    rate: FloatArray
    placement: IntArray
    residual: FloatArray
    tables: dict[Layout, tuple[FloatArray, FloatArray]] = field(default_factory=dict)

    @property
    def serves(self) -> bool:
        """Whether leaving each run out shows that the correction helps."""
        return self._solved is not None

    @property
    def sigma(self) -> float:
        """Log standard deviation of a run beside the others, by leaving each out."""
        assert self._solved is not None
        return self._solved[1]

    def corrections(
        self, log_batch: FloatArray, layout: FloatArray, placement: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return the log correction of n jobs and how near they are, 0 to 1, (n,) each.

        Args:
            log_batch: (n,). layout: (n, 5) devices, nodes and devices on the busiest of them, cores of a
                worker and GB/s of the wire.
            placement: (n,) -1 where no run has it.
        """
        rows = np.column_stack([layout, placement])
        code = rows[:, [0, 1, 2, 5]] @ np.array([1.0, 2.0**13, 2.0**26, 2.0**39])
        for column in (rows[:, 3], rows[:, 4]):
            if np.any(column != column[0]):  # resources seldom vary, and are few where they do
                code = np.unique(code, return_inverse=True)[1].reshape(-1).astype(np.float64)
                distinct, one = np.unique(column, return_inverse=True)
                code = code * len(distinct) + one.reshape(-1)
        _, first, index = np.unique(code, return_index=True, return_inverse=True)
        index = index.reshape(-1)
        correction, support = np.empty(len(code)), np.empty(len(code))
        order = np.argsort(index, kind="stable")
        ends = np.r_[0, np.cumsum(np.bincount(index, minlength=len(first)))]
        for i, (start, end) in enumerate(pairwise(ends.tolist())):
            mine = order[start:end]
            shift, near = self._table(tuple(rows[first[i]].tolist()))
            correction[mine] = np.interp(log_batch[mine], self.batches, shift)
            support[mine] = np.interp(log_batch[mine], self.batches, near)
        return correction, support

    @cached_property
    def batches(self) -> FloatArray:
        """Logs of the micro-batches at which corrections are tabulated, ascending."""
        known = np.unique(self.log_batch)
        if len(known) > _MOST_BATCHES:
            known = np.quantile(known, np.linspace(0.0, 1.0, _MOST_BATCHES))
        middle = (known[1:] + known[:-1]) / 2.0
        every = [known[0] - _BEYOND, known, middle, known[-1] + _BEYOND]
        return np.unique(np.concatenate(every))

    def _table(self, layout: Layout) -> tuple[FloatArray, FloatArray]:
        found = self.tables.get(layout)
        if found is None:
            assert self._solved is not None
            n = len(self.batches)
            *sizes, place = layout
            of = [self.batches, *(np.full(n, size) for size in sizes)]
            like = _kernel((of, np.full(n, int(place))), self._columns, self.placement >= 0)
            whole = BATCH**2 + PLACEMENT**2 + NEAR**2
            found = like @ self._solved[0], like.max(axis=1) / whole
            self.tables[layout] = found
        return found

    @property
    def _columns(self) -> Columns:
        sizes = [self.log_batch, self.devices, self.nodes, self.busy, self.cores, self.rate]
        return sizes, self.placement

    @cached_property
    def _solved(self) -> tuple[FloatArray, float] | None:
        """Return the weights of the residuals and the spread that is left; None for no gain."""
        n = len(self.residual)
        if n < LEAST_RUNS:
            return None
        wide = 1.4826 * float(np.median(np.abs(self.residual)))
        cut = np.clip(self.residual, -_OUTLIER * wide, _OUTLIER * wide)
        matrix = _kernel(self._columns, self._columns, self.placement >= 0)
        matrix[np.diag_indices(n)] += NOISE**2
        inverse = np.linalg.inv(matrix)
        weights = inverse @ cut
        left_out = weights / np.diag(inverse) + (self.residual - cut)
        gain = 1.0 - np.median(np.abs(left_out)) / max(
            float(np.median(np.abs(self.residual))), 1e-12
        )
        if gain < LEAST_GAIN:
            return None
        return weights, float(np.quantile(np.abs(left_out), 0.9)) / Z95


Columns = tuple[list[FloatArray], IntArray]
_LAYOUT = 3  # of the sizes after the first, those that place workers


def _kernel(a: Columns, b: Columns, placed: NDArray[np.bool_]) -> FloatArray:
    """Return how alike the residuals of a (n) and b (m) are, (n, m).

    placed: which of b have a placement that others can have, too.
    """
    batch = np.abs(a[0][0][:, None] - b[0][0][None])
    far = np.zeros_like(batch)
    same = (a[1][:, None] == b[1][None]) & placed
    for i, (x, y) in enumerate(zip(a[0][1:], b[0][1:], strict=True)):
        if i >= _LAYOUT and x[0] == y[0] and np.all(x == x[0]) and np.all(y == y[0]):
            continue  # resources seldom vary
        far += (np.log2(x)[:, None] - np.log2(y)[None]) ** 2
        if i < _LAYOUT:
            same &= x[:, None] == y[None]
    result = BATCH**2 * np.exp(-batch / BATCH_LENGTH)
    result += PLACEMENT**2 * same * np.exp(-batch / PLACEMENT_LENGTH)
    result += NEAR**2 * np.exp(-batch / NEAR_LENGTH - np.sqrt(far) / LAYOUT_LENGTH)
    return np.asarray(result)


def as_saved(near: Near) -> Mapping[str, list[float]]:
    """Return the runs of a group as plain lists."""
    names = ("log_batch", "devices", "nodes", "busy", "cores", "rate", "placement", "residual")
    return {name: getattr(near, name).tolist() for name in names}


def of_saved(saved: Mapping[str, list[float]]) -> Near:
    """Return the runs that `as_saved` wrote."""
    numbers = {
        name: np.array(values, dtype=np.float64)
        for name, values in saved.items()
        if name != "placement"
    }
    return Near(placement=np.array(saved["placement"], dtype=np.int64), tables={}, **numbers)
