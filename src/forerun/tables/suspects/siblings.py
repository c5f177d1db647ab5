"""Siblings: what the nearest rows of the same workload on the same device say of a row.

Physics has a bias that rows of one workload on one device share; beside them a row that stands
apart is seen far more sharply than against physics alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.tables.jobs import Runs

_EACH_SIDE = 4
_FEW = 3
LARGE_GROUP = 10


@dataclass(frozen=True)
class Kin:
    """m rows, grouped and ordered so that neighbours are alike.

    Attributes:
        group: (m,) rows of one file, workload and device share a number.
        span: (m,) and so do those of them on one device, in one node, or on several nodes: what
            physics has wrong of a link, they alone share.
        file: (m,) rows of one file share a number.
        order: (m,) rows by group, then by span, software, plan, devices and batch.
    """

    group: IntArray
    span: IntArray
    file: IntArray
    order: IntArray

    def take(self, rows: IntArray) -> Kin:
        """Return the kinship of some rows, positions (k,)."""
        place = np.empty(len(self.order), dtype=np.int64)
        place[self.order] = np.arange(len(self.order))
        order = np.argsort(place[rows], kind="stable")
        return Kin(self.group[rows], self.span[rows], self.file[rows], order)


def kin_of(runs: Runs) -> Kin:
    """Return the kinship of n runs; unresolved rows are kin of one another."""
    jobs, plans = runs.jobs, runs.jobs.plans
    places = runs.table.places()
    names = _codes([w.name for w in jobs.workloads])[jobs.workload_index]
    devices = _codes([c.device.id for c in jobs.clusters])[jobs.cluster_index]
    software = _codes([f"{w.framework} {w.precision}" for w in jobs.workloads])
    count = _numbers([float(c.devices) for c in jobs.clusters])[jobs.cluster_index]
    file = places.file.astype(np.int64)
    code = (file * (int(names.max(initial=0)) + 1) + names) * (int(devices.max(initial=0)) + 1)
    _, group = np.unique(code + devices, return_inverse=True)
    nodes = _numbers([float(c.nodes) for c in jobs.clusters])[jobs.cluster_index]
    span = 3 * group.astype(np.int64) + (count > 1) + (nodes > 1)
    order = np.lexsort(
        (plans.global_batch, plans.micro_batch, count, plans.tp, plans.pp,
         software[jobs.workload_index], span)
    )  # fmt: skip
    return Kin(group.astype(np.int64), span, file, order.astype(np.int64))


def _codes(names: list[str]) -> IntArray:
    """Return each name's code from 1, and 0 at the end for a position of -1."""
    known = {name: i + 1 for i, name in enumerate(dict.fromkeys(names))}
    return np.array([known[name] for name in names] + [0], dtype=np.int64)


def _numbers(values: list[float]) -> FloatArray:
    return np.array([*values, 0.0])


def around(values: FloatArray, kin: Kin) -> tuple[FloatArray, FloatArray, IntArray]:
    """Return (centre, spread, count) of each row's nearest siblings, the row itself left out.

    Args:
        values: (m,) finite.
        kin: of these m rows.

    Returns:
        Medians (m,), 1.4826 x median absolute deviations (m,), and how many siblings spoke. Where
        they are fewer than three the centre is the median of the file's other rows, and 0 (physics)
        where these are fewer than three too; spread is NaN in both.
    """
    order, n = kin.order, len(values)
    offsets = np.concatenate([np.arange(-_EACH_SIDE, 0), np.arange(1, _EACH_SIDE + 1)])
    places = np.arange(n)[:, None] + offsets
    inside = (places >= 0) & (places < n)
    places = np.clip(places, 0, max(n - 1, 0))
    sorted_values = values[order]
    alike, closer = (
        inside & (c[places] == c[:, None]) for c in (kin.group[order], kin.span[order])
    )
    alike = np.where((closer.sum(axis=1) >= _FEW)[:, None], closer, alike)
    near = np.where(alike, sorted_values[places], np.nan)
    count = alike.sum(axis=1)
    enough = count >= _FEW
    # A file of a few rows has no centre of its own: physics stands.
    several = np.bincount(kin.file)[kin.file] > _FEW
    middle = np.where(several, medians(values, kin.file), 0.0)[order]
    width = np.full(n, np.nan)
    middle[enough] = np.nanmedian(near[enough], axis=1)
    width[enough] = 1.4826 * np.nanmedian(np.abs(near[enough] - middle[enough, None]), axis=1)
    centre, spread, counts = np.empty(n), np.empty(n), np.empty(n, dtype=np.int64)
    centre[order], spread[order], counts[order] = middle, width, count
    return centre, spread, counts


def medians(values: FloatArray, member: IntArray) -> FloatArray:
    """Return the median over each row's group, (m,)."""
    order = np.lexsort((values, member))
    counts = np.bincount(member)
    start = np.cumsum(counts) - counts
    low, high = start + np.maximum(counts - 1, 0) // 2, start + counts // 2
    ordered = np.append(values[order], np.nan)
    return np.asarray((ordered[low] + ordered[high])[member] / 2.0)


def tails(values: FloatArray, kin: Kin, chosen: BoolArray, share: float = 0.98) -> FloatArray:
    """Return how far out the chosen rows of each row's group reach, (m,), but for the last few.

    values: (m,) from 0 upward. 0 where no row is chosen.
    """

    def reach(member: IntArray) -> FloatArray:
        rows = np.flatnonzero(chosen)
        order = rows[np.lexsort((values[rows], member[rows]))]
        counts = np.bincount(member[rows], minlength=int(member.max(initial=0)) + 1)
        last = np.cumsum(counts) - counts + np.ceil(share * (counts - 1)).astype(np.int64)
        ordered = np.append(values[order], 0.0)
        return np.where(counts > 0, ordered[np.clip(last, 0, len(rows))], 0.0)[member]

    return np.where(_big(kin), reach(kin.group), reach(kin.file))


def scale(apart: FloatArray, kin: Kin) -> FloatArray:
    """Return how far rows usually stand apart, (m,): in the row's group, or its file if it is small.

    1.4826 x the median absolute value, so that a good part of the rows may be wrong.
    """
    size = np.abs(apart)
    return 1.4826 * np.where(_big(kin), medians(size, kin.group), medians(size, kin.file))


def own_doubt(log_ratio: FloatArray, bands: FloatArray, kin: Kin) -> FloatArray:
    """Return the log by which a row's band reaches towards it beyond the usual of its file, (m,).

    bands: (2, m) logs by which p05 lies below the median, and p95 above it.
    """
    beyond = [np.maximum(band - medians(band, kin.file), 0.0) for band in bands]
    return np.asarray(np.where(log_ratio < 0, *beyond))


def _big(kin: Kin) -> BoolArray:
    return np.asarray(np.bincount(kin.group)[kin.group] >= LARGE_GROUP)
