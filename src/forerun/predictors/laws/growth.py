"""Growth of bands: how much less sure a law is a doubling beyond its runs, as its own runs show.

Each kind's runs on the fewer half of its devices teach a law, and the rest tell how far off it is:
a band from residuals alone covers two thirds where it should cover nine tenths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from forerun.domain.quantiles import Z95
from forerun.predictors.laws.grouping import Answers, Group, TooFewError, part_of

if TYPE_CHECKING:
    from forerun.predictors.laws.grouped import GroupedLaws

FloatArray = NDArray[np.float64]

# Log standard deviation of a law a doubling away before any run has shown it, which counts as much
# as this many kinds that have.
PRIOR_SIGMA, PRIOR_KINDS = 0.08, 2.0
# A kind that was foretold at all is not further off than this.
MOST_SIGMA = 1.0
LEAST_RUNS = 3


def learned_sigma(predictor: GroupedLaws[Any], groups: Sequence[Group]) -> float:
    """Return the log standard deviation of a law for each doubling beyond its runs.

    Args:
        predictor: whose laws they are.
        groups: the runs of each kind.
    """
    halves = [half for half in map(_halves, groups) if half is not None]
    laws = predictor.group_laws([near for near, _ in halves])
    squares = []
    for law, (_, far) in zip(laws, halves, strict=True):
        if isinstance(law, TooFewError) or (
            law.machines[0] == law.machines[1] and not predictor.one_number_speaks
        ):
            continue
        index = np.zeros(len(far.seconds), dtype=np.int64)
        shown = _shown(predictor.answers([law], index, far.columns), far.seconds)
        if len(shown):
            squares.append(min(float(np.quantile(shown, 0.9)), MOST_SIGMA) ** 2)
    total = PRIOR_KINDS * PRIOR_SIGMA**2 + sum(squares)
    return float(np.sqrt(total / (PRIOR_KINDS + len(squares))))


def _halves(group: Group) -> tuple[Group, Group] | None:
    """Return the runs on the fewer half of devices and the others, None where either is too few."""
    devices = group.columns["devices"]
    near = devices <= devices.max() / 2
    if near.sum() < LEAST_RUNS or near.all():
        return None
    return _part(group, near), _part(group, ~near)


def _part(group: Group, rows: NDArray[np.bool_]) -> Group:
    return replace(
        group, columns=part_of(group.columns, rows), seconds=group.seconds[rows],
        measured=part_of(group.measured, rows),
    )  # fmt: skip


def _shown(answer: Answers, seconds: FloatArray) -> FloatArray:
    """Return the sigma a doubling that would just have let each time into its band, (n,)."""
    middle = answer.seconds[:, 1]
    rows = (answer.beyond > 0) & np.isfinite(answer.seconds).all(axis=1) & (middle > 0)
    error = np.log(seconds[rows] / middle[rows])
    side = np.where(error < 0, 0, 2)
    reach = np.log(answer.seconds[rows, side] / middle[rows])
    missing: FloatArray = np.sqrt(np.maximum(error**2 - reach**2, 0.0))
    return missing / (Z95 * answer.beyond[rows])


def widened(seconds: FloatArray, sigma: FloatArray) -> FloatArray:
    """Return quantiles (n, 3) with a log standard deviation (n,) more about the same medians."""
    middle = seconds[:, 1]
    more = (Z95 * sigma) ** 2
    wide = seconds.copy()
    with np.errstate(divide="ignore", invalid="ignore"):
        wide[:, 0] = middle * np.exp(-np.sqrt(np.log(middle / seconds[:, 0]) ** 2 + more))
        wide[:, 2] = middle * np.exp(np.sqrt(np.log(seconds[:, 2] / middle) ** 2 + more))
    return wide
