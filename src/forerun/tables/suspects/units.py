"""Units: figures that are right in another unit than their column's.

A unit is accepted where it makes a figure several times likelier than its siblings' tail does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from forerun import packaged
from forerun.arrays import BoolArray, FloatArray, IntArray, group_medians
from forerun.tables.jobs import Runs, row_step_samples

# (name, advice, factor on the implied time or the size that it is, reluctance): the last is the log
# by which this unit must explain a figure better than others do.
_Named = tuple[str, str, float | str, float]


def _factor(text: str) -> float | str:
    try:
        return float(Fraction(text))
    except ValueError:
        return text


# By column: its own unit, and those that it may be in by mistake.
UNITS: dict[str, tuple[str, list[_Named]]] = {}
for _row in packaged.table(__file__, "units.csv"):
    UNITS.setdefault(_row["column"], (_row["unit"], []))[1].append(
        (_row["name"], _row["advice"], _factor(_row["factor"]), float(_row["reluctance"]))
    )
TIMES = ("step_time_s", "samples_per_s", "tokens_per_s")
# Factors that differ from row to row and that a slow program may have too: no proof by themselves.
_PER_ROW = ("devices", "batch", "1/batch", "1/passes", "1/devices")


@dataclass(frozen=True)
class Unit:
    """A unit that a column may be in by mistake.

    log_factor: (n,) log of implied over true step seconds, NaN where it cannot be. reluctance: log by
    which it must explain a figure better than others do. clear: so large a factor alone is proof.
    swapped: the column holds the inverse quantity.
    """

    name: str
    advice: str
    log_factor: FloatArray
    reluctance: float = 0.0
    clear: bool = True
    swapped: bool = False


@dataclass(frozen=True)
class Reading:
    """One measured column: (n,) logs of the step seconds (or bytes) it implies; NaN where blank."""

    column: str
    unit: str
    values: FloatArray
    log_implied: FloatArray
    units: tuple[Unit, ...]


def readings(runs: Runs, log_expected: FloatArray) -> tuple[Reading, ...]:
    """Return the reading of each measured column that has a value; log_expected: of steps, (n,)."""
    sizes = _sizes(runs, log_expected)
    nothing = np.zeros(len(runs))
    scales = {
        "step_time_s": nothing, "samples_per_s": sizes["batch"],
        "tokens_per_s": sizes["batch"] + _log(runs.table.numbers("seq_len")),
        "epoch_time_s": -sizes["epoch_steps"], "memory_gb": nothing + np.log(1e9),
    }  # fmt: skip
    found = []
    for column, scale in scales.items():
        values = runs.table.numbers(column)
        if column != "memory_gb":
            values = np.where(runs.status == "ok", values, np.nan)
        logs = _log(values)
        if np.isnan(logs).all():
            continue
        unit, named = UNITS[column]
        units = tuple(
            Unit(name, advice, sizes[factor] if isinstance(factor, str) else nothing + np.log(factor),
                 reluctance, factor not in _PER_ROW, str(factor).startswith("inverse"))
            for name, advice, factor, reluctance in named
        )  # fmt: skip
        implied = scale - logs if column.endswith("per_s") else scale + logs
        found.append(Reading(column, unit, values, implied, units))
    return tuple(found)


def _sizes(runs: Runs, log_expected: FloatArray) -> dict[str, FloatArray]:
    """Return the logs of what turns one quantity into another, (n,), NaN where not known."""
    jobs, table, plans = runs.jobs, runs.table, runs.jobs.plans
    batch = _log(row_step_samples(table))

    def size(name: str) -> FloatArray:
        own = _log(table.numbers(name))
        return np.where(np.isnan(own), _log(jobs.per_workload(name, np.nan)), own)

    seq_len, inverse = size("seq_len"), batch - 2.0 * log_expected
    sizes = {
        "batch": batch,
        "devices": _log(jobs.per_cluster("devices", np.nan)),
        "seq_len": seq_len,
        "epoch_steps": size("dataset_size") - batch,
        "passes": _log(plans.global_batch / (plans.micro_batch.astype(np.float64) * plans.dp)),
        "inverse": inverse,
        "inverse_tokens": inverse + seq_len,
    }  # fmt: skip
    return {**sizes, **{f"1/{name}": -logs for name, logs in sizes.items()}}


def _log(values: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(values)
    return np.where(np.isfinite(logs), logs, np.nan)


_EACH_SIDE, _FEW = 6, 3
LARGE_GROUP = 10


@dataclass(frozen=True)
class Kin:
    """m rows, numbered by group (file, workload, device) and by file, and ordered: alike ones are near."""

    group: IntArray
    file: IntArray
    order: IntArray

    @staticmethod
    def of(runs: Runs) -> Kin:
        """Return the kinship of n runs; unresolved rows are kin of one another."""
        jobs, plans = runs.jobs, runs.jobs.plans

        def codes(names: Sequence[object], index: NDArray[np.int32]) -> IntArray:
            known = {name: i + 1 for i, name in enumerate(dict.fromkeys(names))}
            return np.array([*(known[name] for name in names), 0], dtype=np.int64)[index]

        name = codes([w.name for w in jobs.workloads], jobs.workload_index)
        software = codes([(w.framework, w.precision) for w in jobs.workloads], jobs.workload_index)
        device = codes([c.device.id for c in jobs.clusters], jobs.cluster_index)
        sizes = [(c.devices, c.nodes) for c in jobs.clusters]
        devices, nodes = np.array([*sizes, (0, 0)], dtype=np.int64).T[:, jobs.cluster_index]
        file = runs.table.places().file.astype(np.int64)
        _, group = np.unique(np.stack([file, name, device]), axis=1, return_inverse=True)
        group = np.asarray(group, dtype=np.int64).reshape(-1)
        reach = (devices > 1).astype(np.int64) + (nodes > 1)
        keys = plans.global_batch, plans.micro_batch, devices, plans.tp, plans.pp, software, reach
        return Kin(group, file, np.lexsort((*keys, group)))

    def take(self, rows: IntArray) -> Kin:
        """Return the kinship of some rows."""
        order = np.argsort(np.argsort(self.order)[rows])
        return Kin(self.group[rows], self.file[rows], order)

    @property
    def large(self) -> BoolArray:
        """Which rows have a group that is large enough to be judged by itself, (m,)."""
        return np.asarray(np.bincount(self.group)[self.group] >= LARGE_GROUP)

    def medians(self, values: FloatArray) -> FloatArray:
        """Return the median over each row's group, or over its file where that is small, (m,)."""
        return np.where(self.large, medians(values, self.group), medians(values, self.file))


