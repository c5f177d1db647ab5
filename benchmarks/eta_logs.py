"""Makes the real logs of the ETA's benchmark: small models trained here, killed, resumed, slowed.

`python benchmarks/eta_logs.py FOLDER` trains each job of JOBS to its end (minutes), with kill -9 and
a later restart from the last checkpoint, evaluation pauses, and a busy neighbour on the same core
that slows it down. One log a job, written by Python's logging.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

LOG_EVERY = 5


@dataclass(frozen=True)
class Job:
    """A job: its length in steps, and what happens to it on the way (in shares of its steps)."""

    name: str
    steps: int
    width: int = 384
    evaluate_every: int = 0
    checkpoint_every: int = 50
    killed_at: tuple[float, ...] = ()
    away_seconds: float = 6.0
    slow_from: float = 2.0
    slow_to: float = 2.0


JOBS = (
    Job("plain", 900),
    Job("evaluated", 800, evaluate_every=100),
    Job("resumed", 800, evaluate_every=200, killed_at=(0.37,)),
    Job("resumed_twice", 900, checkpoint_every=80, killed_at=(0.22, 0.6)),
    Job("slowed", 800, evaluate_every=160, slow_from=0.4),
    Job("slowed_for_a_while", 900, slow_from=0.3, slow_to=0.55),
    Job("resumed_and_slowed", 900, evaluate_every=150, killed_at=(0.45,), slow_from=0.15),
    Job("wide", 300, width=1024, evaluate_every=60, checkpoint_every=30),
)


def train(job: Job, folder: Path) -> None:
    """Train from the newest checkpoint to the end, and log each fifth step."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    handler = logging.FileHandler(folder / f"{job.name}.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log = logging.getLogger("train")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    torch.manual_seed(0)
    width = job.width
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                          nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    saved, first = folder / f"{job.name}.pt", 0
    if saved.exists():
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        first = state["step"]
        log.info("resuming from step %d", first)
    for step in range(first + 1, job.steps + 1):
        inputs, labels = torch.randn(512, 64), torch.randint(0, 10, (512,))
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % LOG_EVERY == 0:
            log.info("step %d/%d loss=%.4f", step, job.steps, loss.item())
        if job.checkpoint_every and step % job.checkpoint_every == 0:
            torch.save({"model": model.state_dict(), "step": step}, saved)
            log.info("saved checkpoint of %d", step)
        if job.evaluate_every and step % job.evaluate_every == 0:
            log.info("evaluating")
            with torch.no_grad():
                for _ in range(90):
                    model(torch.randn(512, 64))


def run(job: Job, folder: Path) -> None:
    """Run a job to its end, with what happens to it on the way."""
    log, core = folder / f"{job.name}.log", str(min(os.sched_getaffinity(0)))
    neighbour: subprocess.Popen[bytes] | None = None
    kills = [int(share * job.steps) for share in job.killed_at]
    words = [sys.executable, __file__, "--train", job.name, str(folder)]
    process = subprocess.Popen(["taskset", "-c", core, *words])
    while process.poll() is None:
        step = last_step(log)
        if kills and step >= kills[0]:
            kills.pop(0)
            process.send_signal(signal.SIGKILL)
            process.wait()
            time.sleep(job.away_seconds)
            process = subprocess.Popen(["taskset", "-c", core, *words])
        slow = job.slow_from * job.steps <= step < job.slow_to * job.steps
        if slow and neighbour is None:
            busy = [sys.executable, "-c", "while True: pass"]
            neighbour = subprocess.Popen(["taskset", "-c", core, "nice", "-n", "2", *busy])
        if not slow and neighbour is not None:
            neighbour.kill()
            neighbour = None
        time.sleep(0.2)
    if neighbour is not None:
        neighbour.kill()


def last_step(log: Path) -> int:
    """Return the last step that a log tells, 0 where it tells none."""
    if not log.exists():
        return 0
    lines = [line for line in log.read_text().splitlines() if " step " in line and "/" in line]
    return int(lines[-1].split(" step ")[1].split("/")[0]) if lines else 0


if __name__ == "__main__":
    if sys.argv[1] == "--train":
        train(next(job for job in JOBS if job.name == sys.argv[2]), Path(sys.argv[3]))
    else:
        target = Path(sys.argv[1])
        target.mkdir(parents=True, exist_ok=True)
        for one in JOBS:
            run(one, target)
