"""RayRunner: Ray Train carries tasks out; many of one number of workers share one fit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

from forerun.errors import RequestError, one_of
from forerun.measure.hosts import Host, blocks, local_host
from forerun.measure.limits import Holding, refusal
from forerun.measure.measurement import Measurement
from forerun.measure.ray.errand import Errand
from forerun.measure.ray.words import unreachable
from forerun.measure.task import Steps, Task
from forerun.measure.tasks_runner import TasksRunner

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
