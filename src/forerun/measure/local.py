"""LocalRunner: carries tasks out in processes started as torchrun starts them, over one or more hosts."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shutil import disk_usage

from forerun.measure.failures import Ended, MemoryKills, cause, place
from forerun.measure.hosts import Host, blocks, check_hosts, local_host
from forerun.measure.limits import Holding, refusal, remove_stale
from forerun.measure.measurement import (
    Measurement,
    merged,
    progress_path,
    read_records,
    record_path,
)
from forerun.measure.progress import STARTING, Seen, seen, steps_done
from forerun.measure.recorder import FOLDER, RUNNER
from forerun.measure.runner import TasksRunner, least_step_seconds
from forerun.measure.task import Steps, Task

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


_LOOK_SECONDS = 0.05
_ROOM_BYTES = 131072  # more than the progress and record of a worker
_GRACE_SECONDS = 2.0  # for the neighbours of a worker that failed to say what they know

# To import what is trained takes its time, and no step can come meanwhile: a hang of a start is
# told so much later than one of a step.
START_SECONDS = 60.0


class Watch:
    """A launch and the clock of the task that it carries out now."""

    def __init__(self, launch: Launch, tasks: Sequence[Task]) -> None:
        self._launch = launch
        self._tasks = tasks
        self._kills = MemoryKills(launch.pids)
        self._since = launch.began

    def results(self) -> Iterator[tuple[Measurement, bool]]:
        """Yield a measurement for each task, and whether the workers go on after it.

        After a failure there are no more: the launch has ended, and the tasks that are left need
        another one.
        """
        try:
            for i, task in enumerate(self._tasks):
                measured = self._wait_for(i, task)
                self._since = time.monotonic()
                goes_on = measured.status == "ok"
                if not goes_on or i + 1 == len(self._tasks):
                    if goes_on:
                        self._launch.wait(_GRACE_SECONDS)
                    self._launch.end()
                yield measured, goes_on
                if not goes_on:
                    return
        finally:
            self._launch.end()
            self._kills.close()

    def _wait_for(self, i: int, task: Task) -> Measurement:
        folder = self._launch.folders[i]
        hang = _Hang(task, folder)
        while True:
            codes = self._launch.codes()
            if all(record_path(folder, rank).exists() for rank in range(task.workers)):
                records = read_records(folder)
                if all(record["status"] == "ok" for record in records):
                    return merged(records, task.global_batch, self._elapsed())
                return self._failed(folder, task)
            if any(code is not None for code in codes):
                # One that has ended may have written its record after the look above.
                if any(
                    c is not None and not record_path(folder, r).exists()
                    for r, c in enumerate(codes)
                ):
                    return self._failed(folder, task)
                if self._unwell(folder):
                    return self._failed(folder, task)
            if self._elapsed() > task.timeout_seconds:
                return self._timed_out(folder, task)
            if hang.seen():
                where = self._stop(folder, task)
                return Measurement(
                    "failed", f"no step for {task.hang_seconds:g} s: it hangs {where}",
                    seconds=self._elapsed(),
                )  # fmt: skip
            time.sleep(_LOOK_SECONDS)

    def _elapsed(self) -> float:
        return time.monotonic() - self._since

    @staticmethod
    def _unwell(folder: Path) -> bool:
        return any(record["status"] != "ok" for record in read_records(folder))

    def _failed(self, folder: Path, task: Task) -> Measurement:
        self._launch.wait(_GRACE_SECONDS)
        codes = self._launch.codes()
        elapsed = self._elapsed()
        self._launch.end()
        status, reason = cause(self._ends(folder, task, codes))
        if disk_usage(folder).free < _ROOM_BYTES:  # then a worker can tell nothing itself
            reason += f"; {self._launch.folder.parent}: No space left on device"
        return Measurement(status, f"{reason} (log: {self._launch.folder})", seconds=elapsed)

    def _ends(self, folder: Path, task: Task, codes: list[int | None]) -> list[Ended]:
        records = {int(record["rank"]): record for record in read_records(folder)}
        pids = self._launch.pids
        return [
            Ended(
                rank, code, records.get(rank), seen(progress_path(folder, rank)),
                _last_line(self._launch.log(rank)),
                code == -9 and self._kills.killed(rank, pids[rank]),
            )
            for rank, code in enumerate(codes)
        ]  # fmt: skip

    def _stop(self, folder: Path, task: Task) -> str:
        """End the launch and return where its workers were: the one that had come least far."""
        self._launch.end()
        return place(_hindmost(self._ends(folder, task, [None] * task.workers)))

    def _timed_out(self, folder: Path, task: Task) -> Measurement:
        elapsed, now = self._elapsed(), time.time()
        where = self._stop(folder, task)
        reason = f"ended after its limit of {task.timeout_seconds:g} s, {where}"
        told = [seen(progress_path(folder, rank)) for rank in range(task.workers)]
        stepping = [one for one in told if one is not None and one.phase != STARTING]
        if not stepping:
            return Measurement("timeout", reason, seconds=elapsed)
        slowest = min(stepping, key=lambda one: one.steps)
        return Measurement(
            "timeout", reason, step_seconds=least_step_seconds(slowest, task, now),
            epoch_seconds=_least_epoch_seconds(slowest, task, now), steps=slowest.steps,
            seconds=elapsed,
        )  # fmt: skip


class _Hang:
    """Whether any step has ended lately."""

    def __init__(self, task: Task, folder: Path) -> None:
        self._task = task
        self._paths = [progress_path(folder, rank) for rank in range(task.workers)]
        self._last: list[tuple[int, int]] = []
        self._moved = time.monotonic()

    def seen(self) -> bool:
        """Return whether nothing has moved for as long as the task allows."""
        if not self._task.hang_seconds:
            return False
        now = [steps_done(path) for path in self._paths]
        if now != self._last:
            self._last, self._moved = now, time.monotonic()
        starts = all(phase == STARTING for phase, _ in now)
        allowed = self._task.hang_seconds + START_SECONDS * starts
        return time.monotonic() - self._moved > allowed


def _least_epoch_seconds(seen: Seen, task: Task, now: float) -> float | None:
    """Return what an epoch takes at least, where not one had ended."""
    steps = -(-task.dataset_size // task.global_batch)
    if not task.steps.epochs or seen.steps >= task.steps.warmup + steps:
        return None
    passed = now - seen.begun - sum(seen.seconds[: task.steps.warmup])
    return passed if passed > 0 and seen.steps >= task.steps.warmup else None


def _hindmost(workers: Sequence[Ended]) -> Ended:
    return min(workers, key=lambda one: (one.seen is not None, one.seen.steps if one.seen else 0))


def _last_line(log: Path) -> str:
    """Return the last line of a log that says anything."""
    with suppress(OSError):
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
        return next((line[:300] for line in reversed(lines) if line), "")
    return ""


_PORT_TAKEN = ("address already in use", "eaddrinuse")
_TRIES = 3  # with another port each


class LocalRunner(TasksRunner):
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
        self,
        hosts: Sequence[Host] = (),
        folder: str | Path = "",
        entries: Mapping[str, str] = {},
        steps: Steps | None = None,
        environment: Mapping[str, str] = {},
        timeout_seconds: float = 600.0,
    ) -> None:
        self.hosts = check_hosts(tuple(hosts) or (local_host(),))
        super().__init__(folder, entries, steps, timeout_seconds)
        self._environment = dict(environment)
        remove_stale()

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
        """Yield measurements of tasks from one launch, until the first that is not ok."""
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
            results = Watch(launch, tasks).results()
            try:
                for measured, goes_on in results:
                    failed = not goes_on
                    taken = failed and not count and _port_was_taken(launch)
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

    @property
    def where(self) -> str:
        """Where it carries tasks out."""
        return f"on {', '.join(host.name for host in self.hosts)}"


def _port_was_taken(launch: Launch) -> bool:
    """Whether the first worker found its port in use."""
    try:
        text = launch.log(0).read_text(errors="replace").lower()
    except OSError:
        return False
    return any(words in text for words in _PORT_TAKEN)
