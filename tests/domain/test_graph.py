"""Graph: its columns and totals are the sums that a person would do by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.domain.graph import (
    BLOCK_INDEX,
    KIND_INDEX,
    PHASE_INDEX,
    SHARD_INDEX,
    Block,
    Graph,
    Op,
    OpKind,
    Phase,
    Shard,
)

NUMBERS = ("flops", "reads", "writes", "weights", "params", "saved")
AMOUNT = st.integers(0, 10**9).map(float)
OPS = st.builds(
    Op,
    name=st.just("op"),
    kind=st.sampled_from(OpKind),
    phase=st.sampled_from(Phase),
    block=st.sampled_from(Block),
    shard=st.sampled_from(Shard),
    launches=st.integers(0, 9),
    repeat=st.integers(1, 100),
    dims=st.one_of(
        st.just(()),
        st.tuples(*[st.integers(1, 999)] * 3),
        st.tuples(*[st.integers(1, 999)] * 4),
    ),
    **dict.fromkeys(NUMBERS, AMOUNT),
)


@given(st.lists(OPS, max_size=8))
def test_a_total_is_the_sum_over_operations_with_repeat_applied(ops: list[Op]) -> None:
    graph = Graph(tuple(ops))
    for field in (*NUMBERS, "launches"):
        assert graph.total(field) == sum(getattr(op, field) * op.repeat for op in ops)
    assert graph.total("repeat") == sum(op.repeat for op in ops)


@given(st.lists(OPS, max_size=8), st.sampled_from(Phase), st.sampled_from(OpKind))
def test_a_total_counts_only_the_phase_and_kind_asked_for(
    ops: list[Op], phase: Phase, kind: OpKind
) -> None:
    expected = sum(op.flops * op.repeat for op in ops if op.phase == phase and op.kind == kind)
    assert Graph(tuple(ops)).total("flops", phase, kind) == expected


@given(st.lists(OPS, max_size=8))
def test_columns_are_the_operations_in_order_with_repeat_not_applied(ops: list[Op]) -> None:
    columns = Graph(tuple(ops)).columns
    for field in (*NUMBERS, "launches", "repeat"):
        assert getattr(columns, field).tolist() == [getattr(op, field) for op in ops]
    assert columns.kind.tolist() == [KIND_INDEX[op.kind] for op in ops]
    assert columns.phase.tolist() == [PHASE_INDEX[op.phase] for op in ops]
    assert columns.block.tolist() == [BLOCK_INDEX[op.block] for op in ops]
    assert columns.shard.tolist() == [SHARD_INDEX[op.shard] for op in ops]
    wanted = [[*op.dims, *([1] if len(op.dims) == 3 else []), *([0] * 4)][:4] for op in ops]
    assert columns.dims.tolist() == wanted


def test_an_empty_graph_is_a_step_of_nothing() -> None:
    graph = Graph(())
    assert (graph.params, graph.forward_flops, graph.backward_flops) == (0.0, 0.0, 0.0)
    assert graph.columns.dims.shape == (0, 4)
    assert graph.columns.flops.dtype == np.float64


def test_named_sums_take_their_own_phase() -> None:
    graph = Graph(
        (
            Op("f", OpKind.MATMUL, flops=2, writes=3, saved=5, params=7, repeat=2),
            Op("b", OpKind.MATMUL, Phase.BACKWARD, flops=11, writes=13, saved=17),
            Op("o", OpKind.OPTIMIZER, Phase.OPTIMIZER, flops=19),
        )
    )
    assert graph.forward_flops == 4
    assert graph.backward_flops == 11
    assert graph.activations == 6
    assert graph.saved == 10
    assert graph.params == 14


def test_columns_are_computed_once() -> None:
    graph = Graph((Op("f", OpKind.NORM),))
    assert graph.columns is graph.columns


def test_a_product_with_groups_keeps_them_and_one_without_has_one() -> None:
    graph = Graph((Op("a", OpKind.MATMUL, dims=(4, 5, 6)), Op("b", OpKind.CONV, dims=(4, 5, 6, 3))))
    assert graph.columns.dims[:, 3].tolist() == [1, 3]


def test_an_unknown_field_is_not_a_silent_zero() -> None:
    with pytest.raises(AttributeError):
        Graph((Op("f", OpKind.NORM),)).total("flop")
