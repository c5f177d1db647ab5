"""Choosing: fitted candidates for one quantity, and which of them answers which question."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun import registry
from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.domain.forecast import Forecasts
from forerun.predictors.choice.candidates import ANALYTIC, PHYSICS, Members, members
from forerun.predictors.choice.questions import WORDS, JobColumns, Questions, RunSpan
from forerun.predictors.choice.trials import (
    CandidateLosses,
    Trials,
    mixed,
    stretch,
    trials_of,
    verdict,
    weights,
)
from forerun.predictors.laws.law_rows import GROUP, Kind, measured
from forerun.tables import Jobs, Runs, configurations

_ALONE = 0.85  # of the weight: a candidate with so much is named alone
_NAMED = 4
_TOO_WIDE = (
    "the band of every candidate reaches further than x1,000 either way, which is no answer; give"
    " runs nearer to it, or more of them"
)


@dataclass(frozen=True)
class WeighedCandidates:
    """Fitted candidates, with the trials by which they are weighed.

    Attributes:
        quantity: step, epoch or run: what is answered.
        members: the fitted candidates, and why others are none.
        seen: what the runs span.
        trials: how each candidate did on runs that it was not shown.
    """

    quantity: str
    members: Members
    seen: RunSpan
    trials: Trials

    @staticmethod
    def of(names: tuple[str, ...], start: str, runs: Runs, quantity: str) -> WeighedCandidates:
        """Return the candidates fitted to the times of one quantity."""
        fitted = members(names, start, runs, quantity)
        part = runs.take(np.flatnonzero(np.isfinite(measured(runs, quantity))))
        seen = RunSpan.of(JobColumns(part.jobs, quantity), configurations(part.table)[1])
        alive = tuple(name for name in names if name in fitted.fitted)
        return WeighedCandidates(quantity, fitted, seen, trials_of(alive, start, runs, quantity))

    @property
    def names(self) -> tuple[str, ...]:
        """The candidates that are weighed."""
        return self.trials.names

    @cached_property
    def _verdicts(self) -> dict[tuple[int, float, Kind], tuple[CandidateLosses, float]]:
        return {}

    def verdicts(self, asked: Questions) -> tuple[list[CandidateLosses], FloatArray, IntArray]:
        """Return of n questions the distinct verdicts, how each stretches bands, and which each has."""
        first, index = asked.distinct()
        found = []
        for i in first.tolist():
            key = int(asked.kind[i]), float(asked.known[i]), asked.groups[asked.group[i]]
            if key not in self._verdicts:
                one = verdict(self.trials, *key)
                self._verdicts[key] = one, stretch(self.trials, key[0], one)
            found.append(self._verdicts[key])
        return [one for one, _ in found], np.array([wide for _, wide in found]), index

    def predict(self, jobs: Jobs) -> Forecasts:
        """Return n forecasts, with who answered each row."""
        made = Forecasts.blank(len(jobs), "auto", self.quantity)
        if not len(jobs):
            return made
        answers = self.members.forecasts(jobs, self.quantity)
        each = [answers[name] for name in self.names]
        answered = np.stack([one.answered for one in each], axis=1)
        seconds = np.stack([one.seconds for one in each], axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(np.where(answered[..., None], seconds, np.nan))
        reach = np.stack([logs[..., 1] - logs[..., 0], logs[..., 2] - logs[..., 1]], axis=-1)
        columns = JobColumns(jobs, self.quantity)
        asked = self.seen.questions(columns)
        found, wider, index = self.verdicts(asked)
        weight = weights(self.names, found, index, asked.known, reach)
        middle, width = mixed(np.nan_to_num(logs[..., 1]), np.nan_to_num(reach), weight)
        width *= wider[index][:, None]
        ready = weight.sum(axis=1) > 0
        made.seconds[ready] = np.exp(
            np.stack([middle - width[:, 0], middle, middle + width[:, 1]], 1)
        )[ready]
        made = _with_physics(made, answers.get(ANALYTIC), ready)
        distances = np.stack([one.distance for one in each], axis=1)
        held = np.where(np.isfinite(distances), weight, 0.0)
        with np.errstate(invalid="ignore"):
            made.distance[:] = (np.nan_to_num(distances) * held).sum(axis=1) / np.where(
                held.any(axis=1), held.sum(axis=1), np.nan
            )
        none = np.flatnonzero(~ready)
        made.declined[none] = self._why_none(columns, answers, none)
        made.declined[~ready & answered.any(axis=1)] = _TOO_WIDE
        return replace(
            made, parts=_parts(made.seconds[:, 1], each, weight), by=self._who(weight, asked)
        )

    def _who(self, weight: FloatArray, asked: Questions) -> NDArray[np.object_]:
        """Return who answered each row, the heaviest first, and which kind of question, (n,)."""
        judged = np.bincount(self.trials.questions.kind, minlength=len(WORDS))
        words = [
            text if judged[kind] else f"{text}: no run could judge that"
            for kind, text in enumerate(WORDS)
        ]
        order = np.argsort(-weight, axis=1, kind="stable")
        ranked = np.take_along_axis(weight, order, axis=1)
        count = np.where(ranked[:, 0] >= _ALONE, 1, (ranked > 0).sum(axis=1))
        place = np.arange(len(self.names))
        table = np.column_stack([np.where(place < count[:, None], order, -1), asked.kind])
        rows, index = np.unique(table, axis=0, return_inverse=True)
        texts = np.full(len(rows), "", dtype=object)
        for i, (*members_of, kind) in enumerate(rows.tolist()):
            named = " + ".join(self.names[c] for c in members_of if c >= 0)
            texts[i] = f"auto: {named} ({words[kind]})" if named else ""
        return texts[index.reshape(-1)]

    def _why_none(
        self, columns: JobColumns, answers: Mapping[str, Forecasts], rows: IntArray
    ) -> NDArray[np.object_]:
        """Return why nobody answers some rows, (m,): what physics says, and what the laws lack.

        Of a job that physics cannot read, what runs lack comes first.
        """
        law = next((name for name in self.names if name not in PHYSICS), "")
        failed = [why for name, why in self.members.failed.items() if name not in PHYSICS]
        groups, group = columns.groups
        jobs = columns.jobs
        by_label = (jobs.workload_index < 0) | (jobs.cluster_index < 0)

        @cache
        def text(physics: str, reason: str, place: int) -> str:
            pair = [physics, reason]
            if place >= 0:
                lead = _missing(self.seen, groups[place], self.trials.runs[1], reason)
                pair = [lead, physics and f"physics does not know it: {physics}"]
            return "; and ".join(dict.fromkeys(filter(None, pair)))

        reasons = np.empty(len(rows), dtype=object)
        for i, row in enumerate(rows.tolist()):
            physics = str(answers[ANALYTIC].declined[row]) if ANALYTIC in answers else ""
            reason = str(answers[law].declined[row]) if law else (failed[0] if failed else "")
            reasons[i] = text(physics, reason, int(group[row]) if by_label[row] and law else -1)
        return reasons

    @property
    def unsaved(self) -> tuple[str, ...]:
        """Members that have no JSON form."""
        return tuple(n for n, one in self.members.fitted.items() if not hasattr(one, "to_json"))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, without members that cannot be saved."""
        trials, asked, seen = self.trials, self.trials.questions, self.seen
        kept = [name for name in self.names if name not in self.unsaved]
        at = [self.names.index(name) for name in kept]
        fitted = {n: one for n, one in self.members.fitted.items() if n not in self.unsaved}
        return {
            "quantity": self.quantity,
            "members": {n: json.loads(one.to_json()) for n, one in fitted.items()},  # type: ignore[attr-defined]
            "failed": {**self.members.failed, **dict.fromkeys(self.unsaved, "it has no JSON form")},
            "seen": {
                "configurations": [[*group, n] for group, n in seen.configurations.items()],
                "ranges": {name: _plain(values) for name, values in seen.ranges.items()},
                "texts": {name: sorted(pairs) for name, pairs in seen.texts.items()},
                "most_nodes": _plain(seen.most_nodes),
            },
            "trials": {
                "names": kept, "groups": asked.groups, "folds": trials.folds, "runs": trials.runs,
                "kind": asked.kind.tolist(), "known": asked.known.tolist(),
                "group": asked.group.tolist(), "cell": trials.cell.tolist(),
                "error": _plain(trials.error[:, at]), "reach": _plain(trials.reach[:, at]),
            },
        }  # fmt: skip

    @staticmethod
    def from_dict(saved: Mapping[str, Any]) -> WeighedCandidates:
        """Return what `to_dict` wrote. Raises KeyError, TypeError or ValueError where it did not."""
        fitted = {}
        for name, text in saved["members"].items():
            kind = registry.load("predictors", text["predictor"])
            fitted[name] = kind.from_json(json.dumps(text))
        spans, judged = saved["seen"], saved["trials"]
        seen = RunSpan(
            {tuple(group): int(count) for *group, count in spans["configurations"]},
            {name: np.array(values, dtype=float) for name, values in spans["ranges"].items()},
            {name: frozenset((int(g), str(t)) for g, t in pairs) for name, pairs in spans["texts"].items()},
            np.array(spans["most_nodes"], dtype=float),
        )  # fmt: skip
        names, rows = tuple(judged["names"]), len(judged["kind"])
        asked = Questions(
            np.array(judged["kind"], dtype=np.int8), np.array(judged["known"], dtype=float),
            np.array(judged["group"], dtype=np.int64), tuple(tuple(g) for g in judged["groups"]),
        )  # fmt: skip
        used, every = map(int, judged["runs"])
        trials = Trials(
            names, asked, np.array(judged["error"], dtype=float).reshape(rows, len(names)),
            np.array(judged["reach"], dtype=float).reshape(rows, len(names), 2),
            np.array(judged["cell"], dtype=np.int64),
            tuple((str(words), int(count)) for words, count in judged["folds"]), (used, every),
        )  # fmt: skip
        failed = {str(name): str(why) for name, why in saved["failed"].items()}
        return WeighedCandidates(str(saved["quantity"]), Members(fitted, failed), seen, trials)


