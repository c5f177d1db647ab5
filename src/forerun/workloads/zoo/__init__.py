"""The zoo: workloads by name, each with its published structure and usual training length."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from importlib import import_module
from typing import Any

from forerun.domain.workload import Workload
from forerun.errors import RequestError, UnknownNameError
from forerun.workloads.zoo import timm
from forerun.workloads.zoo.entry import Entry

__all__ = ["Entry", "zoo_entry", "zoo_names", "zoo_workload"]

# Modules of named workloads, each with the beginnings of names that it is searched for first,
# so that one workload is built without reading the tables of the others.
_MODULES: Mapping[str, tuple[str, ...]] = {
    "gpt_models": (
        "gpt", "opt", "bloom", "mpt", "mt-nlg", "megatron", "turing", "nemotron", "falcon", "phi",
        "mlperf-gpt",
    ),
    "llama_models": ("llama", "mistral", "qwen", "gemma", "phi-3", "phi-4"),
    "expert_models": ("mixtral", "deepseek", "gpt-oss", "qwen3-30b", "qwen3-235b"),
    "encoder_models": (
        "bert", "roberta", "distilbert", "albert", "electra", "t5", "flan", "transformer",
        "mlperf-bert",
    ),
    "vision": (
        "alexnet", "convnext", "densenet", "efficientnet", "googlenet", "inception", "mnasnet",
        "mobilenet", "regnet", "resnet", "wide-resnet", "resnext", "se-res", "shufflenet",
        "squeezenet", "swin", "vgg", "vit", "maxvit",
    ),
    "other": ("keras", "ssd", "mask", "unet", "stable", "sdxl", "dit", "dlrm", "rnnt", "gnmt", "whisper"),
}  # fmt: skip


def zoo_names() -> list[str]:
    """Return the ids of all workloads of the zoo, sorted."""
    return sorted(name for module in _MODULES for name in _entries(module))


def zoo_entry(name: str) -> Entry:
    """Return the entry of a name or alias; case, `_` and spaces do not matter.

    Raises:
        UnknownNameError: no such workload; the nearest names are offered.
    """
    entry = find_entry(name)
    if entry is None:
        known = [known for module in _MODULES for known in _index(module)]
        raise UnknownNameError("workload", name, known, "`forerun workloads` lists them")
    return entry


def find_entry(name: str) -> Entry | None:
    """Return the entry of a name or alias, or None.

    Names of the timm library follow. `timm-` before a name means that library's structure where it
    differs from the zoo's: transformers whose scores stay in memory.
    """
    folded = _fold(name)
    if folded.startswith("timm-"):
        plain = folded.removeprefix("timm-")
        return timm.find(folded) if timm.keeps_scores(plain) else find_entry(plain)
    for module in sorted(_MODULES, key=lambda m: -_likeness(m, folded)):
        found = _index(module).get(folded)
        if found is not None:
            return found
    return timm.find(folded)


def zoo_workload(
    name: str,
    *,
    seq_len: int | None = None,
    image_size: int | None = None,
    precision: str | None = None,
    optimizer: str | None = None,
    fused_attention: bool | None = None,
) -> Workload:
    """Return a workload by name, with parts of it changed where they are given.

    Args:
        name: id or alias, e.g. `llama3-8b`.
        seq_len: tokens in a sample; refused where samples have none.
        image_size: pixels on a side; refused where samples have none.
        precision: one of `PRECISIONS`.
        optimizer: a key of `OPTIMIZER_STATES`.
        fused_attention: whether attention scores stay on the chip (language models).

    Raises:
        UnknownNameError: no such workload.
        RequestError: a change that this workload does not know, or a wrong value.
    """
    entry = zoo_entry(name)
    for field, value, default in (
        ("seq_len", seq_len, entry.default_seq_len),
        ("image_size", image_size, entry.default_image_size),
    ):
        if value is not None and not default:
            raise RequestError(
                f"workload {name!r} with {field}={value}",
                f"its samples have no {field}",
                f"leave {field} out",
            )
        if value is not None and value < 1:
            raise RequestError(
                f"workload {name!r} with {field}={value}",
                "the size is not above zero",
                f"give a positive {field}, for example {default}",
            )
    return _built(entry.name, seq_len, image_size, precision, optimizer, fused_attention)


@lru_cache(maxsize=4096)
def _built(
    name: str,
    seq_len: int | None,
    image_size: int | None,
    precision: str | None,
    optimizer: str | None,
    fused_attention: bool | None,
) -> Workload:
    entry = zoo_entry(name)
    changes: dict[str, Any] = {"precision": precision, "optimizer": optimizer}
    if entry.default_seq_len:
        changes |= {"seq_len": seq_len, "fused_attention": fused_attention}
    if entry.default_image_size:
        changes["image_size"] = image_size
    return entry.build(**changes)


@cache
def _entries(module: str) -> Mapping[str, Entry]:
    entries: Mapping[str, Entry] = import_module(f"{__name__}.{module}").ENTRIES
    return entries


@cache
def _index(module: str) -> Mapping[str, Entry]:
    """Return a module's entries by folded name and alias."""
    index: dict[str, Entry] = {}
    for entry in _entries(module).values():
        for name in (entry.name, *entry.aliases):
            index.setdefault(_fold(name), entry)
    return index


def _likeness(module: str, folded: str) -> int:
    """Return how many letters of a name a module's beginnings explain."""
    return max((len(s) for s in _MODULES[module] if folded.startswith(s)), default=0)


def _fold(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(" ", "-")
