"""LocalRunner: carries tasks out in processes started as torchrun starts them, over one or more hosts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

from forerun.measure.cgroups import Holding, refusal, remove_stale
from forerun.measure.failures import MemoryKills, WorkerEnd, cause
from forerun.measure.hosts import Host, blocks, check_hosts, free_port, local_host
from forerun.measure.measurement import (
    Measurement,
    merged,
    progress_path,
    read_records,
    record_path,
)
from forerun.measure.processes import MARK, RUNNER, end_all, import_path
from forerun.measure.progress import read_progress
from forerun.measure.runner import RunLimits, TaskRunner
from forerun.measure.servers.messages import SERVERS
from forerun.measure.task import Steps, Task
from forerun.units import counted

_POLL_SECONDS = 0.05
_ROOM_BYTES = 131072  # more than the progress and record of a worker
_TRIES = 3  # with another port each
_GRACE_SECONDS = 2.0  # for the peers of a worker that failed to write their records
# No step can come while workers import what they train: a hang of a start is detected later.
START_SECONDS = 60.0


class LocalRunner(TaskRunner):
    """Carries tasks out in processes of hosts that can be reached from here; blank is this machine."""

    name = "local"

    def __init__(
        self, hosts: Sequence[Host] = (), folder: str | Path = "",
        entries: Mapping[str, str] = {}, steps: Steps | None = None,
        environment: Mapping[str, str] = {}, timeout_seconds: float = 600.0,
    ) -> None:  # fmt: skip
        self.hosts = check_hosts(hosts or (local_host(),))
        super().__init__(folder, entries, steps, timeout_seconds)
        self._environment = dict(environment)
        remove_stale()

    @property
    def where(self) -> str:
        """Where it carries tasks out."""
        return f"on {', '.join(host.name for host in self.hosts)}"

    def placement(self, task: Task) -> tuple[int, ...]:
        """Return how many workers of a task each host that is used gets."""
        return blocks(task.workers, len(_places(task, self.hosts)[0]))

    def _refuses(self, task: Task) -> str | None:
        if task.instance_type:
            return (
                f"it asks for machines of the type {task.instance_type}, which only a Ray cluster tells"
                " apart"
            )
        if task.gpus_per_worker and not Path("/dev/nvidiactl").exists():
            return "a GPU is asked for each worker, and this machine has none"
        if task.is_script and not Path(task.entry).is_file():
            return f"there is no script {task.entry}"
        if (many := len(self.hosts)) > 1 and not _places(task, self.hosts)[0]:
            servers, need = counted(task.servers, "parameter server"), task.servers + 1
            more = f"and there are {many}; or set servers_with_workers"
            return f"{servers} and a worker need {need} hosts, {more}"
        return refusal(task, self.hosts)

    def _carry(self, tasks: Sequence[Task], tries: int = _TRIES) -> Iterator[Measurement]:
        folder = self._new_folder(tasks[0])
        began, measured, again = time.monotonic(), None, False
        try:
            launch = Launch(tasks, self.hosts, folder, self._environment)
        except OSError as error:
            yield Measurement("failed", f"no start: {error}", seconds=time.monotonic() - began)
            return
        try:
            with closing(launch.results()) as results:
                for i, measured in enumerate(results):
                    failed = measured.status != "ok" and not i
                    again = failed and tries > 1 and launch.port_was_taken()
                    if again:
                        break
                    yield measured
        finally:
            if again or measured is None or measured.status == "ok":
                shutil.rmtree(folder, ignore_errors=True)
        if again:
            yield from self._carry(tasks, tries - 1)


class Launch:
    """Workers, in even blocks on hosts, that carry out tasks of equal resources in turn. Raises OSError."""

    def __init__(
        self, tasks: Sequence[Task], hosts: Sequence[Host], folder: Path,
        environment: Mapping[str, str] = {},
    ) -> None:  # fmt: skip
        self._tasks, self._folder = tasks, folder
        self._folders = [folder / str(i) for i in range(len(tasks))]
        folder.mkdir(parents=True, mode=0o700)  # logs may say what is nobody else's concern
        for one in self._folders:
            one.mkdir()
        self._since = time.monotonic()
        self._mark = uuid.uuid4().hex
        workers = tasks[0].workers
        hosts, servers = _places(tasks[0], hosts)
        spots = [
            (host, local, count)
            for host, count in zip(hosts, blocks(workers, len(hosts)), strict=False)
            for local in range(count)
        ]
        self._holding = Holding(tasks[0], [*(host for host, _, _ in spots), *servers])
        plan = {"tasks": [t.to_json() for t in tasks], "folders": [str(f) for f in self._folders]}
        (folder / "plan.json").write_text(json.dumps(plan))
        self.processes: list[subprocess.Popen[bytes]] = []
        given = {**os.environ, **environment}
        shared = {
            **given, "WORLD_SIZE": str(workers), "MASTER_ADDR": hosts[0].address,
            "MASTER_PORT": str(free_port(hosts[0])), "PYTHONUNBUFFERED": "1", MARK: self._mark,
            "PYTHONPATH": import_path(given.get("PYTHONPATH", "")), RUNNER: str(os.getpid()),
            SERVERS: str(folder),
        }  # fmt: skip
        words = [sys.executable, "-m", "forerun.measure.worker", str(folder / "plan.json")]
        try:
            self._holding.begin()
            for rank, (host, local, count) in enumerate(spots):
                own = {"RANK": str(rank), "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(count)}
                if host.interface:
                    own["GLOO_SOCKET_IFNAME"] = host.interface
                # Workers that share a host get one thread each.
                crowded = count > 1 and "OMP_NUM_THREADS" not in os.environ
                shares = 0 < tasks[0].cpus_per_worker < 1 or crowded
                if threads := tasks[0].threads or int(tasks[0].cpus_per_worker) or int(shares):
                    own |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
                self._start(rank, host, words, {**shared, **own})
            for number, host in enumerate(servers):
                words = [str(folder), str(number), host.address, str(workers)]
                words = [sys.executable, "-m", "forerun.measure.servers.server", *words]
                self._start(workers + number, host, words, {**shared, "OMP_NUM_THREADS": "1"})
        except OSError:
            self.end()
            raise
        self._kills = MemoryKills({r: p.pid for r, p in enumerate(self.processes)})

    def _start(
        self, rank: int, host: Host, words: Sequence[str], variables: Mapping[str, str]
    ) -> None:
        with self._log(rank).open("wb") as log:
            process = subprocess.Popen(
                host.command(words), env=variables, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self.processes.append(process)
        self._holding.apply(rank, process.pid)

    def results(self) -> Generator[Measurement, None, None]:
        """Yield a measurement for each task; after a failure the launch has ended, with no more."""
        try:
            for i, task in enumerate(self._tasks):
                measured = self._wait_for(task, self._folders[i])
                self._since = time.monotonic()
                if measured.status == "ok" and i + 1 == len(self._tasks):
                    self._grace()
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
        text = self._text(0).lower()
        return "address already in use" in text or "eaddrinuse" in text

    def _log(self, rank: int) -> Path:
        return self._folder / f"worker-{rank}.log"

    def _text(self, rank: int) -> str:
        with suppress(OSError):
            return self._log(rank).read_text(errors="replace")
        return ""

    def _codes(self) -> list[int | None]:
        return [process.poll() for process in self.processes]

    def _grace(self) -> None:
        limit = time.monotonic() + _GRACE_SECONDS
        while None in self._codes()[: self._tasks[0].workers] and time.monotonic() <= limit:
            time.sleep(0.01)

    def _elapsed(self) -> float:
        return time.monotonic() - self._since

    def _wait_for(self, task: Task, folder: Path) -> Measurement:
        limits = RunLimits(task, START_SECONDS)
        files = [record_path(folder, rank) for rank in range(task.workers)]
        while True:
            codes = self._codes()  # before the records: one that has ended has written its own
            missing = [rank for rank, path in enumerate(files) if not path.exists()]
            if not missing or any(code is not None for code in codes):
                records = read_records(folder)
                needed = [*missing, *range(task.workers, len(codes))] if missing else []
                if any(record["status"] != "ok" for record in records) or any(
                    codes[rank] is not None for rank in needed
                ):
                    return self._failed(folder)
                if not missing:
                    return merged(records, task.global_batch, self._elapsed())
            if task.hang_seconds or self._elapsed() > task.timeout_seconds:
                found = [read_progress(progress_path(folder, rank)) for rank in range(task.workers)]
                if (ended := limits.ended(found, self._elapsed())) is not None:
                    self.end()
                    return ended
            time.sleep(_POLL_SECONDS)

    def _failed(self, folder: Path) -> Measurement:
        self._grace()
        codes, elapsed, workers = self._codes(), self._elapsed(), self._tasks[0].workers
        self.end()
        records = {int(record["rank"]): record for record in read_records(folder)}
        status, reason = cause([
            WorkerEnd(
                rank, code, records.get(rank), read_progress(progress_path(folder, rank)),
                ("\n" + self._text(rank).strip()).splitlines()[-1].strip()[:300],
                code == -9 and self._kills.killed(rank, self.processes[rank].pid),
                server=rank - workers if rank >= workers else None,
            )
            for rank, code in enumerate(codes)
        ])  # fmt: skip
        if not folder.is_dir():
            reason += "; its folder was removed while it ran"
        elif shutil.disk_usage(folder).free < _ROOM_BYTES:  # then a worker cannot write its record
            reason += f"; {self._folder.parent}: No space left on device"
        return Measurement(status, f"{reason} (log: {self._folder})", seconds=elapsed)


def _places(task: Task, hosts: Sequence[Host]) -> tuple[Sequence[Host], Sequence[Host]]:
    """Return the hosts of workers, and of each parameter server: the last ones, where there are any left."""
    if task.settings.get("servers_with_workers") or len(hosts) == 1:
        return hosts, [hosts[n % len(hosts)] for n in range(task.servers)]
    kept = max(len(hosts) - task.servers, 0)
    return hosts[:kept], hosts[kept:]
