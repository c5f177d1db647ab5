"""JobFeatures: what regressions read of jobs: numbers, and the classes that a job belongs to.

Serving: which fit answers which kind of job, where some kinds have a fit of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.domain.plan import NAMES
from forerun.predictors.laws.law_rows import GROUP, RESOURCES, Kind, LawRows, codes, completed
from forerun.tables import Jobs, Table
from forerun.tables.table import COLUMNS

# The name of the fit that all kinds with few runs share.
POOL: Kind = ()


def served(
    asked: tuple[list[Kind], NDArray[np.int64]], runs: Mapping[Kind, int], fits: Iterable[Kind]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return which fit answers each job, -1 where none does, and whether its kind had runs, (n,).

    A kind without runs goes by that of its workload and device which has most; a kind without a
    fit of its own by the pool.

    Args:
        asked: distinct kinds of the jobs, and which each is, (n,).
        runs: how many each kind had.
        fits: the kinds that have a fit, in order.
    """
    names, index = asked
    place = {kind: i for i, kind in enumerate(fits)}
    usual: dict[Kind, Kind] = {}
    for kind in sorted(runs, key=lambda kind: runs[kind]):
        usual[kind[: len(GROUP)]] = kind  # the one with most runs comes last
    of, known = [], []
    for name in names:
        near = name if name in runs else usual.get(name[: len(GROUP)])
        of.append(-1 if near is None else place.get(near, place.get(POOL, -1)))
        known.append(name in runs)
    return np.array([*of, -1], dtype=np.int64)[index], np.array([*known, False])[index]


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


# Fewer jobs than this are answered one by one.
_MANY = 5000
_READ = ("workload", "cluster", "plan")  # groups of columns


def distinct_jobs(jobs: Jobs) -> tuple[IntArray, IntArray]:
    """Return the first of each kind of equal jobs, and which of them each of n jobs is, (n,).

    A million questions are usually a few thousand, asked again and again. Texts of origin, prices
    and measurements make no difference.
    """
    n = len(jobs)
    if n < _MANY:
        return np.arange(n), np.arange(n)
    columns: list[NDArray[Any]] = [jobs.workload_index, jobs.cluster_index]
    columns += [getattr(jobs.plans, name) for name in NAMES]
    if jobs.plan_problem is not None:
        columns.append(codes(jobs.plan_problem)[0])
    if jobs.labels is not None:
        read = [name for name in jobs.labels.columns if _is_read(name)]
        columns += [codes(jobs.labels.columns[name])[0] for name in read]
    # Sums of products by odd 64-bit numbers: two kinds meet in one with a chance of 1e-8.
    factors = np.random.default_rng(0).integers(0, 2**63, len(columns), dtype=np.uint64)
    total = np.zeros(n, dtype=np.uint64)
    for column, factor in zip(columns, factors, strict=True):
        if (column != column[0]).any():
            mixed = (column.astype(np.uint64) + np.uint64(1)) * (factor | np.uint64(1))
            total += mixed ^ (mixed >> np.uint64(29))
    _, first, place = np.unique(total, return_index=True, return_inverse=True)
    return first.astype(np.int64), place.reshape(-1).astype(np.int64)


def _is_read(name: str) -> bool:
    column = COLUMNS.get(name)
    return name in _TEXTS or (column is not None and column.group in _READ)


@dataclass(frozen=True)
class JobFeatures:
    """n jobs as numbers and classes; whatever nothing says is NaN, or "" in a class."""

    jobs: Jobs

    @cached_property
    def rows(self) -> LawRows:
        """The same jobs as laws read them."""
        return LawRows(self.jobs, apart=False)

    @cached_property
    def _labels(self) -> Table:
        labels = self.jobs.labels
        return Table({}, len(self.jobs)) if labels is None else labels

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
        for name in (*_STATED, *RESOURCES):
            found[name] = self._labels.numbers(name)
        for name in ("seq_len", "image_size", "params"):
            found[name] = self._known(name, {w.name: _value(w, name) for w in self.jobs.workloads})
        macs = {w.name: w.graph.forward_flops / 2e9 for w in self.jobs.workloads}
        found["gmacs"] = self._known("gmacs", macs)
        return {name: np.where(values > 0, values, np.nan) for name, values in found.items()}

    def _known(self, name: str, of: Mapping[str, float]) -> FloatArray:
        """Return a number of the workload (n,): as the row says, else as its workload does."""
        known = np.array([of[w.name] for w in self.jobs.workloads] + [np.nan])
        stated = self._labels.numbers(name)
        return np.where(np.isnan(stated), known[self.jobs.workload_index], stated)

    @cached_property
    def kinds(self) -> tuple[list[Kind], IntArray]:
        """Distinct kinds, those of `LawRows` and further texts, and which each job is, (n,)."""
        law_kinds, law = self.rows.kinds
        blank = np.full(len(self.jobs), -1, dtype=np.int32)
        texts, more = completed([], blank, self._labels, _TEXTS)
        code = law * max(len(texts), 1) + more
        distinct, index = np.unique(code, return_inverse=True)
        kinds = [
            (*law_kinds[one], *texts[other])
            for one, other in (divmod(value, max(len(texts), 1)) for value in distinct.tolist())
        ]
        return kinds, index.reshape(-1).astype(np.int64)

    @property
    def problems(self) -> NDArray[np.object_]:
        """Why each job's plan is illegal, or None, (n,). One that nobody stated is not illegal."""
        found = np.full(len(self.jobs), None, dtype=object)
        if self.jobs.plan_problem is not None:
            stated = self.rows.states_plan
            found[stated] = self.jobs.plan_problem[stated]
        return found

    @cached_property
    def sessions(self) -> tuple[list[str], IntArray]:
        """Distinct sessions as text, and which each job belongs to, (n,); kinds not counted in."""
        blank = np.full(len(self.jobs), -1, dtype=np.int32)
        table = self._labels
        if self.jobs.labels is None:
            numbers = self.numbers
            columns = {"devices": numbers["devices"], "nodes": numbers["nodes"]}
            table = Table(columns, len(self.jobs))
        texts, index = completed([], blank, table, _SESSION)
        return ["|".join(text) for text in texts], index


def _value(workload: object, name: str) -> float:
    value = getattr(workload, name, None)
    return float(value) if isinstance(value, int | float) and value else float("nan")


def kind_words(kind: Kind) -> str:
    """Return workload and device of a kind; the empty one is that of all kinds with few runs."""
    return " on ".join(text or "(blank)" for text in kind[: len(GROUP)]) or "kinds with few runs"
