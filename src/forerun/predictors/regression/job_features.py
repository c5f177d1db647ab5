"""JobFeatures: what regressions read of jobs, and which fit answers which kind of job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.domain.forecast import Forecasts, is_none
from forerun.errors import RequestError
from forerun.predictors.laws.law_rows import (
    GROUP,
    RESOURCES,
    Kind,
    LawRows,
    codes,
    combined,
    most_timed,
)
from forerun.tables import Jobs, Runs, Table
from forerun.tables.table import COLUMNS, OwnColumns

# The name of the fit that all kinds with few runs share.
POOL: Kind = ()
# Categories by name: the distinct classes, and which of them each job is of, (n,).
Categories = Mapping[str, tuple[list[str], IntArray]]


_TIMES = "step_time_s, samples_per_s, epoch_time_s or time_to_train_s"


def needed(least: int) -> str:
    """Return what a regression needs at least."""
    return f"at least {least} runs with a time ({_TIMES}) and devices"


def timed(name: str, runs: Runs, least: int) -> tuple[str, FloatArray]:
    """Return the quantity that most runs time, and its seconds (n,), NaN where no devices are stated.

    Raises RequestError where fewer than `least` runs have both.
    """
    quantity, times = most_timed(runs)
    stated = np.isfinite(JobFeatures(runs.jobs).numbers["devices"])
    seconds = np.where(stated, times, np.nan)
    found = int(np.isfinite(seconds).sum())
    if found < least:
        raise RequestError(
            f"fitting {name} on {len(runs)} runs",
            f"{int(np.isfinite(times).sum())} that ended have a time, and {found} of these"
            " state their devices",
            f"give {needed(least)}",
        )
    return quantity, seconds


def served(
    features: JobFeatures, runs: Mapping[Kind, int], fits: Iterable[Kind]
) -> tuple[IntArray, BoolArray]:
    """Return which fit answers each job, -1 where none does, and whether its kind had runs, (n,).

    A kind without runs goes by that of its workload and device which has most; a kind without a fit of its
    own by the pool. runs: how many each kind had; fits: the kinds that have one, in order.
    """
    names, index = features.kinds
    place = {kind: i for i, kind in enumerate(fits)}
    # Of each workload and device, the kind with most runs comes last.
    usual = {kind[: len(GROUP)]: kind for kind in sorted(runs, key=lambda kind: runs[kind])}
    near = [name if name in runs else usual.get(name[: len(GROUP)]) for name in names]
    of = [-1 if kind is None else place.get(kind, place.get(POOL, -1)) for kind in near]
    known = [name in runs for name in names]
    return np.array([*of, -1], dtype=np.int64)[index], np.array([*known, False])[index]


def declined(
    features: JobFeatures, chosen: IntArray, why_none: Callable[[Kind], str],
    lacking: Sequence[Mapping[str, BoolArray]],
) -> NDArray[np.object_]:  # fmt: skip
    """Return why each of n jobs has no answer, or None, (n,).

    chosen: which fit answers each, (n,), -1 where none does; lacking: of each fit by number, which jobs do
    not state it, (n,).
    """
    reasons = np.full(len(chosen), None, dtype=object)
    names, index = features.kinds
    none = np.array([why_none(kind) for kind in names] + [""], dtype=object)
    reasons[chosen < 0] = none[index[chosen < 0]]
    for place, numbers in enumerate(lacking):
        for name, lacks in numbers.items():
            reasons[(chosen == place) & lacks] = f"the row does not state {name}"
    reasons[np.isnan(features.numbers["devices"])] = "the row does not state the number of devices"
    problems = features.rows.problems
    return np.where(is_none(problems), reasons, problems)


# Of a plan, in logarithms: a stage counts from 1.
_PLAN = ("tp", "pp", "cp", "ep", "vpp")
_STATED = ("learning_rate", "experts", "layers", "hidden", "vocab")
# Texts beside `law_rows.SETTINGS` that tell kinds apart.
_TEXTS = ("cluster", "dataset", "optimizer", "task", "memory_format", "recompute",
          "sequence_parallel", "zero_stage", "target")  # fmt: skip
# Features whose range says how far a question lies from what was measured.
RANGES = ("devices", "micro_batch", "accumulation", "dataset_size", *RESOURCES)
# What two runs of one session have in common: the same devices, laid the same way.
_SESSION = ("placement", "devices", "nodes", "devices_per_node", "parameter_servers")


def doublings_beyond(
    ranges: Mapping[str, tuple[float, float]], numbers: Mapping[str, FloatArray]
) -> FloatArray:
    """Return by how many doublings n jobs lie beyond ranges of `RANGES`, added up, (n,)."""
    total = np.zeros(len(numbers["devices"]))
    for name, (low, high) in ranges.items():
        if name in RANGES:
            off = np.maximum(np.log2(numbers[name] / high), np.log2(low / numbers[name]))
            total += np.maximum(np.nan_to_num(off), 0.0)
    return total


_MANY = 5000  # jobs, from which on equal ones are answered once
_READ = ("workload", "cluster", "plan")  # groups of columns


def distinct_forecasts(jobs: Jobs, answers: Callable[[Jobs], Forecasts]) -> Forecasts:
    """Return the forecasts of n jobs, each kind of equal jobs answered once where they are many."""
    n = len(jobs)
    if n < _MANY:
        return answers(jobs)
    columns: dict[str, NDArray[Any]] = {
        "workload of the job": jobs.workload_index, "cluster of the job": jobs.cluster_index,
        **{f"{name} of the plan": values for name, values in vars(jobs.plans).items()},
        **{
            name: column for name, column in jobs.cells.columns.items()
            if name in (*_TEXTS, *jobs.cells.own.factors)
            or (name in COLUMNS and COLUMNS[name].group in _READ)
        },
    }  # fmt: skip
    if jobs.plan_problem is not None:
        columns["problem"] = codes(jobs.plan_problem)[0]
    varying = [name for name, column in columns.items() if (column != column[0]).any()]
    first, place = Table(columns, n).groups(varying)
    return answers(jobs.take(first)).take(place)


class StatedNumbers(dict[str, FloatArray]):
    """Numbers of jobs by name; one that no job states, as a column of other runs' own, is NaN."""

    def __missing__(self, name: str) -> FloatArray:
        return np.full(len(self["devices"]), np.nan)


