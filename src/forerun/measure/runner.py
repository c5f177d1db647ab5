"""TasksRunner: what runners share: jobs become tasks, and tasks with equal resources share a start."""

from __future__ import annotations

import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from forerun.domain.job import Job
from forerun.domain.run import Run
from forerun.errors import ForerunError, RequestError
from forerun.measure.measurement import (
    Measurement,
)
from forerun.measure.progress import Seen
from forerun.measure.step_times import step_times
from forerun.measure.task import PRECISIONS, Steps, Task, sharing

_MODULE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def task_of(job: Job, entries: Mapping[str, str], steps: Steps, **given: object) -> Task:
    """Return the task of a job: data-parallel training of what its workload's name stands for.

    Args:
        job: its workload's name is a `package.module:callable` itself, or a key of `entries`.
        entries: what to train for a workload, by the workload's name.
        steps: how long is measured.
        given: further fields of the task, which win.

    Raises:
        RequestError: no entry is known, or the plan is more than data-parallel.
    """
    name, plan = job.workload.name, job.plan
    entry = entries.get(name) or (name if _MODULE.fullmatch(name) else "")
    if not entry:
        raise RequestError(
            f"measuring {name}", "it is not known what to train for it",
            f"name a package.module:callable for it (entries={{'{name}': ...}})",
        )  # fmt: skip
    odd = [f"{f}={getattr(plan, f)}" for f in ("tp", "pp", "cp", "ep") if getattr(plan, f) > 1]
    odd += [f"zero_stage={plan.zero_stage}"] if plan.zero_stage else []
    odd += [f"recompute={plan.recompute}"] if plan.recompute != "none" else []
    odd += [f"sync={plan.sync}"] if plan.sync != "allreduce" else []
    if odd:
        raise RequestError(
            f"measuring {name} with {', '.join(odd)}",
            "forerun's own loop trains data-parallel by all-reduce, and nothing else",
            "measure a training function or script of your own",
        )
    if job.workload.precision not in PRECISIONS:
        raise RequestError(
            f"measuring {name} in {job.workload.precision}", "its loop has no such precision",
            f"use {', '.join(PRECISIONS)}",
        )  # fmt: skip
    passes = plan.global_batch // (plan.micro_batch * plan.dp)
    size = int(job.workload.dataset_size)
    fields: dict[str, object] = {
        "workers": plan.dp, "global_batch": plan.global_batch, "steps": steps,
        "dataset_size": size if size >= plan.global_batch else 0,
        "gpus_per_worker": int(job.cluster.device.kind == "gpu"),
        "precision": job.workload.precision, "optimizer": job.workload.optimizer,
        "settings": {"accumulate": passes} if passes > 1 else {}, **given,
    }  # fmt: skip
    return Task(entry, **fields)  # type: ignore[arg-type]


class TasksRunner(ABC):
    """Carries tasks out in groups that one start of processes can serve.

    Args:
        folder: for logs and records, kept of runs that failed; blank is forerun's cache folder.
        entries: what to train for a workload, by its name (for `run`).
        steps: how long a job is measured (for `run`).
        timeout_seconds: limit of a job (for `run`).
    """

    name: str
    tell: Callable[[str], None]  # called with what it does where that takes long, in words

    def __init__(
        self, folder: str | Path, entries: Mapping[str, str], steps: Steps | None,
        timeout_seconds: float,
    ) -> None:  # fmt: skip
        self.folder = Path(folder) if folder else _cache_folder()
        self._entries, self._steps = dict(entries), steps or Steps()
        self._timeout_seconds = timeout_seconds
        self.tell = _silent

    @abstractmethod
    def refuses(self, task: Task) -> str | None:
        """Return why this runner cannot carry a task out, None where it can."""

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
            task = task_of(job, self._entries, self._steps, timeout_seconds=self._timeout_seconds)
        except ForerunError as error:
            return Run(job, "failed", origin=f"{self.name} runner {self.where}: {error}")
        told = f"measured by forerun's {self.name} runner {self.where}"
        return self.measure(task).run(job, told)

    def measure(self, task: Task) -> Measurement:
        """Return what one task told."""
        return self.measure_many([task])[0]

    def measure_many(self, tasks: Iterable[Task]) -> list[Measurement]:
        """Return what each task told, in order; those that can share a start do."""
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

    def _new_folder(self, task: Task) -> Path:
        """Return the name of a folder that no other start has."""
        moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        return self.folder / f"{moment}-{task.key[:8]}-{os.getpid()}-{time.monotonic_ns() % 10**9}"


def _silent(words: str) -> None:
    """Tell nobody."""


def _cache_folder() -> Path:
    top = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(top) / "forerun" / "measure"


def least_step_seconds(seen: Seen, task: Task, now: float) -> float | None:
    """Return what a step takes at least, from the steps that were done before time ran out.

    The lower end of their interval; the fastest, where there are too few for one; and where none
    was counted, the time that the one under way had already taken.
    """
    counted = seen.seconds[task.steps.warmup :]
    times = step_times(counted)
    if times is None:
        waited = now - max(seen.last, seen.begun)
        return waited if waited > 0 and not seen.steps else None
    return times.low if times.low is not None else min(counted)
