"""Tuning: adapters, frozen weights in 16 or 4 bits, and a reference, as graphs whose costs follow from them."""

from __future__ import annotations

from typing import Any

import pytest

from forerun.domain.graph import Phase
from forerun.domain.workload import Workload
from forerun.errors import RequestError
from forerun.workloads.resolve import described, workload
from forerun.workloads.transformer import TransformerSpec, transformer_workload

HIDDEN, HEADS, KV, FFN, LAYERS = 64, 4, 2, 160, 3
SPEC = TransformerSpec(
    layers=LAYERS, hidden=HIDDEN, heads=HEADS, kv_heads=KV, ffn=FFN, gated=True, vocab=100,
    seq_len=32, norm="rmsnorm", positions="rope", bias=False, tied=False,
)  # fmt: skip
# Inputs and outputs of each projection.
SIZES = {
    "q_proj": (HIDDEN, HIDDEN), "k_proj": (HIDDEN, HIDDEN // 2), "v_proj": (HIDDEN, HIDDEN // 2),
    "o_proj": (HIDDEN, HIDDEN), "gate_proj": (HIDDEN, FFN), "up_proj": (HIDDEN, FFN),
    "down_proj": (FFN, HIDDEN),
}  # fmt: skip


def small(**changes: Any) -> Workload:
    return described(transformer_workload(SPEC, "small"), changes)


def trained(found: Workload) -> float:
    return found.graph.params - found.graph.frozen


@pytest.mark.parametrize(
    ("targets", "names"),
    [
        ("all-linear", list(SIZES)),
        ("attention", ["q_proj", "k_proj", "v_proj", "o_proj"]),
        ("mlp", ["gate_proj", "up_proj", "down_proj"]),
        ("qv", ["q_proj", "v_proj"]),
        ("k_proj, down_proj", ["k_proj", "down_proj"]),
    ],
)
@pytest.mark.parametrize("rank", [1, 8])
def test_adapters_have_rank_times_inputs_and_outputs(
    targets: str, names: list[str], rank: int
) -> None:
    found = small(task="lora", lora_rank=rank, lora_targets=targets)
    assert trained(found) == LAYERS * rank * sum(sum(SIZES[name]) for name in names)
    assert found.graph.frozen == small().params
    update = found.graph.ops[-1]
    assert update.phase is Phase.OPTIMIZER
    assert update.reads == 4 * trained(found), (
        "weights, gradients and two states, of adapters alone"
    )


def test_a_zoo_model_has_the_adapters_that_peft_counts() -> None:
    """PEFT prints 4,194,304 trainable parameters for Llama 7B with rank 8 on queries and values."""
    assert trained(workload("llama2-7b", task="lora", lora_rank=8)) == 4_194_304


def test_what_is_frozen_has_no_gradients_of_weights() -> None:
    whole, lora = small(), small(task="lora", lora_rank=1, lora_targets="qv")
    weights = sum(op.flops * op.repeat for op in whole.graph.ops if op.name.endswith(".wgrad"))
    left = [op for op in lora.graph.ops if op.name.endswith(".wgrad") and ".lora_" not in op.name]
    assert not left
    spared = whole.graph.backward_flops - lora.graph.backward_flops
    assert spared == pytest.approx(weights, rel=0.02), "but for what adapters take"
    assert lora.graph.forward_flops > whole.graph.forward_flops


def test_four_bits_hold_linear_layers_and_are_made_wide_in_both_passes() -> None:
    found = small(task="qlora")
    linear = LAYERS * sum(a * b for a, b in SIZES.values())
    assert found.graph.quantized == linear
    assert trained(found) == LAYERS * 16 * sum(a + b for a, b in SIZES.values())
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        widened = [op for op in found.graph.ops if ".widen" in op.name and op.phase is phase]
        assert sum(op.weights * op.repeat for op in widened) == pytest.approx(1.26 * linear)
    assert any("in 4 bits" in note for note in found.notes)


def test_a_reference_scores_what_the_model_scores() -> None:
    whole, pairs = small(), small(task="dpo")
    forward = whole.graph.forward_flops
    more = sum(pairs.graph.total("flops", phase) for phase in Phase) - sum(
        whole.graph.total("flops", phase) for phase in Phase
    )
    assert more == pytest.approx(forward)
    assert pairs.graph.frozen == whole.params
    assert pairs.graph.params == 2 * whole.params
    adapted = small(task="dpo", lora_rank=8)
    assert adapted.graph.frozen == whole.params, "the reference is the model without adapters"
    assert any("a pair two of them" in note for note in pairs.notes)


def test_adapters_of_experts_are_one_each() -> None:
    spec = TransformerSpec(
        layers=1, hidden=64, heads=4, vocab=100, seq_len=32, experts=4, experts_per_token=2, ffn=96
    )
    moe = described(
        transformer_workload(spec, "moe"), {"task": "lora", "lora_rank": 2, "lora_targets": "mlp"}
    )
    assert trained(moe) == 4 * 2 * ((64 + 96) + (96 + 64))


@pytest.mark.parametrize(
    "name", ["deepseek-v3", "vit-l-16", "albert-base", "flan-t5-xl", "gpt-oss-20b"]
)
@pytest.mark.parametrize("task", ["lora", "qlora"])
def test_adapters_are_few_in_models_of_every_kind(name: str, task: str) -> None:
    found = workload(name, task=task)
    assert 0 < trained(found) < 0.03 * found.graph.frozen
    assert found.graph.quantized < found.graph.frozen


def test_totals_whose_layers_are_not_known_say_what_is_assumed() -> None:
    from forerun.workloads.columns import workload_from_columns

    found = workload_from_columns(
        {"workload": "own", "params": "100000000", "gmacs": "50", "seq_len": "128", "task": "lora"}
    )
    assert isinstance(found, Workload)
    assert trained(found) == pytest.approx(0.01 * found.params)
    assert any("assumed" in note for note in found.notes)


def test_columns_state_rank_and_targets() -> None:
    from forerun.workloads.columns import workload_from_columns

    row = {"workload": "llama2-7b", "task": "qlora", "lora_rank": "8", "lora_targets": "q_proj"}
    found = workload_from_columns(row)
    assert isinstance(found, Workload)
    assert trained(found) == 32 * 8 * 2 * 4096
    assert workload_from_columns({**row, "lora_rank": "5000"}) == (
        "llama2-7b with LoRA of rank 5000: layer.attention.qkv is 4096 wide;"
        " give a rank of at most 4096"
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task": "lora", "lora_rank": 65}, "rank of at most"),
        ({"task": "lora", "lora_targets": "k"}, "no such target"),
        ({"lora_rank": 8}, "add --task lora"),
        ({"task": "finetune", "lora_targets": "qv"}, "add --task lora"),
        ({"task": "adapters"}, "no such task"),
    ],
)
def test_what_cannot_be_adapted_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        workload_of(changes)


