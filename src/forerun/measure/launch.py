"""Launch: the processes of one run over hosts, as torchrun starts them, and their certain end."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from forerun.measure.hosts import Host, blocks
from forerun.measure.limits import Holding
from forerun.measure.session import FOLDER, RUNNER
from forerun.measure.task import Task

MARK = "FORERUN_LAUNCH"  # every process of a launch carries it, whatever group it has moved to
_LOW, _HIGH = 20000, 32000  # ports below those that the kernel hands out itself


class Launch:
    """Workers that carry out tasks one after another.

    Args:
        tasks: all of them with the same workers and resources.
        hosts: where; workers are laid on them in blocks as even as can be.
        folder: for the plan, logs, progress and records; must not exist yet.
        environment: further variables of the workers.

    Raises:
        OSError: a process cannot be started, or not be held to its cores.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        hosts: Sequence[Host],
        folder: Path,
        environment: Mapping[str, str] = {},
    ) -> None:
        self.folder = folder
        self.folders = [folder / str(i) for i in range(len(tasks))]
        for one in self.folders:
            one.mkdir(parents=True)
        self.began = time.monotonic()
        self._mark = uuid.uuid4().hex
        spots = places(tasks[0].workers, hosts)
        self._holding = Holding(tasks[0], [host for host, _, _ in spots])
        plan = folder / "plan.json"
        plan.write_text(
            json.dumps(
                {"tasks": [t.to_json() for t in tasks], "folders": [str(f) for f in self.folders]}
            )
        )
        self.processes: list[subprocess.Popen[bytes]] = []
        words = [sys.executable, "-m", "forerun.measure.worker", str(plan)]
        given = {**os.environ, **environment}
        shared = {**given, **self._shared(tasks[0], hosts, given.get("PYTHONPATH", ""))}
        try:
            self._holding.begin()
            for rank, (host, local, local_count) in enumerate(spots):
                own = worker_variables(tasks[0], host, rank, local, local_count)
                self._start(rank, host.command(words), {**shared, **own})
        except OSError:
            self.end()
            raise

    def _shared(self, task: Task, hosts: Sequence[Host], path: str) -> dict[str, str]:
        """Return the variables that all workers share."""
        source = str(Path(__file__).resolve().parents[2])
        return {
            "WORLD_SIZE": str(task.workers),
            "MASTER_ADDR": hosts[0].address,
            "MASTER_PORT": str(_port(hosts[0])),
            "PYTHONPATH": f"{path}{os.pathsep}{source}" if path else source,
            "PYTHONUNBUFFERED": "1",
            MARK: self._mark,
            RUNNER: str(os.getpid()),
            FOLDER: str(self.folders[0]),
        }

    def _start(self, rank: int, words: list[str], environment: Mapping[str, str]) -> None:
        with self.log(rank).open("wb") as log:
            process = subprocess.Popen(
                words, env=environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self.processes.append(process)
        self._holding.apply(rank, process.pid)

    def log(self, rank: int) -> Path:
        """Return where a worker's output goes."""
        return self.folder / f"worker-{rank}.log"

    @property
    def pids(self) -> dict[int, int]:
        """Process ids by rank."""
        return {rank: process.pid for rank, process in enumerate(self.processes)}

    def codes(self) -> list[int | None]:
        """Return exit statuses by rank, None of those that still run."""
        return [process.poll() for process in self.processes]

    def wait(self, seconds: float) -> bool:
        """Wait until all have ended, so long at most; return whether they have."""
        limit = time.monotonic() + seconds
        while None in self.codes():
            if time.monotonic() > limit:
                return False
            time.sleep(0.01)
        return True

    def end(self) -> None:
        """End every process of the launch, also those that a worker started, and wait for them."""
        end_all(self.processes, self._mark)
        self._holding.release()


def end_all(processes: Sequence[subprocess.Popen[bytes]], mark: str) -> None:
    """Kill process groups, what they started, and whatever else carries a mark; wait for them.

    The mark stands in the environment; a process that writes its title over it (as Ray's workers
    do) is known by its parents.
    """
    for pid in descendants([process.pid for process in processes if process.poll() is None]):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    for process in processes:
        process.wait()
    for _ in range(5):  # what was being born while the others were killed
        strays = marked(mark)
        for pid in strays:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not strays:
            break
        time.sleep(0.02)


def descendants(pids: Sequence[int]) -> list[int]:
    """Return the children of processes, theirs and so on (Linux; elsewhere none is found)."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            # The name stands in brackets, and may hold brackets and blanks itself.
            parent = int(path.read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    found, waiting = list[int](), list(pids)
    while waiting:
        own = children.get(waiting.pop(), [])
        found += own
        waiting += own
    return found


def marked(mark: str) -> list[int]:
    """Return processes that carry a launch's mark (Linux; elsewhere none is found)."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def places(workers: int, hosts: Sequence[Host]) -> list[tuple[Host, int, int]]:
    """Return (host, local rank, workers on that host) by rank: blocks as even as can be."""
    return [
        (host, local, count)
        for host, count in zip(hosts, blocks(workers, len(hosts)), strict=False)
        for local in range(count)
    ]


def worker_variables(task: Task, host: Host, rank: int, local: int, count: int) -> dict[str, str]:
    """Return the variables of one worker.

    Compute threads: as asked; else as many as it has cores to itself; else one where several
    workers share a host, as torchrun does.
    """
    variables = {"RANK": str(rank), "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(count)}
    if host.interface:
        variables |= {"GLOO_SOCKET_IFNAME": host.interface}
    threads = task.threads or int(task.cpus_per_worker)
    if not threads and (
        0 < task.cpus_per_worker < 1 or (count > 1 and "OMP_NUM_THREADS" not in os.environ)
    ):
        threads = 1
    if threads:
        variables |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    return variables


def _port(host: Host) -> int:
    """Return a port that is free on this machine; on another host, one that is likely to be."""
    draw = random.SystemRandom()
    for _ in range(100):
        port = draw.randrange(_LOW, _HIGH)
        if not host.is_local:
            return port
        with socket.socket() as probe, suppress(OSError):
            probe.bind((host.address, port))
            return port
    raise OSError(f"no free port between {_LOW} and {_HIGH} on {host.name}")
