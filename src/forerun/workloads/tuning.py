"""Tuning: a graph whose weights are frozen and adapted by LoRA, kept in 4 bits, or compared with a reference.

Hu et al. 2021 (LoRA): y = W x + B A x, of which A (rank x k) and B (n x rank) are trained. Dettmers et al.
2023 (QLoRA): W in 4 bits, made wide again before each product. Rafailov et al. 2023 (DPO): a frozen
reference scores what the trained model scores.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from forerun.domain.graph import Block, Graph, Op, OpKind, Phase
from forerun.domain.workload import Workload
from forerun.errors import RequestError, one_of
from forerun.workloads.backward import complete, optimizer_op

RANK = 16  # usual: between the 8 of Hu et al. 2021 and the 64 of Dettmers et al. 2023
# Of attention with latent keys and values (DeepSeek-V2), as its own code names them.
_LATENT = {"q_down": "q_a_proj", "q_up": "q_b_proj", "kv_down": "kv_a_proj", "kv_up": "kv_b_proj"}
TARGETS: Mapping[str, tuple[str, ...]] = {
    "all-linear": (),  # of layers, whatever their names (Dettmers et al. 2023)
    "attention": ("q_proj", "k_proj", "v_proj", "o_proj", *_LATENT.values()),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
    "qv": ("q_proj", "v_proj", "q_b_proj", "kv_b_proj"),  # as Hu et al. 2021
}
PROJECTIONS = (*TARGETS["attention"], *TARGETS["mlp"])
# Elements moved for each weight that is made wide: 4 bits and its constants are read, 16 bits written;
# the product reads them again.
_WIDENED = 0.26 + 1.0
_USUAL_SHARE = 0.01  # of parameters that are trained, where layers are not known


def tuned(workload: Workload, rank: int = 0, targets: str = "") -> Workload:
    """Return a workload as its task trains it: adapters of `rank` on `targets`, frozen weights, a reference.

    Tasks lora and qlora have adapters, of `RANK` on queries and values (qlora, and where they have no names:
    on all linear layers) where nothing else is stated; dpo has them where a rank or targets are. Raises RequestError for a rank or targets that its layers do not take.
    """
    task = workload.task
    adapts = task in ("lora", "qlora") or (task == "dpo" and (rank or targets))
    if (rank or targets) and not adapts:
        raise RequestError(
            f"{workload.name} with LoRA's {'rank' if rank else 'targets'} and task {task}",
            "only tasks lora, qlora and dpo have adapters", "add --task lora",
        )  # fmt: skip
    compared = any(op.name.startswith("reference.") for op in workload.graph.ops)
    if task in ("pretrain", "finetune") or workload.lora_rank or compared:
        if rank or targets:
            raise RequestError(
                f"{workload.name} with LoRA's {'rank' if rank else 'targets'}",
                "it is adapted already", "leave both out, or start from the model",
            )  # fmt: skip
        return workload
    if task == "dpo" and workload.seq_len <= 0:
        raise RequestError(
            f"{workload.name} with task dpo", "its samples are no sequences to prefer one of",
            "use --task finetune",
        )  # fmt: skip
    own = workload.graph.frozen > 0  # of a module: what it freezes and adapts is its author's
    if own or not workload.detailed:
        _refuse_detail(workload, rank, targets)
    if adapts and not own:
        adapt = partial(_adapted, rank=rank or RANK, targets=targets)
        workload = (adapt if workload.detailed else _of_totals)(workload)
    if task != "dpo":
        return workload
    adapts = adapts or own
    held = "is the same weights without adapters" if adapts else "holds weights of its own"
    note = (
        f"DPO: a sample is one sequence, a pair two of them; the frozen reference {held}"
        " and scores each sequence once (Rafailov et al. 2023)"
    )
    graph = _with_reference(workload.graph, own_weights=not adapts)
    return replace(workload, graph=graph, notes=(*workload.notes, note))


def _refuse_detail(workload: Workload, rank: int, targets: str) -> None:
    """Raise RequestError for what hangs on layers, of a workload that freezes its own, or whose layers are not known."""
    asked = {
        "LoRA's rank": rank, "LoRA's targets": targets,
        "weights in 4 bits": workload.task == "qlora",
    }  # fmt: skip
    for name in (name for name, value in asked.items() if value):
        frozen = workload.graph.frozen > 0
        raise RequestError(
            f"{workload.name} with {name}",
            "the module freezes parameters itself" if frozen else "its layers are not known, only totals",
            "leave it to the module, or start from the whole model" if frozen
            else "use --task lora without them, or name a model",
        )  # fmt: skip


def _adapted(workload: Workload, rank: int, targets: str) -> Workload:
    quantized = workload.task == "qlora"
    forward = [op for op in workload.graph.ops if op.phase is Phase.FORWARD]
    layers = _layers(workload, forward)
    names = dict.fromkeys(n for parts in layers.values() for n in parts if n in PROJECTIONS)
    targets = targets or ("qv" if names and not quantized else "all-linear")
    if not layers:
        raise RequestError(
            f"{workload.name} with LoRA", "it has no linear layers in repeated blocks",
            "use --task finetune",
        )  # fmt: skip
    wanted = _wanted(workload, targets, tuple(names))
    ops: list[Op] = []
    place: dict[int, int] = {}  # of a forward operation's output, among the new ones
    frozen: set[int] = set()
    for position, op in enumerate(forward):
        inputs = tuple(place[i] for i in op.inputs)
        parts = layers.get(position, {})
        if parts and quantized:
            frozen.add(len(ops))
            ops.append(replace(
                op, name=f"{op.name}.widen", kind=OpKind.COPY, flops=0.0, reads=0.0, writes=0.0,
                weights=_WIDENED * op.weights, params=0.0, saved=0.0, dims=(), launches=2,
                inputs=inputs,
            ))  # fmt: skip
        frozen.add(len(ops))
        ops.append(replace(op, inputs=inputs))
        place[position] = len(ops) - 1
        widths = [n for name, n in parts.items() if wanted is None or name in wanted]
        if widths:
            if rank > (width := min(*widths, op.dims[2])):
                asked = f"{workload.name} with LoRA of rank {rank}"
                todo = f"give a rank of at most {width}"
                raise RequestError(asked, f"{op.name} is {width} wide", todo)
            ops += _adapters(op, rank, widths, inputs, len(ops))
            place[position] = len(ops) - 1
    graph = _without_frozen(complete(ops, workload.optimizer), frozen)
    adapters = [op for i, op in enumerate(ops) if i not in frozen and op.params > 0]
    own = sum(op.params * op.repeat for op in adapters)
    step = optimizer_op(own, sum(op.repeat for op in adapters), workload.optimizer)
    base = graph.params - own
    narrow = quantized * sum(forward[i].params * forward[i].repeat for i in layers)
    notes: tuple[str, ...] = (
        f"LoRA: rank {rank} on {targets}, {own:.3g} trained parameters ({own / base:.2%});"
        " no weight gradients of the others",
    )
    if quantized:
        share = f"{narrow / base:.0%} of the frozen weights"
        notes += (f"QLoRA: {share} are in 4 bits (NF4, double quantization)",)
    made = Graph((*graph.ops[:-1], step), workload.graph.unknown, frozen=base, quantized=narrow)
    return replace(
        workload, graph=made, notes=(*workload.notes, *notes), lora_rank=rank, lora_targets=targets
    )


def _wanted(workload: Workload, targets: str, names: Sequence[str]) -> set[str] | None:
    """Return the projections that targets mean, None for all; names: those of the layers. Raises RequestError."""
    wanted: set[str] = set()
    for target in (part.strip() for part in targets.split(",")):
        if target in ("all-linear", "all"):
            return None
        if target not in (*TARGETS, *PROJECTIONS):
            choice = one_of(target, (*TARGETS, *PROJECTIONS))
            raise RequestError(f"LoRA on {target!r}", "no such target", choice)
        found = {name for name in TARGETS.get(target, (target,)) if name in names}
        if not found:
            todo = f"adapt {', '.join(names)}" if names else "use all-linear: they have no names"
            raise RequestError(
                f"{workload.name} with LoRA on {target}", "its layers have no such linear layer",
                todo,
            )  # fmt: skip
        wanted |= found
    return wanted


def _layers(workload: Workload, forward: Sequence[Op]) -> dict[int, dict[str, int]]:
    """Return the linear layers of repeated blocks by position: widths by the name of each projection."""
    query = workload.shape.heads * workload.shape.head_size
    linear = {
        i: op for i, op in enumerate(forward)
        if op.kind is OpKind.MATMUL and op.params > 0 and op.dims and op.block is Block.LAYER
        and not op.name.endswith(".router")
    }  # fmt: skip
    if linear and not any(op.block is Block.HEAD for op in forward):
        del linear[max(linear)]  # the model's output, where it is not told from layers
    downs = {op.name.removesuffix(".down"): op.dims[2] for op in linear.values()}
    found: dict[int, dict[str, int]] = {}
    for i, op in linear.items():
        prefix, _, last = op.name.rpartition(".")
        n = op.dims[1]
        match last:
            case "qkv":
                first = query if 0 < query < n else n // 3
                half = (n - first) // 2
                found[i] = {"q_proj": first, "k_proj": half, "v_proj": half}
            case "kv":
                found[i] = {"k_proj": n // 2, "v_proj": n // 2}
            case "up" if 2 * downs.get(prefix, 0) == n:
                found[i] = {"gate_proj": n // 2, "up_proj": n // 2}
            case "q" | "up" | "down":
                found[i] = {f"{last}_proj": n}
            case "q_down" | "q_up" | "kv_down" | "kv_up":
                found[i] = {_LATENT[last]: n}
            case "out":
                found[i] = {"o_proj": n}
            case _:  # of a traced module: the name of its own
                own = next((part for part in op.name.split(".") if part in PROJECTIONS), op.name)
                found[i] = {own: n}
    return found


def _adapters(
    op: Op, rank: int, widths: Sequence[int], inputs: tuple[int, ...], at: int
) -> list[Op]:
    """Return A x, B of it, and the scaled sum, of a product whose output is at `at` - 1."""
    m, _, k, groups = (*op.dims, 1)[:4]
    rows, parts, wide = float(m * groups), len(widths), sum(widths)
    inner = rows * rank * parts
    down, up = float(groups * k * rank * parts), float(groups * rank * wide)
    own = op.params / op.weights  # of layers that share their weights a part each
    experts = (groups,) if groups > 1 else ()
    many: Any = {"kind": OpKind.MATMUL, "launches": parts * op.launches}
    return [
        replace(
            op, name=f"{op.name}.lora_a", flops=2.0 * rows * k * rank * parts, writes=inner,
            weights=down, params=own * down, saved=inner, shape=(m * groups, rank * parts),
            dims=(m, rank * parts, k, *experts), inputs=inputs, **many,
        ),
        replace(
            op, name=f"{op.name}.lora_b", flops=2.0 * rows * rank * wide, reads=inner,
            writes=rows * wide, weights=up, params=own * up, saved=0.0, shape=(m * groups, wide),
            dims=(m, max(wide // parts, 1), rank, groups * parts), inputs=(at,), **many,
        ),
        # B's output is scaled and added: two kernels each.
        replace(
            op, name=f"{op.name}.lora_sum", kind=OpKind.ELEMENTWISE, flops=0.0,
            reads=3.0 * rows * wide, writes=2.0 * rows * wide, weights=0.0, params=0.0, saved=0.0,
            dims=(), shape=(m * groups, wide), launches=2 * parts, inputs=(at - 1, at + 1),
        ),
    ]  # fmt: skip


def _without_frozen(graph: Graph, frozen: Collection[int]) -> Graph:
    """Return a graph without gradients of frozen weights; what was made wide is so again in backward."""
    kept = []
    for op in graph.ops:
        if op.phase is Phase.BACKWARD and op.inputs and op.inputs[0] in frozen:
            if op.name.endswith(".wgrad") or op.kind is OpKind.EMBEDDING:
                continue
            if op.name.endswith(".widen.grad"):
                op = replace(op, weights=graph.ops[op.inputs[0]].weights)
        if op.name.endswith(
            ".lora_sum.grad"
        ):  # scaled; the sum is of gradients of the layer's input
            wide, source = graph.ops[op.inputs[0]].writes / 2.0, graph.ops[op.inputs[0] - 2].reads
            op = replace(op, reads=wide + 2.0 * source, writes=wide + source)
        kept.append(op)
    return replace(graph, ops=tuple(kept))


def _with_reference(graph: Graph, own_weights: bool) -> Graph:
    # Nothing of it is kept or computed again, as of a forward pass: it counts with backward's operations.
    scores = [
        replace(
            op, name=f"reference.{op.name}", phase=Phase.BACKWARD, saved=0.0, inputs=(),
            params=op.params * own_weights,
        )
        for op in graph.ops
        if op.phase is Phase.FORWARD and ".lora_" not in op.name
    ]  # fmt: skip
    held = graph.params if own_weights else 0.0
    return replace(graph, ops=(*graph.ops[:-1], *scores, graph.ops[-1]), frozen=graph.frozen + held)


def _of_totals(workload: Workload) -> Workload:
    """Return the workload of totals, of which no layer is known, with a usual share of trained parameters."""
    graph = workload.graph
    forward = [op for op in graph.ops if op.phase is Phase.FORWARD]
    graph = _without_frozen(graph, range(len(forward)))
    own = _USUAL_SHARE * graph.params
    step = optimizer_op(own, len(forward), workload.optimizer)
    note = f"LoRA: its layers are not known, {_USUAL_SHARE:.0%} of the parameters are assumed to be trained"
    graph = replace(graph, ops=(*graph.ops[:-1], step), frozen=graph.params - own)
    return replace(workload, graph=graph, notes=(*workload.notes, note))
