"""Landscape: the configurations of a search space as numbers: what varies, scaled from 0 to 1, and prices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.errors import RequestError, one_of
from forerun.tables import COLUMNS, Jobs, Runs, Table
from forerun.tables.jobs import job_columns
from forerun.tables.measured import samples_to_target
from forerun.units import SECONDS_PER_HOUR

PRICE = "price_usd_per_hour"
MACHINE = "machine price"
# What a person chooses of a job: all else of a row says where it comes from or what came of it.
_CHOSEN = tuple(
    c.name
    for c in COLUMNS.values()
    if c.group in ("workload", "cluster", "plan", "length") and c.name != PRICE
)
AIMS = ("cost", "time")
_UNPRICED = "-"
# What a run times, the whole run first: the first of them that any run states is what counts.
QUANTITIES = {"run": "time_to_train_s", "epoch": "epoch_time_s", "step": "step_time_s"}


@dataclass(frozen=True)
class Landscape:
    """n configurations: what was chosen in each, and dollars an hour of the whole cluster, or NaN."""

    table: Table
    dollars_per_hour: FloatArray

    def __len__(self) -> int:
        return len(self.table)

    @cached_property
    def keys(self) -> list[tuple[str, ...]]:
        """What tells a configuration from every other, one tuple each."""
        columns = [self.table.texts(name).tolist() for name in sorted(self.table.columns)]
        prices = (f"{p:.9g}" if np.isfinite(p) else _UNPRICED for p in self.dollars_per_hour)
        return list(zip(*columns, prices, strict=True))

    @cached_property
    def dollars_per_second(self) -> FloatArray:
        """Price of a second of each, (n,)."""
        return self.dollars_per_hour / SECONDS_PER_HOUR

    @cached_property
    def varied(self) -> tuple[str, ...]:
        """The columns in which configurations differ."""
        return tuple(
            name for name in self.table.columns if len(set(self.table.texts(name).tolist())) > 1
        )

    @cached_property
    def axes(self) -> dict[str, FloatArray]:
        """What varies as columns from 0 to 1, (n,) each: what a model of the times reads.

        Numbers above zero are logarithms; a machine's kind is its price where that tells it. Columns
        that repeat another one, or are blank in some rows, are left out.
        """
        found: dict[str, FloatArray] = {}
        texts: dict[str, NDArray[np.object_]] = {}
        for name in self.varied:
            if self.table.columns[name].dtype == object:
                texts[name] = self.table.texts(name)
                continue
            values = self.table.numbers(name)
            if not np.isnan(values).any():
                found[name] = np.log(values) if (values > 0).all() else values
        if np.isfinite(self.dollars_per_hour).all():
            nodes, devices, servers = map(
                self.table.numbers, ("nodes", "devices", "parameter_servers")
            )
            workers = np.where(np.isnan(nodes), np.nan_to_num(devices, nan=1.0), nodes)
            machines = np.maximum(workers + np.nan_to_num(servers), 1.0)
            # Without the noise of the division, which would look like another machine.
            found[MACHINE] = np.asarray(np.log(self.dollars_per_hour / machines).round(9))
            price = np.round(found[MACHINE], 6).tolist()
            for name in [n for n in texts if n in COLUMNS and COLUMNS[n].group == "cluster"]:
                if len(set(zip(price, texts[name].tolist(), strict=True))) == len(set(price)):
                    del texts[name]  # the price tells it
        for name, cells in texts.items():
            levels = sorted(set(cells.tolist()))
            for level in levels[1:] if len(levels) == 2 else levels:
                found[f"{name}={level or 'blank'}"] = (cells == level) * 1.0
        kept: dict[str, FloatArray] = {}
        for name, values in found.items():
            if (reach := np.ptp(values)) > 0:
                values = (values - values.min()) / reach
                twins = (twin for v in kept.values() for twin in (v, 1 - v))
                if not any(np.allclose(values, twin, atol=1e-9) for twin in twins):
                    kept[name] = values
        return kept

    @cached_property
    def features(self) -> FloatArray:
        """The axes side by side, (n, k); k is 0 where nothing varies."""
        columns = list(self.axes.values())
        return np.stack(columns, axis=1) if columns else np.zeros((len(self), 0))

    def places(self, other: Landscape) -> list[int]:
        """Return where another's configurations stand, -1 for nowhere.

        Columns that this lacks do not count, nor do prices that either does not state where the columns
        alone tell which it is.
        """
        blank = np.full(len(other), "", dtype=object)
        columns = {name: other.table.columns.get(name, blank) for name in self.table.columns}
        alike = replace(other, table=replace(other.table, columns=columns))
        place = {key: i for i, key in enumerate(self.keys)}
        by_columns: dict[tuple[str, ...], list[int]] = {}
        for i, key in enumerate(self.keys):
            by_columns.setdefault(key[:-1], []).append(i)
        found = []
        for key in alike.keys:
            near = by_columns.get(key[:-1], [])
            unpriced = len(near) == 1 and _UNPRICED in (key[-1], self.keys[near[0]][-1])
            found.append(near[0] if unpriced else place.get(key, -1))
        return found

    def words(self, i: int) -> str:
        """Return what a configuration chose where it could: `devices=4 micro_batch=256 ...`."""
        columns = ((name, self.table.texts(name)[i]) for name in self.varied)
        words = [f"{name}={value}" for name, value in columns if value]
        if len(np.unique(self.dollars_per_hour)) > 1:
            words.append(f"at ${self.dollars_per_hour[i]:.4g}/h")
        return " ".join(words)


def landscape_of(jobs: Jobs) -> Landscape:
    """Return the configurations of jobs: of their labels where they have any, else of themselves."""
    labels = job_columns(jobs) if jobs.labels is None else jobs.labels
    names = (*_CHOSEN, *labels.own.factors)
    columns = {name: labels.columns[name] for name in names if name in labels}
    prices = dollars_per_hour(jobs)
    return Landscape(Table(columns, len(labels)), np.where(prices > 0, prices, np.nan))


def dollars_per_hour(jobs: Jobs) -> FloatArray:
    """Return the price of each job's machines, (n,): as its row says, else as the catalogue does."""
    stated = jobs.cells.numbers(PRICE)
    listed = jobs.per_cluster("dollars_per_hour", np.nan) * jobs.machines_paid
    return np.where(np.isfinite(stated), stated, listed)


