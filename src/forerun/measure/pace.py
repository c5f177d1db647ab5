"""Pace: how long what is left of some work takes, with a band, by how long its pieces took so far."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from forerun.domain.quantiles import LEVELS

_DRAWS = 2000
_WIDEST = 50.0  # of a logarithm: what is beyond is no time of any work
_PRIOR_PIECES = 4.0  # that what was believed of their spread before weighs as much as
Band = tuple[float, float, float]  # quantiles, as `LEVELS`


@dataclass
class Pace:
    """The logarithms of what pieces of work took over what was forecast of each.

    They are normal about a mean; mean and spread are learned together (a normal-inverse-gamma prior; Gelman et al.,
    Bayesian Data Analysis, section 3.3). prior: log standard deviation of a forecast before any piece has ended, half
    of whose variance all pieces share; NaN where nothing is believed: then two pieces have to end first.
    """

    prior: float = math.nan
    logs: list[float] = field(default_factory=list)

    def count(self, took: float, forecast: float = 1.0) -> None:
        """Take in a piece that has ended."""
        self.logs.append(math.log(max(took, 1e-9) / max(forecast, 1e-9)))

    def left(self, forecast: Any, share: Any = 1.0, most: float = math.inf) -> Band | None:
        """Return how long pieces that are left take together, as quantiles, None where nothing is known.

        forecast: of them all; one figure, or draws (n,). share: the sum of their squares over the square of their sum
        (1/n of n equal ones): one figure, or a draw for each. most: they take no longer.
        """
        count, believed = len(self.logs), int(math.isfinite(self.prior))
        weight, free = count + believed, count - 1 + (_PRIOR_PIECES + 1) * believed
        if free <= 0:
            return None
        logs, rng = np.array(self.logs or [0.0]), np.random.default_rng(0)
        spread = np.square(logs - logs.mean()).sum() + believed * count / weight * logs.mean() ** 2
        spread += _PRIOR_PIECES * self.prior**2 / 2 if believed else 0.0
        variance = np.minimum(spread / rng.chisquare(free, _DRAWS), _WIDEST)
        centre = logs.mean() * count / weight + np.sqrt(variance / weight) * rng.standard_normal(_DRAWS)  # fmt: skip
        total, share = (np.resize(np.asarray(v, np.float64), _DRAWS) for v in (forecast, share))
        # The sum of log-normal pieces as one with their mean and variance (Fenton 1960).
        of_sum = np.log1p(np.expm1(variance) * share)
        log = centre + (variance - of_sum) / 2 + np.sqrt(of_sum) * rng.standard_normal(_DRAWS)
        seconds = total * np.exp(np.clip(log, -_WIDEST, _WIDEST))
        low, middle, high = np.minimum(np.quantile(seconds, LEVELS), max(most, 0.0)).tolist()
        return low, middle, high
