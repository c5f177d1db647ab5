"""Chances in words: limits that are kept, rivals that are beaten, and how far the answer is sure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from forerun.cli.screen import Screen
from forerun.domain.forecast import Forecast, meaning, nearer
from forerun.domain.objective import Limits
from forerun.domain.recommendation import ALL, BUDGET, DEADLINE, Option, Recommendation
from forerun.units import chance_text, format_dollars, format_probability, format_seconds

BETTER = {"time": "faster", "cost": "cheaper", "energy": "thriftier", "knee": "nearer the knee"}


def show_limits(screen: Screen, chance: Mapping[str, float], limits: Limits) -> None:
    """Write the probabilities of keeping the limits; nothing where there are none."""
    said = limits_text(chance, limits)
    if said:
        screen.line(f"limits  {said}")


def limits_text(chance: Mapping[str, float], limits: Limits) -> str:
    """Return the probabilities of keeping the limits in words; "" where there are none."""
    said = []
    if limits.deadline_seconds is not None:
        within = format_seconds(limits.deadline_seconds)
        said.append(chance_text(f"within {within}", chance[DEADLINE]))
    if limits.budget_dollars is not None:
        most = format_dollars(limits.budget_dollars)
        said.append(chance_text(f"for at most {most}", chance[BUDGET]))
    if said:
        said.append(chance_text("all, and it fits", chance[ALL]))
    return "; ".join(said)


def show_source(screen: Screen, forecast: Forecast, constants: str = "") -> None:
    """Write who answered, how far from what was measured, and what would bring it nearer.

    constants: which ones the predictor has, in words.
    """
    screen.line(f"source  {source_text(forecast, constants)}")
    closer = nearer_text(forecast)
    if closer:
        screen.line(f"nearer  {closer}")


def source_text(forecast: Forecast, constants: str = "") -> str:
    """Return who answered, with which constants, and how far from what was measured."""
    who = f"predictor {forecast.predictor}" + (f" ({constants})" if constants else "")
    if not math.isfinite(forecast.distance):
        return who
    return (
        f"{who}, distance {forecast.distance:.2f} from what was measured:"
        f" {meaning(forecast.distance, forecast.distance_parts)}"
    )


def nearer_text(forecast: Forecast) -> str:
    """Return what would bring the answer nearer to what was measured; "" where nothing would."""
    closer = nearer(forecast.distance, forecast.distance_parts)
    return f"with {'; '.join(closer)}" if closer else ""


def limit_headers(limits: Limits) -> tuple[str, ...]:
    """Return the headers of columns for the limits that there are."""
    return tuple(words for _, words in _limit_columns(limits))


def limit_cells(chance: Mapping[str, float], limits: Limits) -> tuple[str, ...]:
    """Return the probabilities under `limit_headers`."""
    return tuple(format_probability(chance[name]) for name, _ in _limit_columns(limits))


def _limit_columns(limits: Limits) -> list[tuple[str, str]]:
    """Return (name of the probability, words of its column) for each limit."""
    asked = ((DEADLINE, "in time", limits.deadline_seconds),
             (BUDGET, "in budget", limits.budget_dollars))  # fmt: skip
    return [(name, words) for name, words, limit in asked if limit is not None]


def rivals(found: Recommendation) -> list[tuple[str, str]]:
    """Return the next best options in words, each with the probability that the best beats it."""
    aim = BETTER[found.compared_by]
    named = []
    if found.runner_up is not None:
        named.append((f"{found.runner_up.job.cluster.name}, the closest rival elsewhere",
                      found.runner_up))  # fmt: skip
    if found.next_layout is not None:
        plan = found.next_layout.job.plan
        named.append((f"{plan}, the next best layout here", found.next_layout))
    unknown = float("nan")
    return [
        (words, chance_text(f"best is {aim}", option.beaten.get(found.compared_by, unknown)))
        for words, option in named
    ]


def beaten(option: Option, found: Recommendation) -> str:
    """Return the probability that the best beats an option in what was asked; "" for itself."""
    best = found.best
    if best is None or (option.job == best.job and option.estimate.spot == best.estimate.spot):
        return ""
    return format_probability(option.beaten.get(found.compared_by, float("nan")))
