"""Scavenger: what its page claims."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.advisor.elastic_choice import forecast_steps
from forerun.measure.noise import GradientNoise
from forerun.predictors.convergence import Convergence
from tests.predictors.laws.rows import jobs_of, runs_of


def squares(rng: np.random.Generator, workers: int, batch: int, phi: float) -> tuple[float, float]:
    """Return mean |g_k|^2 and |g|^2 of a step, of gradients whose noise scale is phi samples."""
    size = 400
    true = np.zeros(size)
    true[0] = 1.0
    each = true + rng.standard_normal((workers, size)) * np.sqrt(phi / size * workers / batch)
    return float(np.mean(np.sum(each**2, axis=1))), float(np.sum(each.mean(axis=0) ** 2))


def test_gamma_at_other_workers_and_batches_follows_from_one_measurement() -> None:
    rng, noise, phi = np.random.default_rng(0), GradientNoise(0.999), 300.0
    for _ in range(3000):
        noise.observe(*squares(rng, 4, 128, phi), 4, 128)
    for workers, batch in ((2, 64), (8, 256), (16, 512), (8, 2048)):
        measured = np.mean([squares(rng, workers, batch, phi) for _ in range(800)], axis=0)
        assert noise.gamma_at(workers, batch) == pytest.approx(measured[0] / measured[1], rel=0.1)


def test_steps_at_the_extremes_foretell_those_between() -> None:
    def seconds(workers: int, batch: int) -> float:
        return 0.002 * batch / workers + 0.01 * workers

    extremes = [(8, 384), (8, 1280), (20, 384), (20, 1280)]
    between = [(12, 384), (12, 768), (16, 1024), (8, 640)]
    found = forecast_steps("scavenger", {one: seconds(*one) for one in extremes}, between)
    assert found[:, 1] == pytest.approx([seconds(*one) for one in between], rel=0.04)


def test_samples_fall_or_rise_with_the_batch_as_the_runs_do() -> None:
    batches = 2.0 ** np.arange(5, 12)
    for law in (lambda b: 1e6 * (1 + (200 / b) ** 0.5), lambda b: 1e6 * (1 + b / 500)):
        runs = runs_of(
            workload="net", global_batch=batches.tolist(), samples_to_target=law(batches).tolist()
        )
        beyond = np.array([16.0, 4096.0])
        jobs = jobs_of(workload=["net"] * 2, global_batch=beyond.tolist())
        low, middle, high = Convergence().fit(runs).samples(jobs)[0].T
        assert middle == pytest.approx(law(beyond), rel=0.13)
        assert ((low <= law(beyond)) & (law(beyond) <= high)).all()
