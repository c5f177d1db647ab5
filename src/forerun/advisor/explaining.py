"""Explaining: where time and memory go, and what changes them, each change truly predicted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from forerun.advisor.answer import Answer, Explanation, Support, WhatIf, estimate_of, step_of
from forerun.arrays import FloatArray
from forerun.contracts import Predictor
from forerun.domain.comparison import (
    correlation,
    in_common,
    probability_less,
    scope_of,
    widened,
)
from forerun.domain.estimate import Estimate
from forerun.domain.forecast import Forecasts
from forerun.domain.hardware import Cluster
from forerun.domain.job import Job
from forerun.domain.plan import RECOMPUTE
from forerun.domain.recommendation import chances_of
from forerun.domain.workload import Workload
from forerun.errors import ForerunError
from forerun.tables import Jobs
from forerun.units import format_count, format_percent, format_probability

# What is not known, by the scope of a cause of error (see `domain.comparison`).
CAUSE_WORDS: Mapping[str, str] = {
    "device": "what share of its rates this device reaches",
    "workload": "how well this workload's operations use a device",
    "framework": "how well the framework uses a device",
    "host": "the host's own time",
    "link": "what the links carry",
    "schedule": "how full the pipeline is",
    "scale": "what more devices than were measured add",
    "setting": "what is peculiar to the place where it runs",
    "case": "what runs of this workload on this device leave open",
    "plan": "what this plan alone does",
}
_SMALL_SHARE = 0.02
_HARDWARE = "faster"
_CORES = "host cores 2x"


def explanation_of(predictor: Predictor, answer: Answer) -> Explanation:
    """Return the explanation of an answer; `predictor` evaluates the changes."""
    parts = _largest_first(answer.forecast.parts)
    memory = _largest_first(answer.forecast.memory_parts)
    what_ifs = tuple(_evaluated(predictor, answer))
    limits = _limits(answer, parts, what_ifs)
    return Explanation(
        answer, parts, memory, limits, what_ifs, _uncertainty(answer.forecast.causes)
    )


def _uncertainty(causes: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    """Return the causes of error in words, with their shares of the log variance."""
    whole = sum(causes.values())
    shares: dict[str, float] = {}
    for cause, variance in causes.items():
        words = CAUSE_WORDS.get(scope_of(cause), cause)
        shares[words] = shares.get(words, 0.0) + variance / max(whole, 1e-300)
    return _largest_first(shares)


def _largest_first(parts: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    kept = [(name, value) for name, value in parts.items() if value and math.isfinite(value)]
    return tuple(sorted(kept, key=lambda item: -item[1]))


def _limits(
    answer: Answer, parts: tuple[tuple[str, float], ...], what_ifs: tuple[WhatIf, ...]
) -> tuple[str, ...]:
    """Return what limits the step: the largest parts, and the hardware that would help most."""
    step = answer.step_seconds[1]
    said = [
        f"{name} takes {format_percent(seconds / step)} of the step"
        for name, seconds in parts[:3]
        if seconds >= _SMALL_SHARE * step
    ]
    helpful = [
        w
        for w in what_ifs
        if (_HARDWARE in w.change or w.change == _CORES) and w.speedup > 1 + _SMALL_SHARE
    ]
    said += [
        f"{what_if.change} would make the run {what_if.speedup:.2f} times as fast"
        for what_if in sorted(helpful, key=lambda w: -w.speedup)[:2]
    ]
    if answer.estimate.fit_probability < 0.99:
        said.append(
            "memory is tight: it fits with probability"
            f" {format_probability(answer.forecast.fit_probability)}"
        )
    return tuple(said)


def _evaluated(predictor: Predictor, answer: Answer) -> Iterator[WhatIf]:
    """Yield every change with the predictor's answer; an illegal one with its reason."""
    jobs: list[Job] = []
    named: list[tuple[str, int | str]] = []
    for change, cluster, fields in _changes(answer):
        try:
            plan = replace(answer.job.plan, **fields)
            jobs.append(Job(answer.job.workload, cluster, plan))
            named.append((change, len(jobs) - 1))
        except ForerunError as error:
            named.append((change, error.found))
    if not jobs:
        return
    forecasts = predictor.predict(Jobs.of([answer.job, *jobs]))
    market = "spot" if answer.estimate.spot else "on-demand"
    estimates = [
        estimate_of(forecasts[i + 1], job, answer.length, market, answer.preemption)
        for i, job in enumerate(jobs)
    ]
    beats = _beats(answer, jobs, forecasts, estimates)
    for change, position in named:
        declined = position if isinstance(position, str) else forecasts[position + 1].declined
        if isinstance(position, str) or declined is not None:
            nan = math.nan
            yield WhatIf(change, nan, nan, nan, nan, nan, nan, refused=declined)
            continue
        job, forecast, estimate = jobs[position], forecasts[position + 1], estimates[position]
        yield WhatIf(
            change=change,
            step_seconds=step_of(forecast, job, estimate.steps)[1],
            run_seconds=estimate.run_seconds[1],
            dollars=estimate.dollars[1],
            peak_bytes=forecast.peak_bytes[1],
            fit_probability=forecast.fit_probability,
            speedup=answer.estimate.run_seconds[1] / estimate.run_seconds[1],
            chance=chances_of(estimate, answer.limits),
            beats={name: float(column[position]) for name, column in beats.items()},
        )


