"""The schema of the runs table: every column, its kind, unit and group."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forerun.domain.plan import ALIASES as PLAN_ALIASES
from forerun.errors import RequestError, nearest_names


@dataclass(frozen=True, slots=True)
class Column:
    """One column: `number` columns hold floats (NaN where blank), `text` ones strings."""

    name: str
    group: str
    kind: str
    unit: str = ""
    help: str = ""


def _columns(group: str, kind: str, *rows: str) -> list[Column]:
    """Return columns from rows of the form `name|unit|help`."""
    out = []
    for row in rows:
        name, unit, text = [*row.split("|"), "", ""][:3]
        out.append(Column(name, group, kind, unit, text))
    return out


_ALL: list[Column] = [
    *_columns("origin", "text", "source||where the row was published", "ref", "note"),
    *_columns(
        "workload", "text", "workload||zoo name, or a label of your own", "family", "framework",
        "dataset", "precision||fp64 fp32 tf32 fp16 bf16 fp8 fp4", "optimizer",
    ),
    *_columns(
        "workload", "number", "dataset_size|samples|samples in one epoch", "params", "layers",
        "hidden", "heads", "kv_heads", "ffn", "vocab", "experts", "seq_len|tokens",
        "image_size|pixels", "gmacs|1e9|forward multiply-adds of one sample",
        "mactivations|1e6|activations of one sample", "learning_rate",
    ),
    *_columns(
        "cluster", "text", "device||catalogue id", "instance_type",
        "cluster||same label, same machines", "placement||devices on each node, e.g. 4-4-2",
        "interconnect",
    ),
    *_columns(
        "cluster", "number", "nodes", "devices||in all", "devices_per_node",
        "price_usd_per_hour|USD/h|whole cluster",
    ),
    *_columns(
        "plan", "number", "global_batch|samples", "micro_batch|samples", "grad_accum", "dp", "tp",
        "pp", "cp", "ep", "vpp", "zero_stage", "parameter_servers",
    ),
    *_columns("plan", "text", "recompute", "sequence_parallel", "memory_format", "task", "sync"),
    *_columns(
        "measured", "number", "step_time_s|s|one optimizer step", "sync_time_s|s",
        "samples_per_s|1/s|whole cluster", "tokens_per_s|1/s|whole cluster",
        "tflops_per_device|1e12/s", "epoch_time_s|s", "time_to_train_s|s", "cost_usd|USD",
        "memory_gb|1e9 bytes|peak of a device", "samples_to_target|samples", "epochs_to_target",
        "grad_sqr", "grad_var", "repeats", "std_s|s",
    ),
    *_columns("measured", "text", "target", "status||ok oom failed timeout"),
]  # fmt: skip

COLUMNS: Mapping[str, Column] = {column.name: column for column in _ALL}
MEASURED: tuple[str, ...] = (
    "step_time_s", "samples_per_s", "tokens_per_s", "tflops_per_device", "epoch_time_s",
    "time_to_train_s", "memory_gb", "samples_to_target", "status",
)  # fmt: skip

ALIASES: Mapping[str, str] = {
    **PLAN_ALIASES,
    "nnodes": "nodes", "num_nodes": "nodes", "nproc_per_node": "devices_per_node",
    "gpus_per_node": "devices_per_node", "world_size": "devices", "num_gpus": "devices",
    "gpus": "devices", "workers": "devices", "num_workers": "devices",
    "gpu": "device", "accelerator": "device", "gpu_type": "device", "model": "workload",
    "model_name": "workload", "seq_length": "seq_len", "sequence_length": "seq_len",
    "max_seq_len": "seq_len", "hidden_size": "hidden", "num_layers": "layers",
    "num_hidden_layers": "layers", "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads", "num_query_groups": "kv_heads",
    "ffn_hidden_size": "ffn", "intermediate_size": "ffn", "vocab_size": "vocab",
    "num_experts": "experts", "dtype": "precision",
    "gradient_accumulation_steps": "grad_accum", "price_per_hour": "price_usd_per_hour",
}  # fmt: skip

# A column with one of these stems and another ending is the same quantity in another unit.
_STEMS = {
    re.sub(r"(_s|_per_s|_gb|_usd|_usd_per_hour|_per_device)$", "", c.name): c
    for c in _ALL
    if c.unit and c.name.endswith(("_s", "_gb", "_usd", "_per_hour", "_per_device"))
}
_UNIT_ENDING = re.compile(
    r"_(ns|us|ms|s|sec|secs|seconds|min|mins|minutes|h|hr|hours|days|kb|mb|gb|gib|mib|tb|bytes|usd|"
    r"eur|cents|((usd|eur|gbp|cents)_)?"
    r"per_(ms|s|sec|second|min|minute|h|hour|day|week|month|year))$"
)


def canonical_names(names: Sequence[str], where: str) -> list[str]:
    """Return column names in the schema's spelling, aliases resolved; others are kept.

    Raises:
        RequestError: no column, a blank or duplicate name (also after aliases), or a known
            quantity in a unit that is not the schema's.
    """
    if not names:
        raise RequestError(f"reading {where}", "it has no columns", "give a header line")
    result: list[str] = []
    for raw in names:
        plain = str(raw).strip().lstrip("\ufeff")
        name = plain if plain in COLUMNS else ALIASES.get(plain.lower(), plain)
        if not name:
            raise RequestError(
                f"reading {where}", "a column has no name", "name every column in the header"
            )
        _check_unit(name, where)
        if name in result:
            raise RequestError(
                f"reading {where}", f"column {name!r} appears twice"
                + (f" (once as {plain!r})" if plain != name else ""),
                "keep one of them",
            )  # fmt: skip
        result.append(name)
    return result


def _check_unit(name: str, where: str) -> None:
    if name in COLUMNS:
        return
    stem = _UNIT_ENDING.sub("", name.lower())
    known = _STEMS.get(stem)
    if known is not None and stem != name.lower():
        raise RequestError(
            f"reading {where}", f"column {name!r} has a unit that the runs table does not use",
            f"convert it to {known.unit} and name it {known.name!r}",
        )  # fmt: skip


def require_columns(names: Sequence[str], needed: Sequence[str], where: str) -> None:
    """Raise RequestError where a needed column is missing; the nearest present one is named."""
    for name in needed:
        if name not in names:
            near = nearest_names(name, names)
            raise RequestError(
                f"reading {where}", f"there is no column {name!r}",
                f"add it (present: {', '.join(near or list(names)[:6])})",
            )  # fmt: skip
