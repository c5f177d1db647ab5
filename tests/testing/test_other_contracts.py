"""The exams of searchers, runners, stores and readers: honest ones pass, each rule has a mutant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from forerun.domain.job import Job, Run
from forerun.domain.plan import Plan
from forerun.domain.workload import Workload
from forerun.errors import RequestError
from forerun.tables import Jobs, Runs, Table
from forerun.testing import ReaderContract, RunnerContract, SearcherContract, StoreContract
from forerun.testing.samples import labelled, tiny_cluster, tiny_workload


def rules(contract: type) -> list[str]:
    return [name for name in vars(contract) if name.startswith("test_")]


def examine(contract: type, rule: str, **hooks: Any) -> None:
    """Run one rule of an exam; each hook is what the method of that name returns."""
    body = {name: (lambda self, value=value: value()) for name, value in hooks.items()}
    getattr(type("Exam", (contract,), body)(), rule)()


class InOrder:
    """Suggests the first two jobs of the space that were not run."""

    name = "in-order"

    def suggest(self, space: Jobs, runs: Runs | None) -> Jobs:
        done = [] if runs is None else list(runs.jobs)
        left = [i for i, job in enumerate(space) if job not in done]
        return space.take(np.array(left[:2], dtype=int))


class NamelessSearcher(InOrder):
    name = ""


class Silent(InOrder):
    def suggest(self, space: Jobs, runs: Runs | None) -> Jobs:
        return space.take(np.arange(0))


class Outsider(InOrder):
    def suggest(self, space: Jobs, runs: Runs | None) -> Jobs:
        return Jobs.of([Job(tiny_workload("other"), tiny_cluster(1, 1), Plan())])


class Stutterer(InOrder):
    def suggest(self, space: Jobs, runs: Runs | None) -> Jobs:
        return space.take(np.array([0, 0]))


class Forgetful(InOrder):
    def suggest(self, space: Jobs, runs: Runs | None) -> Jobs:
        return space.take(np.arange(1))


class FailsOnNothing(InOrder):
    def suggest(self, space: Jobs, runs: Runs | None) -> Jobs:
        return super().suggest(space, runs) if len(space) else Outsider().suggest(space, runs)


class Restless(InOrder):
    def __init__(self) -> None:
        self.calls = 0

    def suggest(self, space: Jobs, runs: Runs | None) -> Jobs:
        self.calls += 1
        return space.take(np.array([self.calls]))


class Vandal(InOrder):
    def suggest(self, space: Jobs, runs: Runs | None) -> Jobs:
        plans = replace(space.plans, global_batch=space.plans.global_batch * 2)
        object.__setattr__(space, "plans", plans)
        return space.take(np.arange(1))


SEARCHERS = [
    (NamelessSearcher, "test_it_has_a_name_and_meets_the_protocol"),
    (Silent, "test_with_no_runs_it_suggests_jobs_of_the_space"),
    (Outsider, "test_with_no_runs_it_suggests_jobs_of_the_space"),
    (Stutterer, "test_no_job_is_suggested_twice_at_once"),
    (Forgetful, "test_a_measured_job_is_not_suggested_again"),
    (Forgetful, "test_when_all_is_measured_nothing_is_left"),
    (FailsOnNothing, "test_an_empty_space_has_no_next_job"),
    (Restless, "test_it_keeps_no_state"),
    (Vandal, "test_the_space_is_left_as_it_was"),
]


class Stopwatch:
    """Carries out nothing, and says that it took a second; tp=2 fails."""

    name = "stopwatch"

    def run(self, job: Job) -> Run:
        if job.plan.tp > 1:
            return Run(job, "failed", origin="stopwatch")
        return Run(job, "ok", step_seconds=1.0, origin="stopwatch")


class NamelessRunner(Stopwatch):
    name = ""


class OtherJob(Stopwatch):
    def run(self, job: Job) -> Run:
        return Run(Job(tiny_workload("other"), tiny_cluster(1, 1), Plan()), step_seconds=1.0)


class Timeless(Stopwatch):
    def run(self, job: Job) -> Run:
        return Run(job, "ok", origin="x")


class Backwards(Stopwatch):
    def run(self, job: Job) -> Run:
        return Run(job, "ok", step_seconds=-1.0, origin="x")


class Rootless(Stopwatch):
    def run(self, job: Job) -> Run:
        return Run(job, "ok", step_seconds=1.0)


class AlwaysFine(Stopwatch):
    def run(self, job: Job) -> Run:
        return Run(job, "ok", step_seconds=1.0, origin="x")


RUNNERS = [
    (NamelessRunner, "test_it_has_a_name_and_meets_the_protocol"),
    (OtherJob, "test_a_run_is_of_the_job_that_was_asked"),
    (Timeless, "test_a_run_that_is_ok_has_a_measured_time"),
    (Backwards, "test_what_was_measured_is_finite_and_above_zero"),
    (Rootless, "test_a_run_says_where_it_comes_from"),
    (AlwaysFine, "test_a_failure_is_a_run_and_not_an_exception"),
]


def failing_job() -> Job:
    return Job(tiny_workload(), tiny_cluster(1, 2), Plan(tp=2, micro_batch=1, global_batch=4))


class Memory:
    """A store that lives as long as the process."""

    def __init__(self) -> None:
        self.kept: list[Run] = []

    def add(self, runs: Iterable[Run]) -> Sequence[str]:
        new = list(runs)
        if not all(isinstance(run, Run) for run in new):
            raise RequestError("adding runs", "one of them is no run", "give runs")
        first = len(self.kept)
        self.kept += new
        return [f"run-{i}" for i in range(first, len(self.kept))]

    def runs(self, **filters: Any) -> Runs:
        jobs = labelled(Jobs.of([run.job for run in self.kept]))
        table = jobs.labels or Table({}, 0)
        status = np.array([r.status for r in self.kept], dtype=object)
        table = table.with_columns(
            status=status,
            step_time_s=np.array([r.step_seconds for r in self.kept], dtype=float),
            memory_gb=np.array([r.peak_bytes for r in self.kept], dtype=float) / 1e9,
        )
        keep = np.ones(len(self.kept), dtype=bool)
        for name, value in filters.items():
            keep &= table.texts(name) == value
        return Runs(jobs, table).take(np.flatnonzero(keep))


class NoRuns:
    def add(self, runs: Iterable[Run]) -> Sequence[str]:
        return []


class Haunted(Memory):
    def __init__(self) -> None:
        super().__init__()
        self.kept = [Run(Job(tiny_workload(), tiny_cluster(1, 1), Plan()))]


class OneKey(Memory):
    def add(self, runs: Iterable[Run]) -> Sequence[str]:
        return ["key" for _ in super().add(runs)]


class Rounds(Memory):
    def runs(self, **filters: Any) -> Runs:
        found = super().runs(**filters)
        steps = found.table.numbers("step_time_s").round(2)
        return Runs(found.jobs, found.table.with_columns(step_time_s=steps))


class ForgetsPlans(Memory):
    def runs(self, **filters: Any) -> Runs:
        found = super().runs(**filters)
        first = found.jobs.take(np.zeros(len(found), dtype=int))
        return Runs(first, found.table)


class LastCallOnly(Memory):
    def add(self, runs: Iterable[Run]) -> Sequence[str]:
        self.kept = []
        return super().add(runs)


class NoFilter(Memory):
    def runs(self, **filters: Any) -> Runs:
        return super().runs()


class Half(Memory):
    def add(self, runs: Iterable[Run]) -> Sequence[str]:
        keys: list[str] = []
        for run in runs:
            keys += super().add([run])
        return keys


class KeyForNothing(Memory):
    def add(self, runs: Iterable[Run]) -> Sequence[str]:
        return [*super().add(runs), "more"]


STORES = [
    (NoRuns, "test_it_meets_the_protocol"),
    (Haunted, "test_a_new_store_holds_nothing"),
    (OneKey, "test_each_run_has_its_own_key"),
    (Rounds, "test_every_confirmed_run_comes_back_with_its_figures"),
    (ForgetsPlans, "test_the_jobs_of_the_runs_come_back"),
    (LastCallOnly, "test_runs_of_two_calls_are_kept_together"),
    (NoFilter, "test_a_filter_leaves_the_runs_whose_columns_equal_it"),
    (Half, "test_nothing_is_kept_where_one_run_cannot_be"),
    (KeyForNothing, "test_adding_nothing_keeps_nothing"),
]


class TinyReader:
    """Reads `tiny:NAME`, where the name is known."""

    name = "tiny"

    def accepts(self, reference: str) -> bool:
        return reference.startswith("tiny:")

    def read(self, reference: str, **changes: Any) -> Workload:
        if reference != "tiny:good":
            raise RequestError(reference, "no such workload", "write tiny:good")
        return tiny_workload()


class NamelessReader(TinyReader):
    name = ""


class Refuses(TinyReader):
    def accepts(self, reference: str) -> bool:
        return False


class Fragile(TinyReader):
    def accepts(self, reference: str) -> bool:
        return reference[0] == "t"


class Peeks(TinyReader):
    def accepts(self, reference: str) -> bool:
        return reference == "tiny:good"


class Sourceless(TinyReader):
    def read(self, reference: str, **changes: Any) -> Workload:
        return tiny_workload(source="")


class Fickle(TinyReader):
    def read(self, reference: str, **changes: Any) -> Workload:
        return tiny_workload(str(np.random.default_rng().integers(1 << 60)))


class Credulous(TinyReader):
    def read(self, reference: str, **changes: Any) -> Workload:
        return tiny_workload()


READERS = [
    (NamelessReader, "test_it_has_a_name_and_meets_the_protocol"),
    (Refuses, "test_it_accepts_what_it_reads"),
    (Fragile, "test_accepting_never_raises"),
    (Peeks, "test_it_accepts_by_form_and_not_by_content"),
    (Sourceless, "test_a_workload_has_a_name_and_work_to_do"),
    (Fickle, "test_reading_twice_gives_the_same_workload"),
    (Credulous, "test_what_cannot_be_read_is_a_request_error"),
]

EXAMS: dict[str, tuple[type, Any, list[tuple[Any, str]], dict[str, Any]]] = {
    "make_searcher": (SearcherContract, InOrder, SEARCHERS, {}),
    "make_runner": (RunnerContract, Stopwatch, RUNNERS, {"make_failing_job": failing_job}),
    "make_store": (StoreContract, Memory, STORES, {}),
    "make_reader": (
        ReaderContract, TinyReader, READERS,
        {"good_reference": lambda: "tiny:good", "bad_reference": lambda: "tiny:bad"},
    ),
}  # fmt: skip
HONEST = [(hook, rule) for hook, (contract, *_) in EXAMS.items() for rule in rules(contract)]
BROKEN = [(hook, mutant, rule) for hook, exam in EXAMS.items() for mutant, rule in exam[2]]


@pytest.mark.parametrize(("hook", "rule"), HONEST)
def test_an_honest_part_passes(hook: str, rule: str) -> None:
    contract, honest, _, hooks = EXAMS[hook]
    examine(contract, rule, **{hook: honest, **hooks})


@pytest.mark.parametrize(
    ("hook", "mutant", "rule"), BROKEN, ids=lambda v: getattr(v, "__name__", v)
)
def test_a_broken_part_fails_the_rule_that_it_breaks(hook: str, mutant: Any, rule: str) -> None:
    contract, _, _, hooks = EXAMS[hook]
    with pytest.raises((AssertionError, IndexError, pytest.fail.Exception)):
        examine(contract, rule, **{hook: mutant, **hooks})


@pytest.mark.parametrize("hook", EXAMS)
def test_every_rule_has_a_mutant(hook: str) -> None:
    contract, _, mutants, _ = EXAMS[hook]
    assert {rule for _, rule in mutants} == set(rules(contract))
