"""Convergence: samples until a target by batch, from the runs of many trainings, one, or none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from forerun.errors import RequestError
from forerun.evaluate import evaluate
from forerun.predictors.choice import Auto
from forerun.predictors.convergence import Convergence
from forerun.predictors.convergence.curve import FormPrior, growth
from forerun.predictors.convergence.predictor import NO_TIME
from forerun.tables import Jobs, Runs
from forerun.testing import PredictorContract
from tests.predictors.laws.rows import jobs_of, runs_of

FloatArray = NDArray[np.float64]
BATCHES = np.array([32, 64, 128, 256, 512, 1024, 2048, 4096], dtype=float)


def samples(batch: FloatArray, least: float = 1e6, critical: float = 800.0) -> FloatArray:
    """Return the samples until the target by the law of a critical batch."""
    return np.asarray(least * (1 + batch / critical))


def many(noise: float = 0.03, seed: int = 0, skip: tuple[float, ...] = ()) -> Runs:
    """Return two runs a batch of four trainings with critical batches of their own."""
    rng, columns = np.random.default_rng(seed), list[dict[str, Any]]()
    for i, critical in enumerate((300.0, 800.0, 2000.0, 5000.0)):
        for batch in np.repeat(BATCHES, 2):
            if i or batch not in skip:
                found = samples(batch, 1e6 * (i + 1), critical) * np.exp(
                    noise * rng.standard_normal()
                )
                columns.append(
                    {
                        "workload": f"net-{i}",
                        "global_batch": batch,
                        "samples_to_target": float(found),
                    }
                )
    return runs_of(**{name: [row[name] for row in columns] for name in columns[0]}, optimizer="sgd")


class TestContract(PredictorContract):
    """It answers samples and no time."""

    def test_it_answers_at_least_one_job(self) -> None:
        answer = self.make_predictor().predict(self.make_jobs())
        assert answer.samples_to_target is not None
        assert np.isfinite(answer.samples_to_target[:3]).all()
        assert list(answer.declined[:3]) == [NO_TIME] * 3

    def make_predictor(self) -> Convergence:
        return Convergence().fit(many())

    def make_runs(self) -> Runs:
        return many()

    def make_jobs(self) -> Jobs:
        return jobs_of(
            workload=["net-0", "net-1", "net-3", "other"],
            global_batch=[100, 3000, 64, 8],
            optimizer="sgd",
        )


def test_batches_left_out_between_and_at_the_end_are_found_again() -> None:
    skip = (128.0, 4096.0)
    answer, reasons, _ = (
        Convergence()
        .fit(many(skip=skip))
        .samples(jobs_of(workload=["net-0"] * 2, global_batch=list(skip), optimizer="sgd"))
    )
    assert answer[:, 1] == pytest.approx(samples(np.array(skip), critical=300.0), rel=0.12)
    assert list(reasons) == ["", ""]


def test_the_band_holds_nine_in_ten_of_new_runs() -> None:
    hits = []
    for seed in range(6):
        model = Convergence().fit(many(0.05, seed, skip=(256.0, 2048.0)))
        rng = np.random.default_rng(100 + seed)
        batch = np.repeat([256.0, 2048.0], 20)
        real = samples(batch, critical=300.0) * np.exp(0.05 * rng.standard_normal(40))
        said = model.samples(
            jobs_of(workload=["net-0"] * 40, global_batch=batch.tolist(), optimizer="sgd")
        )[0]
        hits.append((real >= said[:, 0]) & (real <= said[:, 2]))
    assert 0.82 <= np.mean(hits) <= 1.0


def test_one_run_of_a_new_training_gives_its_level_and_others_the_form() -> None:
    rows = many()
    one = runs_of(workload=["new"], global_batch=[128], samples_to_target=[5e5], optimizer="sgd")
    from forerun.tables.jobs import join_runs

    model = Convergence().fit(join_runs([rows, one]))
    near, far = model.samples(
        jobs_of(workload=["new"] * 2, global_batch=[128, 2048], optimizer="sgd")
    )[0]
    assert near[1] == pytest.approx(5e5, rel=0.03)
    assert far[1] > near[1]
    assert far[2] / far[0] > near[2] / near[0]


def test_a_training_without_a_run_and_a_job_without_a_batch_have_a_reason() -> None:
    answer, reasons, _ = (
        Convergence()
        .fit(many())
        .samples(jobs_of(workload=["unknown", "net-1"], global_batch=[64, np.nan]))
    )
    assert np.isnan(answer).all()
    assert "no run of unknown reached a target" in reasons[0]
    assert "fill global_batch" in reasons[1]


def test_outside_the_measured_batches_it_warns_and_its_band_grows() -> None:
    model = Convergence().fit(many())
    jobs = jobs_of(workload=["net-1"] * 3, global_batch=[4096, 16384, 65536], optimizer="sgd")
    answer, _, doubts = model.samples(jobs)
    width = answer[:, 2] / answer[:, 0]
    assert width[0] < width[1] < width[2]
    assert doubts[0] == ""
    assert "known at batches of 32 to 4,096 alone" in doubts[1]
    assert model.predict(jobs).warnings == (doubts[2],)


def test_targets_are_trainings_of_their_own_and_a_blank_one_is_the_only_one() -> None:
    two = runs_of(
        workload=["net"] * 4, global_batch=[64, 256, 64, 256], target=["90 %", "90 %", "95 %", "95 %"],
        samples_to_target=[1e5, 1.2e5, 3e5, 4e5],
    )  # fmt: skip
    model = Convergence().fit(two)
    said, reasons, _ = model.samples(
        jobs_of(workload=["net"] * 2, global_batch=[64, 64], target=["95 %", ""])
    )
    assert said[0, 1] == pytest.approx(3e5, rel=0.1)
    assert "90 %; 95 %" in reasons[1]
    alone = Convergence().fit(two.take(np.arange(2)))
    assert alone.samples(jobs_of(workload=["net"], global_batch=[64]))[0][0, 1] == pytest.approx(
        1e5, rel=0.1
    )


def test_epochs_count_the_dataset_that_the_row_or_other_runs_say() -> None:
    runs = runs_of(
        workload=["a", "a", "b", "c"], global_batch=[64] * 4, epochs_to_target=[10, 20, 3, 5],
        samples_to_target=[1e5, np.nan, np.nan, np.nan], dataset_size=[np.nan, np.nan, 500, np.nan],
    )  # fmt: skip
    model = Convergence().fit(runs)
    said, reasons, _ = model.samples(jobs_of(workload=["a", "b", "c"], global_batch=[64] * 3))
    assert 1.0e5 < said[0, 1] < 2.0e5
    assert said[1, 1] == pytest.approx(1500, rel=0.05)
    assert "no run of c" in reasons[2]


def test_a_measured_noise_scale_says_where_batches_stop_to_help() -> None:
    def far(noise: float) -> float:
        runs = runs_of(
            workload=["net"],
            global_batch=[64],
            samples_to_target=[1e6],
            grad_sqr=[1.0],
            grad_var=[noise],
        )
        return float(
            Convergence().fit(runs).samples(jobs_of(workload=["net"], global_batch=[4096]))[0][0, 1]
        )

    assert far(100.0) > 1.5 * far(100_000.0)


def test_runs_without_a_target_are_refused_with_what_to_give() -> None:
    with pytest.raises(RequestError, match="samples_to_target"):
        Convergence().fit(runs_of(global_batch=[64, 128], step_time_s=[1.0, 2.0]))


def test_it_is_saved_and_read_back_the_same() -> None:
    model, jobs = Convergence().fit(many()), TestContract().make_jobs()
    again = Convergence.from_json(model.to_json())
    assert np.array_equal(again.samples(jobs)[0], model.samples(jobs)[0], equal_nan=True)


def test_evaluate_judges_samples_beside_times() -> None:
    found = evaluate({"many": many()}, [Convergence()], "leave-one-out:global_batch")
    score = found.of("convergence")
    assert (score.samples_rows, score.samples_answered) == (64, 64)
    assert score.samples_median_ape < 8
    assert 0.8 <= score.samples_coverage <= 1


def test_auto_learns_samples_beside_times_and_a_stated_length_comes_first() -> None:
    batch = np.tile([64.0, 128.0, 256.0, 512.0], 2)
    runs = runs_of(
        workload="net", devices=np.repeat([1, 2], 4).tolist(), global_batch=batch.tolist(),
        step_time_s=(0.01 + 1e-4 * batch).tolist(), samples_to_target=samples(batch).tolist(),
    )  # fmt: skip
    model = Auto(names=("ernest",)).fit(runs)
    answer = model.predict(jobs_of(workload=["net"], devices=[2], global_batch=[128]))
    assert answer.samples_to_target is not None
    assert answer.samples_to_target[0, 1] == pytest.approx(samples(np.array([128.0]))[0], rel=0.1)


@settings(max_examples=60, deadline=None)
@given(st.floats(-3, 12), st.floats(-1, 1.2), st.floats(-6, 8), st.floats(0, 14))
def test_slopes_of_the_growth_are_its_derivatives(c: float, p: float, s: float, x: float) -> None:
    form, at = np.array([c, p, s]), np.array([x])
    _, slopes = growth(at, form)
    for i in range(3):
        step = np.zeros(3)
        step[i] = 1e-6
        rise = (growth(at, form + step)[0] - growth(at, form - step)[0]) / 2e-6
        assert slopes[0, i] == pytest.approx(rise[0], rel=1e-4, abs=1e-7)


def test_the_usual_form_grows_with_the_batch_beyond_the_middle() -> None:
    rise, _ = growth(np.array([0.0, 3.0, 6.0]), FormPrior.usual().mean)
    assert rise[0] < rise[1] < rise[2]


def test_runs_of_one_learning_rate_rule_speak_for_it() -> None:
    """Trainings whose learning rate follows the batch in another way need more samples at every batch."""
    rules = np.repeat(["linear", "none"], len(BATCHES))
    factor = np.where(rules == "none", 1.5, 1.0)
    runs = runs_of(
        workload="net", optimizer="sgd", learning_rate_rule=rules.tolist(),
        global_batch=np.tile(BATCHES, 2).tolist(),
        samples_to_target=(samples(np.tile(BATCHES, 2)) * factor).tolist(),
    )  # fmt: skip
    asked = jobs_of(
        workload=["net"] * 2, optimizer=["sgd"] * 2, learning_rate_rule=["linear", "none"],
        global_batch=[384.0] * 2,
    )  # fmt: skip
    found = Convergence().fit(runs).samples(asked)[0][:, 1]
    assert found == pytest.approx(samples(np.array([384.0, 384.0])) * [1.0, 1.5], rel=0.05)
