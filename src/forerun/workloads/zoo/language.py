"""Language models: published configurations by shape, and how one becomes a Workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forerun.domain.workload import Length, Workload
from forerun.workloads.transformer import TransformerSpec, transformer_workload


@dataclass(frozen=True)
class LanguageModel:
    """A published configuration: `shape` are fields of TransformerSpec, `training` of Workload."""

    name: str
    family: str
    source: str
    shape: Mapping[str, Any]
    training: Mapping[str, Any]
    aliases: Sequence[str] = ()

    def build(
        self,
        *,
        seq_len: int | None = None,
        precision: str | None = None,
        optimizer: str | None = None,
        fused_attention: bool | None = None,
    ) -> Workload:
        """Return the workload; None means the published or usual value."""
        shape = dict(self.shape)
        if seq_len:
            shape["seq_len"] = seq_len
            if shape.get("target_len"):
                shape["target_len"] = max(1, shape["target_len"] * seq_len // self.shape["seq_len"])
        if fused_attention is not None:
            shape["fused_attention"] = fused_attention
        fields: dict[str, Any] = {"precision": "bf16", **self.training}
        fields.update({k: v for k, v in (("precision", precision), ("optimizer", optimizer)) if v})
        if "length" in fields:
            fields["length"] = Length(*fields["length"])
        if "notes" in fields:
            fields["notes"] = tuple(fields["notes"])
        return transformer_workload(
            TransformerSpec(**shape), self.name, family=self.family, source=self.source, **fields
        )

    @property
    def description(self) -> str:
        """One line for a listing."""
        shape = self.shape
        text = f"{shape['layers']} layers, hidden {shape['hidden']}, {shape['heads']} heads"
        if shape.get("decoder_layers") or shape.get("kind") == "encoder-decoder":
            text = f"encoder-decoder, {text}"
        if shape.get("experts"):
            text += f", {shape['experts']} experts, {shape['experts_per_token']} a token"
        return f"{text}, sequences of {shape['seq_len']}"
