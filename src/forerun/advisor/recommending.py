"""Recommending: the advisor's question to the search, with what it assumed put first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from forerun.advisor.asking import LARGEST_COUNT, limits_of
from forerun.advisor.candidates import Larger
from forerun.advisor.measured_under import measured_under
from forerun.contracts import Predictor
from forerun.domain.hardware import Cluster
from forerun.domain.objective import Objective
from forerun.domain.recommendation import Recommendation
from forerun.domain.workload import Length, Workload
from forerun.errors import RequestError

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
        confidence: probability of fitting and meeting both, all together.
        market: on-demand, spot or any.

    Raises:
        RequestError: one of them is wrong.
    """
    return Objective(
        aim=minimize, confidence=confidence, market=market, **vars(limits_of(deadline, budget))
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
    larger: Larger | None = None,
) -> Recommendation:
    """Return the search's recommendation with the length and batch that were assumed.

    `larger` gives clusters beyond the limit of the search, of the kinds that came nearest; they
    are looked at where nothing else qualifies, so that a limit of ours is not taken for a fact.

    Raises:
        RequestError: a batch that is no positive whole number, or that the plan contradicts.
    """
    batches, note = _batches(workload, fixed, global_batches)
    workload.steps(length[0], batches[0])  # a wrong length is said before the search
    from forerun.search import recommend as search

    ask = partial(
        search,
        workload,
        objective=objective,
        length=length[0],
        predictor=predictor,
        fixed={name: value for name, value in fixed.items() if name != "global_batch"} or None,
        global_batches=batches,
        energy=energy or objective.aim == "energy",
    )
    found = ask(clusters)
    if found.best is None and larger is not None:
        found = _with_larger(found, larger, ask)
    best = found.best
    under = (
        measured_under(predictor, best.job, best.estimate.forecast)
        if best is not None and best.estimate.forecast is not None
        else ""
    )
    said = (*length[1], note, *filter(None, [under]))
    return replace(found, assumptions=tuple(dict.fromkeys((*said, *found.assumptions))))


def _with_larger(
    found: Recommendation, larger: Larger, ask: Callable[[list[Cluster]], Recommendation]
) -> Recommendation:
    """Return the recommendation with what lies beyond the largest cluster that was searched."""
    said = f"clusters above --max-devices {larger.max_devices:,} were not looked at"
    more_helps = found.objective.deadline_seconds is not None or not found.fitting
    beyond = larger.like([o.job.cluster for o in found.near_misses]) if more_helps else []
    if not beyond:
        return replace(found, not_searched=said)
    try:
        next_best = ask(beyond)
    except RequestError:  # fixed fields that only the smaller clusters can take
        return replace(found, not_searched=said)
    if next_best.best is None:
        largest = max(cluster.devices for cluster in beyond)
        said += f", but of the nearest kinds, up to {largest:,} devices, none qualifies"
        return replace(found, not_searched=said)
    option = next_best.best
    size = option.job.cluster.devices
    miss = {
        "larger than --max-devices": f"{size:,} devices, and {larger.max_devices:,} are allowed"
    }
    return replace(
        found,
        near_misses=(replace(option, misses=miss, beaten={}), *found.near_misses),
        not_searched=f"{said}: with --max-devices {size}, {option.job.cluster.name} qualifies",
    )


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
