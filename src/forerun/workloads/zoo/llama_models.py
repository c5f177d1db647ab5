"""Llama and its kin: gated transformers with rotary positions, dense, as published."""

from __future__ import annotations

from forerun.workloads.transformer import LLAMA
from forerun.workloads.zoo.entry import Entry
from forerun.workloads.zoo.model import Model, entries, models

_LLAMA3 = {**LLAMA, "vocab": 128256, "seq_len": 8192, "kv_heads": 8}
_QWEN2 = {**LLAMA, "vocab": 151936, "seq_len": 4096, "qkv_bias": True}
_QWEN3 = {
    **LLAMA, "vocab": 151936, "seq_len": 4096, "qk_norm": True, "head_dim": 128, "kv_heads": 8,
}  # fmt: skip
_GEMMA = {**LLAMA, "vocab": 256000, "seq_len": 8192, "tied": True, "head_dim": 256}
_GEMMA2 = {**_GEMMA, "norms": 4, "window": 4096, "global_every": 2}
_GEMMA3 = {
    **_GEMMA, "vocab": 262144, "norms": 4, "window": 1024, "global_every": 6, "qk_norm": True,
}  # fmt: skip

MODELS: tuple[Model, ...] = (
    *models(
        "llama", "Touvron et al. 2023, table 2", {**LLAMA, "vocab": 32000, "seq_len": 2048},
        (
            ("llama-7b", 32, 4096, 32, {"ffn": 11008}),
            ("llama-13b", 40, 5120, 40, {"ffn": 13824}),
            ("llama-33b", 60, 6656, 52, {"ffn": 17920}),
            ("llama-65b", 80, 8192, 64, {"ffn": 22016}),
        ),
        {"llama-7b": ("llama1-7b",), "llama-13b": ("llama1-13b",),
         "llama-33b": ("llama-30b", "llama1-33b"), "llama-65b": ("llama1-65b",)},
        default_global_batch=2048,
    ),
    *models(
        "llama", "Touvron et al. 2023 (Llama 2); published configurations",
        {**LLAMA, "vocab": 32000, "seq_len": 4096},
        (
            ("llama2-7b", 32, 4096, 32, {"ffn": 11008}),
            ("llama2-13b", 40, 5120, 40, {"ffn": 13824}),
            ("llama2-70b", 80, 8192, 64, {"ffn": 28672, "kv_heads": 8}),
        ),
        {"llama2-7b": ("llama-2-7b",), "llama2-13b": ("llama-2-13b",),
         "llama2-70b": ("llama-2-70b",)},
        default_global_batch=1024,
    ),
    *models(
        "llama", "Grattafiori et al. 2024, table 3", _LLAMA3,
        (
            ("llama3-8b", 32, 4096, 32, {"ffn": 14336}),
            ("llama3-70b", 80, 8192, 64, {"ffn": 28672}),
            ("llama3.1-8b", 32, 4096, 32, {"ffn": 14336}),
            ("llama3.1-70b", 80, 8192, 64, {"ffn": 28672}),
            ("llama3.1-405b", 126, 16384, 128, {"ffn": 53248}),
        ),
        {"llama3-8b": ("llama-3-8b",), "llama3-70b": ("llama-3-70b",),
         "llama3.1-8b": ("llama-3.1-8b",), "llama3.1-70b": ("llama-3.1-70b", "llama3.3-70b"),
         "llama3.1-405b": ("llama-3.1-405b", "llama3-405b")},
        default_global_batch=512,
    ),
    *models(
        "llama", "Llama 3.2 published configurations", {**_LLAMA3, "tied": True},
        (
            ("llama3.2-1b", 16, 2048, 32, {"ffn": 8192}),
            ("llama3.2-3b", 28, 3072, 24, {"ffn": 8192}),
        ),
        {"llama3.2-1b": ("llama-3.2-1b",), "llama3.2-3b": ("llama-3.2-3b",)},
        default_global_batch=512,
    ),
    *models(
        "mistral", "Jiang et al. 2023, table 1; published configurations",
        {**LLAMA, "vocab": 32000, "seq_len": 8192, "kv_heads": 8, "ffn": 14336},
        (
            ("mistral-7b", 32, 4096, 32, {"window": 4096}),
            ("mistral-nemo-12b", 40, 5120, 32, {"head_dim": 128, "vocab": 131072}),
        ),
        {"mistral-7b": ("mistral-7b-v0.1",)}, default_global_batch=512,
    ),
    *models(
        "qwen2", "Qwen2.5 technical report, table 1; published configurations", _QWEN2,
        (
            ("qwen2.5-0.5b", 24, 896, 14, {"ffn": 4864, "kv_heads": 2, "tied": True}),
            ("qwen2.5-1.5b", 28, 1536, 12, {"ffn": 8960, "kv_heads": 2, "tied": True}),
            ("qwen2.5-3b", 36, 2048, 16, {"ffn": 11008, "kv_heads": 2, "tied": True}),
            ("qwen2.5-7b", 28, 3584, 28, {"ffn": 18944, "kv_heads": 4, "vocab": 152064}),
            ("qwen2.5-14b", 48, 5120, 40, {"ffn": 13824, "kv_heads": 8, "vocab": 152064}),
            ("qwen2.5-32b", 64, 5120, 40, {"ffn": 27648, "kv_heads": 8, "vocab": 152064}),
            ("qwen2.5-72b", 80, 8192, 64, {"ffn": 29568, "kv_heads": 8, "vocab": 152064}),
        ),
        default_global_batch=1024,
    ),
    *models(
        "qwen3", "Qwen3 technical report, table 1; published configurations", _QWEN3,
        (
            ("qwen3-0.6b", 28, 1024, 16, {"ffn": 3072, "tied": True}),
            ("qwen3-1.7b", 28, 2048, 16, {"ffn": 6144, "tied": True}),
            ("qwen3-4b", 36, 2560, 32, {"ffn": 9728, "tied": True}),
            ("qwen3-8b", 36, 4096, 32, {"ffn": 12288}),
            ("qwen3-14b", 40, 5120, 40, {"ffn": 17408}),
            ("qwen3-32b", 64, 5120, 64, {"ffn": 25600}),
        ),
        default_global_batch=1024,
    ),
    *models(
        "gemma", "Gemma technical report, table 1", _GEMMA,
        (
            ("gemma-2b", 18, 2048, 8, {"ffn": 16384, "kv_heads": 1}),
            ("gemma-7b", 28, 3072, 16, {"ffn": 24576}),
        ),
        default_global_batch=512,
    ),
    *models(
        "gemma2", "Gemma 2 technical report, table 1", _GEMMA2,
        (
            ("gemma2-2b", 26, 2304, 8, {"ffn": 9216, "kv_heads": 4}),
            ("gemma2-9b", 42, 3584, 16, {"ffn": 14336, "kv_heads": 8}),
            ("gemma2-27b", 46, 4608, 32, {"ffn": 36864, "kv_heads": 16, "head_dim": 128}),
        ),
        {"gemma2-2b": ("gemma-2-2b",), "gemma2-9b": ("gemma-2-9b",),
         "gemma2-27b": ("gemma-2-27b",)},
        default_global_batch=512,
    ),
    *models(
        "gemma3", "Gemma 3 technical report, table 1 (the language part)", _GEMMA3,
        (
            ("gemma3-1b", 26, 1152, 4, {"ffn": 6912, "kv_heads": 1, "window": 512}),
            ("gemma3-4b", 34, 2560, 8, {"ffn": 10240, "kv_heads": 4}),
            ("gemma3-12b", 48, 3840, 16, {"ffn": 15360, "kv_heads": 8}),
            ("gemma3-27b", 62, 5376, 32, {"ffn": 21504, "kv_heads": 16, "head_dim": 128}),
        ),
        {"gemma3-1b": ("gemma-3-1b",), "gemma3-4b": ("gemma-3-4b",),
         "gemma3-12b": ("gemma-3-12b",), "gemma3-27b": ("gemma-3-27b",)},
        default_global_batch=512,
    ),
    *models(
        "phi3", "Phi-3 and Phi-4 technical reports; published configurations",
        {**LLAMA, "seq_len": 4096},
        (
            ("phi-3-mini", 32, 3072, 32, {"ffn": 8192, "vocab": 32064}),
            ("phi-3-medium", 40, 5120, 40, {"ffn": 17920, "vocab": 32064, "kv_heads": 10}),
            ("phi-4", 40, 5120, 40, {"ffn": 17920, "vocab": 100352, "kv_heads": 10}),
        ),
        {"phi-3-mini": ("phi3-mini", "phi-3-mini-4k"), "phi-3-medium": ("phi3-medium",),
         "phi-4": ("phi4",)},
        default_global_batch=1024,
    ),
)  # fmt: skip
ENTRIES: dict[str, Entry] = entries(MODELS)
