"""StoreContract: what every store promises; subclass it, say how yours is made, run pytest."""

# ruff: noqa: D102 (a test's name is its sentence)

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import pytest

from forerun.contracts import Store
from forerun.domain.job import Run
from forerun.errors import RequestError
from forerun.testing.samples import tiny_cluster, tiny_jobs, tiny_workload


class StoreContract(ABC):
    """The exam of a store; define `make_store` in a class named `Test...`."""

    @abstractmethod
    def make_store(self) -> Store:
        """Return a store that holds nothing yet."""

    def make_runs(self) -> list[Run]:
        """Return distinct runs, some of which ran out of memory (default: small transformers)."""
        jobs = tiny_jobs((tiny_cluster(1, 4),), (tiny_workload(),), (64,))
        return [
            Run(job, "oom", origin=f"sample {i}")
            if i % 3 == 2
            else Run(job, "ok", step_seconds=0.1 + i / 3, peak_bytes=1e9 + i, origin=f"sample {i}")
            for i, job in enumerate(jobs)
        ]

    def test_it_meets_the_protocol(self) -> None:
        assert isinstance(self.make_store(), Store), "add or runs is missing"

    def test_a_new_store_holds_nothing(self) -> None:
        assert len(self.make_store().runs()) == 0, "a new store holds runs"

    def test_each_run_has_its_own_key(self) -> None:
        runs = self.make_runs()
        keys = list(self.make_store().add(runs))
        assert len(keys) == len(runs), f"{len(keys)} keys for {len(runs)} runs"
        assert all(k for k in keys), "a key is not text"
        assert len(set(keys)) == len(keys), "two runs have one key"

    def test_every_confirmed_run_comes_back_with_its_figures(self) -> None:
        store, runs = self.make_store(), self.make_runs()
        store.add(runs)
        table = store.runs().table
        assert len(table) == len(runs), f"{len(table)} of {len(runs)} runs came back"
        wanted = sorted((r.status, r.step_seconds or -1.0, r.peak_bytes or -1.0) for r in runs)
        steps = np.nan_to_num(table.numbers("step_time_s"), nan=-1.0)
        peaks = table.numbers("memory_gb") * 1e9
        peaks = np.where(np.isnan(peaks), -1.0, peaks)
        found = sorted(zip(table.texts("status"), steps.tolist(), peaks.tolist(), strict=True))
        for (status, step, peak), (status_back, step_back, peak_back) in zip(
            wanted, found, strict=True
        ):
            assert status == status_back, "a status changed in the store"
            assert step == step_back, "a step time changed in the store"
            assert peak == pytest.approx(peak_back, rel=1e-12), "a peak changed in the store"

    def test_the_jobs_of_the_runs_come_back(self) -> None:
        store, runs = self.make_store(), self.make_runs()
        store.add(runs)
        plans = store.runs().jobs.plans
        back = sorted(str(plans[i]) for i in range(len(plans)))
        assert back == sorted(str(r.job.plan) for r in runs), "a plan changed in the store"

    def test_runs_of_two_calls_are_kept_together(self) -> None:
        store, runs = self.make_store(), self.make_runs()
        store.add(runs[:2])
        store.add(runs[2:])
        assert len(store.runs()) == len(runs), "a second add lost runs"

    def test_a_filter_leaves_the_runs_whose_columns_equal_it(self) -> None:
        store, runs = self.make_store(), self.make_runs()
        store.add(runs)
        found = store.runs(status="oom")
        assert len(found) == sum(r.status == "oom" for r in runs), "the filter let others through"
        assert set(found.table.texts("status")) <= {"oom"}, "the filter let others through"
        assert len(store.runs(workload="no such workload")) == 0, "a filter that matches nothing"

    def test_nothing_is_kept_where_one_run_cannot_be(self) -> None:
        store, runs = self.make_store(), self.make_runs()
        broken: list[Run] = [*runs[:2], object()]  # type: ignore[list-item]
        with pytest.raises((RequestError, TypeError, AttributeError)):
            store.add(broken)
        assert len(store.runs()) == 0, "half of a broken call was kept"

    def test_adding_nothing_keeps_nothing(self) -> None:
        store = self.make_store()
        assert len(store.add([])) == 0, "keys for no runs"
        assert len(store.runs()) == 0, "runs from nothing"