def _beats(
    answer: Answer, jobs: Sequence[Job], forecasts: Forecasts, estimates: Sequence[Estimate]
) -> dict[str, FloatArray]:
    """Return the probabilities (n,) that n changed jobs are faster and cheaper than the present."""
    causes, common = forecasts.causes, in_common(answer.job, jobs)
    rho = correlation(
        {name: column[:1] for name, column in causes.items()},
        {name: column[1:] for name, column in causes.items()},
        common,
    )
    # The same plan with one part of the machine faster is the same step with the same errors.
    rho = np.where(common["plan"] & common["device"] & common["link"], 1.0, rho)
    present, step = answer.estimate, forecasts.seconds
    run, now = np.array([e.run_seconds for e in estimates]), np.array([present.run_seconds])
    rho = widened(rho, (step[:1], step[1:]), (now, run))
    cost, paid = np.array([e.dollars for e in estimates]), np.array([present.dollars])
    return {"time": probability_less(run, now, rho), "cost": probability_less(cost, paid, rho)}


def _changes(answer: Answer) -> Iterator[tuple[str, Cluster, dict[str, Any]]]:
    """Yield changes as (words, cluster, changed plan fields)."""
    job, cores = answer.job, answer.job.cluster.vcpus_per_device
    if answer.forecast.parts.get("input", 0.0) > 0:
        yield _CORES, replace(job.cluster, vcpus_per_device=2 * cores), {}
    yield from ((words, cluster, {}) for words, cluster in _hardware(job.cluster))
    yield from ((words, job.cluster, fields) for words, fields in _plans(job))
    plan, nodes = job.plan, job.cluster.nodes * 2
    if not job.cluster.placement:
        yield (
            f"twice the nodes ({nodes}), dp={plan.dp * 2}",
            _scaled(job.cluster, nodes),
            {"dp": plan.dp * 2},
        )


def _hardware(cluster: Cluster) -> Iterator[tuple[str, Cluster]]:
    device = cluster.device
    rates = {name: 2 * rate for name, rate in device.peak_flops.items()}
    yield f"arithmetic 2x {_HARDWARE}", replace(cluster, device=replace(device, peak_flops=rates))
    yield (
        f"device memory 2x {_HARDWARE}",
        replace(
            cluster,
            device=replace(device, memory_bytes_per_second=2 * device.memory_bytes_per_second),
        ),
    )
    for name, words, counts in (
        ("intra", "links inside a node", cluster.devices_per_node > 1),
        ("inter", "the network between nodes", cluster.nodes > 1),
    ):
        if counts:
            link = getattr(cluster, name)
            yield (
                f"{words} 2x {_HARDWARE}",
                replace(
                    cluster, **{name: replace(link, bytes_per_second=2 * link.bytes_per_second)}
                ),
            )


