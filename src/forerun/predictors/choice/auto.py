"""Auto: for each row the predictor that does best on runs held out as the question holds its job out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from forerun.arrays import FloatArray, IntArray
from forerun.contracts import Predictor
from forerun.domain.forecast import Forecasts
from forerun.errors import RequestError
from forerun.predictors.analytic import AnalyticPredictor
from forerun.predictors.analytic.saving import Learned
from forerun.predictors.choice.candidates import ANALYTIC, Learners, Members, candidate_names
from forerun.predictors.choice.quantities import LAYOUT, timed_quantities
from forerun.predictors.choice.questions import WORDS, JobColumns, RunSpan
from forerun.predictors.choice.trials import Trials, Verdict, usual_order
from forerun.predictors.laws.law_rows import Kind, measured
from forerun.predictors.options import PRIORS, SHIPPED, started
from forerun.predictors.saved import SavedPredictor, plain
from forerun.tables import Jobs, Runs, configurations, sorted_runs
from forerun.units import counted, format_percent

_MOST_REACH = 1000.0  # a band that reaches further either way is no answer
_TOO_WIDE = (
    "the band of every candidate reaches further than x1,000 either way; give more runs near it"
)


@dataclass(frozen=True)
class QuantityChoice:
    """Fitted candidates for one quantity (step, epoch or run), and who answers which kind of question.

    verdicts: of the kinds that could be judged; runs: how many were given.
    """

    quantity: str
    members: Members
    span: RunSpan
    verdicts: tuple[Verdict, ...]
    runs: int

    @staticmethod
    def of(names: tuple[str, ...], start: str, runs: Runs, quantity: str) -> QuantityChoice:
        """Return the candidates fitted to the times of one quantity."""
        fitted = Learners(start, runs, quantity).fitted(names)
        part = runs.take(np.flatnonzero(np.isfinite(measured(runs, quantity))))
        span = RunSpan.of(JobColumns.of(part.jobs, quantity), configurations(part.table)[1])
        alive = tuple(name for name in names if name in fitted.fitted)
        verdicts = Trials.of(alive, start, runs, quantity).verdicts()
        return QuantityChoice(quantity, fitted, span, verdicts, len(runs))

    def predict(self, jobs: Jobs) -> Forecasts:
        """Return n forecasts, with who answered each row."""
        made = Forecasts.blank(len(jobs), "auto", self.quantity)
        if not len(jobs):
            return made
        answers = self.members.forecasts(jobs, self.quantity)
        columns = JobColumns.of(jobs, self.quantity)
        kinds = self.span.kinds(columns)
        by = np.full(len(jobs), "", dtype=object)
        parts: dict[str, FloatArray] = {}
        for kind in np.unique(kinds).tolist():
            words, order = self._order(kind)
            for name, stretch in order.items():
                answer = answers[name]
                near = (answer.seconds[:, [0, 2]] / answer.seconds[:, [1]]) ** [-1.0, 1.0]
                usable = answer.answered & (near <= _MOST_REACH).all(axis=1)
                rows = np.flatnonzero((kinds == kind) & (by == "") & usable)
                middle = answer.seconds[rows, 1:2]
                made.seconds[rows] = middle * (answer.seconds[rows] / middle) ** stretch
                made.distance[rows] = answer.distance[rows]
                by[rows] = f"auto: {name} ({words})"
                _put_parts(parts, answer, rows)
        ready = by != ""
        if ANALYTIC in answers:  # memory, floors and refusals of physics, where it knows the job
            physics = answers[ANALYTIC]
            floor = np.where(ready, physics.floor_seconds, np.nan)
            raised = np.fmax(made.seconds, floor[:, None])
            share = raised[:, 1] / made.seconds[:, 1]
            parts = {name: values * share for name, values in parts.items()}
            made = replace(
                made, seconds=np.where(ready[:, None], raised, np.nan), floor_seconds=floor,
                peak_bytes=physics.peak_bytes, usable_bytes=physics.usable_bytes,
                fit_probability=physics.fit_probability, memory_parts=physics.memory_parts,
            )  # fmt: skip
        made.declined[~ready] = self._why_none(jobs, columns, answers, np.flatnonzero(~ready))
        wide = np.any([answer.answered for answer in answers.values()], axis=0) & ~ready
        made.declined[wide] = _TOO_WIDE
        return replace(made, parts=parts, by=by)

    def _order(self, kind: int) -> tuple[str, dict[str, float]]:
        """Return a kind of question in words, and the candidates in order with their bands' stretch."""
        for one in self.verdicts:
            if one.kind == kind:
                able = [score for score in one.scores if score.name in self.members.fitted]
                return WORDS[kind], {score.name: score.stretch for score in able}
        words = f"{WORDS[kind]}: no run could judge that"
        return words, dict.fromkeys(usual_order(kind, list(self.members.fitted)), 1.0)

    def _why_none(
        self, jobs: Jobs, columns: JobColumns, answers: Mapping[str, Forecasts], rows: IntArray
    ) -> list[str]:
        """Return why nobody answers some rows, (m,); of a job that physics cannot read, what runs lack comes first."""
        law = next((name for name in answers if name != ANALYTIC), "")
        failed = next((why for name, why in self.members.failed.items() if name != ANALYTIC), "")
        by_label = (jobs.workload_index < 0) | (jobs.cluster_index < 0)
        reasons = []
        for row in rows.tolist():
            physics = str(answers[ANALYTIC].declined[row]) if ANALYTIC in answers else ""
            reason = str(answers[law].declined[row]) if law else failed
            pair = [physics, reason]
            if by_label[row] and law:
                missing = self._missing(columns.groups[columns.group[row]], reason)
                pair = [missing, physics and f"physics does not know it: {physics}"]
            reasons.append("; and ".join(dict.fromkeys(filter(None, pair))))
        return reasons

    def _missing(self, group: Kind, reason: str) -> str:
        """Return what runs lack to answer for a workload on a device; reason: that of a law."""
        if group in self.span.groups:
            return reason
        workload, device = (text or "(blank)" for text in group)
        ran_on = sorted(one[1] for one in self.span.groups if one[0] == group[0])
        had = ran_on or sorted({one[0] for one in self.span.groups})
        found = f"{workload} ran on" if ran_on else "they are of"
        return (
            f"no run of {workload}{f' on {device}' if ran_on else ''} among the {self.runs:,} runs:"
            f" {found} {', '.join(had)}; {reason.partition('; ')[2] or 'give runs of it'}"
        )

    def reasons(self) -> Iterator[str]:
        """Yield the choice in sentences."""
        lead = f"choice of the {self.quantity}'s time"
        if self.verdicts:
            yield f"{lead}: candidates judged on left-out runs; the first one named that can answers"
        else:
            yield f"{lead}: {counted(self.runs, 'run')} left none to judge the candidates by"
        for one in self.verdicts:
            errors = [
                f"{score.name} {format_percent(score.median_ape / 100, 1)}"
                for score in one.scores if score.median_ape is not None
            ]  # fmt: skip
            yield (
                f"{WORDS[one.kind]}: median errors on {counted(one.judged, 'judged run')}:"
                f" {', '.join(errors) or 'nobody answers'}"
            )
        for name, why in self.members.failed.items():
            yield f"{name}: not among them: {why}"

    @property
    def unsaved(self) -> tuple[str, ...]:
        """Members that have no JSON form."""
        return tuple(n for n, one in self.members.fitted.items() if not hasattr(one, "to_json"))

    def without_unsaved(self) -> QuantityChoice:
        """Return the choice without members that have no JSON form."""
        kept = {n: one for n, one in self.members.fitted.items() if n not in self.unsaved}
        failed = {**self.members.failed, **dict.fromkeys(self.unsaved, "it has no JSON form")}
        return replace(self, members=Members(kept, failed))


