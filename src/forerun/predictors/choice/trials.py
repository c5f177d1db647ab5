"""Trials: every candidate judged on runs that it was not shown, and the weights that follow.

The loss of an answer is the log of its absolute log error. Candidates are compared run by run, so that
one that declines the hard runs gains nothing by it. A candidate's weight is its typical error on like
questions to the power -`SHARPNESS`; an answer is the weighted geometric mean (Bates and Granger, 1969,
The combination of forecasts; Wolpert, 1992, Stacked generalization).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from forerun.arrays import FloatArray, IntArray
from forerun.domain.quantiles import Z95, normal_quantile
from forerun.predictors.choice.candidates import PHYSICS, members
from forerun.predictors.choice.questions import (
    BOTH,
    DEVICE,
    DEVICES,
    GIVEN,
    INSIDE,
    NODES,
    PLAN,
    SETTING,
    SIZE,
    UNSEEN,
    WORKLOAD,
    JobColumns,
    Questions,
    RunSpan,
    folds_of,
)  # fmt: skip
from forerun.predictors.laws.law_rows import measured
from forerun.tables import Runs, configurations

MOST_RUNS, MOST_JUDGED = 800, 300  # runs of all trials; judged runs of one fold
_DIGITS = 5  # decimals of logs that are kept: a saved choice must be the one that was fitted

SOFT = 0.005  # log error, half a percent: repeats of a run differ by more
WORST = 2.3  # a log error beyond this is no worse: the answer is useless either way
OTHER_GROUP = 0.15  # what a trial of another workload or device counts for
RELATED_KIND = 0.1  # what a trial of a related kind of question counts for
MOST_A_CELL = 8.0  # judged runs of one workload and device in one fold count as this many at most
PRIOR_TRIALS = 4.0  # what a prior, and a candidate's own band, count for
SHARPNESS = 4.0
LEAST_WEIGHT = 0.15  # of the heaviest: less joins no mean
FARTHEST = 1.1  # log, a factor of 3: an answer farther from the weighted median counts as this far
LAW_REACH = 0.8  # log reach of a law that learned from one configuration; it falls with their root
MOST_REACH = float(np.log(1000.0))  # a band that reaches further either way is no answer
_RELATED = (
    {INSIDE, SETTING}, {INSIDE, PLAN}, {SIZE, DEVICES}, {DEVICES, NODES}, {SIZE, GIVEN},
    {WORKLOAD, DEVICE, BOTH},
)  # fmt: skip
# Losses before any trial (0.7 is twice the error): physics knows what a plan, a node, a device and a
# workload are, no law sees how a plan lays the work, flexible models are best between runs, and other
# clusters' runs say more of several nodes than a network's nominal rate.
_FAR = {"analytic": -0.3, "hierarchical": -0.3}
PRIORS: Mapping[int, Mapping[str, float]] = {
    INSIDE: {"hierarchical": -0.3, "gaussian": -0.3},
    SETTING: {"hierarchical": -0.3, "gaussian": -0.3},
    PLAN: {"analytic": -1.0},
    NODES: {"hierarchical": -0.6, "gaussian": -0.3, "analytic": -0.3},
    GIVEN: {"hierarchical": -0.7, "generic": -0.3, "gaussian": -0.3},
}


@dataclass(frozen=True)
class Trials:
    """r judged answers of c candidates.

    Attributes:
        names: of the candidates, c.
        questions: what each judged run was to the runs that were fitted, r.
        error: log of measured over forecast, (r, c), NaN where a candidate declined.
        reach: logs by which the 5 % and 95 % quantile lie off the median, (r, c, 2).
        cell: fold, workload and device of each, (r,).
        folds: in how many ways runs were left out.
        runs: how many were used of how many.
    """

    names: tuple[str, ...]
    questions: Questions
    error: FloatArray
    reach: FloatArray
    cell: IntArray
    folds: int
    runs: tuple[int, int]

    def __len__(self) -> int:
        return len(self.error)

    @staticmethod
    def of(names: tuple[str, ...], start: str, runs: Runs, quantity: str) -> Trials:
        """Return the trials of candidates on runs.

        Args:
            names: of the candidates; those that cannot be fitted on a fold decline its runs.
            start: see `options.started`.
            runs: in the order of `tables.sorted_runs`; those without a time of the quantity are
                fitted and not judged.
            quantity: step, epoch or run.
        """
        every = len(runs)
        group = JobColumns(runs.jobs, quantity).groups[1]
        runs = runs.take(thinned(configurations(runs.table)[1], group, MOST_RUNS))
        columns, config = JobColumns(runs.jobs, quantity), configurations(runs.table)[1]
        groups, group = columns.groups
        seconds = measured(runs, quantity)
        rng = np.random.default_rng(0)
        kinds, known, at = [np.empty(0, dtype=np.int8)], [np.empty(0)], [np.empty(0, dtype=int)]
        answers = [np.empty((0, len(names), 3))]
        silent: set[tuple[str, str]] = set()
        folds = folds_of(columns, config, np.isfinite(seconds))
        for fold in folds:
            judge = np.sort(rng.permutation(fold.judge)[:MOST_JUDGED])
            jobs = runs.jobs.take(judge)
            wanted = tuple(name for name in names if (fold.words, name) not in silent)
            fitted = members(wanted, start, runs.take(fold.fit), quantity, light=True)
            logs = fitted.logs(names, jobs, quantity)
            # A candidate without any answer has none in the next fold of these words.
            silent |= {(fold.words, n) for n, one in zip(names, logs.T[1], strict=True)
                       if np.isnan(one).all()}  # fmt: skip
            span = RunSpan.of(JobColumns(runs.jobs.take(fold.fit), quantity), config[fold.fit])
            lie = span.questions(JobColumns(jobs, quantity))
            kinds.append(lie.kind)
            known.append(lie.known)
            at.append(judge)
            answers.append(logs)
        rows, log = np.concatenate(at), np.concatenate(answers)
        cell = np.repeat(np.arange(len(at)), [len(part) for part in at]) * len(groups) + group[rows]
        questions = Questions(
            np.concatenate(kinds), np.concatenate(known), group[rows], tuple(groups)
        )
        error = np.log(seconds[rows])[:, None] - log[..., 1]
        return Trials(
            names, questions, np.round(error, _DIGITS), np.round(reaches(log), _DIGITS), cell,
            len(folds), (len(runs), every),
        )  # fmt: skip


def reaches(logs: FloatArray) -> FloatArray:
    """Return how far the lower and the upper of three quantiles lie off the median, (..., 2)."""
    return np.stack([logs[..., 1] - logs[..., 0], logs[..., 2] - logs[..., 1]], axis=-1)


def thinned(config: IntArray, group: IntArray, most: int) -> IntArray:
    """Return positions of at most `most` runs (m,): repeats go first, then evenly of all groups."""
    if len(config) <= most:
        return np.arange(len(config))
    order = np.random.default_rng(0).permutation(len(config))
    repeat, turn = np.empty((2, len(config)), dtype=np.int64)
    repeat[order], turn[order] = _rank_within(config[order]), _rank_within(group[order])
    return np.sort(np.lexsort((turn, repeat))[:most])


def _rank_within(labels: IntArray) -> IntArray:
    """Return how many rows before each have the same label, (n,)."""
    order = np.argsort(labels, kind="stable")
    _, first, counts = np.unique(labels[order], return_index=True, return_counts=True)
    rank = np.empty(len(labels), dtype=np.int64)
    rank[order] = np.arange(len(labels)) - np.repeat(first, counts)
    return rank


@dataclass(frozen=True)
class CandidateLosses:
    """What trials say of one question.

    Attributes:
        loss: of each candidate against the others, (c,), priors included.
        trust: judged runs behind it.
        weight: of each trial, (r,).
    """

    loss: FloatArray
    trust: float
    weight: FloatArray

    @staticmethod
    def of(trials: Trials, kind: int, known: float, group: tuple[str, ...]) -> CandidateLosses:
        """Return what trials say of the candidates for a question, see `Questions`."""
        own = trials.questions
        place = own.groups.index(group) if group in own.groups else -1
        related = np.array([
            1.0 if other == kind else RELATED_KIND * any({kind, other} <= few for few in _RELATED)
            for other in range(BOTH + 1)
        ])  # fmt: skip
        weight = related[own.kind] * np.exp(-np.abs(own.known - known) / 2.0)
        weight *= np.where((own.group == place) | (kind in UNSEEN), 1.0, OTHER_GROUP)
        count = np.bincount(trials.cell, minlength=1)[trials.cell]
        weight *= np.minimum(count, MOST_A_CELL) / count
        prior = np.array([PRIORS.get(kind, _FAR).get(name, 0.0) for name in trials.names])
        use = weight > 0
        answered = np.isfinite(trials.error[use])
        loss = np.where(answered, losses(trials.error[use]), 0.0)
        mass = weight[use] @ answered
        effect = prior
        for _ in range(8):  # an additive model of run and candidate
            with np.errstate(invalid="ignore", divide="ignore"):
                level = (loss.sum(axis=1) - answered @ effect) / answered.sum(axis=1)
            off = np.where(answered, loss - level[:, None], 0.0)
            effect = (weight[use] @ off + PRIOR_TRIALS * prior) / (mass + PRIOR_TRIALS)
        return CandidateLosses(effect, float(weight.sum()), weight)


def losses(error: FloatArray) -> FloatArray:
    """Return the losses of log errors, NaN where there is none."""
    return np.asarray(np.log(np.minimum(np.abs(error), WORST) + SOFT))


def weights(names: tuple[str, ...], found: list[CandidateLosses], index: IntArray, known: FloatArray,
            reach: FloatArray) -> FloatArray:  # fmt: skip
    """Return the weights (n, c) of candidates, 0 where one does not answer.

    The fewer runs judged the candidates, the more counts what their own bands say of their errors.

    Args:
        names: of the candidates.
        found, index: of the distinct questions, and which each row is, (n,).
        known: log2 of how much is known, (n,).
        reach: of the candidates' bands, (n, c, 2), NaN where one does not answer.
    """
    if not len(index):
        return np.zeros(reach.shape[:2])
    loss = np.array([one.loss for one in found])[index]
    trust = np.array([one.trust for one in found])[index]
    laws = np.array([name not in PHYSICS for name in names])
    least = LAW_REACH * laws / np.sqrt(2.0**known)[:, None]
    answered = (reach <= MOST_REACH).all(axis=2)
    # The mean absolute error of a normal variable, of its 95 % quantile.
    claim = np.where(answered, losses(0.485 * np.hypot(reach.mean(axis=2), least)), np.inf)
    with np.errstate(invalid="ignore"):
        apart = claim - claim.min(axis=1, keepdims=True, initial=np.inf)
        loss = loss + (PRIOR_TRIALS / (PRIOR_TRIALS + trust))[:, None] * np.minimum(apart, 2.5)
        loss = np.where(answered, loss, np.inf)
        best = loss.min(axis=1, keepdims=True, initial=np.inf)
        weight = np.where(answered, np.exp(-SHARPNESS * (loss - best)), 0.0)
    weight[weight < LEAST_WEIGHT] = 0.0
    return np.asarray(weight / np.maximum(weight.sum(axis=1, keepdims=True), 1e-300))


def mixed(log: FloatArray, reach: FloatArray, weight: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the log median (n,) and reach (n, 2) of mixtures: their own, and how far members differ.

    Args:
        log: log medians of the candidates, (n, c). reach: of their bands, (n, c, 2).
        weight: (n, c), 0 where a candidate does not answer.
    """
    if not log.size:
        return np.zeros(len(log)), np.zeros((len(log), 2))
    used = weight > 0
    order = np.argsort(np.where(used, log, np.inf), axis=1)
    share = np.cumsum(np.take_along_axis(weight, order, axis=1), axis=1)
    at = np.argmax(share >= 0.5 - 1e-9, axis=1)[:, None]
    anchor = np.take_along_axis(log, np.take_along_axis(order, at, axis=1), axis=1)
    held = np.where(used, np.clip(log, anchor - FARTHEST, anchor + FARTHEST), 0.0)
    middle = (weight * held).sum(axis=1)
    apart = (weight * np.where(used, (held - middle[:, None]) ** 2, 0.0)).sum(axis=1)
    own = (weight[..., None] * np.where(used[..., None], reach, 0.0)).sum(axis=1)
    return middle, np.sqrt(own**2 + 0.82**2 * apart[:, None])


