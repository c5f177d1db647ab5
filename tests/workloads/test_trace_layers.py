"""Repeated layers are found in a traced module, written once, and labelled for parallel plans."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="tracing needs the torch extra: pip install torch")

from torch import nn  # noqa: E402 - torch may be missing, and then nothing here is collected
from torch.nn import functional as F  # noqa: E402, N812 - torch's own name for it

from forerun.domain.graph import Block, OpKind, Phase, Shard  # noqa: E402 - as above
from forerun.domain.workload import Workload  # noqa: E402 - as above
from forerun.workloads.trace import trace_module  # noqa: E402 - as above

LAYERS, HIDDEN, HEADS, KV_HEADS, FFN, VOCAB, TOKENS = 5, 64, 8, 2, 192, 300, 16


class Layer(nn.Module):
    """A pre-norm layer with grouped attention, rotary angles and a gated feed-forward part."""

    def __init__(self) -> None:
        super().__init__()
        self.size = HIDDEN // HEADS
        self.norm, self.norm2 = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        self.query = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.key = nn.Linear(HIDDEN, KV_HEADS * self.size, bias=False)
        self.value = nn.Linear(HIDDEN, KV_HEADS * self.size, bias=False)
        self.out = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.gate, self.up = nn.Linear(HIDDEN, FFN, bias=False), nn.Linear(HIDDEN, FFN, bias=False)
        self.down = nn.Linear(FFN, HIDDEN, bias=False)

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (-1, self.size)).transpose(1, 2)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        query, key = self.heads(self.query(y)) * angles, self.heads(self.key(y)) * angles
        mixed = F.scaled_dot_product_attention(
            query, key, self.heads(self.value(y)), is_causal=True, enable_gqa=True
        )
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    """A small language model."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(HIDDEN), nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        angles = torch.arange(tokens.shape[1]).float().cos()[:, None]
        for layer in self.layers:
            x = layer(x, angles)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


@pytest.fixture(scope="module")
def traced() -> Workload:
    return trace_module(Model(), torch.zeros(2, TOKENS, dtype=torch.long))


def test_the_dimensions_that_plans_divide_are_found(traced: Workload) -> None:
    shape = traced.shape
    assert (shape.layers, shape.hidden, shape.ffn, shape.vocab) == (LAYERS, HIDDEN, FFN, VOCAB)
    assert (shape.heads, shape.kv_heads) == (HEADS, KV_HEADS)


def test_equal_layers_are_written_once_and_nothing_is_lost(traced: Workload) -> None:
    inside = [op for op in traced.graph.ops if op.block is Block.LAYER and "layers" in op.name]
    assert {op.repeat for op in inside} == {LAYERS}
    assert all(op.name.startswith("layers.*.") for op in inside)
    size = HIDDEN // HEADS
    layer = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * KV_HEADS * size + 3 * HIDDEN * FFN
    matrices = LAYERS * layer + VOCAB * HIDDEN
    attention = LAYERS * 2 * TOKENS * TOKENS * HIDDEN
    assert traced.graph.forward_flops == 2 * TOKENS * matrices + attention
    assert traced.graph.params == sum(p.numel() for p in Model().parameters())


def test_what_stands_before_and_after_the_layers_is_told(traced: Workload) -> None:
    forward = [op for op in traced.graph.ops if op.phase is Phase.FORWARD]
    blocks = [op.block for op in forward]
    assert blocks == sorted(blocks, key=list(Block).index)
    assert forward[0].kind is OpKind.EMBEDDING
    assert forward[0].block is Block.EMBED
    head = [op for op in traced.graph.ops if op.name.startswith("head.")]
    assert {op.block for op in head} == {Block.HEAD}
    assert {op.phase for op in head} == {Phase.FORWARD, Phase.BACKWARD}


def test_tensor_parallelism_divides_what_it_would_in_megatron(traced: Workload) -> None:
    labels = {
        op.name.removeprefix("layers.*."): op.shard
        for op in traced.graph.ops
        if op.phase is Phase.FORWARD and op.block is Block.LAYER
    }
    products = [name for name in labels if name.endswith((".mm", "attention"))]
    assert len(products) == 8
    assert {labels[name] for name in products} == {Shard.TENSOR}
    assert labels["silu"] is Shard.TENSOR
    assert {labels[name] for name in labels if "norm" in name} == {Shard.SEQUENCE}
    assert labels["add"] is Shard.SEQUENCE


def test_edges_of_folded_layers_point_backward(traced: Workload) -> None:
    for position, op in enumerate(traced.graph.ops):
        assert all(source < position for source in op.inputs)


def test_a_layer_that_mixes_whole_and_divided_values_is_not_labelled() -> None:
    class Mixing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(HIDDEN, HIDDEN)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            heads = self.linear(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            mixed = F.scaled_dot_product_attention(heads, heads, heads)
            return x * mixed.transpose(1, 2).flatten(2)

    net = nn.Sequential(Mixing(), Mixing())
    workload = trace_module(net, torch.zeros(2, TOKENS, HIDDEN))
    assert workload.shape.layers == 2
    assert workload.shape.heads == 0
    assert {op.shard for op in workload.graph.ops} == {Shard.NONE}


def test_a_plain_stack_of_operators_has_no_layers() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    workload = trace_module(net, torch.zeros(2, 8))
    assert workload.shape.layers == 0
    assert {op.repeat for op in workload.graph.ops} == {1}


def test_layers_of_different_sizes_are_counted_and_not_merged() -> None:
    class Wide(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.inner = nn.Linear(8, width)
            self.outer = nn.Linear(width, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.outer(self.inner(x))

    workload = trace_module(nn.Sequential(Wide(16), Wide(32)), torch.zeros(2, 8))
    assert workload.shape.layers == 2
    assert {op.repeat for op in workload.graph.ops} == {1}
    assert workload.graph.forward_flops == 2 * 2 * 8 * (16 + 32)


def test_encoder_and_decoder_layers_are_both_layers() -> None:
    net = nn.Transformer(32, 4, 2, 3, 64, batch_first=True)
    workload = trace_module(net, (torch.zeros(2, 6, 32), torch.zeros(2, 5, 32)))
    assert workload.shape.layers == 5
