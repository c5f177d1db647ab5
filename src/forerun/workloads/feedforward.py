"""Feed-forward networks as operations: dense, gated, and mixtures of experts."""

from __future__ import annotations

from forerun.domain.graph import OpKind, Shard
from forerun.workloads.shapes import TransformerSpec
from forerun.workloads.tape import Tape


def feedforward(
    tape: Tape, spec: TransformerSpec, source: int, tokens: int, ffn: int, name: str = "mlp"
) -> int:
    """Append a dense feed-forward network that reads the normalised `source`.

    The input of the activation and its output (the input of the second product) are kept.
    """
    inner = 2 * ffn if spec.gated else ffn
    up = tape.linear(
        f"{name}.up", source, tokens, inner, spec.hidden, spec.bias, saved=float(tokens * inner)
    )
    active = tape.pointwise(
        f"{name}.activation", (up,), (tokens, ffn), reads=inner / ffn,
        saved=1.0, shard=Shard.TENSOR,
    )  # fmt: skip
    return tape.linear(f"{name}.down", active, tokens, spec.hidden, ffn, spec.bias)


def mixture(tape: Tape, spec: TransformerSpec, source: int, tokens: int) -> int:
    """Append a router, the experts that each token visits, and the shared experts.

    Experts are stated as grouped products: as many groups as experts, each with an equal share of
    the tokens (imbalance belongs to the plan's cost). All experts' weights are read, whatever the
    batch. Exchanges between devices are no operations: the cost of a plan adds them.
    """
    router = tape.linear("moe.router", source, tokens, spec.experts, spec.hidden, shard=Shard.NONE)
    scores = float(tokens * spec.experts)
    chosen = tape.add(
        "moe.top_k", OpKind.SOFTMAX, (router,),
        reads=scores, writes=scores, saved=tape.wide * scores,
        shape=(tokens, spec.experts), shard=Shard.NONE, launches=3,
    )  # fmt: skip
    last = _experts(tape, spec, (source, chosen), tokens)
    if spec.shared_experts:
        shared = spec.shared_experts * spec.expert_size
        other = feedforward(tape, spec, source, tokens, shared, "moe.shared")
        last = tape.pointwise(
            "moe.sum", (last, other), (tokens, spec.hidden), reads=2.0, shard=Shard.SEQUENCE
        )
    return last


def _experts(tape: Tape, spec: TransformerSpec, sources: tuple[int, ...], tokens: int) -> int:
    """Append dispatch, the experts' products and the weighted sum of their outputs."""
    visits, hidden, ffn = tokens * spec.experts_per_token, spec.hidden, spec.expert_size
    inner = 2 * ffn if spec.gated else ffn
    moved = float(visits * hidden)
    dispatch = tape.add(
        "moe.dispatch", OpKind.COPY, sources,
        reads=moved, writes=moved, shape=(visits, hidden), saved=moved, shard=Shard.EXPERT,
        launches=2,
    )  # fmt: skip
    up = _grouped(tape, spec, "moe.up", dispatch, visits, inner, hidden, float(visits * inner))
    active = tape.pointwise(
        "moe.activation", (up,), (visits, ffn), reads=inner / ffn,
        saved=1.0, shard=Shard.EXPERT,
    )  # fmt: skip
    down = _grouped(tape, spec, "moe.down", active, visits, hidden, ffn, moved)
    return tape.add(
        "moe.combine", OpKind.COPY, (down,),
        reads=moved, writes=float(tokens * hidden), shape=(tokens, hidden),
        shard=Shard.EXPERT, launches=2,
    )  # fmt: skip


def _grouped(
    tape: Tape, spec: TransformerSpec, name: str, source: int, m: int, n: int, k: int, saved: float
) -> int:
    """Append one product for each expert; m counts visits over all experts."""
    weights = float(spec.experts * (n * k + (n if spec.bias else 0)))
    return tape.add(
        name, OpKind.MATMUL, (source,),
        flops=2.0 * m * n * k, reads=float(m * k), writes=float(m * n),
        weights=weights, params=weights, shape=(m, n),
        dims=(max(1, round(m / spec.experts)), n, k, spec.experts),
        saved=saved, shard=Shard.EXPERT,
    )  # fmt: skip
