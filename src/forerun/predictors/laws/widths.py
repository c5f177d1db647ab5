"""Widths of bands, as a law's own runs show them: among its runs, and a doubling beyond them.

Some runs of each kind are kept from a law, and tell how far off it is: a band from residuals alone
covers two thirds where it should cover nine tenths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.domain.quantiles import Z95
from forerun.predictors.laws.grouping import Answers, Group, TooFewError, part_of

if TYPE_CHECKING:
    from forerun.predictors.laws.grouped import GroupedLaws


# Log standard deviation of a law a doubling away before any run has shown it, which counts as much
# as this many kinds that have; and the most that is believed of one that shows more.
PRIOR_SIGMA, PRIOR_KINDS, MOST_SIGMA = 0.08, 2.0, 1.0
LEAST_RUNS = 3
# How wide bands are among the runs before any have shown it, which counts as much as this many.
PRIOR_RUNS = 10.0
SCALES = (0.95, 6.0)
LEAST_POINTS = 5
# Kinds that are asked, those with most runs: more of them say little more, and each is two fits.
MOST_KINDS = 24


@dataclass(frozen=True)
class Widths:
    """How wide the bands of laws are.

    Attributes:
        scale: of the bands that the laws give, where runs lie about the job.
        doubling_sigma: log standard deviation of a law for each doubling beyond its runs.
    """

    scale: float = 1.0
    doubling_sigma: float = PRIOR_SIGMA

    def applied(self, answer: Answers) -> FloatArray:
        """Return the quantiles of n answers, (n, 3), about the same medians."""
        middle = answer.seconds[:, 1]
        more = (Z95 * self.doubling_sigma * answer.beyond) ** 2
        wide = answer.seconds.copy()
        with np.errstate(divide="ignore", invalid="ignore"):
            for side, sign in ((0, -1.0), (2, 1.0)):
                reach = self.scale * np.log(answer.seconds[:, side] / middle)
                wide[:, side] = middle * np.exp(sign * np.sqrt(reach**2 + more))
        return wide


def learned_widths(predictor: GroupedLaws[Any], groups: Sequence[Group]) -> Widths:
    """Return how wide bands are to be, from runs of each kind that its law was not shown.

    A quarter of the points says it of jobs among the runs; then the fewer half of the devices
    teaches, and the rest says it of jobs beyond.

    Args:
        predictor: whose laws they are.
        groups: the runs of each kind.
    """
    groups = sorted(groups, key=lambda group: -len(group.seconds))[:MOST_KINDS]
    ratios = []
    for answer, seconds in _told(predictor, [_quarters(group) for group in groups]):
        error, reach = _errors(answer, seconds)
        left = np.maximum(error**2 - (Z95 * predictor.prior_sigma * answer.beyond) ** 2, 0.0)
        ratios.append(np.sqrt(left) / reach)
    scale = 1.0
    if ratios:
        seen = np.concatenate(ratios)
        scale = (PRIOR_RUNS + len(seen) * np.quantile(seen, 0.9)) / (PRIOR_RUNS + len(seen))
    scale = float(np.clip(scale, *SCALES))
    squares = []
    for answer, seconds in _told(predictor, [_halves(group) for group in groups]):
        error, reach = _errors(answer, seconds)
        far = answer.beyond > 0
        if far.any():
            missing = np.sqrt(np.maximum(error**2 - (scale * reach) ** 2, 0.0))[far]
            shown = float(np.quantile(missing / (Z95 * answer.beyond[far]), 0.9))
            squares.append(min(shown, predictor.most_sigma) ** 2)
    total = PRIOR_KINDS * predictor.prior_sigma**2 + sum(squares)
    return Widths(scale, float(np.sqrt(total / (PRIOR_KINDS + len(squares)))))


def _told(
    predictor: GroupedLaws[Any], parts: Sequence[tuple[Group, Group] | None]
) -> Iterator[tuple[Answers, FloatArray]]:
    """Yield what laws of the first part of each kind say of the second, and what it took."""
    both = [part for part in parts if part is not None]
    laws = predictor.group_laws([taught for taught, _ in both])
    for law, (_, asked) in zip(laws, both, strict=True):
        if isinstance(law, TooFewError):
            continue
        devices = asked.columns["devices"]
        if law.machines[0] == law.machines[1] and not predictor.one_number_speaks:
            asked = _part(asked, devices == law.machines[0])
        index = np.zeros(len(asked.seconds), dtype=np.int64)
        answer = predictor.answers([law], index, asked.columns)
        fine = (np.isfinite(answer.seconds) & (answer.seconds > 0)).all(axis=1)
        if fine.any():
            yield (
                Answers(answer.seconds[fine], answer.parts[fine], answer.beyond[fine]),
                (asked.seconds[fine]),
            )


def _errors(answer: Answers, seconds: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return logs of measured over foretold, and how far the band reaches on that side, (n,)."""
    middle = answer.seconds[:, 1]
    error = np.log(seconds / middle)
    edge = np.where(error < 0, answer.seconds[:, 0], answer.seconds[:, 2])
    return error, np.maximum(np.abs(np.log(edge / middle)), 1e-6)


def _quarters(group: Group) -> tuple[Group, Group] | None:
    """Return the runs of three quarters of the points and of the others, None where too few."""
    places = np.stack(list(group.columns.values()), axis=1)
    index = np.unique(places, axis=0, return_inverse=True)[1].reshape(-1)
    points = int(index.max()) + 1
    if points < LEAST_POINTS:
        return None
    drawn = np.random.default_rng(0).permutation(points) < points // 4
    kept = drawn[index]
    return _part(group, ~kept), _part(group, kept)


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
