"""Uncertainty: how wide a band is, by causes that runs narrow, and how far an answer lies from runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.domain.hardware import Cluster, Link
from forerun.domain.plan import PS_ASYNC
from forerun.domain.workload import Workload
from forerun.predictors.analytic.communication import p_norm
from forerun.predictors.analytic.constants import (
    MEASURED,
    Constants,
    framework_name,
    link_key,
    scale_key,
)
from forerun.predictors.analytic.flat import Rows, spread_over, total
from forerun.predictors.analytic.servers import SERVER_PARTS
from forerun.predictors.analytic.step import host_seconds, synchronisation
from forerun.tables import Jobs
from forerun.tables.table import sortable

# What runs on another device of the setting count for: hosts, builds and habits stay.
ELSEWHERE = 0.5
# What micro-benchmarks on the device itself leave unknown of it, as if so many runs had been made.
PROBED_EVIDENCE = 0.8
# How far the log of a rate is taken to lie off where what follows is weighed.
REACH = 1.5
_LAYER = ("forward", "backward", "recompute", "tensor comm", "expert comm", "context comm")
_PIPELINE = ("pipeline bubble", "imbalance")
WEIGHED = ("network", "host", "pipeline", "servers")
_NOVELTY = ("workload", "device", "framework")


def settings_of(jobs: Jobs) -> NDArray[np.object_]:
    """Return where each row runs, (n,): its label `cluster`, "" where there is none."""
    if jobs.labels is None:
        return np.full(len(jobs), "", dtype=object)
    return jobs.labels.texts("cluster")


def evidence(jobs: Jobs, constants: Constants) -> dict[str, FloatArray]:
    """Return `<kind>_evidence` of each row, 0 towards 1, and doublings beyond the runs' devices and widths, (n,)."""
    workloads = np.array([
        (constants.evidence("framework", framework_name(w.framework)),
         constants.evidence("servers", framework_name(w.framework)),
         constants.evidence("pipeline", framework_name(w.framework)),
         constants.evidence("workload", scale_key(w)), _precision_evidence(w, constants),
         _wider(w, constants))
        for w in jobs.workloads
    ])  # fmt: skip
    framework, servers, pipeline, workload, precision, wider = (
        spread_over(v, jobs.workload_index) for v in workloads.T
    )
    nodes = np.array([_cluster_evidence(c, constants) for c in jobs.clusters])
    link, probed_calls = (spread_over(v, jobs.cluster_index) for v in nodes.T)
    stacks, stack = np.unique(
        [framework_name(w.framework) for w in jobs.workloads], return_inverse=True
    )
    on = np.array([[_device_evidence(c, str(s), constants) for c in jobs.clusters] for s in stacks])
    device = on[stack[jobs.workload_index], jobs.cluster_index]
    names, label = [""], np.zeros(1, dtype=np.int64)
    if jobs.labels is not None:
        names, label = sorted(set(settings_of(jobs))), sortable(settings_of(jobs))
    known, table = constants.run_counts, np.zeros((len(names), len(jobs.clusters), 2))
    table[label, jobs.cluster_index] = 1.0
    for i, c in np.argwhere(table[..., 0]).tolist():
        name, cluster = names[i], jobs.clusters[c]
        here = constants.evidence("setting", f"{name} on {cluster.device.id}")
        share = max(here, ELSEWHERE * constants.evidence("setting", name))
        most = known.get(devices_key(name), known.get("devices", 1.0))
        table[i, c] = share, max(math.log2(cluster.devices / most), 0.0)
    return {
        # A probe timed the framework's own calls there.
        "framework_evidence": np.maximum(framework, probed_calls),
        # Runs without stages say nothing of how a framework deals and schedules them.
        "pipeline_evidence": np.minimum(framework, pipeline),
        "workload_evidence": workload,
        "server_evidence": servers,
        "precision_evidence": precision,
        "wider": wider,
        "device_evidence": np.maximum(device, probed_calls),
        "link_evidence": link,
        "setting_evidence": table[label, jobs.cluster_index, 0],
        "doublings": table[label, jobs.cluster_index, 1],
    }


def kernels(workload: Workload) -> str:
    """Return the precision whose kernels a workload runs: bf16 and fp16 share units, rates and code."""
    return "16 bits" if workload.precision in ("bf16", "fp16") else workload.precision


def _precision_evidence(workload: Workload, constants: Constants) -> float:
    if not any(name.startswith("precision:") for name in constants.run_counts):
        return float(workload.precision not in ("fp8", "fp4"))  # priors are of wider numbers
    framework, precision = framework_name(workload.framework), kernels(workload)
    own = constants.evidence("precision", f"{precision} of {framework}")
    # A framework that runs know has kernels of its own for a precision; of others, any runs speak.
    known = constants.evidence("framework", framework)
    return known * own + (1.0 - known) * constants.evidence("precision", precision)


NETWORKS = ("transformer", "net")


def kind_of(workload: Workload) -> str:
    """Return which of `NETWORKS` a workload is."""
    return NETWORKS[0] if workload.shape.heads > 0 else NETWORKS[1]


