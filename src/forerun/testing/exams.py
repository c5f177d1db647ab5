"""Exams of readers, runners, searchers and stores: subclass one, say how yours is made, run pytest."""

# ruff: noqa: D102 (a test's name is its sentence)

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np
import pytest

from forerun.contracts import Reader, Runner, Searcher, Store
from forerun.domain.job import STATUSES, Job, Run
from forerun.domain.plan import Plan
from forerun.domain.workload import Workload
from forerun.errors import RequestError
from forerun.tables import Jobs, Runs
from forerun.testing.predictors import check_named
from forerun.testing.samples import tiny_cluster, tiny_jobs, tiny_runs, tiny_workload

ODD_REFERENCES = ("", " ", "\n", "no such thing", "../..", "a:b:c", "x" * 5000, "é", "-", "{}")


class ReaderContract(ABC):
    """The exam of a reader; define `make_reader` and the references in a class named `Test...`."""

    @abstractmethod
    def make_reader(self) -> Reader:
        """Return the reader under exam."""

    @abstractmethod
    def good_reference(self) -> str:
        """Return a reference that it reads."""

    @abstractmethod
    def bad_reference(self) -> str:
        """Return a reference of its own form which cannot be read (a missing file, say)."""

    def test_it_has_a_name_and_meets_the_protocol(self) -> None:
        check_named(self.make_reader(), Reader, "accepts, read or name")

    def test_it_accepts_what_it_reads(self) -> None:
        assert self.make_reader().accepts(self.good_reference()) is True, "it refuses its own form"

    def test_accepting_never_raises(self) -> None:
        for reference in ODD_REFERENCES:
            answer = self.make_reader().accepts(reference)
            assert isinstance(answer, bool), f"accepts({reference[:20]!r}) is no truth value"

    def test_it_accepts_by_form_and_not_by_content(self) -> None:
        assert self.make_reader().accepts(self.bad_reference()) is True, (
            "whether a reference can be read is found out by read, not by accepts"
        )

    def test_a_workload_has_a_name_and_work_to_do(self) -> None:
        workload = self.make_reader().read(self.good_reference())
        assert isinstance(workload, Workload), "read returned no Workload"
        assert workload.name, "the workload has no name"
        assert workload.graph.forward_flops > 0, "its forward phase has no FLOPs"
        assert workload.graph.backward_flops > 0, "its backward phase has no FLOPs"
        assert workload.params > 0, "it has no parameters"
        assert workload.source, "it does not say where its structure comes from"

    def test_reading_twice_gives_the_same_workload(self) -> None:
        reader = self.make_reader()
        first, second = (reader.read(self.good_reference()) for _ in range(2))
        assert first == second, "two reads differ"

    def test_what_cannot_be_read_is_a_request_error(self) -> None:
        with pytest.raises(RequestError, match=r"."):
            self.make_reader().read(self.bad_reference())


_TIMES = (
    "step_seconds", "sync_seconds", "epoch_seconds", "time_to_train_seconds",
    "samples_per_second", "peak_bytes", "samples_to_target",
)  # fmt: skip


