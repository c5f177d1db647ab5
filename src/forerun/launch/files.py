"""Configuration files of training software: Accelerate, DeepSpeed, FSDP in PyTorch, and Megatron Bridge (NeMo)."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from forerun.launch.request import LaunchRequest, refusal
from forerun.units import counted

_DRIVES = "/local_nvme"  # a placeholder


def yaml_text(header: str, *documents: Any) -> str:
    """Return YAML documents under a header of comments: fields in their order, texts of several lines as blocks."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def represent_str(self, data: str) -> yaml.ScalarNode:
            style = "|" if "\n" in data else None
            return self.represent_scalar("tag:yaml.org,2002:str", data, style)

    Dumper.add_representer(str, Dumper.represent_str)
    return header + str(yaml.dump_all(documents, Dumper=Dumper, sort_keys=False, width=1000))


def _with_plan(request: LaunchRequest, words: list[str]) -> str:
    plan = [f"{name}={shlex.quote(value)}" for name, value in request.environment.items()]
    return " ".join(["env", *plan, *words])


def accelerate(request: LaunchRequest) -> str:
    """Return a YAML file for `accelerate launch --config_file`: DDP, FSDP2, or DeepSpeed for what these lack."""
    plan, offload = request.job.plan, request.job.plan.offload
    found: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": request.named("accelerator") if plan.world_size > 1 else "NO",
        "num_machines": request.nodes, "machine_rank": 0, "num_processes": plan.world_size,
        "mixed_precision": request.named("precision"), "use_cpu": request.accelerator == "cpu",
        "main_training_function": "main", "rdzv_backend": "static", "same_network": True,
    }  # fmt: skip
    if plan.zero_stage == 1 or offload in ("optimizer", "nvme"):
        found["distributed_type"] = "DEEPSPEED"
        found["deepspeed_config"] = {
            "zero_stage": plan.zero_stage, "gradient_accumulation_steps": request.accumulation,
            "offload_optimizer_device": "cpu" if offload == "optimizer" else offload,
            "offload_param_device": "nvme" if offload == "nvme" else "none",
            "zero3_init_flag": plan.zero_stage == 3,
        }  # fmt: skip
        for what in ("optimizer", "param") if offload == "nvme" else ():
            found["deepspeed_config"][f"offload_{what}_nvme_path"] = _DRIVES
    elif plan.zero_stage >= 2:
        found["distributed_type"] = "FSDP"
        found["fsdp_config"] = {
            "fsdp_version": 2, "fsdp_reshard_after_forward": plan.zero_stage == 3,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_activation_checkpointing": plan.recompute == "full",
            "fsdp_offload_params": offload == "parameters",
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }  # fmt: skip
    if found["mixed_precision"] == "fp8":
        found["fp8_config"] = {"backend": "TE"}
    several_nodes = ["--machine_rank", '"$NODE_RANK"', "--main_process_ip", '"$MASTER_ADDR"',
                     "--main_process_port", '"${MASTER_PORT:-29500}"']  # fmt: skip
    # CPUs are started as GPUs are: its `MULTI_CPU` takes MPI, and a script finds CPUs by this variable then.
    processors = ["ACCELERATE_USE_CPU=true"] if request.accelerator == "cpu" else []
    words = [*processors, "accelerate", "launch", "--config_file", "FILE", *(several_nodes if request.nodes > 1 else ()),
             shlex.quote(request.script_name)]  # fmt: skip
    start = f"Start it on {request.where} with:"
    remarks = [start, _with_plan(request, words), "", *request.duties]
    return yaml_text(request.header(*remarks), found)


# DeepSpeed's own names, and those of torch.optim, which it falls back to; the script makes any other.
_DEEPSPEED = {
    "adam": ("Adam", {"adam_w_mode": False}), "adamw": ("AdamW", {}), "lamb": ("Lamb", {}),
    "lion": ("Lion", {}), "adagrad": ("Adagrad", {}), "sgd": ("SGD", {}), "rmsprop": ("RMSprop", {}),
    "momentum": ("SGD", {"momentum": 0.9}),
}  # fmt: skip


def deepspeed(request: LaunchRequest) -> str:
    """Return a `ds_config.json`; its origin is the field `forerun`, which DeepSpeed does not read."""
    plan, offload = request.job.plan, request.job.plan.offload
    if plan.pp > 1 and plan.zero_stage > 1:
        refusal("deepspeed", f"zero_stage={plan.zero_stage} and pp={plan.pp}",
                "its pipeline takes ZeRO up to stage 1", fixed="zero_stage=1")  # fmt: skip
    hosts = ["--hostfile", "HOSTS"] if request.nodes > 1 else []
    words = ["deepspeed", *hosts, "--num_nodes", str(request.nodes), "--num_gpus", str(request.per_node),
             shlex.quote(request.script_name), "--deepspeed_config", "FILE"]  # fmt: skip
    rate = "The learning rate is yours: without one DeepSpeed takes the optimizer's default."
    remarks = [*request.duties, rate]
    zero: dict[str, Any] = {"stage": plan.zero_stage}
    places = {"optimizer": {"offload_optimizer": "cpu"},
              "parameters": {"offload_optimizer": "cpu", "offload_param": "cpu"},
              "nvme": {"offload_optimizer": "nvme", "offload_param": "nvme"}}  # fmt: skip
    for name, place in places.get(offload, {}).items():
        path = {"nvme_path": _DRIVES} if place == "nvme" else {}
        zero[name] = {"device": place, "pin_memory": True, **path}
    found: dict[str, Any] = {
        "forerun": {**request.origin, "start": _with_plan(request, words), "remarks": remarks},
        "train_batch_size": plan.global_batch, "train_micro_batch_size_per_gpu": plan.micro_batch,
        "gradient_accumulation_steps": request.accumulation, "zero_optimization": zero,
    }  # fmt: skip
    if name := request.named("precision"):
        found[name] = {"enabled": True}
    if request.job.workload.optimizer in _DEEPSPEED:
        kind, settings = _DEEPSPEED[request.job.workload.optimizer]
        found["optimizer"] = {"type": kind, "params": settings}
    else:
        kind = request.job.workload.optimizer
        remarks.append(f"The optimizer ({kind}) is none of DeepSpeed's: the script makes it.")
    if plan.zero_stage:
        found["zero_allow_untested_optimizer"] = True
    if plan.tp > 1:
        found["tensor_parallel"] = {"autotp_size": plan.tp}
    if plan.ep > 1:
        found["expert_parallel"] = {"enabled": True, "autoep_size": plan.ep}
    if plan.pp > 1:
        interval = int(plan.recompute == "full")
        found["pipeline"] = {"stages": plan.pp, "activation_checkpoint_interval": interval}
    if plan.offload_activations:
        found["activation_checkpointing"] = {"cpu_checkpointing": True}
    return json.dumps(found, indent=2) + "\n"


