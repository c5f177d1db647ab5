"""Auto: the predictor that the runs themselves choose, question by question."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from forerun.contracts import Predictor
from forerun.domain.forecast import Forecasts
from forerun.errors import RequestError
from forerun.predictors.analytic import AnalyticPredictor
from forerun.predictors.analytic.calibration import Learned
from forerun.predictors.choice.candidates import ANALYTIC, candidate_names
from forerun.predictors.choice.chosen import Chosen
from forerun.predictors.choice.quantities import states_plan, told
from forerun.predictors.choice.saving import chosen_dict, chosen_of, unsaved
from forerun.predictors.choice.telling import reasons, verdicts
from forerun.predictors.saved import read_saved
from forerun.predictors.starts import PRIORS, SHIPPED, started
from forerun.tables import Jobs, Runs, sorted_runs
from forerun.units import counted

VERSION = 3


@dataclass(frozen=True)
class Auto:
    """Whoever of the candidates does best on runs held out as the question holds its job out.

    Without runs it is the analytic predictor. With runs every candidate is fitted to them and
    judged on parts of them that it was not shown (see `folds`); each row is answered by those that
    did best on questions of its kind (see `questions`, `weighing`), weighed by how well they did.

    Attributes:
        start: which constants physics starts from, see `starts`.
        names: of the candidates; empty for all that are registered.
        chosen: what runs have taught, for each quantity that they time; the first is answered.
        as_they_were_run: whether most runs state no plan, so that a job that states none is taken
            to be run as they were.
    """

    start: str = PRIORS
    names: tuple[str, ...] = ()
    chosen: tuple[Chosen, ...] = ()
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
        quantities = told(runs)
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
        chosen = tuple(Chosen.of(names, self.start, runs, quantity) for quantity in quantities)
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
        return tuple(dict.fromkeys(name for chosen in self.chosen for name in unsaved(chosen)))

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
            "chosen": [chosen_dict(chosen) for chosen in self.chosen],
        })  # fmt: skip

    @staticmethod
    def from_json(text: str) -> Auto:
        """Return a saved predictor.

        Raises:
            RequestError: not this predictor's JSON, or it or a member is of another version.
        """

        def made(saved: Mapping[str, Any]) -> Auto:
            chosen = tuple(chosen_of(one) for one in saved["chosen"])
            names = tuple(map(str, saved["names"]))
            return Auto(str(saved["start"]), names, chosen, bool(saved["as_they_were_run"]))

        return read_saved(text, "a chosen model", VERSION, made)
