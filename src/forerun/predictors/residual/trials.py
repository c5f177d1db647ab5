"""Trials: what physics and the correction would have said of runs that neither had seen.

One finished fit says it for every group at once. Without the rows G the constants move by
d = -S J_G' W_G (I - J_G S J_G' W_G)^-1 r_G (see `calibration.spread`), which gives the residuals
that are left to correct, t; and a Gaussian process with inverse covariance A misses the group by
e_G = (A_GG)^-1 (A t)_G (Rasmussen and Williams 2006, equations 5.10-5.12, for blocks). Amplitudes
and rates of the kernel are those of all runs: a few dozen numbers that one group moves little.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.predictors.analytic.calibration.fitting import Fit
from forerun.predictors.residual.kernel import distinct
from forerun.predictors.residual.novelty import KINDS, LACKS, NEW, OWN, PLAN, SCALE, Labels

PARTS = 10  # of the jobs that are left out one after another, and of more groups than this
# Scales left out: above a half and above a quarter of the most devices that were measured.
OCTAVES = (2.0, 4.0)
LEAST_LEFT = 20  # runs that must remain
MOST_TOGETHER = 600  # rows of a group whose pull on the constants is worked out; more are thinned


@dataclass(frozen=True)
class Trial:
    """m runs judged without having been seen, in units that are independent of one another.

    before, after: log measured over forecast seconds of physics and of the corrected forecast, (m,).
    unseen: the part of the correction's variance that no other run explains, 0 to 1, (m,).
    row: which of the learning runs, unit: which unit, (m,). doublings: beyond the devices that
    remained, (m,).
    """

    before: FloatArray
    after: FloatArray
    unseen: FloatArray
    row: IntArray
    unit: IntArray
    doublings: FloatArray


@dataclass(frozen=True)
class Learner:
    """What a trial needs of a fit and its correction.

    fit: of n runs; rows: the m of them that the correction learns from.
    labels: of the n runs; code: equal for equal jobs, (n,).
    residual: log measured over forecast seconds, (n,); own: what constants of one workload, layer,
    device or framework add to the log forecast, (n, 4) as `LACKS`.
    covariance: of the m corrections, inverse: of these with their noise, (m, m); noise: (m,).
    """

    fit: Fit
    rows: IntArray
    labels: Labels
    code: IntArray
    residual: FloatArray
    own: FloatArray
    covariance: FloatArray
    inverse: FloatArray
    noise: FloatArray


def trials_of(learner: Learner) -> dict[str, Trial]:
    """Return the trial of every kind of novelty that the runs can be tried on."""
    found: dict[str, Trial] = {}
    for kind in KINDS:
        pieces = [
            _left_out(learner, group, judged, units, start)
            for start, (group, judged, units) in enumerate(_groups(kind, learner))
        ]
        pieces = [piece for piece in pieces if len(piece.row)]
        if pieces:
            found[kind] = _joined(pieces)
    return found


def _groups(kind: str, learner: Learner) -> Iterator[tuple[IntArray, IntArray, IntArray]]:
    """Yield (rows left out, those of them that are judged, the unit of each of these)."""
    labels, n = learner.labels, len(learner.labels)
    if kind == SCALE:
        yield from _scales(labels)
        return
    if kind == PLAN:
        code = learner.code
    else:
        code = np.unique(getattr(labels, kind).astype(str), return_inverse=True)[1]
    count = int(code.max()) + 1
    if count < 2:
        return
    part = np.random.default_rng(0).permutation(count) % PARTS
    for i in range(min(PARTS, count)):
        group = np.flatnonzero(part[code] == i)
        if n - len(group) >= LEAST_LEFT:
            # Groups that are left out together are as many facts as there are groups, where a
            # group is a workload or a device; of plans a part is one.
            units = np.zeros(len(group), dtype=np.int64) if kind == PLAN else code[group]
            yield group, group, units


def _scales(labels: Labels) -> Iterator[tuple[IntArray, IntArray, IntArray]]:
    most = float(labels.devices.max())
    workload = np.unique(labels.workload.astype(str), return_inverse=True)[1]
    for octave in OCTAVES:
        group = np.flatnonzero(labels.devices > most / octave)
        if not len(group) or len(labels) - len(group) < LEAST_LEFT:
            continue
        judged = group[labels.devices[group] <= 2.0 * most / octave]
        yield group, judged, workload[judged]


def _left_out(
    learner: Learner, group: IntArray, judged: IntArray, units: IntArray, start: int
) -> Trial:
    labels, rows = learner.labels, learner.rows
    place = np.full(len(labels), -1)
    place[rows] = np.arange(len(rows))
    inside = place[group][place[group] >= 0]
    asked = place[judged] >= 0
    judged, units = judged[asked], units[asked]
    empty = np.zeros(0)
    if not len(judged):
        return Trial(empty, empty, empty, empty.astype(int), empty.astype(int), empty)
    rest = np.delete(np.arange(len(labels)), group)
    targets = _targets(learner, group)
    before, missed = targets[place[judged]], _missed(learner.inverse, targets, inside)
    where = np.searchsorted(inside, place[judged])
    lacks = _lacks(labels, judged, rest)
    use = np.concatenate([np.ones((len(judged), 1)), lacks], axis=1)
    beyond = np.log2(np.maximum(labels.devices[judged] / labels.devices[rest].max(), 1.0))
    return Trial(
        before=(before * use).sum(axis=1),
        after=(missed[where] * use).sum(axis=1),
        unseen=_unseen(learner, place[judged], inside),
        row=judged,
        unit=start * (int(units.max(initial=0)) + 1 + len(labels)) + units,
        doublings=beyond,
    )


def _targets(learner: Learner, group: IntArray) -> FloatArray:
    """Return what would be left to correct without the group, (m, 1 + 4).

    The first column is what physics misses with all of its constants, the others what is added for
    those that have to do without the constants of a workload, layer, device or framework.
    """
    fit, rows, count = learner.fit, learner.rows, len(learner.fit.parameters)
    if len(group) > MOST_TOGETHER:
        group = np.random.default_rng(0).choice(group, MOST_TOGETHER, replace=False)
    slopes, weight = fit.slopes[group], fit.weight[group]
    pull = (slopes @ fit.covariance @ slopes.T) * weight
    error = np.linalg.solve(np.eye(len(group)) - pull, fit.residual[group])
    moved = -(fit.covariance @ (slopes.T @ (weight * error)))[:count]
    change = fit.slopes[rows, :count] * moved
    columns = [learner.residual[rows] - change.sum(axis=1)]
    families = np.array([p.family for p in fit.parameters])
    for i, lack in enumerate(LACKS):
        ours = np.array([family.startswith(OWN[lack]) for family in families.tolist()])
        columns.append(learner.own[rows, i] + change[:, ours].sum(axis=1))
    return np.stack(columns, axis=1)


def _missed(inverse: FloatArray, targets: FloatArray, inside: IntArray) -> FloatArray:
    """Return what the correction misses of left-out rows for each column of targets, (g, 1 + 4)."""
    within = inverse[np.ix_(inside, inside)]
    return np.asarray(np.linalg.solve(within, inverse[inside] @ targets))


def _unseen(learner: Learner, asked: IntArray, inside: IntArray) -> FloatArray:
    """Return the part of each row's variance that its nearest run outside the group leaves, (j,)."""
    own = np.diag(learner.covariance)
    others = np.delete(np.arange(len(own)), inside)
    shared = learner.covariance[np.ix_(asked, others)] ** 2
    explained = (shared / (own + learner.noise)[others]).max(axis=1) / own[asked]
    return np.asarray(1.0 - np.clip(explained, 0.0, 1.0))


def _lacks(labels: Labels, judged: IntArray, rest: IntArray) -> BoolArray:
    """Return which constants of their own the judged rows would not have, (j, 4)."""
    found = []
    for lack in LACKS:
        names = labels.named(lack).astype(str)
        found.append(~np.isin(names[judged], names[rest]))
    return np.stack(found, axis=1)


def _joined(pieces: list[Trial]) -> Trial:
    columns = {
        name: np.concatenate([getattr(piece, name) for piece in pieces])
        for name in Trial.__dataclass_fields__
    }
    columns["unit"] = np.unique(columns["unit"], return_inverse=True)[1]
    return Trial(**columns)


def job_codes(values: FloatArray) -> IntArray:
    """Return the same number for rows of the same features, (n,)."""
    return distinct(values)[1]


__all__ = ["NEW", "Learner", "Trial", "job_codes", "trials_of"]
