"""Manner: how a fit is made, so that ablations can ask what each part of it is worth."""

from __future__ import annotations

from dataclasses import dataclass

DEGREES = 4.0  # of freedom of the Student-t errors
SETTING_SD = 0.12
# n rows of one workload on one cluster count as n to the power 1 - this: their plans differ, and
# their clock, host and mistakes are the same.
SHARED_POWER = 0.5


@dataclass(frozen=True)
class Manner:
    """How a fit is made.

    frozen: families of parameters (see `parameters.PRIOR_SD`) that stay at their priors.
    degrees: of freedom of the Student-t errors; many make them normal.
    setting_sd: log standard deviation of what the runs of one setting share; 0: settings are one.
    shared_power: see `SHARED_POWER`. prior_width: standard deviations of priors over the usual.
    """

    frozen: frozenset[str] = frozenset()
    degrees: float = DEGREES
    setting_sd: float = SETTING_SD
    shared_power: float = SHARED_POWER
    prior_width: float = 1.0


USUAL = Manner()
