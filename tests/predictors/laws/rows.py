"""Rows of workloads and machines that no zoo and no catalogue knows, for laws to learn from."""

from __future__ import annotations

from typing import Any

from forerun.catalog import load_catalog
from forerun.tables import Jobs, Runs, Table
from forerun.testing import PredictorContract
from forerun.testing.samples import tiny_jobs
from forerun.workloads.rows import jobs_from_table, runs_from_table

CATALOG = load_catalog()


def table(**columns: Any) -> Table:
    """Return rows of `sgd-job` on `core`, unless the columns say otherwise; texts are spread."""
    n = next(len(v) for v in columns.values() if not isinstance(v, str))
    given: dict[str, Any] = {"workload": "sgd-job", "device": "core", **columns}
    spread = {k: ([v] * n if isinstance(v, str) else list(v)) for k, v in given.items()}
    return Table.from_columns(spread, "sample rows")


def runs_of(**columns: Any) -> Runs:
    """Return such rows as runs."""
    return runs_from_table(table(**columns), CATALOG)


def jobs_of(**columns: Any) -> Jobs:
    """Return such rows as jobs."""
    return jobs_from_table(table(**columns), CATALOG)


class UnfittedContract(PredictorContract):
    """Without runs it answers nothing, and keeps the rest of the contract."""

    def test_it_answers_at_least_one_job(self) -> None:
        answer = self.make_predictor().predict(tiny_jobs())
        assert all("from runs alone" in reason for reason in answer.declined)
