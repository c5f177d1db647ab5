"""Shell scripts: torchrun and Slurm start a script of the user's, Megatron-LM and torchtitan their own trainers."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Sequence

from forerun.launch.request import LaunchRequest, refusal

_BASH = "#!/usr/bin/env bash\n"
_REST = '"$@"'  # what the script is called with


def exports(request: LaunchRequest) -> str:
    """Return the lines that give a script the plan as environment variables."""
    return "".join(f"export {n}={shlex.quote(v)}\n" for n, v in request.environment.items())


def _started(
    request: LaunchRequest, entry: str, options: Iterable[str], remarks: Sequence[str], prelude: str
) -> str:
    """Return a script that starts an entry with options by torchrun, on each node where there are several."""
    start, check, last = "Start it with: bash FILE", "", request.nodes - 1
    if last:
        start = f"Start it on each node with: NODE_RANK=0 MASTER_ADDR=HOST bash FILE (ranks 0 to {last}; HOST: of rank 0)"
        check = f': "${{NODE_RANK:?the rank of this node, 0 to {last}}}" "${{MASTER_ADDR:?the host of rank 0}}"\n'
    first, *words = request.torchrun('"$NODE_RANK"', '"$MASTER_ADDR"', entry)
    return (
        f"{_BASH}{request.header(start, *remarks)}set -euo pipefail\n\n{check}{prelude}\n"
        + " \\\n  ".join((f"exec {first}", *words, *options))
        + "\n"
    )


def torchrun(request: LaunchRequest) -> str:
    """Return a bash script that starts a script of the user's by torchrun, the plan in its environment."""
    return _started(request, "", [_REST], request.duties, exports(request))


def slurm(request: LaunchRequest) -> str:
    """Return a batch script of Slurm: one task a node, which starts torchrun."""
    seconds = request.estimate.wall_seconds[2]
    limit = []
    if math.isfinite(seconds):  # the time in which 95 % of such runs end
        hours, minutes = divmod(math.ceil(seconds / 60), 60)
        limit = [f"--time={hours // 24}-{hours % 24:02d}:{minutes:02d}:00"]
    devices = [] if request.accelerator == "cpu" else [f"--gpus-per-node={request.per_node}"]
    options = [
        f"--job-name={request.label}", f"--nodes={request.nodes}", "--ntasks-per-node=1", *devices,
        "--exclusive", *limit,
    ]  # fmt: skip
    why = "--time is the predicted wall time, which 95 % of such runs keep; raise it where yours differ."
    remarks = ["Submit it with: sbatch FILE", *([why] if limit else []), *request.duties]
    words = request.torchrun('"$SLURM_NODEID"', '"$MASTER_ADDR"')
    start = shlex.quote(f"exec {' '.join(words)}")
    return (
        _BASH + "".join(f"#SBATCH {option}\n" for option in options) + request.header(*remarks)
        + "set -euo pipefail\n\n" + exports(request)
        + 'mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")\n'
        + 'export MASTER_ADDR="${hosts[0]}" MASTER_PORT="${MASTER_PORT:-29500}"\n\n'
        + "# Each node's own shell reads its rank.\n# shellcheck disable=SC2016\n"
        + f"srun --kill-on-bad-exit=1 bash -c {start}\n"
    )  # fmt: skip


def _dividing(layers: int, pp: int) -> int:
    """Return the most stages, at most pp and a divisor of it, into which layers divide."""
    return next(n for n in range(pp, 0, -1) if pp % n == 0 and layers % n == 0)


def megatron(request: LaunchRequest) -> str:
    """Return a bash script that starts Megatron-LM's `pretrain_gpt.py` (options of megatron-core 0.19)."""
    workload, plan, shape = request.job.workload, request.job.plan, request.job.workload.shape
    stages, options = plan.pp * plan.vpp, dict[str, object]()
    rest = shape.layers % stages
    options |= {
        "tensor-model-parallel-size": plan.tp, "pipeline-model-parallel-size": plan.pp,
        "context-parallel-size": plan.cp, "micro-batch-size": plan.micro_batch,
        "global-batch-size": plan.global_batch, "train-iters": request.steps,
        "num-layers": shape.layers, "hidden-size": shape.hidden, "num-attention-heads": shape.heads,
        "seq-length": workload.seq_len, "max-position-embeddings": workload.seq_len,
    }  # fmt: skip
    if shape.ffn:
        options["ffn-hidden-size"] = shape.ffn
    if 0 < shape.kv_heads < shape.heads:
        options |= {"group-query-attention": "", "num-query-groups": shape.kv_heads}
    if shape.head_size:
        options["kv-channels"] = shape.head_size
    if shape.experts:
        # Experts that the data-parallel ranks cannot hold alone spread over the tensor ranks too.
        each = 1 if plan.dp * plan.cp % plan.ep else plan.tp
        options |= {"num-experts": shape.experts, "moe-router-topk": shape.experts_per_token or 1}
        options |= {"expert-model-parallel-size": plan.ep, "expert-tensor-parallel-size": each}
    if plan.vpp > 1:
        options["num-virtual-stages-per-pipeline-rank"] = plan.vpp
    if rest:
        if (shape.layers + 2) % stages:
            refusal(
                "megatron",
                f"pp={plan.pp}",
                f"{shape.layers} layers do not divide into {stages} equal stages",
                fixed=f"pp={_dividing(shape.layers, plan.pp)},vpp=1",
            )
        options |= {f"account-for-{end}-in-pipeline-split": "" for end in ("embedding", "loss")}
    if plan.recompute != "none":
        options["recompute-granularity"] = plan.recompute
    if plan.recompute == "full":
        options |= {"recompute-method": "uniform", "recompute-num-layers": 1}
    switches = {
        "sequence-parallel": plan.sequence_parallel and plan.tp > 1,
        "use-distributed-optimizer": plan.zero_stage == 1,
        "optimizer-cpu-offload": plan.offload == "optimizer",
        "use-precision-aware-optimizer": plan.offload == "optimizer",
    }
    options |= {name: "" for name, on in switches.items() if on}
    words = [f"--{name} {value}".rstrip() for name, value in options.items()]
    words += filter(None, (request.named("precision"), request.named("optimizer")))
    vocab = str(shape.vocab)
    wanted = [': "${LR:?the learning rate, which forerun does not choose}"\n']
    if not shape.vocab:
        vocab = '"$VOCAB"'
        wanted.append(': "${VOCAB:?the size of the vocabulary, which forerun does not know}"\n')
    if workload.task == "finetune":
        wanted.append(': "${LOAD:?the folder of the checkpoint that is tuned}"\n')
        words += ['--load "$LOAD"', "--finetune"]
    prelude = (
        f"{''.join(wanted)}"
        "# What forerun does not know of the network; empty where it is Megatron-LM's usual one. Of Llama, for example:\n"
        "# --normalization RMSNorm --position-embedding-type rope --swiglu --disable-bias-linear\n"
        ': "${MODEL?options of normalization, positions, activation and biases}"\n'
        'read -ra MODEL <<< "$MODEL"\n'
        "# Megatron-LM asks for one connection below Blackwell where tp or cp is above 1.\n"
        "export CUDA_DEVICE_MAX_CONNECTIONS=1\n"
        "# A trial on random tokens: put your data, tokenizer and checkpoints here.\n"
        f"DATA=(--mock-data --tokenizer-type NullTokenizer --vocab-size {vocab})\n"
    )
    ends = ['--lr "$LR"', '"${DATA[@]}"', '"${MODEL[@]}"', _REST]
    remarks = ("Run it in a checkout of Megatron-LM that fits megatron-core 0.19.",)
    script = shlex.quote(request.script or "pretrain_gpt.py")
    return _started(request, script, [*words, *ends], remarks, prelude)


