"""Recorder: times the steps of one worker and their parts, and stops when enough is known."""

from __future__ import annotations

import gc
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from forerun.errors import RequestError
from forerun.measure import communication, gradients
from forerun.measure.measurement import Measurement, Record, fingerprint, merged, write_json
from forerun.measure.noise import GradientNoise
from forerun.measure.processes import PeakMemory, Usage, own_gpu
from forerun.measure.progress import Reporter, StepLog
from forerun.measure.step_times import is_narrow, warm_steps
from forerun.measure.task import Steps

T = TypeVar("T")
_GROWTH = 1.5  # from one check to the next: each check is another chance to stop by luck
_SETTLE_EVERY = 50  # steps whose marks are kept at most, where nothing is to be decided


class Enough(SystemExit):
    """Raised in a training function that runs unchanged, once enough has been measured."""


class Agreement:
    """Decides when to stop: the first worker does at agreed steps, and broadcasts it to the others.

    An interval may be narrow by chance, so checks are few, and two in a row must be narrow.
    """

    def __init__(self, steps: Steps, workers: int) -> None:
        self._steps, self._workers = steps, workers
        self._next = 1
        self._first = math.ceil(steps.least / _GROWTH)
        self._was_narrow = False
        self._begun = time.perf_counter()
        self.reason = ""
        self.warm: int | None = None

    def begin(self) -> None:
        """Start the cap in seconds."""
        self._begun = time.perf_counter()

    def due(self, count: int) -> bool:
        """Whether the workers decide after this many counted steps."""
        return count >= self._next

    def decide(self, count: int, seconds: Sequence[float]) -> bool:
        """Return whether it is enough, as the first worker decides from its counted steps' seconds."""
        # What counted as warm-up may look usual later: no more than `most` steps count all the same.
        most = self._steps.most
        warm = max(warm_steps(np.asarray(seconds)), count - most)
        stop, following = self._own(count - warm, seconds[warm:])
        following += warm
        if self._workers > 1:  # without a process group, a count is all that they can agree on
            agreed = _from_first(stop, following, warm)
            stop, following, warm = agreed or (count >= most, most, warm)
        self._next = following
        self.warm = warm if stop else None
        return stop

    def _own(self, count: int, seconds: Sequence[float]) -> tuple[bool, int]:
        steps = self._steps
        elapsed = time.perf_counter() - self._begun
        narrow, was_narrow = is_narrow(steps, seconds), self._was_narrow
        self._was_narrow = narrow
        if narrow and (was_narrow or count >= steps.most) and count >= steps.least:
            return True, count
        left = int((steps.seconds - elapsed) / max(elapsed / max(count, 1), 1e-9))
        if count >= steps.most or left < 1:
            self.reason = f"stopped after {elapsed:.3g} s and {count} steps, its interval wider than requested"
            return True, count
        after = math.ceil(_GROWTH * count)
        if count < steps.least:
            after = self._first if count < self._first else steps.least
        return False, min(after, count + left, steps.most)


def _from_first(stop: bool, following: int, warm: int) -> tuple[bool, int, int] | None:
    import torch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return None
    device: Any = "cpu"
    if "nccl" in str(dist.get_backend()):
        device = torch.device("cuda", torch.cuda.current_device())
    decision = torch.tensor([int(stop), following, warm], device=device)
    dist.broadcast(decision, src=0)
    return bool(decision[0]), int(decision[1]), int(decision[2])


