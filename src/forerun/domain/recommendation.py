"""Recommendation: the best job, the Pareto front, every refused job, and chances to keep limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from forerun.arrays import BoolArray, FloatArray
from forerun.charts import Chart, Series, html_table
from forerun.domain.estimate import Estimate
from forerun.domain.forecast import MOST_SURE, Forecast, sure_at_most
from forerun.domain.job import Job
from forerun.domain.objective import Limits, Objective
from forerun.domain.quantiles import probability_below
from forerun.units import SECONDS_PER_HOUR, counted

FITS, DEADLINE, BUDGET, ALL = "fits", "deadline", "budget", "all"


def limit_chances(
    wall_seconds: FloatArray, dollars: FloatArray, fit_probability: FloatArray, limits: Limits,
    unmeasured: BoolArray | None = None,
) -> dict[str, FloatArray]:  # fmt: skip
    """Return the probabilities (n,) of fitting, of meeting each limit that there is, and of `all`.

    Dollars are seconds at a price, so both limits are met where the tighter is; memory is taken as
    independent. wall_seconds, dollars: quantiles (n, 3). unmeasured: see `Forecast`; none is stated
    above `MOST_SURE` there, a doubt that all of them share.
    """
    chances = {FITS: np.asarray(fit_probability, dtype=np.float64)}
    if limits.deadline_seconds is not None:
        chances[DEADLINE] = probability_below(wall_seconds, limits.deadline_seconds)
    if limits.budget_dollars is not None:
        chances[BUDGET] = probability_below(dollars, limits.budget_dollars)
    kept = [chances[name] for name in (DEADLINE, BUDGET) if name in chances]
    if kept:
        chances[ALL] = chances[FITS] * np.min(kept, axis=0)
    most = sure_at_most(unmeasured, len(wall_seconds))
    return {name: np.minimum(chance, most) for name, chance in chances.items()}


def chances_of(estimate: Estimate, limits: Limits) -> dict[str, float]:
    """Return `limit_chances` of one run."""
    forecast = estimate.forecast
    fits = estimate.fit_probability if forecast is None else forecast.fit_probability
    columns = limit_chances(
        np.array([estimate.wall_seconds]), np.array([estimate.dollars]), np.array([fits]), limits,
        np.array([forecast is not None and forecast.unmeasured]),
    )  # fmt: skip
    return {name: float(column[0]) for name, column in columns.items()}


def unsure_warning(device_id: str, forecast: Forecast | None, chance: Mapping[str, float]) -> str:
    """Return why a probability is no higher, "" where it could not be."""
    if forecast is None or not forecast.unmeasured or max(chance.values()) < MOST_SURE:
        return ""
    return (
        f"no run and no probe of {device_id} is known, so no probability above {MOST_SURE:g} is stated;"
        " give runs on it (--fit) or probe it (`forerun probe`)"
    )


@dataclass(frozen=True, repr=False)
class Option:
    """A job with its estimate.

    misses: by how much it fails each limit. chance: `limit_chances`. beaten: probability that the best
    option beats this one in time, cost, energy, or at the knee. throughput: see `score.throughput`.
    """

    job: Job
    estimate: Estimate
    misses: Mapping[str, str] = field(default_factory=dict)
    chance: Mapping[str, float] = field(default_factory=dict)
    beaten: Mapping[str, float] = field(default_factory=dict)
    throughput: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Option({self.job}: {self.estimate.words})"

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is worth knowing of the workload, the cluster, the plan and the forecast."""
        forecast = self.estimate.forecast
        warnings = () if forecast is None else forecast.warnings
        unsure = unsure_warning(self.job.cluster.device.id, forecast, self.chance)
        return tuple(dict.fromkeys((*self.job.warnings, *warnings, *filter(None, [unsure]))))

    @property
    def dollars_per_hour(self) -> float | None:
        """The machines' price on the market of the estimate; None where it is not known."""
        return self.job.dollars_per_hour(self.estimate.spot)


@dataclass(frozen=True)
class Refusal:
    """Why a job (or a whole cluster: plan given as text) is out, with the example's own figures.

    count: plans that share the limit, on its first example. limit: in words that its examples share.
    """

    cluster: str
    plan: str
    reason: str
    count: int = 1
    limit: str = ""


@dataclass(frozen=True, repr=False)
class Recommendation:
    """What to run.

    Attributes:
        best: the choice, None where nothing satisfies the limits.
        front: Pareto front of time and cost (and energy where asked), fastest first.
        refused: refused jobs by reason, the ones that came nearest first; refused_counts: plans by reason.
        near_misses: where nothing qualifies, the options that came nearest.
        considered, legal, fitting, qualified: how many plans got how far.
        alternatives: the best option of each cluster, best first.
        runner_up: of the options on other clusters the one that the best beats least surely.
        next_layout: the next best option on the best one's cluster with other parallel degrees.
        own_machines: why machines of the user's catalogue were not searched.
        not_searched: where nothing qualifies, what was left out that might have, and what to do.
    """

    objective: Objective
    best: Option | None
    front: tuple[Option, ...]
    refused: tuple[Refusal, ...]
    near_misses: tuple[Option, ...]
    assumptions: tuple[str, ...]
    prices_as_of: str
    considered: int
    legal: int
    fitting: int
    qualified: int
    refused_counts: Mapping[str, int] = field(default_factory=dict)
    alternatives: tuple[Option, ...] = ()
    seconds_taken: float = 0.0
    not_searched: str = ""
    own_machines: tuple[str, ...] = ()
    runner_up: Option | None = None
    next_layout: Option | None = None

    @property
    def compared_by(self) -> str:
        """By what the best is best: the aim; cost where there is no knee to compare by."""
        known = self.best is None or self.objective.aim in self.best.beaten
        return self.objective.aim if known else "cost"

    def __repr__(self) -> str:
        near = f"nothing satisfies the limits, nearest {list(self.near_misses[:1])}"
        front = f"{counted(len(self.front), 'option')} on the front"
        return f"Recommendation({f'best {self.best!r}, {front}' if self.best else near})"

    def _repr_html_(self) -> str:
        title = "The Pareto front" if self.best else "Nothing qualifies: the nearest misses"
        rows = [(*str(one.job).split(", ", 1), *one.estimate.words.split(", "), "best" * (one is self.best))
                for one in self.front or self.near_misses]  # fmt: skip
        return html_table(title, rows, ("job", "plan", "wall", "cost", "fits", ""))

    @property
    def charts(self) -> tuple[Chart, ...]:
        """Wall time against cost of the front (or the near misses), with bands, and the best among them."""
        groups = {"Pareto front" if self.front else "near misses": self.front or self.near_misses}
        groups |= {"best": (self.best,)} if self.best is not None else {}
        series = []
        for name, options in groups.items():
            runs = np.array([(o.estimate.wall_seconds, o.estimate.dollars) for o in options])
            runs = runs.reshape(-1, 2, 3) / [[SECONDS_PER_HOUR], [1.0]]
            (x_low, x, x_high), (low, y, high) = runs.transpose(1, 2, 0).tolist()
            series.append(Series(name, "points", x, y, low, high, x_low, x_high))
        title = "Time against cost"
        return (Chart(title, "wall time, hours", "cost, dollars", tuple(series), "xy"),)

    def plot(self, axes: Any = None) -> Any:
        """Draw time against cost on matplotlib axes, and return them. Raises MissingExtraError."""
        return self.charts[0].draw(axes)
