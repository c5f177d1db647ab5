"""Candidates: the predictors among which is chosen, each taught the same runs; a failure is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from forerun import registry
from forerun.contracts import Predictor
from forerun.domain.forecast import Forecasts
from forerun.errors import ForerunError
from forerun.predictors.choice.quantities import in_quantity, only, with_steps
from forerun.predictors.starts import PRIORS, started
from forerun.tables import Jobs, Runs

ANALYTIC = "analytic"
# Physics first: the others are taken where they are registered.
PHYSICS = (ANALYTIC, "residual")
NAMES = (
    *PHYSICS, "hierarchical", "goodput", "ernest", "generic", "ps-saturation", "linear-scaling",
    "gaussian", "ray-ml", "constant-mfu",
)  # fmt: skip


def candidate_names() -> tuple[str, ...]:
    """Return the candidates that are registered, and the guests that a setting names."""
    from forerun.settings import load_settings

    wanted = [name.strip() for name in load_settings().text("candidates").split(",")]
    known = registry.names("predictors")
    return tuple(dict.fromkeys([*(name for name in NAMES if name in known), *filter(None, wanted)]))


@dataclass(frozen=True)
class Members:
    """Fitted candidates by name, and of those that could not be fitted why."""

    fitted: Mapping[str, Predictor]
    failed: Mapping[str, str]

    def forecasts(self, jobs: Jobs, quantity: str) -> dict[str, Forecasts]:
        """Return each member's forecasts of a quantity for n jobs."""
        return {name: asked(one, jobs, quantity) for name, one in self.fitted.items()}


def members(names: tuple[str, ...], start: str, runs: Runs, quantity: str) -> Members:
    """Return the candidates as the runs teach them.

    Args:
        names: of registered predictors.
        start: see `starts.started`.
        runs: facts. Laws are shown the times of one quantity; physics steps, however told.
        quantity: the one to learn.
    """
    fitted: dict[str, Predictor] = {}
    failed: dict[str, str] = {}
    told = only(runs, quantity)
    for name in sorted(names, key=lambda one: one != "residual"):
        if name == ANALYTIC and "residual" in fitted:
            continue  # it is the physics of the residual, calibrated by the same runs
        one = _taught(name, start, with_steps(told) if name in PHYSICS else told)
        if isinstance(one, str):
            failed[name] = one
        else:
            fitted[name] = one
    if ANALYTIC in names:
        if "residual" in fitted:
            fitted[ANALYTIC] = fitted["residual"].physics  # type: ignore[attr-defined]
        elif ANALYTIC not in fitted:
            # The last resort: what it knows without these runs.
            fitted[ANALYTIC] = started(ANALYTIC, PRIORS if start == PRIORS else "")
            failed[ANALYTIC] += "; it answers uncalibrated"
    return Members(fitted, failed)


def _taught(name: str, start: str, runs: Runs) -> Predictor | str:
    """Return a fitted candidate, or why it could not be fitted."""
    try:
        one: Any = started(name, PRIORS if start == PRIORS else "")
        light = getattr(one, "light", None)
        fitted: Predictor = (one if light is None else light()).fit(runs)
    except ForerunError as error:
        return f"{error.found}; {error.next_step}"
    except Exception as error:  # noqa: BLE001  (one candidate's defect must not take the others' answers)
        return f"a defect of it: {type(error).__name__}: {error}"
    return fitted


def asked(member: Predictor, jobs: Jobs, quantity: str) -> Forecasts:
    """Return a member's forecasts in a quantity; where it breaks, every row is declined."""
    try:
        with np.errstate(all="ignore"):  # a quantile without bounds is checked below
            answer = in_quantity(member.predict(jobs), jobs, quantity)
    except Exception as error:  # noqa: BLE001  (as above)
        answer = Forecasts.blank(len(jobs), member.name, quantity)
        answer.declined[:] = f"a defect of {member.name}: {type(error).__name__}: {error}"
        return answer
    broken = answer.answered & ~(np.isfinite(answer.seconds) & (answer.seconds > 0)).all(axis=1)
    if not broken.any():
        return answer
    declined = answer.declined.copy()
    declined[broken] = f"{member.name} gave no time above 0"
    return replace(answer, declined=declined)
