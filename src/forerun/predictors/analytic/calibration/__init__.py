"""Calibration: the constants that runs identify, by robust maximum a posteriori."""

from forerun.predictors.analytic.calibration.applying import calibrated
from forerun.predictors.analytic.calibration.fitting import MAX_ROWS, Fit, fit_runs
from forerun.predictors.analytic.calibration.learned import Learned, learned_from
from forerun.predictors.analytic.calibration.manner import Manner
from forerun.predictors.analytic.calibration.memory import MemoryFit, fit_memory

__all__ = [
    "MAX_ROWS",
    "Fit",
    "Learned",
    "Manner",
    "MemoryFit",
    "calibrated",
    "fit_memory",
    "fit_runs",
    "learned_from",
]
