"""What a predictor believes of many jobs together: by what it states, its causes, or its law."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forerun.advisor import Advisor
from forerun.domain.forecast import Forecasts
from forerun.domain.quantiles import log_sigma
from forerun.errors import RequestError
from forerun.predictors.laws.ernest import Ernest
from forerun.predictors.options import started
from forerun.search.suggestion import joint_beliefs
from forerun.tables import Jobs, Runs
from tests.predictors.laws.rows import jobs_of, runs_of


def sort_runs() -> Runs:
    size, machines = np.meshgrid([1e5, 2e5, 4e5], [1, 2, 4])
    size, machines = size.ravel(), machines.ravel()
    seconds = 2 + 1e-4 * size / machines + 0.5 * np.log(machines)
    noise = np.random.default_rng(0).normal(0, 0.03, len(size))
    return runs_of(devices=machines, dataset_size=size, epoch_time_s=seconds * np.exp(noise))


class Stating:
    """A predictor of one size of band, which states its joint errors where it is told to."""

    name = "stating"

    def __init__(self, sigma: float) -> None:
        self.sigma = sigma

    def fit(self, runs: Runs) -> Stating:
        return self

    def declines(self, jobs: Jobs) -> list[str | None]:
        return [None] * len(jobs)

    def predict(self, jobs: Jobs) -> Forecasts:
        blank = Forecasts.blank(len(jobs), self.name)
        reach = np.exp(1.6448536 * self.sigma * np.array([-1.0, 0.0, 1.0]))
        return replace(
            blank, seconds=np.outer(np.ones(len(jobs)), reach),
            declined=np.full(len(jobs), None, dtype=object),
        )  # fmt: skip


class Joint(Stating):
    """The same, with errors that all jobs share."""

    def log_covariance(self, jobs: Jobs) -> np.ndarray:
        return np.full((len(jobs), len(jobs)), self.sigma**2)


def test_what_a_predictor_states_is_taken() -> None:
    jobs = jobs_of(devices=[1, 2, 4], dataset_size=[1e5, 1e5, 1e5])
    found = joint_beliefs(Joint(0.2), jobs)
    assert found.covariance == pytest.approx(0.04)
    assert "states" in found.source


def test_bands_alone_make_like_jobs_alike_and_say_that_this_is_assumed() -> None:
    jobs = jobs_of(devices=[1, 2, 16], dataset_size=[1e5, 1e5, 1e5])
    found = joint_beliefs(Stating(0.2), jobs)
    assert np.diag(found.covariance) == pytest.approx(0.04)
    assert found.covariance[0, 1] > found.covariance[0, 2] > 0
    assert "assumed" in found.source


def test_no_bands_are_told() -> None:
    with pytest.raises(RequestError, match="without a band"):
        joint_beliefs(Stating(0.0), jobs_of(devices=[1, 2], dataset_size=[1e5, 1e5]))


def test_a_law_keeps_to_its_bands_and_like_jobs_err_alike() -> None:
    runs = sort_runs()
    fitted = Ernest().fit(runs)
    jobs = jobs_of(devices=[8, 8, 16], dataset_size=[4e5, 4.1e5, 1e5])
    found = joint_beliefs(fitted, jobs)
    band = log_sigma(fitted.predict(jobs).seconds) ** 2
    assert np.diag(found.covariance) == pytest.approx(band)
    rho = found.covariance[0, 1] / np.sqrt(found.covariance[0, 0] * found.covariance[1, 1])
    assert rho > 0.1
    assert np.linalg.eigvalsh(found.covariance)[0] >= -1e-12


def test_the_causes_of_the_analytic_model_share_a_device_and_not_two() -> None:
    advisor = Advisor()
    jobs = Jobs.of([
        advisor.predict("resnet50", cluster, global_batch=512).job
        for cluster in ("1x8xa100-sxm-80gb", "2x8xa100-sxm-80gb", "2x8xv100-sxm2-16gb")
    ])  # fmt: skip
    found = joint_beliefs(started("analytic"), jobs)
    rho = found.covariance / np.sqrt(np.outer(np.diag(found.covariance), np.diag(found.covariance)))
    assert rho[0, 1] > rho[0, 2] > 0
    assert np.diag(rho) == pytest.approx(1.0)
    assert np.linalg.eigvalsh(found.covariance)[0] >= -1e-12


def test_a_run_of_a_job_leaves_of_its_error_the_noise_of_a_measurement() -> None:
    found = joint_beliefs(Stating(0.3), jobs_of(devices=[1, 4], dataset_size=[1e5, 1e5]))
    after = found.after(0)
    assert after.covariance[0, 0] == pytest.approx(found.noise, rel=0.01)
    assert after.covariance[1, 1] < found.covariance[1, 1]
