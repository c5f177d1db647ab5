"""RayRunner: Ray Train carries tasks out; many of one number of workers share one fit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

from forerun.domain.job import Job
from forerun.domain.run import Run
from forerun.errors import ForerunError, RequestError, one_of
from forerun.measure.asking import task_of
from forerun.measure.hosts import Host, local_host
from forerun.measure.local import _cache_folder
from forerun.measure.measurement import Measurement
from forerun.measure.ray.errand import Errand
from forerun.measure.ray.words import unreachable
from forerun.measure.task import Steps, Task, sharing

OLDEST = (2, 30)
PLACEMENTS = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
_COUNT_SECONDS = 90.0
_COUNT = (
    "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR');"
    " print(sum(n['Alive'] for n in ray.nodes()))"
)
# Variables of the driver that every worker needs too.
_PASSED = ("RAY_AUTH_MODE", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "OMP_NUM_THREADS")


class RayRunner:
    """Carries tasks out on a Ray cluster, through TorchTrainer.

    CPUs are a resource that Ray counts and does not hold: a worker that was given one may use
    more. `cpus_per_worker` 0 asks for one, as Ray Train does by itself.

    Args:
        address: of a cluster that is there (`auto`, `10.0.0.1:6379`, `ray://...`); blank is the
            one that RAY_ADDRESS names, or else one that is started on this machine for the run.
        submit: address of a cluster's dashboard (`http://head:8265`): the driver is handed to it
            by `ray job submit`, with the working directory.
        placement: placement strategy of the workers, one of `PLACEMENTS`.
        resources: of a worker, beside its CPUs and GPUs.
        host: where the driver is started; blank is this machine.
        environment: further variables of driver and workers.
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
        self.address, self.submit, self.placement = address, submit, placement
        self.resources = dict(resources)
        self.host = host or local_host()
        self.environment = dict(environment)
        self.storage = storage
        self.folder = Path(folder) if folder else _cache_folder()
        self._entries, self._steps = dict(entries), steps or Steps()
        self._timeout_seconds = timeout_seconds

    def run(self, job: Job) -> Run:
        """Return the run of a job; one that cannot be carried out failed, and says why."""
        try:
            task = task_of(job, self._entries, self._steps, timeout_seconds=self._timeout_seconds)
        except ForerunError as error:
            return Run(job, "failed", origin=f"ray runner: {error}")
        return self.measure(task).run(job, f"measured by forerun's ray runner, {self._where()}")

    def measure(self, task: Task) -> Measurement:
        """Return what one task told."""
        return self.measure_many([task])[0]

    def measure_many(self, tasks: Iterable[Task]) -> list[Measurement]:
        """Return what each task told, in order; those of one number of workers share a fit."""
        asked = list(tasks)
        found = dict(self.each(asked))
        return [found[i] for i in range(len(asked))]

    def each(self, tasks: Iterable[Task]) -> Iterator[tuple[int, Measurement]]:
        """Yield (position, measurement) as tasks end; closing the iterator ends what still runs."""
        asked = list(tasks)
        for group in sharing(asked):
            left = list(group)
            while left:
                reason = self.refuses(asked[left[0]])
                if reason is not None:
                    yield left.pop(0), Measurement("failed", reason)
                    continue
                for measured in self._carry([asked[i] for i in left]):
                    yield left.pop(0), measured

    def refuses(self, task: Task) -> str | None:
        """Return why this runner cannot carry a task out, None where it can."""
        if task.is_script:
            return (
                "Ray Train calls a function, and no script; name one of the script's functions"
                " (package.module:function), or use the local runner"
            )
        if task.gpus_per_worker > 1:
            return f"a worker drives one GPU, and {task.gpus_per_worker} are asked"
        return ray_problem()

    @cached_property
    def host_count(self) -> int:
        """How many nodes the cluster has; 1 of the one that would be started here.

        Raises:
            RequestError: no cluster answers.
        """
        address = "auto" if self.submit else self.address or os.environ.get("RAY_ADDRESS", "")
        if not address:
            return 1
        words = [sys.executable, "-c", _COUNT, address]
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
            last = next((x for x in reversed(done.stderr.splitlines()) if x.strip()), "")
            raise RequestError(f"the Ray cluster at {address}", unreachable(last), "and try again")
        return int(done.stdout.split()[-1])

    def _where(self) -> str:
        return (
            self.submit
            or self.address
            or os.environ.get("RAY_ADDRESS", "a cluster of this machine")
        )

    def _carry(self, tasks: Sequence[Task]) -> Iterator[Measurement]:
        """Yield measurements of tasks from one driver, as long as it goes on."""
        moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        name = f"{moment}-{tasks[0].key[:8]}-{os.getpid()}-{time.monotonic_ns() % 10**9}"
        folder = self.folder / name
        folder.mkdir(parents=True)
        well = True
        errand = Errand(
            self.plan(tasks, folder), tasks, folder, self.host, self._variables(), self.submit
        )
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
            "resources": resources, "placement": self.placement, "variables": variables,
            "address": "auto" if self.submit else self.address, "storage": self._storage(folder),
            "local_cpus": max(os.cpu_count() or 1, 1),
            "backend": str(first.settings.get("backend", "")),
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
