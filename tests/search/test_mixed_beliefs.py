"""Joint errors of a mixture of predictors, and of a law that is known by its covariance alone."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.catalog import load_catalog
from forerun.domain.quantiles import log_sigma
from forerun.predictors.choice import Auto
from forerun.predictors.laws.ernest import Ernest
from forerun.search.suggestion import (
    beliefs_of,
    joint_beliefs,
    leading,
    most_accurate,
)
from forerun.tables import Runs, Table
from forerun.workloads.rows import runs_from_table


def runs_of(devices: list[int], batches: list[int], noise: float = 0.0) -> Runs:
    rng = np.random.default_rng(0)
    d, b = (a.ravel().astype(float) for a in np.meshgrid(devices, batches))
    seconds = (0.01 + 2e-3 * b / d + 3e-3 * d) * np.exp(noise * rng.standard_normal(len(d)))
    table = Table.from_rows([
        {"workload": "mynet", "device": "mygpu", "devices": x, "global_batch": y, "step_time_s": s}
        for x, y, s in zip(d, b, seconds, strict=True)
    ])  # fmt: skip
    return runs_from_table(table, load_catalog())


def test_a_mixture_has_its_own_bands_and_its_leader_s_correlations() -> None:
    runs = runs_of([1, 2, 4, 8], [32, 64, 128], 0.05)
    asked = runs_of([2, 8, 16], [64, 256]).jobs
    auto = Auto(names=("ernest", "linear-scaling")).fit(runs)
    name = leading(auto, asked)
    assert name in ("ernest", "linear-scaling")
    found = beliefs_of(auto, asked)
    sigma = log_sigma(auto.predict(asked).seconds)
    assert np.sqrt(np.diag(found.covariance)) == pytest.approx(sigma)
    assert f"those of {name}" in found.source
    assert np.linalg.eigvalsh(found.covariance).min() > -1e-9
    for i in range(len(sigma)):  # what a run teaches never makes anything less sure
        assert (np.diag(found.after(i).covariance) <= np.diag(found.covariance) + 1e-12).all()


def test_who_is_no_mixture_is_asked_as_before() -> None:
    runs = runs_of([1, 2, 4, 8], [32, 64, 128], 0.05)
    fitted = Ernest().fit(runs)
    assert leading(fitted, runs.jobs) == ""
    one, two = (f(fitted, runs.jobs).covariance for f in (beliefs_of, joint_beliefs))
    assert np.array_equal(one, two)


def test_no_run_is_picked_once_enough_is_known() -> None:
    runs = runs_of([1, 2, 4, 8], [32, 64, 128], 0.05)
    asked = runs_of([16, 32], [64, 256]).jobs
    beliefs = joint_beliefs(Ernest().fit(runs), asked)
    every = np.arange(len(asked))
    prices = np.ones(len(asked))
    now = float(np.diag(beliefs.covariance).mean())
    assert most_accurate(beliefs, every, every, prices, 100.0, enough=now) == []
    some = most_accurate(beliefs, every, every, prices, 100.0, enough=now / 4)
    assert 0 < len(some) <= len(most_accurate(beliefs, every, every, prices, 100.0))
    assert some[-1].left <= now / 4
