"""Schedules: plans that a framework refuses to run, whatever their memory.

nanotron's 1F1B asserts that there are at least pp - 1 micro-batches; and it deals layers to stages
by their work, the head counted, so that many stages leave the last ones without any.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forerun.domain.graph import BLOCK_INDEX, PHASE_INDEX, Block, Phase
from forerun.domain.workload import Workload
from forerun.predictors.analytic.constants import Constants, framework_key
from forerun.tables import Jobs

FEW = (
    "{framework} needs at least pp - 1 = {need} micro-batches and this plan makes {made:g}; "
    "raise global_batch, or lower pp, dp or micro_batch"
)
EMPTY = (
    "{framework} deals {layers} layers and the head to pp = {pp} stages by their work, which leaves "
    "the last without any; lower pp"
)
# After the head come the conversion of the logits and the loss: two more blocks to deal.
AFTER_HEAD = 2


def schedule_problems(jobs: Jobs, constants: Constants) -> NDArray[np.object_]:
    """Return why the framework of each job refuses its plan, (n,) of str or None.

    Rows whose workload is not known get None.
    """
    reasons = np.full(len(jobs), None, dtype=object)
    profiles = [constants.framework(w.framework) for w in jobs.workloads]
    strict = np.array([p.fills_pipeline > 0 or p.counts_head > 0 for p in profiles], dtype=bool)
    if not strict.any():
        return reasons
    plans, index = jobs.plans, jobs.workload_index
    rows = np.flatnonzero((index >= 0) & strict[index] & (plans.pp > 1))
    made = plans.global_batch[rows] / (plans.micro_batch[rows] * plans.dp[rows])
    for position in np.unique(index[rows]):
        workload, profile = jobs.workloads[position], profiles[position]
        words = {"framework": framework_key(workload.framework), "layers": workload.shape.layers}
        ours = index[rows] == position
        if profile.fills_pipeline:
            few = ours & (made < plans.pp[rows] - 1)
            for i, m in zip(rows[few], made[few], strict=True):
                reasons[i] = FEW.format(need=plans.pp[i] - 1, made=m, **words)
        if profile.counts_head:
            pp = plans.pp[rows]
            last = np.ceil(pp * workload.shape.layers / work_in_layers(workload) - 1e-9)
            empty = ours & (plans.vpp[rows] == 1) & (last + AFTER_HEAD < pp)
            for i in rows[empty]:
                reasons[i] = EMPTY.format(pp=plans.pp[i], **words)
    return reasons


def work_in_layers(workload: Workload) -> float:
    """Return the work of layers and head in layers: L + head weights / weights of one layer."""
    columns = workload.graph.columns
    forward = columns.phase == PHASE_INDEX[Phase.FORWARD]
    weights = columns.weights * columns.repeat * forward
    layers = max(workload.shape.layers, 1)
    one = float(weights[columns.block == BLOCK_INDEX[Block.LAYER]].sum()) / layers
    head = float(weights[columns.block == BLOCK_INDEX[Block.HEAD]].sum())
    return layers + head / max(one, 1.0)
