"""Rows for tests of the choice: times of an Ernest law, of a workload that no zoo knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from forerun.catalog import Catalog, load_catalog
from forerun.tables import Jobs, Runs, Table
from forerun.workloads.rows import jobs_from_table, runs_from_table


@cache
def catalog() -> Catalog:
    """Return the packaged catalogue."""
    return load_catalog()


def grid_rows(
    workload: str = "my-net", device: str = "my-gpu", machines: Sequence[int] = (1, 2, 4, 8),
    batches: Sequence[int] = (64, 128, 256),
) -> list[dict[str, Any]]:  # fmt: skip
    """Return a run for each number of machines and batch, within 1 % of the law."""
    return [
        {"workload": workload, "device": device, "nodes": 1, "devices": m, "global_batch": b,
         "step_time_s": (0.05 + 0.001 * b / m + 0.002 * m) * (1 + 0.01 * ((m * b) % 3 - 1))}
        for m in machines for b in batches
    ]  # fmt: skip


def runs_of(rows: Sequence[Mapping[str, Any]]) -> Runs:
    """Return rows as runs."""
    return runs_from_table(Table.from_rows(rows), catalog())


def jobs_of(rows: Sequence[Mapping[str, Any]]) -> Jobs:
    """Return rows as jobs, their measured columns left out."""
    measured = ("step_time_s", "time_to_train_s", "epoch_time_s", "status")
    asked = [{k: v for k, v in row.items() if k not in measured} for row in rows]
    return jobs_from_table(Table.from_rows(asked), catalog())