def fitted_key(kind: str) -> str:
    """Return the key in `Constants.run_counts` of whether the last fit had runs of a kind of network."""
    return f"fitted:{kind}"


def _wider(workload: Workload, constants: Constants) -> float:
    """Return by how many doublings a transformer is wider, or narrower, than all that were fitted.

    A kind of network that the last fit had no runs of counts as a further doubling.
    """
    known, hidden = constants.run_counts, float(workload.shape.hidden)
    other = 1.0 - known.get(fitted_key(kind_of(workload)), 1.0)
    if not hidden or "hidden" not in known:
        return other
    beyond = math.log2(hidden / known["hidden"]), -math.log2(hidden * known["1/hidden"])
    return other + max(*beyond, 0.0)


def widest_link(cluster: Cluster) -> Link:
    """Return the link that the farthest traffic of a cluster takes."""
    return cluster.inter if cluster.nodes > 1 else cluster.intra


def _device_evidence(cluster: Cluster, framework: str, constants: Constants) -> float:
    device, known = cluster.device.id, constants.evidence("framework", framework)
    # A framework that runs know has kernels of its own for a device; others' runs there tell half.
    own, of_any = (constants.evidence("device", n) for n in (f"{device} on {framework}", device))
    return known * max(own, ELSEWHERE * of_any) + (1.0 - known) * of_any


def _cluster_evidence(cluster: Cluster, constants: Constants) -> tuple[float, float]:
    probed = cluster.device.measured
    least = PROBED_EVIDENCE * probed.sureness if probed is not None else 0.0
    used = widest_link(cluster)
    of_link = constants.evidence("link", link_key(used.kind)) if cluster.devices > 1 else 1.0
    return max(of_link, least if used.kind == MEASURED else 0.0), least


def devices_key(name: str) -> str:
    """Return the key in `Constants.run_counts` of the most devices that a run of a setting used."""
    return f"setting:{name} devices"


def exposures(
    rows: Rows, parts: Mapping[str, FloatArray], known: Mapping[str, FloatArray],
    constants: Constants,
) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:  # fmt: skip
    """Return how much each cause concerns a step, (n,) each: its share of `sigma_<cause>` squared.

    Above the median, then those of `WEIGHED` below it: what they change if they are `REACH` slower,
    or faster, so that no quantile rises where anything else is faster.
    """
    work, node, framework = rows.work, rows.node, known["framework_evidence"]
    # What n runs leave of a spread falls with n, so its square is what counts here.
    new = {kind: (1.0 - known[f"{kind}_evidence"]) ** 2 for kind in (*_NOVELTY, "setting")}
    net = (1.0 - work["transformer"]) * work["detailed"]
    loose = (1.0 - work["detailed"]) + work["unknown_share"]
    left = {
        "network": 1.0 - 0.9 * known["link_evidence"], "host": 1.0 - 0.9 * framework,
        "pipeline": 1.0 - 0.8 * known["pipeline_evidence"],
        "servers": 1.0 - 0.9 * known["server_evidence"],
    }  # fmt: skip
    whole = np.maximum(total(parts.values()), 1e-12)
    above, below = (
        {
            name: left[name] * (np.log1p(v / whole) / REACH) ** 2 if v.any() else v
            for name, v in added.items()
        }
        for added in _added(rows, parts, constants)
    )
    return {
        "residual": np.ones(len(rows)),
        **new,
        # What convolutions reach on another device says nothing of what another net's reach, and
        # nets hang on libraries and on how a place feeds them, where transformers do not.
        "convolution": net,
        **{f"convolution_{kind}": net * share for kind, share in new.items()},
        **above,
        "unverified": node["unverified"] * new["device"],
        "unnamed": (1.0 - work["framework_known"]) * new["framework"],
        # Runs of the workload tell how long it takes where its operations do not.
        "totals": loose * new["workload"],
        "scale": known["doublings"],  # a random walk, as the width is
        "width": known["wider"],
        "precision": (1.0 - known["precision_evidence"]) ** 2,
    }, below


def _added(
    rows: Rows, parts: Mapping[str, FloatArray], constants: Constants
) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """Return what slower and what faster hosts, networks and pipelines add to a step, (n,) each."""
    own, power = rows.node.get("setting_scale", 1.0), constants.layer_power
    inside = total(parts[name] for name in _LAYER[3:])
    device = inside + total(parts[name] for name in _LAYER[:3])
    others = device + total(parts[name] for name in ("host", "pipeline comm", *_PIPELINE))
    each = np.where(rows.sync == PS_ASYNC, 1.0 / rows.plan["dp"], 1.0)  # of a cycle, as the parts
    launched = own * each * rows.micro_batches / rows.plan["pp"] * host_seconds(rows)
    now, slower, faster = p_norm(device, launched, power), math.exp(REACH), math.exp(-REACH)
    sent = synchronisation(rows, others / own, constants, slower)
    links, served = total(parts[name] for name in SERVER_PARTS[:2]), parts["server compute"]
    above, below = (
        {
            "network": traffic + p_norm(device + (times - 1.0) * inside, launched, power) - now
            + (times - 1.0) * (parts["pipeline comm"] + links),
            "host": (times - 1.0) * (parts["overhead"] + parts["input"])
            + p_norm(device, times * launched, power) - now,
            "pipeline": (times - 1.0) * parts["pipeline bubble"],
            # Servers' turns and queues are what a sum of times on an idle link and server leaves out.
            "servers": (times - 1.0) * (links + served),
        }
        for times, traffic in ((slower, own * sent - parts["data comm"]),
                               (faster, (faster - 1.0) * parts["data comm"]))
    )  # fmt: skip
    return above, below


