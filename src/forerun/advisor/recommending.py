"""Recommending: the advisor's question to the search, with what it assumed put first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from forerun.advisor.asking import LARGEST_COUNT
from forerun.contracts import Predictor
from forerun.domain.hardware import Cluster
from forerun.domain.objective import Objective
from forerun.domain.recommendation import Recommendation
from forerun.domain.workload import Length, Workload
from forerun.errors import RequestError
from forerun.units import parse_dollars, parse_duration

_ASSUMED_ROWS = 256
_ASSUMED_TOKENS = 524_288


def objective_of(
    minimize: str,
    deadline: str | float | None,
    budget: str | float | None,
    confidence: float,
    market: str,
) -> Objective:
    """Return an objective from plain values.

    Args:
        minimize: time, cost, knee or energy.
        deadline: seconds, or text such as `24h`.
        budget: dollars, or text such as `$5,000`.
        confidence: probability with which both must be met.
        market: on-demand, spot or any.

    Raises:
        RequestError: one of them is wrong.
    """
    return Objective(
        aim=minimize,
        deadline_seconds=(
            parse_duration(deadline, "deadline") if isinstance(deadline, str) else deadline
        ),
        budget_dollars=parse_dollars(budget) if isinstance(budget, str) else budget,
        confidence=confidence,
        market=market,
    )


def recommend(
    predictor: Predictor,
    clusters: list[Cluster],
    workload: Workload,
    objective: Objective,
    length: tuple[Length, tuple[str, ...]],
    fixed: Mapping[str, Any],
    global_batches: Sequence[int] | None,
    energy: bool = False,
) -> Recommendation:
    """Return the search's recommendation with the length and batch that were assumed.

    Raises:
        RequestError: a batch that is no positive whole number, or that the plan contradicts.
    """
    batches, note = _batches(workload, fixed, global_batches)
    workload.steps(length[0], batches[0])  # a wrong length is said before the search
    from forerun.search import recommend as search

    found = search(
        workload,
        clusters,
        objective,
        length[0],
        predictor,
        fixed={name: value for name, value in fixed.items() if name != "global_batch"} or None,
        global_batches=batches,
        energy=energy or objective.aim == "energy",
    )
    said = (*length[1], note)
    return replace(found, assumptions=tuple(dict.fromkeys((*said, *found.assumptions))))


def _batches(
    workload: Workload, fixed: Mapping[str, Any], given: Sequence[int] | None
) -> tuple[tuple[int, ...], str]:
    """Return the global batches to search, and what is said of them."""
    if given:
        for batch in given:
            if not 1 <= batch <= LARGEST_COUNT:
                raise RequestError(
                    f"a global batch of {batch}", "not a whole number above zero",
                    "give a global batch of 1 or more",
                )  # fmt: skip
            if fixed.get("global_batch", batch) != batch:
                raise RequestError(
                    f"a global batch of {batch}",
                    f"the plan says global_batch={fixed['global_batch']}", "give it once",
                )  # fmt: skip
        batches = tuple(dict.fromkeys(int(b) for b in given))
        return batches, f"global batch: {', '.join(map(str, batches))} (given)"
    if "global_batch" in fixed:
        return (int(fixed["global_batch"]),), f"global batch: {fixed['global_batch']} (given)"
    if workload.default_global_batch:
        usual = workload.default_global_batch
        return (usual,), f"global batch: {usual} (usual for {workload.name})"
    batch = _ASSUMED_ROWS
    if workload.seq_len > 0:
        batch = max(8, _ASSUMED_TOKENS // workload.seq_len)
    return (batch,), f"global batch: {batch} (assumed; give --global-batch)"
