"""A row's shape columns or totals -> a Workload, with what had to be assumed in its notes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from forerun.domain.workload import Length, Workload
from forerun.workloads.families import ENCODER, GPT, LLAMA
from forerun.workloads.row_values import Row, fused_attention_of, optimizer_of, precision_of
from forerun.workloads.shapes import TransformerSpec
from forerun.workloads.totals import graph_from_totals
from forerun.workloads.transformer import transformer_workload

_GATED = re.compile(r"llama|mistral|mixtral|qwen|gemma|deepseek|phi-?3|yi-|internlm|olmo")
_ENCODER = re.compile(r"bert|electra")
_MEGATRON_VOCAB = 51200
_BERT_VOCAB = 30522
_HEAD_SIZES = (64, 128, 96, 80)
# Where the structure of a row that stands as itself was taken from.
ROW_SOURCES = ("shape columns of the row", "totals of the row")
_PARAMS_TOLERANCE = 0.10


def from_shape_columns(row: Row) -> Workload | None:
    """Return a transformer from `layers`, `hidden` and `seq_len`; None where one is blank.

    Where `params` is given, whether the feed-forward network is gated and whether embeddings are
    tied is chosen so that the parameters come nearest.

    Raises:
        ValueError: a cell that is no number.
        RequestError: sizes that cannot be.
    """
    layers, hidden, seq_len = (row.whole(c) for c in ("layers", "hidden", "seq_len"))
    if not (layers and hidden and seq_len):
        return None
    notes: list[str] = []
    shape = _shape(row, notes) | {"layers": layers, "hidden": hidden, "seq_len": seq_len}
    shape = _nearest(shape, row.number("params"), notes)
    precision, note = precision_of(row, "bf16")
    return transformer_workload(
        TransformerSpec(**shape),
        row.text("workload") or f"transformer-h{hidden}-l{layers}",
        family=row.text("family") or "transformer",
        precision=precision,
        optimizer=optimizer_of(row) or "adamw",
        source=ROW_SOURCES[0],
        notes=(*notes, note) if note else tuple(notes),
    )


def from_total_columns(row: Row) -> Workload | None:
    """Return a workload from `params` and `gmacs`; None where one is blank.

    Raises:
        ValueError: a cell that is no number.
    """
    params, gmacs = row.number("params"), row.number("gmacs")
    if not (params and gmacs):
        return None
    seq_len, image_size = row.whole("seq_len"), row.whole("image_size")
    optimizer = optimizer_of(row) or ("adamw" if seq_len else "momentum")
    precision, note = precision_of(row, "bf16" if seq_len else "fp32")
    notes = ["built from totals: layers are not known, so no plan may divide them"]
    if not row.number("mactivations"):
        notes.append("activations are not stated: taken as usual for its multiply-adds")
    return Workload(
        name=row.text("workload") or "totals",
        graph=graph_from_totals(params, gmacs, row.number("mactivations"), seq_len, optimizer),
        family=row.text("family"),
        sample="sequence" if seq_len else "image",
        seq_len=seq_len,
        image_size=image_size,
        precision=precision,
        optimizer=optimizer,
        length=None if seq_len else Length("epochs", 90, "usual for image classifiers"),
        detailed=False,
        source=ROW_SOURCES[1],
        notes=(*notes, note) if note else tuple(notes),
    )


def _shape(row: Row, notes: list[str]) -> dict[str, Any]:
    """Return the fields of TransformerSpec that the name and the columns decide."""
    name = f"{row.text('workload')} {row.text('family')}".lower()
    hidden = row.whole("hidden")
    base: Mapping[str, Any] = GPT
    if _ENCODER.search(name):
        base = ENCODER
    elif _GATED.search(name):
        base = LLAMA
    shape: dict[str, Any] = dict(base)
    heads = row.whole("heads")
    if not heads:
        heads = _likely_heads(hidden)
        notes.append(f"heads are not stated: {heads} of {hidden // heads} assumed")
    vocab = row.whole("vocab")
    if not vocab:
        vocab = _BERT_VOCAB if base is ENCODER else _MEGATRON_VOCAB
        notes.append(f"vocabulary is not stated: {vocab} assumed")
    if not row.whole("ffn"):
        notes.append("ffn is not stated: 4 x hidden assumed")
    if base is GPT:
        notes.append("taken as a GPT: layer normalisation, ungated, learned positions")
    shape |= {
        "heads": heads, "kv_heads": row.whole("kv_heads"), "ffn": row.whole("ffn"), "vocab": vocab,
    }  # fmt: skip
    experts = row.whole("experts")
    if experts > 1:
        shape |= {"experts": experts, "experts_per_token": min(2, experts)}
        notes.append("experts a token are not stated: 2 assumed")
    fused = fused_attention_of(row)
    if fused is not None:
        shape["fused_attention"] = fused
    return shape


def _likely_heads(hidden: int) -> int:
    """Return a usual number of heads: of the usual sizes the one that most plans can divide."""
    counts = [hidden // size for size in _HEAD_SIZES if hidden % size == 0]
    return max(counts, key=lambda heads: heads & -heads, default=max(1, hidden // 64))


def _nearest(shape: dict[str, Any], params: float, notes: list[str]) -> dict[str, Any]:
    """Return the variant (gated, tied) of a shape whose parameters are nearest to those stated."""
    if not params or shape.get("kind") == "encoder":
        return shape
    own = abs(_params(shape) / params - 1)
    if own <= 0.02:
        return shape
    # Of variants that fit equally well the one that changes least of what the name implies.
    best = min(
        _variants(shape),
        key=lambda variant: (
            round(abs(_params(variant) / params - 1), 2),
            2 * (variant["gated"] != shape.get("gated", False))
            + (variant["tied"] != shape.get("tied", True)),
        ),
    )
    error = abs(_params(best) / params - 1)
    chosen = best if error < own else shape
    if chosen is best:
        notes.append(
            f"gated={best['gated']} and tied={best['tied']} chosen to meet {params:.4g} parameters"
        )
    if min(error, own) > _PARAMS_TOLERANCE:
        notes.append(
            f"{params:.4g} parameters are stated, and this shape has {_params(chosen):.4g}"
        )
    return chosen


def _variants(shape: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for gated in (False, True):
        for tied in (False, True):
            yield {**shape, "gated": gated, "tied": tied}


def _params(shape: Mapping[str, Any]) -> float:
    """Return the parameters of a decoder's matrices (biases and norms left out)."""
    spec = TransformerSpec(**shape)
    query, keys = spec.heads * spec.head_size, spec.key_heads * spec.head_size
    attention = spec.hidden * (2 * query + 2 * keys)
    mixture = max(1, spec.experts)
    feed = spec.hidden * spec.ffn_size * (3 if spec.gated else 2) * mixture
    positions = spec.seq_len if spec.positions == "learned" else 0
    tables = spec.vocab * (1 if spec.tied else 2) + positions
    return float(spec.layers * (attention + feed) + tables * spec.hidden)
