"""The predictor's exam: an honest predictor passes every rule, and each rule fails its own mutant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Barrier, current_thread, main_thread
from typing import Any, ClassVar

import numpy as np
import pytest

from forerun.domain.forecast import Forecasts
from forerun.predictors.laws.constant_mfu import ConstantMFU
from forerun.tables import Jobs, Runs
from forerun.testing import PredictorContract

RULES = [name for name in vars(PredictorContract) if name.startswith("test_")]


def examine(predictor: Any, rule: str, **hooks: Callable[..., Any]) -> None:
    """Run one rule of the exam on a predictor."""
    body = {"make_predictor": lambda self: predictor(), **hooks}
    exam = type("Exam", (PredictorContract,), body)()
    getattr(exam, rule)()


@dataclass
class Honest:
    """A law with parts, memory and a reason for jobs that it does not know."""

    name: str = "honest"
    scale: float = 1.0

    def fit(self, runs: Runs) -> Honest:
        law = ConstantMFU().predict(runs.jobs)
        scale = float(np.nanmedian(runs.step_seconds() / law.seconds[:, 1]))
        return replace(self, scale=scale)

    def declines(self, jobs: Jobs) -> list[str | None]:
        return ConstantMFU().declines(jobs)

    def predict(self, jobs: Jobs) -> Forecasts:
        law = ConstantMFU().predict(jobs)
        seconds = np.maximum(law.seconds * self.scale, law.floor_seconds[:, None])
        peak = np.where(np.isnan(seconds), np.nan, np.array([1e9, 2e9, 3e9]))
        middle = seconds[:, 1]
        return replace(
            law, predictor=self.name, seconds=seconds, peak_bytes=peak,
            fit_probability=np.where(np.isnan(middle), np.nan, 1.0),
            parts={"forward": middle / 3, "backward": 2 * middle / 3},
            memory_parts={"weights": peak[:, 1]},
        )  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_an_honest_predictor_passes(rule: str) -> None:
    examine(Honest, rule)


class Nameless(Honest):
    def __init__(self) -> None:
        super().__init__(name="")


class OneShort(Honest):
    def predict(self, jobs: Jobs) -> Forecasts:
        answer = super().predict(jobs)
        return answer.take(np.arange(max(0, len(answer) - 1)))


class Mute(Honest):
    def declines(self, jobs: Jobs) -> list[str | None]:
        return ["I am mute"] * len(jobs)

    def predict(self, jobs: Jobs) -> Forecasts:
        blank = Forecasts.blank(len(jobs), self.name)
        blank.declined[:] = "I am mute"
        return blank


class FailsOnNothing(Honest):
    def predict(self, jobs: Jobs) -> Forecasts:
        if not len(jobs):
            raise AssertionError("empty")
        return super().predict(jobs)


class TwoMinds(Honest):
    def declines(self, jobs: Jobs) -> list[str | None]:
        return ["no"] * len(jobs)


class TwoMindsAboutStrangers(Honest):
    def declines(self, jobs: Jobs) -> list[str | None]:
        return [None] * len(jobs)


class EmptyReason(Honest):
    def predict(self, jobs: Jobs) -> Forecasts:
        answer = super().predict(jobs)
        answer.declined[~answer.answered] = " "
        return answer


class DeclinesAndAnswers(Honest):
    def predict(self, jobs: Jobs) -> Forecasts:
        answer = super().predict(jobs)
        answer.declined[0] = "no, but"
        return answer


class Unordered(Honest):
    def predict(self, jobs: Jobs) -> Forecasts:
        answer = super().predict(jobs)
        return replace(answer, seconds=answer.seconds[:, ::-1], floor_seconds=answer.seconds[:, 0])


class UnorderedMemory(Honest):
    def predict(self, jobs: Jobs) -> Forecasts:
        answer = super().predict(jobs)
        return replace(answer, peak_bytes=answer.peak_bytes[:, ::-1])


class Silent(Honest):
    def predict(self, jobs: Jobs) -> Forecasts:
        answer = super().predict(jobs)
        answer.seconds[:1] = np.nan
        return answer


class TooSure(Honest):
    def predict(self, jobs: Jobs) -> Forecasts:
        answer = super().predict(jobs)
        return replace(answer, fit_probability=answer.fit_probability * 1.5)


class BelowTheFloor(Honest):
    def predict(self, jobs: Jobs) -> Forecasts:
        answer = super().predict(jobs)
        return replace(answer, floor_seconds=answer.seconds[:, 1])


class MissingPart(Honest):
    def predict(self, jobs: Jobs) -> Forecasts:
        answer = super().predict(jobs)
        return replace(answer, parts={"forward": answer.parts["forward"]})


class ByPosition(Honest):
    def predict(self, jobs: Jobs) -> Forecasts:
        answer = super().predict(jobs)
        return replace(answer, seconds=answer.seconds * (1 + np.arange(len(answer)))[:, None])


class ByBatch(Honest):
    def predict(self, jobs: Jobs) -> Forecasts:
        answer = super().predict(jobs)
        return replace(answer, seconds=answer.seconds * (2 if len(jobs) == 1 else 1), parts={})


class OneBuffer(Honest):
    """Keeps what it works at in itself, where a second thread adds to it."""

    both = Barrier(2, timeout=30)
    at_work: ClassVar[list[Jobs]] = []

    def predict(self, jobs: Jobs) -> Forecasts:
        answer = super().predict(jobs)
        if current_thread() is main_thread():
            return answer
        self.at_work.append(jobs)
        self.both.wait()
        return replace(answer, seconds=answer.seconds * len(self.at_work))


class Forgetful(Honest):
    def fit(self, runs: Runs) -> Honest:
        self.scale = 3.0
        return replace(self)


class SameObject(Honest):
    def fit(self, runs: Runs) -> Honest:
        return self


class RandomFit(Honest):
    def fit(self, runs: Runs) -> Honest:
        return replace(self, scale=float(np.random.default_rng().uniform(5, 50)))


class FirstRunRules(Honest):
    def fit(self, runs: Runs) -> Honest:
        return Honest.fit(self, runs.take(np.arange(1)))


MUTANTS = [
    (Nameless, "test_it_has_a_name_and_meets_the_protocol"),
    (OneShort, "test_n_jobs_in_are_n_forecasts_out"),
    (Mute, "test_it_answers_at_least_one_job"),
    (FailsOnNothing, "test_no_jobs_are_no_forecasts"),
    (TwoMinds, "test_what_it_declines_is_what_its_forecasts_decline"),
    (TwoMindsAboutStrangers, "test_a_job_without_workload_and_cluster_never_raises"),
    (EmptyReason, "test_a_reason_is_a_sentence_and_its_row_is_blank"),
    (DeclinesAndAnswers, "test_a_reason_is_a_sentence_and_its_row_is_blank"),
    (Unordered, "test_quantiles_are_ordered_finite_and_positive"),
    (UnorderedMemory, "test_quantiles_are_ordered_finite_and_positive"),
    (Silent, "test_quantiles_are_ordered_finite_and_positive"),
    (TooSure, "test_a_probability_lies_between_0_and_1"),
    (BelowTheFloor, "test_no_forecast_is_below_its_physical_floor"),
    (MissingPart, "test_parts_add_up_to_the_median"),
    (ByPosition, "test_the_order_of_the_jobs_does_not_matter"),
    (ByPosition, "test_the_same_job_twice_has_the_same_answer_twice"),
    (OneBuffer, "test_two_threads_have_the_answers_of_one"),
    (ByBatch, "test_one_job_alone_has_the_answer_it_has_among_others"),
    (Forgetful, "test_fit_returns_a_new_predictor_and_leaves_the_old_one"),
    (SameObject, "test_fit_returns_a_new_predictor_and_leaves_the_old_one"),
    (RandomFit, "test_fitting_twice_on_the_same_runs_gives_the_same_answers"),
    (FirstRunRules, "test_the_order_of_the_runs_does_not_matter"),
]


@pytest.mark.parametrize(("mutant", "rule"), MUTANTS, ids=lambda v: getattr(v, "__name__", v))
def test_a_broken_predictor_fails_the_rule_that_it_breaks(mutant: Any, rule: str) -> None:
    with pytest.raises(AssertionError):
        examine(mutant, rule)


def test_every_rule_has_a_mutant() -> None:
    assert {rule for _, rule in MUTANTS} == set(RULES)
