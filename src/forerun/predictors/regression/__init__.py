"""Regression: times learned from runs alone, by Gaussian processes and by the Ray study's pipeline."""
