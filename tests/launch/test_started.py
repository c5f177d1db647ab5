"""Emitted configurations are started: torchrun, Accelerate and FSDP train a tiny network on two processes."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.launch.conftest import SMALL, Emitted
from tests.needs import require

SCRIPT = Path(__file__).with_name("train_tiny.py")
# Three steps of 8 samples each.
TRAINED = "TRAINED {'ranks': 2, 'samples': 24, 'arguments': [%s]}"
SHARDED = """
import torch
import torch.distributed as dist
import copied, sharded

for plan in (copied, sharded):
    layers = [torch.nn.Linear(8, 8) for _ in range(3)]
    model = plan.shard(torch.nn.Sequential(*layers), torch.nn.Linear)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(plan.STEPS):
        for _ in range(plan.GRADIENT_ACCUMULATION):
            model(torch.ones(plan.MICRO_BATCH, 8)).float().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    local = sum(p.to_local().numel() for p in model.parameters())
    whole = sum(p.numel() for p in model.parameters())
    if dist.get_rank() == 0:
        print(f"SHARDED {plan.__name__} {local} of {whole} on {dist.get_world_size()}", flush=True)
dist.destroy_process_group()
"""
ACCELERATED = """
import os
import torch
from accelerate import Accelerator

passes, samples = int(os.environ["PLAN_GRADIENT_ACCUMULATION"]), 0
accelerator = Accelerator(gradient_accumulation_steps=passes)
model = torch.nn.Linear(4, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
for _ in range(int(os.environ["PLAN_STEPS"]) * passes):
    with accelerator.accumulate(model):
        batch = torch.ones(int(os.environ["PLAN_MICRO_BATCH"]), 4)
        accelerator.backward(model(batch).sum())
        optimizer.step()
        optimizer.zero_grad()
        samples += len(batch)
total = int(accelerator.reduce(torch.tensor(samples)))
kind, many = accelerator.distributed_type.value, accelerator.num_processes
accelerator.print(f"ACCELERATED {total} samples on {many} ranks, {kind}, {accelerator.device.type}")
accelerator.end_training()
"""


@pytest.fixture(autouse=True)
def _needs_torch() -> None:
    pytest.importorskip("torch")


def run(words: list[str], folder: Path) -> str:
    """Run a command in a folder, beside the tools of this interpreter, and return what it prints."""
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ACCELERATE_", "PLAN_"))}
    env = {**kept, "PATH": tools, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
           "CUDA_VISIBLE_DEVICES": "", "HOME": str(folder)}  # fmt: skip
    done = subprocess.run(
        words, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-3000:]
    return done.stdout


def test_torchrun_trains_by_the_emitted_script(emitted: Emitted, tmp_path: Path) -> None:
    path = tmp_path / "launch.sh"
    path.write_text(emitted("torchrun", *SMALL, script=str(SCRIPT), global_batch=8))
    assert TRAINED % "'--mine'" in run(["bash", str(path), "--mine"], tmp_path)


def test_accelerate_trains_by_the_emitted_file_and_the_command_in_it(
    emitted: Emitted, tmp_path: Path
) -> None:
    require("accelerate", find_spec("accelerate") is not None, "pip install accelerate")
    script, path = tmp_path / "my train.py", tmp_path / "accelerate.yaml"
    script.write_text(ACCELERATED)
    path.write_text(
        emitted("accelerate", *SMALL, script=script.name, global_batch=8, precision="fp32")
    )
    (start,) = (line for line in path.read_text().splitlines() if line.startswith("# env PLAN_"))
    words = [str(path) if word == "FILE" else word for word in shlex.split(start[2:])]
    assert "ACCELERATED 24 samples on 2 ranks, MULTI_CPU, cpu" in run(words, tmp_path)


def test_fsdp_shards_by_the_emitted_module(emitted: Emitted, tmp_path: Path) -> None:
    """Two plans are carried out in one start, whose words are the same in both files."""
    starts = set()
    for name, stage, recompute in (("copied", 0, "none"), ("sharded", 3, "full")):
        plan = f"dp=2,micro_batch=2,zero_stage={stage},recompute={recompute}"
        text = emitted("fsdp", "resnet50", "1x2xcpu", plan, global_batch=8, precision="bf16")
        (tmp_path / f"{name}.py").write_text(text)
        starts |= {line for line in text.splitlines() if line.startswith("# torchrun")}
    (tmp_path / "train.py").write_text(SHARDED)
    (start,) = starts
    told = run(shlex.split(start[2:]), tmp_path)
    assert "SHARDED copied 216 of 216 on 2" in told
    assert "SHARDED sharded 108 of 216 on 2" in told
