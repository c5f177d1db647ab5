"""Scavenger: searches over workers and batch that fit what a step takes and what a batch teaches, and go to the best."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forerun.arrays import BoolArray, FloatArray
from forerun.catalog import load_catalog
from forerun.errors import RequestError
from forerun.predictors.convergence.predictor import Convergence
from forerun.predictors.laws.goodput import Goodput
from forerun.search.landscape import Landscape, ObservedRuns, batches
from forerun.search.scaling import Scale, whole_forecasts
from forerun.search.searchers import Choice, Choosing
from forerun.tables import Runs, Table
from forerun.units import counted
from forerun.workloads.rows import jobs_from_table

# What makes runs of other workloads a law of their own; what a row of a search space says of its scale; of a model's size.
_KINDS = (
    "workload", "device", "framework", "precision", "seq_len", "image_size", "instance_type", "sync",
    "cpus_per_worker", "node_gbps", "dataset", "target", "optimizer",
)  # fmt: skip
_COUNTS = ("nodes", "devices", "micro_batch", "global_batch")
_SIZES = ("params", "gmacs", "layers", "hidden", "dataset_size")


@dataclass(frozen=True)
class _Fitting(Choosing):
    """A search that forecasts by the laws of its runs."""

    def scale(self, land: Landscape) -> Scale:
        """Return workers and batches. Raises RequestError."""
        return Scale.of(land, f"{self.name} over {len(land):,} configurations")


@dataclass(frozen=True)
class ScavengerPartial(_Fitting):
    """Runs the extreme workers and batches of each kind, fits both laws, and runs the best by them until none is better.

    Tyagi and Sharma, Scavenger (CCGrid 2023), its partial search. Pollux's law of steps stands for equations 8
    to 10 and gets a point in the middle. The seed draws the order.
    """

    name = "scavenger-partial"

    def points(self, scale: Scale) -> list[int]:
        """Return the configurations that are run first."""
        return scale.extremes(middle=True)

    def choose_among(self, land: Landscape, seen: ObservedRuns, left: BoolArray) -> Choice:
        """Return the next of the first points, then the best by the laws; or that none is better."""
        scale = self.scale(land)
        points = self.points(scale)
        if self.seed:
            points = np.random.default_rng(self.seed).permutation(points).tolist()
        todo = [i for i in points if left[i]]
        if todo:
            place = len(points) - len(todo) + 1
            why = f"point {place} of {len(points)} of a {self.name} search"
            return Choice(todo[0], why, len(todo) - 1)
        return self.by_forecast(land, seen, left, whole_forecasts(scale, seen)[:, 1])


@dataclass(frozen=True)
class ScavengerFull(ScavengerPartial):
    """Runs every configuration: Scavenger's full search."""

    name = "scavenger-full"

    def points(self, scale: Scale) -> list[int]:
        """Return all configurations, by workers and batch."""
        return [int(i) for i in np.lexsort((scale.batch, scale.workers))]


@dataclass(frozen=True)
class PolluxPolicy(_Fitting):
    """Runs what promises the most goodput by the laws of the runs so far, which are optimistic of what none has shown.

    Qiao et al., Pollux (OSDI 2021), sections 3 and 4.1: it starts small, and at most doubles the workers that it
    has tried. The seed draws the first batch; 0 is the smallest.
    """

    name = "pollux"

    def choose_among(self, land: Landscape, seen: ObservedRuns, left: BoolArray) -> Choice:
        """Return the next run, or that none promises more."""
        scale = self.scale(land)
        if not seen.feasible.any():
            order = np.argsort(scale.batch, kind="stable")
            if self.seed:
                order = np.random.default_rng(self.seed).permutation(len(land))
            order = order[np.argsort(scale.workers[order], kind="stable")]
            return Choice(int(order[np.argmax(left[order])]), "the fewest workers")
        most = scale.workers[seen.at].max()
        more = scale.workers[scale.workers > most]
        reach = max(2.0 * most, more.min() if len(more) else most)
        expected = whole_forecasts(scale, seen)[:, 1]
        return self.by_forecast(
            land, seen, left, np.where(scale.workers <= reach, expected, np.inf)
        )


