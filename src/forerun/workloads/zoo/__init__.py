"""The zoo: workloads by name, each with its published structure and usual training length.

The tables `data/language.json`, `data/networks.json` and `data/timm.json` name the workloads; see
`scripts/capture_zoo.py` for where the layers of networks are from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from forerun.domain.workload import Length, Workload
from forerun.errors import RequestError, UnknownNameError
from forerun.workloads.zoo.network import DATA, Network

__all__ = ["Entry", "find_entry", "zoo_entry", "zoo_names", "zoo_workload"]

# Groups of the timm library whose attention keeps its scores in memory.
_KEEPS_SCORES = ("timm-plain-vits", "timm-stage-vits", "timm-mixed-vits")
_TIMM_NOTE = "structure as of the timm library in 2022; attention keeps its scores in memory"


@dataclass(frozen=True)
class LanguageModel:
    """A published configuration: `shape` are fields of TransformerSpec, `training` of Workload."""

    name: str
    family: str
    source: str
    shape: Mapping[str, Any]
    training: Mapping[str, Any]
    aliases: Sequence[str] = ()
    default_image_size = 0
    chooses_attention = True

    @property
    def default_seq_len(self) -> int:
        """Tokens in a sample."""
        return int(self.shape["seq_len"])

    @property
    def description(self) -> str:
        """One line for a listing."""
        shape = self.shape
        text = f"{shape['layers']} layers, hidden {shape['hidden']}, {shape['heads']} heads"
        if shape.get("kind") == "encoder-decoder":
            text = f"encoder-decoder, {text}"
        if shape.get("experts"):
            text += f", {shape['experts']} experts, {shape['experts_per_token']} a token"
        return f"{text}, sequences of {shape['seq_len']}"

    def build(
        self,
        *,
        seq_len: int | None = None,
        precision: str | None = None,
        optimizer: str | None = None,
        fused_attention: bool | None = None,
    ) -> Workload:
        """Return the workload; None means the published or usual value."""
        from forerun.workloads.transformer import TransformerSpec, transformer_workload

        shape, usual = dict(self.shape), self.default_seq_len
        if seq_len:
            shape["seq_len"] = seq_len
            if shape.get("target_len"):
                shape["target_len"] = max(1, shape["target_len"] * seq_len // usual)
        if fused_attention is not None:
            shape["fused_attention"] = fused_attention
        fields: dict[str, Any] = {"precision": "bf16", **self.training}
        fields.update({k: v for k, v in (("precision", precision), ("optimizer", optimizer)) if v})
        if "length" in fields:
            fields["length"] = Length(*fields["length"])
        return transformer_workload(
            TransformerSpec(**shape), self.name, family=self.family, source=self.source, **fields
        )


Entry = LanguageModel | Network


def zoo_names() -> list[str]:
    """Return the ids of all workloads of the zoo, sorted."""
    return sorted({entry.name for entry in _index().values()})


def zoo_entry(name: str) -> Entry:
    """Return the entry of a name or alias; case, `_` and spaces do not matter.

    Raises:
        UnknownNameError: no such workload; the nearest names are offered.
    """
    entry = find_entry(name)
    if entry is None:
        known = [*_index(), *(row for group in _table("timm").values() for row in group)]
        raise UnknownNameError("workload", name, known, "`forerun workloads` lists them")
    return entry


def find_entry(name: str) -> Entry | None:
    """Return the entry of a name or alias, or None.

    Names of the timm library follow. `timm-` before a name means that library's structure where it
    differs from the zoo's: transformers whose scores stay in memory.
    """
    folded = _fold(name)
    plain = folded.removeprefix("timm-")
    entry = _index().get(plain)
    if entry is not None and plain == folded:
        return entry
    for file, networks in _table("timm").items():
        if plain in networks and (entry is None or file in _KEEPS_SCORES):
            layers, family, size = networks[plain]
            return Network(
                folded if file in _KEEPS_SCORES else plain, family, file, "the timm library, 2022",
                "image classifier of the timm library, 1000 classes",
                layers, size=size, notes=(_TIMM_NOTE,),
            )  # fmt: skip
    return entry


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
    changes = {
        "seq_len": seq_len, "image_size": image_size, "precision": precision,
        "optimizer": optimizer, "fused_attention": fused_attention,
    }  # fmt: skip
    return _built(entry.name, **{k: value for k, value in changes.items() if value is not None})


@lru_cache(maxsize=4096)
def _built(name: str, **changes: Any) -> Workload:
    return zoo_entry(name).build(**changes)


@cache
def _index() -> dict[str, Entry]:
    """Return the entries of the tables by folded name and alias."""
    entries: list[Entry] = [Network(**row) for row in _table("networks")]
    for group in _table("language"):
        for model in group["models"]:
            own = {k: v for k, v in model.items() if k not in ("name", "aliases")}
            entries.append(
                LanguageModel(
                    model["name"], group["family"], group["source"], {**group["shape"], **own},
                    group["training"], model.get("aliases", ()),
                )
            )  # fmt: skip
    index: dict[str, Entry] = {}
    for entry in entries:
        for name in (entry.name, *entry.aliases):
            index.setdefault(_fold(name), entry)
    return index


@cache
def _table(name: str) -> Any:
    return json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))


def _fold(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(" ", "-")
