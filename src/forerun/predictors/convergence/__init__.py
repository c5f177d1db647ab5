"""Samples until a target, by batch, and when a live training will reach it."""

from forerun.predictors.convergence.predictor import Convergence

__all__ = ["Convergence"]
