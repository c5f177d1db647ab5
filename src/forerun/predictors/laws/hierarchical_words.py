"""The hierarchical law of each app on each cluster in words: terms with units, intervals, the limit."""

from __future__ import annotations

import numpy as np

from forerun.arrays import FloatArray
from forerun.domain.plan import SYNC
from forerun.domain.quantiles import Z95
from forerun.predictors.laws.hierarchical_law import (
    AT,
    HOST_SHARE,
    LARGEST_LOG_OVERLAP,
    REFERENCE_RATE,
    LawInputs,
    evaluate_law,
)
from forerun.predictors.laws.hierarchical_model import Known, Model, Served
from forerun.predictors.laws.hierarchical_rows import APP

_ASSUMED = " (assumed: no run of it)"
_SYNC = APP.index("sync")
SHARE, CORES = "(part of a core)", "cores"


def formulas(model: Model, quantity: str) -> dict[str, str]:
    """Return for each app on each cluster its law and what limits its scaling."""
    result: dict[str, str] = {}
    # Rows that say nothing of parameter servers reduce among all: it is named where apps differ.
    silent = {group.app[_SYNC] for group in model.groups} <= {"", SYNC[0]}
    for i, group in enumerate(model.groups):
        app = (*group.app[:_SYNC], "", *group.app[_SYNC + 1 :]) if silent else group.app
        lead = f"{_words(app)} on {_words(group.cluster)}"
        served = Served(i, -1, 0.0, 0.0)
        law = _law(model, served, quantity)
        reading = (
            "intervals hold 90 % (5 to 95 %), +- is one standard deviation, exp and log natural"
        )
        result[lead] = f"{law} ({group.runs} runs; {reading}; {_limit(model, served)})"
    return result


def _words(name: tuple[str, ...]) -> str:
    first, *rest = (text or "(blank)" if i == 0 else text for i, text in enumerate(name))
    more = ", ".join(text for text in rest if text)
    return f"{first} ({more})" if more else first


def _law(model: Model, served: Served, quantity: str) -> str:
    group = model.groups[served.group]
    theta = model.parameters(served)
    spread = np.sqrt(np.maximum(np.diag(model.uncertainty(served)), 0.0))
    covariance = model.uncertainty(served)

    def term(*names: str, offset: float = 0.0, unit: str = "s") -> str:
        """Return exp(sum of parameters) with its 90 % interval."""
        at = [AT[name] for name in names]
        middle = float(np.exp(theta[at].sum() + offset))
        sd = float(np.sqrt(max(covariance[np.ix_(at, at)].sum(), 0.0)))
        low, high = middle * np.exp(-Z95 * sd), middle * np.exp(Z95 * sd)
        return f"{middle:.3g} {unit} ({low:.3g} to {high:.3g})"

    compute = term("fixed")
    if group.batch is not None:
        # Where no batch is known, an epoch or a run goes by a device's share of the data.
        share = "micro_batch" if quantity == "step" else "micro_batch (or dataset_size / devices)"
        compute = f"{compute} + {term('sample', unit='s a sample')} x {share}"
    if group.cores is not None:
        compute = f"({compute}) / {_speed(theta, spread, group.cores)}"
    lines = [f"seconds of {'an' if quantity == 'epoch' else 'a'} {quantity}: compute = {compute}"]
    if group.devices > 1:
        power = 1.0 + np.exp(min(theta[AT["overlap"]], LARGEST_LOG_OVERLAP))
        inside = term("volume", "intra", offset=-float(np.log(group.rates[0])))
        grow = theta[AT["intra_growth"]]
        near = model.near[served.group]
        alone = bool(near.busy.max(initial=1.0) <= 1)
        apart = bool(near.nodes.max(initial=1.0) <= 1)
        lines.append(
            f"in a node of n = {inside} x 2(n-1)/n x exp({grow:.2g} (1 - 2/n)){_ASSUMED * alone}"
        )
        rate = log_rate_of(group)
        wire = term(
            "volume", "inter", offset=-float(np.log(group.rates[1])) - theta[AT["rate"]] * rate
        )
        hop = term("hop")
        slower = "" if group.cores is None else f" / {SHARE}^{theta[AT['share']]:.2g}"
        lines.append(f"messages = {hop} x 2(K-1){slower}")
        size, count = theta[AT["node_size"]], theta[AT["node_count"]]
        sd = spread[AT["node_size"]], spread[AT["node_count"]]
        lines.append(
            f"between N nodes of L = ({wire} + the in-node figure) x 2(K-1)/K x "
            f"exp({size:.2g} +- {sd[0]:.1g} (1 - 1/L)) x (N/3)^({count:.2g} +- {sd[1]:.1g})"
            f" x {np.exp(theta[AT['two_nodes']]):.2g} on two nodes{_ASSUMED * apart}"
        )
        lines.append(f"joined as ((compute + messages)^p + network^p)^(1/p), p = {power:.2g}")
    return "; ".join(lines)


