"""Session: the three lines of a user's script: `with record() as r: for batch in r.steps(loader)`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forerun.measure.measurement import Measurement
from forerun.measure.progress import Progress
from forerun.measure.recorder import Recorder
from forerun.measure.records import merged, progress_path, write_record, write_synced
from forerun.measure.task import Steps
from forerun.measure.usage import own_gpu
from forerun.tables.files import write_whole

FOLDER = "FORERUN_RECORD_DIR"
STEPS = "FORERUN_STEPS"
RUNNER = "FORERUN_RUNNER"  # process id of the runner that started this worker


class _Place:
    """Where the recorder of this process is kept, while one runs."""

    recorder: Recorder | None = None


def current() -> Recorder | None:
    """Return the recorder that runs in this process, None where none does."""
    return _Place.recorder


@contextmanager
def installed(recorder: Recorder) -> Iterator[Recorder]:
    """Make a recorder the one of this process for a while."""
    before, _Place.recorder = _Place.recorder, recorder
    try:
        yield recorder
    finally:
        _Place.recorder = before


@contextmanager
def record(samples: int = 0, out: str | Path = "", **given: Any) -> Iterator[Recorder]:
    """Measure the steps of a training script; use it around the loop.

    Started by a forerun runner, the record goes home to it, and `steps` ends the loop once enough
    has been measured. Otherwise nothing is cut short; `out` names a file for the measurement (of
    the first worker), and FORERUN_RECORD_DIR a folder for every worker's record.

    Args:
        samples: in one optimizer step of all workers, where it should tell a throughput.
        out: a JSON file, written whole or not at all.
        given: further arguments of `Recorder`.

    Raises:
        RequestError: `out` cannot be written.
    """
    running = current()
    if running is not None:  # a runner's: it asks for the record itself
        running.explicit = True
        running.samples = samples or running.samples
        yield running
        return
    recorder = from_environment(**given)
    recorder.explicit = True
    recorder.samples = samples
    with installed(recorder), _hooked(recorder):
        try:
            yield recorder
        except BaseException:  # whoever catches it may train on
            recorder.leave()
            raise
    told = recorder.record()
    if folder := os.environ.get(FOLDER):
        write_record(Path(folder), told)
    if out and recorder.rank == 0:
        measured = (
            merged([told])
            if told["status"] == "ok"
            else Measurement(told["status"], told["reason"])
        )
        text = json.dumps(measured.to_json(), indent=2)
        write_whole(Path(out), lambda name: write_synced(name, text))


@contextmanager
def _hooked(recorder: Recorder) -> Iterator[None]:
    """Mark every optimizer's update meanwhile."""
    from forerun.measure.hooks import OptimizerHooks

    hooks = OptimizerHooks(recorder)
    try:
        yield
    finally:
        hooks.remove()


def from_environment(**given: Any) -> Recorder:
    """Return a recorder for this process as torchrun or a runner started it."""
    rank = int(os.environ.get("RANK", "0"))
    workers = int(os.environ.get("WORLD_SIZE", "1"))
    folder = os.environ.get(FOLDER)
    if folder and "progress" not in given:
        given["progress"] = Progress(progress_path(Path(folder), rank))
    if asked := os.environ.get(STEPS):
        given.setdefault("steps", Steps(**json.loads(asked)))
    return Recorder(rank=rank, workers=workers, **{"gpu": _gpu(), **given})


def _gpu() -> int | None:
    """Return the GPU that this process computes on, None where torch sees none."""
    import torch

    return own_gpu() if torch.cuda.is_available() else None