def workload_of(changes: dict[str, Any]) -> Workload:
    from forerun.workloads.resolve import checked_changes

    return described(transformer_workload(SPEC, "small"), checked_changes(changes))


def test_networks_without_such_layers_are_refused() -> None:
    with pytest.raises(RequestError, match=r"no linear layers in repeated blocks.*task finetune"):
        workload("resnet50", task="lora")
    with pytest.raises(RequestError, match="no sequences to prefer"):
        workload("resnet50", task="dpo")
    with pytest.raises(RequestError, match="adapt q_proj, k_proj, v_proj, o_proj, up_proj"):
        workload("gpt2-xl", task="lora", lora_targets="gate_proj")


def test_a_workload_is_adapted_once() -> None:
    once = small(task="lora")
    assert described(once, {}).graph is once.graph
    with pytest.raises(RequestError, match="adapted already"):
        described(once, {"lora_rank": 4})


def test_each_target_must_be_a_layer_and_groups_stand_in_lists() -> None:
    with pytest.raises(RequestError, match=r"LoRA on gate_proj.*no such linear layer"):
        workload("gpt2-xl", task="lora", lora_targets="up_proj,gate_proj")
    with pytest.raises(RequestError, match="LoRA on q_a_proj"):
        small(task="lora", lora_targets="q_proj,q_a_proj")
    both = small(task="lora", lora_targets="q_proj,mlp")
    assert trained(both) == trained(small(task="lora", lora_targets="q_proj")) + trained(
        small(task="lora", lora_targets="mlp")
    )
    assert trained(small(task="lora", lora_targets="q_proj,all-linear")) == trained(
        small(task="lora", lora_targets="all-linear")
    )


def test_a_workload_says_what_was_adapted() -> None:
    found = small(task="lora", lora_rank=4)
    assert (found.lora_rank, found.lora_targets) == (4, "qv")
    assert (small(task="finetune").lora_rank, small().lora_targets) == (0, "")


def test_totals_have_no_rank_and_no_weights_in_4_bits() -> None:
    from forerun.workloads.columns import workload_from_columns

    row = {"workload": "own", "params": "100000000", "gmacs": "50", "seq_len": "128"}
    for more, words in (
        ({"task": "lora", "lora_rank": "8"}, "LoRA's rank: its layers are not known"),
        ({"task": "qlora"}, "weights in 4 bits: its layers are not known"),
    ):
        found = workload_from_columns({**row, **more})
        assert isinstance(found, str)
        assert words in found


def test_a_module_that_freezes_itself_has_a_reference_and_no_4_bits() -> None:
    torch = pytest.importorskip("torch")
    from forerun.workloads.resolve import module_workload

    def module() -> object:
        body = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).requires_grad_(False)
        return torch.nn.Sequential(torch.nn.Embedding(10, 16), body, torch.nn.Linear(16, 10))

    tokens = torch.zeros(2, 8, dtype=torch.long)
    plain = module_workload(module(), tokens, {"task": "lora"})
    assert plain.graph.frozen > 0
    with pytest.raises(RequestError, match=r"weights in 4 bits.*freezes parameters itself"):
        module_workload(module(), tokens, {"task": "qlora"})
    pairs = module_workload(module(), tokens, {"task": "dpo"})
    assert pairs.graph.frozen == plain.graph.frozen, "the same weights without adapters"
    assert any(op.name.startswith("reference.") for op in pairs.graph.ops)
