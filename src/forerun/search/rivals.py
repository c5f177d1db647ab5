"""Rivals: the next best way to lay the work out on the cluster that was chosen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from forerun.contracts import Predictor
from forerun.domain.objective import Objective
from forerun.domain.workload import Length
from forerun.search.reduce import judge
from forerun.search.score import Scored, score_space
from forerun.search.space import Space
from forerun.search.ties import burden, simplest

_LAYOUT = ("dp", "tp", "pp", "cp", "ep")


def next_layout(
    space: Space, predictor: Predictor, objective: Objective, length: Length, best: Scored
) -> Scored | None:
    """Return the best qualified row on the best row's cluster and market with other degrees.

    Args:
        best: one row.

    Plans of the same degrees differ in what is switched by a flag, and are often as good as equal;
    None where no other degrees qualify.
    """
    job, on_spot = best.jobs[0], bool(best.estimates.spot[0])
    market = "spot" if on_spot else "on-demand"
    here, limits = replace(space, clusters=(job.cluster,)), replace(objective, market=market)
    found: Scored | None = None
    least = np.inf
    for scored in score_space(here, predictor, limits, length, {}):
        judged = judge(scored, limits)
        plans = scored.jobs.plans
        same = np.all([getattr(plans, n) == getattr(job.plan, n) for n in _LAYOUT], axis=0)
        rows = np.flatnonzero(judged.qualified & ~same)
        if not len(rows):
            continue
        row = rows[simplest(judged.aim[rows], burden(scored)[rows])]
        if judged.aim[row] < least:
            found, least = scored.take(np.array([row])), judged.aim[row]
    return found
