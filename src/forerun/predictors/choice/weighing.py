"""Weighing: from trials of like questions to who answers, and how wide the band must be.

The loss of an answer is the log of its absolute log error, softened. Candidates are compared run by
run (an additive model of run and candidate), so that one that declines the hard runs gains nothing
by it; what was known of like questions before counts as a few trials more.

Priors: what is believed of the candidates before a run of one's own has judged them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.predictors.choice.questions import (
    APART,
    BOTH,
    CLUSTER,
    DEVICE,
    DEVICES,
    GIVEN,
    INSIDE,
    NODES,
    PLAN,
    SETTINGS,
    SIZE,
    WORDS,
    WORKLOAD,
    Questions,
)
from forerun.predictors.choice.trials import Trials

# By kind of question: loss of each candidate; who is not named has none. 0.7 is twice the error.
_APART = {"analytic": -0.5, "residual": -0.6, "hierarchical": -0.3, "constant-mfu": 1.2}
_FAR = {
    "analytic": -0.5, "residual": -0.6, "hierarchical": -0.5, "gaussian": -0.1, "ernest": 0.2,
    "generic": 0.2, "linear-scaling": 0.2, "ray-ml": 0.3, "constant-mfu": 1.2,
}  # fmt: skip
_NEAR = {
    "analytic": -0.3, "residual": -0.6, "hierarchical": -0.5, "gaussian": -0.5, "ray-ml": -0.3,
    "ernest": 0.1, "linear-scaling": 0.4, "constant-mfu": 1.4,
}  # fmt: skip
# No published table varies what a worker is given: laws that have a power of it are believed before those
# that read it as a number like any other, and these before those that do not read it.
_GIVEN = {
    "hierarchical": -0.7, "goodput": -0.4, "generic": -0.2, "gaussian": 0.0, "ray-ml": 0.3, "analytic": 0.3,
    "residual": 0.3, "ernest": 0.7, "linear-scaling": 0.7, "constant-mfu": 1.2,
}  # fmt: skip
# No law of sizes and machines sees how a plan lays the work.
_UNSEEN_PLAN = {"analytic": -1.1, "residual": -1.3, "gaussian": 0.0, "constant-mfu": 1.0}
_BY_KIND: Mapping[int, Mapping[str, float]] = {
    INSIDE: _NEAR, SETTINGS: _FAR, PLAN: _UNSEEN_PLAN, SIZE: _FAR, DEVICES: _FAR, NODES: _FAR,
    GIVEN: _GIVEN, CLUSTER: _FAR, DEVICE: _APART, WORKLOAD: _APART, BOTH: _APART,
}  # fmt: skip


def known_losses(names: tuple[str, ...], kind: int) -> FloatArray:
    """Return the losses of candidates against one another for a kind of question, (c,)."""
    known = _BY_KIND[kind]
    return np.array([known.get(name, 0.0) for name in names])


SOFT = 0.005  # log error, half a percent: less of it is no merit, repeats differ by more
WORST = 2.3  # a log error beyond this is no worse: the answer is useless either way
MOST_A_CELL = 8.0  # runs of one workload and device in one fold count as this many at most
MOST_A_UNIT = 8.0  # those of one new workload, or of one new device, over all folds
OTHER_KIN = 0.15  # what a trial of another workload or device counts for
PRIOR_COUNT = 4.0
SHARPNESS = 5.0
LEAST_WEIGHT = 0.15  # of the heaviest: less joins no mixture
_FARTHEST = 1.1  # log, a factor of 3: farther from the others' median no answer counts
_ROUNDS = 8
# How much trials of one kind of question say of another.
_RELATED = {
    (INSIDE, SETTINGS): 0.2, (INSIDE, PLAN): 0.2, (INSIDE, SIZE): 0.2, (SIZE, DEVICES): 0.15,
    (DEVICES, NODES): 0.4, (WORKLOAD, DEVICE): 0.1, (WORKLOAD, BOTH): 0.3, (DEVICE, BOTH): 0.3,
    (DEVICE, CLUSTER): 0.3, (INSIDE, CLUSTER): 0.1, (INSIDE, DEVICES): 0.05, (SETTINGS, PLAN): 0.2,
    (SIZE, GIVEN): 0.15, (DEVICES, GIVEN): 0.15, (INSIDE, GIVEN): 0.05,
}  # fmt: skip
_UNRELATED = 0.003


@dataclass(frozen=True)
class Standing:
    """What trials say of c candidates for one question.

    Attributes:
        loss: mean log of the softened absolute log error, (c,), less is better.
        error: the same as a share, exp(loss) (c,).
        runs: judged runs of the same kind of question that each answered, (c,).
        trust: how many trials the losses are worth.
    """

    loss: FloatArray
    error: FloatArray
    runs: IntArray
    trust: float

    def weights(self, answered: NDArray[np.bool_]) -> FloatArray:
        """Return the weights (n, c) of candidates for n rows, by who answers each (n, c)."""
        return weights_of(self.loss, answered)


def weights_of(loss: FloatArray, answered: NDArray[np.bool_]) -> FloatArray:
    """Return weights (n, c) from losses (c,) or (n, c): 0 where a candidate does not answer."""
    loss = np.where(answered, loss, np.inf)
    with np.errstate(invalid="ignore"):
        raw = np.where(answered, np.exp(-SHARPNESS * (loss - loss.min(axis=1, keepdims=True))), 0.0)
    raw[raw < LEAST_WEIGHT * raw.max(axis=1, keepdims=True, initial=0.0)] = 0.0
    total = raw.sum(axis=1, keepdims=True)
    return np.asarray(raw / np.where(total > 0, total, 1.0))


def losses(error: FloatArray) -> FloatArray:
    """Return the loss of log errors, NaN where there is none."""
    return np.asarray(np.log(np.minimum(np.abs(error), WORST) + SOFT))


def likeness(trials: Trials, questions: Questions, i: int) -> FloatArray:
    """Return how much each trial says of question i, (r,), runs of one cell together bounded."""
    own = trials.questions
    kind = np.full(len(WORDS), _UNRELATED)
    for (a, b), value in _RELATED.items():
        if int(questions.kind[i]) in (a, b):
            kind[a if b == int(questions.kind[i]) else b] = value
    kind[int(questions.kind[i])] = 1.0
    near = np.exp(-np.abs(own.doublings - questions.doublings[i]))
    near *= np.exp(-np.abs(own.known - questions.known[i]) / 2.0)
    mine = questions.kins[int(questions.kin[i])]
    place = own.kins.index(mine) if mine in own.kins else -1
    kin = np.where(own.kin == place, 1.0, OTHER_KIN)
    count = np.bincount(trials.cell)[trials.cell]
    return np.asarray(kind[own.kind] * near * kin * np.minimum(count, MOST_A_CELL) / count)


def apart_likeness(trials: Trials, questions: Questions, i: int) -> tuple[FloatArray, int]:
    """Return how much each trial says of the band of question i, (r,), and how many units say it.

    Of a workload or device without runs, each one that was left out is one draw, however many runs
    it had: all of them may err the same way.
    """
    weight = likeness(trials, questions, i)
    if int(questions.kind[i]) not in APART:
        return weight, 0
    same = (trials.questions.kind == questions.kind[i]) & np.isfinite(trials.error).any(axis=1)
    total = np.bincount(trials.unit, weights=weight * same, minlength=int(trials.unit.max()) + 1)
    share = np.minimum(total, MOST_A_UNIT) / np.where(total > 0, total, 1.0)
    return np.where(same, weight * share[trials.unit], weight), len(np.unique(trials.unit[same]))


def few_units(units: int) -> float:
    """Return by how much a band grows that `units` draws told of, to hold for the next one.

    The interval of one more draw of a normal by the t distribution, over that of a known spread.
    """
    from forerun.predictors.choice.claims import student_95

    if units < 1:
        return 1.0
    grown = student_95(max(units - 1.0, _LEAST_FREEDOM)) / student_95(1e9)
    return float(grown * np.sqrt(1.0 + 1.0 / units))


def standing(trials: Trials, questions: Questions, i: int) -> Standing:
    """Return what trials say of the candidates for question i."""
    weight = likeness(trials, questions, i)
    prior = known_losses(trials.names, int(questions.kind[i]))
    loss, told = losses(trials.error), np.isfinite(trials.error)
    effect = _effects(loss, told, weight, prior)
    same = trials.questions.kind == questions.kind[i]
    level = _level(loss, told, weight, effect)
    return Standing(
        effect, np.exp(level + effect), (told & same[:, None]).sum(axis=0), float(weight.sum())
    )


def _effects(
    loss: FloatArray, told: NDArray[np.bool_], weight: FloatArray, prior: FloatArray
) -> FloatArray:
    """Return the candidates' losses against one another, (c,), by an additive model."""
    effect: FloatArray = np.asarray(prior - prior.mean())
    use = (weight > 0) & (told.sum(axis=1) > 1)
    loss, told, weight = loss[use], told[use], weight[use]
    if not len(weight):
        return effect
    filled, count = np.where(told, loss, 0.0), told.sum(axis=1)
    mass = weight @ told
    for _ in range(_ROUNDS):
        row = (filled.sum(axis=1) - told @ effect) / count
        seen = weight @ np.where(told, loss - row[:, None], 0.0)
        effect = (seen + PRIOR_COUNT * (prior - prior.mean())) / (mass + PRIOR_COUNT)
        effect = np.asarray(effect - effect.mean())
    return effect


