"""TaskRunner: what runners share: jobs become tasks, and tasks with equal resources share a start."""

from __future__ import annotations

import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from forerun.domain.job import Job, Run
from forerun.errors import ForerunError, RequestError
from forerun.measure.measurement import Measurement
from forerun.measure.progress import STARTING, WorkerProgress, slowest_place
from forerun.measure.step_times import step_times
from forerun.measure.task import (
    ENTRY,
    EXCHANGES,
    OF_SERVERS,
    PRECISIONS,
    THROUGH_SERVERS,
    Steps,
    Task,
    sharing,
)

_PLAIN = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "zero_stage": 0, "recompute": "none",
          "gradient_bits": 0}  # fmt: skip


def task_of(job: Job, entries: Mapping[str, str], steps: Steps, timeout_seconds: float) -> Task:
    """Return the data-parallel task of a job, whose entry is a workload's name or among `entries`.

    Raises RequestError where there is no entry, or the plan is more than data-parallel.
    """
    name, plan, precision = job.workload.name, job.plan, job.workload.precision
    entry = entries.get(name) or (name if re.fullmatch(ENTRY, name) else "")
    if not entry:
        todo = f"name a package.module:callable for it (entries={{'{name}': ...}})"
        raise RequestError(f"measuring {name}", "it is not known what to train for it", todo)
    odd = [f"{f}={value}" for f, usual in _PLAIN.items() if (value := getattr(plan, f)) != usual]
    odd += [] if plan.sync in EXCHANGES else [f"sync={plan.sync}"]
    odd += [] if precision in PRECISIONS else [f"precision={precision}"]
    if odd:
        found = f"forerun's own loop trains data-parallel alone, in {', '.join(PRECISIONS)}"
        todo = "measure a training function or script of your own"
        raise RequestError(f"measuring {name} with {', '.join(odd)}", found, todo)
    passes = plan.global_batch // (plan.micro_batch * plan.dp)
    size = int(job.workload.dataset_size)
    counts = {"accumulate": passes, "partitions": plan.partitions}
    settings: dict[str, Any] = {name: count for name, count in counts.items() if count > 1}
    if plan.sync in THROUGH_SERVERS:
        own = {name: getattr(plan, name) for name in OF_SERVERS}
        settings |= {"sync": plan.sync, **{name: value for name, value in own.items() if value}}
    return Task(
        entry, workers=plan.dp * plan.partitions, global_batch=plan.global_batch, steps=steps,
        dataset_size=size if size >= plan.global_batch else 0,
        gpus_per_worker=int(job.cluster.device.kind == "gpu"), precision=precision,
        optimizer=job.workload.optimizer, settings=settings,
        timeout_seconds=timeout_seconds,
    )  # fmt: skip


