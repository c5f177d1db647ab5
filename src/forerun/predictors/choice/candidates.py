"""Candidates: the predictors among which the choice is made, each fitted to the same runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from forerun import registry
from forerun.contracts import Predictor
from forerun.domain.forecast import Forecasts
from forerun.errors import ForerunError
from forerun.predictors.choice.quantities import in_quantity, only, with_steps
from forerun.predictors.starts import PRIORS, started
from forerun.tables import Jobs, Runs

ANALYTIC = "analytic"
PHYSICS = (ANALYTIC,)
NAMES = (ANALYTIC, "hierarchical", "gaussian", "linear-scaling", "ray-ml")


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
        """Return each member's forecasts of a quantity for n jobs."""
        return {name: _forecast(one, jobs, quantity) for name, one in self.fitted.items()}


def members(
    names: tuple[str, ...], start: str, runs: Runs, quantity: str, *, light: bool = False
) -> Members:
    """Return the candidates fitted to runs.

    Args:
        names: of registered predictors.
        start: see `starts.started`.
        runs: laws see the times of one quantity; physics sees steps, however they were reported.
        quantity: the one to learn.
        light: whether a candidate that has a light form is fitted in it.
    """
    fitted: dict[str, Predictor] = {}
    failed: dict[str, str] = {}
    timed = only(runs, quantity)
    for name in names:
        one = _fitted(name, start, with_steps(timed) if name in PHYSICS else timed, light)
        if isinstance(one, str):
            failed[name] = one
        else:
            fitted[name] = one
    if ANALYTIC in failed:
        # The last resort: what physics knows without these runs.
        fitted[ANALYTIC] = started(ANALYTIC, PRIORS if start == PRIORS else "")
        failed[ANALYTIC] += "; it answers uncalibrated"
    return Members(fitted, failed)


def _fitted(name: str, start: str, runs: Runs, light: bool) -> Predictor | str:
    """Return a fitted candidate, or why it could not be fitted."""
    try:
        one = started(name, PRIORS if start == PRIORS else "")
        return (one.light() if light and hasattr(one, "light") else one).fit(runs)
    except ForerunError as error:
        return f"{error.found}; {error.next_step}"
    except Exception as error:  # noqa: BLE001  (one candidate's defect must not take the others' answers)
        return f"a defect of it: {type(error).__name__}: {error}"


def _forecast(member: Predictor, jobs: Jobs, quantity: str) -> Forecasts:
    """Return a member's forecasts in a quantity; where it fails, every row is declined."""
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
