"""Experiment: what one technique with its parameters came to, and what all of one group of runs did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.predictors.regression.augment import Features
from forerun.predictors.regression.models import Model, settled

Parameters = Mapping[str, Any]

FITS = "fits"  # the scores that are of no set of rows


@dataclass(frozen=True)
class Fitted:
    """A model of some of the features."""

    model: Model
    places: tuple[int, ...]

    @property
    def converged(self) -> bool:
        """Whether the search of its parameters ended by itself."""
        return settled(self.model)

    def predict(self, x: FloatArray) -> FloatArray:
        """Return seconds of n rows of all features (n, k), (n,)."""
        return self.model.predict(x[:, list(self.places)])


@dataclass(frozen=True)
class Experiment:
    """One technique with its parameters, and how it did.

    Attributes:
        scores: by set (`training`, `hp_selection`, `validation`, and `beyond` where there are runs
            on more devices than others): mape (percent), rmse (seconds) and r2; under `fits`, the
            share of its fits that `converged`.
    """

    technique: str
    parameters: Parameters
    scores: Mapping[str, Mapping[str, float]]

    @property
    def error(self) -> float:
        """MAPE on the rows set aside for hyper-parameters, which alone decides; percent."""
        return float(self.scores["hp_selection"]["mape"])

    @property
    def converged(self) -> bool:
        """Whether every fit of it did."""
        return self.scores.get(FITS, {}).get("converged", 1.0) == 1.0


@dataclass(frozen=True)
class Outcome:
    """What the experiments of one group of runs came to.

    Attributes:
        features: of the runs.
        winner: fitted on everything.
        experiments: all of them, the best first.
        judged: rows set aside for validation, positions; `foretold`: what the winner, fitted
            without them, said of them, seconds.
        apart: what the winner said of every row, fitted without its configuration, seconds, (n,).
        far: who answers beyond the runs, fitted on everything; `far_by`: its experiment.
        growth: log standard deviation that a doubling of devices beyond the runs adds.
    """

    features: Features
    winner: Fitted
    experiments: tuple[Experiment, ...]
    judged: NDArray[np.int64]
    foretold: FloatArray
    apart: FloatArray
    far: Fitted
    far_by: Experiment
    growth: float


def figures(pairs: Sequence[tuple[FloatArray, FloatArray]]) -> dict[str, float]:
    """Return MAPE in percent, RMSE in seconds and R2 of forecasts and facts."""
    said = np.concatenate([a for a, _ in pairs])
    facts = np.concatenate([b for _, b in pairs])
    off = said - facts
    total = float(np.sum((facts - facts.mean()) ** 2))
    with np.errstate(over="ignore", invalid="ignore"):
        return {
            "mape": float(np.nan_to_num(100 * np.mean(np.abs(off) / facts), nan=np.inf)),
            "rmse": float(np.sqrt(np.mean(off**2))),
            "r2": 1.0 - float(np.sum(off**2)) / total if total > 0 else float("nan"),
        }
