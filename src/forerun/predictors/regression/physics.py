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
IntArray = NDArray[np.int64]

# With so many readings a configuration, and no more configurations, the law follows each of them.
REPEATED, MANY, FOLDS = 1.2, 60, 5


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
    runs = Runs(jobs, Table({"step_time_s": seconds[rows]}, len(rows)), ordered=True)
    try:
        law = Hierarchical().fit(runs)
    except RequestError:
        return None, said  # too few of them: a line in the logs serves instead
    said[rows] = law.predict(jobs).seconds[:, 1]
    told = [asked.kinds[1], asked.sessions[1], *asked.numbers.values()]
    table = np.nan_to_num(np.stack(told, axis=1)[rows], nan=-1.0)
    of = np.unique(table, axis=0, return_inverse=True)[1].reshape(-1)
    points = int(of.max()) + 1
    if FOLDS <= points < MANY and len(rows) > REPEATED * points:
        apart = _apart(runs, of, points)
        known = np.isfinite(apart)
        said[rows[known]] = apart[known]
    return law, said


def _apart(runs: Runs, of: IntArray, points: int) -> FloatArray:
    """Return what the law says of each run without the runs of its configuration, seconds, (n,).

    A law that had repeats of a few configurations follows each of them: beside it their errors look
    as small as those of readings, which no new configuration's are.
    """
    said = np.full(len(runs), np.nan)
    part = (np.random.default_rng(0).permutation(points) % FOLDS)[of]
    for fold in range(FOLDS):
        judged = np.flatnonzero(part == fold)
        try:
            law = Hierarchical().fit(runs.take(np.flatnonzero(part != fold)))
        except RequestError:
            continue  # these keep what the law of all says
        said[judged] = law.predict(runs.jobs.take(judged)).seconds[:, 1]
    return said
