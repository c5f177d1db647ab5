"""Placements: on how many nodes a job's devices lie, and how unevenly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.tables import Jobs, Table

FloatArray = NDArray[np.float64]
Counts = tuple[float, float, float]

_BLANK: Counts = (np.nan, np.nan, np.nan)


@dataclass(frozen=True)
class Placements:
    """Where the devices of n jobs lie; NaN where nothing says so.

    Attributes:
        nodes: with a device of the job on them, (n,).
        most, fewest: devices on one of these nodes, (n,).
    """

    nodes: FloatArray
    most: FloatArray
    fewest: FloatArray


def placements_of(jobs: Jobs, labels: Table, machines: FloatArray) -> Placements:
    """Return where the devices of n jobs lie.

    A placement as text says most, then the cluster, then `nodes`, then `devices_per_node`. One
    device is on one node, whatever is stated.
    """
    counts = _clusters(jobs)
    texts = labels.texts("placement") if "placement" in labels else None
    if texts is not None:
        pairs = list(zip(texts.tolist(), machines.tolist(), strict=True))
        known = {pair: placement_counts(*pair) for pair in dict.fromkeys(pairs)}
        said = np.array([known[pair] for pair in pairs]).reshape(-1, 3)
        counts = np.where(np.isnan(said), counts, said)
    counts = np.where(np.isnan(counts), _stated(labels, machines), counts)
    counts = np.where((machines == 1)[:, None], 1.0, counts)
    return Placements(counts[:, 0], counts[:, 1], counts[:, 2])


def placement_counts(text: str, machines: float = np.nan) -> Counts:
    """Return nodes, most and fewest devices on one, of `134`, `4-4-2` or `[4, 4]`; else NaN.

    Without a separator each digit is a node, unless the text is the number of `machines` itself.
    """
    plain = text.strip().strip("[]()")
    for mark in "-,;/ ":
        if mark in plain:
            parts = [part for part in plain.split(mark) if part.strip()]
            break
    else:
        parts = [plain] if plain == f"{machines:g}" else list(plain)
    try:
        devices = [int(part) for part in parts]
    except ValueError:
        return _BLANK
    devices = [count for count in devices if count > 0]
    if not devices:
        return _BLANK
    return float(len(devices)), float(max(devices)), float(min(devices))


def _clusters(jobs: Jobs) -> FloatArray:
    """Return the counts that resolved clusters say, (n, 3)."""
    rows = []
    for cluster in jobs.clusters:
        used = [count for count in cluster.placement if count > 0]
        each = float(cluster.devices_per_node)
        rows.append(
            (float(len(used)), float(max(used)), float(min(used)))
            if used
            else (float(cluster.nodes), each, each)
        )
    table: FloatArray = np.array([*rows, _BLANK])
    counts: FloatArray = table[jobs.cluster_index]
    return counts


def _stated(labels: Table, machines: FloatArray) -> FloatArray:
    """Return the counts that `nodes` and `devices_per_node` say, (n, 3)."""
    nodes, each = labels.numbers("nodes"), labels.numbers("devices_per_node")
    nodes = np.where(np.isnan(nodes), np.ceil(machines / np.where(each > 0, each, np.nan)), nodes)
    nodes = np.where(nodes >= 1, nodes, np.nan)
    most = np.where(np.isnan(each), np.ceil(machines / nodes), each)
    fewest = np.where(np.isnan(each), np.floor(machines / nodes), each)
    return np.stack([nodes, most, fewest], axis=1)
