"""The workload columns of a runs table -> a Workload, or the reason why there is none.

A name of the zoo comes first, if the row's sizes agree; then a transformer's shape; then totals.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from forerun import packaged
from forerun.domain.workload import (
    OPTIMIZER_STATES,
    PRECISIONS,
    TASKS,
    Length,
    Workload,
    optimizer_named,
)
from forerun.errors import RequestError, nearest_names, one_of
from forerun.workloads.backward import graph_from_totals
from forerun.workloads.tuning import tuned
from forerun.workloads.zoo import Entry, find_entry, taken_as, zoo_names, zoo_workload

# What the resolution of a row depends on: rows alike in these have the same workload.
WORKLOAD_COLUMNS: tuple[str, ...] = (
    "workload", "family", "framework", "dataset", "dataset_size", "precision", "params",
    "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "experts", "seq_len", "image_size",
    "gmacs", "mactivations", "optimizer", "task", "sparse_fraction",
    "lora_rank", "lora_targets",
)  # fmt: skip
# `Workload.source` of a row whose structure comes from its own columns.
COLUMN_SOURCES = ("shape columns of the row", "totals of the row")

_BLANKS = {"", "nan", "none", "null", "na", "n/a", "-", "unknown"}
# `columns.yaml` has the words of labels for precisions, optimizers and tasks.
_LABELS = packaged.table(__file__, "columns.yaml")
_PRECISIONS, _TASKS = (
    {word: meant for meant, words in _LABELS[name].items() for word in words.split()}
    for name in ("precisions", "tasks")
)
# Frameworks whose attention writes its scores to device memory (releases before fused kernels).
_MATERIALIZING = re.compile(
    r"megatron-lm|megatron-deepspeed|libai|oneflow|mindspore|paddle|mxnet|tensorflow|adaptdl"
    r"|deeplearningexamples|deepspeed zero|ngc pytorch"
)
# Marks that a library gives to one network trained in different ways.
_TRAINED = re.compile(r"^(tf|gluon|ssl|swsl|tv)[_-]|[_-](ap|ns|sam|dino|miil)$")
# A network for small images is not the one for large images that bears its name.
_SMALL_IMAGES = {"cifar": 32, "mnist": 28}
# A row that differs from the zoo by more than this share is not the zoo's workload.
_PARAMS_TOLERANCE = 0.10
_GMACS_TOLERANCE = 0.25
_VOCAB_PADDING = 0.03
_SHAPE = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")
_DIFFERS = "the row differs from the zoo: "
_READ_OTHERWISE = (_DIFFERS, "workload ")  # how a note begins that says so
_EXACT = 0.02  # a shape that meets its parameters so well is the one meant
_GATED = re.compile(r"llama|mistral|mixtral|qwen|gemma|deepseek|phi-?3|yi-|internlm|olmo")
_ENCODER = re.compile(r"bert|electra")
_MEGATRON_VOCAB = 51200
_BERT_VOCAB, _BERT_POSITIONS = 30522, 512
_HEAD_SIZES = (64, 128, 96, 80)


@dataclass(frozen=True)
class RowCells:
    """The workload columns of one row, with blanks left out."""

    values: Mapping[str, Any]

    def text(self, column: str) -> str:
        """Return a cell as text, "" where it is blank."""
        value = self.values.get(column)
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return ""
        text = str(value).strip()
        return "" if text.lower() in _BLANKS else text

    def number(self, column: str) -> float:
        """Return a cell as a finite number above zero, 0 where it is blank. Raises ValueError."""
        text = self.text(column)
        if not text:
            return 0.0
        try:
            number = float(text.replace(",", "").replace("_", ""))
        except ValueError:
            number = math.nan
        if not 0 <= number < math.inf:
            raise ValueError(f"{column} is {text!r}: not a finite number above zero")
        return number

    def whole(self, column: str) -> int:
        """Return a cell as a whole number, 0 where it is blank. Raises ValueError."""
        number = self.number(column)
        if not number.is_integer():
            raise ValueError(f"{column} is {number:g}: not a whole number")
        return int(number)

    @property
    def precision(self) -> str:
        """The precision, "" where it is blank. Raises ValueError."""
        stated = self.text("precision").lower()
        precision: str = _PRECISIONS.get(stated, stated)
        if stated and precision not in PRECISIONS:
            raise ValueError(f"precision is {stated!r}: {one_of(stated, PRECISIONS)}")
        return precision

    @property
    def optimizer(self) -> str:
        """The optimizer, "" where it is blank. Raises ValueError."""
        stated = str(self.values.get("optimizer") or "").strip().lower()
        if stated == "none":  # forward and backward alone; in other columns it is a blank
            return stated
        stated = optimizer_named(self.text("optimizer").lower())
        if not stated or stated in OPTIMIZER_STATES:
            return stated
        found = next((key for part, key in _LABELS["optimizers"].items() if part in stated), "")
        if not found:
            raise ValueError(f"optimizer is {stated!r}: {one_of(stated, OPTIMIZER_STATES)}")
        return found

    @property
    def trained(self) -> dict[str, Any]:
        """The stated precision and optimizer, as fields of a Workload. Raises ValueError."""
        both = {"precision": self.precision, "optimizer": self.optimizer}
        return {name: value for name, value in both.items() if value}

    @property
    def fused_attention(self) -> bool | None:
        """False where the row's framework writes attention scores to memory, else None."""
        framework = self.text("framework").lower()
        tuned = framework.startswith("tuned")  # by vendors, whose kernels fuse it
        return False if not tuned and _MATERIALIZING.search(framework) else None


