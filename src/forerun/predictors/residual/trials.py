"""Trials: what physics and the correction would have said of runs that neither had seen.

One finished fit says it for every group at once. Without the rows G the constants move by
d = -S J_G' W_G (I - J_G S J_G' W_G)^-1 r_G (see `calibration.spread`), which gives the residuals
that are left to correct, t; and a Gaussian process with inverse covariance A misses the group by
e_G = (A_GG)^-1 (A t)_G (Rasmussen and Williams 2006, equations 5.10-5.12, for blocks). Amplitudes
and rates of the kernel are those of all runs: a few dozen numbers that one group moves little.

Novelty: in what a job differs from those that were measured, and what physics lacks for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.predictors.analytic.calibration.fitting import Fit
from forerun.predictors.analytic.constants import framework_key, scale_key
from forerun.predictors.analytic.layout import shapes_of_rows
from forerun.predictors.analytic.uncertainty import settings_of
from forerun.predictors.residual.kernel import distinct
from forerun.tables import Jobs

# What may be new about a job; one of which nothing is new is a new plan, or a repeat.
PLAN, SCALE = "plan", "scale"
NEW = ("workload", "device", "framework", "setting")
KINDS = (PLAN, *NEW, SCALE)
# Families of constants that belong to one workload, layer, device or framework: a job of another
# has to do without them.
OWN: Mapping[str, tuple[str, ...]] = {
    "workload": ("workload_scale",),
    "shape": ("shape_scale",),
    "device": ("device_compute", "device_bandwidth", "device_host"),
    "framework": ("framework.",),
}
LACKS = tuple(OWN)


@dataclass(frozen=True)
class Labels:
    """What n jobs are called, columns (n,) of text, and how many devices they use, (n,).

    scale and shape are the names of a workload and of a layer among physics' constants.
    """

    workload: NDArray[np.object_]
    device: NDArray[np.object_]
    framework: NDArray[np.object_]
    setting: NDArray[np.object_]
    scale: NDArray[np.object_]
    shape: NDArray[np.object_]
    devices: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.devices)

    def take(self, rows: IntArray) -> Labels:
        """Return the labels of some of the jobs."""
        return Labels(**{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})

    def named(self, lack: str) -> NDArray[np.object_]:
        """Return what a family of constants calls each job, (n,)."""
        return np.asarray(getattr(self, "scale" if lack == "workload" else lack))


def labels_of(jobs: Jobs) -> Labels:
    """Return what resolved jobs are called."""

    def of_workloads(names: list[str]) -> NDArray[np.object_]:
        return np.array(names, dtype=object)[jobs.workload_index]

    return Labels(
        workload=of_workloads([w.name for w in jobs.workloads]),
        device=np.array([c.device.id for c in jobs.clusters], dtype=object)[jobs.cluster_index],
        framework=of_workloads([framework_key(w.framework) for w in jobs.workloads]),
        setting=settings_of(jobs),
        scale=of_workloads([scale_key(w) for w in jobs.workloads]),
        shape=shapes_of_rows(jobs),
        devices=jobs.per_cluster("devices").astype(np.float64),
    )


@dataclass(frozen=True)
class MeasuredKinds:
    """What was measured: names by label, names with constants of their own, and most devices."""

    names: Mapping[str, frozenset[str]]
    constants: Mapping[str, frozenset[str]]
    devices: float

    def news(self, labels: Labels, labelled: bool) -> dict[str, BoolArray]:
        """Return for each kind of novelty which of n jobs have it, (n,) each.

        labelled: whether the jobs say where they are run; one that does not is run where the runs
        were measured.
        """
        found = {
            kind: ~_among(getattr(labels, kind), self.names[kind])
            for kind in NEW
            if kind != "setting" or labelled
        }
        found[SCALE] = labels.devices > self.devices
        nothing = ~np.logical_or.reduce(list(found.values()))
        return {PLAN: nothing, **found}

    def lacks(self, labels: Labels) -> BoolArray:
        """Return which constants of their own n jobs have to do without, (n, 4) as `LACKS`."""
        return np.stack(
            [~_among(labels.named(lack), self.constants[lack]) for lack in LACKS], axis=1
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "names": {name: sorted(values) for name, values in self.names.items()},
            "constants": {name: sorted(values) for name, values in self.constants.items()},
            "devices": self.devices,
        }

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> MeasuredKinds:
        """Return what `to_dict` wrote."""

        def sets(name: str, keys: tuple[str, ...]) -> dict[str, frozenset[str]]:
            return {key: frozenset(map(str, values[name][key])) for key in keys}

        return MeasuredKinds(sets("names", NEW), sets("constants", LACKS), float(values["devices"]))


def known_of(fit: Fit, labels: Labels) -> MeasuredKinds:
    """Return what the runs of a fit have measured; labels: of its jobs."""
    names = {kind: frozenset(map(str, getattr(labels, kind))) for kind in NEW}
    constants = {
        lack: frozenset(p.key for p in fit.parameters if p.family.startswith(families))
        for lack, families in OWN.items()
    }
    return MeasuredKinds(names, constants, float(labels.devices.max()))


def _among(values: NDArray[np.object_], names: frozenset[str]) -> BoolArray:
    """Return which values are among the names, (n,); each distinct value is looked up once."""
    distinct, place = np.unique(values.astype(str), return_inverse=True)
    return np.array([value in names for value in distinct.tolist()], dtype=bool)[place]


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
