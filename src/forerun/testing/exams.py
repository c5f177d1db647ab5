"""Exams of predictors, readers, runners, searchers and stores: subclass one, say how yours is made, run pytest."""

from __future__ import annotations

# ruff: noqa: D102 (a test's name is its sentence)
import copy
import math
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from forerun.contracts import Predictor, Reader, Runner, Searcher, Store
from forerun.domain.forecast import QUANTITIES, Forecasts
from forerun.domain.job import STATUSES, Job, Run
from forerun.domain.plan import Plan
from forerun.domain.workload import Workload
from forerun.errors import RequestError
from forerun.tables import Jobs, Runs
from forerun.testing.samples import tiny_cluster, tiny_jobs, tiny_runs, tiny_workload

PARTS_TOLERANCE = 1e-6  # relative: parts are sums of a few floats
ORDER = 1e-6  # relative: how far answers may differ by the order of the runs
# Made once for all exams: it takes longer than most of their tests.
_sample_jobs, _sample_runs = cache(tiny_jobs), cache(tiny_runs)


def check_named(thing: Any, protocol: type, parts: str) -> None:
    """Fail where a thing does not meet a protocol, with a name."""
    assert isinstance(thing, protocol), f"{parts} is missing"
    name = getattr(thing, "name", None)
    assert isinstance(name, str), "name is not text"
    assert name, "name is empty"