def stretch(trials: Trials, kind: int, found: CandidateLosses, level: float = 0.9) -> float:
    """Return by how much bands are stretched, so that `level` of what was judged lies inside.

    Beside the trials stand a few of a band that is right as it is. Of unseen workloads and devices
    each one that was left out is one draw; the interval of the next is that of Student's t.
    """
    from scipy.special import stdtrit

    rows = np.flatnonzero(found.weight > 0)
    index = np.zeros(len(rows), dtype=np.int64)
    weight = weights(trials.names, [found], index, trials.questions.known[rows], trials.reach[rows])
    middle, width = mixed(np.nan_to_num(trials.error[rows]), trials.reach[rows], weight)
    with np.errstate(divide="ignore", invalid="ignore"):
        # An error above 0 is a measured time above the forecast: the upper side of the band.
        ratio = np.abs(middle) / np.where(middle > 0, width[:, 1], width[:, 0])
    judged = np.isfinite(ratio) & (weight.sum(axis=1) > 0)
    ranks = (np.arange(20) + 0.5) / 20
    calm = [normal_quantile(0.5 + p / 2) / normal_quantile(0.5 + level / 2) for p in ranks.tolist()]
    values = np.concatenate([ratio[judged], calm])
    mass = np.concatenate([found.weight[rows][judged], np.full(20, PRIOR_TRIALS / 20)])
    order = np.argsort(values)
    share = np.cumsum(mass[order]) / mass.sum()
    least = 0.5 + 0.5 * 8.0 / (8.0 + found.trust)  # few trials must not narrow a band much
    factor = float(np.clip(values[order][np.searchsorted(share, level)], least, 8.0))
    if kind not in UNSEEN or not judged.any():
        return factor
    units = len(np.unique(trials.questions.group[rows[judged]]))
    wider = float(stdtrit(units, 0.95)) / Z95 * np.sqrt(1.0 + 1.0 / units)
    return float(min(max(factor, 0.9) * wider, 8.0))
