"""Landscape: the configurations of a search space as numbers: what varies, scaled from 0 to 1, and prices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.domain.plan import SYNC
from forerun.errors import RequestError, one_of
from forerun.tables import COLUMNS, Jobs, Runs, Table
from forerun.units import SECONDS_PER_HOUR

T = TypeVar("T")
PRICE = "price_usd_per_hour"
MACHINE = "machine price"
# What a person chooses of a job: all else of a row says where it comes from or what came of it.
_CHOSEN = tuple(
    c.name
    for c in COLUMNS.values()
    if c.group in ("workload", "cluster", "plan", "length") and c.name != PRICE
)


@dataclass(frozen=True)
class Landscape:
    """n configurations, in the order of the space they were made of.

    Attributes:
        table: what was chosen in each, one column a choice (no price, nothing measured).
        dollars_per_hour: of the whole cluster (n,), NaN where no price is known.
    """

    table: Table
    dollars_per_hour: FloatArray
    _derived: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.table)

    def kept(self, name: str, make: Callable[[], T]) -> T:
        """Return what is derived from the landscape alone, made once and kept with it."""
        if name not in self._derived:
            self._derived[name] = make()
        derived: T = self._derived[name]
        return derived

    @cached_property
    def keys(self) -> list[tuple[str, ...]]:
        """What tells a configuration from every other, one tuple each, in the columns' order."""
        columns = [self.table.texts(name).tolist() for name in sorted(self.table.columns)]
        prices = np.where(np.isfinite(self.dollars_per_hour), self.dollars_per_hour, -1.0)
        return list(zip(*columns, (f"{p:.9g}" for p in prices), strict=True))

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

        Counts, sizes and rates above zero are taken as logarithms, since what they do to a time is
        a factor. The machine's kind goes by the price of one machine where prices are known, and
        its label stands beside it only where two kinds share a price. A column that repeats another
        one is left out, and so is one that is blank in some rows (a global batch, where
        asynchronous workers have none) unless configurations could not be told apart without it.
        """
        found: dict[str, FloatArray] = {}
        partly: dict[str, FloatArray] = {}
        for name, values in self._numbers():
            (partly if np.isnan(values).any() else found)[name] = values
        if np.isfinite(self.dollars_per_hour).all():
            found[MACHINE] = np.log(self.dollars_per_hour / self._machines)
        found = _distinct({name: _scaled(values) for name, values in found.items()})
        for name in self._texts(MACHINE in found):
            found |= _levels(name, self.table.texts(name))
        found = _distinct(found)
        for name, values in partly.items():
            if not _told_apart(found):
                filled = np.where(np.isnan(values), np.nanmean(values), values)
                found |= {name: _scaled(filled), f"{name} is blank": np.isnan(values) * 1.0}
        return _distinct(found)

    @cached_property
    def features(self) -> FloatArray:
        """The axes side by side, (n, k); k is 0 where nothing varies."""
        columns = list(self.axes.values())
        return np.stack(columns, axis=1) if columns else np.zeros((len(self), 0))

    @property
    def _machines(self) -> FloatArray:
        """Machines that are paid for: nodes (else devices) and parameter servers."""
        nodes, devices = self.table.numbers("nodes"), self.table.numbers("devices")
        workers = np.where(np.isnan(nodes), np.where(np.isnan(devices), 1.0, devices), nodes)
        servers = np.nan_to_num(self.table.numbers("parameter_servers"))
        return np.maximum(workers + servers, 1.0)

    def _numbers(self) -> list[tuple[str, FloatArray]]:
        """Number columns that vary, as logarithms where all that is stated is above zero."""
        found = []
        for name in self.varied:
            if self.table.columns[name].dtype == object:
                continue
            values = self.table.numbers(name)
            stated = values[~np.isnan(values)]
            if len(np.unique(stated)) > 1:
                found.append((name, np.log(values) if (stated > 0).all() else values))
        return found

    def _texts(self, priced: bool) -> list[str]:
        """Text columns that vary, less those that the price of a machine tells."""
        names = [n for n in self.varied if self.table.columns[n].dtype == object]
        if not priced:
            return names
        logs = np.log(self.dollars_per_hour / self._machines)
        price = np.asarray(np.round(logs, 6), dtype=np.float64)
        return [
            name
            for name in names
            if COLUMNS[name].group != "cluster" or not _tells(price, self.table.texts(name))
        ]

    def words(self, i: int) -> str:
        """Return what a configuration chose where it could: `devices=4 micro_batch=256 ...`."""
        columns = ((name, self.table.texts(name)[i]) for name in self.told)
        said = [f"{name}={value}" for name, value in columns if value]
        if self._price_tells:
            said.append(f"at ${self.dollars_per_hour[i]:.4g}/h")
        return " ".join(said)

    @cached_property
    def _price_tells(self) -> bool:
        """Whether some configurations differ in their price alone."""
        rows = zip(*(self.table.texts(name).tolist() for name in self.told), strict=True)
        return len(set(rows)) < len(self)

    @cached_property
    def told(self) -> tuple[str, ...]:
        """The varied columns, each of those that say the same thing once."""
        seen: dict[bytes, str] = {}
        for name in sorted(self.varied, key=_usual):
            code = np.unique(self.table.texts(name).astype(str), return_inverse=True)[1]
            first = np.unique(code, return_index=True)[1]
            order = np.argsort(np.argsort(first))[code]  # levels by their first appearance
            seen.setdefault(order.tobytes(), name)
        return tuple(seen.values())


_FIRST = ("workload", "instance_type", "device", "devices", "cluster", "micro_batch")


def _usual(name: str) -> int:
    return _FIRST.index(name) if name in _FIRST else len(_FIRST)


def landscape_of(jobs: Jobs) -> Landscape:
    """Return the configurations of jobs: of their labels where they have any, else of themselves."""
    prices = np.full(len(jobs), np.nan)
    known = np.array([c.dollars_per_hour or np.nan for c in jobs.clusters] + [np.nan])
    prices = known[jobs.cluster_index] if len(jobs) else prices
    if jobs.labels is None:
        return Landscape(_described(jobs), prices)
    labels = jobs.labels
    stated = labels.numbers(PRICE)
    columns = {name: labels.columns[name] for name in _CHOSEN if name in labels}
    chosen = Table(columns, len(labels))
    return Landscape(chosen, np.where(stated > 0, stated, prices))


def _described(jobs: Jobs) -> Table:
    """Return checked jobs as a table of what was chosen in each."""
    plans = jobs.plans
    columns: dict[str, NDArray[Any]] = {
        name: values.astype(np.float64) for name, values in vars(plans).items() if name != "sync"
    }
    columns["sync"] = np.array([SYNC[i] for i in plans.sync], dtype=object)
    if len(jobs):
        columns["workload"] = jobs.per_workload("name").astype(object)
        columns["device"] = jobs.per_cluster("device.id").astype(object)
        for name in ("nodes", "devices", "devices_per_node"):
            columns[name] = jobs.per_cluster(name).astype(np.float64)
    return Table(columns, len(jobs))


def _scaled(values: FloatArray) -> FloatArray:
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else np.zeros_like(values)


def _levels(name: str, texts: NDArray[np.object_]) -> dict[str, FloatArray]:
    """Return one column for each level of a text (one in all where there are two)."""
    levels = sorted(set(texts.tolist()))
    kept = levels[1:] if len(levels) == 2 else levels
    return {f"{name}={level or 'blank'}": (texts == level).astype(np.float64) for level in kept}


def _distinct(columns: dict[str, FloatArray]) -> dict[str, FloatArray]:
    """Return the columns that vary, less those that another one repeats (or turns round)."""
    kept: dict[str, FloatArray] = {}
    for name, values in columns.items():
        repeats = any(
            np.allclose(values, v, atol=1e-9) or np.allclose(values, 1 - v, atol=1e-9)
            for v in kept.values()
        )
        if not repeats and np.ptp(values) > 0:
            kept[name] = values
    return kept


def _told_apart(columns: dict[str, FloatArray]) -> bool:
    if not columns:
        return False
    rows = np.round(np.stack(list(columns.values()), axis=1), 9)
    return len(np.unique(rows, axis=0)) == len(rows)


def _tells(price: FloatArray, texts: Sequence[str] | NDArray[np.object_]) -> bool:
    """Whether equal prices always bear one text."""
    pairs = set(zip(price.tolist(), list(texts), strict=True))
    return len(pairs) == len({p for p, _ in pairs})


AIMS = ("cost", "time")
# What a run times, the whole run first: the first of them that any run states is what counts.
QUANTITIES = {"run": "time_to_train_s", "epoch": "epoch_time_s", "step": "step_time_s"}


@dataclass(frozen=True)
class Goal:
    """What a search minimises: the price or the time of a run (epoch, step) that meets a deadline.

    Raises:
        RequestError: no such aim, or a deadline that is not above zero.
    """

    minimize: str = "cost"
    deadline_seconds: float = np.inf

    def __post_init__(self) -> None:
        if self.minimize not in AIMS:
            raise RequestError(
                f"minimize {self.minimize!r}",
                "a search has no such aim",
                one_of(self.minimize, AIMS),
            )
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
    """m runs of a landscape's configurations, in the order in which they were made.

    Attributes:
        at: positions in the landscape, (m,).
        seconds: what the run took until it ended or was stopped, (m,).
        feasible: whether it ended well within the deadline: seconds are then its time, (m,).
        late: whether it went on until the deadline or beyond, (m,).
        unknown: whether it says nothing of a time (out of memory, failed), (m,).
    """

    at: IntArray
    seconds: FloatArray
    feasible: BoolArray
    late: BoolArray
    unknown: BoolArray

    def __len__(self) -> int:
        return len(self.at)

    def best(self, weights: FloatArray) -> int:
        """Return which run is the best of those within the deadline, -1 where none is."""
        if not self.feasible.any():
            return -1
        values = np.where(self.feasible, self.seconds * weights[self.at], np.inf)
        return int(np.argmin(values))

    @staticmethod
    def of(
        at: IntArray, seconds: FloatArray, status: NDArray[np.object_], deadline_seconds: float
    ) -> ObservedRuns:
        """Return what runs with a status tell under a deadline.

        A run that reached its end after the deadline, or was stopped then or later, is late: its
        time is a lower bound, the deadline. One that was stopped before the deadline without
        reaching its end is not feasible, and its time is a lower bound too.
        """
        seconds = np.where(np.isfinite(seconds) & (seconds > 0), seconds, np.nan)
        ok = (status == "ok") & ~np.isnan(seconds)
        timed = ok | ((status == "timeout") & ~np.isnan(seconds))
        late = timed & (seconds > deadline_seconds)
        late |= (status == "timeout") & timed & (seconds >= deadline_seconds)
        return ObservedRuns(at, np.minimum(seconds, deadline_seconds), ok & ~late, late, ~timed)

    @staticmethod
    def nothing() -> ObservedRuns:
        """Return the state before the first run."""
        none = np.zeros(0, dtype=bool)
        return ObservedRuns(np.zeros(0, dtype=np.int64), np.zeros(0), none, none, none)


def timed_as(runs: Runs) -> str:
    """Return what the runs time: `run`, `epoch` or `step`, the first that any of them states.

    Raises:
        RequestError: they state no time at all.
    """
    for quantity in QUANTITIES:
        if np.isfinite(seconds_of(runs, quantity)).any():
            return quantity
    raise RequestError(
        f"searching among {len(runs):,} runs", "none of them states a time",
        f"give a table with one of {', '.join(QUANTITIES.values())}",
    )  # fmt: skip


def seconds_of(runs: Runs, quantity: str) -> FloatArray:
    """Return seconds as measured (n,), lower bounds where a run timed out, NaN where none."""
    stated = runs.measured(QUANTITIES[quantity])
    if quantity == "step":
        stated = np.where(np.isnan(stated), runs.step_seconds(), stated)
    return np.where((stated > 0) & np.isfinite(stated), stated, np.nan)


def seen_of(land: Landscape, runs: Runs | None, goal: Goal) -> ObservedRuns:
    """Return the runs of configurations of the landscape; runs of other jobs are passed over.

    A configuration that was run several times keeps its last run.
    """
    if runs is None or not len(runs):
        return ObservedRuns.nothing()
    place = {key: i for i, key in enumerate(land.keys)}
    found = np.array([place.get(key, -1) for key in _keys(land, runs)], dtype=np.int64)
    try:
        seconds = seconds_of(runs, timed_as(runs))
    except RequestError:  # all of them failed before a time was known
        seconds = np.full(len(runs), np.nan)
    last = {at: row for row, at in enumerate(found.tolist()) if at >= 0}
    rows = np.array(sorted(last.values()), dtype=np.int64)
    return ObservedRuns.of(found[rows], seconds[rows], runs.status[rows], goal.deadline_seconds)


def _keys(land: Landscape, runs: Runs) -> list[tuple[str, ...]]:
    """Return the runs' keys over the landscape's columns: their own further columns do not count."""
    own = landscape_of(runs.jobs)
    columns = {
        name: own.table.columns.get(name, np.full(len(runs), "", dtype=object))
        for name in land.table.columns
    }
    from dataclasses import replace

    return replace(own, table=replace(own.table, columns=columns)).keys
