"""Physics: the law whose errors a process learns, where there is one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forerun.domain.plan import SYNC
from forerun.errors import RequestError
from forerun.predictors.laws.hierarchical import Hierarchical
from forerun.predictors.regression.questions import Questions
from forerun.tables import Runs, Table

FloatArray = NDArray[np.float64]


def physics_of(
    asked: Questions, seconds: FloatArray, quantity: str
) -> tuple[Hierarchical | None, FloatArray]:
    """Return the hierarchical law of n runs, and seconds that it says of each, NaN where none.

    It speaks of steps by all-reduce; of other quantities, or too few runs, there is no law.
    """
    said = np.full(len(seconds), np.nan)
    rows = np.flatnonzero(asked.rows.sync == SYNC.index("allreduce"))
    if quantity != "step" or not len(rows):
        return None, said
    jobs = asked.jobs.take(rows)
    try:
        law = Hierarchical().fit(Runs(jobs, Table({"step_time_s": seconds[rows]}, len(rows))))
    except RequestError:
        return None, said  # too few of them: a line in the logs serves instead
    said[rows] = law.predict(jobs).seconds[:, 1]
    return law, said
