"""What measuring costs: the same training loop with and without the recorder, and its calls alone.

Each process trains one model in blocks of four rounds, plain, measured, measured, plain, or the
other way around: a machine that slows down steadily slows both alike. For each model is printed
what measuring adds to the time of a step (the median over blocks, with its 95 % interval by
bootstrap) and to the CPU time of the worker, which other processes disturb less; once as forerun's
own loop is measured, once with the gradient norms that are taken of a user's own data, and once more with
a running estimate of their noise.

With `--workers 1`: what such an estimate costs a step that accumulates four such passes, and one of
a single pass, which is compared with the next one. `--noise-alone`: what the estimate adds to a loop
whose steps are timed already.

With `--calls`, CPU time in one process, which other processes disturb least: of the recorder's
calls in a step, of the callback for the HuggingFace Trainer with its hooks, of a look at a bucket
of gradients without and with its norms. From them follows what measuring takes of steps of given
lengths and buckets: every bucket is timed, and norms are taken in one step of several. The
collective, of one worker, is in both sides.

    python benchmarks/measure_overhead.py [--workers 2] [--blocks 20] [--models mlp-large] [--json]
    python benchmarks/measure_overhead.py --calls [--rounds 40] [--json]
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
MODELS = {
    "mlp-small": (64, 128, 2), "mlp-medium": (64, 512, 3), "mlp-large": (64, 1024, 3),
    "mlp-batch": (256, 512, 3),
}  # fmt: skip
# And whether gradient norms are taken, and a noise is fed.
DATA = {"made-up data": (False, False), "own data": (True, False), "own data, noise": (True, True)}
PASSES = (4, 1)  # of a step of one worker
STEPS = ((5, 0), (5, 1), (5, 4), (20, 4), (100, 20))  # (milliseconds, buckets)
BUCKETS = 20  # of the model that tells what a bucket costs


def model_of(width: int, depth: int) -> Any:
    """Return a stack of dense layers."""
    from torch import nn

    parts = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*parts)


class Training:
    """One model with its optimizer, and a recorder where it is measured."""

    def __init__(
        self,
        module: Any,
        batch: int,
        width: int,
        recorder: Any = None,
        observed: bool = True,
        passes: int = 1,
    ) -> None:
        import torch

        self._inputs = [torch.randn(batch, width) for _ in range(passes)]
        self._module, self._recorder = module, recorder
        self._optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)
        if recorder is not None and observed and hasattr(module, "register_comm_hook"):
            recorder.reduce_through(module)

    def run(self, steps: int) -> tuple[float, float]:
        """Return seconds and CPU seconds of a step."""
        recorder = self._recorder
        begun, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            if recorder:
                recorder.switch("input")
            for part in self._inputs:
                if recorder:
                    recorder.switch("forward")
                loss = self._module(part).square().mean() / len(self._inputs)
                if recorder:
                    recorder.switch("backward")
                loss.backward()
            if recorder:
                recorder.gradients.updated(self._optimizer)
                recorder.switch("optimizer")
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
            if recorder:
                recorder.step()
        wall, used = time.perf_counter() - begun, time.process_time() - cpu
        return wall / steps, used / steps


def recorder_of(norms: bool, noise: bool, rank: int = 0, workers: int = 1) -> Any:
    """Return a recorder as a worker has it, of 64 samples a step."""
    from forerun.measure import GradientNoise
    from forerun.measure.progress import ProgressFile
    from forerun.measure.recorder import Recorder

    progress = ProgressFile(Path(mkdtemp()) / "p")
    fed = GradientNoise() if noise else None
    recorder = Recorder(None, rank, workers, None, progress, noise=fed)
    recorder.explicit, recorder.samples = True, 64
    if not norms:
        recorder.use_synthetic_data()
    return recorder


def blocks_of(
    name: str, taken: tuple[bool, bool], blocks: int, steps: int, passes: int = 1,
    timed: bool = False,
) -> list[list[tuple[float, float]]]:  # fmt: skip
    """Return (seconds, CPU seconds) of a step, plain (or timed alone) and measured, of each block in this worker."""
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
        recorder = recorder_of(*taken, rank, workers) if measured else None
        if timed and not measured:
            recorder = recorder_of(False, False, rank, workers)
        sides.append(Training(module, batch, width, recorder, passes=passes))
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


def worker(models: list[str], blocks: int, steps: int, alone: bool) -> None:
    """Measure models in this worker; the first one prints."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    cases = [(data, taken, 1) for data, taken in DATA.items()]
    if dist.get_world_size() == 1:
        cases = [(f"noise, passes: {passes}", (True, True), passes) for passes in PASSES]
    cases = [case for case in cases if all(case[1]) or not alone]
    for name in models:
        for data, taken, passes in cases:
            found = blocks_of(name, taken, blocks, steps, passes, alone)
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


