"""Exams that ship with the package: what passes one may plug in."""

from __future__ import annotations

from forerun.testing.exams import (
    PredictorContract,
    ReaderContract,
    RunnerContract,
    SearcherContract,
    StoreContract,
)

__all__ = [
    "PredictorContract", "ReaderContract", "RunnerContract", "SearcherContract", "StoreContract",
]  # fmt: skip