def workload_from_columns(row: Mapping[str, Any]) -> Workload | str:
    """Return the workload of a row (cells by column), or the reason why its columns do not determine it."""
    cells = RowCells(row)
    try:
        workload = _resolve(cells)
        if isinstance(workload, str):
            return workload
        if not cells.precision:
            note = f"precision is not stated: {workload.precision} assumed"
            workload = workload.with_(notes=(*workload.notes, note))
        return described(cells, workload)
    except (ValueError, RequestError) as error:
        return str(error)


def read_otherwise(workload: Workload) -> list[str]:
    """Return the notes on what of a row was not taken as it stands there."""
    return [note for note in workload.notes if note.startswith(_READ_OTHERWISE)]


def _resolve(row: RowCells) -> Workload | str:
    entry = _entry(row)
    against: tuple[str, ...] = ()
    if entry is not None:
        zoo = _from_zoo(row, entry)
        if taken := taken_as(_TRAINED.sub("", row.text("workload"))):
            zoo = zoo.with_(notes=(taken, *zoo.notes))
        against = _disagreements(row, entry, zoo)
        if not against:
            lacks = [
                f"{column} is {row.whole(column)}, the zoo's has none"
                for column in _SHAPE[1:] if row.whole(column) and not getattr(zoo.shape, column)
            ]  # fmt: skip
            notes = [_DIFFERS + "; ".join(lacks)] * bool(lacks)
            return zoo.with_(notes=(*zoo.notes, *notes))
    workload = _from_shape_columns(row) or _from_total_columns(row)
    if workload is not None:
        if entry is None:
            return workload
        note = f"not taken as {entry.name} of the zoo: {'; '.join(against)}"
        return workload.with_(notes=(*workload.notes, note))
    # Another count of parameters is noted; another structure is refused.
    if entry is not None and all(reason.startswith(("params", "gmacs")) for reason in against):
        note = f"{_DIFFERS}{'; '.join(against)}"
        return zoo.with_(notes=(*zoo.notes, note))
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


def _entry(row: RowCells) -> Entry | None:
    name = row.text("workload")
    if not name:
        return None
    dataset = row.text("dataset").lower().replace(" ", "-")
    for word in (dataset, dataset.replace("-", ""), re.split(r"[^a-z0-9]", dataset)[0]):
        named = word and not word.startswith("synthetic")
        found = find_entry(f"{name}-{word}", alike=False) if named else None
        if found is not None:
            return found
    return find_entry(name) or find_entry(_TRAINED.sub("", name))


