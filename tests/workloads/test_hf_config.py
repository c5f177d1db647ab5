"""HuggingFace configurations become workloads, whatever they call their fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forerun.errors import RequestError
from forerun.workloads.hf_config import workload_from_hf_config
from forerun.workloads.zoo import zoo_workload

LLAMA3_8B: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "vocab_size": 128256, "max_position_embeddings": 8192, "tie_word_embeddings": False,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257,
        "n_positions": 1024, "resid_pdrop": 0.1}  # fmt: skip
KNOWN: tuple[tuple[str, dict[str, Any]], ...] = (
    ("llama3-8b", LLAMA3_8B),
    ("gpt2", GPT2),
    ("bert-base", {
        "model_type": "bert", "hidden_size": 768, "num_hidden_layers": 12,
        "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 30522,
        "max_position_embeddings": 512, "type_vocab_size": 2,
    }),
    ("t5-base", {
        "model_type": "t5", "d_model": 768, "num_layers": 12, "num_heads": 12, "d_ff": 3072,
        "d_kv": 64, "vocab_size": 32128, "n_positions": 512,
        "relative_attention_num_buckets": 32,
    }),
    ("mixtral-8x7b", {
        "model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
        "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
        "max_position_embeddings": 32768, "sliding_window": None, "tie_word_embeddings": False,
    }),
    ("qwen3-30b-a3b", {
        "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
        "num_experts_per_tok": 8, "vocab_size": 151936, "tie_word_embeddings": False,
        "decoder_sparse_step": 1,
    }),
    ("qwen2.5-7b", {
        "model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28,
        "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944,
        "vocab_size": 152064, "tie_word_embeddings": False, "use_sliding_window": False,
        "sliding_window": 131072,
    }),
    ("deepseek-v3", {
        "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61,
        "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536,
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
        "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
        "num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 3,
        "moe_layer_freq": 1, "vocab_size": 129280, "tie_word_embeddings": False,
    }),
    ("bloom-7b1", {"model_type": "bloom", "hidden_size": 4096, "n_layer": 30, "n_head": 32,
                   "vocab_size": 250880}),
    ("opt-350m", {
        "model_type": "opt", "hidden_size": 1024, "num_hidden_layers": 24,
        "num_attention_heads": 16, "ffn_dim": 4096, "vocab_size": 50272,
        "word_embed_proj_dim": 512, "do_layer_norm_before": False,
        "max_position_embeddings": 2048,
    }),
    ("falcon-7b", {
        "model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32,
        "num_attention_heads": 71, "vocab_size": 65024, "multi_query": True,
        "parallel_attn": True, "bias": False,
    }),
    ("gemma2-2b", {
        "model_type": "gemma2", "hidden_size": 2304, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "intermediate_size": 9216, "vocab_size": 256000, "sliding_window": 4096,
    }),
    ("phi-2", {
        "model_type": "phi", "hidden_size": 2560, "num_hidden_layers": 32,
        "num_attention_heads": 32, "intermediate_size": 10240, "vocab_size": 51200,
    }),
)  # fmt: skip


@pytest.mark.parametrize(("name", "config"), KNOWN, ids=[k[0] for k in KNOWN])
def test_a_configuration_has_the_parameters_of_the_model_it_describes(
    name: str, config: dict[str, Any]
) -> None:
    found = workload_from_hf_config(config)
    assert found.params == pytest.approx(zoo_workload(name).params, rel=0.002)


def test_a_file_and_its_folder_are_read_alike(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GPT2))
    by_file = workload_from_hf_config(tmp_path / "config.json")
    assert by_file.params == workload_from_hf_config(str(tmp_path)).params
    assert by_file.name == tmp_path.name


def test_a_vision_transformer_becomes_an_image_workload() -> None:
    config = {"model_type": "vit", "hidden_size": 768, "num_hidden_layers": 12,
              "num_attention_heads": 12, "intermediate_size": 3072, "image_size": 224,
              "patch_size": 16, "num_labels": 1000}  # fmt: skip
    found = workload_from_hf_config(config)
    assert found.params == pytest.approx(86.57e6, rel=0.002)
    assert found.graph.forward_flops / 2e9 == pytest.approx(17.5, rel=0.02)
    assert (found.sample, found.image_size) == ("image", 224)


def test_an_unknown_model_type_with_the_usual_fields_works_and_says_so() -> None:
    found = workload_from_hf_config({**LLAMA3_8B, "model_type": "newcomer"})
    assert any("newcomer" in note for note in found.notes)


def test_a_long_context_is_not_trained_at_full_length_unless_asked() -> None:
    long = {**LLAMA3_8B, "max_position_embeddings": 131072}
    assert workload_from_hf_config(long).seq_len == 8192
    assert workload_from_hf_config(long, seq_len=131072).seq_len == 131072


def test_all_missing_fields_are_listed_at_once() -> None:
    with pytest.raises(RequestError, match=r"num_hidden_layers.*vocab_size"):
        workload_from_hf_config({"model_type": "llama", "hidden_size": 64,
                                 "num_attention_heads": 4})  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_attention_heads", 33), ("hidden_size", -4096), ("num_hidden_layers", "many"),
     ("vocab_size", 1.5), ("num_key_value_heads", 7)],
)  # fmt: skip
def test_an_absurd_value_is_refused(field: str, value: object) -> None:
    with pytest.raises(RequestError):
        workload_from_hf_config({**LLAMA3_8B, field: value})


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '"llama"'])
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(RequestError, match=r"config\.json"):
        workload_from_hf_config(tmp_path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="there is no such file"):
        workload_from_hf_config(tmp_path / "none.json")


def test_a_length_that_is_given_is_not_warned_of() -> None:
    config = {"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2,
              "num_attention_heads": 4, "intermediate_size": 512, "vocab_size": 1000,
              "max_position_embeddings": 131072}  # fmt: skip
    assert any("8192" in note for note in workload_from_hf_config(config).notes)
    given = workload_from_hf_config(config, seq_len=4096)
    assert given.seq_len == 4096
    assert not any("8192" in note for note in given.notes)
