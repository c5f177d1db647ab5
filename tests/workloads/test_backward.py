"""Backward and optimizer operations follow from the forward ones."""

from __future__ import annotations

import pytest

from forerun.domain.graph import Op, OpKind, Phase
from forerun.domain.workload import OPTIMIZER_STATES
from forerun.workloads.backward import complete, is_fused_attention, optimizer_op

_LINEAR = Op("fc", OpKind.MATMUL, flops=2 * 4 * 5 * 6, reads=24, writes=20, weights=30,
             params=30, dims=(4, 5, 6), inputs=(0,))  # fmt: skip
_INPUT = Op("stem", OpKind.CONV, flops=2 * 9 * 8 * 27, reads=243, writes=72, weights=216,
            params=216, dims=(9, 8, 27))  # fmt: skip


def _backward(*ops: Op) -> list[Op]:
    graph = complete(ops, "sgd")
    return [op for op in graph.ops if op.phase is Phase.BACKWARD]


def test_a_linear_layer_has_a_data_and_a_weight_gradient_of_equal_flops() -> None:
    dgrad, wgrad, _ = _backward(_INPUT, _LINEAR)
    assert (dgrad.name, wgrad.name) == ("fc.dgrad", "fc.wgrad")
    assert dgrad.flops == wgrad.flops == _LINEAR.flops
    assert dgrad.dims[:3] == (4, 6, 5)
    assert wgrad.dims[:3] == (6, 5, 4)


def test_a_weight_gradient_writes_weights_and_no_activations() -> None:
    _, wgrad, _ = _backward(_INPUT, _LINEAR)
    assert (wgrad.writes, wgrad.weights) == (0.0, 30)


def test_the_operation_that_reads_the_input_has_no_data_gradient() -> None:
    names = [op.name for op in _backward(_INPUT, _LINEAR)]
    assert "stem.wgrad" in names
    assert "stem.dgrad" not in names


def test_a_product_of_two_activations_has_two_data_gradients() -> None:
    scores = Op("scores", OpKind.ATTENTION, flops=2 * 7 * 7 * 3 * 2, reads=84, writes=98,
                dims=(7, 7, 3, 2), inputs=(0,))  # fmt: skip
    left, right, *_ = _backward(_INPUT, scores)
    assert left.flops == right.flops == scores.flops
    assert left.writes + right.writes == scores.reads


def test_fused_attention_does_two_and_a_half_times_its_forward_work() -> None:
    core = Op("core", OpKind.ATTENTION, flops=100, reads=3 * 42, writes=42, dims=(7, 7, 3, 2),
              inputs=(0,))  # fmt: skip
    assert is_fused_attention(core)
    assert _backward(_INPUT, core)[0].flops == 250


def test_a_residual_sum_only_adds_the_gradients_of_its_branches() -> None:
    add = Op("add", OpKind.ELEMENTWISE, reads=40, writes=20, inputs=(0,))
    grad = _backward(_INPUT, add)[0]
    assert (grad.reads, grad.writes) == (40, 20)


def test_backward_runs_in_reverse_order_and_the_optimizer_last() -> None:
    graph = complete((_INPUT, _LINEAR), "adamw")
    phases = [op.phase for op in graph.ops]
    assert phases == sorted(phases, key=list(Phase).index)
    backward = [op.inputs[0] for op in graph.ops if op.phase is Phase.BACKWARD]
    assert backward == sorted(backward, reverse=True)


@pytest.mark.parametrize("optimizer", sorted(set(OPTIMIZER_STATES) - {"none"}))
def test_an_optimizer_reads_weight_gradient_and_states_of_each_parameter(optimizer: str) -> None:
    op = optimizer_op(1000.0, 3, optimizer)
    states = OPTIMIZER_STATES[optimizer]
    assert op.reads >= (2 + states) * 1000
    assert op.writes == (1 + states) * 1000


def test_no_optimizer_moves_nothing() -> None:
    """Benchmarks that stop after backward have none."""
    op = optimizer_op(1000.0, 3, "none")
    assert (op.reads, op.writes, op.launches) == (0.0, 0.0, 0)


def test_sparse_tables_are_left_out_of_the_optimizer_and_of_the_zeroed_gradient() -> None:
    table = Op("table", OpKind.EMBEDDING, reads=8, writes=8, params=1e6)
    dense, sparse = complete((table,), "adam"), complete((table,), "adam", sparse_params=1e6)
    assert sparse.ops[-1].reads == 0 < dense.ops[-1].reads
    assert (sparse.ops[1].weights, dense.ops[1].weights) == (0.0, 1e6)


def test_a_fused_optimizer_needs_more_launches_for_more_parameters() -> None:
    assert optimizer_op(1e10, 300, "adamw").launches > optimizer_op(1e7, 300, "adamw").launches > 1
