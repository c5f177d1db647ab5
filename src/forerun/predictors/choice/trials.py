"""Trials: candidates judged on runs that they were not fitted to, for each kind of question apart.

Another candidate than the usual first leads only where a paired t-test is sure that it errs less.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray, IntArray, taken, thinned
from forerun.predictors.choice.candidates import ANALYTIC, Learners
from forerun.predictors.choice.questions import (
    DEVICES,
    FEW,
    GIVEN,
    INSIDE,
    MOST_FEW,
    NUMBERS,
    SIZE,
    UNSEEN,
    JobColumns,
    RunSpan,
)
from forerun.predictors.laws.law_rows import measured
from forerun.tables import Runs, configurations

MOST_RUNS, MOST_JUDGED = 800, 300  # runs of all trials; judged runs of one fold
PARTS = 5  # of runs left out by chance
# Who learn of a workload from runs elsewhere.
POOLED = (ANALYTIC, "hierarchical", "gaussian", "roofline")
MOST_PLACES = 2  # devices whose runs are left out in turn, but for few
DEVICE_PARTS = 3  # of the devices, left out in turn
# These know a device by its runs alone: where it is left out, they need no fit.
BY_RUNS = ("hierarchical", "gaussian", "linear-scaling", "ernest")
SURE = 0.975  # level of the test, one-sided
# With so few pairs of workload and device the test counts configurations; trials ask beyond one step too.
FEW_GROUPS = 3
SOFT, WORST = 0.01, 2.3  # log errors below the one are noise, beyond the other alike
# Judged runs that count as much as the candidate's own band, and how far it is stretched at most.
_OWN, _MOST_STRETCH = 20, 8.0


def usual_order(kind: int, names: Sequence[str]) -> list[str]:
    """Return candidates in the order in which they answer questions of a kind that was not judged."""
    # Regressions hold inside the runs and along their trend, and physics where something else is new.
    first = ["hierarchical", "gaussian"] if kind == GIVEN else ["gaussian", "hierarchical"]
    first.insert(2 if kind in (INSIDE, SIZE, DEVICES, GIVEN) else 0, ANALYTIC)
    if kind == UNSEEN:
        first.insert(1, "roofline")
    return sorted(names, key=lambda name: first.index(name) if name in first else len(first))


@dataclass(frozen=True)
class CandidateScore:
    """How a candidate did on the judged runs of one kind of question.

    median_ape: percent, None where it answers none; answered: share of the runs; weight: share that it
    answers as the first that can; stretch: of its band, so that 90 % of what was judged lies inside.
    """

    name: str
    median_ape: float | None
    answered: float
    weight: float
    stretch: float


@dataclass(frozen=True)
class Verdict:
    """What trials say of one kind of question: the candidates in the order in which they answer."""

    kind: int
    judged: int
    scores: tuple[CandidateScore, ...]


@dataclass(frozen=True)
class Trials:
    """r judged answers of c candidates.

    kind: what each judged run was to the runs that were fitted, (r,); error: log of measured over
    forecast, (r, c), NaN where a candidate declined; off: the error over how far the band reaches on
    its side, (r, c); cell: what the test counts: how it was left out, workload and device, or configuration, (r,).
    """

    names: tuple[str, ...]
    kind: IntArray
    error: FloatArray
    off: FloatArray
    cell: IntArray

    @staticmethod
    def of(names: tuple[str, ...], start: str, runs: Runs, quantity: str) -> Trials:
        """Return the trials on runs, in the order of `tables.sorted_runs`.

        Runs without a time of the quantity are fitted and not judged. start: see `options.started`.
        """
        columns, config = JobColumns.of(runs.jobs, quantity), configurations(runs.table)[1]
        sparse = np.flatnonzero(_configurations(columns, config)[columns.group] <= MOST_FEW)
        # What has few runs keeps them all.
        sparse = sparse if 4 * len(sparse) <= MOST_RUNS else sparse[:0]
        rest = np.setdiff1d(np.arange(len(runs)), sparse)
        kept = np.sort(np.r_[sparse, rest[thinned(config[rest], MOST_RUNS - len(sparse))]])
        runs, columns, config = runs.take(kept), taken(columns, kept), config[kept]
        seconds, rng = measured(runs, quantity), np.random.default_rng(0)
        learners = Learners(start, runs, quantity)
        pieces = [(np.zeros(0, int), np.zeros((0, len(names), 3)), np.zeros(0), np.zeros(0, int))]
        for i, (fit, judge) in enumerate(folds_of(columns, config, np.isfinite(seconds))):
            judge = np.sort(rng.permutation(judge)[:MOST_JUDGED])
            jobs = runs.jobs.take(judge)
            span = RunSpan.of(JobColumns.of(runs.jobs.take(fit), quantity), config[fit])
            kind = span.kinds(JobColumns.of(jobs, quantity))
            left = {columns.groups[g][1] for g in np.unique(columns.group[judge])}
            new = left.isdisjoint(group[1] for group in span.groups)
            able = tuple(name for name in names if not (new and name in BY_RUNS))
            fitted = learners.light(able, fit)
            way = max(i - PARTS + 1, 0)  # the parts left out by chance are one
            few = len(columns.groups) <= FEW_GROUPS
            cell = config[judge] if few else way * len(columns.groups) + columns.group[judge]
            pieces.append((kind, fitted.logs(names, jobs, quantity), np.log(seconds[judge]), cell))
        kind, log, truth, cell = (np.concatenate(column) for column in zip(*pieces, strict=True))
        error = truth[:, None] - log[..., 1]
        reach = np.where(error > 0, log[..., 2] - log[..., 1], log[..., 1] - log[..., 0])
        return Trials(names, kind, error, np.abs(error) / np.maximum(reach, 1e-9), cell)

    def verdicts(self) -> tuple[Verdict, ...]:
        """Return what the trials say of each kind of question that was judged."""
        return tuple(self._verdict(int(kind)) for kind in np.unique(self.kind))

    def _verdict(self, kind: int) -> Verdict:
        rows = np.flatnonzero(self.kind == kind)
        error, off = self.error[rows], self.off[rows]
        usual = [self.names.index(name) for name in usual_order(kind, self.names)]
        # Few runs cannot carry a law of their own: trials keep other batches of another cluster than the few.
        own = [c for c in usual if kind == FEW and self.names[c] not in POOLED]
        own = own if len(own) < len(usual) else []
        order = ranked([c for c in usual if c not in own], error, self.cell[rows]) + own
        scores, left = [], np.ones(len(rows), dtype=bool)
        for c in order:
            answered = np.isfinite(error[:, c])
            ape = 100 * np.abs(np.expm1(-error[answered, c]))
            # Runs on a device share how far it lies off: there each workload counts once.
            count = len(np.unique(self.cell[rows][answered])) if kind == UNSEEN else len(ape)
            # They are wide for a device without any runs, and narrower where other workloads ran on it.
            scores.append(CandidateScore(
                self.names[c], float(np.median(ape)) if len(ape) else None, float(answered.mean()),
                float((left & answered).mean()),
                max(stretch(off[answered, c], count), float(kind == UNSEEN)),
            ))  # fmt: skip
            left &= ~answered
        return Verdict(kind, len(rows), tuple(scores))


def ranked(usual: list[int], error: FloatArray, cell: IntArray) -> list[int]:
    """Return the positions of candidates in the order in which they answer; usual: before any run is judged.

    error: log errors, (r, c), NaN where one declined; cell: of each run, (r,): runs of one count as one.
    """
    from scipy.special import stdtrit

    loss = np.log(np.minimum(np.abs(error), WORST) + SOFT)
    leader = next((c for c in usual if np.isfinite(error[:, c]).any()), usual[0])
    best, most = leader, 0.0
    for c in usual:
        gain = loss[:, leader] - loss[:, c]
        both = np.isfinite(gain)
        _, of = np.unique(cell[both], return_inverse=True)
        gains = np.bincount(of, gain[both]) / np.bincount(of)
        if len(gains) < 2 or gains.mean() <= most:
            continue
        if gains.mean() > stdtrit(len(gains) - 1, SURE) * gains.std(ddof=1) / len(gains) ** 0.5:
            best, most = c, float(gains.mean())
    return [best, *(c for c in usual if c != best)]


def stretch(off: FloatArray, count: int = 0, level: float = 0.9) -> float:
    """Return by how much a band is stretched to hold `level` of errors; few stretch little and never narrow it.

    off: errors over how far the band reaches, (r,). count: of the facts that they are, by default r.
    """
    if not len(off):
        return 1.0
    count = count or len(off)
    found = float(np.quantile(off, level)) ** (count / (count + _OWN))
    return float(np.clip(found, 1.0 if count < _OWN else 0.5, _MOST_STRETCH))


def folds_of(
    columns: JobColumns, config: IntArray, timed: BoolArray
) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield positions of the runs that are fitted and of those that are judged, fold by fold.

    config: number of each run's configuration, (n,): repeats stay together; timed: which can be judged, (n,).
    """
    distinct, of = np.unique(config, return_inverse=True)
    part = (np.random.default_rng(0).permutation(len(distinct)) % PARTS)[of]
    several = columns.numbers["nodes"] > 1
    one_node = np.isin(columns.group, columns.group[columns.numbers["nodes"] <= 1])
    left_out = [part == i for i in range(PARTS)]
    devices = np.array([group[1] for group in columns.groups], dtype=object)[columns.group]
    names = np.random.default_rng(0).permutation(np.unique(devices.astype(str)))
    parts = min(len(names), DEVICE_PARTS)
    left_out += [np.isin(devices, names[i::parts]) for i in range(parts) if parts > 1]
    for most in (False, True) if len(columns.groups) <= FEW_GROUPS else (False,):
        left_out += [_upper(columns.numbers[name], columns.group, most) for name in NUMBERS]
    places = np.unique(devices[several]).tolist()
    for place in places[:MOST_PLACES] if len(places) > 1 else places:
        left_out.append(several & one_node & ((devices == place) | (len(places) == 1)))
    for out in (*left_out, *_almost_out(columns, config, devices)):
        judge, fit = np.flatnonzero(out & timed), np.flatnonzero(~out)
        if len(judge) and timed[fit].any():
            yield fit, judge


