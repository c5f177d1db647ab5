"""Objective: what "best" means: least time, cost or energy, or the knee, under limits."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.errors import RequestError, one_of

AIMS = ("time", "cost", "knee", "energy")
MARKETS = ("on-demand", "spot", "any")
LEAST_GOODPUT = 0.01


def checked_goodput(share: float, asked: str) -> float:
    """Return a goodput. Raises RequestError where it is no share of a wall time."""
    if not LEAST_GOODPUT <= share <= 1:
        found = f"not a share of the wall time from {LEAST_GOODPUT:g} to 1"
        advice = "write e.g. 0.9 or 90%, or leave it out for published failure rates"
        raise RequestError(asked, found, advice)
    return share


@dataclass(frozen=True)
class Preemption:
    """What time is lost: how spot machines are lost and what that costs, and the goodput apart from it.

    restart: from a loss until training goes on. goodput: the share of the wall time that is steps, None
    for what published failures, checkpoints and evaluation leave (`estimate.lost_time_factor`). startup: until
    the first step, None for published times of rented machines (`estimate.startup_seconds`) and 0 of one's
    own. least_billed: of a machine, None for what its cloud bills at least.
    """

    rate_per_node_hour: float = 0.05
    checkpoint_interval_seconds: float = 1800.0
    checkpoint_seconds: float = 30.0
    restart_seconds: float = 300.0
    goodput: float | None = None
    startup_seconds: float | None = None
    least_billed_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.goodput is not None:
            checked_goodput(self.goodput, f"a goodput of {self.goodput:g}")
        for name in ("startup_seconds", "least_billed_seconds"):
            if not 0 <= (value := getattr(self, name) or 0.0) < 1e12:
                asked = f"{name.replace('_', ' ')} {value}"
                raise RequestError(
                    asked, "negative, or longer than any run", "give seconds, 0 or more"
                )
        if not (
            0 <= self.rate_per_node_hour < 1e4
            and self.checkpoint_interval_seconds > 0
            and self.checkpoint_seconds >= 0
            and self.restart_seconds >= 0
        ):
            raise RequestError(
                f"preemption {self}", "a rate or time is negative or out of range",
                "give a rate of 0 or more an hour and positive times",
            )  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """When a run must have ended and what it may cost, None for no limit."""

    deadline_seconds: float | None = None
    budget_dollars: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not 0 < value < float("inf"):
                raise RequestError(
                    f"{name.replace('_', ' ')} {value}", "not above zero and finite",
                    "give a positive number",
                )  # fmt: skip


@dataclass(frozen=True)
class Objective:
    """What to minimise, and the limits that a job must meet.

    aim: time, cost, energy, or knee (where more money stops buying much time). confidence: of meeting
    deadline and budget together; fit_confidence: of fitting in memory. market: on-demand, spot, or any.
    """

    aim: str = "cost"
    deadline_seconds: float | None = None
    budget_dollars: float | None = None
    confidence: float = 0.5
    fit_confidence: float = 0.9
    market: str = "on-demand"
    preemption: Preemption = Preemption()

    def __post_init__(self) -> None:
        if self.aim not in AIMS:
            raise RequestError(f"minimize {self.aim!r}", "no such aim", one_of(self.aim, AIMS))
        if self.market not in MARKETS:
            hint = one_of(self.market, MARKETS)
            raise RequestError(f"prices {self.market!r}", "no such market", hint)
        Limits(self.deadline_seconds, self.budget_dollars)  # checks them
        for name in ("confidence", "fit_confidence"):
            value = getattr(self, name)
            if not 0.01 <= value <= 0.999:
                raise RequestError(
                    f"{name.replace('_', ' ')} {value}", "outside 0.01 to 0.999",
                    "give a probability such as 0.9",
                )  # fmt: skip

    @property
    def limits(self) -> Limits:
        """The deadline and the budget."""
        return Limits(self.deadline_seconds, self.budget_dollars)