def _level(
    loss: FloatArray, told: NDArray[np.bool_], weight: FloatArray, effect: FloatArray
) -> float:
    """Return the mean loss to which effects are added; NaN without trials."""
    mass = (weight[:, None] * told).sum()
    if not mass > 0:
        return float("nan")
    return float((weight[:, None] * np.where(told, loss - effect, 0.0)).sum() / mass)


def mixed(log: FloatArray, reach: FloatArray, weight: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the log median (n,) and reach (n, 2) of mixtures.

    An answer far from the weighted median of all counts as one nearer to it: nobody runs away.

    Args:
        log: log medians of the candidates, (n, c). reach: of their bands, (n, c, 2).
        weight: (n, c), 0 where a candidate does not answer.
    """
    anchor = _weighted_median(log, weight)[:, None]
    log = np.clip(log, anchor - _FARTHEST, anchor + _FARTHEST)
    held = np.where(weight > 0, log, 0.0)
    middle = (weight * held).sum(axis=1)
    apart = (weight * np.where(weight > 0, (log - middle[:, None]) ** 2, 0.0)).sum(axis=1)
    own = (weight[..., None] * np.where(weight[..., None] > 0, reach, 0.0)).sum(axis=1)
    return middle, np.sqrt(own**2 + (1.64 * np.sqrt(apart) / 2)[:, None] ** 2)


def _weighted_median(log: FloatArray, weight: FloatArray) -> FloatArray:
    """Return the median (n,) of logs (n, c) by weight."""
    if not log.size:
        return np.zeros(len(log))
    order = np.argsort(np.where(weight > 0, log, np.inf), axis=1)
    share = np.cumsum(np.take_along_axis(weight, order, axis=1), axis=1)
    at = np.argmax(share >= 0.5 - 1e-9, axis=1)[:, None]
    return np.asarray(np.take_along_axis(log, np.take_along_axis(order, at, axis=1), axis=1)[:, 0])


def stretch(ratio: FloatArray, weight: FloatArray, least: float = 0.5, level: float = 0.9) -> float:
    """Return by how much bands must be stretched so that `level` of what was measured lies inside.

    Args:
        ratio: of the distance to the forecast over the reach of its band on that side, (r,).
        weight: of each trial.
        least: the least factor: where trials are few in kind, they must not narrow a band much.
        level: of the band.

    Beside the trials stand a few of a band that is right as it is.
    """
    from forerun.domain.quantiles import normal_quantile

    told = np.isfinite(ratio) & (weight > 0)
    ranks = (np.arange(_CALM) + 0.5) / _CALM
    calm = np.array([normal_quantile(0.5 + p / 2) for p in ranks]) / normal_quantile(
        0.5 + level / 2
    )
    values = np.concatenate([ratio[told], calm])
    mass = np.concatenate([weight[told], np.full(_CALM, PRIOR_COUNT / _CALM)])
    order = np.argsort(values)
    share = np.cumsum(mass[order]) / mass.sum()
    return float(np.clip(values[order][np.searchsorted(share, level)], least, MOST_STRETCH))


_LEAST_FREEDOM = 2.0  # below it a t band reaches past any use; the least known of one draw alone
_CALM = 20
MOST_STRETCH = 8.0