class Recorder:
    """Times the steps of one worker.

    A loop calls `switch` where a part of the step begins and `step` where the step ends; or it
    runs over `steps(loader)`, and `watch(model)` finds the parts by hooks.

    Args:
        steps: when it is enough; None never is.
        norms_every: steps between two observations of gradient norms; 0 never; None the usual.
        noise: learns from these norms while it trains; all workers need one, and call `step` together.
        log: a file for a `StepLog` of the first worker, which counts on from step `resumed_at`.
    """

    def __init__(
        self, steps: Steps | None = None, rank: int = 0, workers: int = 1, gpu: int | None = None,
        progress: Reporter | None = None, norms_every: int | None = None, log: str | Path = "",
        resumed_at: int = 0, noise: GradientNoise | None = None,
    ) -> None:  # fmt: skip
        self.rank, self.workers, self.gpu = rank, workers, gpu
        self.explicit = False  # the code marks the end of steps, so that no hook need guess
        self.notes: list[str] = []
        self.samples = 0  # in a step of all workers, where known
        self.made_up = False
        self._whole_epochs = steps is not None and steps.epochs > 0
        self._steps = steps
        self._warmup = steps.warmup if steps is not None else 3
        self._agreement = None if steps is None or steps.epochs else Agreement(steps, workers)
        self._reporters: list[Reporter] = [] if progress is None else [progress]
        if log and rank == 0:
            self._reporters.append(StepLog(Path(log), resumed_at))
        self._clock: communication.WallClock = (
            communication.WallClock() if gpu is None else communication.CudaClock()
        )
        self._timeline = communication.Timeline(self._clock)
        self.gradients = gradients.Gradients(workers, norms_every, noise, lambda: self.samples)
        self.communication = communication.Communication(self._clock, self.gradients.reducing)
        self._handles: list[Any] = []  # of hooks on modules that are watched
        self._attached = False  # to a DDP module
        self._usage = Usage(gpu=gpu)
        self._peak = PeakMemory(gpu)
        self._born = time.time()
        self._count = -self._warmup
        self._last = 0.0
        self._running = False
        self._seconds: list[float] = []
        self._parts: list[dict[str, float]] = []
        self._traffic: list[communication.StepTraffic | None] = []
        self._squares: list[gradients.GradientSquares | None] = []
        self._epochs: list[float] = []
        self._in_step = True
        self._may_end: Callable[[], bool] = lambda: True
        self._pushed: list[tuple[float, float]] = []
        self._rates: Mapping[str, float | None] = {}

    @property
    def noise(self) -> GradientNoise | None:
        """The estimates of gradient noise that it was given, as of the step before the last."""
        return self.gradients.noise

    def begin(self) -> None:
        """Say that stepping begins here; called again, nothing happens."""
        if self._running:
            return
        self._running, self._last = True, time.perf_counter()
        for reporter in self._reporters:
            reporter.begin()
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
        self.communication.end()
        self.gradients.end()
        before, self._last = self._last, time.perf_counter()
        for reporter in self._reporters:
            reporter.step(self._last - before)
        self._count += 1
        enough = False
        if self._count == 0:  # what follows is counted
            self._timeline.read()
            self.communication.read()
            self.gradients.restart()
            self._usage.begin()
            self.resume()
        elif self._agreement is None:
            if self._count % _SETTLE_EVERY == 0:
                self._settle()
        elif self._count > 0 and self._agreement.due(self._count) and self._may_end():
            self._settle()
            enough = self._agreement.decide(self._count, self._seconds)
            if enough:
                self._rates = self._usage.rates()
                if self._agreement.reason and self.rank == 0:
                    self.notes.append(self._agreement.reason)
            self.resume()
        return enough

    def resume(self) -> None:
        """Start the next step now: the time since the last one ended belongs to none."""
        self._timeline.pause()
        self.communication.forget()
        self.gradients.forget()
        self._timeline.begin()
        self._last = time.perf_counter()

    def _settle(self) -> None:
        seconds, parts = self._timeline.read()
        self._seconds += seconds
        self._parts += parts
        self._traffic += self.communication.read()
        self._squares += self.gradients.read()
        self._usage.sample()

    def decide_alone(self, updates: bool, may_end: Callable[[], bool]) -> None:
        """Say that the first worker decides alone when it is enough, once it `may_end`; `updates`: each does."""
        self._in_step, self._may_end = not updates, may_end
        if self._agreement is not None and self._steps is not None:
            self._agreement = Agreement(self._steps, 1) if self.rank == 0 else None

    def pushed(self, sent: float, staleness: float) -> None:
        """Say that this step's gradients went to parameter servers: bytes, and updates since its pull."""
        self._pushed.append((sent, staleness))

    def use_synthetic_data(self) -> None:
        """Say that the data are made up: gradient norms are not taken."""
        self.made_up = True
        self.gradients.every = 0

    @contextmanager
    def epoch(self) -> Iterator[None]:
        """Time a whole pass over the data, the start of its loader included."""
        begun = time.perf_counter()
        yield
        self._clock.settle()
        self._epochs.append(time.perf_counter() - begun)

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

    def watch(self, model: Any) -> None:
        """Find forward (the loss too), backward and communication of a module by hooks."""
        import torch

        def forward_begins(module: Any, args: Any) -> None:
            if torch.is_grad_enabled():
                self.switch("forward")

        def forward_ends(module: Any, args: Any, output: Any) -> None:
            for tensor in trained_tensors(output)[:1] if torch.is_grad_enabled() else ():
                tensor.register_hook(lambda gradient: self.switch("backward"))

        if _is_ddp(model):
            self.reduce_through(model)
        self._handles.append(model.register_forward_pre_hook(forward_begins))
        self._handles.append(model.register_forward_hook(forward_ends))

    def reduce_through(self, module: Any) -> None:
        """Time the collectives of the first DistributedDataParallel module that is given."""
        if not (self._attached or module is None):
            self._attached = True
            if why := self.communication.attach(module):
                self.notes.append(f"communication is not measured: {why}")
            else:
                self.gradients.attach(module)

    def record(self) -> Record:
        """Return all that was measured, as plain data that `measurement.merged` joins."""
        if not self._rates and self._running:
            self._rates = self._usage.rates()
        if self._count > 0:
            self._settle()
        self.leave()
        for reporter in self._reporters:
            reporter.finish()
        status, reason = "ok", ""
        if not self._seconds and not self._epochs:
            done = self._warmup + self._count
            status, reason = "failed", f"it ended after {done} steps, and none was counted"
        warm = None if self._agreement is None else self._agreement.warm
        if warm is None:
            warm = 0 if self._whole_epochs else warm_steps(np.asarray(self._seconds))
        counted = self._parts[warm:]
        names = dict.fromkeys(name for one in counted for name in one)
        parts = {name: float(np.mean([p.get(name, 0.0) for p in counted])) for name in names}
        figures, exposed, notes = communication.traffic_summary(self._traffic[warm:])
        figures |= gradients.squares_summary(self._squares, warm)
        if figures["local_sqr"] is None and (why := self.gradients.why):
            notes.append(f"gradient noise is not measured: {why}")
        if self.workers == 1 and exposed is None:
            exposed = 0.0
        if pushed := self._pushed[self._warmup + warm :]:
            sent, staleness = np.transpose(pushed)
            figures |= {
                "sync_bytes": float(sent.mean()), "comm_seconds": parts.get("sync"),
                "staleness": float(staleness.mean()), "staleness_std": float(staleness.std()),
            }  # fmt: skip
        elif exposed is not None and parts:
            # A part of backward, in which the step waits for others.
            parts["sync"] = min(exposed, parts.get("backward", exposed))
            parts |= {"backward": parts["backward"] - parts["sync"]} if "backward" in parts else {}
        return {
            "rank": self.rank, "workers": self.workers, "status": status, "reason": reason,
            "ended": time.time(), "started": datetime.fromtimestamp(self._born, UTC).isoformat(),
            "seconds": self._seconds[warm:], "epochs": self._epochs, "samples": self.samples,
            "warmup_steps": self._warmup + warm, "parts": parts, **figures,
            "made_up": self.made_up, "in_step": self._in_step, "peak_bytes": self._peak.bytes(),
            "fingerprint": fingerprint(), "notes": self.notes + notes, **self._rates,
        }  # fmt: skip

    def leave(self) -> None:
        """Leave the modules as they were before they were watched."""
        while self._handles:
            self._handles.pop().remove()
        self.communication.detach()
        self.gradients.detach()


