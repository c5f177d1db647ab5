"""LocalRunner: torchrun-style processes over hosts carry tasks out; whatever happens is a status."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from forerun.domain.job import Job
from forerun.domain.run import Run
from forerun.errors import ForerunError
from forerun.measure.asking import task_of
from forerun.measure.hosts import Host, check_hosts, local_host
from forerun.measure.launch import Launch
from forerun.measure.limits import refusal, remove_stale
from forerun.measure.measurement import Measurement
from forerun.measure.task import Steps, Task, sharing
from forerun.measure.watching import Watch

_PORT_TAKEN = ("address already in use", "eaddrinuse")
_TRIES = 3  # with another port each


class LocalRunner:
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
        self.folder = Path(folder) if folder else _cache_folder()
        self._entries = dict(entries)
        self._steps = steps or Steps()
        self._environment = dict(environment)
        self._timeout_seconds = timeout_seconds
        remove_stale()

    def run(self, job: Job) -> Run:
        """Return the run of a job; one that cannot be carried out failed, and says why."""
        host = ", ".join(h.name for h in self.hosts)
        try:
            task = task_of(job, self._entries, self._steps, timeout_seconds=self._timeout_seconds)
        except ForerunError as error:
            return Run(job, "failed", origin=f"local runner on {host}: {error}")
        return self.measure(task).run(job, f"measured by forerun's local runner on {host}")

    def measure(self, task: Task) -> Measurement:
        """Return what one task told."""
        return self.measure_many([task])[0]

    def measure_many(self, tasks: Iterable[Task]) -> list[Measurement]:
        """Return what each task told, in order; those that can share their processes do."""
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

    def _new_folder(self, task: Task) -> Path:
        moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        return self.folder / f"{moment}-{task.key[:8]}-{os.getpid()}-{time.monotonic_ns() % 10**9}"


def _port_was_taken(launch: Launch) -> bool:
    """Whether the first worker found its port in use."""
    try:
        text = launch.log(0).read_text(errors="replace").lower()
    except OSError:
        return False
    return any(words in text for words in _PORT_TAKEN)


def _cache_folder() -> Path:
    top = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(top) / "forerun" / "measure"
