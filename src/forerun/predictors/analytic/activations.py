"""Activations: the bytes that one micro-batch keeps for its backward phase."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from forerun.arrays import BoolArray, FloatArray
from forerun.domain.graph import (
    BLOCK_INDEX,
    KIND_INDEX,
    PHASE_INDEX,
    Block,
    CodeArray,
    OpColumns,
    OpKind,
    Phase,
)
from forerun.domain.plan import RECOMPUTE
from forerun.domain.workload import ACTIVATION_BYTES, Workload
from forerun.predictors.analytic.inside_layers import boundary_elements
from forerun.predictors.analytic.keys import IS_CHEAP, IS_SCORE, Keys, activation_cut, cut_by_tensor


def selected(workload: Workload, kinds: CodeArray) -> BoolArray:
    """Return which operations, of the given kinds, selective recomputation does again.

    Where attention scores are kept in memory, the attention core (Korthikanti et al. 2022); where
    a fused kernel keeps none, the cheap operations between the products (norms, activations).
    """
    return (IS_CHEAP if workload.fused_attention else IS_SCORE)[kinds]


def _is_gate(columns: OpColumns) -> BoolArray:
    """Return which operations multiply an activated half of their input with the other half."""
    halves = (columns.kind == KIND_INDEX[OpKind.ELEMENTWISE]) & cut_by_tensor(columns)
    return np.asarray(halves & (columns.saved > 0) & (columns.reads > 1.5 * columns.writes))


def saved_bytes(workload: Workload, keys: Keys) -> dict[str, FloatArray]:
    """Return activation bytes kept for backward by one micro-batch, each (k,).

    saved_layer: what the operations of all layers keep; saved_gate: more, where the gate's
    activation and its product are two operations; saved_chosen: what operations keep where
    selective recomputation chooses them; saved_input: inputs of layers that recomputation keeps
    beside them; saved_again: what one layer holds while it is computed again; saved_alive:
    gradients alive while a layer is differentiated; saved_whole: a layer's whole input, which
    sequence parallelism gathers; saved_head: what the exit keeps, and its widest gradient;
    boundary: the input of one layer, which full recomputation keeps and a pipeline sends.
    """
    columns = workload.graph.columns
    size = ACTIVATION_BYTES[workload.precision]
    samples = keys.micro_batch / keys.cp
    cut = activation_cut(columns, keys)
    kept = columns.saved * columns.repeat * size / cut  # (k, operations)
    blocks = {b: columns.block == BLOCK_INDEX[b] for b in Block}
    layer_all = kept[:, blocks[Block.LAYER]].sum(axis=1) * samples
    gate = (kept[:, blocks[Block.LAYER] & _is_gate(columns)]).sum(axis=1) * samples
    score = blocks[Block.LAYER] & selected(workload, columns.kind)
    scores = kept[:, score].sum(axis=1) * samples
    layers = max(workload.shape.layers, 1)
    by_sequence = np.where(keys.sequence_parallel > 0, keys.tp, 1.0)
    boundary = samples * boundary_elements(workload) * size / by_sequence
    full = keys.recompute == RECOMPUTE.index("full")
    selective = keys.recompute == RECOMPUTE.index("selective")
    # Norms saved their input, the residual stream: without them the layer's input must be kept.
    residual = boundary * layers if workload.fused_attention else 0.0
    inputs = np.where(
        full, np.minimum(boundary * layers, layer_all), np.where(selective, residual, 0.0)
    )
    again = np.where(full, layer_all / layers, np.where(selective, scores / layers, 0.0))
    # While a layer is differentiated, the gradients of its widest output and input are alive.
    forward = columns.phase == PHASE_INDEX[Phase.FORWARD]
    widest = (columns.writes * size / cut) * samples[:, None]
    inner, head = blocks[Block.LAYER] & forward, blocks[Block.HEAD] & forward
    head_alive = widest[:, head].max(axis=1, initial=0.0)
    return {
        "saved_layer": np.where(full | selective, 0.0, layer_all),
        "saved_gate": np.where(full | selective, 0.0, gate),
        "saved_chosen": np.where(selective, layer_all - scores, 0.0),
        "saved_input": inputs,
        "saved_again": again,
        "saved_alive": 2.0 * widest[:, inner].max(axis=1, initial=0.0),
        "saved_whole": np.where(keys.sequence_parallel > 0, boundary * keys.tp, 0.0),
        "saved_embed": kept[:, blocks[Block.EMBED]].sum(axis=1) * samples,
        "saved_head": kept[:, blocks[Block.HEAD]].sum(axis=1) * samples + head_alive,
        "boundary": boundary,
    }


def held_bytes(
    saved: Mapping[str, FloatArray], software: Mapping[str, FloatArray], transformer: BoolArray
) -> dict[str, FloatArray]:
    """Return what frameworks hold of what operations save, each (k,).

    held_layers: of one micro-batch in all layers; held_working: while one layer is differentiated;
    held_embed, held_head: by entry and exit; held_whole: a whole input of a layer.

    Args:
        saved: see `saved_bytes`.
        software: `constants.Framework`'s fields for each key.
        transformer: which keys cut a transformer: shares are of transformers.
    """

    def share(name: str) -> FloatArray:
        return np.where(transformer, software[name], 1.0)

    whole = saved["saved_layer"] + software["unfused"] * saved["saved_gate"]
    chosen = share("chosen_share") * saved["saved_chosen"]
    return {
        "held_layers": share("kept_share") * whole + chosen + saved["saved_input"],
        "held_working": saved["saved_alive"] + share("kept_share") * saved["saved_again"],
        "held_embed": saved["saved_embed"],
        "held_head": share("logits_share") * saved["saved_head"],
        "held_whole": saved["saved_whole"],
        "boundary": saved["boundary"],
    }
