"""A HuggingFace `config.json` -> Workload: the usual fields under their many names."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from forerun import packaged
from forerun.domain.workload import Workload
from forerun.errors import RequestError
from forerun.paths import check_file
from forerun.workloads.transformer import TransformerSpec, transformer_workload

Config = Mapping[str, Any]
LARGEST = 10**12  # of a field that counts something


@cache
def tables() -> tuple[Mapping[str, Sequence[str]], Mapping[str, Mapping[str, Any]]]:
    """Return `hf_styles.yaml`: names of each field, and fields of TransformerSpec by model_type."""
    found = packaged.table(__file__, "hf_styles.yaml")
    return found["fields"], found["styles"]


def _t5(config: Config) -> dict[str, Any]:
    return {
        "gated": str(config.get("feed_forward_proj", "")).startswith("gated"),
        "seq_len": _size(config, "n_positions", 512),
        "max_positions": _size(config, "relative_attention_num_buckets", 32),
    }


def _falcon(config: Config) -> dict[str, Any]:
    if config.get("new_decoder_architecture"):
        return {"norms": 2}
    parallel = bool(config.get("parallel_attn", True))
    return {
        "norms": 1 if parallel else 2, "parallel": parallel,
        "bias": bool(config.get("bias", False)),
        "kv_heads": 1 if config.get("multi_query", True) else 0,
        "positions": "alibi" if config.get("alibi") else "rope",
    }  # fmt: skip


def _mpt(config: Config) -> dict[str, Any]:
    ratio = _size(config, "expansion_ratio", 4)
    attention = config.get("attn_config")
    alibi = attention.get("alibi", True) if isinstance(attention, Mapping) else True
    biased = not config.get("no_bias", True)
    return {
        "ffn": ratio * _size(config, "d_model", 0), "positions": "alibi" if alibi else "learned",
        "bias": biased, "norm_bias": biased,
    }  # fmt: skip


def _windowed(config: Config) -> dict[str, Any]:
    """Return the window, where it is in use, and how often a layer sees everything."""
    window = config.get("sliding_window")
    if not isinstance(window, int) or config.get("use_sliding_window") is False:
        return {}
    kinds = config.get("layer_types")
    every = _size(config, "sliding_window_pattern", 0)
    if isinstance(kinds, list) and "full_attention" in kinds:
        every = kinds.index("full_attention") + 1
    usual = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6}.get(str(config.get("model_type")), 0)
    return {"window": window, "global_every": every or usual}


def _opt(config: Config) -> dict[str, Any]:
    width = _size(config, "word_embed_proj_dim", 0)
    return {
        "embedding_size": 0 if width == config.get("hidden_size") else width,
        "final_norm": bool(config.get("do_layer_norm_before", True)),
        "ffn": _size(config, "ffn_dim", 0),
    }


def _vit(config: Config) -> dict[str, Any]:
    image, patch = _size(config, "image_size", 224), _size(config, "patch_size", 16)
    tokens = (image // max(patch, 1)) ** 2 + 1
    labels = config.get("id2label")
    outputs = len(labels) if isinstance(labels, Mapping) else _size(config, "num_labels", 1000)
    return {"patch": patch, "seq_len": tokens, "max_positions": tokens, "head_outputs": outputs}


# What must be computed from several fields of a configuration, by model_type; of others a window.
_COMPUTED: Mapping[str, Callable[[Config], dict[str, Any]]] = {
    **dict.fromkeys(("t5", "mt5", "umt5"), _t5),
    **dict.fromkeys(
        ("albert", "electra"), lambda config: {"embedding_size": _size(config, "embedding_size", 0)}
    ),
    **dict.fromkeys(("vit", "deit", "dinov2"), _vit),
    "falcon": _falcon,
    "gpt_bigcode": lambda config: {"kv_heads": 1} if config.get("multi_query", True) else {},
    "mpt": _mpt,
    "opt": _opt,
}
_NEEDED = ("layers", "hidden", "heads", "vocab")
_DROPOUTS = ("resid_pdrop", "hidden_dropout_prob", "dropout_rate", "dropout", "hidden_dropout")
# Configurations allow sequences far longer than training uses; a longer one must be asked for.
_USUAL_LONGEST = 8192


def workload_from_hf_config(
    source: str | Path | Config, *, seq_len: int | None = None, precision: str | None = None,
    optimizer: str = "adamw",
) -> Workload:  # fmt: skip
    """Return the workload of a config.json, a folder with one, or the configuration itself. Raises RequestError.

    seq_len: by default the longest that it allows, at most 8192 tokens. precision: by default fp16 or
    bf16 as stated, since fp32 checkpoints are trained in bf16.
    """
    config, name = _read(source)
    config = {k: v for k, v in config.items() if v is not None}  # null is what a blank is
    kind = str(config.get("model_type") or "")
    notes: list[str] = []
    if isinstance(config.get("text_config"), Mapping):
        config = {**config, **config["text_config"]}
        notes.append("only the language part of this configuration is counted")
        kind = str(config.get("model_type") or kind)
    if kind not in tables()[1]:
        notes.append(f"model_type {kind!r} is not known: taken as a gated decoder like llama")
    shape = _shape(config, kind, name, seq_len, notes)
    stated = str(config.get("torch_dtype") or config.get("dtype") or "")
    workload = transformer_workload(
        TransformerSpec(**shape), name,
        precision=precision or ("fp16" if stated == "float16" else "bf16"), optimizer=optimizer,
        family=kind, source="HuggingFace configuration", notes=tuple(notes),
    )  # fmt: skip
    if shape.get("patch"):
        size = _size(config, "image_size", 224)
        return workload.with_(sample="image", seq_len=0, image_size=size, length=None)
    return workload


def _read(source: str | Path | Config) -> tuple[Config, str]:
    if isinstance(source, Mapping):
        return source, str(source.get("_name_or_path") or source.get("model_type") or "model")
    path = Path(source)
    if path.is_dir():
        path = path / "config.json"
    asked = f"HuggingFace configuration {str(path)!r}"
    check_file(path, asked)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError(
            asked, f"it cannot be read ({error.strerror})", "give the path of a config.json"
        ) from error
    except (ValueError, RecursionError) as error:
        raise RequestError(asked, f"it is not JSON ({error})", "give a config.json") from error
    if not isinstance(config, Mapping):
        raise RequestError(asked, "it is not an object of fields", "give a config.json")
    name = str(config.get("_name_or_path") or "") or path.resolve().parent.name
    return config, name


def _shape(
    config: Config, kind: str, name: str, seq_len: int | None, notes: list[str]
) -> dict[str, Any]:
    fields, styles = tables()
    shape: dict[str, Any] = dict(styles.get(kind, styles["llama"]))
    for field, names in fields.items():
        value = _whole(config, names, name)
        if value is not None:
            shape[field] = value
    dropout = next((config[n] for n in _DROPOUTS if isinstance(config.get(n), float)), None)
    if dropout is not None:
        shape["dropout"] = dropout
    if isinstance(config.get("tie_word_embeddings"), bool):
        shape["tied"] = config["tie_word_embeddings"]
    shape.update(_COMPUTED.get(kind, _windowed)(config))
    if seq_len:
        shape["seq_len"] = seq_len
    if shape.get("patch"):
        shape.setdefault("vocab", int(shape.get("head_outputs") or 1))
    missing = [fields[field][0] for field in _NEEDED if field not in shape]
    if missing:
        raise RequestError(
            f"HuggingFace configuration {name!r}", f"it has no {', '.join(missing)}",
            "add these fields, or write a YAML spec of the workload",
        )  # fmt: skip
    if "seq_len" not in shape:
        longest = shape.get("max_positions") or 2048
        shape["seq_len"] = min(longest, _USUAL_LONGEST)
        if longest > _USUAL_LONGEST:
            notes.append(f"sequences of {_USUAL_LONGEST} of the {longest} that it allows")
    return shape


def _size(config: Config, name: str, usual: int) -> int:
    """Return a field as a whole number; of a list of equal sides, one. Raises RequestError."""
    value = config.get(name, usual)
    if isinstance(value, list) and value and all(side == value[0] for side in value):
        value = value[0]
    if isinstance(value, list):
        raise RequestError(
            f"HuggingFace configuration with {name}={value!r}", "its sides differ",
            f"give one whole number as {name}",
        )  # fmt: skip
    return _whole({name: value}, (name,), "") or 0


def _whole(config: Config, names: Sequence[str], model: str) -> int | None:
    """Return the first of the named fields that is stated, as a whole number above zero or 0."""
    for name in names:
        value = config.get(name)
        if value is None or isinstance(value, bool | list):
            continue
        whole = (
            isinstance(value, int | float) and 0 <= value <= LARGEST and float(value).is_integer()
        )
        if not whole:
            raise RequestError(
                f"HuggingFace configuration {model!r} with {name}={value!r:.40}",
                f"the field must be a whole number from 0 to {LARGEST:,}", f"correct {name}",
            )  # fmt: skip
        return int(value)
    return None
