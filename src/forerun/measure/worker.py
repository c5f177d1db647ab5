"""Worker: one process of a run: `python -m forerun.measure.worker PLAN.json` carries out its tasks."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from forerun.errors import ForerunError, RequestError
from forerun.measure.failures import reason_of, status_of
from forerun.measure.loop import build, configuration, is_training_function, load_entry
from forerun.measure.measurement import progress_path, write_record
from forerun.measure.progress import Progress, Reporter
from forerun.measure.recorder import RUNNER, Enough, Record, Recorder, installed
from forerun.measure.task import Task
from forerun.measure.usage import own_gpu

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


def main(plan: str) -> int:
    """Carry out the tasks of a plan, one after another; return the exit status.

    The plan is JSON: `tasks`, and `folders`, where each one's record goes. After a failure the
    worker ends: its neighbours wait for it in a collective, and only their end frees them.
    """
    die_with_parent()
    faulthandler.enable()
    data = json.loads(Path(plan).read_text())
    tasks = [Task.from_json(one) for one in data["tasks"]]
    for task, folder in zip(tasks, map(Path, data["folders"]), strict=True):
        record = carry_out(task, int(os.environ["RANK"]), partial(progress_in, folder))
        write_record(folder, record)
        if record["status"] != "ok":
            return 1
    return 0


def die_with_parent() -> None:
    """Ask the kernel to end this process with its parent (Linux; elsewhere nothing happens)."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    try:
        os.kill(int(os.environ.get(RUNNER, "0")) or os.getpid(), 0)
    except ProcessLookupError:  # it ended before it could be asked for
        os._exit(1)
    except PermissionError:
        pass


def progress_in(folder: Path, rank: int) -> Reporter:
    """Return what tells of a worker's progress by a file."""
    return Progress(progress_path(folder, rank))


def carry_out(task: Task, rank: int, progress: Callable[[int], Reporter]) -> Record:
    """Return the record of a task for one worker, also where it failed.

    Args:
        task: what is carried out.
        rank: which worker this is.
        progress: makes, for a rank, what tells others how far it has come.
    """
    recorder: Recorder | None = None
    try:
        told = progress(rank)
        prepare(task)
        recorder = make_recorder(task, rank, told)
        with installed(recorder):
            run_entry(task, recorder)
        return recorder.record()
    except Enough:
        assert recorder is not None
        return recorder.record()
    except (Exception, SystemExit) as error:  # noqa: BLE001  (a user's code may raise anything)
        if isinstance(error, SystemExit) and recorder is not None and error.code in (None, 0):
            return recorder.record()
        traceback.print_exc()
        return failure(rank, task.workers, status_of(error), _told(error))


def failure(rank: int, workers: int, status: str, reason: str) -> Record:
    """Return the record of a worker, one of so many, that failed."""
    import time

    return {
        "rank": rank, "workers": workers, "status": status, "reason": reason,
        "ended": time.time(),
    }  # fmt: skip


def _told(error: BaseException) -> str:
    return str(error) if isinstance(error, ForerunError) else reason_of(error)


def prepare(task: Task) -> None:
    """Set threads and join the process group, as far as this is done once a process.

    Raises:
        RequestError: the process group that is there has another backend than the task asks for.
    """
    import torch

    if task.threads:
        torch.set_num_threads(task.threads)
    if task.is_script or not torch.distributed.is_available():
        return
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group(task.backend)
    live = str(torch.distributed.get_backend())
    if live != task.backend:
        raise RequestError(
            f"{task.entry} with backend {task.backend}", f"its workers already talk through {live}",
            "give workers of their own to tasks of another backend",
        )  # fmt: skip
    if task.rehearses:
        rehearse(bool(task.gpus_per_worker))


@cache
def rehearse(on_gpu: bool) -> None:
    """Train one tiny step, so that what torch loads at first use is not counted as the task's memory.

    Done once a process.
    """
    import torch
    from torch.nn.parallel import DistributedDataParallel

    device = torch.device("cuda", own_gpu() if on_gpu else 0)
    tiny = torch.nn.Linear(8, 8).to(device if on_gpu else "cpu")
    module = DistributedDataParallel(tiny, device_ids=[device.index] if on_gpu else None)
    module(torch.zeros(2, 8, device=device if on_gpu else "cpu")).square().mean().backward()
    torch.optim.AdamW(module.parameters()).step()


def make_recorder(task: Task, rank: int, progress: Reporter | None) -> Recorder:
    """Return the recorder of a task for this worker."""
    gpu = None
    if task.gpus_per_worker:
        import torch

        gpu = own_gpu()
        torch.cuda.set_device(gpu)
    every = task.settings.get("norms_every")
    recorder = Recorder(
        task.steps, rank, task.workers, gpu, progress,
        norms_every=None if every is None else int(every),
    )  # fmt: skip
    recorder.samples = task.global_batch
    return recorder


def run_entry(task: Task, recorder: Recorder) -> None:
    """Run what the task names: a script, a training function, or forerun's loop over a module."""
    if task.is_script:
        with unchanged(recorder):
            sys.argv = [task.entry, *task.arguments]
            sys.path.insert(0, str(Path(task.entry).resolve().parent))
            runpy.run_path(task.entry, run_name="__main__")
        return
    target = load_entry(task.entry)
    if is_training_function(target):
        with unchanged(recorder):
            target(configuration(task, recorder.rank))
        return
    from forerun.measure.loop import train

    train(task, build(task, target), recorder)


class unchanged:  # noqa: N801  (a context manager, used like a function)
    """Code that is run as it is: an optimizer's update ends a step, where nobody says otherwise."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __enter__(self) -> None:
        from forerun.measure.hooks import OptimizerHooks

        self._hooks = OptimizerHooks(self._recorder, self._stop)

    def __exit__(self, *raised: Any) -> None:
        self._hooks.remove()

    def _stop(self) -> None:
        raise Enough(0)


if __name__ == "__main__":
    status = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # a process group whose members have gone would wait at the interpreter's end
