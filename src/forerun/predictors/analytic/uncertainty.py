"""Uncertainty of an answer: how wide its band, and how far it lies from what was measured.

Independent causes add as variances of the log: what is new (workload, device, framework), what of
the step rests on less certain constants (host, network, pipeline), what is known only in part, and
the noise that remains beside runs of the very job. Runs narrow the causes that they inform, by
how many there are (`evidence`), and calibration measures how much each cause is worth: see
`calibration.applying`.

A place is a setting (machines of one `cluster` label have hosts and builds in common) and a device
in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.domain.quantiles import normal_cdf
from forerun.predictors.analytic.constants import MEASURED, Constants, framework_name, scale_key
from forerun.predictors.analytic.flat import Rows, spread_over, total
from forerun.tables import Jobs

# Hosts, builds and habits stay where the device changes, clocks and machines do not: what runs on
# another device of the setting count for.
ELSEWHERE = 0.5
# What micro-benchmarks on the device itself leave unknown of it, as if so many runs had been made.
PROBED_EVIDENCE = 0.8
_NETWORK = (
    "tensor comm", "expert comm", "context comm", "data comm", "pipeline comm", "parameter server",
)  # fmt: skip
_HOST = ("host", "overhead", "input")
_PIPELINE = ("pipeline bubble", "imbalance")


def settings_of(jobs: Jobs) -> NDArray[np.object_]:
    """Return where each row runs, (n,): its label `cluster`, "" where there is none."""
    if jobs.labels is None:
        return np.full(len(jobs), "", dtype=object)
    return jobs.labels.texts("cluster")


def evidence(jobs: Jobs, constants: Constants) -> dict[str, FloatArray]:
    """Return how much runs say of what each row hangs on, columns (n,): 0 nothing, towards 1.

    `<kind>_evidence` for workload, device, framework, link and setting; `doublings` of the devices
    beyond the most that a run used (of the row's setting, where that has runs).
    """
    workloads = np.array([
        (constants.evidence("framework", framework_name(w.framework)),
         constants.evidence("workload", scale_key(w)))
        for w in jobs.workloads
    ])  # fmt: skip
    most = constants.run_counts.get("devices", 1.0)
    node = []
    for cluster in jobs.clusters:
        probed, used = (
            cluster.device.measured,
            cluster.inter if cluster.nodes > 1 else cluster.intra,
        )
        least = PROBED_EVIDENCE * probed.sureness if probed is not None else 0.0
        of_link = constants.evidence("link", used.kind) if cluster.devices > 1 else 1.0
        node.append((
            max(constants.evidence("device", cluster.device.id), least),
            max(of_link, least if used.kind == MEASURED else 0.0),
            max(math.log2(cluster.devices / most), 0.0),
            least,
        ))  # fmt: skip
    framework, workload = (spread_over(v, jobs.workload_index) for v in workloads.T)
    device, link, doublings, probed_calls = (
        spread_over(v, jobs.cluster_index) for v in np.array(node).T
    )
    setting, own_doublings = _place_evidence(jobs, constants)
    return {
        # A probe timed the framework's own calls there.
        "framework_evidence": np.maximum(framework, probed_calls),
        "workload_evidence": workload,
        "device_evidence": device,
        "link_evidence": link,
        "setting_evidence": setting,
        "doublings": np.where(np.isnan(own_doublings), doublings, own_doublings),
    }


def _place_evidence(jobs: Jobs, constants: Constants) -> tuple[FloatArray, FloatArray]:
    """Return (evidence of the place, doublings of devices beyond the setting's runs), (n,) each.

    A job without a label is taken to run where the last runs were measured. Doublings are NaN
    where the setting has no runs.
    """
    names, label = np.array([""]), np.zeros(1, dtype=np.int64)
    if jobs.labels is not None:
        names, label = np.unique(settings_of(jobs).astype(str), return_inverse=True)

    def found(name: str, device: str, devices: int) -> tuple[float, float]:
        here = constants.evidence("setting", f"{name} on {device}")
        most = constants.run_counts.get(devices_key(name), math.nan)
        share = max(here, ELSEWHERE * constants.evidence("setting", name))
        return share, float(np.maximum(np.log2(devices / most), 0.0))

    table = np.array([
        [found(str(name), c.device.id, c.devices) for c in jobs.clusters] for name in names
    ])  # fmt: skip
    return table[label, jobs.cluster_index, 0], table[label, jobs.cluster_index, 1]


def devices_key(name: str) -> str:
    """Return the key in `Constants.run_counts` of the most devices that a run of a setting used."""
    return f"setting:{name} devices"


def exposures(
    rows: Rows, parts: Mapping[str, FloatArray], known: Mapping[str, FloatArray]
) -> dict[str, FloatArray]:
    """Return how much each cause concerns a step, (n,) each, 0 where it does not.

    The log variance of a step is the sum over causes of sigma^2 times this; a cause's sigma is
    `constants.sigma_<cause>`.

    known: see `evidence`.
    """
    whole = np.maximum(total(parts.values()), 1e-12)

    def share(names: tuple[str, ...]) -> FloatArray:
        return np.asarray((total(parts[name] for name in names) / whole) ** 2)

    work, node = rows.work, rows.node
    workload, device = known["workload_evidence"], known["device_evidence"]
    framework = known["framework_evidence"]
    net = (1.0 - work["transformer"]) * work["detailed"]
    loose = (1.0 - work["detailed"]) + work["unknown_share"]
    return {
        "residual": np.ones(len(rows)),
        "setting": (1.0 - known["setting_evidence"]) ** 2,
        # What n runs leave of a spread falls with n, so its square is what counts here.
        "workload": (1.0 - workload) ** 2,
        "device": (1.0 - device) ** 2,
        "framework": (1.0 - framework) ** 2,
        # What convolutions reach on another device says nothing of what another net's reach.
        "convolution_workload": net * (1.0 - workload) ** 2,
        "convolution_device": net * (1.0 - device) ** 2,
        "convolution_framework": net * (1.0 - framework) ** 2,
        "network": share(_NETWORK) * (1.0 - 0.9 * known["link_evidence"]),
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
    return np.asarray(np.sqrt(total(_variances(exposed, constants).values())))


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

    A cause is "scope: part of the step" (see `domain.quantiles`): what the error belongs to, and
    what of the step it lies in. What is not bound to a part is spread over them by their shares, so
    that two steps made of the same parts share it whole. `plan_share` of the residual is the plan's
    own, the rest that of the workload on this device.
    """
    v = _variances(exposed, constants)
    whole = np.maximum(total(parts.values()), 1e-12)
    shares = {
        group: total(parts[name] for name in names) / whole for group, names in _GROUPS.items()
    }
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
        bound = np.maximum(total(shares[name] for name in groups), 1e-300)
        causes |= {f"{scope}: {name}": variance * (shares[name] / bound) for name in groups}
    return causes


def memory_sigma(rows: Rows, known: Mapping[str, FloatArray], constants: Constants) -> FloatArray:
    """Return the log standard deviation of each peak, (n,); `known`: see `evidence`."""
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
    larger = known["framework_evidence"] * constants.sigma_memory_scale * known["doublings"]
    variance = base**2 + pipeline**2 + larger**2 + loose * constants.sigma_totals**2
    return np.asarray(np.sqrt(variance))


def distance_parts(rows: Rows, known: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Return how far a row is from what was measured by what is missing, (n,) each.

    Their sum is 0 beside measured runs of the workload on the device with the framework in the
    place where it will run, 1 for physics with nothing measured; more where the graph is only
    totals or partly unknown, where facts of the device are unverified, and with every doubling of
    devices beyond those that were measured. The names are those of `domain.forecast`.
    """
    work, node = rows.work, rows.node
    # The first runs of something tell most of it: three leave a tenth of what was new.
    new = {
        name: (1.0 - known[f"{kind}_evidence"]) ** 3
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
