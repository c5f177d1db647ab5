"""Calibration: the constants that runs identify, by robust maximum a posteriori."""

from forerun.predictors.analytic.calibration.applying import calibrated
from forerun.predictors.analytic.calibration.fitting import Fit, fit_runs

__all__ = ["Fit", "calibrated", "fit_runs"]