def medians(values: FloatArray, member: IntArray) -> FloatArray:
    """Return the median over each row's group, (m,)."""
    groups = int(member.max(initial=-1)) + 1
    return np.asarray(group_medians(values, member, groups).mean(axis=0)[member])


def around(values: FloatArray, kin: Kin) -> tuple[FloatArray, FloatArray, IntArray]:
    """Return (median, 1.4826 x median absolute deviation, count) of each row's siblings, (m,) each.

    With fewer than three siblings the centre is the file's median, or 0 (physics) of three rows or
    fewer, and the spread NaN.
    """
    order, n = kin.order, len(values)
    places = np.arange(n)[:, None] + np.r_[-_EACH_SIDE:0, 1 : _EACH_SIDE + 1]
    inside = (places >= 0) & (places < n)
    places = np.clip(places, 0, n - 1)
    group = kin.group[order]
    alike = inside & (group[places] == group[:, None])
    near = np.where(alike, values[order][places], np.nan)
    count = alike.sum(axis=1)
    enough = count >= _FEW
    several = np.bincount(kin.file)[kin.file] > _FEW
    middle = np.where(several, medians(values, kin.file), 0.0)[order]
    width = np.full(n, np.nan)
    middle[enough] = np.nanmedian(near[enough], axis=1)
    width[enough] = 1.4826 * np.nanmedian(np.abs(near[enough] - middle[enough, None]), axis=1)
    back = np.argsort(order)
    return middle[back], width[back], count[back]


FAR = float(np.log(8.0))  # physics without a run is rarely so far off
LOOSE = np.log(6.0)  # how well a unit must explain a figure against physics alone
LARGE = np.log(30.0)  # a factor that no honest row reaches but by a rare misfortune
NOISE = 0.02  # log spread that even repeats have
CLOSE_SIBLINGS = 5
WHOLE_SHARE = 0.8
WINDOW = np.log(2.5)  # how well a unit must explain a figure, beside siblings
ABSURD = np.log(150.0)  # no program is so slow
# How many times likelier than an honest row of heavy tails a unit must be: to be flagged, to leave out.
LIKELIER, FAR_LIKELIER = 5.0, 20.0