def trained_tensors(output: Any) -> list[Any]:
    """Return the tensors of an output, nested or not, that gradients flow back to."""
    if hasattr(output, "requires_grad"):
        return [output] if output.requires_grad else []
    if hasattr(output, "values"):
        output = list(output.values())
    nested = output if isinstance(output, list | tuple) else []
    return [tensor for item in nested for tensor in trained_tensors(item)]


class OptimizerHooks:
    """Marks every optimizer's update, which ends a step unless the code says so; `stop` where enough."""

    def __init__(self, recorder: Recorder, stop: Any = None) -> None:
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        self._recorder, self._stop = recorder, stop
        self._first: Any = None  # optimizer whose updates end steps
        self._handles = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        ]

    def remove(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._recorder.gradients.updated(optimizer)
        self._recorder.switch("optimizer")

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._recorder.switch("")
        if self._recorder.explicit or self._stop is None:
            return
        if self._first is None:
            self._first = optimizer
            _watch_trained(self._recorder, optimizer)
            self._recorder.begin()
            self._recorder.resume()
        elif optimizer is self._first and self._recorder.step():
            self._stop()


def _watch_trained(recorder: Recorder, optimizer: Any) -> None:
    """Watch the DDP module that an optimizer trains, else the modules that hold most of its parameters."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if (ddp := find_ddp(parameters)) is not None:
        recorder.watch(ddp)
        return
    modules, own = _modules(), {id(p): p.numel() for p in parameters}
    held = [sum(own.get(id(p), 0) for p in module.parameters()) for module in modules]
    most = max(held, default=0)
    # A module inside torch.compile is called from compiled code, which no hook may break.
    inner = {id(getattr(module, "_orig_mod", None)) for module in modules}
    for module, count in zip(modules, held, strict=True):
        if count == most and most and id(module) not in inner:
            recorder.watch(module)


def find_ddp(parameters: Iterable[Any]) -> Any:
    """Return the DistributedDataParallel module that trains some parameters, None where none does."""
    own = set(map(id, parameters))
    found = (m for m in filter(_is_ddp, _modules()) if not own.isdisjoint(map(id, m.parameters())))
    return next(found, None)


def _is_ddp(model: Any) -> bool:
    from torch.nn.parallel import DistributedDataParallel

    return isinstance(model, DistributedDataParallel)


def _modules() -> list[Any]:
    import torch

    return [thing for thing in gc.get_objects() if issubclass(type(thing), torch.nn.Module)]


_INSTALLED: list[Recorder] = []  # in this process, the last one runs


def current() -> Recorder | None:
    """Return the recorder that runs in this process, None where none does."""
    return _INSTALLED[-1] if _INSTALLED else None


@contextmanager
def installed(recorder: Recorder) -> Iterator[Recorder]:
    """Make a recorder the one of this process for a while."""
    _INSTALLED.append(recorder)
    try:
        yield recorder
    finally:
        _INSTALLED.remove(recorder)


@contextmanager
def record(samples: int = 0, out: str | Path = "", **given: Any) -> Iterator[Recorder]:
    """Measure the steps of a training script, around its loop, into the JSON file `out`.

    `samples` are those of one step of all workers, `given` arguments of `Recorder`. Raises RequestError,
    also where a `noise` is given without `samples`.
    """
    running, noise = current(), given.get("noise")
    if noise is not None and not (samples or (running is not None and running.samples)):
        why = "the samples of a step are not known"
        raise RequestError("gradient noise", why, "pass samples=..., those of all workers")
    if running is not None:  # a runner's, which reads the record itself
        running.explicit = True
        running.samples = samples or running.samples
        if noise is not None:
            running.gradients.noise = noise
            running.gradients.every = given.get("norms_every", running.gradients.every)
        yield running
        return
    import torch

    given.setdefault("gpu", own_gpu() if torch.cuda.is_available() else None)
    rank, workers = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    recorder = Recorder(rank=rank, workers=workers, **given)
    recorder.explicit = True
    recorder.samples = samples
    with installed(recorder):
        hooks = OptimizerHooks(recorder)
        try:
            yield recorder
        except BaseException:  # whoever catches it may train on
            recorder.leave()
            raise
        finally:
            hooks.remove()
    found = recorder.record()
    if out and rank == 0:
        ok = found["status"] == "ok"
        measured = merged([found]) if ok else Measurement(found["status"], found["reason"])
        write_json(Path(out), measured.to_json(), indent=2)
