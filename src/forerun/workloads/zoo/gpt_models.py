"""GPT and its kin: ungated transformers with layer normalisation, as published."""

from __future__ import annotations

from forerun.workloads.transformer import GPT
from forerun.workloads.zoo.entry import Entry
from forerun.workloads.zoo.model import Model, entries, models

_MEGATRON = {**GPT, "vocab": 51200, "seq_len": 2048, "fused_attention": False}
_OPT = {"vocab": 50272, "seq_len": 2048, "max_positions": 2050, "dropout": 0.1}
_BLOOM = {"vocab": 250880, "seq_len": 2048, "positions": "alibi", "embedding_norm": True}
_MPT = {"vocab": 50368, "seq_len": 2048}
_NEMOTRON = {
    "vocab": 256000, "seq_len": 4096, "positions": "rope", "bias": False, "tied": False,
}  # fmt: skip
_FALCON = {
    "vocab": 65024, "seq_len": 2048, "positions": "rope", "bias": False, "parallel": True,
}  # fmt: skip
_PHI = {
    "vocab": 51200, "seq_len": 2048, "positions": "rope", "tied": False, "head_bias": True,
    "parallel": True, "norms": 1,
}  # fmt: skip

MODELS: tuple[Model, ...] = (
    *models(
        "gpt2", "Radford et al. 2019; published gpt2 configurations",
        {**GPT, "vocab": 50257, "seq_len": 1024},
        (
            ("gpt2", 12, 768, 12, {}),
            ("gpt2-medium", 24, 1024, 16, {}),
            ("gpt2-large", 36, 1280, 20, {}),
            ("gpt2-xl", 48, 1600, 25, {}),
        ),
        {"gpt2": ("gpt2-small", "gpt2-124m"), "gpt2-medium": ("gpt2-355m",),
         "gpt2-large": ("gpt2-774m",), "gpt2-xl": ("gpt2-1.5b",)},
        precision="fp16", default_global_batch=512,
    ),
    *models(
        "gpt3", "Brown et al. 2020, table 2.1 (head counts made to divide the width)",
        {**GPT, "vocab": 50257, "seq_len": 2048},
        (
            ("gpt3-125m", 12, 768, 12, {}),
            ("gpt3-350m", 24, 1024, 16, {}),
            ("gpt3-760m", 24, 1536, 16, {}),
            ("gpt3-1.3b", 24, 2048, 16, {}),
            ("gpt3-2.7b", 32, 2560, 32, {}),
            ("gpt3-6.7b", 32, 4096, 32, {}),
            ("gpt3-13b", 40, 5120, 40, {}),
        ),
        {"gpt3-125m": ("gpt3-small",), "gpt3-350m": ("gpt3-medium",),
         "gpt3-760m": ("gpt3-large",), "gpt3-1.3b": ("gpt3-xl",)},
        default_global_batch=256,
    ),
    *models(
        "gpt3", "Brown et al. 2020, table 2.1; vocabulary padded to 51,200 as Megatron does",
        {**GPT, "vocab": 51200, "seq_len": 2048},
        (
            ("gpt3-5b", 24, 4096, 32, {}),
            ("gpt3-20b", 44, 6144, 48, {}),
            ("gpt3-175b", 96, 12288, 96, {}),
        ),
        {"gpt3-175b": ("gpt3", "gpt-3", "gpt-174.6b", "gpt-175b")},
        default_global_batch=1536,
    ),
    *models(
        "gpt3", "MLCommons Training v3.0, GPT-3 reference", _MEGATRON | {"fused_attention": True},
        (("mlperf-gpt3", 96, 12288, 96, {}),),
        optimizer="adam", dataset="C4 (MLPerf subset)", default_global_batch=1536,
    ),
    *models(
        "megatron-gpt", "Narayanan et al. 2021, table 1", _MEGATRON,
        (
            ("gpt-1.7b", 24, 2304, 24, {}),
            ("gpt-3.6b", 30, 3072, 32, {}),
            ("gpt-7.5b", 36, 4096, 32, {}),
            ("gpt-18.4b", 40, 6144, 48, {}),
            ("gpt-39.1b", 48, 8192, 64, {}),
            ("gpt-76.1b", 60, 10240, 80, {}),
            ("gpt-145.6b", 80, 12288, 96, {}),
            ("gpt-310.1b", 96, 16384, 128, {}),
            ("gpt-1008b", 128, 25600, 160, {}),
        ),
        {"gpt-1008b": ("gpt-1008.0b", "megatron-1t", "gpt-1t")},
        precision="fp16", default_global_batch=1536,
    ),
    *models(
        "megatron-gpt", "Korthikanti et al. 2022, table 3", _MEGATRON,
        (("gpt3-22b", 48, 6144, 64, {}),),
        {"gpt3-22b": ("megatron-22b", "gpt-22b")}, precision="fp16", default_global_batch=4,
    ),
    *models(
        "megatron-gpt", "Smith et al. 2022 (MT-NLG), section 2", _MEGATRON,
        (("mt-nlg-530b", 105, 20480, 128, {}),),
        {"mt-nlg-530b": ("turing-530b", "megatron-530b", "mtnlg-530b", "gpt-529.6b")},
        default_global_batch=1920,
    ),
    *models(
        "gptj", "EleutherAI gpt-j-6b configuration",
        {"vocab": 50400, "seq_len": 2048, "positions": "rope", "parallel": True, "norms": 1,
         "tied": False, "qkv_bias": False, "head_bias": True},
        (("gpt-j-6b", 28, 4096, 16, {}),), {"gpt-j-6b": ("gptj-6b", "gpt-j")},
        default_global_batch=256,
    ),
    *models(
        "gpt_neox", "Black et al. 2022; gpt-neox-20b configuration",
        {"vocab": 50432, "seq_len": 2048, "positions": "rope", "parallel": True, "tied": False},
        (("gpt-neox-20b", 44, 6144, 64, {}),), {"gpt-neox-20b": ("gpt-neox",)},
        default_global_batch=1536,
    ),
    *models(
        "opt", "Zhang et al. 2022, table 1; published configurations", _OPT,
        (
            ("opt-125m", 12, 768, 12, {}),
            ("opt-350m", 24, 1024, 16, {"embedding_size": 512, "final_norm": False}),
            ("opt-1.3b", 24, 2048, 32, {}),
            ("opt-2.7b", 32, 2560, 32, {}),
            ("opt-6.7b", 32, 4096, 32, {}),
            ("opt-13b", 40, 5120, 40, {}),
            ("opt-30b", 48, 7168, 56, {}),
            ("opt-66b", 64, 9216, 72, {}),
            ("opt-175b", 96, 12288, 96, {}),
        ),
        precision="fp16", default_global_batch=1024,
    ),
    *models(
        "bloom", "BigScience 2022; published configurations", _BLOOM,
        (
            ("bloom-560m", 24, 1024, 16, {}),
            ("bloom-1b1", 24, 1536, 16, {}),
            ("bloom-1b7", 24, 2048, 16, {}),
            ("bloom-3b", 30, 2560, 32, {}),
            ("bloom-7b1", 30, 4096, 32, {}),
            ("bloom-176b", 70, 14336, 112, {}),
        ),
        {"bloom-176b": ("bloom",)}, default_global_batch=2048,
    ),
    *models(
        "mpt", "llm-foundry benchmark configurations (learned positions as long as the sequence)",
        _MPT,
        (
            ("mpt-125m", 12, 768, 12, {}),
            ("mpt-350m", 24, 1024, 16, {}),
            ("mpt-760m", 24, 1536, 12, {}),
            ("mpt-1b", 24, 2048, 16, {}),
            ("mpt-3b", 32, 2560, 20, {}),
            ("mpt-7b", 32, 4096, 32, {}),
            ("mpt-13b", 40, 5120, 40, {}),
            ("mpt-30b", 48, 7168, 56, {}),
            ("mpt-70b", 80, 8192, 64, {}),
        ),
        default_global_batch=1024,
    ),
    *models(
        "nemotron", "Nemotron-4 340B technical report, table 1; NeMo recipes", _NEMOTRON,
        (
            ("nemotron-8b", 32, 4096, 32, {}),
            ("nemotron-22b", 40, 6144, 48, {}),
            ("nemotron-4-15b", 32, 6144, 48, {"kv_heads": 8}),
            ("nemotron-340b", 96, 18432, 96, {"kv_heads": 8}),
        ),
        {"nemotron-340b": ("nemotron-4-340b",), "nemotron-8b": ("nemotron-3-8b",)},
        default_global_batch=1024,
    ),
    *models(
        "falcon", "Almazrouei et al. 2023; published configurations", _FALCON,
        (
            ("falcon-7b", 32, 4544, 71, {"kv_heads": 1, "norms": 1}),
            ("falcon-40b", 60, 8192, 128, {"kv_heads": 8}),
            ("falcon-180b", 80, 14848, 232, {"kv_heads": 8}),
        ),
        default_global_batch=1152,
    ),
    *models(
        "phi", "phi-1.5 and phi-2 published configurations", _PHI,
        (("phi-1.5", 24, 2048, 32, {}), ("phi-2", 32, 2560, 32, {})),
        {"phi-2": ("phi2",)}, default_global_batch=1024,
    ),
)  # fmt: skip
ENTRIES: dict[str, Entry] = entries(MODELS)
