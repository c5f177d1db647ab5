"""Scaling: a search space as workers and batches, and how long the work takes at each of them, from a few runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.catalog import load_catalog
from forerun.domain.quantiles import Z95
from forerun.errors import RequestError
from forerun.predictors.convergence.predictor import Convergence
from forerun.predictors.laws.fitting import non_negative
from forerun.predictors.laws.goodput import Goodput
from forerun.search.landscape import MACHINE, Landscape, ObservedRuns, batches
from forerun.tables import Table
from forerun.workloads.rows import jobs_from_table, runs_from_table

FEWEST = Goodput.least_points
# Columns that say how many workers there are and what each of them does; all else makes kinds.
_OF_SCALE = ("devices", "nodes", "devices_per_node", "placement", "global_batch", "micro_batch", "grad_accum")  # fmt: skip
# Columns that change how many samples a training needs.
_TRAINING = ("workload", "dataset", "target", "optimizer", "learning_rate", "learning_rate_rule")
_UNSURE = 0.5  # log standard deviation of a step that no run on several workers speaks of


@dataclass(frozen=True)
class Scale:
    """Workers K and global batch B of n configurations, (n,).

    kind: codes of what is alike in all else, (n,). training: of what is trained in one way, (n,).
    """

    workers: FloatArray
    batch: FloatArray
    kind: IntArray
    training: IntArray

    @staticmethod
    def of(land: Landscape, asked: str) -> Scale:
        """Return the scale of a search space. Raises RequestError where workers or a batch are not stated."""
        table = land.table
        workers = table.numbers("devices")
        workers = np.where(np.isnan(workers), table.numbers("nodes"), workers)
        batch = batches(table)
        if bad := int((~(workers > 0) | ~(batch > 0)).sum()):
            raise RequestError(
                asked, f"{bad:,} of {len(land):,} configurations state no workers or no batch",
                "fill devices and global_batch, or use another searcher",
            )  # fmt: skip
        places = len(np.unique(np.stack([workers, batch]), axis=1).T)

        def follows(column: Any) -> bool:
            """Whether a number goes with workers and batch, as a learning rate may."""
            if column.dtype == object:
                return False
            both = np.stack([workers, batch, np.nan_to_num(column, nan=-1.0)])
            return places > 1 and len(np.unique(both, axis=1).T) == places

        named = {name: table.columns[name] for name in land.varied if name not in _OF_SCALE}
        apart = {name: column for name, column in named.items() if not follows(column)}
        trained = [name for name in apart if name in _TRAINING]
        # A price is that of a machine or of a worker: whichever tells fewer kinds.
        each = [np.log(land.dollars_per_hour / workers).round(6), land.axes.get(MACHINE)]
        prices = [price for price in each if price is not None and np.isfinite(price).all()]
        if prices:
            apart[MACHINE] = min(prices, key=lambda price: len(np.unique(price)))
        kinds = Table(apart, len(land))
        return Scale(workers, batch, kinds.groups([*apart])[1], kinds.groups(trained)[1])

    def extremes(self, middle: bool) -> list[int]:
        """Return the smallest and largest batch of the fewest and most workers of each kind, by K and B.

        middle: also the one that lies most in the middle. Two numbers of workers do not tell what each
        further one adds to a reduction (Pollux's law).
        """
        found: set[int] = set()
        for kind in np.unique(self.kind):
            rows = np.flatnonzero(self.kind == kind)
            ends = set()
            for k in (self.workers[rows].min(), self.workers[rows].max()):
                mine = rows[self.workers[rows] == k]
                ends |= {int(mine[f(self.batch[mine])]) for f in (np.argmin, np.argmax)}
            places = np.log(np.stack([self.workers, self.batch], axis=1)[rows])
            far = np.sum((places - places.mean(axis=0)) ** 2, axis=1)
            inner = [int(i) for i in rows[np.argsort(far, kind="stable")] if int(i) not in ends]
            found |= ends | set(inner[: int(middle)])
        return sorted(found, key=lambda i: (self.workers[i], self.batch[i], i))

    def table(self, **more: FloatArray) -> Table:
        """Return the configurations as rows of a runs table, each kind a device of its own."""
        micro = np.ceil(self.batch / self.workers)
        return Table.from_columns({
            "workload": [f"training {t}" for t in self.training.tolist()], "device": [f"kind {k}" for k in self.kind.tolist()],
            "nodes": np.ones(len(micro)), "devices": self.workers, "micro_batch": micro,
            "global_batch": micro * self.workers, **more,
        })  # fmt: skip

    def take(self, at: IntArray | BoolArray) -> Scale:
        """Return some of the configurations."""
        return Scale(self.workers[at], self.batch[at], self.kind[at], self.training[at])


def step_forecasts(law: str, scale: Scale, at: IntArray, seconds: FloatArray) -> FloatArray:
    """Return seconds of a step at n configurations as quantiles (n, 3), from those at m, (m,); NaN where the law cannot say.

    law: goodput (Pollux), or scavenger: t = c b + s K of the batch b of a worker, Scavenger (CCGrid 2023),
    equations 8 to 10. What was observed is taken as it was.
    """
    found = np.full((len(scale.workers), 3), np.nan)
    known = scale.take(at)
    if law == "scavenger":
        for kind in np.unique(known.kind):
            here, mine = scale.kind == kind, known.kind == kind
            terms = np.stack([scale.batch / scale.workers, scale.workers], axis=1)
            # Errors of timers are ratios, so each row is divided by its time.
            scaled = terms[at[mine]] / seconds[mine, None]
            rates = non_negative(scaled, np.ones((len(scaled), 1)))[0]
            found[here] = (terms[here] @ rates)[:, None]
    else:
        points = np.unique(np.stack([known.kind, known.workers, known.batch]), axis=1)
        kinds, counts = np.unique(points[0].astype(int), return_counts=True)
        fit = kinds[counts >= FEWEST].tolist()
        if fit:
            catalog, mine = load_catalog(), np.isin(known.kind, fit)
            runs = runs_from_table(known.take(mine).table(step_time_s=seconds[mine]), catalog)
            found[:] = Goodput().fit(runs).predict(jobs_from_table(scale.table(), catalog)).seconds
    found[at] = seconds[:, None]
    return found


def _shared(seconds: FloatArray, share: FloatArray, asked: FloatArray) -> FloatArray:
    """Return seconds of a step as if workers shared the work without loss: a part that is fixed, and one by the share."""
    terms = np.stack([np.ones(len(share)) * (len(np.unique(share)) > 1), share], axis=1)
    rates = non_negative(terms / seconds[:, None], np.ones((len(share), 1)))[0]
    return np.asarray(np.stack([np.ones(len(asked)), asked], axis=1) @ rates)


def whole_forecasts(scale: Scale, seen: ObservedRuns) -> FloatArray:
    """Return seconds until the work of each configuration is done as quantiles (n, 3), from the runs within the deadline.

    A step is forecast by Goodput, and where it is silent as if workers shared the work without loss, which is
    Pollux's prior; a kind that none has run is taken to be as fast as the fastest. Samples are those seen, else by
    `Convergence`; without any, all do equally many.
    """
    rows = np.flatnonzero(seen.feasible)
    at, samples = seen.at[rows], seen.samples
    samples = np.full(len(scale.batch), scale.batch.max()) if samples is None else samples
    at, rows = at[np.isfinite(samples[at])], rows[np.isfinite(samples[at])]
    steps = samples / scale.batch
    seconds = seen.seconds[rows] / steps[at]
    step = step_forecasts("goodput", scale, at, seconds)
    share = scale.batch / scale.workers
    for kind in np.unique(scale.kind) if len(at) else ():
        silent = (scale.kind == kind) & np.isnan(step[:, 1])
        mine = scale.kind[at] == kind
        if not mine.any():
            mine[np.argmin(seconds / share[at])] = True
        expected = _shared(seconds[mine], share[at[mine]], share[silent])
        step[silent] = expected[:, None] * np.exp(_UNSURE * Z95 * np.array([-1, 0, 1]))
    count = np.repeat(steps[:, None], 3, axis=1)
    if not np.isfinite(samples).all() and len(at):
        catalog = load_catalog()
        runs = runs_from_table(scale.take(at).table(samples_to_target=samples[at]), catalog)
        found = Convergence().fit(runs).samples(jobs_from_table(scale.table(), catalog))[0]
        count = np.where(np.isfinite(count), count, found / scale.batch[:, None])
    middle = step[:, 1] * count[:, 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        widths = [np.log(part / part[:, 1:2]) for part in (step, count)]
    apart = np.sqrt(widths[0] ** 2 + widths[1] ** 2) * np.array([-1.0, 0.0, 1.0])
    return np.asarray(middle[:, None] * np.exp(apart))
