"""PredictorContract: what every predictor promises; subclass it, say how yours is made, run pytest."""

# ruff: noqa: D102 (a test's name is its sentence)

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from forerun.contracts import Predictor
from forerun.domain.forecast import QUANTITIES, Forecasts
from forerun.errors import RequestError
from forerun.tables import Jobs, Runs
from forerun.testing.samples import tiny_jobs, tiny_runs

PARTS_TOLERANCE = 1e-6  # relative: parts are sums of a few floats
ORDER = 1e-6  # relative: how far answers may differ by the order of the runs


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
        return tiny_jobs()

    def make_runs(self) -> Runs:
        """Return runs to fit it to (default: small transformers at 40 % of peak)."""
        return tiny_runs()

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