@dataclass(frozen=True)
class Goal:
    """What a search minimises: the price or the time of a run (epoch, step) that meets a deadline."""

    minimize: str = "cost"
    deadline_seconds: float = np.inf

    def __post_init__(self) -> None:
        if self.minimize not in AIMS:
            advice = one_of(self.minimize, AIMS)
            raise RequestError(f"minimize {self.minimize!r}", "a search has no such aim", advice)
        if not self.deadline_seconds > 0:
            raise RequestError(
                f"deadline {self.deadline_seconds}", "not above zero", "give a positive number"
            )

    def weights(self, land: Landscape) -> FloatArray:
        """Return what a second of each configuration adds to the aim, (n,): dollars, or 1.

        Raises:
            RequestError: the cost is minimised and a configuration has no price.
        """
        if self.minimize == "time":
            return np.ones(len(land))
        unpriced = int((~np.isfinite(land.dollars_per_second)).sum())
        if unpriced:
            raise RequestError(
                "minimizing the cost",
                f"{unpriced:,} of {len(land):,} configurations have no price",
                "add a column price_usd_per_hour (the whole cluster), or minimize the time",
            )
        return land.dollars_per_second


@dataclass(frozen=True)
class ObservedRuns:
    """m runs of configurations at positions of a landscape, in the order in which they were made.

    feasible: ended within the deadline. late: did not. unknown: failed, so without a time. samples: until the
    target at each configuration of the landscape, NaN where no run says so; None where all do equally many.
    """

    at: IntArray
    seconds: FloatArray
    feasible: BoolArray
    late: BoolArray
    unknown: BoolArray
    samples: FloatArray | None = None

    def __len__(self) -> int:
        return len(self.at)

    def best(self, weights: FloatArray) -> int:
        """Return which run is the best of those within the deadline, -1 where none is."""
        if not self.feasible.any():
            return -1
        return int(np.argmin(np.where(self.feasible, self.seconds * weights[self.at], np.inf)))

    @staticmethod
    def of(
        at: IntArray, seconds: FloatArray, status: NDArray[np.object_], deadline_seconds: float,
        samples: FloatArray | None = None,
    ) -> ObservedRuns:  # fmt: skip
        """Return runs with a status under a deadline, a lower bound for whatever was stopped by then."""
        known = np.isfinite(seconds) & (seconds > 0)
        seconds = np.where(known, seconds, np.nan)
        ok, stopped = (status == "ok") & known, (status == "timeout") & known
        late = ((ok | stopped) & (seconds > deadline_seconds)) | (
            stopped & (seconds >= deadline_seconds)
        )
        return ObservedRuns(
            at, np.minimum(seconds, deadline_seconds), ok & ~late, late, ~(ok | stopped), samples
        )


