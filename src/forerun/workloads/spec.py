"""A YAML spec of a workload -> Workload: a transformer's shape, a list of operations, or totals.

docs/spec.md describes the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

from forerun.domain.graph import Block, Op, OpKind, Shard
from forerun.domain.workload import TASKS, Length, Workload, optimizer_named
from forerun.workloads.backward import complete, graph_from_totals
from forerun.workloads.transformer import TransformerSpec, transformer_workload
from forerun.yaml_files import NO_LINES, Section, read_section

STRUCTURES = ("transformer", "operations", "totals")
_TOP = ("name", "family", "precision", "optimizer", "dataset", "length", "global_batch", "task",
        "framework", "input_bytes", "sparse_fraction", "seq_len", "image_size", "fused_attention")  # fmt: skip
_OP_NUMBERS = ("flops", "reads", "writes", "weights", "params", "saved")
_OP_COUNTS = ("launches", "repeat")


def workload_from_spec(source: str | Path | bytes | Mapping[str, Any]) -> Workload:
    """Return the workload that a YAML spec, its bytes, or what one holds, describes.

    Raises RequestError with file, line and field.
    """
    path = Path("spec" if isinstance(source, Mapping | bytes) else source)
    if isinstance(source, Mapping):
        top = Section(path, "", source, NO_LINES)
    else:
        content = source if isinstance(source, bytes) else None
        top = read_section(path, "workload spec", "a workload", content)
    top.only((*_TOP, *STRUCTURES))
    given = [name for name in STRUCTURES if name in top.values]
    if len(given) != 1:
        found = " and ".join(given) or "none of them"
        raise top.error("", f"it has {found}", f"give one of {', '.join(STRUCTURES)}")
    if given == ["transformer"]:
        return _transformer(top, path.stem)
    fields = _common(top, path.stem)
    optimizer = str(fields.get("optimizer", "adamw"))
    seq_len, image_size = int(top.number("seq_len", 0)), int(top.number("image_size", 0))
    if given == ["totals"]:
        totals = top.section("totals")
        totals.only(("params", "gmacs", "mactivations"))
        graph = graph_from_totals(
            totals.number("params"), totals.number("gmacs"), totals.number("mactivations", 0),
            seq_len, optimizer,
        )  # fmt: skip
    else:
        graph = complete([_operation(part) for part in top.sections("operations")], optimizer)
    sample = "sequence" if seq_len else "image" if image_size else "sample"
    return top.checked(
        lambda: Workload(
            graph=graph, sample=sample, seq_len=seq_len, image_size=image_size,
            detailed=given != ["totals"], **fields,
        )
    )  # fmt: skip


def _transformer(top: Section, stem: str) -> Workload:
    part = top.section("transformer")
    part.only(tuple(f.name for f in dataclass_fields(TransformerSpec)))
    values: dict[str, Any] = dict(part.values)
    for name in ("seq_len", "fused_attention"):
        if name in top.values:
            values.setdefault(name, top.values[name])
    missing = [n for n in ("layers", "hidden", "heads", "vocab", "seq_len") if n not in values]
    if missing:
        raise part.error("", f"it has no {', '.join(missing)}", "add these fields")
    for field in dataclass_fields(TransformerSpec):
        stated = values.get(field.name)
        if stated is not None and field.type == "bool" and not isinstance(stated, bool):
            raise part.error(field.name, f"{stated!r} is not true or false", "write true or false")
        if stated is not None and field.type == "float":
            values[field.name] = part.number(field.name)
    spec = part.checked(lambda: TransformerSpec(**values))
    fields = _common(top, stem)
    return top.checked(lambda: transformer_workload(spec, **fields))


def _common(top: Section, stem: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": str(top.values.get("name", stem)), "source": "YAML spec"}
    for name in ("family", "precision", "optimizer", "framework"):
        if name in top.values:
            text = str(top.values[name])
            fields[name] = text if name == "framework" else text.lower()
    if "optimizer" in fields:
        fields["optimizer"] = optimizer_named(fields["optimizer"])
    if "task" in top.values:
        fields["task"] = top.choice("task", TASKS)
    for name in ("input_bytes", "sparse_fraction"):
        if name in top.values:
            fields[name] = top.number(name)
    if "global_batch" in top.values:
        batch = top.number("global_batch")
        if batch >= 2**31:
            raise top.error(
                "global_batch", f"{batch:.4g} samples in a step", f"give at most {2**31 - 1:,}"
            )
        fields["default_global_batch"] = int(batch)
    if "dataset" in top.values:
        dataset = top.section("dataset")
        dataset.only(("name", "size"))
        fields["dataset"] = str(dataset.values.get("name", ""))
        fields["dataset_size"] = dataset.number("size", 0)
    if "length" in top.values:
        length = top.section("length")
        length.only(("unit", "count"))
        count = length.number("count")
        unit = str(length.values.get("unit", ""))
        fields["length"] = length.checked(lambda: Length(unit, count, "YAML spec"))
    return fields


def _operation(part: Section) -> Op:
    part.only(("name", "kind", "shape", "dims", "block", "shard", *_OP_NUMBERS, *_OP_COUNTS))
    if "name" not in part.values or "kind" not in part.values:
        raise part.error("", "an operation without a name or a kind", "give name and kind")
    values: dict[str, Any] = {name: part.number(name, 0) for name in _OP_NUMBERS}
    values |= {name: int(part.number(name, 1)) for name in _OP_COUNTS}
    values |= {name: part.whole_numbers(name) for name in ("shape", "dims")}
    if not values["weights"]:
        values["weights"] = values["params"]
    if values["dims"] and len(values["dims"]) not in (3, 4):
        raise part.error("dims", "they are m, n, k and perhaps groups", "give three or four")
    return Op(
        name=str(part.values["name"]),
        kind=OpKind(part.choice("kind", [str(kind) for kind in OpKind])),
        block=Block(part.choice("block", [str(block) for block in Block], "layer")),
        shard=Shard(part.choice("shard", [str(shard) for shard in Shard], "none")), **values,
    )  # fmt: skip
