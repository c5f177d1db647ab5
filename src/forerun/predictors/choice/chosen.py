"""Chosen: fitted candidates for one quantity, and who of them answers which question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.domain.forecast import Forecasts
from forerun.predictors.choice.candidates import ANALYTIC, PHYSICS, Members, members
from forerun.predictors.choice.claims import (
    are_laws,
    calibration,
    claimed,
    least_reach,
    says_nothing,
    with_claims,
)
from forerun.predictors.choice.columns import JobColumns
from forerun.predictors.choice.questions import APART, BOTH, WORDS, Questions, Seen, missing
from forerun.predictors.choice.trials import Trials, trials_of
from forerun.predictors.choice.weighing import (
    MOST_STRETCH,
    Standing,
    apart_likeness,
    few_units,
    likeness,
    losses,
    mixed,
    standing,
    stretch,
    weights_of,
)
from forerun.predictors.laws.law_rows import measured
from forerun.tables import Jobs, Runs, configurations

# By how much at most trials may narrow bands. Workloads and devices left out are few, so that their
# trials say less than their number.
_LEAST, _LEAST_APART = 0.5, 0.9
_FEW = 8.0  # judged runs by which half of that is allowed
# Degrees of freedom that a trial's trust stands for, where runs are many: those of other workloads,
# which say little of who is best, say more of how far all are off; and runs by which half of that
# holds. Few runs are judged several times each, and stand for no more than their trust.
_FREE, _MANY = 3.0, 50.0
_ENDS = np.array([0.0, 1.0])
_ALONE = 0.85  # of the weight: whoever has so much is named alone


@dataclass(frozen=True)
class Chosen:
    """Candidates that runs have taught, with the trials by which they are weighed.

    Attributes:
        quantity: step, epoch or run: what is answered.
        members: the fitted candidates, and why others are none.
        seen: what the runs span.
        trials: how each candidate did on runs that it was not shown.
    """

    quantity: str
    members: Members
    seen: Seen
    trials: Trials

    @staticmethod
    def of(names: tuple[str, ...], start: str, runs: Runs, quantity: str) -> Chosen:
        """Return the candidates as runs teach them one quantity."""
        told = members(names, start, runs, quantity)
        timed = np.flatnonzero(np.isfinite(measured(runs, quantity)))
        part = runs.take(timed)
        seen = Seen.of(JobColumns(part.jobs, quantity), configurations(part.table)[1])
        alive = tuple(name for name in names if name in told.fitted)
        return Chosen(quantity, told, seen, trials_of(alive, start, runs, quantity))

    @property
    def names(self) -> tuple[str, ...]:
        """The candidates that are weighed."""
        return self.trials.names

    def trial_weights(self) -> FloatArray:
        """Return the weight that each candidate had in each trial's own question, (r, c)."""
        trials = self.trials
        first, index = trials.questions.distinct()
        found = [self._verdict(trials.questions, int(i)) for i in first]
        return self._weights(found, index, trials.reach, trials.questions, _told(trials))

    def _weights(
        self, found: list[Verdict], index: IntArray, reach: FloatArray, asked: Questions,
        answered: NDArray[np.bool_],
    ) -> FloatArray:  # fmt: skip
        """Return the weights (n, c) of candidates by their trials and their own bands (n, c, 2)."""
        if not found:
            return np.zeros(answered.shape)
        loss = np.array([one.standing.loss for one in found])[index]
        short = np.array([one.short for one in found])[index]
        trust = np.array([one.standing.trust for one in found])[index]
        claim = claimed(reach, asked.known, are_laws(self.names)) + short
        return weights_of(with_claims(loss, np.where(answered, claim, np.nan), trust), answered)

    def predict(self, jobs: Jobs) -> Forecasts:
        """Return n forecasts, with who answered each row."""
        answers = self.members.forecasts(jobs, self.quantity)
        made = Forecasts.blank(len(jobs), "auto", self.quantity)
        if not len(jobs):
            return made
        answered = np.stack([answers[name].answered for name in self.names], axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            seconds = np.stack([answers[name].seconds for name in self.names], axis=1)
            logs = np.log(np.where(answered[..., None], seconds, np.nan))
        reach = np.stack([logs[..., 1] - logs[..., 0], logs[..., 2] - logs[..., 1]], axis=-1)
        empty = answered & says_nothing(reach)
        answered &= ~empty
        columns = JobColumns(jobs, self.quantity)
        questions = self.seen.questions(columns)
        first, index = questions.distinct()
        found = [self._verdict(questions, int(i)) for i in first]
        weight = self._weights(found, index, reach, questions, answered)
        middle, width = mixed(logs[..., 1], reach, weight)
        width *= np.array([one.stretch for one in found])[index][:, None]
        width = np.hypot(width, self._least(found, index, weight)[:, None])
        told = np.asarray(answered.any(axis=1)) & ~says_nothing(width)
        weight[~told] = 0.0
        made.seconds[told] = np.exp(
            np.stack([middle - width[:, 0], middle, middle + width[:, 1]], axis=1)
        )[told]
        made = self._with_physics(made, answers.get(ANALYTIC), told)
        made.distance[:] = _mean([answers[name].distance for name in self.names], weight)
        made.declined[~told] = self._why_none(columns, answers, np.flatnonzero(~told))
        made.declined[~told & (answered | empty).any(axis=1)] = _EMPTY
        parts = _parts(made.seconds[:, 1], [answers[name] for name in self.names], weight)
        return replace(made, parts=parts, by=self._who(weight, questions))

    def _least(self, found: list[Verdict], index: IntArray, weight: FloatArray) -> FloatArray:
        """Return the log reach (n,) by which bands of few judged runs are widened."""
        share = weight @ are_laws(self.names)
        most = self.trials.runs[0] - 1.0
        free = 1.0 + (_FREE - 1.0) * max(most, 0.0) / (max(most, 0.0) + _MANY)
        ends = np.array([least_reach(min(free * v.standing.trust, most), _ENDS) for v in found])
        ends = ends.reshape(-1, 2)[index]
        return np.asarray((1.0 - share) * ends[:, 0] + share * ends[:, 1])

    def _who(self, weight: FloatArray, questions: Questions) -> NDArray[np.object_]:
        """Return who answered each row, and as a question of which kind, (n,)."""
        judged = np.bincount(self.trials.questions.kind, minlength=len(WORDS))
        words = [
            text if judged[kind] else f"{text}: no run could judge that"
            for kind, text in enumerate(WORDS)
        ]
        return _named(self.names, weight, questions.kind, words)

    @cached_property
    def _verdicts(self) -> dict[tuple[float, float, float, str], Verdict]:
        return {}

    def _verdict(self, questions: Questions, i: int) -> Verdict:
        """Return what trials say of question i; it is found once."""
        key = (
            float(questions.kind[i]), float(questions.doublings[i]), float(questions.known[i]),
            questions.kins[int(questions.kin[i])],
        )  # fmt: skip
        if key not in self._verdicts:
            self._verdicts[key] = self._judged(questions, i)
        return self._verdicts[key]

    def _judged(self, questions: Questions, i: int) -> Verdict:
        found = standing(self.trials, questions, i)
        if not len(self.trials):
            return Verdict(found, 1.0, np.zeros(len(self.names)))
        like = likeness(self.trials, questions, i)
        trials, told = self.trials, _told(self.trials)
        error = np.where(told, trials.error, np.nan)
        claim = claimed(trials.reach, trials.questions.known, are_laws(self.names))
        short = calibration(losses(trials.error), claim, like)
        before = Verdict(found, 1.0, short)
        at = np.zeros(len(trials), dtype=np.int64)
        weight = self._weights([before], at, trials.reach, trials.questions, told)
        middle, width = mixed(error, self.trials.reach, weight)
        with np.errstate(divide="ignore", invalid="ignore"):
            # An error above 0 is a measured time above the forecast: the upper side of the band.
            ratio = np.abs(middle) / np.where(middle > 0, width[:, 1], width[:, 0])
        ratio[~np.isfinite(error).any(axis=1)] = np.nan
        least = _LEAST_APART if questions.kind[i] in APART else _LEAST
        least += (1.0 - least) * _FEW / (_FEW + found.trust)
        return Verdict(found, self._stretch(questions, i, ratio, least), short)

    def _stretch(self, questions: Questions, i: int, ratio: FloatArray, least: float) -> float:
        """Return by how much the bands of question i are stretched.

        Of workloads and devices without runs: the fewer others were left out to be judged, the more.
        Where none was, what was learned of the others of these questions holds; and a workload on
        a device, both new, is never told more narrowly than one of them.
        """
        kind = int(questions.kind[i])
        if kind not in APART:
            return stretch(ratio, likeness(self.trials, questions, i), least)
        found = {}
        for other in APART:
            asked = replace(questions.take(np.array([i])), kind=np.array([other], dtype=np.int8))
            weight, units = apart_likeness(self.trials, asked, 0)
            if units:
                grown = stretch(ratio, weight, least) * few_units(units)
                found[other] = min(grown, MOST_STRETCH)
        if kind in found and kind != BOTH:
            return found[kind]
        return max(
            found.values(), default=stretch(ratio, likeness(self.trials, questions, i), least)
        )

    def _with_physics(
        self, made: Forecasts, physics: Forecasts | None, told: NDArray[np.bool_]
    ) -> Forecasts:
        """Return the forecasts with memory, floors and refusals of physics, where it knows the job."""
        if physics is None:
            return made
        floor = np.where(told, physics.floor_seconds, np.nan)
        seconds = np.fmax(made.seconds, np.where(told, floor, np.nan)[:, None])
        return replace(
            made, seconds=np.where(told[:, None], seconds, np.nan), floor_seconds=floor,
            peak_bytes=physics.peak_bytes, fit_probability=physics.fit_probability,
            usable_bytes=physics.usable_bytes, memory_parts=physics.memory_parts,
        )  # fmt: skip

    def _why_none(
        self, columns: JobColumns, answers: Mapping[str, Forecasts], rows: IntArray
    ) -> NDArray[np.object_]:
        """Return why nobody answers some rows, (m,): what physics says, and what the laws lack.

        Of a job that physics cannot read, what runs lack comes first.
        """
        physics = answers.get(ANALYTIC)
        first = (
            [str(r) for r in physics.declined[rows]] if physics is not None else [""] * len(rows)
        )
        laws = [name for name in self.names if name not in PHYSICS]
        if laws:
            second = [str(reason) for reason in answers[laws[0]].declined[rows]]
        else:
            failed = [why for name, why in self.members.failed.items() if name not in PHYSICS]
            second = [failed[0] if failed else ""] * len(rows)
        jobs, (groups, group) = columns.jobs, columns.groups
        by_label = (jobs.workload_index[rows] < 0) | (jobs.cluster_index[rows] < 0)
        own = np.where(by_label & bool(laws), group[rows], -1).tolist()

        @cache
        def said(physics: str, law: str, place: int) -> str:
            pair = (physics, law)
            if place >= 0:
                lead = missing(self.seen, groups[place], self.trials.runs[1], law)
                pair = (lead, physics and f"physics does not know it: {physics}")
            return "; and ".join(dict.fromkeys(filter(None, pair)))

        reasons = np.empty(len(rows), dtype=object)
        reasons[:] = [said(*each) for each in zip(first, second, own, strict=True)]
        return reasons


@dataclass(frozen=True)
class Verdict:
    """For one question: the candidates' standing, by how much bands are stretched, and what claims lack."""

    standing: Standing
    stretch: float
    short: FloatArray


_EMPTY = (
    "the band of whoever answers reaches further than x1,000 either way, which is no answer; give"
    " runs nearer to it, or more of them"
)


def _told(trials: Trials) -> NDArray[np.bool_]:
    """Return which judged answers (r, c) say anything."""
    return np.isfinite(trials.error) & ~says_nothing(trials.reach)


def _mean(columns: list[FloatArray], weight: FloatArray) -> FloatArray:
    """Return the weighted mean of columns (n,) each, over those that are known."""
    values = np.stack(columns, axis=1)
    held = np.where(np.isfinite(values), weight, 0.0)
    total = held.sum(axis=1)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(np.isfinite(values), values * held, 0.0).sum(axis=1) / np.where(
            total > 0, total, np.nan))  # fmt: skip


