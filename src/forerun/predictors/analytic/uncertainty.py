"""Uncertainty of an answer: how wide its band, and how far it lies from what was measured.

Independent causes add as variances of the log. With nothing measured: a base for efficiencies read
from data sheets, and shares of the step that rest on less certain constants (host, network,
pipeline) weigh theirs. Runs narrow the causes that they speak of, by how much of them they have
seen: of a workload, a device, a framework, a kind of link, a number of devices.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.rows import Rows

FloatArray = NDArray[np.float64]


def step_sigma(
    rows: Rows, parts: Mapping[str, FloatArray], known: Mapping[str, FloatArray],
    constants: Constants,
) -> FloatArray:  # fmt: skip
    """Return the log standard deviation of each step, (n,); known: what `rows.taught` says."""
    total = np.maximum(sum(parts.values(), np.zeros(len(rows))), 1e-12)
    tensor = parts["tensor comm"] + parts["expert comm"] + parts["context comm"]
    network = tensor + parts["data comm"] + parts["pipeline comm"] + parts["parameter server"]
    host = parts["host"] + parts["overhead"] + parts["input"]
    pipeline = parts["pipeline bubble"] + parts["imbalance"]
    work, node, c = rows.work, rows.node, constants
    framework, taught = (
        known["framework_taught"],
        known["framework_taught"] * known["device_taught"],
    )
    new_workload = (1.0 - known["workload_taught"]) * taught
    other = 1.0 - work["transformer"]
    variance = (1.0 - taught) * c.sigma_base**2 + taught * c.sigma_residual**2
    variance += new_workload * (c.sigma_workload * (1.0 + 2.0 * other)) ** 2
    variance += (c.sigma_network * network / total) ** 2 * (1.0 - 0.9 * known["link_taught"])
    variance += (c.sigma_host * host / total) ** 2 * (1.0 - 0.9 * framework)
    variance += (c.sigma_pipeline * pipeline / total) ** 2 * (1.0 - 0.8 * framework)
    variance += c.sigma_convolution**2 * other * work["detailed"] * (1.0 - taught)
    variance += c.sigma_unverified**2 * node["unverified"] * (1.0 - known["device_taught"])
    variance += c.sigma_framework**2 * (1.0 - work["framework_known"]) * (1.0 - framework)
    loose = (1.0 - work["detailed"]) + work["unknown_share"]
    variance += loose * c.sigma_totals**2 * (1.0 - 0.7 * taught)
    variance += (c.sigma_scale * known["doublings"]) ** 2
    return np.sqrt(variance)


def memory_sigma(rows: Rows, constants: Constants) -> FloatArray:
    """Return the log standard deviation of each peak, (n,)."""
    loose = (1.0 - rows.work["detailed"]) + rows.work["unknown_share"]
    pipeline = np.where(rows.plan["pp"] > 1, constants.sigma_memory_pipeline, 0.0)
    return np.sqrt(constants.sigma_memory**2 + pipeline**2 + loose * constants.sigma_totals**2)


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
