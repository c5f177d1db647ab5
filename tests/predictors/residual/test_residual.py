"""The residual learner: it finds what physics leaves, where left-out runs show that it helps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from forerun.predictors.analytic import AnalyticPredictor, Constants
from forerun.predictors.residual import ResidualPredictor
from forerun.tables import Jobs, Runs
from forerun.testing import PredictorContract
from forerun.testing.samples import tiny_cluster, tiny_jobs, tiny_runs, tiny_workload


class TestResidual(PredictorContract):
    """By the priors of physics alone."""

    def make_predictor(self) -> ResidualPredictor:
        return ResidualPredictor()

    def make_runs(self) -> Runs:
        runs = tiny_runs()
        return runs.take(np.arange(0, len(runs), 2))  # each fit of it is several of physics


class TestFittedResidual(TestResidual):
    """After a fit."""

    def make_predictor(self) -> ResidualPredictor:
        return ResidualPredictor().fit(tiny_runs(mfu=0.4))


def world(cell: float, noise: float = 0.01) -> tuple[Jobs, Runs]:
    """Return jobs, and runs in a world where one micro-batch takes `cell` times what physics says."""
    jobs = tiny_jobs(global_batches=(32, 64, 128, 256))
    truth = AnalyticPredictor(Constants()).predict(jobs, detail=False).seconds[:, 1]
    rng = np.random.default_rng(0)
    factor = np.where(jobs.plans.micro_batch == 4, cell, 1.0)
    seconds = truth * factor * np.exp(rng.normal(0.0, noise, len(jobs)))
    return jobs, tiny_runs(jobs, step_time_s=seconds)


def errors(predictor: AnalyticPredictor | ResidualPredictor, runs: Runs) -> float:
    """Return the mean absolute log error on runs."""
    found = predictor.predict(runs.jobs, detail=False).seconds[:, 1]
    return float(np.abs(np.log(found / runs.step_seconds())).mean())


def test_it_finds_what_physics_cannot_say() -> None:
    """Jobs of one micro-batch are 1.3 times slower: the residual halves the error of physics."""
    jobs, runs = world(cell=1.3)
    order = np.random.default_rng(1).permutation(len(jobs))
    taught, asked = runs.take(np.sort(order[::2])), runs.take(np.sort(order[1::2]))
    physics, learned = AnalyticPredictor().fit(taught), ResidualPredictor().fit(taught)
    assert errors(learned, asked) <= errors(physics, asked)


def test_where_there_is_nothing_to_find_it_does_no_harm() -> None:
    """In a world as physics says, its answers stay within 2 % of those of physics."""
    jobs, runs = world(cell=1.0)
    physics, learned = AnalyticPredictor().fit(runs), ResidualPredictor().fit(runs)
    one, two = (p.predict(jobs, detail=False).seconds[:, 1] for p in (physics, learned))
    assert np.abs(np.log(one / two)).max() < 0.02


def test_outside_its_domain_it_is_silent() -> None:
    """Of another device and another workload it says exactly what physics says."""
    _, runs = world(cell=1.3)
    learned = ResidualPredictor().fit(runs)
    cluster = tiny_cluster(1, 4)
    stranger = replace(cluster, device=replace(cluster.device, id="another", generation="new"))
    jobs = tiny_jobs((stranger,), (tiny_workload("far", hidden=4096, layers=24),))
    alone = learned.physics.predict(jobs).seconds
    assert np.array_equal(learned.predict(jobs).seconds, alone)


def test_what_is_saved_answers_alike() -> None:
    jobs, runs = world(cell=1.3)
    learned = ResidualPredictor().fit(runs)
    again = ResidualPredictor.from_json(learned.to_json())
    assert np.allclose(again.predict(jobs).seconds, learned.predict(jobs).seconds, rtol=1e-9)
