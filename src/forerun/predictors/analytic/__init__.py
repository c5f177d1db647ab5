"""The analytic predictor: physics with no measurements, in columns."""

from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.predictor import AnalyticPredictor

__all__ = ["AnalyticPredictor", "Constants"]