@dataclass(frozen=True)
class JobFeatures:
    """n jobs as numbers and classes; whatever nothing says is NaN, or "" in a class."""

    jobs: Jobs

    @cached_property
    def rows(self) -> LawRows:
        """The same jobs as laws read them."""
        return LawRows(self.jobs, apart=False, own_apart=False)

    @cached_property
    def numbers(self) -> Mapping[str, FloatArray]:
        """Positive numbers of each job by name, each (n,), NaN where nothing says one."""
        rows, plans = self.rows, self.jobs.plans
        place = rows.placements
        found = {
            "devices": rows.machines, "nodes": place.nodes, "most": place.most,
            "fewest": place.fewest, "micro_batch": rows.micro_batch,
            "accumulation": rows.accumulation, "dataset_size": rows.size("dataset_size"),
            "servers": rows.servers,
        }  # fmt: skip
        for name in _PLAN:
            found[name] = getattr(plans, name).astype(np.float64)
        for name in (*_STATED, *RESOURCES, *self.own_numbers):
            found[name] = self.rows.labels.numbers(name)
        for name in ("seq_len", "image_size", "params"):
            known = {w.name: float(getattr(w, name)) or np.nan for w in self.jobs.workloads}
            found[name] = self._known(name, known)
        macs = {w.name: w.graph.forward_flops / 2e9 for w in self.jobs.workloads}
        found["gmacs"] = self._known("gmacs", macs)
        return StatedNumbers(
            (name, np.where(values > 0, values, np.nan)) for name, values in found.items()
        )

    @property
    def over_own(self) -> Jobs:
        """The jobs without the user's own columns: runs that differ in these alone are repeats of one."""
        labels = self.jobs.labels
        return self.jobs if labels is None else replace(
            self.jobs, labels=replace(labels, own=OwnColumns())
        )  # fmt: skip

    @cached_property
    def own_numbers(self) -> list[str]:
        """The user's own columns that are numbers."""
        labels = self.rows.labels
        return [name for name in labels.own.factors if labels.columns[name].dtype != object]

    def _known(self, name: str, of: Mapping[str, float]) -> FloatArray:
        """Return a number of the workload (n,): as the row says, else as its workload does."""
        known = np.array([of[w.name] for w in self.jobs.workloads] + [np.nan])
        stated = self.rows.labels.numbers(name)
        return np.where(np.isnan(stated), known[self.jobs.workload_index], stated)

    @cached_property
    def kinds(self) -> tuple[list[Kind], IntArray]:
        """Distinct kinds, those of `LawRows` and further texts, and which each job is, (n,)."""
        own = [n for n in self.rows.labels.own.factors if n not in self.own_numbers]
        further = combined([self.rows.stated(name) for name in (*_TEXTS, *own)])
        pairs, index = combined([self.rows.kinds, further])
        return [(*one, *other) for one, other in pairs], index

    @cached_property
    def sessions(self) -> tuple[list[str], IntArray]:
        """Distinct sessions as text, and which each job belongs to, (n,); kinds not counted in."""
        rows = self.rows
        if self.jobs.labels is None:
            numbers = {name: self.numbers[name] for name in ("devices", "nodes")}
            rows = LawRows(replace(self.jobs, labels=Table(numbers, len(self.jobs))))
        texts, index = combined([rows.stated(name) for name in _SESSION])
        return ["|".join(text) for text in texts], index

    @cached_property
    def categories(self) -> Categories:
        """Workload, device, kind, and session within a kind; classes by their first job."""
        names, kind = self.kinds
        texts, session = self.sessions
        kinds = ["|".join(name) for name in names]
        parts: dict[str, tuple[list[str], IntArray]] = {
            name: ([one[i] for one in names], kind) for i, name in enumerate(GROUP)
        }
        parts["kind"] = kinds, kind
        pairs, place = combined([(kinds, kind), (texts, session)])
        parts["session"] = ["|".join(pair) for pair in pairs], place
        found = {}
        for name, (labels, index) in parts.items():
            order = {text: i for i, text in enumerate(dict.fromkeys(labels))}
            found[name] = list(order), np.array([order[text] for text in labels])[index]
        return found


def kind_words(kind: Kind) -> str:
    """Return workload and device of a kind; the empty one is that of all kinds with few runs."""
    return " on ".join(text or "(blank)" for text in kind[: len(GROUP)]) or "kinds with few runs"
