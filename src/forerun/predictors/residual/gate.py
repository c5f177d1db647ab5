"""Gate: for which kinds of novelty the correction speaks, and how sure it then is.

It speaks of a kind where trials show that it helps: the mean over independent units (parts of the
plans, workloads, devices ...) of the error before less the error after is above zero by
`T_NEEDED` of its standard errors (95 % one-sided with four units, more with more of them), at least
`LEAST_GAIN` of the error before, over at least `LEAST_UNITS` units. A few units decide nothing, and
then physics answers alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from forerun.arrays import FloatArray
from forerun.domain.quantiles import Z95
from forerun.predictors.residual.trials import Trial

LEAST_UNITS = 4
T_NEEDED = 2.4
LEAST_GAIN = 0.05
# One run counts as no more than wrong by all of its time: runs of another kind decide nothing.
MOST_ERROR = 1.0
DEGREES = 4.0
# The 95 % quantile of Student-t errors with four degrees of freedom, in units of their scale.
T_QUANTILE = 2.132
# Priors of the two parts of a band: medians, and their log standard deviation.
LEAST_SIGMA, OF_PHYSICS, PRIOR_SD = 0.02, 1.0, 0.7
_LEAST = np.geomspace(0.003, 0.3, 24)
_SHARES = np.geomspace(0.2, 4.0, 20)
# What the rows of one unit count for at most, in independent facts.
MOST_FACTS = 4.0
TAIL_COUNT = 6.0  # so many facts weigh as much as the prior that tails are normal


@dataclass(frozen=True)
class Band:
    """How sure a corrected forecast is: variance least^2 + share^2 unseen sigma^2.

    sigma: physics' own log standard deviation; unseen: see `Trial`. low, high: how far the 5 % and
    the 95 % quantile lie, in units of a normal distribution's.
    """

    least: float
    share: float
    low: float
    high: float


@dataclass(frozen=True)
class Verdict:
    """What trials of one kind of novelty say.

    units: how many; before, after: mean absolute error, as a share of the measured time, of physics
    and of the corrected forecast; t: gain over its standard error; speaks: whether the correction
    is used; band: of what it then says.
    """

    units: int
    before: float
    after: float
    t: float
    speaks: bool
    band: Band

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Verdict:
        """Return what `to_dict` wrote."""
        return Verdict(**{**values, "band": Band(**values["band"])})


def verdict(trial: Trial, sigma: FloatArray) -> Verdict:
    """Return what a trial says; sigma: of physics about each of its rows, were they new, (m,)."""
    before, after = _error(trial.before), _error(trial.after)
    counts = np.bincount(trial.unit).astype(np.float64)
    gains = np.bincount(trial.unit, before - after) / counts
    units = len(counts)
    spread = float(gains.std(ddof=1)) / units**0.5 if units > 1 else np.inf
    t = float(gains.mean()) / max(spread, 1e-9)
    mean_before, mean_after = float(before.mean()), float(after.mean())
    enough = mean_before - mean_after >= LEAST_GAIN * mean_before
    speaks = bool(units >= LEAST_UNITS and t >= T_NEEDED and enough)
    weight = (np.minimum(counts, MOST_FACTS) / counts)[trial.unit]
    band = band_of(trial.after, trial.unseen, sigma, weight)
    return Verdict(units, mean_before, mean_after, min(t, 1e6), speaks, band)


def _error(log_ratio: FloatArray) -> FloatArray:
    """Return absolute errors as shares of the measured time, (m,)."""
    return np.minimum(np.abs(np.expm1(-np.clip(log_ratio, -5.0, 5.0))), MOST_ERROR)


def band_of(error: FloatArray, unseen: FloatArray, sigma: FloatArray, weight: FloatArray) -> Band:
    """Return the band that log errors ask for, all (m,): maximum a posteriori on a grid."""
    unit = Z95 / T_QUANTILE  # the scale of Student-t errors whose 90 % band is a normal one's
    spread = (unseen * sigma**2)[None, :]
    best, least, share = -np.inf, LEAST_SIGMA, OF_PHYSICS
    for candidate in _LEAST:
        variance = (candidate**2 + _SHARES[:, None] ** 2 * spread) * unit**2
        log_t = -0.5 * np.log(variance) - 0.5 * (DEGREES + 1.0) * np.log1p(
            error[None, :] ** 2 / (DEGREES * variance)
        )
        prior = np.log(candidate / LEAST_SIGMA) ** 2 + np.log(_SHARES / OF_PHYSICS) ** 2
        score = log_t @ weight - 0.5 * prior / PRIOR_SD**2
        at = int(score.argmax())
        if score[at] > best:
            best, least, share = float(score[at]), float(candidate), float(_SHARES[at])
    z = error / np.sqrt(least**2 + share**2 * unseen * sigma**2)
    return Band(least, share, *_tails(z, weight))


def _tails(z: FloatArray, weight: FloatArray) -> tuple[float, float]:
    """Return how many times Z95 lies (below, above) the middle at the 5 % and 95 % quantiles."""
    order = np.argsort(z)
    height = (np.cumsum(weight[order]) - 0.5 * weight[order]) / weight.sum()
    trust = weight.sum() / (weight.sum() + TAIL_COUNT)

    def tail(level: float, sign: float) -> float:
        quantile = sign * float(np.interp(level, height, z[order])) / Z95
        return float(np.clip(1.0 + trust * (quantile - 1.0), 0.6, 4.0))

    return tail(0.05, -1.0), tail(0.95, 1.0)
