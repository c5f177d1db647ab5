"""Uncertainty of an answer from physics alone: how wide, and how far from what was measured.

Independent causes add as variances of the log: a base for efficiencies read from data sheets, and
shares of the step that rest on less certain constants (host, network, pipeline) weigh theirs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.rows import Rows

FloatArray = NDArray[np.float64]


def step_sigma(rows: Rows, parts: Mapping[str, FloatArray], constants: Constants) -> FloatArray:
    """Return the log standard deviation of each step, (n,)."""
    total = np.maximum(sum(parts.values(), np.zeros(len(rows))), 1e-12)
    network = (
        parts["tensor comm"] + parts["data comm"] + parts["pipeline comm"]
        + parts["parameter server"]
    ) / total  # fmt: skip
    host = (parts["host"] + parts["overhead"] + parts["input"]) / total
    pipeline = (parts["pipeline bubble"] + parts["imbalance"]) / total
    work, node = rows.work, rows.node
    variance = constants.sigma_base**2 * np.ones(len(rows))
    variance += (constants.sigma_network * network) ** 2
    variance += (constants.sigma_host * host) ** 2
    variance += (constants.sigma_pipeline * pipeline) ** 2
    variance += constants.sigma_convolution**2 * (1.0 - work["transformer"]) * work["detailed"]
    variance += constants.sigma_unverified**2 * node["unverified"]
    variance += constants.sigma_framework**2 * (1.0 - work["framework_known"])
    variance += (1.0 - work["detailed"]) * constants.sigma_totals**2
    variance += work["unknown_share"] * constants.sigma_totals**2
    variance += (constants.sigma_scale * np.log2(np.maximum(node["devices"], 1.0))) ** 2
    return np.sqrt(variance)


def memory_sigma(rows: Rows, constants: Constants) -> FloatArray:
    """Return the log standard deviation of each peak, (n,)."""
    loose = (1.0 - rows.work["detailed"]) + rows.work["unknown_share"]
    pipeline = np.where(rows.plan["pp"] > 1, 0.05, 0.0)
    return np.sqrt(constants.sigma_memory**2 + pipeline**2 + (0.4 * loose) ** 2)


def distance(rows: Rows, constants: Constants) -> FloatArray:
    """Return how far a row is from what was measured, (n,).

    1 for physics with nothing measured; more where the graph is only totals or partly unknown,
    where the device's facts are unverified, and with every doubling of devices.
    """
    return (
        1.0
        + (1.0 - rows.work["detailed"])
        + rows.work["unknown_share"]
        + 0.25 * rows.node["unverified"]
        + 0.05 * np.log2(np.maximum(rows.node["devices"], 1.0))
    )
