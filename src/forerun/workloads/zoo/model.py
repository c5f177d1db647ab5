"""Model: one row of a table of language models, and how it becomes a Workload."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from forerun.domain.workload import Workload
from forerun.workloads.transformer import TransformerSpec, transformer_workload
from forerun.workloads.zoo.entry import Entry


@dataclass(frozen=True)
class Model:
    """A published configuration: `shape` are fields of TransformerSpec, `fields` of Workload."""

    name: str
    family: str
    shape: Mapping[str, Any]
    source: str
    aliases: tuple[str, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)

    def spec(self, seq_len: int | None = None, **changes: Any) -> TransformerSpec:
        """Return the shape, with the sequence length and other fields changed where given."""
        shape = dict(self.shape)
        if seq_len:
            shape["seq_len"] = seq_len
            if shape.get("target_len"):
                shape["target_len"] = max(1, shape["target_len"] * seq_len // self.shape["seq_len"])
        shape.update({key: value for key, value in changes.items() if value is not None})
        return TransformerSpec(**shape)

    def build(
        self,
        *,
        seq_len: int | None = None,
        precision: str | None = None,
        optimizer: str | None = None,
        fused_attention: bool | None = None,
    ) -> Workload:
        """Return the workload; None means the published or usual value."""
        fields: dict[str, Any] = {"precision": "bf16", **self.fields}
        fields.update({k: v for k, v in (("precision", precision), ("optimizer", optimizer)) if v})
        return transformer_workload(
            self.spec(seq_len, fused_attention=fused_attention),
            self.name, family=self.family, source=self.source, **fields,
        )  # fmt: skip

    def entry(self) -> Entry:
        """Return the row as an entry of the zoo."""
        return Entry(
            name=self.name,
            family=self.family,
            build=partial(Model.build, self),
            description=self._description(),
            source=self.source,
            default_seq_len=self.shape["seq_len"],
            aliases=self.aliases,
            chooses_attention=True,
        )

    def _description(self) -> str:
        shape = self.shape
        text = f"{shape['layers']} layers, hidden {shape['hidden']}, {shape['heads']} heads"
        if shape.get("decoder_layers") or shape.get("kind") == "encoder-decoder":
            text = f"encoder-decoder, {text}"
        if shape.get("experts"):
            text += f", {shape['experts']} experts, {shape['experts_per_token']} a token"
        return f"{text}, sequences of {shape['seq_len']}"


Row = tuple[str, int, int, int, Mapping[str, Any]]


def models(
    family: str,
    source: str,
    base: Mapping[str, Any],
    rows: Iterable[Row],
    aliases: Mapping[str, tuple[str, ...]] | None = None,
    **fields: Any,
) -> Iterator[Model]:
    """Yield models from rows of (name, layers, hidden, heads, further fields of the shape)."""
    for name, layers, hidden, heads, more in rows:
        shape = {**base, "layers": layers, "hidden": hidden, "heads": heads, **more}
        yield Model(name, family, shape, source, (aliases or {}).get(name, ()), fields)


def entries(rows: Iterable[Model]) -> dict[str, Entry]:
    """Return models as entries of the zoo, by name."""
    return {model.name: model.entry() for model in rows}
