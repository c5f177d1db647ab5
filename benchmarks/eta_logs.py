"""Makes the real logs of the ETA's benchmark: small models trained here, killed, resumed, slowed.

`python benchmarks/eta_logs.py FOLDER [CPUS]` trains each job of JOBS to its end (minutes), with
kill -9 and a later restart from the last checkpoint, evaluation pauses, and a slow-down in mid-run.
Without CPUS a job has a core and shares it with whatever else runs, its slow-down is a busy neighbour;
with CPUS (say 0.3) it runs on a host of the lab, which has that share of a core whatever else runs,
and its slow-down is a smaller share. One log a job, written by Python's logging.
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
from typing import Any

LOG_EVERY = 5
SLOWER = 0.65  # of the share of a core


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


class Core:
    """One core of this machine, shared with whatever else runs; a busy neighbour slows it down."""

    def __init__(self) -> None:
        self._words = ["taskset", "-c", str(min(os.sched_getaffinity(0)))]
        self._neighbour: subprocess.Popen[bytes] | None = None

    def start(self, words: list[str]) -> subprocess.Popen[bytes]:
        """Start a command."""
        return subprocess.Popen([*self._words, *words])

    def slow(self, on: bool) -> None:
        """Begin or end the slow-down."""
        if on and self._neighbour is None:
            busy = ["nice", "-n", "2", sys.executable, "-c", "while True: pass"]
            self._neighbour = self.start(busy)
        if not on and self._neighbour is not None:
            self._neighbour.kill()
            self._neighbour = None


class LabCore:
    """A host of the lab: a share of a core that is its own; a smaller share slows it down."""

    def __init__(self, lab: Any, cpus: float) -> None:
        self._lab, self._cpus, self._slow = lab, cpus, False

    def start(self, words: list[str]) -> subprocess.Popen[bytes]:
        """Start a command."""
        return self._lab.start("h1", words)  # type: ignore[no-any-return]

    def slow(self, on: bool) -> None:
        """Begin or end the slow-down."""
        if on is not self._slow:
            self._slow = on
            self._lab.slow("h1", self._cpus * (SLOWER if on else 1.0))


def run(job: Job, folder: Path, core: Core | LabCore) -> None:
    """Run a job to its end, with what happens to it on the way."""
    log = folder / f"{job.name}.log"
    kills = [int(share * job.steps) for share in job.killed_at]
    words = [sys.executable, __file__, "--train", job.name, str(folder)]
    process = core.start(words)
    while process.poll() is None:
        step = last_step(log)
        if kills and step >= kills[0]:
            kills.pop(0)
            process.send_signal(signal.SIGKILL)
            process.wait()
            time.sleep(job.away_seconds)
            process = core.start(words)
        core.slow(job.slow_from * job.steps <= step < job.slow_to * job.steps)
        time.sleep(0.2)
    core.slow(False)


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
        if len(sys.argv) > 2:
            from forerun.measure.lab import HostSpec, Lab

            share = float(sys.argv[2])
            with Lab([HostSpec(cpus=share, link_mbit=1000)]) as lab:
                for one in JOBS:
                    run(one, target, LabCore(lab, share))
        else:
            for one in JOBS:
                run(one, target, Core())
