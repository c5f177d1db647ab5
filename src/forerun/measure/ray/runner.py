"""RayRunner: Ray Train carries tasks out; many of one number of workers share one fit.

Errand: one driver sent to a Ray cluster, what it tells, and its certain end.
"""

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
from contextlib import suppress
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

from forerun.errors import RequestError, one_of
from forerun.measure.hosts import Host, blocks, local_host
from forerun.measure.limits import Holding, refusal
from forerun.measure.local import MARK, end_all
from forerun.measure.measurement import Measurement, merged
from forerun.measure.progress import STARTING
from forerun.measure.ray.failures import Told, unreachable
from forerun.measure.ray.worker import LINE, packed
from forerun.measure.recorder import RUNNER
from forerun.measure.runner import TasksRunner, least_step_seconds
from forerun.measure.task import Steps, Task
from forerun.units import counted, format_seconds

Letter = dict[str, Any]
JOB = (sys.executable, "-m", "ray.scripts.scripts", "job")
_STOP_SECONDS = 60.0  # for a dashboard to take in that a job is to end
_FIT_SECONDS = 120.0  # in which no step can come: Ray starts its workers, and these import torch
_END_SECONDS = 10.0  # for a driver that was asked to end, or is done: it takes its leave of Ray


class Errand:
    """A driver with a plan.

    Args:
        plan: see `driver`.
        tasks: those of the plan.
        folder: for the plan and the driver's log.
        host: where the driver is started.
        variables: of the driver, beside those of this process.
        submit: address of a dashboard that the driver is handed to; "" starts it here.
        holding: holds the workers to their cores; they wait for it where the plan says `hold`.
        tell: called with how far the start has come, in words.
        own: the driver starts its cluster, which is nobody else's.
    """

    def __init__(
        self, plan: Mapping[str, Any], tasks: Sequence[Task], folder: Path, host: Host,
        variables: Mapping[str, str], submit: str, holding: Holding,
        tell: Callable[[str], None] = lambda words: None, own: bool = False,
    ) -> None:  # fmt: skip
        self._tasks, self._folder = tasks, folder
        self._mark = uuid.uuid4().hex
        self._job = f"forerun-{self._mark[:16]}" if submit else ""
        self._submit, self._holding = submit, holding
        self._say, self._own = tell, own
        self._letters: queue.SimpleQueue[Letter | None] = queue.SimpleQueue()
        self._told = [Told() for _ in tasks]
        self._began = self._since = time.monotonic()
        self._stepping = False
        self._tail = ""
        marks = {MARK: self._mark, RUNNER: str(os.getpid()), "PYTHONUNBUFFERED": "1"}
        self._environment = {**os.environ, **variables, **marks}
        self._process = subprocess.Popen(
            self._command(plan, host), env=self._environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._ended = self._stopped = False
        self._shared: Measurement | None = None  # what is true of every task that is left
        self._connected = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def log(self) -> Path:
        """Where the driver's output goes."""
        return self._folder / "driver.log"

    def _command(self, plan: Mapping[str, Any], host: Host) -> list[str]:
        if not self._submit:
            path = self._folder / "plan.json"
            path.write_text(json.dumps(plan))
            return host.command([sys.executable, "-m", "forerun.measure.ray.driver", f"@{path}"])
        package = str(Path(__file__).resolve().parents[2])
        environment = {
            "env_vars": plan["variables"], "py_modules": [package], "excludes": self._growing(),
        }  # fmt: skip
        asked = packed({**plan, "variables": {}})  # the job has them: Ray takes none of them twice
        return host.command([
            *JOB, "submit", "--address", self._submit, "--submission-id", self._job,
            "--working-dir", str(Path.cwd()), "--runtime-env-json", json.dumps(environment), "--",
            "python", "-m", "forerun.measure.ray.driver", asked,
        ])  # fmt: skip

    def _growing(self) -> list[str]:
        """Return what Ray must not take along with the working directory: the log that it writes.

        It knows the directory by a hash of its content, and looks twice.
        """
        here, folder = Path.cwd(), self._folder.resolve()
        return [f"/{folder.relative_to(here)}/"] if folder.is_relative_to(here) else []

    def _read(self) -> None:
        """Pass on the driver's letters, and keep the rest in its log."""
        assert self._process.stdout is not None
        with self.log.open("w", encoding="utf-8") as log:
            for raw in self._process.stdout:
                line = raw.decode(errors="replace")
                if line.startswith(LINE):
                    self._letters.put(json.loads(line[len(LINE) :]))
                    continue
                log.write(line)
                log.flush()
                self._tail = line.strip() or self._tail
        self._letters.put(None)

    def end(self) -> None:
        """End the driver, the cluster that it started and the job that was submitted."""
        if self._ended:
            return
        self._ended = True
        self._stop_job()
        # A cluster of one's own ends with all its processes at once; another one is told.
        if not self._own and self._process.poll() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
        end_all([self._process], self._mark)
        self._holding.release()
        self._reader.join(_END_SECONDS)
        if self._process.stdout is not None and not self._reader.is_alive():
            self._process.stdout.close()

    def _stop_job(self) -> None:
        """Let the dashboard end the job that was submitted, unless it has ended well by itself."""
        running = self._process.poll() is None
        if not self._job or not (running or (self._connected and self._process.returncode)):
            return
        words = [*JOB, "stop", "--address", self._submit, "--no-wait", self._job]
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(
                words,
                env=self._environment,
                capture_output=True,
                timeout=_STOP_SECONDS,
                check=False,
            )

    def results(self) -> Iterator[Measurement]:
        """Yield a measurement for each task in order, as long as the driver goes on.

        After a failure in training it does, with the next fit; after a time limit it is ended,
        and the tasks that are left need another one.
        """
        for i, task in enumerate(self._tasks):
            measured = self._shared or self._wait_for(i, task)
            self._since = time.monotonic()
            if i + 1 == len(self._tasks) or self._stopped:
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(0 if self._stopped else _END_SECONDS)
                self.end()
            yield measured
            if self._stopped and self._shared is None:
                return

    def _wait_for(self, i: int, task: Task) -> Measurement:
        told = self._told[i]
        moved, state = time.monotonic(), told.state
        while True:
            elapsed = time.monotonic() - self._since
            if len(told.records) == task.workers and all(
                r["status"] == "ok" for r in told.records.values()
            ):
                return merged(
                    [told.records[r] for r in sorted(told.records)], task.global_batch, elapsed
                )
            if elapsed > task.timeout_seconds:
                return self._timed_out(told, task, elapsed)
            starts = all(one.phase == STARTING for one in told.seen.values())
            allowed = task.hang_seconds + _FIT_SECONDS * starts
            if task.hang_seconds and time.monotonic() - moved > allowed:
                where, self._stopped = told.hindmost(task.workers), True
                return Measurement(
                    "failed",
                    f"no step for {task.hang_seconds:g} s: it hangs {where}",
                    seconds=elapsed,
                )
            last = self._next_letter()
            if told.state != state:
                moved, state = time.monotonic(), told.state
            if last is not None:
                return self._failed(told, task, last, elapsed)

    def _next_letter(self) -> Letter | None:
        """Take in one letter; return it where nothing more will come."""
        try:
            letter = self._letters.get(timeout=0.1)
        except queue.Empty:
            return None
        if letter is None:
            return {"kind": "silent"}
        if letter["kind"] == "progress":
            self._told[letter["task"]].progress(letter)
            self._say_stepping(letter)
        elif letter["kind"] == "record":
            self._told[letter["task"]].records[int(letter["rank"])] = letter["record"]
        elif letter["kind"] == "ready":
            return self._held(letter)
        elif letter["kind"] == "connected":
            self._connected = True
            took = format_seconds(time.monotonic() - self._since)
            workers = counted(self._tasks[0].workers, "worker")
            self._say(f"Ray answers after {took}; waits for {workers} to import what is trained")
        elif letter["kind"] in ("failed", "refused", "unreachable"):
            return letter
        return None

    def _say_stepping(self, letter: Letter) -> None:
        """Say once that workers take steps: the wait for Ray is over."""
        if letter["phase"] != STARTING and not self._stepping:
            self._stepping = True
            self._say(f"trains, {format_seconds(time.monotonic() - self._began)} after the start")

    def _held(self, letter: Letter) -> Letter | None:
        """Hold a worker to its cores; return why not, where it cannot be."""
        try:
            self._holding.take(int(letter["rank"]), letter)
        except OSError as error:
            return {"kind": "refused", "reason": f"a worker cannot be held to its cores: {error}"}
        return None

    def _failed(self, told: Told, task: Task, letter: Letter, elapsed: float) -> Measurement:
        log = f" (log: {self._folder})"
        if letter["kind"] != "failed":
            self._stopped = True
        if letter["kind"] == "refused":
            self._shared = Measurement("failed", letter["reason"], seconds=elapsed)
            return self._shared
        if letter["kind"] == "unreachable" or not self._connected:
            # Ray's own library may end the driver where nothing answers: then its log has the words.
            words = letter.get("reason") or self.log.read_text(errors="replace")
            self._shared = Measurement("failed", unreachable(words) + log, seconds=elapsed)
            return self._shared
        if letter["kind"] == "silent":
            code = self._process.wait()
            reason = f"the driver ended with exit status {code}: {self._tail[:300]}"
            return Measurement("failed", reason + log, seconds=elapsed)
        status, reason = told.cause(task.workers, letter["failures"])
        return Measurement(status, reason + log, seconds=elapsed)

    def _timed_out(self, told: Told, task: Task, elapsed: float) -> Measurement:
        self._stopped = True
        reason = (
            f"ended after its limit of {task.timeout_seconds:g} s, {told.hindmost(task.workers)}"
        )
        stepping = [one for one in told.seen.values() if one.phase != STARTING]
        if not stepping:
            return Measurement("timeout", reason, seconds=elapsed)
        slowest = min(stepping, key=lambda one: one.steps)
        least = least_step_seconds(slowest, task, time.time())
        return Measurement(
            "timeout", reason, step_seconds=least, steps=slowest.steps, seconds=elapsed
        )


OLDEST = (2, 30)
PLACEMENTS = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
_COUNT_SECONDS = 90.0
_COUNT = (
    "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR');"
    " print(sum(n['Alive'] for n in ray.nodes()))"
)
_COUNT_BY_DASHBOARD = (
    "import sys; from ray.util.state import list_nodes;"
    " print(len(list_nodes(address=sys.argv[1], filters=[('state', '=', 'ALIVE')])))"
)
# Variables of the driver that every worker needs too.
_PASSED = ("RAY_AUTH_MODE", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "OMP_NUM_THREADS")


class RayRunner(TasksRunner):
    """Carries tasks out on a Ray cluster, through TorchTrainer.

    CPUs are a resource that Ray counts and does not hold: a worker that was given one may use
    more, unless `hold` is asked. `cpus_per_worker` 0 asks for one, as Ray Train does by itself.

    Args:
        address: of a cluster that is there (`auto`, `10.0.0.1:6379`, `ray://...`); blank is the
            one that RAY_ADDRESS names, or else one that is started on this machine for the run.
        submit: address of a cluster's dashboard (`http://head:8265`): the driver is handed to it
            by `ray job submit`, with the working directory.
        placement: placement strategy of the workers, one of `PLACEMENTS`.
        resources: of a worker, beside its CPUs and GPUs.
        host: where the driver is started; blank is this machine.
        environment: further variables of driver and workers.
        hold: hold workers to their `cpus_per_worker`, by affinity or quota as the local runner
            does; they have to run on this machine (its own cluster, or a lab's).
        storage: Ray Train's storage path, which all nodes must reach; blank is a local folder.
        folder: for logs, kept of runs that failed; blank is forerun's cache folder.
        entries, steps, timeout_seconds: for `run`, as of LocalRunner.
    """

    name = "ray"

    def __init__(
        self,
        address: str = "",
        submit: str = "",
        placement: str = "PACK",
        resources: Mapping[str, float] = {},
        host: Host | None = None,
        environment: Mapping[str, str] = {},
        hold: bool = False,
        storage: str = "",
        folder: str | Path = "",
        entries: Mapping[str, str] = {},
        steps: Steps | None = None,
        timeout_seconds: float = 900.0,
    ) -> None:
        if placement not in PLACEMENTS:
            raise RequestError(
                f"placement {placement!r}",
                "Ray has no such strategy",
                one_of(placement, PLACEMENTS),
            )
        self.address, self.submit, self.placement_group = address, submit, placement
        self.resources = dict(resources)
        self.host = host or local_host()
        self.environment = dict(environment)
        self.hold = hold
        self.storage = storage
        super().__init__(folder, entries, steps, timeout_seconds)

    def placement(self, task: Task) -> tuple[int, ...]:
        """Return how many workers each node gets; () where Ray packs them as it finds room."""
        nodes = self.host_count
        if nodes == 1:
            return (task.workers,)
        return blocks(task.workers, nodes) if self.placement_group.endswith("SPREAD") else ()

    def refuses(self, task: Task) -> str | None:
        """Return why this runner cannot carry a task out, None where it can."""
        if task.is_script:
            return (
                "Ray Train calls a function, and no script; name one of the script's functions"
                " (package.module:function), or use the local runner"
            )
        if task.gpus_per_worker > 1:
            return f"a worker drives one GPU, and {task.gpus_per_worker} are asked"
        return ray_problem() or (refusal(task) if self.hold else None)

    @cached_property
    def host_count(self) -> int:
        """How many nodes the cluster has; 1 of the one that would be started here.

        Raises:
            RequestError: no cluster answers.
        """
        address = self._given
        if not address:
            return 1
        words = [sys.executable, "-c", _COUNT_BY_DASHBOARD if self.submit else _COUNT, address]
        try:
            done = subprocess.run(
                self.host.command(words), env={**os.environ, **self._variables()}, check=False,
                capture_output=True, text=True, timeout=_COUNT_SECONDS,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise RequestError(
                f"the Ray cluster at {address}", f"no answer in {_COUNT_SECONDS:g} s",
                "check the address, or start one: ray start --head",
            ) from None  # fmt: skip
        if done.returncode:
            found, _, todo = unreachable(done.stderr).partition("; ")
            raise RequestError(
                f"the Ray cluster at {address}",
                found,
                todo or "look whether it is well: ray status",
            )
        return int(done.stdout.split()[-1])

    @property
    def where(self) -> str:
        """Where it carries tasks out."""
        return f"on {self._given or 'a cluster of this machine'}"

    @property
    def _given(self) -> str:
        """Return the address of the cluster, "" where one is started here and ended with the run."""
        given = self.submit or self.address or os.environ.get("RAY_ADDRESS", "")
        return "" if given == "local" else given

    def _carry(self, tasks: Sequence[Task]) -> Iterator[Measurement]:
        """Yield measurements of tasks from one driver, as long as it goes on."""
        folder = self._new_folder(tasks[0])
        folder.mkdir(parents=True)
        well = True
        if self.submit:
            self.tell(f"submits a job to the Ray cluster {self.where}")
        elif self._given:
            self.tell(f"connects to the Ray cluster {self.where}")
        else:
            self.tell("starts a Ray cluster on this machine (some ten seconds)")
        errand = Errand(
            self.plan(tasks, folder), tasks, folder, self.host, self._variables(), self.submit,
            Holding(tasks[0]), self.tell, own=not self._given,
        )  # fmt: skip
        try:
            for measured in errand.results():
                well &= measured.status == "ok"
                yield measured
        finally:
            errand.end()
            if well:
                shutil.rmtree(folder, ignore_errors=True)

    def plan(self, tasks: Sequence[Task], folder: Path) -> dict[str, Any]:
        """Return what the driver is told: tasks of one number of workers, and what they need."""
        first = tasks[0]
        cpus = first.cpus_per_worker or 1.0
        resources = {"CPU": cpus, **self.resources}
        if first.gpus_per_worker:
            resources["GPU"] = float(first.gpus_per_worker)
        threads = first.threads or max(int(cpus), 1)
        variables = {"OMP_NUM_THREADS": str(threads), **self._passed()}
        if not self.submit:
            variables["PYTHONPATH"] = self._path()
        return {
            "tasks": [task.to_json() for task in tasks], "workers": first.workers,
            "resources": resources, "placement": self.placement_group, "variables": variables,
            "address": "auto" if self.submit else self.address, "storage": self._storage(folder),
            "local_cpus": max(os.cpu_count() or 1, 1),
            "backend": str(first.settings.get("backend", "")),
            "hold": first.cpus_per_worker if self.hold else 0.0,
        }  # fmt: skip

    def _storage(self, folder: Path) -> str:
        return self.storage or ("" if self.submit else str(folder / "storage"))

    def _variables(self) -> dict[str, str]:
        """Return the driver's own variables, beside those of this process."""
        variables = {"RAY_USAGE_STATS_ENABLED": "0", **self._passed(), **self.environment}
        if not self.submit:
            variables["PYTHONPATH"] = self._path()
        return variables

    def _passed(self) -> dict[str, str]:
        """Return the variables that workers need as the driver has them."""
        known = {**os.environ, **self.environment}
        found = {name: known[name] for name in _PASSED if name in known}
        if self.host.interface and not self.address and not self.submit:
            found.setdefault("GLOO_SOCKET_IFNAME", self.host.interface)
        extra = {
            k: v for k, v in self.environment.items() if k not in ("RAY_ADDRESS", "PYTHONPATH")
        }
        return {**found, **extra}

    def _path(self) -> str:
        """Return the import path of driver and workers: forerun, and the working directory."""
        source = str(Path(__file__).resolve().parents[3])
        given = self.environment.get("PYTHONPATH") or os.environ.get("PYTHONPATH", "")
        return os.pathsep.join(p for p in (given, source, str(Path.cwd())) if p)


def ray_problem() -> str | None:
    """Return why Ray cannot be used by this Python, None where it can."""
    try:
        version = metadata.version("ray")
    except metadata.PackageNotFoundError:
        return "Ray is not installed; install it with: pip install 'forerun[ray]'"
    numbers = tuple(int(n) for n in version.split(".")[:2] if n.isdigit())
    if numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return f"Ray {version} is older than {oldest}; install a newer one: pip install -U 'ray[default]'"
    return None
