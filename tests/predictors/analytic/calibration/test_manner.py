"""Ways of a fit: what is frozen stays, one setting is one, and normal errors heed every run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ideas import Idea, switched_off
from numpy.typing import NDArray

from forerun.arrays import FloatArray, thinned
from forerun.predictors.analytic import AnalyticPredictor, Constants
from forerun.predictors.analytic.calibration import fitting
from forerun.predictors.analytic.calibration.fitting import fit_runs, pairs_of
from forerun.predictors.analytic.calibration.parameters import moved
from forerun.tables import Runs, Table
from forerun.testing.samples import tiny_jobs
from tests.predictors.analytic.calibration.test_fitting import lived, medians, other_world


def test_what_is_frozen_is_not_among_the_parameters() -> None:
    """A frozen family stays at its prior, and others take up what runs say of it."""
    runs = lived(tiny_jobs(), other_world())
    families = ("tensor_efficiency", "workload_scale")
    with switched_off(Idea("x", frozen=families)):
        fit = fit_runs(Constants(), runs)
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
        fits = (fit_runs(Constants(), r) for r in (runs, wild))
        made = [moved(Constants(), fit.parameters, fit.theta) for fit in fits]
        calm, shaken = (medians(constants, jobs) for constants in made)
        return float(np.median(np.abs(shaken / calm - 1)))

    assert change(4.0) < 0.02
    assert change(1e6) > 3.0 * change(4.0)


def _labelled(runs: Runs, cluster: NDArray[np.object_]) -> Runs:
    labels = (runs.jobs.labels or Table({}, len(runs))).with_columns(cluster=cluster)
    return Runs(replace(runs.jobs, labels=labels), runs.table.with_columns(cluster=cluster))


def test_a_setting_keeps_its_scale_and_one_alone_has_none() -> None:
    """Runs here take 1.3 times as long as there; a job asked here does too, elsewhere neither."""
    runs = lived(tiny_jobs(), other_world(), noise=0.02)
    here = np.arange(len(runs)) % 2 == 0
    slower = runs.step_seconds() * np.where(here, 1.3, 1.0)
    runs = Runs(runs.jobs, runs.table.with_columns(step_time_s=slower))
    two = _labelled(runs, np.where(here, "here", "there").astype(object))
    fitted = AnalyticPredictor().fit(two)

    def median(label: str) -> FloatArray:
        asked = _labelled(runs, np.full(len(runs), label, dtype=object)).jobs
        return fitted.predict(asked, detail=False).seconds[:, 1]

    assert np.median(median("here") / median("there")) == pytest.approx(1.3, rel=0.05)
    assert np.median(np.abs(median("here") / slower - 1)[here]) < 0.06
    assert (median("elsewhere") < median("here")).all()
    assert (median("elsewhere") > median("there")).all()
    one = _labelled(runs, np.full(len(runs), "here", dtype=object))
    assert AnalyticPredictor().fit(one).constants.setting_scale == {}


def test_wider_priors_hold_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same runs move constants farther from priors that are ten times as wide."""
    runs = lived(tiny_jobs(), other_world(), noise=0.02)
    usual = fit_runs(Constants(), runs)
    monkeypatch.setattr(fitting, "PRIOR_WIDTH", 10.0)
    wide = fit_runs(Constants(), runs)
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