class Verdicts(NamedTuple):
    """The units of a column's m rows.

    unit: (m,) position among the units, -1 of the column's own, their number where none explains a
    figure that cannot be. centre: (m,) log by which the figure is expected to be off physics.
    """

    unit: IntArray
    sure: BoolArray
    centre: FloatArray


def judged(
    log_ratio: FloatArray, factors: FloatArray, units: Sequence[Unit], kin: Kin, ties: IntArray,
    doubt: FloatArray,
) -> Verdicts:  # fmt: skip
    """Return the verdicts on m rows by their logs of implied over forecast value.

    factors: (g, m) logs of the units, NaN where one cannot be. ties: how many other columns of the row
    agree. doubt: log by which the forecast's band reaches further towards the row than is usual.
    """
    swapped, clear = (np.array([getattr(u, name) for u in units]) for name in ("swapped", "clear"))
    reluctance = np.array([u.reluctance for u in units])[:, None]
    shift, doubtful = _whole_shift(log_ratio, factors, units, kin, ties > 0)
    moved = log_ratio - shift
    every = np.arange(len(moved))
    # Ratios are honest once those are corrected that physics, less its common bias, finds wrong.
    bias = _common_bias(moved, kin)
    apart, here = moved - bias, factors - 2.0 * np.where(swapped[:, None], bias, 0.0)
    distance = np.nan_to_num(np.abs(apart - here), nan=np.inf)
    best = np.argmin(distance, axis=0)
    far = (np.abs(apart) > FAR) & (distance[best, every] < LOOSE)
    left = apart - np.where(far, here[best, every], 0.0)
    honest = bias + np.where(far & swapped[best], -left, left)
    for _ in range(2):  # what the first look corrects sharpens the second
        centre, spread, count = around(honest, kin)
        apart = moved - centre
        # What is swapped turns physics' bias round, and so is off by it twice.
        here = factors - 2.0 * np.where(swapped[:, None], centre, 0.0)
        distance = np.nan_to_num(np.abs(apart - here) + reluctance, nan=np.inf)
        best = np.argmin(distance, axis=0)
        error = distance[best, every]
        factor = np.where(np.isfinite(error), here[best, every], 0.0)
        size = np.abs(factor)
        usual = 1.4826 * kin.medians(np.abs(honest - centre))
        width = np.maximum(usual, np.where(np.isnan(spread), usual, spread / 2.0)) + NOISE
        large = (size >= LARGE) & (error < WINDOW)
        middling = (size < LARGE) & (error < np.minimum(WINDOW, size / 3.0)) & (shift == 0)
        middling &= np.abs(apart) > np.maximum(5.0 * width, np.log(1.5))
        middling &= (count >= CLOSE_SIBLINGS) | (size >= np.log(4.0))
        # Two columns that were swapped agree all the same, three no longer.
        free = np.where(swapped[best], ties < 2, (ties == 0) | (large & clear[best]))
        # How much likelier the unit makes a row than siblings that spread as Student's t2.
        off = np.maximum(np.abs(apart) - doubt, 0.0)
        honestly, mistaken = ((d / width) ** 2 / 2.0 for d in (off, np.minimum(error, off)))
        odds = 1.5 * (np.log1p(honestly) - np.log1p(mistaken))
        accepted = (large | middling) & free & (odds > np.log(LIKELIER))
        accepted &= _stands_alone(apart, best, swapped, accepted, kin, usual)
        left = np.where(swapped[best], factor - apart, apart - factor)
        honest = np.where(accepted, centre + left, moved)
    whole = (shift != 0) & (np.abs(apart) < np.abs(apart + shift)) & ~accepted
    # Sixty times too slow is what a bad network does too: without siblings it stays a doubt.
    proven = (count >= 3) | (size >= np.log(100.0)) | (clear[best] & large & (apart < 0))
    sure = accepted & (odds > np.log(FAR_LIKELIER)) & proven
    unit = np.where(accepted, best, -1)
    at_shift = np.argmin(np.nan_to_num(np.abs(factors - shift), nan=np.inf), axis=0)
    unit, sure = np.where(whole, at_shift, unit), np.where(whole, ~doubtful, sure)
    # What most rows of a table share is a forecast that is off, no fault of one row.
    lost = np.abs(log_ratio - _common_bias(log_ratio, kin)) > ABSURD
    lost = (unit < 0) & (lost | (np.abs(apart) > ABSURD))
    return Verdicts(np.where(lost, len(factors), unit), sure | lost, centre)


