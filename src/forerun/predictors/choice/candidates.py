"""Candidates: the predictors among which the choice is made, each fitted to the same runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import cast

import numpy as np

from forerun import registry
from forerun.arrays import FloatArray, IntArray
from forerun.contracts import Predictor
from forerun.domain.forecast import Forecasts
from forerun.errors import ForerunError
from forerun.predictors.choice.quantities import in_quantity, only, with_steps
from forerun.predictors.options import PRIORS, started
from forerun.tables import Jobs, Runs

ANALYTIC = "analytic"
NAMES = (ANALYTIC, "hierarchical", "gaussian", "roofline", "linear-scaling", "ernest")


def candidate_names() -> tuple[str, ...]:
    """Return the candidates that are registered, and those that a setting names."""
    from forerun.settings import load_settings

    wanted = [name.strip() for name in load_settings().text("candidates").split(",")]
    known = registry.names("predictors")
    return tuple(dict.fromkeys([*(name for name in NAMES if name in known), *filter(None, wanted)]))


@dataclass(frozen=True)
class Members:
    """Fitted candidates by name, and why others could not be fitted."""

    fitted: Mapping[str, Predictor]
    failed: Mapping[str, str]

    def forecasts(self, jobs: Jobs, quantity: str) -> dict[str, Forecasts]:
        """Return each member's forecasts of a quantity for n jobs; who fails declines every row."""
        return {name: _forecast(one, jobs, quantity) for name, one in self.fitted.items()}

    def logs(self, names: Sequence[str], jobs: Jobs, quantity: str) -> FloatArray:
        """Return the logs of the quantiles of some candidates, (n, c, 3), NaN where there are none."""
        answers = self.forecasts(jobs, quantity)
        logs = np.full((len(jobs), len(names), 3), np.nan)
        for c, name in enumerate(names):
            if name in answers:
                rows = answers[name].answered
                logs[rows, c] = np.log(answers[name].seconds[rows])
        return logs


@dataclass(frozen=True)
class Learners:
    """Candidates and the runs that they are fitted to, all of them or parts. start: see `options.started`."""

    start: str
    runs: Runs
    quantity: str

    def fitted(self, names: Sequence[str]) -> Members:
        """Return candidates fitted to all runs."""

        def learn(name: str) -> Predictor:
            one, runs = self._beginning(name)
            return one.fit(runs)

        return self._members(names, learn)

    def light(self, names: Sequence[str], part: IntArray) -> Members:
        """Return candidates fitted to the runs at some positions, in their light form where they have one."""
        return self._members(names, lambda name: self._lights(name)(part))

    @cached_property
    def _lights(self) -> Callable[[str], Callable[[IntArray], Predictor]]:
        @cache
        def light(name: str) -> Callable[[IntArray], Predictor]:
            one, runs = self._beginning(name)
            if hasattr(one, "light"):
                return cast("Callable[[IntArray], Predictor]", one.light(runs))
            return lambda part: one.fit(runs.take(part))

        return light

    def _beginning(self, name: str) -> tuple[Predictor, Runs]:
        # Laws see the times of one quantity alone; physics sees steps, however they were reported.
        timed = only(self.runs, self.quantity)
        runs = with_steps(timed) if name == ANALYTIC else timed
        return started(name, PRIORS if self.start == PRIORS else ""), runs

    def _members(self, names: Sequence[str], learn: Callable[[str], Predictor]) -> Members:
        fitted: dict[str, Predictor] = {}
        failed: dict[str, str] = {}
        for name in names:
            try:
                fitted[name] = learn(name)
            except ForerunError as error:
                failed[name] = f"{error.found}; {error.next_step}"
            except Exception as error:  # noqa: BLE001  (one candidate's defect must not take the others' answers)
                failed[name] = f"a defect of it: {type(error).__name__}: {error}"
        if ANALYTIC in failed:
            # The last resort: what physics knows without these runs.
            fitted[ANALYTIC] = self._beginning(ANALYTIC)[0]
            failed[ANALYTIC] += "; it answers uncalibrated"
        return Members(fitted, failed)


def _forecast(member: Predictor, jobs: Jobs, quantity: str) -> Forecasts:
    try:
        with np.errstate(all="ignore"):  # a quantile without bounds is checked below
            answer = in_quantity(member.predict(jobs), jobs, quantity)
    except Exception as error:  # noqa: BLE001  (as above)
        answer = Forecasts.blank(len(jobs), member.name, quantity)
        answer.declined[:] = f"a defect of {member.name}: {type(error).__name__}: {error}"
        return answer
    broken = answer.answered & ~(np.isfinite(answer.seconds) & (answer.seconds > 0)).all(axis=1)
    declined = answer.declined.copy()
    declined[broken] = f"{member.name} gave no time above 0"
    return replace(answer, declined=declined)
