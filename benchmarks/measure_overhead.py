"""What measuring costs: the same training loop with and without the recorder, and its calls alone.

Each process trains one model in blocks of four rounds, plain, measured, measured, plain, or the
other way around: a machine that slows down steadily slows both alike. For each model is printed
what measuring adds to the time of a step (the median over blocks, with its 95 % interval by
bootstrap) and to the CPU time of the worker, which other processes disturb less; once as forerun's
own loop is measured, and once with the gradient norms that are taken of a user's own data. With
`--calls`, what the recorder's calls take by themselves, in microseconds a step and a bucket.

    python benchmarks/measure_overhead.py [--workers 2] [--blocks 20] [--json]
    python benchmarks/measure_overhead.py --calls
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
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
MODELS = {"mlp-small": (64, 128, 2), "mlp-medium": (64, 512, 3), "mlp-large": (64, 1024, 3)}
DATA = {"made-up data": False, "own data": True}  # and whether gradient norms are taken
STEPS_MS = (5, 20, 100)  # steps that the calls' time is a share of
BUCKETS = 20  # of the model that tells what a bucket costs


def model_of(width: int, depth: int) -> Any:
    """Return a stack of dense layers."""
    from torch import nn

    parts = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*parts)


class Training:
    """One model with its optimizer, and a recorder where it is measured."""

    def __init__(self, module: Any, batch: int, width: int, recorder: Any = None) -> None:
        import torch

        self._inputs = torch.randn(batch, width)
        self._module, self._recorder = module, recorder
        self._optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)
        if recorder is not None and hasattr(module, "register_comm_hook"):
            recorder.reduce_through(module)

    def run(self, steps: int) -> tuple[float, float]:
        """Return seconds and CPU seconds of a step."""
        recorder = self._recorder
        begun, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            if recorder:
                recorder.switch("input")
                recorder.switch("forward")
            loss = self._module(self._inputs).square().mean()
            if recorder:
                recorder.switch("backward")
            loss.backward()
            if recorder:
                recorder.switch("optimizer")
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
            if recorder:
                recorder.step()
        wall, used = time.perf_counter() - begun, time.process_time() - cpu
        return wall / steps, used / steps


def recorder_of(norms: bool, rank: int = 0, workers: int = 1) -> Any:
    """Return a recorder as a worker has it."""
    from forerun.measure.progress import Progress
    from forerun.measure.recorder import Recorder

    recorder = Recorder(None, rank, workers, None, Progress(Path(mkdtemp()) / "p"))
    recorder.explicit = True
    if not norms:
        recorder.data_is_made_up()
    return recorder


def blocks_of(name: str, norms: bool, blocks: int, steps: int) -> list[list[tuple[float, float]]]:
    """Return (seconds, CPU seconds) of a step, plain and measured, of each block in this worker."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    batch, width, depth = MODELS[name]
    rank, workers = dist.get_rank(), dist.get_world_size()
    sides = []
    for measured in (False, True):
        torch.manual_seed(0)
        module = model_of(width, depth)
        module = DistributedDataParallel(module) if workers > 1 else module
        recorder = recorder_of(norms, rank, workers) if measured else None
        sides.append(Training(module, batch, width, recorder))
    for side in sides:
        side.run(steps)
    result = []
    for i in range(blocks):
        order = (0, 1, 1, 0) if i % 2 else (1, 0, 0, 1)
        rounds = np.zeros((2, 2))
        for which in order:
            dist.barrier()
            rounds[which] += np.array(sides[which].run(steps)) / 2
        result.append([(float(wall), float(cpu)) for wall, cpu in rounds])
    return result