def _named(
    names: tuple[str, ...], weight: FloatArray, kind: NDArray[np.int8], words: list[str]
) -> NDArray[np.object_]:
    """Return who answered each row, the heaviest first, and its kind, (n,); "" where nobody did."""
    order = np.argsort(-weight, axis=1, kind="stable")
    sorted_weight = np.take_along_axis(weight, order, axis=1)
    said = np.full(len(weight), "", dtype=object)
    count = np.where(sorted_weight[:, 0] >= _ALONE, 1, (sorted_weight > 0).sum(axis=1))
    code = kind.astype(np.int64)
    for k in range(weight.shape[1]):
        code = code * (len(names) + 1) + np.where(k < count, order[:, k] + 1, 0)
    _, first, index = np.unique(code, return_index=True, return_inverse=True)
    distinct = [
        f"auto: {' + '.join(names[order[i, k]] for k in range(count[i]))} ({words[kind[i]]})"
        if count[i] else ""
        for i in first
    ]  # fmt: skip
    if distinct:
        said[:] = np.array(distinct, dtype=object)[index.reshape(-1)]
    return said


def _parts(
    middle: FloatArray, answers: list[Forecasts], weight: FloatArray
) -> dict[str, FloatArray]:
    """Return the parts of the heaviest member's answer, scaled to the median, by name, (n,) each."""
    leading = np.argmax(weight, axis=1)
    parts: dict[str, FloatArray] = {}
    for c, answer in enumerate(answers):
        rows = np.flatnonzero((leading == c) & np.isfinite(middle))
        if not len(rows):
            continue
        own = {name: np.asarray(values)[rows] for name, values in answer.parts.items()}
        total = sum(own.values(), np.zeros(len(rows)))
        fits = bool(own) and bool(np.isclose(total, answer.seconds[rows, 1], rtol=1e-5).all())
        if not fits:
            own, total = {answer.predictor: np.ones(len(rows))}, np.ones(len(rows))
        for name, values in own.items():
            column = parts.setdefault(name, np.where(np.isfinite(middle), 0.0, np.nan))
            column[rows] = values / total * middle[rows]
    return parts