class RunnerContract(ABC):
    """The exam of a runner; define `make_runner` in a class named `Test...`."""

    @abstractmethod
    def make_runner(self) -> Runner:
        """Return the runner under exam."""

    def make_job(self) -> Job:
        """Return a job that it can carry out quickly (default: a small transformer)."""
        return Job(tiny_workload(), tiny_cluster(1, 1), Plan(micro_batch=2, global_batch=4))

    def make_failing_job(self) -> Job | None:
        """Return a job that fails when it is run, or None where there is no such job."""
        return None

    def test_it_has_a_name_and_meets_the_protocol(self) -> None:
        check_named(self.make_runner(), Runner, "run or name")

    def test_a_run_is_of_the_job_that_was_asked(self) -> None:
        job = self.make_job()
        assert self.make_runner().run(job).job == job, "the run is of another job"

    def test_a_run_that_is_ok_has_a_measured_time(self) -> None:
        run = self.make_runner().run(self.make_job())
        assert run.status in STATUSES, f"status {run.status!r} is none of {STATUSES}"
        assert run.status == "ok", f"the job that it can carry out ended {run.status}"
        times = (run.step_seconds, run.epoch_seconds, run.time_to_train_seconds)
        assert any(t is not None for t in times), "ok, and no time was measured"

    def test_what_was_measured_is_finite_and_above_zero(self) -> None:
        run = self.make_runner().run(self.make_job())
        for name in _TIMES:
            value = getattr(run, name)
            good = value is None or (math.isfinite(value) and value > 0)
            assert good, f"{name} is {value}"

    def test_a_run_says_where_it_comes_from(self) -> None:
        assert self.make_runner().run(self.make_job()).origin, "origin is empty"

    def test_a_failure_is_a_run_and_not_an_exception(self) -> None:
        job = self.make_failing_job()
        if job is None:
            pytest.skip("no failing job is given")
        run = self.make_runner().run(job)
        assert run.status in STATUSES[1:], f"a failing job ended {run.status!r}"
        assert run.job == job, "the run is of another job"


class SearcherContract(ABC):
    """The exam of a searcher; define `make_searcher` in a class named `Test...`."""

    @abstractmethod
    def make_searcher(self) -> Searcher:
        """Return the searcher under exam."""

    def make_space(self) -> Jobs:
        """Return the jobs to choose from, each of them once (default: 18 of a transformer)."""
        clusters = (tiny_cluster(1, 1), tiny_cluster(1, 4), tiny_cluster(2, 4))
        return tiny_jobs(clusters, (tiny_workload(),), (64,))

    def make_runs(self, jobs: Jobs) -> Runs:
        """Return those jobs carried out."""
        return tiny_runs(jobs)

    def test_it_has_a_name_and_meets_the_protocol(self) -> None:
        check_named(self.make_searcher(), Searcher, "suggest or name")

    def test_with_no_runs_it_suggests_jobs_of_the_space(self) -> None:
        space = self.make_space()
        asked = list(self.make_searcher().suggest(space, None))
        assert asked, "nothing is suggested at the start"
        assert all(job in list(space) for job in asked), "a job outside the space is suggested"

    def test_no_job_is_suggested_twice_at_once(self) -> None:
        asked = list(self.make_searcher().suggest(self.make_space(), None))
        once = all(asked.index(job) == i for i, job in enumerate(asked))
        assert once, "one suggestion holds a job twice"

    def test_a_measured_job_is_not_suggested_again(self) -> None:
        space = self.make_space()
        done = space.take(np.arange(len(space) // 2))
        asked = list(self.make_searcher().suggest(space, self.make_runs(done)))
        assert not any(job in list(done) for job in asked), "a measured job is suggested again"

    def test_when_all_is_measured_nothing_is_left(self) -> None:
        space = self.make_space()
        left = self.make_searcher().suggest(space, self.make_runs(space))
        assert len(left) == 0, "jobs are suggested although all are measured"

    def test_an_empty_space_has_no_next_job(self) -> None:
        none = self.make_space().take(np.arange(0))
        assert len(self.make_searcher().suggest(none, None)) == 0, "a job from an empty space"

    def test_it_keeps_no_state(self) -> None:
        """The same question has the same answer, from this searcher again and from a new one."""
        space = self.make_space()
        searcher = self.make_searcher()
        first = list(searcher.suggest(space, None))
        searcher.suggest(space, self.make_runs(space.take(np.arange(3))))
        assert list(searcher.suggest(space, None)) == first, "asking changed the searcher"
        again = list(self.make_searcher().suggest(space, None))
        assert again == first, "a new searcher answers differently"

    def test_the_space_is_left_as_it_was(self) -> None:
        space = self.make_space()
        before = list(space)
        self.make_searcher().suggest(space, None)
        assert list(space) == before, "suggest changed the space"


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