def _put_parts(parts: dict[str, FloatArray], answer: Forecasts, rows: IntArray) -> None:
    """Put the parts of some rows' answer into columns: its own where they add up, else its name."""
    middle = answer.seconds[:, 1]
    own = {name: np.asarray(values) for name, values in answer.parts.items()}
    total = sum(own.values(), np.zeros(len(middle)))
    if not (own and np.isclose(total[rows], middle[rows], rtol=1e-5).all()):
        own = {answer.predictor: middle}
    for name, values in own.items() if len(rows) else ():
        parts.setdefault(name, np.zeros(len(middle)))[rows] = values[rows]


@dataclass(frozen=True)
class Auto(SavedPredictor):
    """The candidate that does best on runs held out as the question holds its job out.

    Without runs it is the analytic predictor. With runs, each row is answered by the first candidate, in
    the order of its kind of question (see `trials`), that can.

    Attributes:
        start: which constants physics starts from, see `options.started`.
        names: of the candidates; empty for all that are registered.
        chosen: for each quantity that runs time; the first is answered.
        as_they_were_run: whether most runs state no plan: a job without one is then run as they were.
    """

    start: str = PRIORS
    names: tuple[str, ...] = ()
    chosen: tuple[QuantityChoice, ...] = ()
    as_they_were_run: bool = False

    name = "auto"
    version = 6

    @staticmethod
    def shipped() -> Auto:
        """Return it with the shipped constants. Raises as `AnalyticPredictor.shipped`."""
        return Auto(SHIPPED)

    shipped_made = staticmethod(AnalyticPredictor.shipped_made)
    shipped_rows = staticmethod(AnalyticPredictor.shipped_rows)

    def fit(self, runs: Runs) -> Auto:
        """Return one whose candidates have learned from these runs alone; RequestError where none has a time."""
        runs = sorted_runs(runs)
        quantities = timed_quantities(runs)
        if not quantities:
            stopped = int((runs.status == "timeout").sum())
            raise RequestError(
                f"fitting {self.name} on {counted(len(runs), 'run')}",
                "none that ended has a time of a step, an epoch or a whole run"
                + (f"; {stopped:,} were stopped, which are lower bounds alone" if stopped else ""),
                "give runs that ended ok, with step_time_s, samples_per_s, epoch_time_s or"
                " time_to_train_s",
            )
        names = self.names or candidate_names()
        chosen = tuple(QuantityChoice.of(names, self.start, runs, one) for one in quantities)
        stated = [runs.table.texts(name) != "" for name in LAYOUT if name in runs.table]
        return Auto(self.start, self.names, chosen, bool(np.any(stated, axis=0).mean() < 0.5))

    def predict(self, jobs: Jobs) -> Forecasts:
        """Return the forecasts of n jobs, in the quantity that most runs time."""
        if not self.chosen:
            return replace(self.planner.predict(jobs), predictor=self.name)
        return self.chosen[0].predict(jobs)

    def every_quantity(self, jobs: Jobs) -> list[Forecasts]:
        """Return the forecasts of n jobs in each quantity that runs time, that of `predict` first."""
        return [chosen.predict(jobs) for chosen in self.chosen] or [self.predict(jobs)]

    @cached_property
    def planner(self) -> Predictor:
        """Physics, as these runs have calibrated it: who tells plans of one job apart."""
        for chosen in self.chosen:
            if ANALYTIC in chosen.members.fitted and ANALYTIC not in chosen.members.failed:
                return chosen.members.fitted[ANALYTIC]
        return started(ANALYTIC, PRIORS if self.start == PRIORS else "")

    @property
    def learned(self) -> tuple[Learned, ...]:
        """What runs said of each constant of physics; nothing where none of them spoke of physics."""
        if self.chosen and not self.fitted_runs:
            return ()
        return tuple(getattr(self.planner, "learned", ()))

    @property
    def fitted_runs(self) -> int:
        """How many runs have calibrated physics."""
        return int(getattr(self.planner, "fitted_runs", 0))

    @property
    def reasons(self) -> tuple[str, ...]:
        """The choice in sentences: who, by what error, and who could not be fitted."""
        return tuple(words for chosen in self.chosen for words in chosen.reasons())

    @property
    def verdicts(self) -> list[dict[str, Any]]:
        """How candidates did on each kind of question that was judged, see `CandidateScore`, the leader first."""
        return [
            {"quantity": chosen.quantity, "question": WORDS[one.kind], "judged": one.judged,
             "candidates": plain(one.scores)}
            for chosen in self.chosen for one in chosen.verdicts
        ]  # fmt: skip

    @property
    def unsaved(self) -> tuple[str, ...]:
        """Members that `to_json` leaves out, as they have no JSON form."""
        return tuple(dict.fromkeys(name for chosen in self.chosen for name in chosen.unsaved))

    @property
    def formulas(self) -> dict[str, str]:
        """The laws of the candidates that have any, by candidate and kind of job."""
        return {
            f"{name}: {kind}": text
            for chosen in self.chosen
            for name, one in chosen.members.fitted.items()
            for kind, text in getattr(one, "formulas", {}).items()
        }

    def to_json(self) -> str:
        """Return the members, each in its own JSON, and the verdicts, as JSON text; see `unsaved`."""
        chosen = tuple(chosen.without_unsaved() for chosen in self.chosen)
        return SavedPredictor.to_json(replace(self, chosen=chosen))
