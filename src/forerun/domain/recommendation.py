"""Recommendation: the best job, the Pareto front, and every refused job with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from forerun.domain.estimate import Estimate
from forerun.domain.job import Job
from forerun.domain.objective import Objective


@dataclass(frozen=True)
class Option:
    """A job with its estimate; `misses` says by how much it fails each limit, if it does."""

    job: Job
    estimate: Estimate
    misses: Mapping[str, str] = field(default_factory=dict)
    chance: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Refusal:
    """Why a job (or a whole cluster: plan given as text) is out, and how many share the reason."""

    cluster: str
    plan: str
    reason: str
    count: int = 1


@dataclass(frozen=True)
class Recommendation:
    """What to run.

    Attributes:
        best: the choice, None where nothing satisfies the limits.
        front: Pareto front of time and cost (and energy where asked), fastest first.
        refused: refused jobs, the ones that came nearest first, grouped by reason.
        near_misses: where nothing qualifies, the options that came nearest.
        considered, legal, fitting, qualified: how many plans got how far.
        refused_counts: reason to the number of plans it refused.
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
