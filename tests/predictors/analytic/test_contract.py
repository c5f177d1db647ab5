"""The analytic predictor keeps the contract of every predictor, fitted or not."""

from __future__ import annotations

from forerun.predictors.analytic import AnalyticPredictor
from forerun.testing import PredictorContract
from forerun.testing.samples import tiny_runs


class TestAnalytic(PredictorContract):
    """By its priors alone."""

    def make_predictor(self) -> AnalyticPredictor:
        return AnalyticPredictor()


class TestFittedAnalytic(PredictorContract):
    """After a fit."""

    def make_predictor(self) -> AnalyticPredictor:
        return AnalyticPredictor().fit(tiny_runs(mfu=0.4))
