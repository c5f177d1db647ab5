"""SuggestingRuns: the runs that would settle a recommendation: small ones of what it is among."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from forerun.advisor.recommending import node_counts
from forerun.advisor.suggesting import Asking, Suggested, no_design, shown
from forerun.catalog import Catalog
from forerun.contracts import Predictor
from forerun.domain.job import Job, job_problem
from forerun.domain.recommendation import Option, Recommendation
from forerun.errors import RequestError, UnsatisfiedError
from forerun.search.suggestion import (
    DOLLARS,
    Request,
    Suggestion,
    run_prices,
    suggest_for_accuracy,
    suggest_for_decision,
)
from forerun.tables import Jobs, Runs, Table

_MOST_OPTIONS = 24
_FIRST_COUNT = re.compile(r"^\d+x", re.IGNORECASE)


def suggest_for_workload(
    predictor: Predictor,
    catalog: Catalog,
    found: Recommendation,
    runs: Runs | None,
    asking: Asking,
) -> Suggested:
    """Return the runs that would change which of the options of a recommendation is chosen.

    The options are the best job of each cluster and the Pareto front. The candidates are short
    runs of each option's plan on its own machines, on 1, 2, 4 ... nodes up to its own, the batch of
    each replica as it is.

    Args:
        predictor: who recommended.
        catalog: where smaller clusters are looked up.
        found: the recommendation.
        runs: what the predictor was fitted on.
        asking: how; the objective and deadline are the recommendation's.

    Raises:
        RequestError: a criterion of designs is named.
        UnsatisfiedError: nothing was recommended; or no run can be paid for.
    """
    no_design(asking, "those are of the rows of a table", "leave it out, or give --candidates")
    options = _options(found)
    if not options:
        raise UnsatisfiedError(
            "the runs that would settle a recommendation", "nothing satisfies the limits",
            "see `forerun recommend` for the nearest misses",
        )  # fmt: skip
    asked = [option.job for option in options]
    smaller = list(_smaller(catalog, asked))
    jobs = Jobs.of([*smaller, *asked])
    first, last = np.arange(len(smaller)), np.arange(len(smaller), len(jobs))
    prices = run_prices(
        jobs.take(first),
        predictor.predict(jobs.take(first)),
        asking.run_steps,
        asking.startup_seconds,
        asking.most_seconds,
    )
    request = Request(predictor, jobs, first, last, prices, asking.budget, asking.count, runs)
    if asking.goal == "accuracy":
        answer = suggest_for_accuracy(request)
    else:
        answer = _by_choice(request, found, options, asking.times)
    return shown(answer, request, Table.from_rows([_row(job) for job in jobs]))


def _by_choice(
    request: Request, found: Recommendation, options: Sequence[Option], times: float
) -> Suggestion:
    """Return what would change the choice by the recommendation's own aim and limits."""
    step = np.array([_step_seconds(option) for option in options])
    run = np.array([option.estimate.run_seconds[1] for option in options])
    dollars = np.array([option.estimate.dollars[1] for option in options])
    deadline = found.objective.deadline_seconds
    latest = (np.inf if deadline is None else deadline) * step / run
    aim = found.compared_by
    if aim not in ("cost", "time"):
        raise RequestError(
            f"the runs that would change a choice by {aim}", "it is no sum over the jobs",
            "use --minimize time or cost",
        )  # fmt: skip
    scale, unit = (run, "seconds") if aim == "time" else (dollars, DOLLARS)
    answer = suggest_for_decision(request, scale / step, latest, unit, times)
    best = found.best
    chosen = options[answer.chosen - len(request.candidates)] if answer.chosen >= 0 else None
    if best is not None and chosen is not None and chosen.job != best.job:
        first, other = _told_apart(chosen.job, best.job)
        note = (
            f"by expected {aim}, a late run counted twice, {first} comes first,"
            f" before the recommended {other}"
        )
        answer = replace(answer, notes=(*answer.notes, note))
    return answer


def _told_apart(a: Job, b: Job) -> tuple[str, str]:
    """Return two jobs in a few words: the cluster, and what of the plan tells them apart."""
    plans = [job.plan.as_dict() for job in (a, b)]
    apart = [name for name in plans[0] if plans[0][name] != plans[1][name]]
    if a.cluster.name != b.cluster.name:
        return a.cluster.name, b.cluster.name
    places = [job.cluster.name + (f" in {job.cluster.region}" if a.cluster.region != b.cluster.region
                                  else "") for job in (a, b)]  # fmt: skip
    said = [", ".join(f"{name.replace('_', ' ')} {plan[name]}" for name in apart) for plan in plans]
    one, two = (f"{place} ({text})" if text else place
                for place, text in zip(places, said, strict=True))  # fmt: skip
    return one, two


def _step_seconds(option: Option) -> float:
    forecast = option.estimate.forecast
    return np.nan if forecast is None else forecast.seconds[1]


def _options(found: Recommendation) -> list[Option]:
    """Return the distinct options of a recommendation, its best first."""
    if found.best is None:
        return []
    every = (found.best, *found.alternatives, *found.front)
    distinct = {id(option.job): option for option in every}
    jobs: list[Option] = []
    for option in distinct.values():
        if all(option.job != other.job for other in jobs):
            jobs.append(option)
    return jobs[:_MOST_OPTIONS]


def _smaller(catalog: Catalog, jobs: Sequence[Job]) -> Iterator[Job]:
    """Yield each job on 1, 2, 4 ... nodes up to its own, its replicas fewer and their batch kept."""
    seen: set[tuple[Any, ...]] = set()
    for job in jobs:
        cluster, plan = job.cluster, job.plan
        text = _FIRST_COUNT.sub("", cluster.name)
        whole = cluster.devices // plan.dp
        for nodes in [*node_counts(1, cluster.nodes - 1), cluster.nodes]:
            devices = nodes * cluster.devices_per_node
            if devices % whole or (plan.global_batch * devices) % cluster.devices:
                continue
            less = replace(
                plan,
                dp=devices // whole,
                global_batch=plan.global_batch * devices // cluster.devices,
            )
            key = (text, nodes, cluster.region, less)
            if key in seen:
                continue
            seen.add(key)
            place = cluster
            if nodes != cluster.nodes:
                place = catalog.cluster(f"{nodes}x{text}", region=cluster.region or None)
            if job_problem(job.workload, place, less) is None:
                yield Job(job.workload, place, less)


def _row(job: Job) -> Mapping[str, Any]:
    """Return a job as a row of the runs table."""
    workload, cluster = job.workload, job.cluster
    return {
        "workload": workload.name,
        "framework": workload.framework,
        "precision": workload.precision,
        "seq_len": workload.seq_len or "",
        "image_size": workload.image_size or "",
        "dataset_size": workload.dataset_size or "",
        "device": cluster.device.id,
        "instance_type": cluster.instance_type,
        "nodes": cluster.nodes,
        "devices": cluster.devices,
        "devices_per_node": cluster.devices_per_node,
        "price_usd_per_hour": "" if cluster.dollars_per_hour is None else cluster.dollars_per_hour,
        **{name: str(value).lower() if isinstance(value, bool) else value
           for name, value in job.plan.as_dict().items()},
    }  # fmt: skip
