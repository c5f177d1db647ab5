"""What a fit learned: every constant with its unit, its interval and the runs that inform it."""

from __future__ import annotations

import numpy as np

from forerun.domain.quantiles import Z95
from forerun.predictors.analytic.calibration.fitting import Fit
from forerun.predictors.analytic.calibration.parameters import bounds_of, moved, value_of
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.saving import Learned

# A run speaks of a constant when doubling the constant moves its step by a hundredth or more.
SPEAKS = 0.01
_UNITS = {
    "tile": "elements", "roofline_power": "power", "group_width_power": "power",
    "pointwise_flops": "FLOP an element",
    "expert_imbalance": "times", "link_latency": "times", "device_host": "times",
    "wave_flops_per_element": "FLOP/s an element", "layer_power": "power", "overlap_power": "power",
    "framework.shard_power": "power", "server_power": "power",
}  # fmt: skip


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
