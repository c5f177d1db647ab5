"""Candidates: the predictors among which the choice is made, each fitted to the same runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from forerun import registry
from forerun.arrays import FloatArray
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


def members(
    names: tuple[str, ...], start: str, runs: Runs, quantity: str, *, light: bool = False
) -> Members:
    """Return the candidates fitted to runs.

    Laws see the times of one quantity alone; physics sees steps, however they were reported. start: see
    `options.started`; light: whether a candidate that has a light form is fitted in it.
    """
    fitted: dict[str, Predictor] = {}
    failed: dict[str, str] = {}
    timed, begin = only(runs, quantity), PRIORS if start == PRIORS else ""
    for name in names:
        try:
            one = started(name, begin)
            one = one.light() if light and hasattr(one, "light") else one
            fitted[name] = one.fit(with_steps(timed) if name == ANALYTIC else timed)
        except ForerunError as error:
            failed[name] = f"{error.found}; {error.next_step}"
        except Exception as error:  # noqa: BLE001  (one candidate's defect must not take the others' answers)
            failed[name] = f"a defect of it: {type(error).__name__}: {error}"
    if ANALYTIC in failed:
        # The last resort: what physics knows without these runs.
        fitted[ANALYTIC] = started(ANALYTIC, begin)
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
