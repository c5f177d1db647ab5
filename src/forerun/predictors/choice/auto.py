"""Auto: for each row the predictors that do best on runs held out as the question holds its job out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun import registry
from forerun.arrays import FloatArray, IntArray
from forerun.contracts import Predictor
from forerun.domain.forecast import Forecasts
from forerun.errors import RequestError
from forerun.predictors.analytic import AnalyticPredictor
from forerun.predictors.analytic.calibration import Learned
from forerun.predictors.choice.candidates import (
    ANALYTIC,
    PHYSICS,
    Members,
    candidate_names,
    logs_of,
    members,
)
from forerun.predictors.choice.quantities import LAYOUT, timed_quantities
from forerun.predictors.choice.questions import WORDS, JobColumns, Questions, RunSpan
from forerun.predictors.choice.trials import (
    CandidateLosses,
    Trials,
    mixed,
    reaches,
    stretch,
    weights,
)
from forerun.predictors.laws.law_rows import Kind, measured
from forerun.predictors.options import PRIORS, SHIPPED, started
from forerun.predictors.saved import read_saved
from forerun.tables import Jobs, Runs, configurations, sorted_runs
from forerun.units import counted, format_percent

_ALONE = 0.85  # of the weight: a candidate with so much is named alone
_NAMED = 4
_TOO_WIDE = (
    "the band of every candidate reaches further than x1,000 either way, which is no answer; give"
    " runs nearer to it, or more of them"
)


@dataclass(frozen=True)
class WeighedCandidates:
    """Fitted candidates for one quantity, with the trials by which they are weighed.

    Attributes:
        quantity: step, epoch or run: what is answered.
        members: the fitted candidates, and why others are none.
        span: what the runs span.
        trials: how each candidate did on runs that it was not shown.
    """

    quantity: str
    members: Members
    span: RunSpan
    trials: Trials

    @staticmethod
    def of(names: tuple[str, ...], start: str, runs: Runs, quantity: str) -> WeighedCandidates:
        """Return the candidates fitted to the times of one quantity."""
        fitted = members(names, start, runs, quantity)
        part = runs.take(np.flatnonzero(np.isfinite(measured(runs, quantity))))
        span = RunSpan.of(JobColumns(part.jobs, quantity), configurations(part.table)[1])
        alive = tuple(name for name in names if name in fitted.fitted)
        return WeighedCandidates(quantity, fitted, span, Trials.of(alive, start, runs, quantity))

    @property
    def names(self) -> tuple[str, ...]:
        """The candidates that are weighed."""
        return self.trials.names

    @cached_property
    def _known(self) -> dict[tuple[int, float, Kind], tuple[CandidateLosses, float]]:
        return {}

    def weighed(self, questions: Questions, reach: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the weights (n, c) of n questions, and how much bands are stretched, (n,).

        reach: of the candidates' bands, (n, c, 2), NaN where one does not answer.
        """
        first, index = questions.distinct()
        found = []
        for i in first.tolist():
            key = (
                int(questions.kind[i]), float(questions.known[i]),
                questions.groups[questions.group[i]],
            )  # fmt: skip
            if key not in self._known:
                one = CandidateLosses.of(self.trials, *key)
                self._known[key] = one, stretch(self.trials, key[0], one)
            found.append(self._known[key])
        wider = np.array([wide for _, wide in found])[index] if found else np.zeros(0)
        return weights(self.names, [one for one, _ in found], index, questions.known, reach), wider

    def predict(self, jobs: Jobs) -> Forecasts:
        """Return n forecasts, with who answered each row."""
        made = Forecasts.blank(len(jobs), "auto", self.quantity)
        if not len(jobs):
            return made
        answers = self.members.forecasts(jobs, self.quantity)
        logs = logs_of(answers, self.names, len(jobs))
        reach = reaches(logs)
        columns = JobColumns(jobs, self.quantity)
        questions = self.span.questions(columns)
        weight, wider = self.weighed(questions, reach)
        middle, width = mixed(np.nan_to_num(logs[..., 1]), np.nan_to_num(reach), weight)
        width *= wider[:, None]
        ready = weight.sum(axis=1) > 0
        bands = np.exp(np.stack([middle - width[:, 0], middle, middle + width[:, 1]], axis=1))
        made.seconds[ready] = bands[ready]
        if ANALYTIC in answers:  # memory, floors and refusals of physics, where it knows the job
            physics = answers[ANALYTIC]
            floor = np.where(ready, physics.floor_seconds, np.nan)
            seconds = np.fmax(made.seconds, floor[:, None])
            made = replace(
                made, seconds=np.where(ready[:, None], seconds, np.nan), floor_seconds=floor,
                peak_bytes=physics.peak_bytes, usable_bytes=physics.usable_bytes,
                fit_probability=physics.fit_probability, memory_parts=physics.memory_parts,
            )  # fmt: skip
        each = [answers[name] for name in self.names]
        distances = np.stack([one.distance for one in each], axis=1)
        held = np.where(np.isfinite(distances), weight, 0.0)
        with np.errstate(invalid="ignore"):
            total = (np.nan_to_num(distances) * held).sum(axis=1)
            made.distance[:] = total / np.where(held.any(axis=1), held.sum(axis=1), np.nan)
        none = np.flatnonzero(~ready)
        made.declined[none] = self._why_none(columns, answers, none)
        made.declined[~ready & np.isfinite(logs[..., 1]).any(axis=1)] = _TOO_WIDE
        return replace(
            made, parts=_parts(made.seconds[:, 1], each, weight), by=self._who(weight, questions)
        )

    def _who(self, weight: FloatArray, questions: Questions) -> NDArray[np.object_]:
        """Return who answered each row, the heaviest first, and which kind of question, (n,)."""
        judged = np.bincount(self.trials.questions.kind, minlength=len(WORDS))
        order = np.argsort(-weight, axis=1, kind="stable")
        ranked = np.take_along_axis(weight, order, axis=1)
        named = (ranked > 0) & ((np.arange(len(self.names)) == 0) | (ranked[:, :1] < _ALONE))
        table = np.column_stack([np.where(named, order, -1), questions.kind])
        rows, index = np.unique(table, axis=0, return_inverse=True)
        texts = np.full(len(rows), "", dtype=object)
        for i, (*places, kind) in enumerate(rows.tolist()):
            who = " + ".join(self.names[c] for c in places if c >= 0)
            words = WORDS[kind] if judged[kind] else f"{WORDS[kind]}: no run could judge that"
            texts[i] = f"auto: {who} ({words})" if who else ""
        return texts[index.reshape(-1)]

    def _why_none(
        self, columns: JobColumns, answers: Mapping[str, Forecasts], rows: IntArray
    ) -> list[str]:
        """Return why nobody answers some rows, (m,): what physics says, and what the laws lack.

        Of a job that physics cannot read, what runs lack comes first.
        """
        law = next((name for name in self.names if name not in PHYSICS), "")
        failed = [why for name, why in self.members.failed.items() if name not in PHYSICS]
        groups, group = columns.groups
        jobs = columns.jobs
        by_label = (jobs.workload_index < 0) | (jobs.cluster_index < 0)
        reasons = []
        for row in rows.tolist():
            physics = str(answers[ANALYTIC].declined[row]) if ANALYTIC in answers else ""
            reason = str(answers[law].declined[row]) if law else (failed[0] if failed else "")
            pair = [physics, reason]
            if by_label[row] and law:
                pair = [
                    self._missing(groups[group[row]], reason),
                    physics and f"physics does not know it: {physics}",
                ]
            reasons.append("; and ".join(dict.fromkeys(filter(None, pair))))
        return reasons

    def _missing(self, group: Kind, reason: str) -> str:
        """Return what runs lack to answer for a workload on a device; reason: that of a law."""
        if group in self.span.configurations:
            return reason
        workload, device = (text or "(blank)" for text in group)
        same = [one for one in self.span.configurations if one[0] == group[0]]
        had = sorted({one[bool(same)] or "(blank)" for one in same or self.span.configurations})
        more = f" and {len(had) - _NAMED:,} more" if len(had) > _NAMED else ""
        return (
            f"no run of {workload}{f' on {device}' if same else ''} among the {self.trials.runs[1]:,}"
            f" runs: {f'{workload} ran on' if same else 'they are of'} {', '.join(had[:_NAMED])}{more};"
            f" {reason.partition('; ')[2] or 'give runs of it'}"
        )

    def verdicts(self) -> list[dict[str, Any]]:
        """Return, for each kind of question that was judged, how each candidate did, the heaviest first.

        Each has `quantity`, `question`, `judged` (runs that stood for it), and `candidates`: name,
        median_ape (percent, of those answered), answered (share), weight (mean over the judged runs).
        """
        trials, listed = self.trials, []
        weight, _ = self.weighed(trials.questions, trials.reach)
        for kind in np.unique(trials.questions.kind).tolist():
            rows = np.flatnonzero(trials.questions.kind == kind)
            held = weight[rows][weight[rows].sum(axis=1) > 0]
            entries: list[dict[str, Any]] = []
            for c, name in enumerate(trials.names):
                answered = np.isfinite(trials.error[rows, c])
                off = 100 * np.abs(np.expm1(-trials.error[rows, c][answered]))
                entries.append({
                    "name": name, "median_ape": float(np.median(off)) if len(off) else None,
                    "answered": float(answered.mean()),
                    "weight": float(held[:, c].mean()) if len(held) else 0.0,
                })  # fmt: skip
            entries.sort(key=lambda one: (-one["weight"], one["median_ape"] or np.inf))
            listed.append({
                "quantity": self.quantity, "question": WORDS[kind], "judged": len(rows),
                "candidates": entries,
            })  # fmt: skip
        return listed

    def reasons(self) -> Iterator[str]:
        """Yield the choice in sentences."""
        used, every = self.trials.runs
        lead = f"choice of the {self.quantity}'s time"
        if len(self.trials):
            yield (
                f"{lead}: {counted(len(self.names), 'candidate')} judged on {used:,} of"
                f" {counted(every, 'run')}, left out in {counted(self.trials.folds, 'way')}; an answer"
                " is the mean of the best, weighed by their errors on questions of its kind"
            )
        else:
            yield (
                f"{lead}: {counted(every, 'run')} left none to judge the candidates by, so their own"
                f" bands choose among {', '.join(self.names) or 'none'}"
            )
        for one in self.verdicts():
            words = [
                f"{entry['name']} {format_percent(entry['median_ape'] / 100, 1)} (weight"
                f" {entry['weight']:.2f}, answers {format_percent(entry['answered'])})"
                for entry in one["candidates"] if entry["median_ape"] is not None
            ]  # fmt: skip
            yield (
                f"{one['question']}: median errors on {counted(one['judged'], 'judged run')}:"
                f" {', '.join(words) or 'nobody answers'}"
            )
        for name, why in self.members.failed.items():
            yield f"{name}: not among them: {why}"

    @property
    def unsaved(self) -> tuple[str, ...]:
        """Members that have no JSON form."""
        return tuple(n for n, one in self.members.fitted.items() if not hasattr(one, "to_json"))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, without members that cannot be saved."""
        trials, span = self.trials, self.span
        kept = [name for name in self.names if name not in self.unsaved]
        at = [self.names.index(name) for name in kept]
        fitted = {n: one for n, one in self.members.fitted.items() if n not in self.unsaved}
        return {
            "quantity": self.quantity,
            "members": {n: json.loads(one.to_json()) for n, one in fitted.items()},  # type: ignore[attr-defined]
            "failed": {**self.members.failed, **dict.fromkeys(self.unsaved, "it has no JSON form")},
            "span": {
                "configurations": [[*group, n] for group, n in span.configurations.items()],
                "ranges": {name: _plain(values) for name, values in span.ranges.items()},
                "texts": {name: sorted(pairs) for name, pairs in span.texts.items()},
            },
            "trials": {
                "names": kept, "runs": trials.runs, "folds": trials.folds, "cell": trials.cell.tolist(),
                "questions": {k: np.asarray(v).tolist() for k, v in vars(trials.questions).items()},
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
        spans, judged = saved["span"], saved["trials"]
        span = RunSpan(
            {tuple(group): int(count) for *group, count in spans["configurations"]},
            {name: np.array(values, dtype=float) for name, values in spans["ranges"].items()},
            {name: frozenset(map(tuple, pairs)) for name, pairs in spans["texts"].items()},
        )  # fmt: skip
        names, lie = tuple(judged["names"]), judged["questions"]
        shape = len(lie["kind"]), len(names)
        questions = Questions(
            np.array(lie["kind"], dtype=np.int8), np.array(lie["known"], dtype=float),
            np.array(lie["group"], dtype=np.int64), tuple(map(tuple, lie["groups"])),
        )  # fmt: skip
        used, every = map(int, judged["runs"])
        trials = Trials(
            names, questions, np.array(judged["error"], dtype=float).reshape(shape),
            np.array(judged["reach"], dtype=float).reshape(*shape, 2),
            np.array(judged["cell"], dtype=np.int64), int(judged["folds"]), (used, every),
        )  # fmt: skip
        return WeighedCandidates(
            str(saved["quantity"]), Members(fitted, dict(saved["failed"])), span, trials
        )


def _plain(values: FloatArray) -> Any:
    """Return an array as lists for JSON, None for NaN."""
    cells = values.astype(object)
    cells[np.isnan(values)] = None
    return cells.tolist()


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


VERSION = 5


@dataclass(frozen=True)
class Auto:
    """A mean of the candidates that do best on runs held out as the question holds its job out.

    Without runs it is the analytic predictor. With runs every candidate is fitted to them, and
    judged on folds of them that resemble the questions (see `questions`); each row is answered by
    those that did best on questions of its kind, weighed by their errors (see `trials`).

    Attributes:
        start: which constants physics starts from, see `starts`.
        names: of the candidates; empty for all that are registered.
        chosen: fitted candidates, for each quantity that runs time; the first is answered.
        as_they_were_run: whether most runs state no plan, so that a job that states none is taken
            to be run as they were.
    """

    start: str = PRIORS
    names: tuple[str, ...] = ()
    chosen: tuple[WeighedCandidates, ...] = ()
    as_they_were_run: bool = False

    name = "auto"

    @staticmethod
    def shipped() -> Auto:
        """Return it with the shipped constants. Raises as `AnalyticPredictor.shipped`."""
        return Auto(SHIPPED)

    shipped_made = staticmethod(AnalyticPredictor.shipped_made)
    shipped_rows = staticmethod(AnalyticPredictor.shipped_rows)

    def fit(self, runs: Runs) -> Auto:
        """Return one whose candidates have learned from these runs alone.

        Raises:
            RequestError: no run has a time.
        """
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
        chosen = tuple(
            WeighedCandidates.of(names, self.start, runs, quantity) for quantity in quantities
        )
        table = runs.table
        stated = [table.texts(name) != "" for name in LAYOUT if name in table]
        open_plans = bool(np.any(stated, axis=0).mean() < 0.5)
        return Auto(self.start, self.names, chosen, open_plans)

    def declines(self, jobs: Jobs) -> list[str | None]:
        """Return why a job has no answer: of nobody."""
        return list(self.predict(jobs).declined)

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
        """The choice in sentences: who, by what error, against whom, and who could not be fitted."""
        return tuple(words for chosen in self.chosen for words in chosen.reasons())

    @property
    def verdicts(self) -> list[dict[str, Any]]:
        """The choice as plain values; see `WeighedCandidates.verdicts`."""
        return [one for chosen in self.chosen for one in chosen.verdicts()]

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
        """Return the members, each in its own JSON, and their trials, as JSON text; see `unsaved`."""
        return json.dumps({
            "predictor": self.name, "version": VERSION, "start": self.start, "names": self.names,
            "as_they_were_run": self.as_they_were_run,
            "chosen": [chosen.to_dict() for chosen in self.chosen],
        })  # fmt: skip

    @staticmethod
    def from_json(text: str) -> Auto:
        """Return a saved predictor.

        Raises:
            RequestError: not this predictor's JSON, or it or a member is of another version.
        """

        def made(saved: Mapping[str, Any]) -> Auto:
            chosen = tuple(WeighedCandidates.from_dict(one) for one in saved["chosen"])
            names = tuple(map(str, saved["names"]))
            return Auto(str(saved["start"]), names, chosen, bool(saved["as_they_were_run"]))

        return read_saved(text, "a chosen model", VERSION, made)