def timed_as(runs: Runs) -> str:
    """Return what the runs time: `run`, `epoch` or `step`. Raises RequestError where none does."""
    for quantity in QUANTITIES:
        if np.isfinite(seconds_of(runs, quantity)).any():
            return quantity
    raise RequestError(
        f"searching among {len(runs):,} runs", "none of them states a time",
        f"give a table with one of {', '.join(QUANTITIES.values())}",
    )  # fmt: skip


def seconds_of(runs: Runs, quantity: str) -> FloatArray:
    """Return seconds as measured (n,), lower bounds where a run timed out, NaN where none."""
    stated = runs.table.numbers(QUANTITIES[quantity])
    if quantity == "step":
        stated = np.where(np.isnan(stated), runs.step_seconds(), stated)
    return np.where((stated > 0) & np.isfinite(stated), stated, np.nan)


def seen_of(land: Landscape, runs: Runs | None, goal: Goal) -> ObservedRuns:
    """Return the last run of each configuration of the landscape; other runs are passed over."""
    if runs is None or not len(runs):
        nothing = np.zeros(0)
        return ObservedRuns.of(nothing.astype(np.int64), nothing, nothing.astype(object), np.inf)
    at = np.array(land.places(landscape_of(runs.jobs)), dtype=np.int64)
    samples = each = None
    try:
        seconds = seconds_of(runs, quantity := timed_as(runs))
        samples = target_samples(runs, quantity)
        each = batches(land.table) if quantity == "step" else None
    except RequestError:  # all of them failed before a time was known
        seconds = np.full(len(runs), np.nan)
    rows = np.array(sorted({i: row for row, i in enumerate(at) if i >= 0}.values()), dtype=np.int64)
    if samples is not None:
        samples = scattered(samples[rows], at[rows], len(land))
    limit = goal.deadline_seconds
    samples = samples if each is None else each
    return ObservedRuns.of(at[rows], seconds[rows], runs.status[rows], limit, samples)


def batches(table: Table) -> FloatArray:
    """Return samples in a step of all devices, (n,), NaN where a row states neither them nor what makes them."""
    stated, devices = table.numbers("global_batch"), table.numbers("devices")
    devices = np.where(np.isnan(devices), table.numbers("nodes"), devices)
    passes = np.nan_to_num(table.numbers("grad_accum"), nan=1.0)
    return np.where(np.isnan(stated), table.numbers("micro_batch") * devices * passes, stated)


def target_samples(runs: Runs, quantity: str) -> FloatArray | None:
    """Return samples until the target of runs, (n,), NaN where unknown; None where what is timed is no whole run."""
    samples = samples_to_target(runs)
    return samples if quantity == "run" and np.isfinite(samples).any() else None


def scattered(values: FloatArray, at: IntArray, count: int) -> FloatArray:
    """Return values (m,) at their places among so many, (n,), NaN elsewhere."""
    found = np.full(count, np.nan)
    found[at] = values
    return found
