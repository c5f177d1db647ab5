"""Uncertainty of an answer: how wide its band, and how far it lies from what was measured.

Independent causes add as variances of the log: what is new (workload, device, framework), what of
the step rests on less certain constants (host, network, pipeline), what is known only in part, and
the noise that remains beside runs of the very job. Runs narrow the causes that they speak of, by
how much of them they have seen, and calibration measures how much each cause is worth: see
`calibration.spread`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from forerun.domain.quantiles import normal_cdf
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.rows import Rows

FloatArray = NDArray[np.float64]
_NETWORK = (
    "tensor comm", "expert comm", "context comm", "data comm", "pipeline comm", "parameter server",
)  # fmt: skip
_HOST = ("host", "overhead", "input")
_PIPELINE = ("pipeline bubble", "imbalance")


def exposures(
    rows: Rows, parts: Mapping[str, FloatArray], known: Mapping[str, FloatArray]
) -> dict[str, FloatArray]:
    """Return how much each cause concerns a step, (n,) each, 0 where it does not.

    The log variance of a step is the sum over causes of sigma^2 times this; a cause's sigma is
    `constants.sigma_<cause>`.

    known: what `rows.taught` says.
    """
    total = np.maximum(sum(parts.values(), np.zeros(len(rows))), 1e-12)

    def share(names: tuple[str, ...]) -> FloatArray:
        part = sum((parts[name] for name in names), np.zeros(len(rows))) / total
        return np.asarray(part**2)

    work, node = rows.work, rows.node
    workload, device = known["workload_taught"], known["device_taught"]
    framework = known["framework_taught"]
    new = sum((1.0 - taught) ** 2 for taught in (workload, device, framework)) / 3.0
    loose = (1.0 - work["detailed"]) + work["unknown_share"]
    return {
        "residual": np.ones(len(rows)),
        "setting": (1.0 - known["setting_taught"]) ** 2,
        # What n runs leave of a spread falls with n, so its square is what counts here.
        "workload": (1.0 - workload) ** 2,
        "device": (1.0 - device) ** 2,
        "framework": (1.0 - framework) ** 2,
        "convolution": new * (1.0 - work["transformer"]) * work["detailed"],
        "network": share(_NETWORK) * (1.0 - 0.9 * known["link_taught"]),
        "host": share(_HOST) * (1.0 - 0.9 * framework),
        "pipeline": share(_PIPELINE) * (1.0 - 0.8 * framework),
        "unverified": node["unverified"] * (1.0 - device) ** 2,
        "unnamed": (1.0 - work["framework_known"]) * (1.0 - framework) ** 2,
        "totals": loose * (1.0 - 0.7 * framework * device),
        "scale": known["doublings"] ** 2,
    }


def step_sigma(exposed: Mapping[str, FloatArray], constants: Constants) -> FloatArray:
    """Return the log standard deviation of each step, (n,), for the exposures of its causes."""
    variance = sum(_variances(exposed, constants).values(), np.zeros(1))
    return np.asarray(np.sqrt(variance))


def _variances(exposed: Mapping[str, FloatArray], constants: Constants) -> dict[str, FloatArray]:
    return {c: getattr(constants, f"sigma_{c}") ** 2 * e for c, e in exposed.items()}


def memory_sigma(rows: Rows, known: Mapping[str, FloatArray], constants: Constants) -> FloatArray:
    """Return the log standard deviation of each peak, (n,); `known` as `rows.taught` says."""
    return _memory_sigma(rows, rows.software["sigma_memory"], known, constants)


def fits(
    rows: Rows, log_slack: FloatArray, known: Mapping[str, FloatArray], constants: Constants
) -> FloatArray:
    """Return the probability that peaks stay within what devices can hold, (n,).

    log_slack: see `memory.log_slack`.
    """
    sigma = _memory_sigma(rows, rows.software["sigma_fits"], known, constants)
    return normal_cdf(log_slack / sigma)


def _memory_sigma(
    rows: Rows, base: FloatArray, known: Mapping[str, FloatArray], constants: Constants
) -> FloatArray:
    """A framework's own spread, wider for what is loosely known or larger than what was run."""
    loose = (1.0 - rows.work["detailed"]) + rows.work["unknown_share"]
    pipeline = np.where(rows.plan["pp"] > 1, constants.sigma_memory_pipeline, 0.0)
    larger = known["framework_taught"] * constants.sigma_memory_scale * known["doublings"]
    variance = base**2 + pipeline**2 + larger**2 + loose * constants.sigma_totals**2
    return np.asarray(np.sqrt(variance))


def distance(rows: Rows, known: Mapping[str, FloatArray]) -> FloatArray:
    """Return how far a row is from what was measured, (n,).

    0 beside measured runs of the workload on the device with the framework, 1 for physics with
    nothing measured; more where the graph is only totals or partly unknown, where facts of the
    device are unverified, and with every doubling of devices beyond those that were measured.
    """
    work, node = rows.work, rows.node
    unknown = 3.0 - known["workload_taught"] - known["device_taught"] - known["framework_taught"]
    return (
        unknown / 3.0
        + (1.0 - work["detailed"])
        + work["unknown_share"]
        + 0.25 * node["unverified"] * (1.0 - known["device_taught"])
        + 0.05 * known["doublings"]
    )
