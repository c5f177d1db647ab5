"""The residual predictor: physics, and what is learned of its errors where that helps."""

from forerun.predictors.residual.predictor import ResidualPredictor

__all__ = ["ResidualPredictor"]
