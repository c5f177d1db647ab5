"""Prints docs/launching.md: each target of --emit, what it writes and which plans it cannot start."""

from __future__ import annotations

from forerun import registry
from forerun.launch.request import framework_for, limits_of, names_of

_HEAD = """\
# Launching

```
forerun recommend llama3-8b --clusters 8x8xh100-sxm-80gb --tokens 10B --emit slurm > job.sh
forerun predict llama3-8b --cluster 4x8xh100-sxm-80gb --tokens 10B --emit torchtitan --emit-to launch.sh
```

`--emit TARGET` writes the launch configuration of the chosen plan: of the best (`recommend`), or of the one
that is asked for (`predict`). It goes to stdout in place of the answer, or to `--emit-to FILE` beside it; a file
that is there already is replaced with `--force` only. `--script FILE` names the training script (`train.py`).

Each file says which command it comes from, when it was written, and what was predicted: step, run, cost and
memory with bands, and the probability of fitting. These are comments; in the JSON of DeepSpeed they are the
field `forerun`, which DeepSpeed does not read.

**The script is yours.** Launchers (torchrun, slurm, k8s, skypilot, rayjob) start any script, so they run any plan
that reduces with collectives. The script gets the plan as environment variables: `PLAN_DP`, `PLAN_TP`, `PLAN_PP`,
`PLAN_CP`, `PLAN_EP`, `PLAN_VPP`, `PLAN_MICRO_BATCH`, `PLAN_GRADIENT_ACCUMULATION`, `PLAN_GLOBAL_BATCH`,
`PLAN_ZERO_STAGE`, `PLAN_RECOMPUTE`, `PLAN_SEQUENCE_PARALLEL`, `PLAN_OFFLOAD`, `PLAN_PRECISION`, `PLAN_OPTIMIZER`,
`PLAN_SEQ_LEN`, `PLAN_STEPS`, `PLAN_WORLD_SIZE` ... It must do what they say: the launcher cannot check it.
Accelerate and DeepSpeed read their file, and the start command in it gives the script the same variables.

forerun does not choose a learning rate, data or a container image. Where a file needs one, a placeholder says so.

A target that is training software is planned and timed as that framework, as `--framework` would; another
`--framework` beside it is refused, except PyTorch's. A search looks at the clusters and plans that the target runs. What
is stated and the target lacks is refused by its name, with the targets that have it. Limits of training software come from the [table of frameworks](frameworks.md), and those of the
files from `src/forerun/launch/targets.json`. Beside the table: DeepSpeed's pipeline takes ZeRO up to stage 1,
Megatron-LM and torchtitan need layers that divide into the stages, and all need whole accumulation passes.

The tools' own parsers read these files: [what was checked](../benchmarks/results/emitted-configurations.md), by
`python benchmarks/check_emitted.py`. Tests start torchrun, Accelerate, FSDP and a Ray job on two processes.

| target | writes | cannot start |
|---|---|---|"""


def page() -> str:
    """Return the page's text."""
    lines = [_HEAD]
    for entry in registry.entries("targets"):
        reasons: dict[str, list[str]] = {}
        for feature, reason in limits_of(entry.name).cannot.items():
            reasons.setdefault(reason, []).append(f"`{feature}`")
        limits = [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]
        for field, words in names_of(entry.name).items():
            limits.append(f"`{field}` other than {', '.join(words)}")
        own = framework_for(entry.name)
        writes = f"{entry.help} (framework {own})" if own else entry.help
        lines.append(f"| {entry.name} | {writes} | {'; '.join(limits)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(page())
