"""Lengths of a table's rows: how much training each is, by its own cells or by what was asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from forerun.advisor.asking import LONGEST
from forerun.arrays import FloatArray
from forerun.domain.forecast import is_none
from forerun.domain.workload import Length, Workload
from forerun.errors import ForerunError
from forerun.tables import Jobs, Table

Reasons = NDArray[np.object_]


@dataclass(frozen=True)
class RowLengths:
    """How long n jobs are: in steps where somebody said steps, else in samples; NaN elsewhere.

    `reasons` are of rows whose own length cannot be: they are declined.
    """

    stated_steps: FloatArray
    samples: FloatArray
    reasons: Reasons

    def steps(self, batch: FloatArray) -> FloatArray:
        """Return optimizer steps (n,) at each row's global batch, the last one counted whole."""
        counted = np.ceil(self.samples / batch)
        return np.where(np.isnan(self.stated_steps), counted, self.stated_steps)


def row_lengths(jobs: Jobs, length: Length | None, datasets: FloatArray) -> RowLengths:
    """Return the rows' lengths.

    A row's own steps, samples, tokens or epochs come first, then the length that was asked, then
    its samples_to_target or epochs_to_target, then the usual length of its workload.

    Args:
        jobs: n rows.
        length: what was asked for the whole table.
        datasets: samples in an epoch (n,), NaN where not known.
    """
    n = len(jobs)
    reasons: Reasons = np.full(n, None, dtype=object)
    stated_steps = np.full(n, np.nan)
    if length is not None and length.unit == "steps":
        stated_steps[:] = length.count
    samples = _usual(jobs, length)
    if jobs.labels is None:
        return RowLengths(stated_steps, samples, reasons)
    table = jobs.labels
    tokens = _each(jobs, lambda workload: workload.seq_len or np.nan)
    if length is None:
        for name, each in (("epochs_to_target", datasets), ("samples_to_target", np.ones(n))):
            cells = _cells(table, name, LONGEST["samples"], reasons)
            samples = np.where(np.isnan(cells * each), samples, cells * each)
    _one_length(table, reasons)
    for unit, each, lacking in (
        ("samples", np.ones(n), ""),
        ("tokens", 1.0 / tokens, "its samples have no tokens"),
        ("epochs", datasets, "the size of its dataset is not known; fill dataset_size"),
    ):
        cells = _cells(table, unit, LONGEST[unit], reasons)
        given = ~np.isnan(cells)
        _blame(reasons, given & np.isnan(each) & (jobs.workload_index >= 0),
               f"a length in {unit}, but {lacking}")  # fmt: skip
        samples = np.where(given, cells * each, samples)
        stated_steps = np.where(given, np.nan, stated_steps)
    steps = _cells(table, "steps", LONGEST["steps"], reasons)
    return RowLengths(np.where(np.isnan(steps), stated_steps, steps), samples, reasons)


def without(jobs: Jobs, reasons: Reasons) -> Jobs:
    """Return the jobs in which the rows that have a reason have no workload."""
    blamed = ~is_none(reasons)
    if not blamed.any():
        return jobs
    known = jobs.workload_problem
    first = np.full(len(jobs), None, dtype=object) if known is None else known
    return replace(
        jobs,
        workload_index=np.where(blamed, -1, jobs.workload_index).astype(np.int32),
        workload_problem=np.where(is_none(first), reasons, first),
    )


def _usual(jobs: Jobs, length: Length | None) -> FloatArray:
    """Return samples (n,) of the length that was asked, else of each workload's usual one."""

    def count(workload: Workload) -> float:
        asked = length or workload.length
        try:
            if asked is None or asked.unit == "steps":
                return np.nan  # a usual length is never in steps
            return workload.samples(asked)
        except ForerunError:
            return np.nan

    return _each(jobs, count)


def _each(jobs: Jobs, read: Callable[[Workload], float]) -> FloatArray:
    """Return a number of each row's workload (n,), NaN where it has none."""
    return np.array([*map(read, jobs.workloads), np.nan], dtype=np.float64)[jobs.workload_index]


def _cells(table: Table, name: str, most: float, reasons: Reasons) -> FloatArray:
    """Return a length column (n,), NaN where blank or absurd; an absurd one is the row's reason."""
    cells = table.numbers(name)
    good = (cells > 0) & (cells <= most)
    for value in np.unique(cells[~good & ~np.isnan(cells)]):
        _blame(reasons, cells == value, f"{name}={value:.10g} is no length of training; correct it")
    return np.where(good, cells, np.nan)


def _one_length(table: Table, reasons: Reasons) -> None:
    given = np.array([~np.isnan(table.numbers(unit)) for unit in Length.UNITS])
    _blame(reasons, given.sum(axis=0) > 1, "a job has one length; keep one of"
           f" {', '.join(Length.UNITS)}")  # fmt: skip


def _blame(reasons: Reasons, rows: NDArray[np.bool_], reason: str) -> None:
    reasons[rows & is_none(reasons)] = reason
