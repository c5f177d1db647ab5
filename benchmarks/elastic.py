"""Elastic training, measured: the pause of a move, kills at random moments, and losses with and without moves.

The CNN of `examples/digits_elastic.py` trains on up to two workers of this machine. Pauses are from the end of the
last step of a group to the begin of the first step of the next one. Of each kill, every sample id of the steps that
count is accounted for. Held-out loss and accuracy are compared after equal epochs, over seeds. Prints a page of
Markdown.

    python benchmarks/elastic.py > benchmarks/results/elastic-HARDWARE-DATE.md      # from the root, on a quiet machine
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from forerun.measure.elastic.checkpoint import newest_checkpoint, read_checkpoint
from forerun.measure.elastic.driver import TRAINING, ElasticWorkers
from forerun.measure.elastic.job import TrainingJob
from forerun.measure.elastic.samples import SampleStream

EPOCHS = 8
# A driver that is killed: its file names the same training, which each sitting goes on with.
JOB = """
entry: benchmarks.elastic:counted
settings: {{ids: {ids}, pause: 0.01}}
workers: [1, 2]
global_batch: [24, 48]
epochs: 1000
checkpoint: 1s
"""


def numbers(count: int = 960) -> Any:
    """Return a dataset whose samples are their own ids, with made-up inputs and targets."""
    import torch

    inputs = torch.randn(count, 16, generator=torch.Generator().manual_seed(0))
    return torch.utils.data.TensorDataset(torch.arange(count), inputs, inputs.sum(1, keepdim=True))


def counted(job: Any) -> None:
    """Train a small network, and write down which ids each step takes before it is made."""
    import torch

    torch.manual_seed(job.seed)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    run = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), numbers())
    with Path(job.settings["ids"], f"{os.getpid()}.jsonl").open("a", buffering=1) as file:
        for ids, inputs, targets in run:
            run.backward((model(inputs) - targets).square().mean())
            file.write(json.dumps([run.steps, run._generation, run.batch, ids.tolist()]) + "\n")
            time.sleep(job.settings["pause"])
            run.step()


def digits(job: Any) -> None:
    """Train the example's CNN; at the end rank 0 writes the held-out loss and accuracy."""
    import torch
    from torch.nn import functional

    from examples.digits_elastic import digits as samples
    from examples.digits_elastic import network

    torch.manual_seed(job.seed)
    model = network()
    data = torch.utils.data.TensorDataset(*samples(held=False))
    run = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), data)
    for inputs, targets in run:
        run.backward(functional.cross_entropy(model(inputs), targets))
        run.step()
    if run.rank == 0:
        images, labels = samples(held=True)
        with torch.no_grad():
            scores = model(images)
        found = {"loss": float(functional.cross_entropy(scores, labels)),
                 "accuracy": float((scores.argmax(1) == labels).float().mean())}  # fmt: skip
        Path(job.settings["out"]).write_text(json.dumps(found))


def taken(workers: ElasticWorkers, steps: int) -> tuple[list[dict[str, Any]], bool]:
    """Return reports of so many steps, and whether the group still trains."""
    found: list[dict[str, Any]] = []
    while len(found) < steps:
        event = workers.take(60.0)
        if event is None:
            raise SystemExit("no step came for a minute")
        if event["is"] == "step":
            found.append(event)
        elif event["is"] == "stopped" and event["generation"] == workers.generation:
            return found, False
    return found, True


def accounted(ids: Path, size: int, seed: int, steps: int) -> tuple[int, int]:
    """Return how many ids of the steps that count were lost, and how many came more than once."""
    made: dict[int, dict[int, list[int]]] = {}
    batches: dict[tuple[int, int], int] = {}
    for path in ids.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            step, generation, batch, some = json.loads(line)
            made.setdefault(step, {}).setdefault(generation, []).extend(some)
            batches[step, generation] = batch
    stream, position, lost, repeated = SampleStream(size, seed), 0, 0, 0
    for step in range(steps):
        last = max(made[step])
        wanted, got = stream.ids(position, batches[step, last]).tolist(), made[step][last]
        lost += sum(
            (np.bincount(wanted, minlength=size) - np.bincount(got, minlength=size)).clip(0)
        )
        repeated += sum(
            (np.bincount(got, minlength=size) - np.bincount(wanted, minlength=size)).clip(0)
        )
        position += batches[step, last]
    return lost, repeated


def pauses(folder: Path, moves: int) -> None:
    """Print the pause of moves between one and two workers and four batches."""
    job = TrainingJob("examples.digits_elastic:train", (1, 2), (32, 64), 32,
                      settings={"learning_rate": 0.01}, epochs=1e6)  # fmt: skip
    draw, found = random.Random(0), []
    with ElasticWorkers(job, folder) as workers:
        for i in range(moves + 1):
            workers.form(1 + i % 2, draw.choice((32, 64)))
            steps, _ = taken(workers, draw.randint(5, 40))
            found += [step["pause_seconds"] for step in steps if "pause_seconds" in step]
        workers.finish()
    print(f"| pause of a move, {len(found)} of them | median {np.median(found):.2f} s, worst {max(found):.2f} s |",
          flush=True)  # fmt: skip