def _disagreements(row: RowCells, entry: Entry, workload: Workload) -> tuple[str, ...]:
    shape = workload.shape
    found: list[str] = []
    for column in (*_SHAPE, "experts"):
        stated, mine = row.whole(column), getattr(shape, column)
        # Vocabularies are padded, so that devices divide them.
        near = _VOCAB_PADDING if column == "vocab" else 0.0
        apart = abs(stated - mine) > near * mine
        if apart and ((stated and mine) or (column == "experts" and stated > 1)):
            found.append(f"{column} is {stated}, the zoo has {mine}")
    for column, mine_size, tolerance in (
        ("params", workload.params, _PARAMS_TOLERANCE),
        ("gmacs", workload.graph.forward_flops / 2e9, _GMACS_TOLERANCE),
    ):
        given = row.number(column)
        if given and mine_size and abs(given / mine_size - 1) > tolerance:
            found.append(f"{column} is {given:.4g}, the zoo has {mine_size:.4g}")
    for column, own in (
        ("seq_len", entry.default_seq_len),
        ("image_size", entry.default_image_size),
    ):
        if row.whole(column) and not own:
            found.append(f"{column} is {row.whole(column)}, samples of the zoo's have none")
    dataset = row.text("dataset")
    small = next((size for name, size in _SMALL_IMAGES.items() if name in dataset.lower()), 0)
    if small and entry.default_image_size > 2 * small and not row.whole("image_size"):
        found.append(
            f"the zoo's network is for images of {entry.default_image_size} pixels, and "
            f"{dataset} has {small}"
        )
    return tuple(found)


def _from_zoo(row: RowCells, entry: Entry) -> Workload:
    in_dataset = re.search(r"seq[_ ]?(\d+)", row.text("dataset").lower())
    seq_len = row.whole("seq_len") or (int(in_dataset[1]) if in_dataset else None)
    return zoo_workload(
        entry.name, seq_len=seq_len if entry.default_seq_len else None,
        image_size=(row.whole("image_size") or None) if entry.default_image_size else None,
        fused_attention=row.fused_attention if entry.chooses_attention else None, **row.trained,
    )  # fmt: skip


def described(row: RowCells, workload: Workload) -> Workload:
    """Return the workload with the row's data, framework and task."""
    stated = {name: row.text(name) for name in ("framework", "dataset")}
    changes: dict[str, Any] = {name: text for name, text in stated.items() if text}
    size = row.number("dataset_size")
    if size:
        changes["dataset_size"] = size
    if row.text("sparse_fraction"):
        changes["sparse_fraction"] = row.number("sparse_fraction")
    task = row.text("task").lower()
    if task and task not in _TASKS:
        raise ValueError(f"task is {task!r}: use {', '.join(TASKS)}")
    if task:
        changes["task"] = _TASKS[task]
    workload = workload.with_(**changes) if changes else workload
    return tuned(workload, row.whole("lora_rank") or 0, row.text("lora_targets"))


def _from_shape_columns(row: RowCells) -> Workload | None:
    """Return a transformer from `layers`, `hidden` and `seq_len`, nearest to `params`; None where one is blank."""
    from forerun.workloads.transformer import TransformerSpec, transformer_workload

    layers, hidden, seq_len = (row.whole(c) for c in ("layers", "hidden", "seq_len"))
    if not (layers and hidden and seq_len):
        return None
    notes: list[str] = []
    shape = _shape(row, notes) | {"layers": layers, "hidden": hidden, "seq_len": seq_len}
    shape = _nearest(shape, row.number("params"), notes)
    return transformer_workload(
        TransformerSpec(**shape), row.text("workload") or f"transformer-h{hidden}-l{layers}",
        family=row.text("family") or "transformer", source=COLUMN_SOURCES[0], notes=tuple(notes),
        **row.trained,
    )  # fmt: skip