def step_sigmas(
    exposed: Mapping[str, FloatArray], faster: Mapping[str, FloatArray], constants: Constants
) -> tuple[FloatArray, FloatArray]:
    """Return the log standard deviation of each step above and below its median, (n,) each.

    exposed, faster: the exposures of its causes, and of those that differ below.
    """
    above, below = _variances(exposed, constants), _variances(faster, constants)
    alike = total(v for cause, v in above.items() if cause not in below)
    slower = total(above[cause] for cause in below)
    return np.sqrt(alike + slower), np.sqrt(alike + total(below.values()))


def _variances(exposed: Mapping[str, FloatArray], constants: Constants) -> dict[str, FloatArray]:
    return {c: getattr(constants, f"sigma_{c}") ** 2 * e for c, e in exposed.items()}


# The step's parts as their errors go together: what the same kernels or the same traffic takes.
_GROUPS: Mapping[str, tuple[str, ...]] = {
    "compute": ("forward", "backward", "recompute"), "optimizer": ("optimizer",),
    "tensor comm": ("tensor comm", "expert comm", "context comm"), "data comm": ("data comm",),
    "pipeline comm": ("pipeline comm",), "parameter server": SERVER_PARTS,
    "host": ("host", "overhead"), "input": ("input",), "pipeline": _PIPELINE,
    "straggler": ("straggler",),
}  # fmt: skip
# What the errors of causes belong to (see `domain.quantiles`): the causes, and their groups of parts.
_SCOPES: Mapping[str, tuple[tuple[str, ...], Iterable[str]]] = {
    "setting": (("setting", "convolution_setting"), _GROUPS),
    "case": (("residual", "convolution"), _GROUPS),
    "workload": (("workload", "convolution_workload", "totals", "width", "precision"), _GROUPS),
    "device": (("device", "convolution_device", "unverified"), _GROUPS),
    "framework": (("framework", "convolution_framework", "unnamed"), _GROUPS),
    "link": (("network",), ("tensor comm", "data comm", "pipeline comm", "parameter server")),
    "host": (("host",), ("host", "input")),
    "schedule": (("pipeline",), ("pipeline",)),
    "servers": (("servers",), ("parameter server",)),
}


def step_causes(
    exposed: Mapping[str, FloatArray], parts: Mapping[str, FloatArray], constants: Constants
) -> dict[str, FloatArray]:
    """Return the log variance of each step by `scope: group of parts`, (n,) each; they add up to it."""
    v = _variances(exposed, constants)
    whole = np.maximum(total(parts.values()), 1e-12)
    shares = {
        group: total(parts[name] for name in names) / whole for group, names in _GROUPS.items()
    }
    # `plan_share` of the residual is the plan's own.
    plan = constants.plan_share * v["residual"]
    v["residual"] = v["residual"] - plan
    causes = {"plan": plan, "scale": v["scale"]}
    for scope, (names, groups) in _SCOPES.items():
        variance = total(v[name] for name in names)
        bound = np.maximum(total(shares[name] for name in groups), 1e-300)
        causes |= {f"{scope}: {name}": variance * (shares[name] / bound) for name in groups}
    return causes


def memory_sigma(
    rows: Rows, known: Mapping[str, FloatArray], constants: Constants, base: str = "sigma_memory"
) -> FloatArray:
    """Return the log sd of each peak (n,); base `sigma_fits`: against what devices can hold."""
    loose = (1.0 - rows.work["detailed"]) + rows.work["unknown_share"]
    pipeline = np.where(rows.plan["pp"] > 1, constants.sigma_memory_pipeline, 0.0)
    larger = known["framework_evidence"] * constants.sigma_memory_scale * known["doublings"]
    variance = rows.software[base] ** 2 + pipeline**2 + larger**2
    return np.asarray(np.sqrt(variance + loose * constants.sigma_totals**2))


def distance_parts(rows: Rows, known: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Return how far a row is from what was measured by what is missing, (n,) each.

    Their sum is 0 beside measured runs, 1 for physics with nothing measured.
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
        "structure": 1.0 - work["detailed"], "operations": work["unknown_share"],
        "data sheet": 0.25 * node["unverified"] * new["device"],
        "scale": 0.05 * (known["doublings"] + known["wider"]),
    }  # fmt: skip
