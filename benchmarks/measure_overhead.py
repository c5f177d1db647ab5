"""What measuring costs: the same training loop with and without the recorder, interleaved.

Each process trains one model in rounds of steps; rounds with and without measuring follow one
another in random order, so that a machine that slows down slows both. For each model is printed
what measuring adds to the time of a step (the median over pairs of rounds, with its 95 % interval
by bootstrap) and to the CPU time of the worker, which other processes disturb less.

    python benchmarks/measure_overhead.py [--workers 2] [--rounds 40] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

MODELS = {"mlp-small": (64, 128, 2), "mlp-medium": (64, 512, 3), "mlp-large": (64, 1024, 3)}


def model_of(width: int, depth: int) -> Any:
    """Return a stack of dense layers."""
    from torch import nn

    parts = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*parts)


def rounds_of(name: str, rounds: int, steps: int) -> list[tuple[bool, float, float]]:
    """Return (measured, seconds, CPU seconds a step) of alternating rounds in this worker."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from forerun.measure.progress import Progress
    from forerun.measure.recorder import Recorder

    batch, width, depth = MODELS[name]
    workers = dist.get_world_size()
    torch.manual_seed(0)
    inputs = torch.randn(batch, width)
    trainers = []
    for measured in (False, True):
        module = model_of(width, depth)
        module = DistributedDataParallel(module) if workers > 1 else module
        recorder = None
        if measured:
            folder = Path(mkdtemp())
            recorder = Recorder(None, dist.get_rank(), workers, None, Progress(folder / "p"))
            recorder.explicit = True
            if workers > 1:
                recorder.reduce_through(module)
        trainers.append((module, torch.optim.AdamW(module.parameters(), lr=1e-4), recorder))

    def go(measured: bool) -> tuple[float, float]:
        module, optimizer, recorder = trainers[measured]
        dist.barrier()
        begun, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            if recorder:
                recorder.switch("input")
                recorder.switch("forward")
            loss = module(inputs).square().mean()
            if recorder:
                recorder.switch("backward")
            loss.backward()
            if recorder:
                recorder.switch("optimizer")
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if recorder:
                recorder.step()
        wall, used = time.perf_counter() - begun, time.process_time() - cpu
        return wall / steps, used / steps

    for measured in (False, True):
        go(measured)
    order = np.random.default_rng(0)  # the same in every worker
    result = []
    for _ in range(rounds):
        result += [(m, *go(m)) for m in map(bool, order.permutation([False, True]))]
    return result


def worker(rounds: int, steps: int) -> None:
    """Measure every model in this worker; the first one prints."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name in MODELS:
        found = rounds_of(name, rounds, steps)
        if dist.get_rank() == 0:
            print(json.dumps({"model": name, "rounds": found}), flush=True)
    dist.barrier()
    os._exit(0)


def ratio(rounds: list[tuple[bool, float, float]]) -> dict[str, float]:
    """Return the cost of measuring as shares, with the interval of time's, and the plain step."""
    plain = np.array([row[1:] for row in rounds if not row[0]])
    with_it = np.array([row[1:] for row in rounds if row[0]])
    pairs = np.log(with_it / plain)  # round i of each kind was run next to the other's
    rng = np.random.default_rng(0)
    draws = [np.median(rng.choice(pairs[:, 0], len(pairs))) for _ in range(2000)]
    low, high = np.quantile(draws, (0.025, 0.975))
    time_share, cpu_share = np.expm1(np.median(pairs, axis=0))
    return {
        "step_seconds": float(np.median(plain[:, 0])), "overhead": float(time_share),
        "overhead_low": float(np.expm1(low)), "overhead_high": float(np.expm1(high)),
        "cpu_overhead": float(cpu_share),
    }  # fmt: skip


def main() -> None:
    """Start the workers and print what each model's measuring costs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if "RANK" in os.environ:
        worker(asked.rounds, asked.steps)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [sys.executable, __file__, "--rounds", str(asked.rounds), "--steps", str(asked.steps)]
    shared = {"WORLD_SIZE": str(asked.workers), "MASTER_ADDR": "127.0.0.1",
              "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}  # fmt: skip
    started = [
        subprocess.Popen(
            words,
            env={**os.environ, **shared, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(asked.workers)
    ]
    told, *_ = [process.communicate()[0] for process in started]
    found = {one["model"]: ratio(one["rounds"]) for one in map(json.loads, told.splitlines())}
    if asked.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{asked.workers} workers, {asked.rounds} rounds of {asked.steps} steps each way")
    for name, one in found.items():
        print(
            f"{name:12s} step {one['step_seconds'] * 1e3:8.3f} ms   measuring costs"
            f" {one['overhead']:+7.2%}  (95 %: {one['overhead_low']:+.2%} to {one['overhead_high']:+.2%})"
            f"   CPU time {one['cpu_overhead']:+7.2%}"
        )


if __name__ == "__main__":
    main()
