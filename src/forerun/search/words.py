"""Words: why a job is out, with its own figures, and how many share the reason."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from forerun.domain import chances
from forerun.domain.chances import ALL, limit_chances
from forerun.domain.objective import Objective, Preemption
from forerun.domain.recommendation import Refusal
from forerun.search.reduce import (
    BUDGET,
    DEADLINE,
    ENDLESS,
    MEMORY,
    TOGETHER,
    Judged,
    Reduction,
    judge,
    usable_bytes,
)
from forerun.search.score import Scored
from forerun.units import format_bytes, format_dollars, format_seconds

_EXAMPLES = 4


def misses(one: Scored, objective: Objective) -> dict[str, str]:
    """Return the limits that one row breaks, each with by how much."""
    judged = judge(one, objective)
    return {
        reason: reason_words(one, judged, reason, objective)
        for reason, mask in judged.reasons.items()
        if mask[0]
    }


def reason_words(one: Scored, judged: Judged, reason: str, objective: Objective) -> str:
    """Return by how much one row breaks a limit; the reason alone where there is no figure."""
    sure = f"at {_percent(objective.confidence)} confidence"
    if reason == MEMORY:
        return _memory(one, objective)
    if reason == DEADLINE:
        limit = objective.deadline_seconds or 0.0
        chance = _chances(one, objective)[chances.DEADLINE][0]
        return (
            f"takes {_over(judged.seconds[0], limit, format_seconds)} {sure}, the deadline is"
            f" {format_seconds(limit)}; {_chance('in time', chance)}"
        )
    if reason == BUDGET:
        limit = objective.budget_dollars or 0.0
        chance = _chances(one, objective)[chances.BUDGET][0]
        return (
            f"costs {_over(judged.dollars[0], limit, format_dollars)} {sure}, the budget is"
            f" {format_dollars(limit)}; {_chance('in budget', chance)}"
        )
    if reason == TOGETHER:
        return f"{_chance('all, and it fits', _chances(one, objective)[ALL][0])}, {_percent(objective.confidence)} is asked"
    if reason == ENDLESS:
        return _endless(one.jobs.clusters[one.jobs.cluster_index[0]].nodes, objective.preemption)
    return reason


def _memory(one: Scored, objective: Objective) -> str:
    """Return what a row needs; where that would do, that its fitting is less sure than asked."""
    device = one.jobs.clusters[one.jobs.cluster_index[0]].device
    peak, usable = float(one.forecasts.peak_bytes[0, 1]), float(usable_bytes(one)[0])
    near = 0.01 * device.memory_bytes < usable and peak <= usable
    unsure = f", not surely enough: {_percent(objective.fit_confidence)} is asked" if near else ""
    return (
        f"{'probably ' * near}needs {format_bytes(peak)} of"
        f" {memory_words(usable, device.memory_bytes)} a device;"
        f" {_chance('fits', one.estimates.fit_probability[0])}{unsure}"
    )


def memory_words(usable: float, memory: float) -> str:
    """Return what of a device's memory can be filled: `the 72 GB usable of 80 GB`."""
    if not usable > 0.01 * memory:
        return format_bytes(memory)
    # Cards hold GiB where data sheets say GB, so that more may be usable than is stated.
    whole = f" of {format_bytes(memory)}" if usable < memory else ""
    return f"the {format_bytes(usable)} usable{whole}"


def _over(value: float, limit: float, write: Callable[[float], str]) -> str:
    """Return what is above a limit so that it does not read as if it were the limit."""
    text = write(value)
    return f"just over {text}" if text == write(limit) else text


def _chances(one: Scored, objective: Objective) -> dict[str, NDArray[np.float64]]:
    estimates = one.estimates
    return limit_chances(
        estimates.run_seconds,
        estimates.dollars,
        estimates.fit_probability,
        objective.limits,
        estimates.late,
    )


def _percent(probability: float) -> str:
    return f"{100 * probability:.3g} %"


def _chance(what: str, probability: float) -> str:
    """Return whole per cent, rounded down: what misses a limit must not seem to reach it."""
    whole = math.floor(100 * probability)
    return f"P({what}) = {whole} %" if whole or not probability else f"P({what}) < 1 %"


def _endless(nodes: int, preemption: Preemption) -> str:
    between = 3600 / (nodes * preemption.rate_per_node_hour)
    return (
        f"{nodes:,} spot nodes lose one every {format_seconds(between)}, and a checkpoint comes"
        f" every {format_seconds(preemption.checkpoint_interval_seconds)}"
    )


def refusals(
    reduction: Reduction, objective: Objective, illegal: dict[str, int]
) -> tuple[Refusal, ...]:
    """Return the refused plans: a few examples for each limit, the nearest first."""
    rows: list[Refusal] = []
    for reason, examples in reduction.refused.items():
        count = reduction.refused_counts[reason]
        seen: set[str] = set()
        for _, one in examples:
            job = one.jobs[0]
            if job.cluster.name in seen or len(seen) >= _EXAMPLES:
                continue
            seen.add(job.cluster.name)
            words = reason_words(one, judge(one, objective), reason, objective)
            shown = words if words == reason else f"{reason}: {words}"
            rows.append(Refusal(job.cluster.name, str(job.plan), shown, count, reason))
            count = 0
    rows += [
        Refusal("any", "", reason, count, reason)
        for reason, count in sorted(illegal.items(), key=lambda item: -item[1])
    ]
    return tuple(rows)
