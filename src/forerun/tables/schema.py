"""The schema of the runs table: every column, its kind, unit and group."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from forerun.domain.plan import ALIASES as PLAN_ALIASES
from forerun.errors import RequestError, likely_name


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
    *_columns("origin", "text", "source||where the row was published",
              "ref||the page, table or file in that source", "note||anything else worth knowing"),
    *_columns(
        "workload", "text", "workload||zoo name, or a label of your own",
        "family||architecture family, e.g. llama or resnet",
        "framework||the software that runs it, any label", "dataset||name of the training data",
        "precision||fp64 fp32 tf32 fp16 bf16 fp8 fp4",
        "optimizer||sgd momentum adam adamw lamb lars adagrad rmsprop adafactor lion",
    ),
    *_columns(
        "workload", "number", "dataset_size|samples|samples in one epoch",
        "params||trainable parameters", "layers||repeated layers", "hidden||width of a layer",
        "heads||attention heads", "kv_heads||key and value heads, where fewer than heads",
        "ffn||width inside the feed-forward part", "vocab||tokens in the vocabulary",
        "experts||experts in a mixture layer", "seq_len|tokens|tokens in a sample",
        "image_size|pixels|a side of a sample",
        "gmacs|1e9|forward multiply-adds of one sample",
        "mactivations|1e6|activations of one sample", "learning_rate||not used by a forecast",
    ),
    *_columns(
        "cluster", "text", "device||catalogue id or a label of it",
        "instance_type||machine, e.g. aws:p5.48xlarge",
        "cluster||a cluster's text (4x8xh100-sxm-80gb) where device and instance_type are blank;"
        " else a label: same label, same machines",
        "placement||devices on each node, e.g. 4-4-2; also one digit a node, e.g. 442",
        "interconnect||links in words, e.g. NVLink + RoCE 1600 Gb/s per node",
    ),
    *_columns(
        "cluster", "number", "nodes||machines", "devices||in all",
        "devices_per_node||in each machine", "price_usd_per_hour|USD/h|whole cluster",
        "cpus_per_worker||CPU cores that each worker may use", "node_gbps|1e9 bit/s|network of each machine",
    ),
    *_columns(
        "plan", "text", "plan||plan fields as text, e.g. tp=2,pp=4; cells of their own may add to it",
    ),
    *_columns(
        "plan", "number", "global_batch|samples|in one optimizer step, over all devices",
        "micro_batch|samples|in one pass of a device", "grad_accum||passes in a step",
        "dp||data parallel", "tp||tensor parallel", "pp||pipeline parallel",
        "cp||context parallel", "ep||expert parallel",
        "vpp||model chunks on each pipeline stage",
        "zero_stage||0 nothing sharded, 1 optimizer, 2 gradients too, 3 parameters too",
        "parameter_servers||their number, with a ps- kind of sync",
    ),
    *_columns(
        "plan", "text", "recompute||none selective full", "sequence_parallel||true false",
        "memory_format||nchw nhwc", "task||pretrain finetune lora",
        "sync||allreduce ps-sync ps-async dataparallel",
    ),
    *_columns(
        "length", "number", "steps||the job's length in optimizer steps",
        "samples|samples|the job's length in samples", "tokens|tokens|the job's length in tokens",
        "epochs||the job's length in passes over the dataset",
    ),
    *_columns(
        "measured", "number", "step_time_s|s|one optimizer step",
        "sync_time_s|s|of it, exposed communication", "samples_per_s|1/s|whole cluster",
        "tokens_per_s|1/s|whole cluster", "tflops_per_device|1e12/s|model FLOPs of each device",
        "epoch_time_s|s|one pass over the dataset", "time_to_train_s|s|the whole run",
        "cost_usd|USD|the whole run", "memory_gb|1e9 bytes|peak of a device",
        "samples_to_target|samples|until the target was reached",
        "epochs_to_target||the same in epochs; the run's length where nothing else says it",
        "grad_sqr||squared norm of the true gradient, an estimate; two workers or more tell it",
        "grad_var||variance of a sample's gradient, likewise",
        "repeats||runs behind the figure", "std_s|s|standard deviation of step_time_s over them",
        "step_mean_s|s|mean of the single steps, where step_time_s is their median",
        "step_std_s|s|standard deviation of the single steps", "step_low_s|s|95 % interval of step_time_s",
        "step_high_s|s|the same, its upper end", "measured_steps||steps behind step_time_s",
        "warmup_steps||steps before them that were left out",
        "input_time_s|s|of a step, waiting for data", "forward_time_s|s|of a step, with the loss",
        "backward_time_s|s|of a step, without exposed communication",
        "optimizer_time_s|s|of a step, the update of the weights",
        "comm_time_s|s|of a step, communication under way, hidden or not",
        "comm_gb|1e9 bytes|of a step, what a worker hands to collectives",
        "cpu_share||cores that a worker kept busy", "gpu_share||share of time its GPU was busy",
        "network_bytes_per_s|bytes/s|sent by the busiest node",
        "run_time_s|s|of the measuring, start of its processes included",
    ),
    *_columns("measured", "text", "target||the quality that was reached",
              "status||ok oom failed timeout"),
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
        name = _known_name(plain) or plain
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


def _known_name(plain: str) -> str:
    """Return the schema's name for a header, in whatever case it is written; "" where unknown."""
    lowered = plain.lower()
    if plain in COLUMNS or lowered in COLUMNS:
        return lowered
    return ALIASES.get(lowered, "")


def unknown_columns(names: Iterable[str]) -> dict[str, str]:
    """Return the columns that the schema does not know, each with the one that was likely meant.

    "" where it looks like none: a column of the user's own.
    """
    near = {name: likely_name(name, (*COLUMNS, *ALIASES)) for name in names if name not in COLUMNS}
    return {name: ALIASES.get(close, close) for name, close in near.items()}


def misspelt_columns(names: Iterable[str]) -> dict[str, str]:
    """Return the columns that the schema does not know and that look like one that it does."""
    return {name: near for name, near in unknown_columns(names).items() if near}


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
