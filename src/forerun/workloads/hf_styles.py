"""What each HuggingFace `model_type` implies beyond the sizes that its configuration states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from forerun.workloads.families import ENCODER, GPT, LLAMA

Config = Mapping[str, Any]


def _each(names: tuple[str, ...], value: Any) -> dict[str, Any]:
    return dict.fromkeys(names, value)


_BERT = {k: v for k, v in ENCODER.items() if k not in ("max_positions", "token_types")}
_PARALLEL = {"positions": "rope", "parallel": True, "tied": False}
_T5 = {
    "kind": "encoder-decoder", "norm": "rmsnorm", "positions": "relative", "bias": False,
}  # fmt: skip
_VIT = {
    "kind": "encoder", "positions": "learned", "tied": False, "head_bias": True, "vocab": 1,
}  # fmt: skip

STYLES: Mapping[str, Mapping[str, Any]] = {
    **_each(
        ("llama", "mistral", "mixtral", "deepseek_v2", "deepseek_v3", "phi3", "olmo2", "yi",
         "internlm2", "stablelm", "baichuan", "minicpm"),
        LLAMA,
    ),
    **_each(("qwen2", "qwen2_moe"), {**LLAMA, "qkv_bias": True}),
    **_each(("qwen3", "qwen3_moe"), {**LLAMA, "qk_norm": True}),
    "gpt_oss": {**LLAMA, "bias": True},
    "gemma": {**LLAMA, "tied": True},
    "gemma2": {**LLAMA, "tied": True, "norms": 4},
    **_each(
        ("gemma3", "gemma3_text"), {**LLAMA, "tied": True, "norms": 4, "qk_norm": True}
    ),
    **_each(("gpt2", "gpt_neo", "gpt_bigcode"), GPT),
    "gpt_neox": _PARALLEL,
    "gptj": {**_PARALLEL, "norms": 1, "qkv_bias": False, "head_bias": True},
    "phi": {**_PARALLEL, "norms": 1, "head_bias": True},
    "opt": GPT,
    "bloom": {"positions": "alibi", "embedding_norm": True},
    "mpt": {"positions": "alibi", "bias": False, "norm_bias": False},
    "falcon": {"positions": "rope", "bias": False, "parallel": True},
    "nemotron": {"positions": "rope", "bias": False, "tied": False},
    "starcoder2": {"positions": "rope"},
    **_each(("bert", "albert", "electra", "megatron-bert"), {**_BERT, "token_types": 2}),
    **_each(
        ("roberta", "xlm-roberta", "camembert"), {**_BERT, "token_types": 1, "pooler": False}
    ),
    "distilbert": {**_BERT, "pooler": False},
    **_each(("t5", "mt5", "umt5"), _T5),
    **_each(("vit", "deit", "dinov2"), _VIT),
}  # fmt: skip


def _t5(config: Config) -> dict[str, Any]:
    gated = str(config.get("feed_forward_proj", "")).startswith("gated")
    return {
        "gated": gated,
        "seq_len": int(config.get("n_positions") or 512),
        "max_positions": int(config.get("relative_attention_num_buckets") or 32),
    }


def _falcon(config: Config) -> dict[str, Any]:
    if config.get("new_decoder_architecture"):
        return {"norms": 2}
    return {
        "norms": 1 if config.get("parallel_attn", True) else 2,
        "parallel": bool(config.get("parallel_attn", True)),
        "bias": bool(config.get("bias", False)),
        "kv_heads": 1 if config.get("multi_query", True) else 0,
        "positions": "alibi" if config.get("alibi") else "rope",
    }


def _mpt(config: Config) -> dict[str, Any]:
    ratio = config.get("expansion_ratio") or 4
    attention = config.get("attn_config")
    alibi = attention.get("alibi", True) if isinstance(attention, Mapping) else True
    biased = not config.get("no_bias", True)
    return {
        "ffn": int(ratio * config.get("d_model", 0)),
        "positions": "alibi" if alibi else "learned",
        "bias": biased,
        "norm_bias": biased,
    }


def _windowed(config: Config) -> dict[str, Any]:
    """Return the window, where it is in use, and how often a layer sees everything."""
    window = config.get("sliding_window")
    if not isinstance(window, int) or config.get("use_sliding_window") is False:
        return {}
    kinds = config.get("layer_types")
    every = config.get("sliding_window_pattern") or 0
    if isinstance(kinds, list) and "full_attention" in kinds:
        every = kinds.index("full_attention") + 1
    return {"window": window, "global_every": int(every)}


def _gemma(config: Config) -> dict[str, Any]:
    shape = _windowed(config)
    usual = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6}.get(str(config.get("model_type")), 0)
    if "window" in shape and not shape["global_every"]:
        shape["global_every"] = usual
    return shape


def _multi_query(config: Config) -> dict[str, Any]:
    return {"kv_heads": 1} if config.get("multi_query", True) else {}


def _albert(config: Config) -> dict[str, Any]:
    shared = str(config.get("model_type")) == "albert"
    width = config.get("embedding_size")
    return {"shared_layers": shared, "embedding_size": width if isinstance(width, int) else 0} | (
        {} if shared else {"head_outputs": 1, "pooler": False}
    )


def _opt(config: Config) -> dict[str, Any]:
    width = config.get("word_embed_proj_dim")
    narrow = isinstance(width, int) and width != config.get("hidden_size")
    return {
        "embedding_size": width if narrow else 0,
        "final_norm": bool(config.get("do_layer_norm_before", True)),
        "ffn": config.get("ffn_dim") or 0,
    }


def _vit(config: Config) -> dict[str, Any]:
    image, patch = int(config.get("image_size", 224)), int(config.get("patch_size", 16))
    tokens = (image // max(patch, 1)) ** 2 + 1
    labels = config.get("id2label")
    outputs = len(labels) if isinstance(labels, Mapping) else config.get("num_labels", 1000)
    return {"patch": patch, "seq_len": tokens, "max_positions": tokens, "head_outputs": outputs}


# What must be computed from several fields of a configuration, by model_type.
EXTRAS: Mapping[str, Callable[[Config], dict[str, Any]]] = {
    **_each(("t5", "mt5", "umt5"), _t5),
    "falcon": _falcon,
    "mpt": _mpt,
    **_each(("mistral", "mixtral", "qwen2", "qwen3", "gpt_oss", "phi3"), _windowed),
    **_each(("gemma", "gemma2", "gemma3", "gemma3_text"), _gemma),
    "gpt_bigcode": _multi_query,
    **_each(("albert", "electra"), _albert),
    "opt": _opt,
    **_each(("vit", "deit", "dinov2"), _vit),
}