def worker(blocks: int, steps: int) -> None:
    """Measure every model in this worker; the first one prints."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name in MODELS:
        for data, norms in DATA.items():
            found = blocks_of(name, norms, blocks, steps)
            if dist.get_rank() == 0:
                print(json.dumps({"model": name, "data": data, "blocks": found}), flush=True)
    dist.barrier()
    os._exit(0)


def ratio(blocks: FloatArray) -> dict[str, float]:
    """Return the cost of measuring as shares, with the interval of time's, and the plain step.

    blocks: (n, 2, 2), plain and measured by seconds and CPU seconds.
    """
    pairs = np.log(blocks[:, 1] / blocks[:, 0])
    rng = np.random.default_rng(0)
    draws = np.median(rng.choice(pairs[:, 0], (2000, len(pairs))), axis=1)
    low, high = np.quantile(draws, (0.025, 0.975))
    time_share, cpu_share = np.expm1(np.median(pairs, axis=0))
    return {
        "step_seconds": float(np.median(blocks[:, 0, 0])), "overhead": float(time_share),
        "overhead_low": float(np.expm1(low)), "overhead_high": float(np.expm1(high)),
        "cpu_overhead": float(cpu_share),
    }  # fmt: skip


def calls(rounds: int = 40, steps: int = 500) -> dict[str, float]:
    """Return CPU microseconds of the recorder's calls in a step, and of its hook for one bucket.

    The hook's are what training in one process takes more with it, by the number of buckets: the
    collective itself, of one worker, is in both.
    """
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    recorder, alone = recorder_of(norms=False), []
    for _ in range(rounds):
        begun = time.process_time()
        for _ in range(steps):
            for part in ("input", "forward", "backward", "optimizer"):
                recorder.switch(part)
            recorder.step()
        alone.append((time.process_time() - begun) / steps)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    sides = []
    for measured in (False, True):
        layers = [torch.nn.Linear(32, 32, bias=False) for _ in range(BUCKETS)]
        # Each layer is larger than a bucket may be, so that it has one for itself.
        module = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=1e-3)
        sides.append(Training(module, 8, 32, recorder_of(norms=False) if measured else None))
    more = []
    for i in range(rounds):
        order = (0, 1, 1, 0) if i % 2 else (1, 0, 0, 1)
        used = np.zeros(2)
        for which in order:
            used[which] += sides[which].run(10)[1] / 2
        more.append(used[1] - used[0])
    step = float(np.median(alone)) * 1e6
    return {"step_us": step, "bucket_us": (float(np.median(more)) * 1e6 - step) / BUCKETS}


def tell_calls(as_json: bool) -> None:
    """Print what the calls take, and which share of a step that is."""
    found = calls()
    if as_json:
        print(json.dumps(found, indent=2))
        return
    print(
        f"recorder's calls {found['step_us']:.1f} us a step, hook {found['bucket_us']:.1f} us a bucket"
    )
    for ms in STEPS_MS:
        told = [
            f"{buckets} buckets {(found['step_us'] + buckets * found['bucket_us']) / ms / 10:.3f} %"
            for buckets in (0, 1, 4)
        ]
        print(f"of a step of {ms:3d} ms: {', '.join(told)}")


def main() -> None:
    """Start the workers and print what each model's measuring costs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument(
        "--steps", type=int, default=10, help="of a round, four of which are a block"
    )
    parser.add_argument("--calls", action="store_true", help="time the recorder's calls alone")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if "RANK" in os.environ:
        worker(asked.blocks, asked.steps)
    if asked.calls:
        tell_calls(asked.json)
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [sys.executable, __file__, "--blocks", str(asked.blocks), "--steps", str(asked.steps)]
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
    lines = list(map(json.loads, told.splitlines()))
    found = {f"{one['model']}, {one['data']}": ratio(np.array(one["blocks"])) for one in lines}
    if asked.json:
        print(json.dumps(found, indent=2))
        return
    print(
        f"{asked.workers} workers, {asked.blocks} blocks of two rounds each way, of {asked.steps} steps"
    )
    for name, one in found.items():
        print(
            f"{name:24s} step {one['step_seconds'] * 1e3:8.3f} ms   measuring costs"
            f" {one['overhead']:+7.2%}  (95 %: {one['overhead_low']:+.2%} to {one['overhead_high']:+.2%})"
            f"   CPU time {one['cpu_overhead']:+7.2%}"
        )


if __name__ == "__main__":
    main()
