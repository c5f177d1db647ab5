"""Auto: with runs given and no predictor named, the runs choose which predictors answer."""

from forerun.predictors.choice.auto import Auto

__all__ = ["Auto"]