class TaskRunner(ABC):
    """Carries tasks out in groups that one start of processes can serve; logs of failed runs stay in `folder`."""

    name: str
    tell: Callable[[str], None]  # called with what it does where that takes long, in words

    def __init__(
        self, folder: str | Path, entries: Mapping[str, str], steps: Steps | None,
        timeout_seconds: float,
    ) -> None:  # fmt: skip
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self.folder = Path(folder) if folder else cache / "forerun" / "measure"
        self._entries, self._steps = dict(entries), steps or Steps()
        self._timeout_seconds = timeout_seconds
        self.tell = lambda words: None

    def refuses(self, task: Task) -> str | None:
        """Return why this runner cannot carry a task out, None where it can."""
        if task.gpus_per_worker > 1:
            return f"a worker drives one GPU, and {task.gpus_per_worker} are asked"
        return self._refuses(task)

    def lacks(self, *tasks: Task) -> str:
        """Return why the machines that stand have no room for tasks at once, "" where they have or it is not known."""
        return ""

    def started(self) -> AbstractContextManager[None]:
        """Start once what the tasks of the block need, where each would start it for itself."""
        return nullcontext()

    @abstractmethod
    def _refuses(self, task: Task) -> str | None:
        """Return the same for a task of at most one GPU a worker."""

    @abstractmethod
    def placement(self, task: Task) -> tuple[int, ...]:
        """Return how many workers of a task each host gets; () where that is not known beforehand."""

    @abstractmethod
    def _carry(self, tasks: Sequence[Task]) -> Iterator[Measurement]:
        """Yield measurements of tasks from one start, until the first that is not ok."""

    @property
    @abstractmethod
    def where(self) -> str:
        """Where it carries tasks out, e.g. `on localhost`."""

    def run(self, job: Job) -> Run:
        """Return the run of a job; one that cannot be carried out failed, and says why."""
        try:
            task = task_of(job, self._entries, self._steps, self._timeout_seconds)
        except ForerunError as error:
            return Run(job, "failed", origin=f"{self.name} runner {self.where}: {error}")
        origin = f"measured by forerun's {self.name} runner {self.where}"
        return self.measure(task).run(job, origin)

    def measure(self, task: Task) -> Measurement:
        """Return the measurement of one task."""
        return self.measure_many([task])[0]

    def measure_many(self, tasks: Iterable[Task]) -> list[Measurement]:
        """Return the measurement of each task, in order; those that can share a start do."""
        return [found for _, found in sorted(self.each(tasks), key=lambda one: one[0])]

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

    def _new_folder(self, task: Task) -> Path:
        moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        return self.folder / f"{moment}-{task.key[:8]}-{os.getpid()}-{time.monotonic_ns() % 10**9}"


class RunLimits:
    """The limits of a task: of its whole time, and without a step (`start_seconds` more before the first)."""

    def __init__(self, task: Task, start_seconds: float) -> None:
        self._task, self._start_seconds = task, start_seconds
        self._moved, self._steps = time.monotonic(), list[tuple[int, int]]()

    def ended(self, workers: Sequence[WorkerProgress | None], seconds: float) -> Measurement | None:
        """Return the measurement of a run of so many seconds that a limit ends, else None."""
        if seconds > self._task.timeout_seconds:
            return timed_out(workers, self._task, seconds, time.time())
        steps = [(one.phase, one.steps) for one in workers if one is not None]
        if steps != self._steps:
            self._moved, self._steps = time.monotonic(), steps
        limit = self._task.hang_seconds
        starts = all(phase == STARTING for phase, _ in steps)
        if not limit or time.monotonic() - self._moved <= limit + self._start_seconds * starts:
            return None
        reason = f"no step for {limit:g} s: it hangs {slowest_place(workers)}"
        return Measurement("failed", reason, seconds=seconds)


def timed_out(
    workers: Sequence[WorkerProgress | None], task: Task, seconds: float, now: float
) -> Measurement:
    """Return the measurement of a run that its time limit ended: its times are lower bounds."""
    reason = f"ended after its limit of {task.timeout_seconds:g} s, {slowest_place(workers)}"
    begun = [one for one in workers if one is not None and one.phase != STARTING]
    slowest = min(begun, key=lambda one: one.steps, default=None)
    if slowest is None:
        return Measurement("timeout", reason, seconds=seconds)
    warmup, epoch = task.steps.warmup, None
    counted = slowest.seconds[warmup:]
    times = step_times(counted)
    # Without a counted step, that under way took this long already.
    step = 0.0 if slowest.steps else now - max(slowest.last, slowest.begun)
    if times is not None:
        step = times.low or min(counted)
    in_epoch = -(-task.dataset_size // task.global_batch)
    if task.steps.epochs and warmup <= slowest.steps < warmup + in_epoch:
        epoch = now - slowest.begun - sum(slowest.seconds[:warmup])
    return Measurement(
        "timeout", reason, step_seconds=step if step > 0 else None,
        epoch_seconds=epoch if epoch and epoch > 0 else None, steps=slowest.steps, seconds=seconds,
    )  # fmt: skip
