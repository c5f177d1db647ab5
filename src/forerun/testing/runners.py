"""RunnerContract: what every runner promises; subclass it, say how yours is made, run pytest."""

# ruff: noqa: D102 (a test's name is its sentence)

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import pytest

from forerun.contracts import Runner
from forerun.domain.job import STATUSES, Job
from forerun.domain.plan import Plan
from forerun.testing.samples import tiny_cluster, tiny_workload

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
        runner = self.make_runner()
        assert isinstance(runner, Runner), "run or name is missing"
        assert isinstance(runner.name, str), "name is not text"
        assert runner.name, "name is empty"

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