def _plain(values: FloatArray) -> Any:
    """Return an array as lists for JSON, None for NaN."""
    cells = values.astype(object)
    cells[np.isnan(values)] = None
    return cells.tolist()


def _with_physics(made: Forecasts, physics: Forecasts | None, ready: BoolArray) -> Forecasts:
    """Return the forecasts with memory, floors and refusals of physics, where it knows the job."""
    if physics is None:
        return made
    floor = np.where(ready, physics.floor_seconds, np.nan)
    return replace(
        made, seconds=np.where(ready[:, None], np.fmax(made.seconds, floor[:, None]), np.nan),
        floor_seconds=floor, peak_bytes=physics.peak_bytes, usable_bytes=physics.usable_bytes,
        fit_probability=physics.fit_probability, memory_parts=physics.memory_parts,
    )  # fmt: skip


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
        if not (own and np.isclose(total, answer.seconds[rows, 1], rtol=1e-5).all()):
            own, total = {answer.predictor: np.ones(len(rows))}, np.ones(len(rows))
        for name, values in own.items():
            column = parts.setdefault(name, np.where(np.isfinite(middle), 0.0, np.nan))
            column[rows] = values / total * middle[rows]
    return parts


def _missing(seen: RunSpan, group: Kind, every: int, law: str) -> str:
    """Return what runs lack to answer for a workload on a device, and what to do.

    Args:
        seen: what the runs span. group: workload and device.
        every: how many runs there were.
        law: why a law that learned from them does not answer.
    """
    if group in seen.configurations:
        return law
    workload, device = (text or "(blank)" for text in group[: len(GROUP)])
    had = sorted({one[1] or "(blank)" for one in seen.configurations if one[0] == group[0]})
    every_one = sorted({one[0] or "(blank)" for one in seen.configurations})
    what = f"{workload} on {device}" if had else workload
    names = had or every_one
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    where = f"{workload} ran on" if had else "they are of"
    advice = law.partition("; ")[2] or "give runs of it"
    return (
        f"no run of {what} among the {every:,} that taught it: {where} {', '.join(names[:_NAMED])}{more};"
        f" {advice}"
    )
