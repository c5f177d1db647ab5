"""What a fit learned: every constant with its unit, its interval and the runs that spoke of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from forerun.domain.quantiles import Z95
from forerun.predictors.analytic.calibration.fitting import Fit
from forerun.predictors.analytic.calibration.parameters import bounds_of, moved, value_of
from forerun.predictors.analytic.constants import Constants

# A posterior as wide as this share of its prior has learned nothing worth the name.
UNIDENTIFIED = 0.9
# So many prior standard deviations from its prior a constant takes up what the model gets wrong.
FAR_OFF = 3.0
# A run speaks of a constant when doubling the constant moves its step by a hundredth or more.
SPEAKS = 0.01
_UNITS = {
    "tile": "elements", "roofline_power": "power", "group_width_power": "power",
    "pointwise_flops": "FLOP an element",
    "expert_imbalance": "times", "link_latency": "times", "device_host": "times",
    "wave_flops_per_element": "FLOP/s an element", "layer_power": "power", "overlap_power": "power",
    "framework.shard_power": "power", "server_power": "power",
}  # fmt: skip


@dataclass(frozen=True)
class Learned:
    """One constant after a fit.

    value with its 5-95 % interval low-high, prior: all in `unit`. log_sd: posterior log standard
    deviation, prior_log_sd that with which the fit began: the prior's, or what earlier runs had left
    of it. runs: how many spoke of it, sources: from where.
    """

    name: str
    unit: str
    value: float
    low: float
    high: float
    prior: float
    log_sd: float
    prior_log_sd: float
    runs: int
    sources: tuple[str, ...]

    @property
    def identified(self) -> bool:
        """Whether the runs say more than the prior did."""
        return self.log_sd <= UNIDENTIFIED * self.prior_log_sd

    @property
    def sds_from_prior(self) -> float:
        """How many of the prior's log standard deviations the value lies from it; NaN where it is 0."""
        if not (self.value > 0 and self.prior > 0 and self.prior_log_sd > 0):
            return float("nan")
        return abs(math.log(self.value / self.prior)) / self.prior_log_sd

    @property
    def absorbs_misfit(self) -> bool:
        """Whether it went where no such constant lies: it takes up what else is wrong."""
        return self.sds_from_prior > FAR_OFF

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        far = self.sds_from_prior
        return {
            **asdict(self), "sources": list(self.sources), "identified": self.identified,
            "sds_from_prior": far if math.isfinite(far) else None,
            "absorbs_misfit": self.absorbs_misfit,
        }  # fmt: skip

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Learned:
        """Return what `to_dict` wrote."""
        given = {f.name: values[f.name] for f in fields(Learned)}
        return Learned(**{**given, "sources": tuple(given["sources"])})


def learned_from(prior: Constants, fit: Fit) -> tuple[Learned, ...]:
    """Return what a fit says of each constant that its runs could speak of."""
    after = moved(prior, fit.parameters, fit.theta)
    labels = fit.jobs.labels
    sources = np.array([""] * len(fit.jobs)) if labels is None else labels.texts("source")
    result = []
    columns = zip(fit.parameters, fit.sd, fit.prior_sd, strict=True)
    for i, (parameter, sd, prior_sd) in enumerate(columns):
        speaks = np.abs(fit.slopes[:, i]) > SPEAKS
        value = value_of(after, parameter)
        reach = float(np.exp(Z95 * sd))
        least, most = bounds_of(parameter)
        unit = (
            "s" if parameter.family.endswith("seconds") else _UNITS.get(parameter.family, "share")
        )
        result.append(
            Learned(
                parameter.name, unit, value, max(value / reach, least), min(value * reach, most),
                value_of(prior, parameter), float(sd), float(prior_sd), int(speaks.sum()),
                tuple(sorted({str(s) for s in sources[speaks]} - {""})),
            )
        )  # fmt: skip
    return tuple(result)