class PredictorContract(ABC):
    """The exam of a predictor: a class named `Test...` that inherits from it and defines `make_predictor`."""

    _made: ClassVar[Predictor]

    @abstractmethod
    def make_predictor(self) -> Predictor:
        """Return the predictor under exam, ready to answer `make_jobs()`."""

    def make_jobs(self) -> Jobs:
        """Return jobs, at least one of which it answers (default: small transformers)."""
        return _sample_jobs()

    def make_runs(self) -> Runs:
        """Return runs to fit it to (default: small transformers at 40 % of peak)."""
        return _sample_runs()

    def make_unanswerable(self) -> Jobs:
        """Return jobs that no predictor from physics can answer: neither workload nor cluster."""
        jobs = self.make_jobs()
        n = min(3, len(jobs))
        reason = np.full(n, "no such name", dtype=object)
        none = np.full(n, -1, dtype=np.int32)
        return Jobs((), (), none, none, jobs.plans.take(np.arange(n)), reason, reason.copy())

    def _predictor(self) -> Predictor:
        """Return the predictor, made once for all tests of the exam: a fit leaves it as it was."""
        exam = type(self)
        if "_made" not in vars(exam):
            exam._made = self.make_predictor()
        return exam._made

    def test_it_has_a_name_and_meets_the_protocol(self) -> None:
        check_named(self._predictor(), Predictor, "fit, declines, predict or name")

    def test_n_jobs_in_are_n_forecasts_out(self) -> None:
        predictor, jobs = self._predictor(), self.make_jobs()
        for part in (jobs, jobs.take(np.arange(1))):
            answer = predictor.predict(part)
            _check_shapes(answer, len(part))
            assert answer.predictor == predictor.name, "forecasts name another predictor"

    def test_it_answers_at_least_one_job(self) -> None:
        answer = self._predictor().predict(self.make_jobs())
        assert answer.answered.any(), "every job is declined, so nothing was examined"

    def test_no_jobs_are_no_forecasts(self) -> None:
        predictor = self._predictor()
        none = self.make_jobs().take(np.arange(0))
        _check_shapes(predictor.predict(none), 0)
        assert len(predictor.declines(none)) == 0, "reasons for no jobs"

    def test_what_it_declines_is_what_its_forecasts_decline(self) -> None:
        predictor, jobs = self._predictor(), self.make_jobs()
        reasons, answer = list(predictor.declines(jobs)), predictor.predict(jobs)
        assert reasons == list(answer.declined), "declines() and predict() disagree"

    def test_a_job_without_workload_and_cluster_never_raises(self) -> None:
        predictor, jobs = self._predictor(), self.make_unanswerable()
        reasons, answer = list(predictor.declines(jobs)), predictor.predict(jobs)
        _check_shapes(answer, len(jobs))
        assert reasons == list(answer.declined), "declines() and predict() disagree"

    def test_a_reason_is_a_sentence_and_its_row_is_blank(self) -> None:
        predictor = self._predictor()
        for jobs in (self.make_jobs(), self.make_unanswerable()):
            answer = predictor.predict(jobs)
            for i in np.flatnonzero(~answer.answered):
                reason = answer.declined[i]
                assert isinstance(reason, str), f"row {i}: the reason is not text"
                assert reason.strip(), f"row {i}: the reason is empty"
                assert np.isnan(answer.seconds[i]).all(), f"row {i} is declined and answered"

    def test_quantiles_are_ordered_finite_and_positive(self) -> None:
        answer = self._predictor().predict(self.make_jobs())
        _check_quantiles(answer.seconds[answer.answered], "seconds", blank=False)
        _check_quantiles(answer.peak_bytes, "peak_bytes", blank=True)
        if answer.samples_to_target is not None:
            _check_quantiles(answer.samples_to_target, "samples_to_target", blank=True)

    def test_a_probability_lies_between_0_and_1(self) -> None:
        p = self._predictor().predict(self.make_jobs()).fit_probability
        known = p[~np.isnan(p)]
        assert ((known >= 0) & (known <= 1)).all(), "a fit probability is outside 0 to 1"

    def test_no_forecast_is_below_its_physical_floor(self) -> None:
        answer = self._predictor().predict(self.make_jobs())
        rows = answer.answered & ~np.isnan(answer.floor_seconds)
        low, floor = answer.seconds[rows, 0], answer.floor_seconds[rows]
        assert (floor >= 0).all(), "a floor is negative"
        below = np.flatnonzero(low < floor * (1 - 1e-9))
        assert len(below) == 0, f"{len(below)} forecasts are below their floor"

    def test_parts_add_up_to_the_median(self) -> None:
        answer = self._predictor().predict(self.make_jobs())
        for name, parts, total in (
            ("parts", answer.parts, answer.seconds[:, 1]),
            ("memory_parts", answer.memory_parts, answer.peak_bytes[:, 1]),
        ):
            if not parts:
                continue
            rows = answer.answered & ~np.isnan(total)
            added = np.sum([np.asarray(v)[rows] for v in parts.values()], axis=0)
            close = np.isclose(added, total[rows], rtol=PARTS_TOLERANCE, atol=0)
            assert close.all(), f"{name} do not add up to the median"

    def test_the_order_of_the_jobs_does_not_matter(self) -> None:
        predictor, jobs = self._predictor(), self.make_jobs()
        order = np.random.default_rng(0).permutation(len(jobs))
        _check_equal(
            predictor.predict(jobs).take(order), predictor.predict(jobs.take(order)),
            "a permutation of the jobs changes the answers",
        )  # fmt: skip

    def test_the_same_job_twice_has_the_same_answer_twice(self) -> None:
        predictor, jobs = self._predictor(), self.make_jobs()
        twice = np.repeat(np.arange(len(jobs)), 2)
        answer = predictor.predict(jobs.take(twice))
        even = np.arange(0, len(twice), 2)
        _check_equal(answer.take(even), answer.take(even + 1), "duplicates differ")

    def test_one_job_alone_has_the_answer_it_has_among_others(self) -> None:
        predictor, jobs = self._predictor(), self.make_jobs()
        every = predictor.predict(jobs)
        for i in np.unique(np.linspace(0, len(jobs) - 1, 5).astype(int)):
            one = np.array([i])
            alone = predictor.predict(jobs.take(one))
            _check_equal(every.take(one), alone, f"job {i} alone has another answer")

    def test_two_threads_have_the_answers_of_one(self) -> None:
        predictor, jobs = self._predictor(), self.make_jobs()
        alone = predictor.predict(jobs).seconds
        with ThreadPoolExecutor(2) as pool:
            for answer in pool.map(predictor.predict, [jobs] * 4):
                assert np.array_equal(answer.seconds, alone, equal_nan=True)

    def test_fit_returns_a_new_predictor_and_leaves_the_old_one(self) -> None:
        predictor, jobs, runs = self._predictor(), self.make_jobs(), self.make_runs()
        before = copy.deepcopy(predictor.predict(jobs))
        fitted = _fitted(predictor, runs)
        assert fitted is not predictor, "fit returned the same object"
        assert isinstance(fitted, Predictor), "fit returned something that is no predictor"
        _check_equal(before, predictor.predict(jobs), "fit changed the predictor it was called on")
        _check_shapes(fitted.predict(jobs), len(jobs))

    def test_fitting_twice_on_the_same_runs_gives_the_same_answers(self) -> None:
        predictor, jobs, runs = self._predictor(), self.make_jobs(), self.make_runs()
        first, second = _fitted(predictor, runs), _fitted(predictor, runs)
        _check_equal(first.predict(jobs), second.predict(jobs), "two fits on the same runs differ")

    def test_the_order_of_the_runs_does_not_matter(self) -> None:
        predictor, jobs, runs = self._predictor(), self.make_jobs(), _noisy(self.make_runs())
        first = _fitted(predictor, runs).predict(jobs)
        for seed in range(2):
            second = predictor.fit(_shuffled(runs, seed)).predict(jobs)
            _check_equal(first, second, "runs in another order give another fit", ORDER)


