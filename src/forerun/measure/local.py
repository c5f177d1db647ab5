"""LocalRunner: carries tasks out in processes started as torchrun starts them, over one or more hosts."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from forerun.measure.failures import MemoryKills, WorkerEnd, cause
from forerun.measure.hosts import Host, blocks, check_hosts, local_host
from forerun.measure.limits import Holding, refusal, remove_stale
from forerun.measure.measurement import (
    Measurement,
    merged,
    progress_path,
    read_records,
    record_path,
)
from forerun.measure.processes import MARK, RUNNER, end_all
from forerun.measure.progress import STARTING, read_progress, steps_done
from forerun.measure.recorder import FOLDER
from forerun.measure.runner import TaskRunner, timed_out
from forerun.measure.task import Steps, Task

_LOW, _HIGH = 20000, 32000  # ports below those that the kernel hands out itself
_POLL_SECONDS = 0.05
_ROOM_BYTES = 131072  # more than the progress and record of a worker
_GRACE_SECONDS = 2.0  # for the peers of a worker that failed to write their records
# No step can come while workers import what they train: a hang of a start is detected later.
START_SECONDS = 60.0
_PORT_TAKEN = ("address already in use", "eaddrinuse")
_TRIES = 3  # with another port each


class LocalRunner(TaskRunner):
    """Carries tasks out in processes of this machine, or of hosts that can be reached from it.

    Args:
        hosts: where workers run; blank is this machine.
        folder: for logs and records, kept of runs that failed; blank is forerun's cache folder.
        entries: what to train for a workload, by its name (for `run`).
        steps: how long a job is measured (for `run`).
        environment: further variables of the workers.
        timeout_seconds: limit of a job (for `run`).
    """

    name = "local"

    def __init__(
        self, hosts: Sequence[Host] = (), folder: str | Path = "",
        entries: Mapping[str, str] = {}, steps: Steps | None = None,
        environment: Mapping[str, str] = {}, timeout_seconds: float = 600.0,
    ) -> None:  # fmt: skip
        self.hosts = check_hosts(tuple(hosts) or (local_host(),))
        super().__init__(folder, entries, steps, timeout_seconds)
        self._environment = dict(environment)
        remove_stale()

    @property
    def where(self) -> str:
        """Where it carries tasks out."""
        return f"on {', '.join(host.name for host in self.hosts)}"

    def placement(self, task: Task) -> tuple[int, ...]:
        """Return how many workers of a task each host that is used gets."""
        return blocks(task.workers, len(self.hosts))

    def refuses(self, task: Task) -> str | None:
        """Return why this runner cannot carry a task out, None where it can."""
        if task.gpus_per_worker > 1:
            return f"a worker drives one GPU, and {task.gpus_per_worker} are asked"
        if task.gpus_per_worker and not Path("/dev/nvidiactl").exists():
            return "a GPU is asked for each worker, and this machine has none"
        if task.is_script and not Path(task.entry).is_file():
            return f"there is no script {task.entry}"
        return refusal(task, self.hosts)

    def _carry(self, tasks: Sequence[Task]) -> Iterator[Measurement]:
        for attempt in range(_TRIES):
            folder = self._new_folder(tasks[0])
            began = time.monotonic()
            try:
                launch = Launch(tasks, self.hosts, folder, self._environment)
            except OSError as error:
                yield Measurement("failed", f"no start: {error}", seconds=time.monotonic() - began)
                return
            failed = taken = False
            count = 0
            results = launch.results()
            try:
                for measured in results:
                    failed = measured.status != "ok"
                    taken = failed and not count and launch.port_was_taken()
                    if taken and attempt + 1 < _TRIES:
                        break
                    count += 1
                    yield measured
            finally:
                results.close()  # type: ignore[attr-defined]
                if not failed or taken:
                    shutil.rmtree(folder, ignore_errors=True)
            if not taken:
                return


class Launch:
    """Workers that carry out tasks one after another.

    Args:
        tasks: all of them with the same workers and resources.
        hosts: where; workers are placed on them in blocks as even as can be.
        folder: for the plan, logs, progress and records; must not exist yet.
        environment: further variables of the workers.

    Raises:
        OSError: a process cannot be started, or not be held to its cores.
    """

    def __init__(
        self, tasks: Sequence[Task], hosts: Sequence[Host], folder: Path,
        environment: Mapping[str, str] = {},
    ) -> None:  # fmt: skip
        self._tasks, self._folder = tasks, folder
        self._folders = [folder / str(i) for i in range(len(tasks))]
        for one in self._folders:
            one.mkdir(parents=True)
        self._since = time.monotonic()
        self._mark = uuid.uuid4().hex
        workers = tasks[0].workers
        spots = [
            (host, local, count)
            for host, count in zip(hosts, blocks(workers, len(hosts)), strict=False)
            for local in range(count)
        ]
        self._holding = Holding(tasks[0], [host for host, _, _ in spots])
        plan = {"tasks": [t.to_json() for t in tasks], "folders": [str(f) for f in self._folders]}
        (folder / "plan.json").write_text(json.dumps(plan))
        self.processes: list[subprocess.Popen[bytes]] = []
        source = str(Path(__file__).resolve().parents[2])
        given = {**os.environ, **environment}
        path = given.get("PYTHONPATH", "")
        shared = {
            **given, "WORLD_SIZE": str(workers), "MASTER_ADDR": hosts[0].address,
            "MASTER_PORT": str(_port(hosts[0])), "PYTHONUNBUFFERED": "1", MARK: self._mark,
            "PYTHONPATH": f"{path}{os.pathsep}{source}" if path else source,
            RUNNER: str(os.getpid()), FOLDER: str(self._folders[0]),
        }  # fmt: skip
        words = [sys.executable, "-m", "forerun.measure.worker", str(folder / "plan.json")]
        try:
            self._holding.begin()
            for rank, (host, local, count) in enumerate(spots):
                own = worker_variables(tasks[0], host, rank, local, count)
                with self._log(rank).open("wb") as log:
                    process = subprocess.Popen(
                        host.command(words), env={**shared, **own}, stdin=subprocess.DEVNULL,
                        stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                    )  # fmt: skip
                self.processes.append(process)
                self._holding.apply(rank, process.pid)
        except OSError:
            self.end()
            raise
        self._kills = MemoryKills({r: p.pid for r, p in enumerate(self.processes)})

    def results(self) -> Iterator[Measurement]:
        """Yield a measurement for each task; after a failure the launch has ended, with no more."""
        try:
            for i, task in enumerate(self._tasks):
                measured = self._wait_for(task, self._folders[i])
                self._since = time.monotonic()
                if measured.status != "ok" or i + 1 == len(self._tasks):
                    if measured.status == "ok":
                        self._wait(_GRACE_SECONDS)
                    self.end()
                yield measured
                if measured.status != "ok":
                    return
        finally:
            self.end()
            self._kills.close()

    def end(self) -> None:
        """End every process of the launch, also those that a worker started, and wait for them."""
        end_all(self.processes, self._mark)
        self._holding.release()

    def port_was_taken(self) -> bool:
        """Whether the first worker found its port in use."""
        with suppress(OSError):
            text = self._log(0).read_text(errors="replace").lower()
            return any(words in text for words in _PORT_TAKEN)
        return False

    def _log(self, rank: int) -> Path:
        return self._folder / f"worker-{rank}.log"

    def _codes(self) -> list[int | None]:
        """Return exit statuses by rank, None of those that still run."""
        return [process.poll() for process in self.processes]

    def _wait(self, seconds: float) -> None:
        """Wait until all have ended, so long at most."""
        limit = time.monotonic() + seconds
        while None in self._codes() and time.monotonic() <= limit:
            time.sleep(0.01)

    def _elapsed(self) -> float:
        return time.monotonic() - self._since

    def _wait_for(self, task: Task, folder: Path) -> Measurement:
        moved, last = time.monotonic(), list[tuple[int, int]]()
        files = [record_path(folder, rank) for rank in range(task.workers)]
        while True:
            codes = self._codes()  # before the records: one that has ended has written its own
            missing = [rank for rank, path in enumerate(files) if not path.exists()]
            if not missing or any(code is not None for code in codes):
                records = read_records(folder)
                if any(record["status"] != "ok" for record in records) or any(
                    codes[rank] is not None for rank in missing
                ):
                    return self._failed(folder)
                if not missing:
                    return merged(records, task.global_batch, self._elapsed())
            if self._elapsed() > task.timeout_seconds:
                seconds, now, where = self._elapsed(), time.time(), self._stop(folder)
                found = [read_progress(progress_path(folder, r)) for r in range(task.workers)]
                return timed_out([p for p in found if p is not None], task, where, seconds, now)
            if task.hang_seconds:
                steps = [steps_done(progress_path(folder, rank)) for rank in range(task.workers)]
                if steps != last:
                    last, moved = steps, time.monotonic()
                starts = all(phase == STARTING for phase, _ in steps)
                if time.monotonic() - moved > task.hang_seconds + START_SECONDS * starts:
                    reason = f"no step for {task.hang_seconds:g} s: it hangs {self._stop(folder)}"
                    return Measurement("failed", reason, seconds=self._elapsed())
            time.sleep(_POLL_SECONDS)

    def _failed(self, folder: Path) -> Measurement:
        self._wait(_GRACE_SECONDS)
        codes, elapsed = self._codes(), self._elapsed()
        self.end()
        status, reason = cause(self._ends(folder, codes))
        if shutil.disk_usage(folder).free < _ROOM_BYTES:  # then a worker cannot write its record
            reason += f"; {self._folder.parent}: No space left on device"
        return Measurement(status, f"{reason} (log: {self._folder})", seconds=elapsed)

    def _stop(self, folder: Path) -> str:
        """End the launch and return where the worker was that had come least far."""
        self.end()
        ends = self._ends(folder, [None] * len(self.processes))
        return min(ends, key=lambda one: one.progress.steps if one.progress else -1).place

    def _ends(self, folder: Path, codes: Sequence[int | None]) -> list[WorkerEnd]:
        records = {int(record["rank"]): record for record in read_records(folder)}
        return [
            WorkerEnd(
                rank, code, records.get(rank), read_progress(progress_path(folder, rank)),
                _last_line(self._log(rank)),
                code == -9 and self._kills.killed(rank, self.processes[rank].pid),
            )
            for rank, code in enumerate(codes)
        ]  # fmt: skip


def worker_variables(task: Task, host: Host, rank: int, local: int, count: int) -> dict[str, str]:
    """Return the variables of one worker.

    Compute threads: as requested; else as many as it has cores to itself; else one where several
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


def _last_line(log: Path) -> str:
    with suppress(OSError):
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
        return next((line[:300] for line in reversed(lines) if line), "")
    return ""
