"""ErnestDesign: the optimal design of Ernest as a searcher: designed runs, its law of them, and the best by the law."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.errors import RequestError
from forerun.predictors.laws.ernest import features
from forerun.predictors.laws.fitting import non_negative
from forerun.search.design import ERNEST_BUDGET, Problem, column_scaled, optimal_design, whole_runs
from forerun.search.landscape import Landscape, ObservedRuns
from forerun.search.searchers import Choice, Choosing

# Columns that the law itself reads, or that follow from its machines.
_OF_LAW = ("devices", "nodes", "devices_per_node", "placement", "dataset_size", "micro_batch")
_RANK = 1e-9


@dataclass(frozen=True)
class ErnestDesign(Choosing):
    """Runs an optimal design over machines and size of the data, fits Ernest's law, and runs the best by it.

    Venkataraman et al., Ernest, NSDI 2016, sections 3.1 and 3.2. Configurations that differ in anything
    else have a law each. A law of k terms gets k + 1 runs, where there are so many. The seed draws the order.
    """

    name = "ernest-design"

    def choose_among(self, land: Landscape, seen: ObservedRuns, left: BoolArray) -> Choice:
        """Return the next run of the design, then the best by the fitted laws; or that none is better."""
        machines, size = land.table.numbers("devices"), land.table.numbers("dataset_size")
        if np.isnan(machines).any():
            machines = land.table.numbers("nodes")
        if np.isnan(machines).any():
            raise RequestError(
                f"{self.name} over {len(land):,} configurations", "not all state their devices",
                "fill that column, or use another searcher",
            )  # fmt: skip
        size = np.where(size > 0, size, 1.0)
        expected = np.full(len(land), np.inf)
        rng = np.random.default_rng(self.seed)
        kinds = _kinds(land, machines)
        for kind in range(len(kinds)) if self.seed == 0 else rng.permutation(len(kinds)):
            rows = kinds[kind]
            x = features(size[rows], machines[rows])
            design = rows[_designed(x, size[rows], machines[rows])]
            design = design if self.seed == 0 else rng.permutation(design)
            todo = [i for i in design.tolist() if left[i]]
            if todo:
                place = len(design) - len(todo) + 1
                return Choice(todo[0], f"run {place} of {len(design)} designed", len(todo) - 1)
            made = np.isin(seen.at, rows) & seen.feasible
            if made.any():
                # Errors are ratios: each run is weighted by its time.
                relative = x[np.searchsorted(rows, seen.at[made])] / seen.seconds[made][:, None]
                expected[rows] = x @ non_negative(relative, np.ones((len(relative), 1)))[0]
        return self.by_forecast(land, seen, left, expected)


def _kinds(land: Landscape, machines: FloatArray) -> list[IntArray]:
    """Return the rows of each law, ascending: those that are alike but for machines and size."""
    batch = land.table.numbers("global_batch")
    if len(np.unique(batch / machines)) < len(np.unique(batch)):  # each worker keeps its batch
        batch = batch / machines
    names = [name for name in land.varied if name not in (*_OF_LAW, "global_batch")]
    cells = zip(batch.tolist(), *(land.table.texts(name).tolist() for name in names), strict=True)
    groups: dict[tuple[object, ...], list[int]] = {}
    for row, (first, *others) in enumerate(cells):
        groups.setdefault((str(first), *others), []).append(row)
    return [np.array(rows, dtype=np.int64) for rows in groups.values()]


def _designed(x: FloatArray, size: FloatArray, machines: FloatArray) -> IntArray:
    """Return which of n candidates are run, the most informative first."""
    scaled = column_scaled(x)
    kept: list[int] = []
    for term in range(scaled.shape[1]):
        if np.linalg.matrix_rank(scaled[:, [*kept, term]], tol=_RANK * len(x)) > len(kept):
            kept.append(term)
    if len(x) <= len(kept) + 1:
        return np.arange(len(x))
    k, cost = len(kept), size / size.min() / machines
    budget = max(ERNEST_BUDGET, k * cost.max())
    problem = Problem(scaled[:, kept], cost, budget, np.zeros((k, k)), np.eye(k), "A")
    return np.array(whole_runs(problem, optimal_design(problem).share, k + 1)[0], dtype=np.int64)
