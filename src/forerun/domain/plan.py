"""Plan: how a workload is laid on a cluster, and which layouts are legal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from forerun.errors import RequestError, UnknownNameError, nearest_names, one_of

RECOMPUTE = ("none", "selective", "full")
SYNC = ("allreduce", "ps-sync", "ps-async", "dataparallel")
ALL_REDUCE, PS_SYNC, PS_ASYNC, ONE_PROCESS = range(len(SYNC))
ZERO_STAGES = (0, 1, 2, 3)
MEMORY_FORMATS = ("nchw", "nhwc")

# Names that other tools use for the same thing; accepted on input.
ALIASES: Mapping[str, str] = {
    "data_parallel_size": "dp", "data_parallel_degree": "dp", "data_parallel": "dp",
    "data_parallel_shard_degree": "dp", "data_parallel_replicate_degree": "dp",
    "tensor_model_parallel_size": "tp", "tensor_parallel_degree": "tp", "tensor_parallel": "tp",
    "tensor_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp", "pipeline_parallel_degree": "pp",
    "pipeline_parallel": "pp", "pipeline_parallel_size": "pp",
    "context_parallel_size": "cp", "context_parallel_degree": "cp", "context_parallel": "cp",
    "expert_model_parallel_size": "ep", "expert_parallel_degree": "ep", "expert_parallel": "ep",
    "virtual_pipeline_model_parallel_size": "vpp", "virtual_pipeline": "vpp",
    "micro_batch_size": "micro_batch", "mbs": "micro_batch",
    "train_micro_batch_size_per_gpu": "micro_batch", "per_device_train_batch_size": "micro_batch",
    "global_batch_size": "global_batch", "gbs": "global_batch", "train_batch_size": "global_batch",
    "zero": "zero_stage", "zero_optimization_stage": "zero_stage", "stage": "zero_stage",
    "recompute_granularity": "recompute", "activation_checkpoint": "recompute",
    "activation_checkpointing": "recompute", "gradient_checkpointing": "recompute",
    "sp": "sequence_parallel", "ps": "parameter_servers",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """How a workload is laid on a cluster; checked against both when a Job is born.

    Attributes:
        dp, tp, pp, cp: data, tensor, pipeline and context parallel degrees; their product is the
            number of devices. ep (expert parallel) lies inside dp x cp x tp.
        vpp: model chunks on each pipeline stage (1: not interleaved).
        micro_batch: samples a device does in one forward-backward pass.
        global_batch: samples in one optimizer step, over all devices.
        zero_stage: 0 nothing sharded, 1 optimizer, 2 and gradients, 3 and parameters (FSDP).
        recompute: activations recomputed in backward: none, selective (attention) or full.
        sequence_parallel: norms and dropouts split along the sequence over the tp group.
        sync: allreduce, ps-sync, ps-async, or dataparallel (one process, many GPUs).
        parameter_servers: their number, for the ps- kinds of sync.
        memory_format: nchw or nhwc (channels last), for images.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    vpp: int = 1
    micro_batch: int = 1
    global_batch: int = 1
    zero_stage: int = 0
    recompute: str = "none"
    sequence_parallel: bool = False
    sync: str = "allreduce"
    parameter_servers: int = 0
    memory_format: str = "nchw"

    def __post_init__(self) -> None:
        for name in ("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch", "global_batch"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1 or value > 2**31 - 1:
                raise RequestError(
                    f"a plan with {name}={value}",
                    f"{name} must be a whole number above zero",
                    f"give {name}=1 or more",
                )
        _choice("zero_stage", self.zero_stage, ZERO_STAGES)
        _choice("recompute", self.recompute, RECOMPUTE)
        _choice("sync", self.sync, SYNC)
        _choice("memory_format", self.memory_format, MEMORY_FORMATS)
        servers: object = self.parameter_servers
        if not isinstance(servers, int) or not 0 <= servers <= 2**31 - 1:
            raise RequestError(
                f"a plan with parameter_servers={servers}",
                "their number must be whole and not negative",
                "give 0 or more",
            )

    @property
    def world_size(self) -> int:
        """Devices that the plan uses."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def micro_batches(self) -> float:
        """Forward-backward passes of a device in one step: global batch / (micro-batch x dp)."""
        return self.global_batch / (self.micro_batch * self.dp)

    def as_dict(self) -> dict[str, int | str | bool]:
        """Return the plan's fields by name."""
        return asdict(self)

    def __str__(self) -> str:
        shown = [
            f"{name}={getattr(self, name)}"
            for name in ("dp", "tp", "pp", "cp", "ep", "vpp")
            if getattr(self, name) != 1 or name == "dp"
        ]
        shown.append(f"micro_batch={self.micro_batch}")
        if self.zero_stage:
            shown.append(f"zero_stage={self.zero_stage}")
        if self.recompute != "none":
            shown.append(f"recompute={self.recompute}")
        if self.sequence_parallel:
            shown.append("sequence_parallel=true")
        if self.sync != "allreduce":
            shown.append(f"sync={self.sync}")
        if self.parameter_servers:
            shown.append(f"parameter_servers={self.parameter_servers}")
        return " ".join(shown)


def _choice(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise RequestError(
            f"a plan with {name}={value}",
            f"no such {name}",
            one_of(value, allowed),
        )


FIELDS: tuple[str, ...] = tuple(Plan.__dataclass_fields__)
INTEGER_FIELDS = ("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch", "global_batch",
                  "zero_stage", "parameter_servers")  # fmt: skip
_TRUE = {"true", "yes", "1", "on"}
_FALSE = {"false", "no", "0", "off"}


def unknown_field(name: str) -> UnknownNameError:
    """Return the error for a name that is no plan field; the nearest are offered by their own names."""
    near = nearest_names(name, (*FIELDS, *ALIASES))
    return UnknownNameError(
        "plan field", name, FIELDS, nearest=dict.fromkeys(ALIASES.get(n, n) for n in near)
    )


def parse_plan(text: str) -> dict[str, int | str | bool]:
    """Return the fields named in text such as `tp=2,pp=4 recompute=full`.

    Names of Megatron, DeepSpeed, torchtitan and HuggingFace are accepted as aliases.

    Raises:
        RequestError: a part that is not name=value, an unknown name (nearest offered), a value
            of the wrong kind, or a name given twice.
    """
    fields: dict[str, int | str | bool] = {}
    for part in filter(None, re.split(r"[,\s;]+", text.strip())):
        name, separator, value = part.partition("=")
        if not separator or not value:
            raise RequestError(
                f"plan {text!r}", f"{part!r} is not name=value", "write for example tp=2,pp=4"
            )
        key = ALIASES.get(name.lower(), name.lower())
        if key not in FIELDS:
            raise unknown_field(name)
        if key in fields:
            raise RequestError(f"plan {text!r}", f"{key} is given twice", "give it once")
        fields[key] = plan_value(key, value)
    return fields


def plan_value(key: str, value: object) -> int | str | bool:
    """Return a plan field's value from text or a number. Raises RequestError where it cannot be."""
    text = str(value).strip().lower()
    if key == "sequence_parallel":
        if text in _TRUE | {"1.0"}:
            return True
        if text in _FALSE | {"0.0"}:
            return False
        raise RequestError(f"{key}={value}", "neither true nor false", "write true or false")
    if key in INTEGER_FIELDS:
        try:
            number = float(text)
        except ValueError:
            number = float("nan")
        if not number.is_integer():
            raise RequestError(f"{key}={value}", "not a whole number", f"write for example {key}=2")
        return int(number)
    if key == "recompute" and text in _TRUE | _FALSE:
        return "full" if text in _TRUE else "none"
    return text
