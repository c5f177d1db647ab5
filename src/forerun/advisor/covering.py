"""Covering: what forerun can say of a workload, said before anything runs."""

from __future__ import annotations

from forerun.advisor.answer import Support
from forerun.contracts import Predictor
from forerun.domain.workload import Workload
from forerun.units import format_count

YES, PARTLY, NO = "yes", "partly", "no"
Row = tuple[str, str, str]


def support_of(predictor: Predictor, workload: Workload) -> Support:
    """Return what is covered for a workload."""
    return Support(
        workload=workload.name,
        facts=_facts(workload),
        covered=(*_answers(workload), *_plans(workload)),
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


def _plans(workload: Workload) -> list[Row]:
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
