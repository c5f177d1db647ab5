"""Session: the three lines of a user's script: `with record() as r: for batch in r.steps(loader)`.

Recorder: what runs in a worker: it times steps and their parts, and stops when enough is known.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from forerun.measure.communication import Communication, Traffic, means, notes, with_sync
from forerun.measure.measurement import (
    Measurement,
    fingerprint,
    merged,
    progress_path,
    write_record,
    write_synced,
)
from forerun.measure.progress import Progress, Reporter, StepLog
from forerun.measure.step_times import narrow, step_times, warm_steps
from forerun.measure.task import Steps
from forerun.measure.timeline import Clock, CudaClock, Timeline, WallClock
from forerun.measure.usage import PeakMemory, Usage, own_gpu
from forerun.tables.files import write_whole

_GROWTH = 1.5  # from one look to the next: each look is another chance to be lucky


class Agreement:
    """When to stop: the first worker decides at agreed steps, and tells the others.

    Every worker calls `due` after each counted step, and `decide` where it is; all of them come
    to the same steps, since the first worker also tells when it looks next.

    An interval that is narrow by chance would stop a run at the wrong moment. So there are few
    looks, each half as many steps again after the one before, and it is enough where two looks in
    a row found it narrow, the first of them before `steps.least`.

    Attributes:
        reason: why it stopped, where that is not what was asked.
        warm: counted steps at the beginning that are warm-up still (`measure.warmup`), the same
            for all workers that are connected; None until it stopped.
    """

    def __init__(self, steps: Steps, rank: int, workers: int) -> None:
        self._steps = steps
        self._rank = rank
        self._workers = workers
        self._next = 1
        self._first = math.ceil(steps.least / _GROWTH)
        self._was_narrow = False
        self._begun = time.perf_counter()
        self.reason = ""
        self.warm: int | None = None

    def begin(self) -> None:
        """Say that stepping begins: the cap in seconds counts from here."""
        self._begun = time.perf_counter()

    def due(self, count: int) -> bool:
        """Whether the workers meet after this many counted steps."""
        return count >= self._next

    def decide(self, count: int, seconds: Sequence[float]) -> bool:
        """Return whether it is enough; every worker gets the first one's answer.

        Args:
            count: counted steps.
            seconds: of those steps, as this worker saw them.
        """
        # What counted as warm-up may look usual later: no more than `most` steps count all the same.
        warm = max(warm_steps(np.asarray(seconds)), count - self._steps.most)
        stop, following = self._own(count - warm, seconds[warm:])
        following += warm
        if self._workers > 1 and _connected():
            stop, following, warm = _from_first(stop, following, warm)
        elif self._workers > 1:  # a count is all that they can agree on
            following = self._steps.most
            stop = count >= following
        self._next = following
        self.warm = warm if stop else None
        return stop

    def _own(self, count: int, seconds: Sequence[float]) -> tuple[bool, int]:
        """Return whether it is enough and else the next look; counts are without the warm-up."""
        steps = self._steps
        elapsed = time.perf_counter() - self._begun
        is_narrow, was_narrow = narrow(steps, seconds), self._was_narrow
        self._was_narrow = is_narrow
        if is_narrow and (was_narrow or count >= steps.most) and count >= steps.least:
            return True, count
        if count >= steps.most:
            self.reason = f"stopped at {count} steps, its interval wider than asked"
            return True, count
        pace = max(elapsed / max(count, 1), 1e-9)
        left = int((steps.seconds - elapsed) / pace)
        if left < 1:
            self.reason = f"stopped after {elapsed:.3g} s and {count} steps, before it was as sure"
            return True, count
        return False, min(self._look_after(count), count + left, steps.most)

    def _look_after(self, count: int) -> int:
        if count < self._first:
            return self._first
        return self._steps.least if count < self._steps.least else math.ceil(_GROWTH * count)


def _connected() -> bool:
    import torch.distributed as dist

    return bool(dist.is_available() and dist.is_initialized())


def _from_first(stop: bool, following: int, warm: int) -> tuple[bool, int, int]:
    """Return what the first worker of the default process group says."""
    import torch
    import torch.distributed as dist

    device: Any = "cpu"
    if "nccl" in str(dist.get_backend()):
        device = torch.device("cuda", torch.cuda.current_device())
    told = torch.tensor([int(stop), following, warm], device=device)
    dist.broadcast(told, src=0)
    stopped, following, warm = told.tolist()
    return bool(stopped), following, warm


T = TypeVar("T")
Record = dict[str, Any]
_SETTLE_EVERY = 50  # steps whose marks are kept at most, where nobody asks whether it is enough


class Enough(SystemExit):
    """Raised in a training function that is run unchanged, once enough has been measured."""


class Recorder:
    """Times the steps of one worker.

    A loop calls `switch` where a part of the step begins and `step` where the step ends; or it
    runs over `steps(loader)`, and `watch(model)` finds the parts by hooks.

    Args:
        steps: when it is enough; None never is.
        rank, workers: which worker this is, of how many.
        gpu: index of its GPU, None on CPUs.
        progress: tells others how far it has come.
        norms_every: steps between two looks at gradient norms, whatever they cost; 0 never; None
            as often as it costs little.
        log: a file that the first worker adds a line of JSON to, once a second at most: `step`,
            `time` (seconds since 1970) and `step_time_s`, the mean since the line before.
        resumed_at: the step of the checkpoint that this run goes on from; `log` counts on from it.
    """

    def __init__(
        self,
        steps: Steps | None = None,
        rank: int = 0,
        workers: int = 1,
        gpu: int | None = None,
        progress: Reporter | None = None,
        norms_every: int | None = None,
        log: str | Path = "",
        resumed_at: int = 0,
    ) -> None:
        self.rank, self.workers, self.gpu = rank, workers, gpu
        self.explicit = False  # somebody says where steps end, so that no hook need guess
        self.notes: list[str] = []
        self.samples = 0  # in a step of all workers, where known
        self.made_up = False
        self._asked = steps
        self._warmup = steps.warmup if steps is not None else 3
        self._agreement = None if steps is None or steps.epochs else Agreement(steps, rank, workers)
        self._progress = progress
        self._log = StepLog(Path(log), resumed_at) if log and rank == 0 else None
        self._clock: Clock = WallClock() if gpu is None else CudaClock()
        self._timeline = Timeline(self._clock)
        self._communication = Communication(self._clock, norms_every)
        self._hooks: list[Any] = []  # of modules that are watched
        self._named = False  # a DDP module
        self._usage = Usage(gpu=gpu)
        self._peak = PeakMemory(gpu)
        self._born = time.time()
        self._count = -self._warmup
        self._last = 0.0
        self._running = False
        self._seconds: list[float] = []
        self._parts: list[dict[str, float]] = []
        self._traffic: list[Traffic | None] = []
        self._epochs: list[float] = []
        self._epoch_begun: float | None = None
        self._rates: Mapping[str, float | None] = {}

    # -- what a loop says ---------------------------------------------------------------------

    def begin(self) -> None:
        """Say that stepping begins here; called again, nothing happens."""
        if self._running:
            return
        self._running = True
        self._last = time.perf_counter()
        if self._progress is not None:
            self._progress.begin()
        if self._agreement is not None:
            self._agreement.begin()
        self._usage.begin()
        self._timeline.begin()

    def switch(self, part: str) -> None:
        """Say that the step is now in a part: input, forward, backward, optimizer, or "" for none."""
        self._timeline.switch(part)

    def step(self) -> bool:
        """End a step; return whether enough has been measured (the same for all workers)."""
        self.begin()
        self._timeline.end()
        now = time.perf_counter()
        self._communication.end(now - self._last)
        if self._progress is not None:
            self._progress.step(now - self._last)
        if self._log is not None:
            self._log.step(now)
        self._last = now
        self._count += 1
        if self._count == 0:
            self._drop_warmup()
        elif self._agreement is None:
            if self._count % _SETTLE_EVERY == 0:
                self._settle()
        elif self._count > 0 and self._agreement.due(self._count):
            return self._decided(self._agreement)
        return False

    def _drop_warmup(self) -> None:
        """Forget the first steps; what follows is counted."""
        self._timeline.read()
        self._communication.read()
        self._communication.restart()
        self._usage.begin()
        self.resume()

    def _decided(self, agreement: Agreement) -> bool:
        self._settle()
        enough = agreement.decide(self._count, self._seconds)
        if enough:
            self._rates = self._usage.rates()
            if agreement.reason and self.rank == 0:
                self.notes.append(agreement.reason)
        self.resume()
        return enough

    def resume(self) -> None:
        """Start the next step now: what was done since the last one ended belongs to none."""
        self._timeline.pause()
        self._communication.forget()
        self._timeline.begin()
        self._last = time.perf_counter()

    def _settle(self) -> None:
        seconds, parts = self._timeline.read()
        self._seconds += seconds
        self._parts += parts
        self._traffic += self._communication.read()
        self._usage.sample()

    def data_is_made_up(self) -> None:
        """Say that its gradients say nothing of any data: no look is taken at their norms."""
        self.made_up = True
        self._communication.leave_norms()

    def epoch_begins(self) -> None:
        """Say that a whole pass over the data begins, its loader not yet started."""
        self._epoch_begun = time.perf_counter()

    def epoch_ends(self) -> None:
        """Say that the pass has ended."""
        self._clock.settle()
        if self._epoch_begun is not None:
            self._epochs.append(time.perf_counter() - self._epoch_begun)
            self._epoch_begun = None

    def steps(self, loader: Iterable[T]) -> Iterator[T]:
        """Yield the loader's batches; each turn of the loop is a step. Ends when it is enough."""
        self.explicit = True
        self.begin()
        self.switch("input")
        for batch in loader:
            self.switch("")
            yield batch
            if self.step():
                return
            self.switch("input")

    # -- what hooks find ----------------------------------------------------------------------

    def watch(self, model: Any) -> None:
        """Find forward, backward and communication of a module by hooks (see `measure.hooks`)."""
        from forerun.measure.hooks import watch_module

        self._hooks += watch_module(self, model)

    def reduce_through(self, module: Any) -> None:
        """Time the collectives of a DistributedDataParallel module, of the first that is named.

        In the steps that are looked at (see `measure.communication`) they go through a process
        group that shows them, and the module reduces its gradients itself, as ever; on accelerators
        through a hook. Where it has a hook of its own, a note says that communication is not told
        apart.
        """
        if not self._named:
            self._named = True
            self._tell_apart(self._communication.attach(module))

    def _tell_apart(self, why_not: str) -> None:
        if why_not:
            self.notes.append(f"communication is not told apart: {why_not}")

    def updates_are_told(self) -> None:
        """Say that `updated` will be called with every update of an optimizer."""
        self._communication.updates_are_told()

    def updated(self, optimizer: Any) -> None:
        """Say that an optimizer takes its gradients now; from within its pre-hook."""
        self._communication.updated(optimizer)

    # -- what comes of it ---------------------------------------------------------------------

    def record(self, status: str = "ok", reason: str = "") -> Record:
        """Return all that was measured, as plain data that `records.merged` joins."""
        if not self._rates and self._running:
            self._rates = self._usage.rates()
        if self._count > 0:
            self._settle()
        self.leave()
        if self._log is not None:
            self._log.end()
        if self._progress is not None and status == "ok":
            self._progress.finish()
        if status == "ok" and not self._seconds and not self._epochs:
            done = self._warmup + self._count
            status, reason = "failed", f"it ended after {done} steps, and none was counted"
        warm = self._still_warm()
        parts = _means(self._parts[warm:])
        counted = self._counted()
        every = [one for one in counted if one is not None]
        traffic = [one for one in counted[warm:] if one is not None] or every
        alone = self.workers == 1 and self._communication.asked
        return {
            "rank": self.rank, "workers": self.workers, "status": status, "reason": reason,
            "ended": time.time(), "started": datetime.fromtimestamp(self._born, UTC).isoformat(),
            "seconds": self._seconds[warm:], "epochs": self._epochs, "samples": self.samples,
            "warmup_steps": self._warmup + warm,
            "parts": with_sync(parts, counted, self._parts, warm, self.workers == 1),
            **means(traffic, every), "made_up": self.made_up, "peak_bytes": self._peak.bytes(),
            "fingerprint": fingerprint(), "notes": self.notes + notes(every, alone), **self._rates,
        }  # fmt: skip

    def leave(self) -> None:
        """Leave the modules as they were before they were watched."""
        while self._hooks:
            self._hooks.pop().remove()
        if why_not := self._communication.detach():
            self._tell_apart(why_not)
            self._traffic = []

    def _counted(self) -> list[Traffic | None]:
        """Return the traffic of counted steps, None of those that were not looked at."""
        return self._traffic[-len(self._seconds) :] if self._seconds else []

    def _still_warm(self) -> int:
        """Return how many counted steps are warm-up still; none of whole epochs."""
        if self._asked is not None and self._asked.epochs:
            return 0
        if self._agreement is not None and self._agreement.warm is not None:
            return self._agreement.warm
        return warm_steps(np.asarray(self._seconds))

    def summary(self) -> str:
        """Return the step time so far, in words."""
        self._settle()
        times = step_times(self._seconds[self._still_warm() :])
        if times is None:
            return "no step was counted"
        return f"{times.median:.6g} s a step, over {times.count} steps"


def _means(parts: list[dict[str, float]]) -> dict[str, float]:
    """Return the mean seconds of each part over all steps."""
    names = dict.fromkeys(name for one in parts for name in one)
    return {name: sum(one.get(name, 0.0) for one in parts) / len(parts) for name in names}


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
