"""The exam of runners: the local one, which trains for real, and the one that replays a table."""

from __future__ import annotations

import os
from functools import cache

import pytest

from forerun.contracts import Runner
from forerun.domain.job import Job, Run
from forerun.domain.plan import Plan
from forerun.measure import Steps
from forerun.measure.local import LocalRunner
from forerun.testing import RunnerContract
from forerun.testing.samples import tiny_cluster, tiny_device, tiny_workload
from tests.measure.entries import ENTRIES

FEW = Steps(warmup=1, least=6, most=8, half_width=0.5)


@cache
def job_of(name: str) -> Job:
    """Return a small CPU job of a workload's name, always the same one."""
    cluster = tiny_cluster(1, 1, tiny_device("sample-cpu", kind="cpu"))
    workload = tiny_workload(name, precision="fp32")
    return Job(workload, cluster, Plan(micro_batch=2, global_batch=4))


class Once(LocalRunner):
    """A local runner that carries each job out once, since starting workers takes seconds."""

    made: dict[int, Run] = {}  # noqa: RUF012  (shared by all tests of the exam)

    def run(self, job: Job) -> Run:
        if id(job) not in self.made:
            self.made[id(job)] = super().run(job)
        return self.made[id(job)]


class TestLocalRunner(RunnerContract):
    @pytest.fixture(autouse=True)
    def _entries(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self.folder = tmp_path_factory.mktemp("local")
        (self.folder / "toys.py").write_text(ENTRIES)
        paths = [str(self.folder), os.environ.get("PYTHONPATH", "")]
        self.environment = {"PYTHONPATH": os.pathsep.join(p for p in paths if p)}

    def make_runner(self) -> Runner:
        return Once(
            folder=self.folder / "runs", steps=FEW, environment=self.environment,
            entries={"tiny": "toys:mlp", "bad": "toys:no_module"},
        )  # fmt: skip

    def make_job(self) -> Job:
        return job_of("tiny")

    def make_failing_job(self) -> Job:
        return job_of("bad")

    def test_a_job_that_has_no_entry_fails_and_says_what_to_give(self) -> None:
        run = self.make_runner().run(job_of("unheard-of"))
        assert run.status == "failed"
        assert "not known what to train" in run.origin

    def test_a_plan_that_is_not_data_parallel_fails_in_words(self) -> None:
        cluster = tiny_cluster(1, 2, tiny_device("sample-cpu", kind="cpu"))
        job = Job(tiny_workload("tiny", precision="fp32"), cluster, Plan(tp=2, global_batch=4))
        run = self.make_runner().run(job)
        assert (run.status, run.job) == ("failed", job)
        assert "tp=2" in run.origin
