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

from forerun.arrays import FloatArray
from forerun.domain.quantiles import normal_cdf
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.rows import Rows

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
    net = (1.0 - work["transformer"]) * work["detailed"]
    loose = (1.0 - work["detailed"]) + work["unknown_share"]
    return {
        "residual": np.ones(len(rows)),
        "setting": (1.0 - known["setting_taught"]) ** 2,
        # What n runs leave of a spread falls with n, so its square is what counts here.
        "workload": (1.0 - workload) ** 2,
        "device": (1.0 - device) ** 2,
        "framework": (1.0 - framework) ** 2,
        # What convolutions reach on another device says nothing of what another net's reach.
        "convolution_workload": net * (1.0 - workload) ** 2,
        "convolution_device": net * (1.0 - device) ** 2,
        "convolution_framework": net * (1.0 - framework) ** 2,
        "network": share(_NETWORK) * (1.0 - 0.9 * known["link_taught"]),
        "host": share(_HOST) * (1.0 - 0.9 * framework),
        "pipeline": share(_PIPELINE) * (1.0 - 0.8 * framework),
        "unverified": node["unverified"] * (1.0 - device) ** 2,
        "unnamed": (1.0 - work["framework_known"]) * (1.0 - framework) ** 2,
        # Runs of the workload tell how long it takes where its operations do not.
        "totals": loose * (1.0 - workload) ** 2,
        "scale": known["doublings"] ** 2,
    }


def step_sigma(exposed: Mapping[str, FloatArray], constants: Constants) -> FloatArray:
    """Return the log standard deviation of each step, (n,), for the exposures of its causes."""
    variance = sum(_variances(exposed, constants).values(), np.zeros(1))
    return np.asarray(np.sqrt(variance))


def _variances(exposed: Mapping[str, FloatArray], constants: Constants) -> dict[str, FloatArray]:
    return {c: getattr(constants, f"sigma_{c}") ** 2 * e for c, e in exposed.items()}


# The step's parts as their errors go together: what the same kernels or the same traffic takes.
_GROUPS: Mapping[str, tuple[str, ...]] = {
    "compute": ("forward", "backward", "recompute"),
    "optimizer": ("optimizer",),
    "tensor comm": ("tensor comm", "expert comm", "context comm"),
    "data comm": ("data comm",),
    "pipeline comm": ("pipeline comm",),
    "parameter server": ("parameter server",),
    "host": ("host", "overhead"),
    "input": ("input",),
    "pipeline": ("pipeline bubble", "imbalance"),
    "straggler": ("straggler",),
}
_NETWORK_GROUPS = ("tensor comm", "data comm", "pipeline comm", "parameter server")
_NOVELTY = ("workload", "device", "framework")


def step_causes(
    exposed: Mapping[str, FloatArray], parts: Mapping[str, FloatArray], constants: Constants
) -> dict[str, FloatArray]:
    """Return the log variance of each step by cause, (n,) each; they add up to its whole.

    A cause is "scope: part of the step" (see `domain.comparison`): what the error belongs to, and
    what of the step it lies in. What is not bound to a part is spread over them by their shares, so
    that two steps made of the same parts share it whole. `plan_share` of the residual is the plan's
    own, the rest that of the workload on this device.
    """
    v = _variances(exposed, constants)
    whole = np.maximum(_sum(parts, tuple(parts)), 1e-12)
    shares = {group: _sum(parts, names) / whole for group, names in _GROUPS.items()}
    of = {name: v[name] + v[f"convolution_{name}"] for name in _NOVELTY}
    plan = constants.plan_share * v["residual"]
    causes = {"plan": plan, "scale": v["scale"]}
    for scope, variance, groups in (
        # Where a job is run shifts all that is run there alike.
        ("setting", v["setting"], tuple(_GROUPS)),
        ("case", v["residual"] - plan, tuple(_GROUPS)),
        ("workload", of["workload"] + v["totals"], tuple(_GROUPS)),
        ("device", of["device"] + v["unverified"], tuple(_GROUPS)),
        ("framework", of["framework"] + v["unnamed"], tuple(_GROUPS)),
        ("link", v["network"], _NETWORK_GROUPS),
        ("host", v["host"], ("host", "input")),
        ("schedule", v["pipeline"], ("pipeline",)),
    ):
        total = np.maximum(_sum(shares, groups), 1e-300)
        causes |= {f"{scope}: {name}": variance * (shares[name] / total) for name in groups}
    return causes


def _sum(columns: Mapping[str, FloatArray], names: tuple[str, ...]) -> FloatArray:
    """Return the sum of columns (n,)."""
    first, *others = names
    total = columns[first]
    for name in others:
        total = total + columns[name]
    return total


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
    """Return how far a row is from what was measured, (n,): the sum of `distance_parts`."""
    parts = distance_parts(rows, known)
    return _sum(parts, tuple(parts))


def distance_parts(rows: Rows, known: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Return how far a row is from what was measured by what is missing, (n,) each.

    Their sum is 0 beside measured runs of the workload on the device with the framework in the
    place where it will run, 1 for physics with nothing measured; more where the graph is only
    totals or partly unknown, where facts of the device are unverified, and with every doubling of
    devices beyond those that were measured. The names are those of `domain.distance`.
    """
    work, node = rows.work, rows.node
    # The first runs of something tell most of it: three leave a tenth of what was new.
    new = {
        name: (1.0 - known[f"{kind}_taught"]) ** 3
        for name, kind in (("workload", "workload"), ("device", "device"),
                           ("framework", "framework"), ("place", "setting"))
    }  # fmt: skip
    return {
        **{name: left / len(new) for name, left in new.items()},
        "structure": 1.0 - work["detailed"],
        "operations": work["unknown_share"],
        "data sheet": 0.25 * node["unverified"] * new["device"],
        "scale": 0.05 * known["doublings"],
    }