def _plans(job: Job) -> Iterator[tuple[str, dict[str, Any]]]:
    plan, shape = job.plan, job.workload.shape
    if plan.micro_batch * plan.dp * 2 <= plan.global_batch:
        yield (
            f"micro_batch {plan.micro_batch} -> {plan.micro_batch * 2}",
            {"micro_batch": plan.micro_batch * 2},
        )
    if plan.micro_batch % 2 == 0:
        yield (
            f"micro_batch {plan.micro_batch} -> {plan.micro_batch // 2}",
            {"micro_batch": plan.micro_batch // 2},
        )
    for stage in (plan.zero_stage - 1, plan.zero_stage + 1):
        if 0 <= stage <= 3 and plan.dp > 1 and plan.sync == "allreduce":
            yield f"zero_stage {plan.zero_stage} -> {stage}", {"zero_stage": stage}
    for kind in RECOMPUTE:
        if kind != plan.recompute and (kind != "selective" or shape.heads):
            yield f"recompute {plan.recompute} -> {kind}", {"recompute": kind}
    if shape.heads and plan.dp % 2 == 0:
        yield f"tp {plan.tp} -> {plan.tp * 2}, dp={plan.dp // 2}", {
            "tp": plan.tp * 2, "dp": plan.dp // 2
        }  # fmt: skip
    if shape.layers and plan.dp % 2 == 0:
        yield f"pp {plan.pp} -> {plan.pp * 2}, dp={plan.dp // 2}", {
            "pp": plan.pp * 2, "dp": plan.dp // 2
        }  # fmt: skip
    if plan.tp > 1 and not plan.sequence_parallel:
        yield "sequence_parallel on", {"sequence_parallel": True}
    if plan.pp > 1 and plan.vpp == 1:
        yield "vpp 1 -> 2", {"vpp": 2}
    yield (
        f"global_batch {plan.global_batch} -> {plan.global_batch * 2}",
        {"global_batch": plan.global_batch * 2},
    )


def _scaled(cluster: Cluster, nodes: int) -> Cluster:
    """Return the cluster with another number of nodes, at the same price a node."""
    share = nodes / cluster.nodes

    def times(price: float | None) -> float | None:
        return None if price is None else price * share

    return replace(
        cluster, name=f"{nodes} nodes like {cluster.name}", nodes=nodes,
        dollars_per_hour=times(cluster.dollars_per_hour),
        spot_dollars_per_hour=times(cluster.spot_dollars_per_hour),
    )  # fmt: skip


YES, PARTLY, NO = "yes", "partly", "no"
Row = tuple[str, str, str]


def support_of(predictor: Predictor, workload: Workload) -> Support:
    """Return what is covered for a workload."""
    return Support(
        workload=workload.name,
        facts=_facts(workload),
        covered=(*_answers(workload), *_plans_covered(workload)),
        notes=(*workload.notes, f"answers come from the predictor {predictor.name!r}"),
    )


def _facts(workload: Workload) -> tuple[tuple[str, str], ...]:
    graph = workload.graph
    facts = [
        ("structure from", workload.source or "the caller"),
        ("parameters", format_count(workload.params)),
        ("operations", str(len(graph.ops))),
        ("forward FLOPs a sample", format_count(graph.forward_flops)),
        ("precision", workload.precision),
        ("optimizer", workload.optimizer),
        ("usual length", str(workload.length or "none; 1,000 steps are assumed")),
        ("usual global batch", str(workload.default_global_batch or "none")),
    ]
    if workload.seq_len:
        facts.append(("tokens a sample", f"{workload.seq_len:,}"))
    if workload.image_size:
        facts.append(("pixels on a side", str(workload.image_size)))
    return tuple(facts)


def _answers(workload: Workload) -> list[Row]:
    unknown = workload.graph.unknown
    if workload.graph.forward_flops <= 0:
        time: Row = ("step time", NO, "it states no operations to time")
    elif unknown:
        shown = ", ".join(unknown[:4])
        time = ("step time", PARTLY, f"{len(unknown)} operations are only bounded: {shown}")
    elif not workload.detailed:
        time = ("step time", PARTLY, "its graph is only totals: the band is wider")
    else:
        time = ("step time", YES, "every operation is costed")
    activations: Row = ("device memory", YES, "weights, gradients, states, activations, buffers")
    if workload.graph.saved <= 0:
        activations = ("device memory", PARTLY, "activations kept for backward are not stated")
    whole: Row = ("run time and cost", YES, "at its usual length, or the one you give")
    if workload.length is None:
        whole = ("run time and cost", PARTLY, "give --steps, --samples, --tokens or --epochs")
    quality: Row = ("samples to a target quality", NO, "the length is taken as it is given")
    return [time, activations, whole, quality]


def _plans_covered(workload: Workload) -> list[Row]:
    shape = workload.shape
    rows: list[Row] = [("data parallel (dp, ZeRO 0-3)", YES, "")]
    for question, has, remark in (
        ("tensor parallel (tp)", shape.heads, f"tp divides {shape.heads} attention heads"),
        ("pipeline parallel (pp, vpp)", shape.layers, f"up to {shape.layers} stages"),
        ("context parallel (cp)", shape.heads and workload.seq_len > 1, "splits the sequence"),
        ("expert parallel (ep)", shape.experts, f"ep divides {shape.experts} experts"),
    ):
        rows.append((question, YES, remark) if has else (question, NO, "nothing to divide"))
    rows.append(("parameter servers (ps-sync, ps-async)", YES, ""))
    return rows