def fsdp(request: LaunchRequest) -> str:
    """Return a Python module whose `shard` lays a model out by FSDP2, or copies it whole (zero_stage=0)."""
    plan, offload = request.job.plan, request.job.plan.offload
    settings = {
        "DEVICE": request.named("accelerator"), "WORLD_SIZE": plan.world_size,
        "SHARDS": plan.world_size if plan.zero_stage else 1,
        "RESHARD_AFTER_FORWARD": plan.zero_stage == 3, "PRECISION": request.named("precision"),
        "RECOMPUTE": plan.recompute, "OFFLOAD": offload == "parameters",
        "MICRO_BATCH": plan.micro_batch, "GRADIENT_ACCUMULATION": request.accumulation,
        "GLOBAL_BATCH": plan.global_batch, "STEPS": request.steps,
        "OPTIMIZER": request.job.workload.optimizer, "SEQ_LEN": request.job.workload.seq_len,
    }  # fmt: skip
    remarks = (
        f"{request.script_name} is yours: it imports this file, calls shard(model, Layer) before it makes its optimizer, and",
        f"runs GRADIENT_ACCUMULATION passes of MICRO_BATCH samples in each of STEPS steps. Start it on {request.where} with:",
        " ".join(request.torchrun('"$NODE_RANK"', '"$MASTER_ADDR"')),
    )  # fmt: skip
    lines = "".join(f"{name} = {value!r}\n" for name, value in settings.items())
    body = Path(__file__).with_name("fsdp.py.j2").read_text(encoding="utf-8")
    caption = f'"""Shards a model over {counted(plan.world_size, "device")} as planned."""\n'
    return f"{request.header(*remarks)}{caption}{body.replace('{{ settings }}', lines.rstrip())}"


def nemo(request: LaunchRequest) -> str:
    """Return a YAML file of overrides for a recipe of Megatron Bridge, which NeMo trains language models with."""
    plan, workload = request.job.plan, request.job.workload
    full, spread = plan.recompute == "full", plan.dp * plan.cp % plan.ep
    shards = plan.zero_stage > 0
    found: dict[str, Any] = {
        "model": {
            "tensor_model_parallel_size": plan.tp, "pipeline_model_parallel_size": plan.pp,
            "virtual_pipeline_model_parallel_size": plan.vpp if plan.vpp > 1 else None,
            "context_parallel_size": plan.cp, "expert_model_parallel_size": plan.ep,
            "expert_tensor_parallel_size": 1 if spread else plan.tp,
            "sequence_parallel": plan.sequence_parallel and plan.tp > 1,
            "seq_length": workload.seq_len,
            "recompute_granularity": None if plan.recompute == "none" else plan.recompute,
            "recompute_method": "uniform" if full else None, "recompute_num_layers": 1 if full else None,
        },
        "train": {"micro_batch_size": plan.micro_batch, "global_batch_size": plan.global_batch,
                  "train_iters": request.steps},
        "dataset": {"seq_length": workload.seq_len},
        "ddp": {"use_distributed_optimizer": shards},
        "optimizer": {"optimizer": request.named("optimizer"), "use_distributed_optimizer": shards},
        "mixed_precision": request.named("precision"),
    }  # fmt: skip
    if plan.offload == "optimizer":
        found["optimizer"] |= {"optimizer_cpu_offload": True, "use_precision_aware_optimizer": True}
    if plan.zero_stage == 3:
        found["ddp"] |= {"data_parallel_sharding_strategy": "optim_grads_params"}
        found["ddp"]["use_megatron_fsdp"], found["dist"] = True, {"use_megatron_fsdp": True}
        found["checkpoint"] = {"ckpt_format": "fsdp_dtensor"}
    words = request.torchrun('"$NODE_RANK"', '"$MASTER_ADDR"')
    remarks = (
        f"{request.script_name} is yours; it puts this file over a recipe of Megatron Bridge 0.6, of the task {workload.task}:",
        "  config = process_config_with_overrides(RECIPE(), config_filepath=FILE)",
        "  (megatron.bridge.training.utils.omegaconf_utils), and gives it to pretrain or finetune.",
        f"The learning rate, the data and the rest are the recipe's. Start it on {request.where} with:",
        " ".join(words),
    )  # fmt: skip
    return yaml_text(request.header(*remarks), found)