def _from_total_columns(row: RowCells) -> Workload | None:
    params, gmacs = row.number("params"), row.number("gmacs")
    if not (params and gmacs):
        return None
    seq_len, image_size = row.whole("seq_len"), row.whole("image_size")
    trained: dict[str, Any] = {"optimizer": "adamw" if seq_len else "momentum", **row.trained}
    notes = ["built from totals: layers are not known, so no plan may divide them"]
    if not row.number("mactivations"):
        notes.append("activations are not stated: taken as usual for its multiply-adds")
    activations = row.number("mactivations")
    return Workload(
        name=row.text("workload") or "totals",
        graph=graph_from_totals(params, gmacs, activations, seq_len, trained["optimizer"]),
        family=row.text("family"), sample="sequence" if seq_len else "image", seq_len=seq_len,
        image_size=image_size,
        length=None if seq_len else Length("epochs", 90, "usual for image classifiers"),
        detailed=False, source=COLUMN_SOURCES[1], notes=tuple(notes), **trained,
    )  # fmt: skip


def _shape(row: RowCells, notes: list[str]) -> dict[str, Any]:
    from forerun.workloads.hf_config import tables

    name = f"{row.text('workload')} {row.text('family')}".lower()
    hidden = row.whole("hidden")
    kind = "bert" if _ENCODER.search(name) else "llama" if _GATED.search(name) else "gpt2"
    style = tables()[1][kind]
    if kind == "bert":
        style = {**style, "max_positions": _BERT_POSITIONS}
    heads, vocab, ffn = row.whole("heads"), row.whole("vocab"), row.whole("ffn")
    if not heads:
        # Of the usual head sizes the one whose number of heads most plans can divide.
        counts = [hidden // size for size in _HEAD_SIZES if hidden % size == 0]
        heads = max(counts, key=lambda count: count & -count, default=max(1, hidden // 64))
        notes.append(f"heads are not stated: {heads} of {hidden // heads} assumed")
    if not vocab:
        vocab = _BERT_VOCAB if kind == "bert" else _MEGATRON_VOCAB
        notes.append(f"vocabulary is not stated: {vocab} assumed")
    if not ffn:
        notes.append("ffn is not stated: 4 x hidden assumed")
    if kind == "gpt2":
        notes.append("taken as a GPT: layer normalisation, ungated, learned positions")
    shape = {**style, "heads": heads, "kv_heads": row.whole("kv_heads"), "ffn": ffn, "vocab": vocab}
    experts = row.whole("experts")
    if experts > 1:
        shape |= {"experts": experts, "experts_per_token": min(2, experts)}
        notes.append("experts a token are not stated: 2 assumed")
    if row.fused_attention is not None:
        shape["fused_attention"] = row.fused_attention
    return shape


def _nearest(shape: dict[str, Any], params: float, notes: list[str]) -> dict[str, Any]:
    """Return the variant (gated, tied) of a shape whose parameters are nearest to those stated."""
    if not params or shape.get("kind") == "encoder":
        return shape

    from forerun.workloads.transformer import TransformerSpec, transformer_graph

    def counted(variant: Mapping[str, Any]) -> float:
        return transformer_graph(TransformerSpec(**variant)).params

    def error(variant: Mapping[str, Any]) -> float:
        return abs(counted(variant) / params - 1)

    chosen, usual = shape, {"gated": shape.get("gated", False), "tied": shape.get("tied", True)}
    if error(shape) > _EXACT:
        # Of variants that fit equally well the one that changes least of what the name implies.
        best = min(
            ({**shape, "gated": g, "tied": t} for g, t in product((False, True), repeat=2)),
            key=lambda variant: (
                round(error(variant), 2),
                2 * (variant["gated"] != usual["gated"]) + (variant["tied"] != usual["tied"]),
            ),
        )
        if error(best) < error(shape):
            chosen = best
            notes.append(
                f"gated={best['gated']} and tied={best['tied']} chosen to meet {params:.4g}"
                " parameters"
            )
    if error(chosen) > _PARAMS_TOLERANCE:
        notes.append(
            f"{params:.4g} parameters are stated, and this shape has {counted(chosen):.4g}"
        )
    return chosen