def _almost_out(
    columns: JobColumns, config: IntArray, devices: NDArray[np.object_]
) -> Iterator[BoolArray]:
    """Yield which runs are left out, (n,), so that rich groups keep as little as the groups that have few."""
    counts, nodes = _configurations(columns, config), columns.numbers["nodes"]
    few = (counts > 0) & (counts <= MOST_FEW)
    if not few.any() or few.sum() == (counts > 0).sum():
        return
    least, sparse = round(float(np.median(counts[few]))), few[columns.group]
    rng, order = np.random.default_rng(0), np.random.default_rng(0).permutation(config.max() + 1)
    rich = np.unique(devices[~sparse], return_counts=True)
    by_runs = rich[0][np.argsort(-rich[1], kind="stable")].tolist()
    # A new place has few runs of all; on a known one it is some workload that has few.
    new = not np.isin(devices[sparse], rich[0]).all()
    half = rng.permutation(len(counts)) % 2 == 0
    ways = [devices == place for place in by_runs[:MOST_PLACES]] if new else [half[columns.group]]
    one_node = not (nodes[sparse] > 1).any()
    for here in ways:
        out = here & ~sparse
        for group in np.unique(columns.group[out]):
            mine = np.flatnonzero(out & (columns.group == group))
            near = mine[~(nodes[mine] > 1)] if one_node else mine
            kept = sorted(np.unique(config[near]).tolist(), key=lambda c: order[c])[:least]
            out[mine[np.isin(config[mine], kept)]] = False
        yield out


def _configurations(columns: JobColumns, config: IntArray) -> IntArray:
    """Return of how many configurations the runs of each group are, (g,)."""
    pairs = np.unique(np.stack([columns.group, config]), axis=1)
    return np.bincount(pairs[0], minlength=len(columns.groups))


def _upper(values: FloatArray, group: IntArray, most: bool) -> BoolArray:
    """Return which runs have the most, of four values or more, or are in the upper half of their own group, (n,)."""
    out = np.zeros(len(values), dtype=bool)
    for g in np.unique(group):
        mine = np.flatnonzero((group == g) & np.isfinite(values))
        distinct = np.unique(values[mine])
        if len(distinct) > (3 if most else 1):
            out[mine] = values[mine] > distinct[-2 if most else (len(distinct) - 1) // 2]
    return out