@dataclass(frozen=True)
class ScavengerNone(_Fitting):
    """Runs what the runs of other workloads say is best: those alike in size, else the average of all.

    Tyagi and Sharma, Scavenger (CCGrid 2023): no search, by the model of a similar job or the universal one.

    Attributes:
        known: runs of other workloads.
    """

    known: Runs | None = None

    name = "scavenger-none"

    def choose_among(self, land: Landscape, seen: ObservedRuns, left: BoolArray) -> Choice:
        """Return the best by the shape of others' times, at the level of what was run; or that none is better."""
        scale = self.scale(land)
        if self.known is None:
            raise RequestError(
                self.name, "no runs of other workloads are given", "add --known RUNS.csv, or use scavenger-partial"
            )  # fmt: skip
        shape, who = universal(self.known, land, scale, seen.samples)
        rows = np.flatnonzero(seen.feasible)
        if not len(rows):
            scores = np.where(left, np.exp(shape) * self.goal.weights(land), np.inf)
            return Choice(int(np.argmin(scores)), f"the best by {who}")
        level = float(np.mean(np.log(seen.seconds[rows]) - shape[seen.at[rows]]))
        return self.by_forecast(land, seen, left, np.exp(shape + level))


def universal(
    known: Runs, land: Landscape, scale: Scale, samples: FloatArray | None
) -> tuple[FloatArray, str]:
    """Return ln of the time of each configuration about its mean, (n,), as other workloads have it, and which in words.

    Each workload's runs are fitted by Goodput and, where they reached a target and samples until it differ, by
    Convergence. The shapes are averaged, those of models of a like size first. samples: see `ObservedRuns`.

    Raises:
        RequestError: no law can be fitted to runs of another workload.
    """
    asked = f"a search by other workloads, over {len(land):,} configurations"
    todo = "give runs of other workloads, each at several numbers of workers and batches (--known)"
    own = set(land.table.texts("workload").tolist())
    runs = known.take(np.flatnonzero(~np.isin(known.table.texts("workload"), sorted(own))))
    if not len(runs):
        found = (
            f"all known runs are of {', '.join(sorted(own))}: there is no run of another workload"
        )
        raise RequestError(asked, found, "give runs of another workload (--known)")
    if not np.isfinite(batches(runs.table)).any():
        raise RequestError(asked, "none of the known runs states its batch", "fill global_batch")
    if len(np.unique(scale.kind)) > 1:
        raise RequestError(
            asked, "they differ in more than workers and batch, of which runs of other workloads say nothing",
            "keep one kind of machine and setting, or use scavenger-partial",
        )  # fmt: skip
    catalog, names = load_catalog(), [name for name in _KINDS if name in runs.table]
    first = runs.table.groups(names)[0]
    grid, size = scale.table(), len(land)
    rows = Table.from_columns({
        **{name: np.repeat(runs.table.texts(name)[first], size) for name in names},
        **{name: np.tile(grid.numbers(name), len(first)) for name in _COUNTS},
    })  # fmt: skip
    jobs = jobs_from_table(rows, catalog)
    step = Goodput().fit(runs).predict(jobs).seconds[:, 1]
    total = np.log(step) - np.log(rows.numbers("global_batch"))
    if samples is not None and np.isfinite(samples).all():
        total += np.tile(np.log(samples), len(first))
    elif samples is not None and Convergence.speaks_of(runs):
        total += np.nan_to_num(np.log(Convergence().fit(runs).samples(jobs)[0][:, 1]))
    shapes = total.reshape(len(first), size)
    known_at = np.flatnonzero(np.isfinite(shapes).all(axis=1))
    if not len(known_at):
        raise RequestError(asked, "no law of step times can be fitted to their runs", todo)
    labels = runs.table.texts("workload")[first[known_at]]
    shapes = shapes[known_at] - shapes[known_at].mean(axis=1, keepdims=True)
    workloads = sorted(set(labels.tolist()))
    each = np.stack([shapes[labels == one].mean(axis=0) for one in workloads])
    far = np.array([_far(runs.table, one, land.table) for one in workloads])
    weights = np.exp(-0.5 * (far - far.min()))
    most = workloads[int(np.argmax(weights))]
    who = f"{counted(len(workloads), 'other workload')}"
    who += f", {most} most of all" if np.ptp(weights) > 0 else ", all alike"
    return np.asarray(weights @ each / weights.sum()), who


def _far(table: Table, workload: str, other: Table) -> float:
    """Return how far in size a workload is from that of another table, squared logs: 0 where neither states it."""
    mine = table.texts("workload") == workload
    far = []
    for name in _SIZES:
        here, there = table.numbers(name)[mine], other.numbers(name)
        here, there = here[here > 0], there[there > 0]
        if len(here) and len(there):
            far.append(float(np.log(np.median(here) / np.median(there))))
    return float(np.mean(np.square(far))) if far else 0.0