def layers(buckets: int) -> Any:
    """Return DDP of as many layers as buckets: each is larger than a bucket may be."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    parts = [torch.nn.Linear(32, 32, bias=False) for _ in range(buckets)]
    return DistributedDataParallel(torch.nn.Sequential(*parts), bucket_cap_mb=1e-3)


def more_of(sides: list[Training], rounds: int, steps: int) -> list[float]:
    """Return the CPU microseconds of a step that each further side takes more than the first."""
    used: list[list[float]] = [[] for _ in sides]
    for side in sides:
        side.run(steps)
    for i in range(rounds):
        for k in range(len(sides))[:: -1 if i % 2 else 1]:
            used[k].append(sides[k].run(steps)[1])
    apart = np.array(used[1:]) - np.array(used[0])
    return [float(one) * 1e6 for one in np.median(apart, axis=1)]


def calls(rounds: int) -> dict[str, float]:
    """Return CPU microseconds: of the recorder in a step, of a bucket's observation, of its norms."""
    sides = [
        Training(layers(1), 8, 32),
        Training(layers(1), 8, 32, recorder_of(False, False), observed=False),
    ]
    (step,) = more_of(sides, rounds, 100)
    sides = []
    for observed, norms_every in ((False, 0), (True, 0), (True, 1)):
        recorder = recorder_of(True, False, workers=2)
        recorder.gradients.every = norms_every
        sides.append(Training(layers(BUCKETS), 8, 32, recorder, observed))
    look, both = (one / BUCKETS for one in more_of(sides, rounds, 10))
    return {"step_us": step, "look_us": look, "norms_us": both - look}


class Called(Training):
    """Training by a loop that calls the Trainer's callback, as the Trainer does."""

    def __init__(self, module: Any) -> None:
        from forerun.measure.callbacks import TrainerCallback

        super().__init__(module, 8, 32)
        self._callback = TrainerCallback()

    def run(self, steps: int) -> tuple[float, float]:
        """Return seconds and CPU seconds of a step; begin and end of training are in neither."""
        callback, module, optimizer = self._callback, self._module, self._optimizer
        callback.on_train_begin(None, None, None, model=module)
        begun, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            callback.on_step_begin(None, None, None)
            module(*self._inputs).square().mean().backward()
            optimizer.step()
            callback.on_step_end(None, None, None)
            optimizer.zero_grad(set_to_none=True)
        wall, used = time.perf_counter() - begun, time.process_time() - cpu
        callback.on_train_end(None, None, None)
        return wall / steps, used / steps


def shares(found: dict[str, float]) -> dict[str, float]:
    """Return what measuring takes of a step's time, by length and buckets of the step."""
    from forerun.measure.gradients import NORMS_EVERY

    result = {}
    for ms, buckets in STEPS:
        for data, norms in (("made-up data", 0), ("own data", 1)):
            used = found["look_us"] + norms * found["norms_us"] / NORMS_EVERY
            result[f"{ms} ms, {buckets} buckets, {data}"] = (
                (found["step_us"] + buckets * used) / ms / 1e3
            )  # fmt: skip
    return result


def tell_calls(rounds: int, as_json: bool) -> None:
    """Print what the calls take, and which share of a step that is."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    found = calls(rounds)
    alone = [model_of(32, 2) for _ in range(2)]
    (found["callback_us"],) = more_of([Training(alone[0], 8, 32), Called(alone[1])], rounds, 20)
    found_shares = shares(found)
    if as_json:
        print(json.dumps({**found, "shares": found_shares}, indent=2))
        return
    print(
        f"recorder's calls {found['step_us']:.1f} us a step, the Trainer's callback and hooks"
        f" {found['callback_us']:.1f} us; a look {found['look_us']:.1f} us a bucket,"
        f" its norms {found['norms_us']:.1f} us more"
    )
    for name, share in found_shares.items():
        print(f"of a step of {name:34s} {share:7.3%}")


def main() -> None:
    """Start the workers and print what each model's measuring costs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--models", default=",".join(MODELS), help="names apart by commas")
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument(
        "--steps", type=int, default=10, help="of a round, four of which are a block"
    )
    parser.add_argument(
        "--noise-alone", action="store_true", help="over steps that are timed already"
    )
    parser.add_argument("--calls", action="store_true", help="time the recorder's calls alone")
    parser.add_argument("--rounds", type=int, default=40, help="of --calls")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if "RANK" in os.environ:
        worker(asked.models.split(","), asked.blocks, asked.steps, asked.noise_alone)
    if asked.calls:
        tell_calls(asked.rounds, asked.json)
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [sys.executable, __file__, *sys.argv[1:]]
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
            f"{name:28s} step {one['step_seconds'] * 1e3:8.3f} ms   measuring costs"
            f" {one['overhead']:+7.2%}  (95 %: {one['overhead_low']:+.2%} to {one['overhead_high']:+.2%})"
            f"   CPU time {one['cpu_overhead']:+7.2%}"
        )


if __name__ == "__main__":
    main()
