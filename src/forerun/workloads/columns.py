"""The workload columns of a runs table -> a Workload, or the reason why there is none.

A name of the zoo comes first, if what the row says of its size agrees; then the columns of a
transformer's shape; then totals (`params` and `gmacs`). Nothing is mapped to another structure
silently: what had to be assumed is in the workload's notes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from forerun.domain.workload import Workload
from forerun.errors import RequestError, nearest_names
from forerun.workloads.known_rows import known_name, refusal
from forerun.workloads.row_shapes import from_shape_columns, from_total_columns
from forerun.workloads.row_values import (
    Row,
    framework_of,
    fused_attention_of,
    optimizer_of,
    precision_of,
)
from forerun.workloads.zoo import Entry, find_entry, zoo_names, zoo_workload

# What the resolution of a row depends on: rows alike in these have the same workload.
WORKLOAD_COLUMNS: tuple[str, ...] = (
    "source", "workload", "family", "framework", "dataset", "dataset_size", "precision", "params",
    "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "experts", "seq_len", "image_size",
    "gmacs", "mactivations", "optimizer", "task",
)  # fmt: skip
_TASKS = {"": "", "pretrain": "pretrain", "pretraining": "pretrain", "finetune": "finetune",
          "finetuning": "finetune", "sft": "finetune", "fine-tune": "finetune",
          "lora": "lora", "peft": "lora"}  # fmt: skip
# A row that differs from the zoo by more than this share is not the zoo's workload.
_PARAMS_TOLERANCE = 0.10
_GMACS_TOLERANCE = 0.25
# A network for small images is not the one for large images that bears its name.
_SMALL_IMAGES = {"cifar": 32, "mnist": 28}
# Marks that a library gives to one network trained in different ways.
_TRAINED = re.compile(r"^(tf|gluon|ssl|swsl|tv)[_-]|[_-](ap|ns|sam|dino|miil)$")
_LORA_NOTE = "LoRA: the base weights are frozen, a step has no weight gradients of theirs"


def workload_from_columns(row: Mapping[str, Any]) -> Workload | str:
    """Return the workload of a row, or the reason why its columns do not tell it.

    Args:
        row: cells by column, as text or numbers; blanks and columns not in `WORKLOAD_COLUMNS`
            are ignored.
    """
    cells = Row(row)
    try:
        return _resolve(cells)
    except ValueError as error:
        return str(error)
    except RequestError as error:
        return str(error)


def _resolve(row: Row) -> Workload | str:
    reason = refusal(row)
    if reason:
        return reason
    entry = _entry(row)
    against: tuple[str, ...] = ()
    if entry is not None:
        against = _disagreements(row, entry)
        if not against:
            return described(row, _from_zoo(row, entry))
    workload = from_shape_columns(row) or from_total_columns(row)
    if workload is not None:
        if entry is not None:
            note = f"not taken as {entry.name} of the zoo: {'; '.join(against)}"
            workload = workload.with_(notes=(*workload.notes, note))
        return described(row, workload)
    if entry is not None and not _refuted(row, against):
        workload = _from_zoo(row, entry)
        note = f"the row differs from the zoo: {'; '.join(against)}"
        return described(row, workload.with_(notes=(*workload.notes, note)))
    if against:
        return f"workload {row.text('workload')!r}: {'; '.join(against)}"
    if not row.text("workload"):
        return "the row names no workload and has no shape columns"
    near = nearest_names(row.text("workload"), zoo_names(), count=3)
    offer = f"; did you mean {', '.join(near)}?" if near else ""
    return (
        f"workload {row.text('workload')!r} is not in the zoo, and the row has neither its shape "
        f"(layers, hidden, vocab, seq_len) nor its totals (params, gmacs){offer}"
    )


def _entry(row: Row) -> Entry | None:
    """Return the zoo's entry: of the name in its source, on its dataset, or alone."""
    name = known_name(row)
    if not name:
        return None
    dataset = row.text("dataset").lower().replace(" ", "-")
    source = find_entry(f"{row.text('source')}-{name}")
    if source is not None:
        return source
    words = [dataset, dataset.replace("-", ""), re.split(r"[^a-z0-9]", dataset)[0]]
    for word in filter(None, words):
        found = find_entry(f"{name}-{word}")
        if found is not None:
            return found
    return find_entry(name) or find_entry(_TRAINED.sub("", name))


def _disagreements(row: Row, entry: Entry) -> tuple[str, ...]:
    """Return what the row says against being the entry; empty where it agrees."""
    workload = _from_zoo(row, entry)
    shape = workload.shape
    found: list[str] = []
    for column, mine in (
        ("layers", shape.layers), ("hidden", shape.hidden), ("experts", shape.experts),
    ):  # fmt: skip
        stated = row.whole(column)
        if stated != mine and ((stated and mine) or (column == "experts" and stated > 1)):
            found.append(f"{column} is {stated}, the zoo has {mine}")
    for column, mine_size, tolerance in (
        ("params", workload.params, _PARAMS_TOLERANCE),
        ("gmacs", workload.graph.forward_flops / 2e9, _GMACS_TOLERANCE),
    ):
        given = row.number(column)
        if given and mine_size and abs(given / mine_size - 1) > tolerance:
            found.append(f"{column} is {given:.4g}, the zoo has {mine_size:.4g}")
    small = _small_image(row)
    if small and entry.default_image_size > 2 * small and not row.whole("image_size"):
        found.append(
            f"the zoo's network is for images of {entry.default_image_size} pixels, and "
            f"{row.text('dataset')} has {small}"
        )
    return tuple(found)


def _refuted(row: Row, against: tuple[str, ...]) -> bool:
    """Whether what stands against the entry is its structure, and not a count of parameters."""
    return any(not reason.startswith(("params", "gmacs")) for reason in against)


def _small_image(row: Row) -> int:
    dataset = row.text("dataset").lower()
    return next((size for name, size in _SMALL_IMAGES.items() if name in dataset), 0)


def _from_zoo(row: Row, entry: Entry) -> Workload:
    seq_len = row.whole("seq_len")
    match = re.search(r"seq[_ ]?(\d+)", row.text("dataset").lower())
    if not seq_len and match:
        seq_len = int(match[1])
    precision, note = precision_of(row, "")
    workload = zoo_workload(
        entry.name,
        seq_len=seq_len if seq_len and entry.default_seq_len else None,
        image_size=(row.whole("image_size") or None) if entry.default_image_size else None,
        precision=precision or None,
        optimizer=optimizer_of(row) or None,
        fused_attention=fused_attention_of(row) if entry.chooses_attention else None,
    )
    if note and not precision:
        note = f"precision is not stated: {workload.precision} assumed"
    return workload.with_(notes=(*workload.notes, note)) if note else workload


def described(row: Row, workload: Workload) -> Workload:
    """Return the workload with what the row says of its data, framework and task."""
    changes: dict[str, Any] = {}
    if row.text("framework"):
        changes["framework"] = framework_of(row)
    if row.text("dataset"):
        changes["dataset"] = row.text("dataset")
    size = row.number("dataset_size")
    if size:
        changes["dataset_size"] = size
    stated = row.text("task").lower()
    if stated not in _TASKS:
        raise ValueError(f"task is {stated!r}: use pretrain, finetune or lora")
    if _TASKS[stated]:
        changes["task"] = _TASKS[stated]
    if changes.get("task") == "lora":
        changes["notes"] = (*workload.notes, _LORA_NOTE)
    return workload.with_(**changes) if changes else workload
