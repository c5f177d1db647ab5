"""Calibration finds constants that runs identify, and leaves the others at their priors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forerun.domain.hardware import Link
from forerun.domain.plan import Plan
from forerun.domain.quantiles import Z95
from forerun.errors import RequestError
from forerun.predictors.analytic import AnalyticPredictor, Constants
from forerun.predictors.analytic.calibration.applying import learned_from
from forerun.predictors.analytic.calibration.fitting import fit_runs, refitted
from forerun.predictors.analytic.calibration.parameters import (
    Parameter,
    moved,
    parameters_for,
    value_of,
)
from forerun.predictors.analytic.families import bounds_of
from forerun.predictors.analytic.saving import Learned
from forerun.tables import Jobs, Runs
from forerun.testing.samples import tiny_cluster, tiny_jobs, tiny_runs
from tests.predictors.analytic.physics import transformer


def medians(constants: Constants, jobs: Jobs) -> np.ndarray:
    """Return the median steps of jobs under constants that know the sample framework."""
    constants = replace(
        constants, run_counts={**constants.run_counts, "framework:sample-framework": 1.0}
    )
    return AnalyticPredictor(constants).predict(jobs, detail=False).seconds[:, 1]


def lived(jobs: Jobs, truth: Constants, noise: float = 0.0, seed: int = 0) -> Runs:
    """Return runs as a world with other constants would give them."""
    rng = np.random.default_rng(seed)
    seconds = medians(truth, jobs) * np.exp(rng.normal(0, noise, len(jobs)))
    return tiny_runs(jobs, step_time_s=seconds)


def other_world() -> Constants:
    """Return constants of a world with slower products and links."""
    prior = Constants()
    return replace(
        prior,
        tensor_efficiency={**prior.tensor_efficiency, "matmul": 0.45},
        link_efficiency={**prior.link_efficiency, "nvlink": 0.35, "ethernet": 0.2},
    )


def test_a_fit_foresees_jobs_of_its_world_that_it_has_not_seen() -> None:
    """Fitted on half the jobs of another world, it is within 3 % on the other half."""
    jobs = tiny_jobs()
    order = np.random.default_rng(1).permutation(len(jobs))
    taught, asked = np.sort(order[::2]), np.sort(order[1::2])
    truth = other_world()
    fitted = AnalyticPredictor().fit(lived(jobs, truth).take(taught))
    found = fitted.predict(jobs.take(asked)).seconds[:, 1]
    expected = medians(truth, jobs.take(asked))
    blind = medians(Constants(), jobs.take(asked))
    assert np.median(np.abs(found / expected - 1)) < 0.03
    assert np.median(np.abs(blind / expected - 1)) > 0.10


def test_bands_narrow_with_runs_and_widen_away_from_them() -> None:
    """No runs: wide. Twenty: narrow on that device and framework, and wide again on another."""
    jobs = tiny_jobs()
    blind = AnalyticPredictor()
    fitted = blind.fit(lived(jobs, other_world(), noise=0.03))

    def width(predictor: AnalyticPredictor, asked: Jobs) -> float:
        rows = predictor.predict(asked).seconds
        return float(np.median(rows[:, 2] / rows[:, 0]))

    stranger = tiny_cluster(2, 4)
    stranger = replace(stranger, device=replace(stranger.device, id="another", generation="new"))
    elsewhere = tiny_jobs((stranger,))
    assert width(fitted, jobs) < 0.6 * width(blind, jobs)
    assert width(fitted, elsewhere) > 1.3 * width(fitted, jobs)
    assert fitted.predict(elsewhere).distance.min() > fitted.predict(jobs).distance.max()


def test_distance_is_one_for_physics_alone_and_near_zero_beside_runs() -> None:
    """The figure that a person is shown keeps its legend."""
    jobs = tiny_jobs((tiny_cluster(1, 4),))
    runs = lived(jobs, other_world())
    assert AnalyticPredictor().predict(jobs).distance == pytest.approx(1.1)  # two doublings
    assert AnalyticPredictor().fit(runs).predict(jobs).distance.max() < 0.35


def test_a_wild_run_does_not_move_the_fit() -> None:
    """One run of thirty that took fifty times as long moves the median by less than 5 %."""
    jobs = tiny_jobs()
    runs = lived(jobs, other_world(), noise=0.02)
    seconds = runs.step_seconds().copy()
    seconds[3] *= 50
    wild = Runs(runs.jobs, runs.table.with_columns(step_time_s=seconds))
    calm, shaken = (AnalyticPredictor().fit(r).predict(jobs).seconds[:, 1] for r in (runs, wild))
    assert np.median(np.abs(shaken / calm - 1)) < 0.05


def test_what_runs_do_not_speak_of_stays_at_its_prior() -> None:
    """Runs on one device leave links and expert traffic alone, and say so."""
    jobs = tiny_jobs((tiny_cluster(1, 1),))
    fit = fit_runs(Constants(), lived(jobs, other_world()))
    names = {p.name for p in fit.parameters}
    assert not any(name.startswith("link_efficiency") for name in names)
    assert "expert_exposed" not in names
    loose = [entry.name for entry in learned_from(Constants(), fit) if not entry.identified]
    still = [t for p, t in zip(fit.parameters, fit.theta, strict=True) if p.name in loose]
    assert loose
    assert np.abs(still).max() < 0.15


def test_no_step_of_zero_moves_anything() -> None:
    """The parameters at zero are the constants themselves."""
    jobs = Jobs.of(list(tiny_jobs()))
    parameters = parameters_for(jobs)
    same = moved(Constants(), parameters, np.zeros(len(parameters)))
    assert np.allclose(medians(same, jobs), medians(Constants(), jobs), rtol=1e-12)


def test_runs_without_a_measured_step_are_refused_with_words() -> None:
    """Runs that all ran out of memory teach no speed."""
    runs = tiny_runs(tiny_jobs())
    dead = Runs(runs.jobs, runs.table.with_columns(status=np.full(len(runs), "oom", dtype=object)))
    with pytest.raises(RequestError, match="measured step"):
        AnalyticPredictor().fit(dead)


def test_three_runs_sharpen_a_workload_of_ones_own() -> None:
    """After three runs of a model the fourth is within 10 % where physics alone was 40 % off."""
    workload = transformer(name="mine")
    cluster = tiny_cluster(1, 4)
    plans = [Plan(dp=4, micro_batch=m, global_batch=4 * m * k) for m, k in ((1, 1), (2, 1), (4, 2))]
    truth = replace(Constants(), tensor_efficiency={**Constants().tensor_efficiency, "matmul": 0.4})
    from forerun.domain.job import Job

    three = Jobs.of([Job(workload, cluster, plan) for plan in plans])
    fourth = Jobs.of([Job(workload, cluster, Plan(dp=2, tp=2, micro_batch=4, global_batch=64))])
    fitted = AnalyticPredictor().fit(lived(three, truth))
    error = abs(fitted.predict(fourth).seconds[0, 1] / medians(truth, fourth)[0] - 1)
    blind = abs(medians(Constants(), fourth)[0] / medians(truth, fourth)[0] - 1)
    assert error < 0.10 < blind


def test_runs_that_are_all_off_alike_are_no_outliers() -> None:
    """Three runs that take a twelfth of their forecasts move those of a fourth job by nearly as much."""
    from forerun.domain.job import Job

    cluster = replace(tiny_cluster(4, 1), inter=Link("ethernet", 1e-5, 25e9))
    jobs = Jobs.of([
        Job(transformer(name="mine"), cluster, Plan(dp=4, micro_batch=m, global_batch=4 * m))
        for m in (1, 1, 1, 2)
    ])  # fmt: skip
    three, true = jobs.take(np.arange(3)), medians(Constants(), jobs) / 12
    fitted = AnalyticPredictor().fit(tiny_runs(three, step_time_s=true[:3]))
    low, middle, _ = fitted.predict(jobs).seconds[3]
    assert low < true[3]
    assert middle < 1.4 * true[3]


def test_what_a_second_fit_could_move_is_what_the_first_had_left() -> None:
    """From settled constants the prior's width printed is that of this fit, not the first one's."""
    runs = lived(tiny_jobs(), other_world(), noise=0.02)
    first = AnalyticPredictor().fit(runs)
    second = {e.name: e for e in first.fit(runs.take(np.arange(0, len(runs), 9))).learned}
    before = {e.name: e for e in first.learned}
    settled = [n for n, entry in before.items() if entry.log_sd < 0.5 * entry.prior_log_sd]
    assert len(settled) > 2
    for name in settled:
        assert second[name].prior_log_sd < 0.7 * before[name].prior_log_sd
        assert second[name].prior == pytest.approx(before[name].value)
        assert second[name].log_sd <= second[name].prior_log_sd * (1 + 1e-9)


def test_intervals_keep_to_what_a_constant_can_be() -> None:
    """No share of a peak above what no unit passes, no power of a norm below 1."""
    truth = replace(other_world(), gather_exposed=0.98, overlap_power=1.02)
    jobs = tiny_jobs()
    zero = Jobs(jobs.workloads, jobs.clusters, jobs.workload_index, jobs.cluster_index,
                replace(jobs.plans, zero_stage=np.ones_like(jobs.plans.zero_stage)),
                labels=jobs.labels)  # fmt: skip
    entries = AnalyticPredictor().fit(lived(zero, truth, noise=0.02)).learned
    checked = 0
    for entry in entries:
        parameter = Parameter(entry.name.partition("[")[0])
        least, most = bounds_of(parameter.name)
        assert least <= entry.low <= entry.high <= most
        checked += entry.value * np.exp(Z95 * entry.log_sd) > most
    assert checked  # the interval would have passed what is possible


def test_the_fullest_expert_carries_no_less_than_the_mean() -> None:
    """Runs of experts that are faster than physics move something else."""
    parameter = Parameter("expert_imbalance")
    after = moved(Constants(), (parameter,), np.array([-3.0]))
    assert after.expert_imbalance == 1.0
    assert moved(Constants(), (parameter,), np.array([0.5])).expert_imbalance > 1.9


def test_a_constant_far_from_its_prior_is_marked() -> None:
    """Three prior standard deviations are the mark, whichever way."""
    entry = Learned("tile", "elements", 32.0, 30.0, 34.0, 32.0, 0.05, 0.5, 9, ())
    assert not entry.absorbs_misfit
    for sign in (-1.0, 1.0):
        near, far = (replace(entry, value=32.0 * np.exp(sign * d * 0.5)) for d in (2.9, 3.1))
        assert not near.absorbs_misfit
        assert far.absorbs_misfit
        assert far.to_dict()["sds_from_prior"] == pytest.approx(3.1)
    assert not replace(entry, value=0.0, prior=0.0).absorbs_misfit


@pytest.mark.parametrize("family", ["link_efficiency", "link_latency", "generation_factor"])
def test_a_fit_starts_where_prediction_stands_for_a_key_without_a_constant(family: str) -> None:
    """A link or generation that no table has is moved from what forecasts take it to be."""
    prior = Constants()
    known = {**getattr(prior, family), "unknown": 0.31, "ada": 0.77}
    constants = replace(prior, **{family: known})
    key = "ada lovelace" if family == "generation_factor" else "carrier-pigeon"
    here = tiny_cluster(2, 4)
    clusters = (replace(here, inter=replace(here.inter, kind=key)),)
    if family == "generation_factor":
        clusters = (replace(here, device=replace(here.device, generation=key)),)
    jobs = tiny_jobs(clusters)
    parameter = Parameter(family, key)
    for theta in (1e-9, 0.2):
        trial = moved(constants, (parameter,), np.array([theta]))
        expected = value_of(constants, parameter) * np.exp(theta)
        assert value_of(trial, parameter) == pytest.approx(expected)
    near = moved(constants, (parameter,), np.array([1e-9]))
    np.testing.assert_allclose(medians(near, jobs), medians(constants, jobs), rtol=1e-6)


def test_a_part_fitted_from_the_whole_finds_what_it_finds_alone() -> None:
    """Two thirds of the runs forecast all jobs within 1 %, whichever way they are fitted."""
    jobs = tiny_jobs()
    runs = lived(jobs, other_world(), noise=0.03)
    part = np.flatnonzero(np.arange(len(jobs)) % 3 > 0)
    alone = fit_runs(Constants(), runs.take(part))
    found = refitted(fit_runs(Constants(), runs), part)
    seconds = [medians(moved(Constants(), f.parameters, f.theta), jobs) for f in (alone, found)]
    assert np.array_equal(found.target, alone.target)
    assert np.abs(np.log(seconds[1] / seconds[0])).max() < 0.01
