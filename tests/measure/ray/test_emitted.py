"""An emitted RayJob: its entrypoint is submitted to a cluster with its environment, and trains on two workers."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import yaml

from tests.launch.conftest import SMALL, Emitted, emitted  # noqa: F401  (a fixture)
from tests.measure.ray.conftest import Head

TRAINING = """
import os
import torch
import torch.distributed as dist
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer


def train():
    passes, samples = int(os.environ["PLAN_GRADIENT_ACCUMULATION"]), torch.zeros(())
    for _ in range(int(os.environ["PLAN_STEPS"]) * passes):
        samples += int(os.environ["PLAN_MICRO_BATCH"])
    dist.all_reduce(samples)
    if dist.get_rank() == 0:
        print(f"TRAINED {int(samples)} samples on {dist.get_world_size()} ranks", flush=True)


workers = int(os.environ["PLAN_WORLD_SIZE"])
TorchTrainer(train, scaling_config=ScalingConfig(num_workers=workers)).fit()
"""


def test_the_entrypoint_of_an_emitted_job_trains_on_ray(
    able: None,
    head: Head,
    emitted: Emitted,  # noqa: F811
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    job = yaml.safe_load(emitted("rayjob", *SMALL, global_batch=8))
    path = tmp_path / "environment.yaml"
    path.write_text(job["spec"]["runtimeEnvYAML"])
    words = [str(Path(sys.executable).with_name("ray")), "job", "submit", "--address", head.dashboard,
             "--working-dir", str(tmp_path), "--runtime-env", str(path), "--"]  # fmt: skip
    _, *script = shlex.split(job["spec"]["entrypoint"])
    done = subprocess.run(
        [*words, sys.executable, *script], capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, **head.variables},
    )  # fmt: skip
    assert "TRAINED 24 samples on 2 ranks" in done.stdout, done.stdout[-3000:] + done.stderr[-2000:]
