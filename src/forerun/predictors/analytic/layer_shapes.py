"""Layer shapes: models that differ in depth alone run the same kernels.

Which kernels a library picks for a shape, and what they reach, is a matter of luck that no smooth
law follows; but a layer of the same shape on the same device meets it again, however many there
are, however replicas and stages are laid. So runs of a shallow model teach a deep one.

The scale is that of all that a layer's micro-batch takes, its launches and the exchanges inside it too:
these repeat with the shape as its products do. Of products alone it was tried and says less: vTrain's
runs with a workload left out then err by 3.1 % in the mean (by 2.4 % with the exchanges and without
launches), and by 1.9 % as it is; other tables do not tell the two apart.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from forerun.domain.hardware import Cluster, Device
from forerun.domain.workload import Workload
from forerun.predictors.analytic.constants import framework_key
from forerun.tables import Jobs


def layer_shape(workload: Workload, device: Device) -> str:
    """Return what the layers of a transformer share with those of others; "" for other nets."""
    shape = workload.shape
    if not (shape.hidden and shape.heads and workload.seq_len):
        return ""
    experts = f" e{shape.experts}" if shape.experts else ""
    return (
        f"h{shape.hidden} f{shape.ffn} a{shape.heads}/{shape.kv_heads}{experts}"
        f" s{workload.seq_len} {workload.precision} {framework_key(workload.framework)}"
        f" {device.id}"
    )


def cut_shape(
    layer: str, cluster: Cluster, micro_batch: float, tp: float, cp: float, ep: float
) -> str:
    """Return the name of a layer as a plan cuts it on a cluster, "" where the layer has none.

    Groups inside a layer that leave the node name the link that they leave it by.
    """
    if not layer:
        return ""
    spans = cluster.nodes > 1 and tp * max(cp, ep) > cluster.near_devices
    over = f" over {cluster.inter.kind}" if spans else ""
    return f"{layer} b{micro_batch:.0f} tp{tp:.0f} cp{cp:.0f} ep{ep:.0f}{over}"


def shapes_of_rows(jobs: Jobs) -> NDArray[np.object_]:
    """Return the name of each row's cut layer, (n,)."""
    plans = jobs.plans
    code = np.stack([
        jobs.workload_index, jobs.cluster_index, plans.micro_batch, plans.tp, plans.cp, plans.ep,
    ])  # fmt: skip
    distinct, position = np.unique(code, axis=1, return_inverse=True)
    names = np.array(
        [
            cut_shape(
                layer_shape(jobs.workloads[w], jobs.clusters[c].device), jobs.clusters[c], *cut
            )
            for w, c, *cut in distinct.T.tolist()
        ],
        dtype=object,
    )
    return np.asarray(names[position.reshape(-1)])


def repeated(names: Sequence[str]) -> list[str]:
    """Return the names that stand there more than once: one row cannot tell shape from model."""
    distinct, counts = np.unique(np.asarray(names, dtype=str), return_counts=True)
    return [str(n) for n, count in zip(distinct, counts, strict=True) if n and count > 1]
