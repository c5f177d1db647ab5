"""Auto: for each row the predictors that do best on runs held out as the question holds its job out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from forerun.contracts import Predictor
from forerun.domain.forecast import Forecasts
from forerun.errors import RequestError
from forerun.predictors.analytic import AnalyticPredictor
from forerun.predictors.analytic.calibration import Learned
from forerun.predictors.choice.candidates import ANALYTIC, candidate_names
from forerun.predictors.choice.choosing import WeighedCandidates
from forerun.predictors.choice.quantities import states_plan, timed_quantities
from forerun.predictors.choice.questions import WORDS
from forerun.predictors.choice.trials import weights
from forerun.predictors.saved import read_saved
from forerun.predictors.starts import PRIORS, SHIPPED, started
from forerun.tables import Jobs, Runs, sorted_runs
from forerun.units import counted, format_percent

VERSION = 4


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

    @staticmethod
    def shipped_made() -> Mapping[str, Any] | None:
        """Return how the shipped constants were made. Raises as `AnalyticPredictor.shipped_made`."""
        return AnalyticPredictor.shipped_made()

    @staticmethod
    def shipped_rows() -> Mapping[str, str]:
        """Return what taught the shipped constants. Raises as `AnalyticPredictor.shipped_rows`."""
        return AnalyticPredictor.shipped_rows()

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
                + (f"; {stopped:,} were stopped, and tell lower bounds alone" if stopped else ""),
                "give runs that ended ok, with step_time_s, samples_per_s, epoch_time_s or"
                " time_to_train_s",
            )
        names = self.names or candidate_names()
        chosen = tuple(
            WeighedCandidates.of(names, self.start, runs, quantity) for quantity in quantities
        )
        open_plans = 2 * int(states_plan(runs.table).sum()) < len(runs)
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
        return tuple(words for chosen in self.chosen for words in reasons(chosen))

    @property
    def verdicts(self) -> list[dict[str, Any]]:
        """The choice as plain values; see `telling.verdicts`."""
        return [one for chosen in self.chosen for one in verdicts(chosen)]

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


_SHOWN = 4  # candidates of one kind of question that are named
_ALL = 0.995  # answered: as good as all


def verdicts(chosen: WeighedCandidates) -> list[dict[str, Any]]:
    """Return, for each kind of question that was judged, how each candidate did, the heaviest first.

    Each has `quantity`, `question`, `judged` (runs that stood for it), and `candidates`: name,
    median_ape (percent, of those answered), answered (share), weight (mean over the judged runs).
    """
    trials = chosen.trials
    found, _, index = chosen.verdicts(trials.questions)
    weight = weights(trials.names, found, index, trials.questions.known, trials.reach)
    listed = []
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
            "quantity": chosen.quantity, "question": WORDS[kind], "judged": len(rows),
            "candidates": entries,
        })  # fmt: skip
    return listed


def reasons(chosen: WeighedCandidates) -> Iterator[str]:
    """Yield the choice in sentences."""
    trials = chosen.trials
    used, every = trials.runs
    lead = f"choice of the {chosen.quantity}'s time"
    if len(trials):
        part = "" if used == every else f" (of {every:,})"
        yield (
            f"{lead}: {counted(len(trials.names), 'candidate')} judged on {counted(used, 'run')}{part}"
            f" left out in {counted(len(trials.folds), 'way')}; an answer is the mean of the best,"
            " weighed by their errors on questions of its kind"
        )
    else:
        yield (
            f"{lead}: {counted(every, 'run')} {'leaves' if every == 1 else 'leave'} none to judge the"
            f" candidates by, so their own bands choose among {', '.join(trials.names) or 'none'}"
        )
    for one in verdicts(chosen):
        best = [entry for entry in one["candidates"] if entry["median_ape"] is not None]
        words = []
        for entry in best[:_SHOWN]:
            share = format_percent(entry["answered"])
            part = f", answers {share}" if entry["answered"] < _ALL else ""
            error = format_percent(entry["median_ape"] / 100, 1)
            words.append(f"{entry['name']} {error} (weight {entry['weight']:.2f}{part})")
        more = f" and {len(best) - _SHOWN} more" if len(best) > _SHOWN else ""
        yield (
            f"{one['question']}: median errors on {counted(one['judged'], 'judged run')}:"
            f" {', '.join(words) or 'nobody answers'}{more}"
        )
    for name, why in chosen.members.failed.items():
        yield f"{name}: not among them: {why}"
