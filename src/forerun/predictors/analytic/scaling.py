"""The first form of calibration: one scale of all efficiencies, and the band that goes with it.

Full calibration (a constant for each device, framework and operation class) replaces this.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from forerun.errors import RequestError
from forerun.predictors.analytic.constants import Constants
from forerun.tables import Runs

if TYPE_CHECKING:
    from forerun.predictors.analytic.predictor import AnalyticPredictor

# The prior counts as this many runs: a single odd run moves the scale by a third of its error.
PRIOR_RUNS = 2.0


def scaled_constants(predictor: AnalyticPredictor, runs: Runs) -> Constants:
    """Return constants whose efficiencies are divided by the runs' median error ratio.

    The median log ratio of measured to predicted seconds, shrunk toward 0 as if `PRIOR_RUNS` runs
    had agreed with the prior; the base band is the spread that remains, between a third of the
    prior band and three times it.

    Raises:
        RequestError: no run has a measured step and a forecast.
    """
    measured = runs.step_seconds()
    forecast = predictor.predict(runs.jobs, detail=False)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(measured / forecast.seconds[:, 1])
    ratio = ratio[np.isfinite(ratio)]
    if not len(ratio):
        raise RequestError(
            f"fitting on {len(runs)} runs", "none has a measured step that physics can speak of",
            "give runs with step_time_s or samples_per_s, status ok, of known workloads",
        )  # fmt: skip
    weight = len(ratio) / (len(ratio) + PRIOR_RUNS)
    shift = float(np.median(ratio)) * weight
    spread = float(np.median(np.abs(ratio - shift))) * 1.4826
    old = predictor.constants
    sigma = np.sqrt((1 - weight) * old.sigma_base**2 + weight * spread**2)
    factor = float(np.exp(-shift))

    def scaled(values: dict[str, float]) -> dict[str, float]:
        return {k: v * factor for k, v in values.items()}

    return replace(
        old,
        tensor_efficiency=scaled(dict(old.tensor_efficiency)),
        vector_efficiency=scaled(dict(old.vector_efficiency)),
        bandwidth_efficiency=scaled(dict(old.bandwidth_efficiency)),
        link_efficiency=scaled(dict(old.link_efficiency)),
        frameworks={
            k: replace(
                v, host_seconds=v.host_seconds / factor, step_seconds=v.step_seconds / factor
            )
            for k, v in old.frameworks.items()
        },
        launch_seconds=old.launch_seconds / factor,
        sigma_base=float(np.clip(sigma, old.sigma_base / 3, old.sigma_base * 3)),
    )
