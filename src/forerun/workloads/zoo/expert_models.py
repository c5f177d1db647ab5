"""Mixtures of experts: Mixtral, Qwen3, DeepSeek and gpt-oss, as published."""

from __future__ import annotations

from forerun.workloads.transformer import LLAMA
from forerun.workloads.zoo.entry import Entry
from forerun.workloads.zoo.model import Model, entries, models

_MIXTRAL = {**LLAMA, "seq_len": 4096, "kv_heads": 8, "experts": 8, "experts_per_token": 2}
_QWEN3 = {
    **LLAMA, "vocab": 151936, "seq_len": 4096, "qk_norm": True, "head_dim": 128, "kv_heads": 4,
    "experts": 128, "experts_per_token": 8,
}  # fmt: skip
_DEEPSEEK = {
    **LLAMA, "seq_len": 4096, "kv_lora_rank": 512, "rope_dim": 64, "nope_dim": 128, "v_dim": 128,
}  # fmt: skip
_V3 = {
    **_DEEPSEEK, "vocab": 129280, "q_lora_rank": 1536, "ffn": 18432, "dense_layers": 3,
    "experts": 256, "experts_per_token": 8, "shared_experts": 1, "expert_ffn": 2048,
}  # fmt: skip
_OSS = {
    **LLAMA, "vocab": 201088, "seq_len": 4096, "bias": True, "kv_heads": 8, "head_dim": 64,
    "experts_per_token": 4, "ffn": 2880, "window": 128, "global_every": 2,
}  # fmt: skip

MODELS: tuple[Model, ...] = (
    *models(
        "mixtral", "Jiang et al. 2024, table 1; published configurations", _MIXTRAL,
        (
            ("mixtral-8x7b", 32, 4096, 32, {"ffn": 14336, "vocab": 32000}),
            ("mixtral-8x22b", 56, 6144, 48, {"ffn": 16384, "vocab": 32000}),
        ),
        default_global_batch=1024,
    ),
    *models(
        "qwen3_moe", "Qwen3 technical report, table 2; published configurations", _QWEN3,
        (
            ("qwen3-30b-a3b", 48, 2048, 32, {"ffn": 6144, "expert_ffn": 768}),
            ("qwen3-235b-a22b", 94, 4096, 64, {"ffn": 12288, "expert_ffn": 1536}),
        ),
        {"qwen3-30b-a3b": ("qwen3-30b-a3b-tokendrop",),
         "qwen3-235b-a22b": ("qwen3-235b-a22b-tokendrop",)},
        default_global_batch=1024,
    ),
    *models(
        "deepseek", "DeepSeek-V3 technical report, section 4.2", _V3,
        (
            ("deepseek-v3", 61, 7168, 128, {}),
            ("deepseek-v3-mtp", 61, 7168, 128, {"predict_layers": 1}),
        ),
        {"deepseek-v3": ("deepseekv3", "deepseek-v3-671b", "deepseekv3-w-o-mtp",
                         "deepseekv3-dropless", "deepseekv3-tokendrop"),
         "deepseek-v3-mtp": ("deepseekv3-w-mtp",)},
        default_global_batch=2048,
    ),
    *models(
        "deepseek", "DeepSeek-V2, section 3.1.2 and appendix B",
        {**_DEEPSEEK, "vocab": 102400, "dense_layers": 1, "experts_per_token": 6,
         "shared_experts": 2},
        (
            ("deepseek-v2-lite", 27, 2048, 16, {"ffn": 10944, "experts": 64, "expert_ffn": 1408}),
            ("deepseek-v2", 60, 5120, 128,
             {"ffn": 12288, "experts": 160, "expert_ffn": 1536, "q_lora_rank": 1536}),
        ),
        default_global_batch=1024,
    ),
    *models(
        "gpt_oss", "gpt-oss model card, table 1; published configurations", _OSS,
        (
            ("gpt-oss-20b", 24, 2880, 64, {"experts": 32}),
            ("gpt-oss-120b", 36, 2880, 64, {"experts": 128}),
        ),
        default_global_batch=1024,
    ),
)  # fmt: skip
ENTRIES: dict[str, Entry] = entries(MODELS)
