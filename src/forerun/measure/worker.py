"""Worker: one process of a run: `python -m forerun.measure.worker PLAN.json` carries out its tasks."""

from __future__ import annotations

import faulthandler
import json
import os
import runpy
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

from forerun.errors import ForerunError, RequestError
from forerun.measure.failures import reason_of, status_of
from forerun.measure.loop import build, is_training_function, load_entry, train
from forerun.measure.measurement import Record, progress_path, record_path, write_json
from forerun.measure.processes import die_with_parent, loading, own_gpu
from forerun.measure.progress import ProgressFile, Reporter
from forerun.measure.recorder import Enough, OptimizerHooks, Recorder, installed
from forerun.measure.task import Task


def main(plan: str) -> int:
    """Carry out the tasks of a plan until one fails, since its peers wait for its end; return the status."""
    die_with_parent()
    faulthandler.enable()
    data = json.loads(Path(plan).read_text())
    rank = int(os.environ["RANK"])
    for task, folder in zip(data["tasks"], map(Path, data["folders"]), strict=True):
        reporter = partial(ProgressFile, progress_path(folder, rank))
        record = carry_out(Task.from_json(task), rank, reporter)
        write_json(record_path(folder, rank), record)
        if record["status"] != "ok":
            return 1
    return 0


def carry_out(task: Task, rank: int, progress: Callable[[], Reporter]) -> Record:
    """Return the record of a task for one worker, also where it failed; `progress` makes its reporter."""
    recorder: Recorder | None = None
    try:
        reporter = progress()
        prepare(task)
        every, gpu = task.settings.get("norms_every"), None
        if task.gpus_per_worker:
            import torch

            gpu = own_gpu()
            torch.cuda.set_device(gpu)
        recorder = Recorder(task.steps, rank, task.workers, gpu, reporter, every)
        recorder.samples = task.global_batch
        with installed(recorder):
            _run(task, recorder)
    except (Exception, SystemExit) as error:  # noqa: BLE001  (a user's code may raise anything)
        ended = isinstance(error, SystemExit) and error.code in (None, 0)  # Enough among them
        if recorder is None or not ended:
            traceback.print_exc()
            reason = str(error) if isinstance(error, ForerunError) else reason_of(error)
            return failure(rank, task.workers, status_of(error), reason)
    return recorder.record()


def failure(rank: int, workers: int, status: str, reason: str) -> Record:
    """Return the record of a worker, one of so many, that failed."""
    what = {"rank": rank, "workers": workers, "status": status, "reason": reason}
    return {**what, "ended": time.time()}


@loading()
def prepare(task: Task) -> None:
    """Set threads and join the process group. Raises RequestError where it has another backend."""
    import torch

    if task.threads:
        torch.set_num_threads(task.threads)
    if task.is_script or not torch.distributed.is_available():
        return
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group(task.backend)
    live = str(torch.distributed.get_backend())
    if live != task.backend:
        asked = f"{task.entry} with backend {task.backend}"
        found = f"its workers already talk through {live}"
        raise RequestError(asked, found, "give workers of their own to tasks of another backend")
    if task.rehearses:
        _rehearse(bool(task.gpus_per_worker))


@cache
def _rehearse(on_gpu: bool) -> None:
    """Train one tiny step, so that what torch loads at first use is not counted as the task's memory."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    device = torch.device("cuda", own_gpu()) if on_gpu else torch.device("cpu")
    module = DistributedDataParallel(
        torch.nn.Linear(8, 8).to(device), device_ids=[device.index] if on_gpu else None
    )
    module(torch.zeros(2, 8, device=device)).square().mean().backward()
    torch.optim.AdamW(module.parameters()).step()


def _run(task: Task, recorder: Recorder) -> None:
    if task.is_script:
        with unchanged(recorder):
            sys.argv = [task.entry, *task.arguments]
            sys.path.insert(0, str(Path(task.entry).resolve().parent))
            runpy.run_path(task.entry, run_name="__main__")
        return
    target = load_entry(task.entry)
    if not is_training_function(target):
        train(task, build(task, target), recorder)
        return
    if task.servers or task.partitions > 1:
        found = f"{task.entry} trains by itself, and exchanges what it likes"
        todo = "name a callable that returns a module and its inputs"
        how = f"sync={task.sync}" if task.servers else f"partitions={task.partitions}"
        raise RequestError(f"training with {how}", found, todo)
    configuration = {
        "batch": task.batch, "global_batch": task.global_batch, "dataset_size": task.dataset_size,
        "workers": task.workers, "rank": recorder.rank, "precision": task.precision,
        "optimizer": task.optimizer, "seed": task.seed, "epochs": task.steps.epochs,
        **task.settings,
    }  # fmt: skip
    with unchanged(recorder):
        target(configuration)


@contextmanager
def unchanged(recorder: Recorder) -> Iterator[None]:
    """Measure code that runs as it is: an optimizer's update ends a step, unless the code marks it."""

    def stop() -> None:
        raise Enough(0)

    hooks = OptimizerHooks(recorder, stop)
    try:
        yield
    finally:
        hooks.remove()


if __name__ == "__main__":
    status = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # a process group whose members have gone would wait at the interpreter's end
