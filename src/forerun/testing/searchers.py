"""SearcherContract: what every searcher promises; subclass it, say how yours is made, run pytest."""

# ruff: noqa: D102 (a test's name is its sentence)

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from forerun.contracts import Searcher
from forerun.domain.job import Job
from forerun.tables import Jobs, Runs
from forerun.testing.samples import tiny_cluster, tiny_jobs, tiny_runs, tiny_workload


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
        searcher = self.make_searcher()
        assert isinstance(searcher, Searcher), "suggest or name is missing"
        assert isinstance(searcher.name, str), "name is not text"
        assert searcher.name, "name is empty"

    def test_with_no_runs_it_suggests_jobs_of_the_space(self) -> None:
        space = self.make_space()
        asked = list(self.make_searcher().suggest(space, None))
        assert asked, "nothing is suggested at the start"
        assert all(job in list(space) for job in asked), "a job outside the space is suggested"

    def test_no_job_is_suggested_twice_at_once(self) -> None:
        asked = list(self.make_searcher().suggest(self.make_space(), None))
        assert len(_distinct(asked)) == len(asked), "one suggestion holds a job twice"

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


def _distinct(jobs: list[Job]) -> list[Job]:
    seen: list[Job] = []
    for job in jobs:
        if job not in seen:
            seen.append(job)
    return seen
