"""Calibration: the constants that runs identify, by robust maximum a posteriori."""

from forerun.predictors.analytic.calibration.applying import calibrated, learned_from
from forerun.predictors.analytic.calibration.fitting import MAX_ROWS, Fit, fit_runs
from forerun.predictors.analytic.calibration.memory import fit_memory
from forerun.predictors.analytic.saving import Learned

__all__ = [
    "MAX_ROWS",
    "Fit",
    "Learned",
    "calibrated",
    "fit_memory",
    "fit_runs",
    "learned_from",
]
