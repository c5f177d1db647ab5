"""Limits: how high a forecast peak may be before runs run out of memory, by a robust probit.

P(run ran) = (1 - failing) Phi((log(usable / peak) + shift) / sigma): the shift moves what is usable
of a device, sigma is how sharp the limit is, and a share of the runs failed for other reasons (a
crash is easily recorded as out of memory). The posterior is taken on a grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.domain.quantiles import normal_cdf

FloatArray = NDArray[np.float64]
# Log standard deviations of the usable share: of all frameworks together, of one about them.
USABLE_SD = (0.04, 0.06)
USUAL_SIGMA, SIGMA_SD = 0.12, 0.5  # median and log standard deviation of the prior of sigma
USUAL_FAILURES, WRONGLY_RAN = 0.03, 0.005
_SHIFTS = np.linspace(-0.4, 0.4, 81)
_SIGMAS = np.exp(np.linspace(np.log(0.03), np.log(0.4), 14))
_FAILING = (0.003, 0.01, 0.03, 0.1, 0.2, 0.3)


@dataclass(frozen=True, slots=True)
class Limit:
    """A log shift of what is usable, its standard deviation, and how sharp the limit is.

    joint_sd: of a framework's shift and the shared one together.
    """

    shift: float
    sd: float
    sigma: float = float("nan")
    joint_sd: float = float("nan")


def find_limits(
    cases: Mapping[str, tuple[FloatArray, NDArray[np.bool_], FloatArray]],
) -> tuple[Limit, dict[str, Limit]]:
    """Return the shift that all frameworks share, and that of each about it.

    cases: framework to (log(usable / peak) by the priors, ran out of memory, weight), each (n,).
    """
    alone = {key: _alone(*case) for key, case in cases.items()}
    general_sd, own_sd = USABLE_SD
    weights = np.array([1.0 / (own_sd**2 + limit.sd**2) for limit in alone.values()])
    shifts = np.array([limit.shift for limit in alone.values()])
    precision = float(weights.sum()) + general_sd**-2.0
    general = Limit(float(weights @ shifts) / precision, precision**-0.5)
    own = {}
    for key, limit in alone.items():
        trust = own_sd**2 / (own_sd**2 + limit.sd**2)
        # What is left of the shared shift's doubt moves against each framework's own.
        sd = np.hypot(np.sqrt(trust) * limit.sd, trust * general.sd)
        wide = np.hypot(own_sd, general_sd)
        joint = wide * limit.sd / np.hypot(wide, limit.sd)
        shift = trust * (limit.shift - general.shift)
        own[key] = Limit(shift, float(sd), limit.sigma, float(joint))
    return general, own


def _alone(slack: FloatArray, ran_out: NDArray[np.bool_], weight: FloatArray) -> Limit:
    """Return a framework's limit by its own runs, with a prior of sigma and of failures only."""
    fits = normal_cdf((slack + _SHIFTS[:, None, None]) / _SIGMAS[:, None])  # (shifts, sigmas, n)
    prior = -0.5 * (np.log(_SIGMAS / USUAL_SIGMA) / SIGMA_SD) ** 2
    logs = []
    for failing in _FAILING:
        ran = WRONGLY_RAN + (1.0 - failing - WRONGLY_RAN) * fits
        log = np.log(np.where(ran_out, 1.0 - ran, ran)) @ weight
        logs.append(log + prior - 0.5 * np.log(failing / USUAL_FAILURES) ** 2)
    chance = np.exp(np.array(logs) - np.max(logs)).sum(axis=0)
    by_shift, by_sigma = chance.sum(axis=1) / chance.sum(), chance.sum(axis=0) / chance.sum()
    shift = float(by_shift @ _SHIFTS)
    sd = float(np.sqrt(by_shift @ (_SHIFTS - shift) ** 2))
    return Limit(shift, max(sd, 0.005), float(np.exp(by_sigma @ np.log(_SIGMAS))))