def _speed(theta: FloatArray, spread: FloatArray, cores: tuple[float, float]) -> str:
    """Return how compute goes with the cores that runs state, in words."""
    words = []
    for name, text, met in (("share", SHARE, cores[0] < 0), ("cores", CORES, cores[1] > 0)):
        if met:
            words.append(f"{text}^({theta[AT[name]]:.2g} +- {spread[AT[name]]:.1g})")
    return " x ".join(words) or "1 (one core)"


def _limit(model: Model, served: Served) -> str:
    """Return what keeps more devices from being faster, at the most that were measured."""
    group = model.groups[served.group]
    if group.devices <= 1:
        return "its runs are on one device and say nothing of scaling"
    x = _largest(group)
    theta = model.parameters(served)[None]
    out = evaluate_law(theta, x)
    share = 100.0 * float(1.0 - np.exp(out.log_compute - out.log_seconds)[0])
    nodes = f"{group.nodes:g} nodes" if group.nodes > 1 else "one node"
    where = f"at {group.devices:g} devices on {nodes}"
    if share < 10.0:
        return f"{where} {share:.0f} % of the time is exposed communication: it scales"
    if group.nodes <= 1:
        return f"{where} {share:.0f} % of the time is exposed communication inside the node"
    host = HOST_SHARE * np.exp(theta[0, AT["intra"]]) / group.rates[0]
    wire = np.exp(theta[0, AT["inter"]]) / group.rates[1]
    parts = {
        "the wire between nodes": np.exp(theta[0, AT["volume"]]) * wire,
        "the path through the host": np.exp(theta[0, AT["volume"]]) * host,
        "the time that each message takes": group.devices
        * np.exp(theta[0, AT["hop"]] - theta[0, AT["share"]] * cores_of(group)[0]),
    }
    most = max(parts, key=lambda name: parts[name])
    return f"{where} {share:.0f} % of the time is exposed communication, mostly {most}"


def cores_of(group: Known) -> tuple[float, float]:
    """Return the logs of the part of a core and of the whole cores that the middle run had."""
    middle = 0.0 if group.cores is None else sum(group.cores) / 2.0
    return min(middle, 0.0), max(middle, 0.0)


def log_rate_of(group: Known) -> float:
    """Return the log of the runs' wire over that of reference, 0 where they state none."""
    return 0.0 if group.wire is None else float(np.log(group.rates[1] / REFERENCE_RATE))


def _largest(group: Known) -> LawInputs:
    """Return the job of the most devices and nodes that a run had, at the smallest batch."""
    low, high = group.batch or (0.0, 1.0)
    batch = np.exp(group.own_batch[0]) if group.batch else 1.0
    place = (np.log(batch) - low) / max(high - low, 0.3)
    columns = (
        group.devices, group.nodes, np.ceil(group.devices / group.nodes), batch, 1.0, place,
        group.rates[0], group.rates[1], 0.0, *cores_of(group), log_rate_of(group),
    )  # fmt: skip
    return LawInputs(*(np.array([float(value)]) for value in columns))
