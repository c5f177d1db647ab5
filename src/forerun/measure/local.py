"""LocalRunner: torchrun-style processes over hosts carry tasks out; whatever happens is a status."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from forerun.measure.hosts import Host, blocks, check_hosts, local_host
from forerun.measure.launch import Launch
from forerun.measure.limits import refusal, remove_stale
from forerun.measure.measurement import Measurement
from forerun.measure.task import Steps, Task
from forerun.measure.tasks_runner import TasksRunner
from forerun.measure.watching import Watch

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
