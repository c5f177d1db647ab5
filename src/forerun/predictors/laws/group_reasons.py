"""Reasons: why a law of a kind does not answer some of its jobs, said once for many rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from forerun.predictors.laws.grouping import Law, TooFewError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Reasons = NDArray[np.object_]

ALONE = "its runs are all on one number of devices, and this is another; run it on a second"


def say_alone(reasons: Reasons, laws: Sequence[Law], chosen: IntArray, devices: FloatArray) -> None:
    """Put the reason of jobs on another number of devices than all runs of their law.

    Args:
        reasons: changed in place, (n,).
        laws: those that answer.
        chosen: which of them answers each job, -1 for none, (n,).
        devices: of the jobs, (n,).
    """
    if not laws:
        return
    bounds = np.array([law.machines for law in laws])
    alone = (bounds[:, 0] == bounds[:, 1])[chosen] & (chosen >= 0)
    reasons[alone & (devices != bounds[chosen, 0])] = ALONE


def say_unsaid(
    reasons: Reasons, chosen: IntArray, columns: Mapping[str, FloatArray],
    sizes: Sequence[str], unsaid: Callable[[str], str],
) -> None:  # fmt: skip
    """Put the reason of jobs that do not say a column; devices have the last word.

    Args:
        reasons: changed in place, (n,).
        chosen: which law answers each job, -1 for none, (n,).
        columns: what the laws read, NaN where unsaid, each (n,).
        sizes: for each law, what is said of a job without its size.
        unsaid: what is said of a job without another column.
    """
    others = [name for name in columns if name not in ("size", "devices")]
    for name in ("size", *others, "devices"):
        lacks = (chosen >= 0) & ~np.isfinite(columns[name])
        if not lacks.any():
            continue
        if name == "size":
            reasons[lacks] = np.array(sizes, dtype=object)[chosen[lacks]]
        else:
            reasons[lacks] = unsaid(name)


def unsaid_by_all(columns: Mapping[str, FloatArray], unsaid: Callable[[str], str]) -> TooFewError:
    """Return what is said of n runs of which none says every column."""
    most = max(columns, key=lambda name: int((~np.isfinite(columns[name])).sum()))
    says = unsaid(most).replace("the row says no", "none says a")
    return TooFewError(f"of {len(columns[most])} runs {says}")
