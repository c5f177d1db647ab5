"""What a traced operation costs, against counts made by hand."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="tracing needs the torch extra: pip install torch")

from torch import nn  # noqa: E402 - torch may be missing, and then nothing here is collected
from torch.nn import functional as F  # noqa: E402, N812 - torch's own name for it

from forerun.domain.graph import Graph, Op, OpKind, Phase  # noqa: E402 - as above
from forerun.workloads.trace import trace_module  # noqa: E402 - as above


def ops_of(graph: Graph, kind: OpKind, phase: Phase = Phase.FORWARD) -> list[Op]:
    return [op for op in graph.ops if op.kind is kind and op.phase is phase]


def test_a_linear_layer_does_two_flops_a_weight_and_row_and_twice_that_backward() -> None:
    net = nn.Sequential(nn.Linear(6, 10), nn.Linear(10, 4))
    graph = trace_module(net, torch.zeros(8, 3, 6)).graph
    assert graph.forward_flops == 2 * 3 * (6 * 10 + 10 * 4)
    # The first layer's input needs no gradient.
    assert graph.backward_flops == 2 * 3 * (6 * 10 + 2 * 10 * 4)
    first = ops_of(graph, OpKind.MATMUL)[0]
    assert first.dims == (3, 10, 6, 1)
    assert (first.reads, first.writes, first.weights) == (3 * 6, 3 * 10, 6 * 10 + 10)
    assert graph.params == 6 * 10 + 10 + 10 * 4 + 4


def test_a_weight_gradient_grows_with_the_batch_only_in_its_reduction() -> None:
    def gradient(batch: int) -> Op:
        net = nn.Sequential(nn.Linear(6, 10), nn.ReLU())
        graph = trace_module(net, torch.zeros(batch, 3, 6)).graph
        return next(op for op in graph.ops if op.name.endswith("wgrad") and op.dims)

    assert gradient(2) == gradient(16)
    assert gradient(2).dims == (10, 6, 3, 1)
    assert (gradient(2).writes, gradient(2).weights) == (0.0, 60.0)


@pytest.mark.parametrize("batch", [1, 2, 7])
def test_a_sample_costs_the_same_whatever_the_batch_traced(batch: int) -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
    graph = trace_module(net, torch.zeros(batch, 3, 9, 9)).graph
    assert graph.forward_flops == 2 * 7 * 7 * 8 * 3 * 9
    assert graph.total("saved", Phase.FORWARD) == pytest.approx(3 * 81 + 2 * 8 * 49, rel=0.05)


@pytest.mark.parametrize(
    ("groups", "kind"),
    [(1, OpKind.CONV), (4, OpKind.CONV_GROUPED), (16, OpKind.CONV_DEPTHWISE)],
)
def test_groups_divide_a_convolution_forward_and_backward(groups: int, kind: OpKind) -> None:
    net = nn.Sequential(nn.Conv2d(16, 16, 1), nn.Conv2d(16, 16, 3, padding=1, groups=groups))
    graph = trace_module(net, torch.zeros(2, 16, 10, 10)).graph
    flops = 2 * 100 * 16 * (16 // groups) * 9
    (forward,) = ops_of(graph, kind)
    assert forward.flops == flops
    assert forward.dims == (100, 16 // groups, 16 // groups * 9, groups)
    data, weight = ops_of(graph, kind, Phase.BACKWARD)
    assert (data.flops, weight.flops) == (flops, flops)
    assert data.dims == (100, 16 // groups * 9, 16 // groups, groups)
    assert weight.dims == (16 // groups * 9, 16 // groups, 100, groups)
    assert (weight.writes, weight.weights) == (0.0, 16 * (16 // groups) * 9)


def test_a_point_convolution_has_its_own_class() -> None:
    graph = trace_module(nn.Conv2d(4, 8, 1), torch.zeros(2, 4, 5, 5)).graph
    (op,) = ops_of(graph, OpKind.CONV_1X1)
    assert op.flops == 2 * 25 * 4 * 8


def test_a_transposed_convolution_works_at_each_input_pixel() -> None:
    graph = trace_module(nn.ConvTranspose2d(4, 8, 3, stride=2), torch.zeros(2, 4, 5, 5)).graph
    assert graph.forward_flops == 2 * 25 * 4 * 8 * 9


class Attention(nn.Module):
    """Queries, keys and values from one projection, then torch's attention."""

    def __init__(self, hidden: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, hidden = x.shape
        split = self.qkv(x).view(batch, tokens, 3, self.heads, hidden // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, hidden))


@pytest.mark.parametrize("causal", [False, True])
def test_fused_attention_is_counted_forward_and_two_and_a_half_times_backward(
    causal: bool,
) -> None:
    tokens, hidden, heads = 32, 64, 4
    workload = trace_module(Attention(hidden, heads, causal), torch.zeros(2, tokens, hidden))
    (forward,) = ops_of(workload.graph, OpKind.ATTENTION)
    flops = 4 * tokens * tokens * hidden * (0.5 if causal else 1.0)
    assert forward.flops == flops
    assert forward.dims == (tokens, tokens, hidden // heads, heads)
    (backward,) = ops_of(workload.graph, OpKind.ATTENTION, Phase.BACKWARD)
    assert backward.flops == 2.5 * flops
    assert workload.fused_attention
    # Scores are not kept: input, q, k, v, output and one number for each row are.
    kept = tokens * hidden * 5 + tokens * heads
    assert workload.graph.saved == kept


def test_a_transformer_layer_does_the_flops_of_its_matrices_and_of_attention() -> None:
    tokens, hidden, ffn = 16, 64, 256
    layer = nn.TransformerEncoderLayer(hidden, 4, ffn, batch_first=True)
    graph = trace_module(layer, torch.zeros(3, tokens, hidden)).graph
    matrices = 4 * hidden * hidden + 2 * hidden * ffn
    assert graph.forward_flops == 2 * tokens * matrices + 4 * tokens * tokens * hidden
    assert graph.params == sum(p.numel() for p in layer.parameters())


class HandWritten(nn.Module):
    """Attention whose scores go through memory."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = x @ x.transpose(-1, -2)
        return scores.softmax(-1) @ x


def test_attention_written_by_hand_is_attention_whose_scores_are_kept() -> None:
    net = nn.Sequential(nn.Linear(8, 8), HandWritten())
    workload = trace_module(net, torch.zeros(2, 4, 16, 8))
    products = ops_of(workload.graph, OpKind.ATTENTION)
    assert [op.flops for op in products] == [2 * 4 * 16 * 16 * 8] * 2
    assert [op.dims for op in products] == [(16, 16, 8, 4), (16, 8, 16, 4)]
    assert not workload.fused_attention
    assert workload.graph.saved >= 4 * 16 * 16


@pytest.mark.parametrize(("cell", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_a_recurrent_layer_is_one_operation_over_all_its_steps(
    cell: type[nn.Module], gates: int
) -> None:
    inputs, hidden, steps = 6, 10, 20
    graph = trace_module(
        cell(inputs, hidden, 2, batch_first=True), torch.zeros(3, steps, inputs)
    ).graph
    first, second = ops_of(graph, OpKind.RECURRENT)
    assert first.flops == 2 * steps * gates * hidden * (inputs + hidden)
    assert second.flops == 2 * steps * gates * hidden * (hidden + hidden)
    assert first.launches == steps
    backward = sum(op.flops for op in ops_of(graph, OpKind.RECURRENT, Phase.BACKWARD))
    into_input = 2 * steps * gates * hidden * inputs
    assert backward == 2 * (first.flops + second.flops) - into_input
    rows = gates * hidden
    assert graph.params == rows * (inputs + hidden + 2) + rows * (2 * hidden + 2)


def test_an_embedding_reads_its_rows_and_owns_its_table() -> None:
    graph = trace_module(nn.Embedding(1000, 8), torch.zeros(4, 5, dtype=torch.long)).graph
    (op,) = ops_of(graph, OpKind.EMBEDDING)
    assert op.params == 8000
    assert op.weights == 0
    assert op.reads == 5 * 8 + 5 * 2  # eight bytes an index, four an element
    (backward,) = ops_of(graph, OpKind.EMBEDDING, Phase.BACKWARD)
    assert backward.weights == 8000  # the dense gradient is written whole, whatever the batch


def test_a_view_is_no_operation() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (2, 3)), nn.Flatten())
    graph = trace_module(net, torch.zeros(2, 4)).graph
    names = [op.name for op in graph.ops if op.phase is Phase.FORWARD]
    assert names == ["0.addmm", "sum"]


def test_edges_point_to_the_operation_that_wrote_the_memory() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
    ops = trace_module(net, torch.zeros(2, 4)).graph.ops
    assert [op.inputs for op in ops[:3]] == [(), (0,), (1,)]
    assert all(source < position for position, op in enumerate(ops) for source in op.inputs)


def test_dropout_keeps_a_mask_of_a_byte_an_element() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1))
    fp32 = trace_module(net, torch.zeros(2, 4)).graph.saved
    assert fp32 == 4 + 8 * 0.25
    assert trace_module(net, torch.zeros(2, 4), precision="bf16").graph.saved == 4 + 8 * 0.5


def test_a_tied_weight_counts_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(50, 8)
            self.head = nn.Linear(8, 50, bias=False)
            self.head.weight = self.table.weight

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.table(tokens))

    graph = trace_module(Tied(), torch.zeros(2, 5, dtype=torch.long)).graph
    assert graph.params == 400


def test_parameters_that_no_operation_reads_are_counted_all_the_same() -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = nn.Linear(4, 4), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    assert trace_module(Spare(), torch.zeros(2, 4)).graph.params == 20 + 72


def test_frozen_parameters_are_read_and_not_trained() -> None:
    net = nn.Sequential(nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 2, bias=False))
    workload = trace_module(net, torch.zeros(2, 8))
    assert (workload.graph.params, workload.graph.frozen) == (16 + 72, 72)
    assert workload.graph.ops[-1].reads == 4 * 16, "what AdamW updates"
    assert workload.graph.backward_flops == 2 * 8 * 2
    assert any("72 frozen" in note for note in workload.notes)


def test_recomputed_operations_stand_in_backward_and_save_nothing() -> None:
    from torch.utils.checkpoint import checkpoint

    class Saving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 400), nn.ReLU(), nn.Linear(400, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, x, use_reentrant=False)

    graph = trace_module(Saving(), torch.zeros(2, 4)).graph
    assert graph.saved == 4
    assert graph.backward_flops > 2 * 4 * 400 * 3


def test_the_optimizer_is_one_operation_over_all_parameters() -> None:
    graph = trace_module(nn.Linear(100, 100), torch.zeros(2, 100), optimizer="sgd").graph
    assert [op.name for op in graph.ops if op.phase is Phase.OPTIMIZER] == ["optimizer.sgd"]
    assert graph.total("writes", Phase.OPTIMIZER) == graph.params
