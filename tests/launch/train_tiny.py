"""A training script of a user: it reads the plan from the environment, and trains a tiny network by it."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

PLAN = {name: os.environ[f"PLAN_{name}"] for name in
        ("WORLD_SIZE", "MICRO_BATCH", "GRADIENT_ACCUMULATION", "GLOBAL_BATCH", "STEPS")}  # fmt: skip


def main() -> None:
    """Train, and print what was done on rank 0."""
    dist.init_process_group("gloo")
    assert dist.get_world_size() == int(PLAN["WORLD_SIZE"])
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    samples = torch.zeros(())
    for _ in range(int(PLAN["STEPS"])):
        for _ in range(int(PLAN["GRADIENT_ACCUMULATION"])):
            batch = torch.ones(int(PLAN["MICRO_BATCH"]), 4)
            model(batch).sum().backward()
            samples += len(batch)
        optimizer.step()
    dist.all_reduce(samples)
    if dist.get_rank() == 0:
        done = {"ranks": dist.get_world_size(), "samples": int(samples), "arguments": sys.argv[1:]}
        print(f"TRAINED {done}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
