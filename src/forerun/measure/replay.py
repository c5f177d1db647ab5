"""ReplayRunner: a measured table as the black box: a job that it holds is answered by its row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from forerun.domain.job import Job
from forerun.domain.run import Run
from forerun.measure.measurement import PARTS, Measurement
from forerun.measure.task import Task
from forerun.tables import COLUMNS, Runs, Table, read_table
from forerun.units import GIGA

# Field of a task -> column of the runs table that must say the same.
_ASKED: Mapping[str, str] = {
    "workers": "devices", "global_batch": "global_batch", "dataset_size": "dataset_size",
    "precision": "precision", "optimizer": "optimizer",
}  # fmt: skip
_FIGURES: Mapping[str, tuple[str, float]] = {
    "step_seconds": ("step_time_s", 1.0), "sync_seconds": ("sync_time_s", 1.0),
    "epoch_seconds": ("epoch_time_s", 1.0), "time_to_train_seconds": ("time_to_train_s", 1.0),
    "samples_per_second": ("samples_per_s", 1.0), "peak_bytes": ("memory_gb", GIGA),
    "samples_to_target": ("samples_to_target", 1.0),
}  # fmt: skip


class ReplayRunner:
    """Answers jobs and tasks from runs that were made before; the median where there are repeats.

    Args:
        table: the runs, as a table or a file of one.
        runs: the same rows with their jobs resolved; needed by `run`, not by `measure`.
        columns: columns by which a task is looked up, beside its workload; those that the table
            does not have are left out.
    """

    name = "replay"

    def __init__(
        self, table: Table | str | Path = "", runs: Runs | None = None, columns: Sequence[str] = ()
    ) -> None:
        if runs is not None:
            table = runs.table
        self._table = table if isinstance(table, Table) else read_table(table)
        self._runs = runs
        self._columns = columns or tuple(c for c in _ASKED.values() if c in self._table)

    def run(self, job: Job) -> Run:
        """Return what the table holds of a job; one that it does not hold failed, and says so."""
        rows = [] if self._runs is None else _rows_of(self._runs, job)
        if not rows:
            return Run(job, "failed", origin="replay: the table holds no run of this job")
        table = self._table.take(np.array(rows))
        status = _status(table)
        origin = f"replay: {_words(table, 'source') or 'measured runs'}"
        if status != "ok":
            return Run(job, status, origin=origin)
        figures = {name: _median(table, column, unit) for name, (column, unit) in _FIGURES.items()}
        return Run(job, "ok", origin=origin, **figures)

    def measure(self, task: Task) -> Measurement:
        """Return what the table holds of a task, by its entry and the columns that it has."""
        rows = self._lookup(task)
        if not len(rows):
            return Measurement(
                "failed", f"the table holds no run of {task.entry} with {self._said(task)}"
            )
        table = self._table.take(rows)
        status = _status(table)
        if status != "ok":
            return Measurement(
                status, _words(table, "note"), seconds=_median(table, "run_time_s") or 0.0
            )
        known = {f.name for f in fields(Measurement)}
        figures: dict[str, Any] = {
            name: _median(table, column, unit)
            for name, (column, unit) in _FIGURES.items() if name in known
        }  # fmt: skip
        parts = {p: v for p in PARTS if (v := _median(table, f"{p}_time_s")) is not None}
        return Measurement(
            parts=parts, steps=int(_median(table, "measured_steps") or 0),
            seconds=_median(table, "run_time_s") or 0.0, reason="replayed", **figures,
        )  # fmt: skip

    def measure_many(self, tasks: Iterable[Task]) -> list[Measurement]:
        """Return what the table holds of each task."""
        return [self.measure(task) for task in tasks]

    def each(self, tasks: Iterable[Task]) -> Iterator[tuple[int, Measurement]]:
        """Yield (position, measurement) of tasks in order."""
        for i, task in enumerate(tasks):
            yield i, self.measure(task)

    def refuses(self, task: Task) -> str | None:
        """Return why the table cannot answer a task, None where it can."""
        if len(self._lookup(task)):
            return None
        return f"the table holds no run of {task.entry} with {self._said(task)}"

    def _said(self, task: Task) -> str:
        return ", ".join(f"{c}={v}" for c, v in self._asked(task).items())

    def _asked(self, task: Task) -> dict[str, Any]:
        """Return the columns that a row of this task has, and their values."""
        values = {column: getattr(task, name) for name, column in _ASKED.items()}
        values |= {"cpus_per_worker": task.cpus_per_worker, **task.settings}
        if not task.dataset_size:
            values.pop("dataset_size")
        return {
            c: values[c]
            for c in (*self._columns, *task.settings)
            if c in values and c in self._table
        }

    def _lookup(self, task: Task) -> Any:
        holds = np.ones(len(self._table), dtype=bool)
        if "workload" in self._table:
            holds &= self._table.texts("workload") == task.entry
        for column, value in self._asked(task).items():
            if isinstance(value, str) or (column in COLUMNS and COLUMNS[column].kind == "text"):
                holds &= self._table.texts(column) == str(value)
            else:
                holds &= np.isclose(self._table.numbers(column), float(value))
        return np.flatnonzero(holds)


def _rows_of(runs: Runs, job: Job) -> list[int]:
    """Return the rows that are of a job: the same workload, cluster and plan."""
    jobs = runs.jobs
    workloads = [i for i, w in enumerate(jobs.workloads) if w == job.workload or w is job.workload]
    clusters = [i for i, c in enumerate(jobs.clusters) if c == job.cluster]
    likely = np.isin(jobs.workload_index, workloads) & np.isin(jobs.cluster_index, clusters)
    return [int(i) for i in np.flatnonzero(likely) if jobs.plans[int(i)] == job.plan]


def _status(table: Table) -> str:
    """Return ok where any repeat was; else how the first one ended."""
    words = [text.strip().lower() or "ok" for text in table.texts("status")]
    return "ok" if "ok" in words else words[0]


def _median(table: Table, column: str, unit: float = 1.0) -> float | None:
    """Return the median of the rows that are ok and have the figure, None where none has."""
    values = table.numbers(column)
    status = np.array([text.strip().lower() or "ok" for text in table.texts("status")])
    known = values[(status == "ok") & np.isfinite(values)]
    return float(np.median(known)) * unit if len(known) else None


def _words(table: Table, column: str) -> str:
    return "; ".join(dict.fromkeys(text for text in table.texts(column) if text))
