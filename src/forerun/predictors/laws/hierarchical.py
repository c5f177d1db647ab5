"""Hierarchical: all-reduce physics whose parameters are pooled over apps and clusters.

One law (`hierarchical_law`) for every app on every cluster; what one teaches of networks and of
an app's shape serves the others, so that one to eight runs on a new cluster are enough to start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.domain.forecast import QUANTITIES, Forecasts
from forerun.domain.quantiles import spread
from forerun.predictors.laws.hierarchical_asked import Asked
from forerun.predictors.laws.hierarchical_law import COUNT
from forerun.predictors.laws.hierarchical_model import Known, Model
from forerun.predictors.laws.hierarchical_near import as_saved, of_saved
from forerun.predictors.laws.hierarchical_rows import HierarchicalRows
from forerun.predictors.laws.hierarchical_teach import taught
from forerun.predictors.laws.law_rows import measured
from forerun.predictors.saved import read_saved
from forerun.tables import Jobs, Runs, sorted_runs

FloatArray = NDArray[np.float64]
VERSION = 3
PARTS = ("compute", "communication")
_ARRAYS = ("theta", "shared", "covariance", "alone", "gain", "tree", "effects")
_WHOLE = ("tree", "effects")


@dataclass(frozen=True)
class Hierarchical:
    """The fitted law; see `hierarchical_law` for its equation.

    Attributes:
        quantity: what it predicts: the time that most of its runs have.
        model: parameters and their covariance, None before it was fitted.
        warnings: what a reader of its answers should know.
    """

    quantity: str = "step"
    model: Model | None = None
    warnings: tuple[str, ...] = field(default=())

    name = "hierarchical"

    def fit(self, runs: Runs) -> Hierarchical:
        """Return a predictor with the law of these runs alone.

        Raises:
            RequestError: fewer than `LEAST_RUNS` runs can teach it.
        """
        runs = sorted_runs(runs)
        seconds = {quantity: measured(runs, quantity) for quantity in QUANTITIES}
        quantity = max(QUANTITIES, key=lambda name: int(np.isfinite(seconds[name]).sum()))
        model, posterior, notes = taught(runs, seconds[quantity], quantity)
        said = () if posterior.converged else (
            f"the fit had not settled after {posterior.rounds} rounds; the best found serves",
        )  # fmt: skip
        return Hierarchical(quantity, model, (*notes, *said))

    def declines(self, jobs: Jobs) -> list[str | None]:
        """Return why a job has no answer, or None."""
        return list(self._asked(jobs).declined)

    def predict(self, jobs: Jobs) -> Forecasts:
        """Return seconds of n jobs, compute and communication as parts; memory is not answered."""
        blank = replace(
            Forecasts.blank(len(jobs), self.name, self.quantity), warnings=self.warnings
        )
        asked = self._asked(jobs)
        parts = np.full((len(jobs), len(PARTS)), np.nan)
        for part in asked.chunks():
            out, sigma = asked.outcome(part)
            middle = np.exp(out.log_seconds)
            blank.seconds[part.rows] = spread(middle, sigma)
            alone = np.minimum(np.exp(out.log_compute), middle)
            parts[part.rows] = np.stack([alone, middle - alone], axis=1)
            blank.distance[part.rows] = asked.distance(part)
        named = {name: parts[:, i] for i, name in enumerate(PARTS)}
        return replace(blank, declined=asked.declined, parts=named)

    def log_covariance(self, jobs: Jobs) -> FloatArray:
        """Return the covariance of the errors of log seconds of n jobs, (n, n).

        The diagonal is the whole log variance of a run about its forecast; off it stands what two
        jobs share: the parameters. Declined rows are NaN.
        """
        asked = self._asked(jobs)
        result = np.full((len(jobs), len(jobs)), np.nan)
        rows = np.flatnonzero(asked.answered)
        if self.model is None or not len(rows):
            return result
        width = len(self.model.covariance)
        pulls, own = np.zeros((len(jobs), width)), np.zeros(result.shape)
        slopes = np.zeros((len(jobs), self.model.theta.shape[1]))
        variance = np.zeros(len(jobs))
        for part in asked.chunks():
            out, sigma = asked.outcome(part)
            assert out.slopes is not None
            slopes[part.rows] = out.slopes
            pulls[part.rows] = out.slopes @ self.model.spread(part.served)
            variance[part.rows] = sigma**2
        group = asked.groups
        for i in np.unique(group[rows]):
            mine = rows[group[rows] == i]
            own[np.ix_(mine, mine)] = slopes[mine] @ self.model.alone[i] @ slopes[mine].T
        both = pulls[rows] @ self.model.covariance @ pulls[rows].T + own[np.ix_(rows, rows)]
        np.fill_diagonal(both, variance[rows])
        result[np.ix_(rows, rows)] = both
        return result

    @property
    def formulas(self) -> dict[str, str]:
        """The law of each app on each cluster with units and intervals, and what limits it."""
        from forerun.predictors.laws.hierarchical_words import formulas

        return {} if self.model is None else formulas(self.model, self.quantity)

    def _asked(self, jobs: Jobs) -> Asked:
        return Asked(self.model, HierarchicalRows(jobs, self.quantity))

    def to_json(self) -> str:
        """Return the law as JSON text."""
        saved: dict[str, Any] = {
            "predictor": self.name, "version": VERSION, "quantity": self.quantity,
            "warnings": self.warnings, "model": None,
        }  # fmt: skip
        if self.model is not None:
            arrays = {name: getattr(self.model, name).tolist() for name in _ARRAYS}
            groups = [asdict(group) for group in self.model.groups]
            near = [as_saved(one) for one in self.model.near]
            places = list(self.model.placements)
            saved["model"] = {"groups": groups, "near": near, "placements": places, **arrays}
        return json.dumps(saved)

    @staticmethod
    def from_json(text: str) -> Hierarchical:
        """Return a saved predictor.

        Raises:
            RequestError: not this predictor's JSON, or of another version.
        """

        def made(saved: Mapping[str, Any]) -> Hierarchical:
            model = None if saved["model"] is None else _model(saved["model"])
            return Hierarchical(str(saved["quantity"]), model, tuple(saved["warnings"]))

        return read_saved(text, "a hierarchical law", VERSION, made)


def _model(saved: Mapping[str, Any]) -> Model:
    groups = tuple(_known(entry) for entry in saved["groups"])
    arrays: dict[str, Any] = {
        name: np.array(saved[name], dtype=np.int64 if name in _WHOLE else np.float64)
        for name in _ARRAYS
    }
    if arrays["theta"].shape != (len(groups), COUNT):
        raise ValueError(f"a group has {COUNT} parameters")
    near = tuple(of_saved(one) for one in saved["near"])
    return Model(groups, placements=tuple(saved["placements"]), near=near, **arrays)


def _known(entry: Mapping[str, Any]) -> Known:
    names = {name: tuple(entry[name]) for name in ("app", "cluster", "own_batch", "rates")}
    spans = {
        name: None if entry[name] is None else tuple(entry[name])
        for name in ("batch", "cores", "wire")
    }
    return Known(**{**entry, **names, **spans})