def torchtitan(request: LaunchRequest) -> str:
    """Return a bash script that starts torchtitan's trainer (options of torchtitan 0.3)."""
    workload, plan = request.job.workload, request.job.plan
    shard = plan.dp if plan.zero_stage >= 2 else 1
    if (shard * plan.cp * plan.tp) % plan.ep:
        refusal(
            "torchtitan",
            f"ep={plan.ep} and zero_stage=0",
            "its experts lie on the ranks that shard",
            fixed="zero_stage=2",
        )
    local = plan.micro_batch * (request.accumulation if plan.pp > 1 else 1)
    parallelism: dict[str, object] = {
        "data-parallel-replicate-degree": plan.dp // shard, "data-parallel-shard-degree": shard,
        "tensor-parallel-degree": plan.tp, "pipeline-parallel-degree": plan.pp,
        "context-parallel-degree": plan.cp, "expert-parallel-degree": plan.ep,
    }  # fmt: skip
    if plan.zero_stage >= 2:
        parallelism["fsdp-reshard-after-forward"] = "always" if plan.zero_stage == 3 else "never"
    if plan.pp > 1:
        parallelism["pipeline-parallel-microbatch-size"] = plan.micro_batch
        parallelism["pipeline-parallel-schedule"] = "Interleaved1F1B" if plan.vpp > 1 else "1F1B"
    if plan.vpp > 1:
        layers, stages = workload.shape.layers, plan.pp * plan.vpp
        each = math.ceil(layers / stages)
        if math.ceil(layers / each) != stages:
            refusal(
                "torchtitan",
                f"vpp={plan.vpp}",
                f"{layers} layers do not divide into {stages} stages",
                fixed=f"pp={_dividing(layers, plan.pp)},vpp=1",
            )
        parallelism |= {"pipeline-parallel-layers-per-stage": each,
                        "pipeline-parallel-first-stage-less-layers": 0,
                        "pipeline-parallel-last-stage-less-layers": 0}  # fmt: skip
    training = {
        "local-batch-size": local, "global-batch-size": plan.global_batch,
        "seq-len": workload.seq_len, "steps": request.steps,
        "mixed-precision-param": request.named("precision"),
    }  # fmt: skip
    words = [f"--training.{name} {value}" for name, value in training.items()]
    words += [f"--parallelism.{name} {value}" for name, value in parallelism.items()]
    if plan.pp > 1 or plan.ep > 1:  # it refuses its CUDA graphs there
        words.append("--training.disable-cuda-graphs")
    if plan.tp > 1 and not plan.sequence_parallel:
        words.append("--parallelism.no-enable-sequence-parallel")
    if plan.offload == "parameters":
        words.append("--training.enable-cpu-offload")
    words.append(f"--optimizer.param-groups.0.optimizer-name {request.named('optimizer')}")
    module, _, size = workload.name.lower().rpartition("-")
    name = "".join(c if c.isalnum() else "_" for c in module) or "llama3"
    prelude = (
        "# The model, as torchtitan names it: a module of its models, and a configuration of that module.\n"
        f"MODULE=${{MODULE:-{name}}}\n"
        f"CONFIG=${{CONFIG:-{name}_{''.join(c if c.isalnum() else '_' for c in size)}}}\n"
    )
    entry = shlex.quote(request.script) if request.script else "-m torchtitan.train"
    # The kind of recomputation is a subcommand, and comes last.
    ends = [_REST, f"activation-checkpoint:{plan.recompute}"]
    start = ['--module "$MODULE"', '--config "$CONFIG"', *words, *ends]
    remarks = ("The learning rate, the data and the rest are the configuration's.",)
    return _started(request, entry, start, remarks, prelude)
