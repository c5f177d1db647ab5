"""Ways of a fit: what is frozen stays, one setting is one, and normal errors heed every run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ideas import Idea, switched_off

from forerun.arrays import thinned
from forerun.predictors.analytic import Constants
from forerun.predictors.analytic.calibration import fitting
from forerun.predictors.analytic.calibration.fitting import fit_runs, pairs_of
from forerun.predictors.analytic.calibration.parameters import moved
from forerun.tables import Runs
from forerun.testing.samples import tiny_jobs
from tests.predictors.analytic.calibration.test_fitting import lived, medians, other_world


def test_what_is_frozen_is_not_among_the_parameters() -> None:
    """A frozen family stays at its prior, and others take up what runs say of it."""
    runs = lived(tiny_jobs(), other_world())
    families = ("tensor_efficiency", "workload_scale")
    with switched_off(Idea("x", frozen=families)):
        fit = fit_runs(Constants(), runs, {})
    assert not set(families) & {p.family for p in fit.parameters}
    after = moved(Constants(), fit.parameters, fit.theta)
    assert after.tensor_efficiency == Constants().tensor_efficiency
    assert after.workload_scale == {}
    assert after.device_compute


def test_heavy_tails_shrug_at_a_wild_run_and_normal_errors_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run that took fifty times as long moves a fit of normal errors far more."""
    jobs = tiny_jobs()
    runs = lived(jobs, other_world(), noise=0.02)
    seconds = runs.step_seconds().copy()
    seconds[3] *= 50
    wild = Runs(runs.jobs, runs.table.with_columns(step_time_s=seconds))

    def change(degrees: float) -> float:
        monkeypatch.setattr(fitting, "DEGREES", degrees)
        fits = (fit_runs(Constants(), r, {}) for r in (runs, wild))
        made = [moved(Constants(), fit.parameters, fit.theta) for fit in fits]
        calm, shaken = (medians(constants, jobs) for constants in made)
        return float(np.median(np.abs(shaken / calm - 1)))

    assert change(4.0) < 0.02
    assert change(1e6) > 3.0 * change(4.0)


def test_one_setting_has_no_shift(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where settings are one there are as many slopes as parameters."""
    runs = lived(tiny_jobs(), other_world())
    half = np.where(np.arange(len(runs)) % 2, "here", "there").astype(object)
    jobs = runs.jobs
    labels = jobs.labels.with_columns(cluster=half) if jobs.labels is not None else None
    two = Runs(replace(jobs, labels=labels), runs.table.with_columns(cluster=half))
    apart = fit_runs(Constants(), two, {})
    monkeypatch.setattr(fitting, "SETTING_SD", 0.0)
    one = fit_runs(Constants(), two, {})
    assert apart.slopes.shape[1] == len(apart.parameters) + 2
    assert one.slopes.shape[1] == len(one.parameters)


def test_wider_priors_hold_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same runs move constants farther from priors that are ten times as wide."""
    runs = lived(tiny_jobs(), other_world(), noise=0.02)
    usual = fit_runs(Constants(), runs, {})
    monkeypatch.setattr(fitting, "PRIOR_WIDTH", 10.0)
    wide = fit_runs(Constants(), runs, {})
    assert np.abs(wide.theta).sum() > np.abs(usual.theta).sum()


@pytest.mark.parametrize("most", [1, 5, 20])
def test_thinned_rows_are_no_more_than_asked(most: int) -> None:
    """Every (workload, cluster) gives rows in turn until there are enough."""
    jobs = tiny_jobs()
    rows = thinned(pairs_of(jobs), most)
    assert len(rows) == min(most, len(jobs))
    pairs = {(int(jobs.workload_index[r]), int(jobs.cluster_index[r])) for r in rows}
    every = {(int(w), int(c)) for w, c in zip(jobs.workload_index, jobs.cluster_index, strict=True)}
    assert len(pairs) == min(most, len(every))