def _fitted(predictor: Predictor, runs: Runs) -> Predictor:
    try:
        return predictor.fit(runs)
    except RequestError as error:
        pytest.skip(f"it cannot be fitted to these runs: {error}")


def _check_shapes(answer: Forecasts, n: int) -> None:
    assert answer.quantity in QUANTITIES, f"quantity {answer.quantity!r} is none of {QUANTITIES}"
    for name, shape in (
        ("seconds", (n, 3)), ("peak_bytes", (n, 3)), ("fit_probability", (n,)),
        ("floor_seconds", (n,)), ("distance", (n,)), ("declined", (n,)),
    ):  # fmt: skip
        found = np.shape(getattr(answer, name))
        assert found == shape, f"{name} has shape {found} for {n} jobs"
    for group in (answer.parts, answer.memory_parts):
        for name, values in group.items():
            assert np.shape(values) == (n,), f"part {name!r} has shape {np.shape(values)}"


def _check_quantiles(rows: NDArray[np.float64], name: str, *, blank: bool) -> None:
    if blank:
        rows = rows[~np.isnan(rows).all(axis=1)]
    assert np.isfinite(rows).all(), f"{name}: an answered row is not finite"
    assert (rows > 0).all(), f"{name}: not above zero"
    assert (np.diff(rows, axis=1) >= 0).all(), f"{name}: quantiles are not in order"


def _noisy(runs: Runs) -> Runs:
    noise = np.exp(0.05 * np.random.default_rng(0).standard_normal(len(runs)))
    times = ("step_time_s", "epoch_time_s", "time_to_train_s")
    changed = {name: runs.table.numbers(name) * noise for name in times if name in runs.table}
    return replace(runs, table=runs.table.with_columns(**changed))


def _shuffled(runs: Runs, seed: int) -> Runs:
    rng = np.random.default_rng(seed)
    runs = runs.take(rng.permutation(len(runs)))
    jobs = runs.jobs
    last = len(jobs.workloads) - 1, len(jobs.clusters) - 1
    workload, cluster = (
        np.where(index >= 0, end - index, -1).astype(np.int32)
        for index, end in zip((jobs.workload_index, jobs.cluster_index), last, strict=True)
    )
    turned = replace(
        jobs, workloads=jobs.workloads[::-1], clusters=jobs.clusters[::-1],
        workload_index=workload, cluster_index=cluster,
    )  # fmt: skip
    return replace(runs, jobs=turned)


def _check_equal(a: Forecasts, b: Forecasts, complaint: str, off: float = 1e-9) -> None:
    assert list(a.declined) == list(b.declined), complaint
    for name in ("seconds", "peak_bytes", "fit_probability", "floor_seconds", "distance"):
        same = np.allclose(getattr(a, name), getattr(b, name), rtol=off, atol=1e-15, equal_nan=True)
        assert same, f"{complaint} ({name})"


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
