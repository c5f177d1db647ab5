"""What a fit learned: every constant with its unit, its interval and the runs that spoke of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from forerun.domain.quantiles import Z95
from forerun.predictors.analytic.calibration.fitting import Fit
from forerun.predictors.analytic.calibration.parameters import moved, value_of
from forerun.predictors.analytic.constants import Constants

# A posterior as wide as this share of its prior has learned nothing worth the name.
UNIDENTIFIED = 0.9
# A run speaks of a constant when doubling the constant moves its step by a hundredth or more.
SPEAKS = 0.01
_UNITS = {
    "tile": "elements", "roofline_power": "power", "group_width_power": "power",
    "pointwise_flops": "FLOP an element", "framework.accumulate_bytes": "bytes a parameter",
    "expert_imbalance": "times", "link_latency": "times", "device_host": "times",
    "wave_flops_per_element": "FLOP/s an element", "layer_power": "power", "overlap_power": "power",
    "framework.shard_power": "power", "server_power": "power",
}  # fmt: skip


@dataclass(frozen=True)
class Learned:
    """One constant after a fit.

    value with its 5-95 % interval low-high, prior: all in `unit`. log_sd: posterior log standard
    deviation, prior_log_sd the prior's. runs: how many spoke of it, sources: from where.
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

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "sources": list(self.sources), "identified": self.identified}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Learned:
        """Return what `to_dict` wrote."""
        fields = {k: v for k, v in values.items() if k != "identified"}
        return Learned(**{**fields, "sources": tuple(fields["sources"])})


def learned_from(prior: Constants, fit: Fit) -> tuple[Learned, ...]:
    """Return what a fit says of each constant that its runs could speak of."""
    after = moved(prior, fit.parameters, fit.theta)
    labels = fit.jobs.labels
    sources = np.array([""] * len(fit.jobs)) if labels is None else labels.texts("source")
    result = []
    for i, (parameter, sd) in enumerate(zip(fit.parameters, fit.sd, strict=True)):
        speaks = np.abs(fit.slopes[:, i]) > SPEAKS
        value = value_of(after, parameter)
        reach = float(np.exp(Z95 * sd))
        unit = (
            "s" if parameter.family.endswith("seconds") else _UNITS.get(parameter.family, "share")
        )
        result.append(
            Learned(
                parameter.name, unit, value, value / reach, value * reach,
                value_of(prior, parameter), float(sd), parameter.prior_sd, int(speaks.sum()),
                tuple(sorted({str(s) for s in sources[speaks]} - {""})),
            )
        )  # fmt: skip
    return tuple(result)
