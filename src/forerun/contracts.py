"""Contracts: five protocols, each with an exam in `forerun.testing`, and an optional one of predictors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from forerun.arrays import FloatArray
from forerun.domain.forecast import Forecasts
from forerun.domain.job import Job, Run
from forerun.domain.workload import Workload
from forerun.tables import Jobs, Runs


@runtime_checkable
class Predictor(Protocol):
    """Runs in, forecasts out: made, perhaps fitted (which returns a new one), then used.

    A predictor learns only from Runs and answers only Jobs. It uses physics, not prices. Searches call
    `predict` in two threads at once.
    """

    name: str

    def fit(self, runs: Runs) -> Predictor:
        """Return a new predictor fitted to the runs; this one does not change. Raises RequestError."""
        ...

    def declines(self, jobs: Jobs) -> list[str | None]:
        """Return for each job why it cannot be answered, or None where it can."""
        ...

    def predict(self, jobs: Jobs) -> Forecasts:
        """Return n forecasts for n jobs; a declined row carries its reason and NaN."""
        ...


@runtime_checkable
class LinearPredictor(Predictor, Protocol):
    """A predictor whose seconds are linear in its parameters, which is optional.

    `forerun suggest` designs runs from the features. Where its `laws` keep `theta` (k,) and
    `covariance` (k, k) for each kind of job, the error that the jobs share is computed from them.
    """

    def linear_features(self, jobs: Jobs) -> FloatArray:
        """Return what each of k parameters is multiplied by, (n, k), also before a fit; NaN where not stated."""
        ...


@runtime_checkable
class Searcher(Protocol):
    """Runs in, next jobs out. It keeps no state: all that it uses is in the runs it is given."""

    name: str

    def suggest(self, space: Jobs, runs: Runs | None) -> Jobs:
        """Return the jobs of the space to look at next; none left means that it is done."""
        ...


@runtime_checkable
class Runner(Protocol):
    """Job in, Run out, measured for real. A failure is a Run with its status, not an exception."""

    name: str

    def run(self, job: Job) -> Run:
        """Carry the job out and return what was measured."""
        ...


@runtime_checkable
class Reader(Protocol):
    """What a person has (a name, a file, a module) in, Workload out."""

    name: str

    def accepts(self, reference: str) -> bool:
        """Return whether this reader can read such a reference (by its form, not its content)."""
        ...

    def read(self, reference: str, **changes: Any) -> Workload:
        """Return the workload. Raises RequestError where it cannot be read."""
        ...


@runtime_checkable
class Store(Protocol):
    """Keeps runs with their origin, and gives back every one it has confirmed."""

    def add(self, runs: Iterable[Run]) -> Sequence[str]:
        """Keep the runs and return their keys; all of them are kept, or none."""
        ...

    def runs(self, **filters: Any) -> Runs:
        """Return the runs whose columns equal the filters."""
        ...
