"""Bands: what leaving groups out says without a second fit is what a second fit says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forerun.domain.job import Job
from forerun.domain.plan import Plan
from forerun.predictors.analytic import AnalyticPredictor, Constants
from forerun.predictors.analytic.calibration.applying import (
    SHARED,
    _facts,
    left_out,
    run_counts,
    with_spread,
    without,
)
from forerun.predictors.analytic.calibration.fitting import Fit, fit_runs
from forerun.predictors.analytic.calibration.parameters import moved
from forerun.predictors.analytic.predictor import unnamed_prior
from forerun.tables import Jobs, Runs
from forerun.testing.samples import labelled, tiny_cluster, tiny_jobs, tiny_runs
from forerun.workloads.zoo import zoo_workload
from tests.predictors.analytic.calibration.test_fitting import lived, other_world


def fitted(runs: Runs) -> tuple[Constants, Fit]:
    """Return (fitted constants, before their spread is measured, and the fit)."""
    prior = unnamed_prior(runs.jobs, Constants())
    fit = fit_runs(prior, runs)
    constants = moved(prior, fit.parameters, fit.theta)
    return replace(constants, run_counts=run_counts(fit.jobs, prior)), fit


def test_left_out_errors_are_those_of_fits_without_the_group() -> None:
    """A workload left out by slopes errs as it does when the fit is done again without it."""
    runs = lived(tiny_jobs(), other_world(), noise=0.04)
    constants, fit = fitted(runs)
    left = left_out(constants, fit)
    by_slopes = left.error[left.split == "workload"]
    again = []
    names = runs.jobs.per_workload("name")
    for name in np.unique(names):
        ours = names == name
        other = AnalyticPredictor().fit(runs.take(~ours))
        found = other.predict(runs.jobs.take(ours)).seconds[:, 1]
        again.append(np.log(runs.step_seconds()[ours] / found))
    true = np.concatenate(again)
    in_sample = np.abs(fit.residual)
    assert np.median(np.abs(by_slopes)) > np.median(in_sample)
    assert np.abs(by_slopes - true).mean() < 0.4 * np.abs(true).mean()


def many_runs(factor: float = 1.5) -> Runs:
    """Return 960 runs on one device and 320 on another that takes `factor` times as long."""
    here = tiny_cluster(1, 4)
    clusters = [here, replace(here, device=replace(here.device, id="slow"))]
    jobs = tiny_jobs(tuple(clusters))
    often = np.where(jobs.cluster_index == 0, 30, 10)
    jobs = jobs.take(np.repeat(np.arange(len(jobs)), often))
    seconds = lived(jobs, other_world(), noise=0.05).step_seconds()
    slow = np.where(jobs.per_cluster("device.id") == "slow", factor, 1.0)
    return tiny_runs(jobs, step_time_s=seconds * slow)


def test_a_large_group_is_left_out_whole() -> None:
    """Of a device with 960 runs none helps to foresee the others, as in a fit without them."""
    runs = many_runs()
    constants, fit = fitted(runs)
    left = left_out(constants, fit)
    by_slopes = np.sort(left.error[left.split == "device"])
    assert len(by_slopes) == len(runs)
    device, again = runs.jobs.per_cluster("device.id"), []
    for name in np.unique(device):
        ours = device == name
        found = AnalyticPredictor().fit(runs.take(~ours)).predict(runs.jobs.take(ours))
        again.append(np.log(runs.step_seconds()[ours] / found.seconds[:, 1]))
    true = np.sort(np.concatenate(again))
    assert np.abs(by_slopes - true).mean() < 0.25 * np.abs(true).mean()


def test_both_ways_to_leave_a_group_out_agree() -> None:
    """Solved in as many equations as rows or as parameters, the errors left out are the same."""
    _, fit = fitted(many_runs())
    reach = fit.slopes @ fit.covariance
    group = np.flatnonzero(fit.jobs.per_cluster("device.id") == "slow")
    assert len(group) > fit.slopes.shape[1]
    pull = (reach[group] @ fit.slopes[group].T) * fit.weight[group]
    by_rows = np.linalg.solve(np.eye(len(group)) - pull, fit.residual[group])
    assert without(fit, reach, group) == pytest.approx(by_rows, abs=1e-6)


def test_doublings_count_from_what_is_left_of_many_large_runs() -> None:
    """Left out of 640 runs on 8 devices, the larger ones lie a doubling beyond those on 4."""
    jobs = tiny_jobs((tiny_cluster(1, 4), tiny_cluster(2, 4)))
    jobs = jobs.take(
        np.repeat(np.arange(len(jobs)), np.where(jobs.per_cluster("devices") > 4, 22, 3))
    )
    constants, fit = fitted(lived(jobs, other_world(), noise=0.03))
    left = left_out(constants, fit)
    exposed = left.exposed["scale"][left.split == "scale"]
    assert len(exposed) > 600
    assert (exposed == 1.0).all()


@pytest.mark.parametrize("noise", [0.02, 0.10])
def test_bands_cover_what_they_say_on_runs_that_were_not_seen(noise: float) -> None:
    """Of new runs of known jobs 85 % and more fall into a band that is little wider than them."""
    jobs = tiny_jobs()
    predictor = AnalyticPredictor().fit(lived(jobs, other_world(), noise))
    new = lived(jobs, other_world(), noise, seed=7).step_seconds()
    rows = predictor.predict(jobs).seconds
    inside = (new >= rows[:, 0]) & (new <= rows[:, 2])
    assert inside.mean() >= 0.85
    assert np.median(np.log(rows[:, 2] / rows[:, 0])) < 3.29 * (noise + 0.05)


def test_a_cause_that_no_runs_tell_apart_keeps_its_prior() -> None:
    """One device and one framework say nothing about other devices and frameworks."""
    constants, fit = fitted(lived(tiny_jobs(), other_world(), noise=0.03))
    spread = with_spread(constants, fit)
    assert spread.sigma_device == Constants().sigma_device
    assert spread.sigma_framework == Constants().sigma_framework
    assert spread.sigma_residual < Constants().sigma_residual


def test_a_device_that_departs_from_its_data_sheet_widens_the_next_ones_band() -> None:
    """Three devices that differ by more than their data sheets say teach `sigma_device`."""
    here = tiny_cluster(1, 4)
    # As far as a device's own constants can follow: beyond that it is noise to the fit.
    clusters, factors = [], (1.0, 1.35, 0.75)
    for i in range(len(factors)):
        device = replace(here.device, id=f"kind-{i}")
        clusters.append(replace(here, device=device))
    parts = [lived(tiny_jobs((c,)), other_world(), noise=0.01) for c in clusters]
    jobs = tiny_jobs(tuple(clusters))
    seconds = np.concatenate([p.step_seconds() * f for p, f in zip(parts, factors, strict=True)])
    runs = _runs(jobs, parts, seconds)
    constants, fit = fitted(runs)
    assert with_spread(constants, fit).sigma_device > 1.15 * Constants().sigma_device


def _runs(jobs: Jobs, parts: list[Runs], seconds: np.ndarray) -> Runs:
    """Return one set of runs on all clusters, each row with the seconds of its own cluster."""
    order = np.argsort(jobs.cluster_index, kind="stable")
    placed = np.empty(len(jobs))
    placed[order] = seconds
    assert len(jobs) == sum(len(p) for p in parts)
    return tiny_runs(jobs, step_time_s=placed)


def test_rows_that_err_alike_are_few_facts_and_others_are_many() -> None:
    """A group whose errors are all the same is little more than one fact; independent ones are more."""
    rng = np.random.default_rng(0)
    alike = [np.full(200, shift) for shift in rng.normal(0, 0.2, 12)]
    apart = [rng.normal(0, 0.2, 200) for _ in range(12)]
    assert max(_facts("device", alike)) < 1.3
    assert min(_facts("device", apart)) > 8.0
    few = _facts("device", alike[:2])
    assert 1.0 < few[0] < 1.0 / SHARED


def test_other_nets_say_nothing_of_convolutions_on_other_devices() -> None:
    """With one device, nets that all follow physics narrow the band of nets, not of devices."""
    nets = [replace(zoo_workload("resnet18", precision="fp32"), name=f"net-{i}") for i in range(6)]
    cluster = tiny_cluster(1, 4)
    jobs = labelled(Jobs.of([
        Job(net, cluster, Plan(dp=4, micro_batch=micro, global_batch=4 * micro))
        for net in nets for micro in (1, 2, 4, 8, 16, 32)
    ]))  # fmt: skip
    spread = with_spread(*fitted(lived(jobs, Constants(), noise=0.02)))
    assert spread.sigma_convolution_workload < 0.9 * Constants().sigma_convolution_workload
    assert spread.sigma_convolution_device == Constants().sigma_convolution_device


def test_one_kind_of_link_leaves_the_network_at_its_prior() -> None:
    """What one kind of link errs by says nothing of another; two kinds tell."""
    one = lived(tiny_jobs((tiny_cluster(1, 4),)), other_world(), noise=0.03)
    assert with_spread(*fitted(one)).sigma_network == pytest.approx(
        Constants().sigma_network, rel=1e-4
    )
    two = lived(tiny_jobs((tiny_cluster(1, 4), tiny_cluster(2, 4))), other_world(), noise=0.03)
    constants, fit = fitted(two)
    left = left_out(constants, fit)
    kinds = left.split == "link"
    assert kinds.sum() == len(two)
    known = left.exposed["network"][left.split == "workload"]
    assert left.exposed["network"][kinds].max() > 5.0 * known.max()
    assert with_spread(constants, fit).sigma_network != pytest.approx(
        Constants().sigma_network, rel=1e-4
    )