def kills(folder: Path, workers_killed: int, drivers_killed: int) -> None:
    """Print what kills at random moments cost."""
    draw, ids, again = random.Random(1), folder / "ids", []
    ids.mkdir(parents=True)
    job = TrainingJob("benchmarks.elastic:counted", (1, 2), (24, 48), 24,
                      settings={"ids": str(ids), "pause": 0.01}, epochs=1e6)  # fmt: skip
    with ElasticWorkers(job, folder / "workers") as workers:
        workers.form(2, 24)
        for _ in range(workers_killed):
            while workers.available < 2:
                workers.take(0.2)
            workers.form(2, draw.choice((24, 48)))
            steps, _ = taken(workers, draw.randint(3, 40))
            time.sleep(draw.random() * 0.05)
            rank = draw.randrange(2)
            os.kill(
                next(
                    m.process.pid
                    for m in workers._members
                    if m.state == TRAINING and m.rank == rank
                ),
                signal.SIGKILL,
            )
            more, _ = taken(workers, 10**6)
            done = (steps + more)[-1]["step"]
            workers.form(2, 24)
            first = taken(workers, 3)[0][0]
            again.append(max(done - first["step"] + 1, 0))
        workers.finish()
        state = read_checkpoint(newest_checkpoint(workers.states) or Path())
    lost, repeated = accounted(ids, 960, 0, state["steps"])
    print(f"| {workers_killed} workers killed at random moments, each replaced | {lost} ids lost, {repeated} repeated of"
          f" {state['position']:,}; {sum(again)} steps done again |", flush=True)  # fmt: skip

    ids = folder / "ids-drivers"
    ids.mkdir()
    path = folder / "job.yaml"
    path.write_text(JOB.format(ids=ids))
    words = [
        sys.executable,
        "-m",
        "forerun",
        "train",
        str(path),
        "--elastic",
        "--folder",
        str(folder / "drivers"),
    ]
    for _ in range(drivers_killed):
        process = subprocess.Popen(
            words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        assert process.stderr is not None
        process.stderr.readline()  # a group trains
        time.sleep(draw.uniform(1.0, 6.0))
        process.kill()
        process.wait()
        process.stderr.close()
    path.write_text(JOB.format(ids=ids).replace("epochs: 1000", "epochs: 1"))  # it ends at once
    subprocess.run(words, check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    state = read_checkpoint(newest_checkpoint(folder / "drivers" / "states") or Path())
    lost, repeated = accounted(ids, 960, 0, state["steps"])
    print(f"| {drivers_killed} drivers killed with -9 at random moments, the same command after each | {lost} ids lost,"
          f" {repeated} repeated of {state['position']:,} |", flush=True)  # fmt: skip


def trained(folder: Path, seed: int, moves: bool) -> dict[str, float]:
    """Return held-out loss and accuracy after a training with or without moves."""
    out = folder.with_suffix(".json")
    job = TrainingJob("benchmarks.elastic:digits", (1, 2), (32, 64), 32, seed=seed,
                      settings={"out": str(out)}, epochs=EPOCHS)  # fmt: skip
    draw = random.Random(seed)
    with ElasticWorkers(job, folder) as workers:
        trains = True
        while trains:
            workers.form(*((draw.choice((1, 2)), draw.choice((32, 64))) if moves else (2, 32)))
            _, trains = taken(workers, draw.randint(15, 45) if moves else 10**6)
        workers.finish()
    found: dict[str, float] = json.loads(out.read_text())
    return found


def losses(folder: Path, seeds: int) -> None:
    """Print held-out losses with and without moves."""
    found = {
        moves: [trained(folder / f"{seed}-{moves}", seed, moves) for seed in range(seeds)]
        for moves in (False, True)
    }
    for moves, rows in found.items():
        for name in ("loss", "accuracy"):
            values = [row[name] for row in rows]
            how = (
                "moves to random workers and batches every 15 to 45 steps"
                if moves
                else "2 workers, batch 32, no moves"
            )
            print(f"| held-out {name} after {EPOCHS} epochs, {seeds} seeds, {how} | mean {np.mean(values):.4f},"
                  f" standard deviation {np.std(values, ddof=1):.4f} |", flush=True)  # fmt: skip


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moves", type=int, default=30)
    parser.add_argument("--kills", type=int, default=14, help="of workers")
    parser.add_argument("--drivers", type=int, default=6, help="killed")
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    names = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
             if line.startswith("model name")]  # fmt: skip
    print("# Elastic training\n")
    print(f"{datetime.now(UTC):%Y-%m-%d}, commit {commit.stdout.strip()}, {len(names)} cores of {names[0]}, "
          f"Python {platform.python_version()}: `python benchmarks/elastic.py`\n")  # fmt: skip
    print("| what | measured |\n|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pauses(folder / "pauses", given.moves)
        kills(folder / "kills", given.kills, given.drivers)
        losses(folder / "losses", given.seeds)


if __name__ == "__main__":
    main()
