"""Explaining: where time and memory go, and what changes them, each change truly predicted."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from forerun.advisor.answer import Answer, Explanation, Support, WhatIf, batch_for, plan_fields
from forerun.advisor.provisioning import bottleneck_of
from forerun.catalog.frameworks import cannot_run, framework_note, refuse_plan
from forerun.contracts import Predictor
from forerun.domain import quantiles
from forerun.domain.hardware import Cluster
from forerun.domain.job import Job
from forerun.domain.objective import Objective, Preemption
from forerun.domain.plan import RECOMPUTE, SERVER_SYNCS, SYNC
from forerun.domain.recommendation import chances_of
from forerun.domain.workload import DEPENDS_ON_DATA, NO_OPERATION_READS, Length, Workload
from forerun.errors import ForerunError
from forerun.launch.request import place_fields, refuse, refused_plans
from forerun.search.batches import usual_batch
from forerun.search.score import best_plan, estimates_for, step_seconds
from forerun.tables import Jobs
from forerun.units import format_bytes, format_count, format_percent, format_probability
from forerun.workloads.resolve import CHANGES, described
from forerun.workloads.resolve import workload as built
from forerun.workloads.zoo import zoo_names

# What is not known, by the scope of a cause of error (see `domain.quantiles`).
CAUSE_WORDS: Mapping[str, str] = {
    "device": "what share of its rates this device reaches",
    "workload": "how well this workload's operations use a device",
    "framework": "how well the framework uses a device", "host": "the host's own time",
    "link": "what the links carry", "schedule": "how full the pipeline is",
    "scale": "what more devices than were measured add",
    "setting": "what is peculiar to the place where it runs",
    "case": "what runs of this workload on this device leave open",
    "plan": "what this plan alone does",
}  # fmt: skip
_SMALL_SHARE = 0.02
_MORE = ("twice the nodes", "global_batch")  # changes that are of another size, not of another kind
_CORES, _ARITHMETIC, _MEMORY = "host cores 2x", "arithmetic 2x faster", "device memory 2x faster"
Change = tuple[str, Cluster, dict[str, Any]]


def explanation_of(predictor: Predictor, answer: Answer) -> Explanation:
    """Return the explanation of an answer; `predictor` evaluates the changes."""
    forecast = answer.forecast
    what_ifs = tuple(_evaluated(predictor, answer))
    whole = max(sum(forecast.causes.values()), 1e-300)
    shares: dict[str, float] = {}
    for cause, variance in forecast.causes.items():
        words = CAUSE_WORDS.get(quantiles.scope_of(cause), cause)
        shares[words] = shares.get(words, 0.0) + variance / whole
    return Explanation(
        answer, _largest_first(forecast.parts), _largest_first(forecast.memory_parts),
        tuple(_limits(answer, what_ifs)), what_ifs, _largest_first(shares),
    )  # fmt: skip


def _largest_first(parts: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    kept = [(name, value) for name, value in parts.items() if value and math.isfinite(value)]
    return tuple(sorted(kept, key=lambda item: -item[1]))


def _limits(answer: Answer, what_ifs: tuple[WhatIf, ...]) -> Iterator[str]:
    fits = answer.estimate.fit_probability
    least = min(Objective().fit_confidence, fits)  # not above what is unknown
    gains = {
        w.change: w.speedup for w in what_ifs
        if not w.refused and not w.fit_probability < least and not w.change.startswith(_MORE)
    }  # fmt: skip
    name, share = bottleneck_of(answer.forecast.parts)
    if name == "compute" and gains.get(_MEMORY, 0.0) > gains.get(_ARITHMETIC, 0.0):
        name = "memory bandwidth"
    first = max(gains, key=lambda change: gains[change], default="")
    gain = gains.get(first, 0.0)
    change = (
        f"; change first: {first} ({gain:.2f} times as fast)" if gain > 1 + _SMALL_SHARE else ""
    )
    if name:
        yield f"the bottleneck is {name}, {format_percent(share)} of the step{change}"
    for name, seconds in _largest_first(answer.forecast.parts)[:3]:
        if (share := seconds / answer.step_seconds[1]) >= _SMALL_SHARE:
            yield f"{name} takes {format_percent(share)} of the step"
    hardware = [w for w in what_ifs if "faster" in w.change or w.change == _CORES]
    for what_if in sorted(hardware, key=lambda w: -w.speedup)[:2]:
        if what_if.speedup > 1 + _SMALL_SHARE:
            yield f"{what_if.change} would make the run {what_if.speedup:.2f} times as fast"
    if fits < 0.99:
        yield f"memory is tight: it fits with probability {format_probability(fits)}"


def _evaluated(predictor: Predictor, answer: Answer) -> Iterator[WhatIf]:
    legal: list[Job] = [answer.job]
    named: list[tuple[str, int, str]] = []
    for change, cluster, fields in _changes(answer):
        try:
            refuse_plan(answer.job.workload.framework, fields)
            plan = replace(answer.job.plan, **fields)
            legal.append(Job(answer.job.workload, cluster, plan))
            named.append((change, len(legal) - 1, ""))
        except ForerunError as error:
            named.append((change, 0, error.found))
    jobs = Jobs.of(legal)
    forecasts = predictor.predict(jobs)
    lost = answer.preemption or Preemption()
    length = answer.length
    if length.unit == "steps":  # of one size, so that all changes have the same samples
        length = Length("samples", length.count * answer.job.plan.step_samples)
    runs = estimates_for(jobs, forecasts, length, answer.estimate.spot, lost)
    steps = step_seconds(jobs, forecasts, runs.steps)[:, 1]
    # The same plan with one part of the machine faster has the same errors.
    common = quantiles.pairs_in_common([quantiles.scope_labels(job) for job in legal])
    same = common["plan"] & common["device"] & common["link"]
    rho = np.where(same, 1.0, quantiles.correlation_matrix(forecasts.causes, common))[:, 0]
    rho = quantiles.widened(
        rho, (forecasts.seconds, forecasts.seconds[:1]),
        (runs.scattered_seconds, runs.scattered_seconds[:1]),
    )  # fmt: skip
    faster = quantiles.probability_less(runs.wall_seconds, runs.wall_seconds[:1], rho)
    cheaper = quantiles.probability_less(runs.dollars, runs.dollars[:1], rho)
    for change, i, reason in named:
        refused = reason or forecasts.declined[i]
        if refused is not None:
            yield WhatIf(change, refused=refused)
            continue
        run = replace(runs[i], forecast=forecasts[i])
        yield WhatIf(
            change, float(steps[i]), run.run_seconds[1], run.wall_seconds[1], run.dollars[1],
            float(forecasts.peak_bytes[i, 1]), run.fit_probability,
            speedup=answer.estimate.wall_seconds[1] / run.wall_seconds[1],
            chance=chances_of(run, answer.limits),
            beats={"time": float(faster[i]), "cost": float(cheaper[i])},
        )  # fmt: skip


def _changes(answer: Answer) -> Iterator[Change]:
    """Yield changes as (words, cluster, changed plan fields)."""
    cluster, plan = answer.job.cluster, answer.job.plan
    if answer.forecast.parts.get("input", 0.0) > 0:
        yield _CORES, replace(cluster, vcpus_per_device=2 * cluster.vcpus_per_device), {}
    device, intra, inter = cluster.device, cluster.intra, cluster.inter
    flops = {name: 2 * rate for name, rate in device.peak_flops.items()}
    yield _ARITHMETIC, replace(cluster, device=replace(device, peak_flops=flops)), {}
    faster = replace(device, memory_bytes_per_second=2 * device.memory_bytes_per_second)
    yield _MEMORY, replace(cluster, device=faster), {}
    if cluster.devices_per_node > 1:
        intra = replace(intra, bytes_per_second=2 * intra.bytes_per_second)
        yield "links inside a node 2x faster", replace(cluster, intra=intra), {}
    if cluster.nodes > 1:
        inter = replace(inter, bytes_per_second=2 * inter.bytes_per_second)
        yield "the network between nodes 2x faster", replace(cluster, inter=inter), {}
    if SYNC.index(plan.sync) in SERVER_SYNCS:
        more = 2 * max(plan.parameter_servers, 1)
        yield (f"parameter_servers {more // 2} -> {more}", cluster, {"parameter_servers": more})
        reduced = {"sync": "allreduce", "parameter_servers": 0, "stale_bound": 0}
        reduced |= {"servers_with_workers": False, "gradient_bits": 0}
        yield f"sync {plan.sync} -> allreduce", cluster, reduced
        if plan.sync != "ps-async":
            apart = {"sync": "ps-async", "stale_bound": 0}
            yield f"sync {plan.sync} -> ps-async, whose updates are stale", cluster, apart
    if plan.partitions % 2 == 0:
        parts, dp = plan.partitions // 2, plan.dp * 2
        micro = min(plan.micro_batch, max(plan.global_batch // dp, 1))
        words = f"partitions {plan.partitions} -> {parts}, dp={dp}, micro_batch={micro}"
        yield words, cluster, {"partitions": parts, "dp": dp, "micro_batch": micro}
    yield from ((words, cluster, fields) for words, fields in _plans(answer.job))
    if not cluster.placement:
        nodes = cluster.nodes * 2
        larger = replace(cluster.of_nodes(nodes), name=f"{nodes} nodes like {cluster.name}")
        yield f"twice the nodes ({nodes}), dp={plan.dp * 2}", larger, {"dp": plan.dp * 2}


def _plans(job: Job) -> Iterator[tuple[str, dict[str, Any]]]:
    plan, shape = job.plan, job.workload.shape

    def to(name: str, value: Any, **others: int) -> tuple[str, dict[str, Any]]:
        beside = "".join(f", {other}={number}" for other, number in others.items())
        return f"{name} {getattr(plan, name)} -> {value}{beside}", {name: value, **others}

    if plan.global_batch % (plan.micro_batch * plan.dp * 2) == 0:
        yield to("micro_batch", plan.micro_batch * 2)
    if plan.micro_batch % 2 == 0:
        yield to("micro_batch", plan.micro_batch // 2)
    for stage in (plan.zero_stage - 1, plan.zero_stage + 1):
        if 0 <= stage <= 3 and plan.dp > 1 and plan.sync == "allreduce":
            yield to("zero_stage", stage)
    for kind in RECOMPUTE:
        if kind != plan.recompute and (kind != "selective" or shape.heads):
            yield to("recompute", kind)
    for name, cut in (("tp", shape.heads), ("pp", shape.layers)):
        if cut and plan.dp % 2 == 0:
            yield to(name, getattr(plan, name) * 2, dp=plan.dp // 2)
    if plan.tp > 1 and not plan.sequence_parallel:
        yield "sequence_parallel on", {"sequence_parallel": True}
    if plan.pp > 1 and plan.vpp == 1:
        yield to("vpp", 2)
    yield to("global_batch", plan.global_batch * 2)


# Options that may make a job fit, of each kind the lightest first; {0}, {1}: sequences of a half and a quarter.
_REMEDIES = (
    ("--optimizer adamw_8bit", "--optimizer paged_adamw_8bit"),
    ("--plan offload=optimizer", "--plan offload=parameters,zero_stage=3"),
    ("--lora-rank 16", "--task lora", "--task qlora", "--task qlora --seq-len {0}", "--task qlora --seq-len {1}"),
)  # fmt: skip


def remedies(
    predictor: Predictor, workload: Workload, cluster: Cluster, fixed: Mapping[str, Any],
    emit: str = "",
) -> str:  # fmt: skip
    """Return what would make a job fit, each change predicted with what else is fixed; `emit`: a target that runs it."""
    found: list[tuple[float, str]] = []
    sizes = [cluster.nodes * times for times in (2, 4, 8)]
    nodes = {re.sub(r"^\d+x", f"{n}x", cluster.name): n for n in sizes}
    kept = {name: fixed[name] for name in ("global_batch", "offload") if name in fixed}
    stated = ",".join(name for name in fixed if name not in kept)
    clusters = () if cluster.placement else [f"--cluster {name}" for name in nodes]
    adam, dpo = workload.optimizer.startswith("adam"), workload.task == "dpo"
    others = {"--optimizer": not adam, "--task": dpo}  # these would be other jobs
    for kind in ([f"without {stated}"] if stated else [], *_REMEDIES, clusters):
        for text in kind:
            words = text.format(workload.seq_len // 2, workload.seq_len // 4).split()
            options = dict(zip(words[::2], words[1::2], strict=True))
            with suppress(ForerunError):
                if any(others.get(name) for name in options):
                    continue
                fields = dict(kept) if options.pop("without", "") else dict(fixed)
                fields |= plan_fields(options.pop("--plan", None))
                name = options.pop("--cluster", cluster.name)
                place = replace(cluster.of_nodes(nodes.get(name, cluster.nodes)), name=name)
                changed = _changed(workload, options)
                given = {**fields, **place_fields(changed, place)}
                refuse_plan(changed.framework, given)
                if emit:
                    refuse(emit, given)
                batch = batch_for(changed, place.devices, fields)[0]
                fields.pop("global_batch", None)
                plan, _ = best_plan(
                    changed, place, predictor, fixed=fields, global_batch=batch,
                    lacking=partial(refused_plans, emit) if emit else None,
                )  # fmt: skip
                forecast = predictor.predict(Jobs.of([Job(changed, place, plan)]))[0]
                if forecast.fit_probability >= Objective().fit_confidence:
                    peak, most = forecast.peak_bytes[1], place.device.memory_bytes
                    size = f"{format_bytes(peak)} a device"
                    size += f", paged to the host above {format_bytes(most)}" * (peak > most)
                    cost = forecast.seconds[1] * place.devices / plan.step_samples
                    found.append((cost, f"{' '.join(words)} ({size})"))
                    break
    text = ", ".join(words for _, words in sorted(found)[:4])
    return f"what fits, the cheapest first: {text}" if text else ""


def _changed(workload: Workload, options: Mapping[str, str]) -> Workload:
    new = {name[2:].replace("-", "_"): int(v) if v.isdigit() else v for name, v in options.items()}
    if new and workload.name in zoo_names():
        kept = {name: value for name in CHANGES if (value := getattr(workload, name))}
        return built(workload.name, **{**kept, **new})
    return described(workload, new)


YES, PARTLY, NO = "yes", "partly", "no"


def support_of(predictor: Predictor, workload: Workload) -> Support:
    """Return what is covered for a workload."""
    graph, shape = workload.graph, workload.shape
    facts = [
        ("structure from", workload.source or "the caller"),
        ("parameters", format_count(workload.params)), ("operations", str(len(graph.ops))),
        ("forward FLOPs a sample", format_count(graph.forward_flops)),
        ("precision", workload.precision), ("optimizer", workload.optimizer),
        ("usual length", str(workload.length or "none; 1,000 steps are assumed")),
        ("usual global batch", "{} ({})".format(*usual_batch(workload))),
        *([("tokens a sample", f"{workload.seq_len:,}")] if workload.seq_len else []),
        *([("pixels on a side", str(workload.image_size))] if workload.image_size else []),
    ]  # fmt: skip
    time = (YES, "every operation is costed")
    starts = (DEPENDS_ON_DATA, NO_OPERATION_READS)
    doubts = [note.partition(";")[0] for note in workload.notes if note.startswith(starts)]
    if graph.unknown:
        shown = ", ".join(graph.unknown[:4])
        doubts.append(f"{len(graph.unknown)} operations are only bounded: {shown}")
    if graph.forward_flops <= 0:
        time = (NO, "it states no operations to time")
    elif doubts:
        time = (PARTLY, "; ".join(doubts))
    elif not workload.detailed:
        time = (PARTLY, "its graph is only totals: the band is wider")
    memory = (YES, "weights, gradients, states, activations, buffers")
    if graph.saved <= 0:
        memory = (PARTLY, "activations kept for backward are not stated")
    until = "the length is taken as it is given; fit auto to runs that state samples_to_target"
    if has_target := getattr(predictor, "target", None) is not None:
        until = "by batch, from the runs that it was fitted to; a length that you give comes first"
    run = (YES, "at its usual length, or the one you give")
    if workload.length is None:
        run = (PARTLY, "give --steps, --samples, --tokens or --epochs")
    splits = (
        ("tensor parallel (tp)", "tp", shape.heads, f"tp divides {shape.heads} attention heads"),
        ("pipeline parallel (pp, vpp)", "pp", shape.layers, f"up to {shape.layers} stages"),
        ("context parallel (cp)", "cp", shape.heads and workload.seq_len > 1, "splits the sequence"),
        ("expert parallel (ep)", "ep", shape.experts, f"ep divides {shape.experts} experts"),
        ("parameter servers (ps-sync, ps-async, ps-stale)", "sync=ps-sync", True, ""),
    )  # fmt: skip
    cannot = cannot_run(workload.framework)
    notes = (
        framework_note(workload.framework), f"answers come from the predictor {predictor.name!r}",
    )  # fmt: skip
    return Support(
        workload=workload.name,
        facts=tuple(facts),
        covered=(
            ("step time", *time),
            ("device memory", *memory),
            ("run time and cost", *run),
            ("samples to a target quality", YES if has_target else NO, until),
            ("data parallel (dp, ZeRO 0-3)", YES, ""),
            *(
                (question, NO, f"not with {workload.framework}: {cannot[field]}")
                if field in cannot
                else (question, *((YES, remark) if has else (NO, "nothing to divide")))
                for question, field, has, remark in splits
            ),
        ),
        notes=(*workload.notes, *filter(None, notes)),
    )
