"""Exams that ship with the package: what passes one may plug in."""

from __future__ import annotations

from forerun.testing.predictors import PredictorContract
from forerun.testing.readers import ReaderContract
from forerun.testing.runners import RunnerContract
from forerun.testing.searchers import SearcherContract
from forerun.testing.stores import StoreContract

__all__ = [
    "PredictorContract", "ReaderContract", "RunnerContract", "SearcherContract", "StoreContract",
]  # fmt: skip