def _common_bias(log_ratio: FloatArray, kin: Kin) -> FloatArray:
    """Return the median log ratio of each row's group, else of its file, where few are far off, else 0, (m,)."""
    bias, trusted = np.zeros(len(log_ratio)), np.ones(len(log_ratio), dtype=bool)
    for member, use in ((kin.file, trusted), (kin.group, kin.large)):
        near = np.abs(log_ratio - bias) < FAR
        share = np.bincount(member, near)[member] / np.bincount(member)[member]
        trusted = trusted & use & (share > 0.6)
        bias = np.where(trusted, medians(log_ratio, member), bias)
    return bias


def _whole_shift(
    log_ratio: FloatArray, factors: FloatArray, units: Sequence[Unit], kin: Kin, tied: BoolArray
) -> tuple[FloatArray, BoolArray]:
    """Return the log (m,) by which a file's whole column is off by a middling unit, and whether in doubt."""
    shift, doubtful = np.zeros(len(log_ratio)), np.zeros(len(log_ratio), dtype=bool)
    for file in np.unique(kin.file):
        rows = np.flatnonzero((kin.file == file) & ~tied)
        if len(rows) < CLOSE_SIBLINGS:
            continue
        ratio = log_ratio[rows]
        off, least = float(np.median(np.abs(ratio))), np.inf
        for unit, factor in zip(units, factors[:, rows], strict=True):
            # A clear unit each row shows by itself.
            if (unit.clear and not unit.swapped) or np.isnan(factor).mean() > 0.2:
                continue
            factor = np.nan_to_num(factor)
            left = float(np.median(np.abs(ratio - factor)))
            gain = _spread(ratio - factor) / max(_spread(ratio), NOISE)
            # Rows that differ just as the unit has it show it, whatever physics' bias.
            varied = bool(factor.std() > 0.3)
            explains = gain < 0.6 and left < max(off / 2, WINDOW)
            if not varied:
                size = float(np.median(np.abs(factor)))
                explains = np.log(3.0) < off and left < off / 2 and size < LARGE
            if explains and left < least:
                plain = off > np.log(4.0) and left < off / 5
                shift[rows], doubtful[rows] = factor, not (varied and (gain < 0.4 or plain))
                least = left
    return shift, doubtful


def _spread(values: FloatArray) -> float:
    return float(np.median(np.abs(values - np.median(values))))


def _stands_alone(
    apart: FloatArray, best: IntArray, swapped: BoolArray, accepted: BoolArray, kin: Kin,
    usual: FloatArray,
) -> BoolArray:  # fmt: skip
    """Return which accepted rows no tail leads up to, (m,).

    More rows of the group (or file) must share their unit than honest ones stand half as far out or
    more; twice as many for a swapped column, whose factors differ so much that some fit any tail.
    """
    out = np.abs(apart)
    result = accepted.copy()
    side = (apart > 0).astype(np.int64)
    beyond = float(out.max(initial=0.0)) + 1.0  # keeps groups apart in one sorted array
    for member, use in ((kin.group, kin.large), (kin.file, ~kin.large)):
        where = 2 * member + side
        key = np.sort((where * beyond + out)[~accepted & (out > 4.0 * usual)])
        ends = np.searchsorted(key, (where + 1) * beyond)
        near = ends - np.searchsorted(key, where * beyond + out / 2.0, side="right")
        _, alike = np.unique(where * (int(best.max(initial=0)) + 1) + best, return_inverse=True)
        result &= ~use | ((1 + swapped[best]) * near < np.bincount(alike, accepted)[alike])
    if np.array_equal(result, accepted):
        return result
    return _stands_alone(apart, best, swapped, result, kin, usual)  # the rejected are of the tail
