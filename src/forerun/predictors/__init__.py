"""Predictors: jobs become forecasts; each file is one mechanism."""
