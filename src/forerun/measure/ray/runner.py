"""RayRunner: Ray Train carries tasks out; many of one number of workers share one fit."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

from forerun.errors import RequestError, one_of
from forerun.measure.cgroups import Holding, refusal
from forerun.measure.hosts import Host, blocks, local_host
from forerun.measure.measurement import Measurement, merged
from forerun.measure.processes import MARK, RUNNER, end_all, import_path
from forerun.measure.ray.driver import lacking
from forerun.measure.ray.failures import WorkerReports, unreachable
from forerun.measure.ray.parallel import Work, in_workers
from forerun.measure.ray.worker import LINE, Message, packed
from forerun.measure.runner import RunLimits, TaskRunner
from forerun.measure.task import Steps, Task
from forerun.units import counted, format_seconds

OLDEST = (2, 30)
PLACEMENTS = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
_JOB = (sys.executable, "-m", "ray.scripts.scripts", "job")
_STOP_SECONDS = 60.0  # for a dashboard to accept that a job is to end
_FIT_SECONDS = 120.0  # in which no step can come: Ray starts its workers, and these import torch
_END_SECONDS = 10.0  # for a driver that was asked to end, or is done, to leave Ray
_COUNT_SECONDS = 90.0
_NODES = (
    "import json, sys, ray; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR');"
    " print(json.dumps([n['Resources'] for n in ray.nodes() if n['Alive']]))"
)
_NODES_BY_DASHBOARD = (
    "import json, sys; from ray.util.state import list_nodes;"
    " print(json.dumps([n.resources_total for n in"
    " list_nodes(address=sys.argv[1], filters=[('state', '=', 'ALIVE')], detail=True)]))"
)
# Starts a cluster, writes its address, and stays until it is ended.
_CLUSTER = (
    "import ray; from forerun.measure.processes import die_with_parent;"
    " from forerun.measure.ray.driver import connect; from forerun.measure.ray.worker import LINE;"
    " import signal; die_with_parent(); connect({'address': 'local', 'variables': {}});"
    " print(LINE + ray.get_runtime_context().gcs_address, flush=True); signal.pause()"
)
_SHARE_OF_TYPE = 0.001  # of the resource that names an instance's type, for each worker
# Variables of clusters that start here. By default Ray's workers yield to every other process (nice 15): beside two busy
# ones they hardly run, and a measured step would be that of the neighbours.
OF_CLUSTERS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
# Variables of the driver that every worker needs too.
_PASSED = ("RAY_AUTH_MODE", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "OMP_NUM_THREADS")


class RayRunner(TaskRunner):
    """Carries tasks out on a Ray cluster, through TorchTrainer.

    Args:
        address: of a cluster that is there (`auto`, `10.0.0.1:6379`, `ray://...`); blank is the
            one that RAY_ADDRESS names, or else one that is started on this machine for the run.
        submit: address of a cluster's dashboard, for `ray job submit` with the working directory.
        host: where the driver is started; blank is this machine.
        hold: hold workers, all on this machine, to their `cpus_per_worker`, which Ray only counts.
    """

    name = "ray"

    def __init__(
        self, address: str = "", submit: str = "", placement: str = "PACK",
        host: Host | None = None, environment: Mapping[str, str] = {}, hold: bool = False,
        folder: str | Path = "", entries: Mapping[str, str] = {}, steps: Steps | None = None,
        timeout_seconds: float = 900.0,
    ) -> None:  # fmt: skip
        if placement not in PLACEMENTS:
            asked = f"placement {placement!r}"
            raise RequestError(asked, "Ray has no such strategy", one_of(placement, PLACEMENTS))
        self.address, self.submit, self.placement_group = address, submit, placement
        self.host = host or local_host()
        self.environment = dict(environment)
        self.hold = hold
        super().__init__(folder, entries, steps, timeout_seconds)

    def placement(self, task: Task) -> tuple[int, ...]:
        """Return how many workers each node gets; () where Ray packs them as it finds room."""
        nodes = self.host_count
        if nodes == 1:
            return (task.workers,)
        return blocks(task.workers, nodes) if self.placement_group.endswith("SPREAD") else ()

    def _refuses(self, task: Task) -> str | None:
        if task.is_script:
            return (
                "Ray Train calls a function, and no script; name one of the script's functions"
                " (package.module:function), or use the local runner"
            )
        if task.servers:
            return "Ray Train's workers reduce among themselves; let the local runner start the servers"
        return ray_problem() or (refusal(task) if self.hold else None)

    @cached_property
    def host_count(self) -> int:
        """How many nodes the cluster has; 1 of the one that would be started here. Raises RequestError."""
        return len(self.node_resources) if self._given else 1

    @cached_property
    def node_resources(self) -> list[dict[str, float]]:
        """What Ray says of each node of the cluster that is there: CPU, memory in bytes, GPU. Raises RequestError."""
        address = self._given or "auto"
        words = [sys.executable, "-c", _NODES_BY_DASHBOARD if self.submit else _NODES, address]
        try:
            done = subprocess.run(
                self.host.command(words), env=self._variables(), check=False,
                capture_output=True, text=True, timeout=_COUNT_SECONDS,
            )  # fmt: skip
            if not done.returncode:
                nodes: list[dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
                return nodes
            output = done.stderr
        except subprocess.TimeoutExpired:
            output = f"timed out after {_COUNT_SECONDS:g} s"
        found, _, todo = unreachable(output).partition("; ")
        todo = todo or "check its state: ray status"
        raise RequestError(f"the Ray cluster at {address}", found, todo)

    def lacks(self, *tasks: Task) -> str:
        """Return why the nodes of the cluster have no room for tasks at once, "" where they have. Raises RequestError."""
        nodes = self.node_resources if self._given else [{"CPU": float(os.cpu_count() or 1)}]
        for task in tasks:
            if why := lacking(nodes, task.workers, _needed(task), self.placement_group):
                return why
        offered = sum(node.get("CPU", 0.0) for node in nodes)
        wanted = sum(task.workers * _needed(task)["CPU"] for task in tasks)
        return "" if wanted <= offered + 1e-9 else f"{wanted:g} CPUs of {offered:g}"

    @contextmanager
    def started(self) -> Iterator[None]:
        """Keep one cluster of this machine for all tasks of the block, where none is given. Raises RequestError."""
        if self._given:
            yield
            return
        self.tell("starts a Ray cluster on this machine (some 10 s)")
        mark, before = uuid.uuid4().hex, (self.address, self.environment)
        # Ray 2.60 gives a local cluster a token, which drivers elsewhere send in this mode alone.
        mode = os.environ.get("RAY_AUTH_MODE", "token")
        self.environment = {"RAY_AUTH_MODE": mode, **self.environment}
        process = subprocess.Popen(
            [sys.executable, "-c", _CLUSTER], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, start_new_session=True,
            env={**self._variables(), MARK: mark, RUNNER: str(os.getpid())},
        )  # fmt: skip
        try:
            assert process.stdout is not None
            lines = (line.decode() for line in process.stdout)
            self.address = next((x[len(LINE) :].strip() for x in lines if x.startswith(LINE)), "")
            if not self.address:
                todo = "see why: ray start --head, and give its --address"
                raise RequestError("a Ray cluster on this machine", "it did not start", todo)
            yield
        finally:
            self.address, self.environment = before
            end_all([process], mark)
            if process.stdout is not None:
                process.stdout.close()

    def in_workers(self, work: Work, most: int, report: Callable[..., None], waits: bool = False) -> list[Any]:  # fmt: skip
        """Return what a function of one's own returned in each worker, by rank; see `forerun.measure.ray.parallel`.

        Raises RequestError where Ray cannot be used, no CPU is free (and it `waits` for none), or a worker fails.
        """
        if (problem := ray_problem()) is not None:
            raise RequestError("training on Ray Train", *problem.split("; ", 1))
        return in_workers(work, most, report, self._worker_variables(), self.address, waits)

    @property
    def where(self) -> str:
        """Where it carries tasks out."""
        return f"on {self._given or 'a cluster of this machine'}"

    @property
    def _given(self) -> str:
        given = self.submit or self.address or os.environ.get("RAY_ADDRESS", "")
        return "" if given == "local" else given

    def _carry(self, tasks: Sequence[Task]) -> Iterator[Measurement]:
        folder = self._new_folder(tasks[0])
        folder.mkdir(parents=True, mode=0o700)
        well = True
        connects = f"connects to the Ray cluster {self.where}"
        self.tell(connects if self._given else "starts a Ray cluster on this machine (some 10 s)")
        driver = _Driver(self, tasks, folder)
        try:
            for measured in driver.results():
                well &= measured.status == "ok"
                yield measured
        finally:
            driver.end()
            if well:
                shutil.rmtree(folder, ignore_errors=True)

    def _plan(self, tasks: Sequence[Task], folder: Path) -> dict[str, Any]:
        first = tasks[0]
        resources = _needed(first)
        threads = first.threads or max(int(resources["CPU"]), 1)
        return {
            "tasks": [task.to_json() for task in tasks], "workers": first.workers,
            "resources": resources, "placement": self.placement_group,
            "variables": {"OMP_NUM_THREADS": str(threads), **self._worker_variables()},
            "address": "auto" if self.submit else self.address,
            "storage": "" if self.submit else str(folder.resolve() / "storage"),
            "backend": str(first.settings.get("backend", "")),
            "hold": first.cpus_per_worker if self.hold else 0.0,
        }  # fmt: skip

    def _variables(self) -> dict[str, str]:
        own = {**OF_CLUSTERS, **self.environment, **self._worker_variables()}
        return {**os.environ, **own}

    def _worker_variables(self) -> dict[str, str]:
        given = {**os.environ, **self.environment}
        found = {name: given[name] for name in _PASSED if name in given}
        if self.host.interface and not self.address and not self.submit:
            found.setdefault("GLOO_SOCKET_IFNAME", self.host.interface)
        own = ("RAY_ADDRESS", "PYTHONPATH")
        found |= {k: v for k, v in self.environment.items() if k not in own}
        if not self.submit:  # a job brings forerun and the working directory
            found["PYTHONPATH"] = import_path(given.get("PYTHONPATH", ""), str(Path.cwd()))
        return found


def _needed(task: Task) -> dict[str, float]:
    """Return what each worker of a task needs of Ray."""
    need = {"CPU": task.cpus_per_worker or 1.0}
    if task.gpus_per_worker:
        need["GPU"] = float(task.gpus_per_worker)
    if task.instance_type:  # a node of the type offers it as a resource: ray start --resources
        need[task.instance_type] = _SHARE_OF_TYPE
    return need


def ray_problem() -> str | None:
    """Return why Ray cannot be used by this Python, None where it can."""
    try:
        version = metadata.version("ray")
    except metadata.PackageNotFoundError:
        return "Ray is not installed; install it with: pip install 'forerun[ray]'"
    if tuple(map(int, version.split(".")[:2])) >= OLDEST:
        return None
    newer = "install a newer one: pip install -U 'ray[default]'"
    return f"Ray {version} is older than {OLDEST[0]}.{OLDEST[1]}; {newer}"


class _Driver:
    def __init__(self, runner: RayRunner, tasks: Sequence[Task], folder: Path) -> None:
        self._runner, self._tasks, self._folder = runner, tasks, folder
        self._mark = uuid.uuid4().hex
        self._job = f"forerun-{self._mark[:16]}" if runner.submit else ""
        self._holding = Holding(tasks[0])
        self._messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._reports = [WorkerReports() for _ in tasks]
        self._since = time.monotonic()
        own = {MARK: self._mark, RUNNER: str(os.getpid()), "PYTHONUNBUFFERED": "1"}
        self._environment = {**runner._variables(), **own}
        self._process = subprocess.Popen(
            runner.host.command(self._command(runner._plan(tasks, folder))),
            env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self._ended = self._stopped = self._connected = False
        self._common: Measurement | None = None  # of every task that is left
        self._log = folder / "driver.log"
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _command(self, plan: Mapping[str, Any]) -> list[str]:
        driver = ("-m", "forerun.measure.ray.driver")
        if not self._job:
            return [sys.executable, *driver, packed(plan)]
        # Ray knows the working directory by a hash of its content, and reads it twice: the log that
        # is written meanwhile must be no part of it.
        here, folder = Path.cwd(), self._folder.resolve()
        growing = [f"/{folder.relative_to(here)}/"] if folder.is_relative_to(here) else []
        environment = {
            "env_vars": plan["variables"], "excludes": growing,
            "py_modules": [str(Path(__file__).resolve().parents[2])],
        }  # fmt: skip
        word = packed({**plan, "variables": {}})  # the job has them: Ray takes none of them twice
        return [
            *_JOB, "submit", "--address", self._runner.submit, "--submission-id", self._job,
            "--working-dir", str(here), "--runtime-env-json", json.dumps(environment), "--",
            "python", *driver, word,
        ]  # fmt: skip

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._log.open("w", encoding="utf-8") as log:
            for raw in self._process.stdout:
                line = raw.decode(errors="replace")
                if line.startswith(LINE):
                    self._messages.put(json.loads(line[len(LINE) :]))
                else:
                    log.write(line)
                    log.flush()
        self._messages.put(None)

    def end(self) -> None:
        """End the driver, the cluster that it started and the job that was submitted."""
        if self._ended:
            return
        self._ended = True
        running = self._process.poll() is None
        if self._job and (running or (self._connected and self._process.returncode)):
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(
                    [*_JOB, "stop", "--address", self._runner.submit, "--no-wait", self._job],
                    env=self._environment, capture_output=True, timeout=_STOP_SECONDS, check=False,
                )  # fmt: skip
        # A cluster of one's own ends with all its processes at once; another one is notified.
        if self._runner._given and self._process.poll() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
        end_all([self._process], self._mark)
        self._holding.release()
        self._reader.join(_END_SECONDS)
        if self._process.stdout is not None and not self._reader.is_alive():
            self._process.stdout.close()

    def results(self) -> Iterator[Measurement]:
        """Yield a measurement for each task in order, until the driver is ended by a time limit."""
        for i, task in enumerate(self._tasks):
            measured = self._common or self._wait_for(self._reports[i], task)
            self._since = time.monotonic()
            if i + 1 == len(self._tasks) or self._stopped:
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(0 if self._stopped else _END_SECONDS)
                self.end()
            yield measured
            if self._stopped and self._common is None:
                return

    def _wait_for(self, reports: WorkerReports, task: Task) -> Measurement:
        limits = RunLimits(task, _FIT_SECONDS)
        while True:
            elapsed = time.monotonic() - self._since
            if (finished := reports.finished(task.workers)) is not None:
                return merged(finished, task.global_batch, elapsed)
            progress = [reports.progress.get(rank) for rank in range(task.workers)]
            if (ended := limits.ended(progress, elapsed)) is not None:
                self._stopped = True
                return ended
            if (last := self._next_message()) is not None:
                return self._failed(reports, task, last, elapsed)

    def _next_message(self) -> Message | None:
        try:
            message = self._messages.get(timeout=0.1) or {"kind": "silent"}
        except queue.Empty:
            return None
        kind = message["kind"]
        if kind in ("failed", "refused", "unreachable", "silent"):
            return message
        if kind == "ready":
            try:
                self._holding.take(int(message["rank"]), message)
            except OSError as error:
                reason = f"a worker cannot be held to its cores: {error}"
                return {"kind": "refused", "reason": reason}
        elif kind == "connected":
            self._connected = True
            took = format_seconds(time.monotonic() - self._since)
            workers = counted(self._tasks[0].workers, "worker")
            self._runner.tell(f"Ray answers after {took}; waits for {workers} to import")
        else:
            self._reports[message["task"]].add(message)
        return None

    def _failed(self, reports: WorkerReports, task: Task, message: Message, elapsed: float) -> Measurement:  # fmt: skip
        log, kind = f" (log: {self._folder})", message["kind"]
        if kind == "failed":
            status, reason = reports.cause(task.workers, message["failures"])
            return Measurement(status, reason + log, seconds=elapsed)
        self._stopped = True
        written = self._log.read_text(encoding="utf-8") if self._log.exists() else ""
        if kind == "silent" and self._connected:
            lines = ["", *filter(None, map(str.strip, written.splitlines()))]
            reason = f"the driver ended with exit status {self._process.wait()}: {lines[-1][:300]}"
            return Measurement("failed", reason + log, seconds=elapsed)
        reason = str(message.get("reason") or written)
        if kind != "refused":  # Ray's own library may end the driver: then its log has the error
            reason = unreachable(reason) + log
        self._common = Measurement("failed", reason, seconds=elapsed)
        return self._common
