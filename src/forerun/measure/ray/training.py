"""Training: a Ray trainer of one's own is measured: `TorchTrainer(measured(train_loop), ...)`."""

from __future__ import annotations

import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import update_wrapper
from typing import Any

from forerun.domain.job import Job
from forerun.domain.run import Run
from forerun.errors import RequestError
from forerun.measure.failures import is_secondhand, reason_of, status_of
from forerun.measure.measurement import Measurement, merged
from forerun.measure.ray.failures import Told, failures
from forerun.measure.ray.worker import Letter, Letterbox, Postman, posting
from forerun.measure.recorder import Enough, Record, Recorder, current, installed
from forerun.measure.task import Steps
from forerun.measure.worker import failure, unchanged

_PAUSE_SECONDS = 2.0  # between two letters of a worker
_SENT_SECONDS = 30.0  # that a letter may take


def measured(loop: Callable[..., Any], samples: int = 0, steps: Steps | None = None) -> Measured:
    """Return a training function for Ray Train that does what `loop` does, and is measured.

    ```python
    loop = measured(train_loop)
    TorchTrainer(loop, scaling_config=ScalingConfig(num_workers=2)).fit()
    loop.measurement().step_seconds
    ```

    A step is what lies between two updates of the first optimizer; evaluation and checkpoints in
    between belong to it. A loop that says where steps end, by `record()` and `steps`, is believed.

    Args:
        loop: as `train_loop_per_worker`: of no argument, or of a configuration.
        samples: in one optimizer step of all workers, where a throughput should be told.
        steps: when it is enough: then the loop is left, by all workers at once. None lets it go
            on to its own end.
    """
    return Measured(loop, samples, steps)


class Measured:
    """A training function whose workers tell what they measured; made by `measured`.

    Records travel by an actor of the driver's, as those of `RayRunner` do: nothing is written to
    Ray Train's storage, and what the loop itself reports is left alone.
    """

    def __init__(self, loop: Callable[..., Any], samples: int, steps: Steps | None) -> None:
        update_wrapper(self, loop)
        self._loop, self._samples, self._steps = loop, samples, steps
        self._title = str(getattr(loop, "__name__", "the training function"))
        self._box: Letterbox | None = None
        self._name = f"forerun-{uuid.uuid4().hex}"
        self._fit = ""  # which one the workers belong to
        self._away = False  # this is a worker's copy

    def __getstate__(self) -> dict[str, Any]:
        """Return what travels to workers.

        A trainer sends its function off when it begins to fit: only then is it certain that there
        is a cluster, and which, so that the actor can be made.
        """
        if not self._away:
            self._begin_fit()
        return {**self.__dict__, "_box": None, "_away": True}

    def _begin_fit(self) -> None:
        if self._box is None:
            self._box = Letterbox(self._name, attended=False)
        self._fit = uuid.uuid4().hex

    def __call__(self, *configuration: Any) -> Any:
        """Carry out the loop in a worker of Ray Train, and post its record."""
        if current() is not None:  # a runner measures already
            return self._loop(*configuration)
        from ray import train

        if not self._away:  # a trainer of no workers trains in the driver itself
            self._begin_fit()
        context = train.get_context()
        rank, workers = int(context.get_world_rank()), int(context.get_world_size())
        post = _posting(self._name, self._title)
        post({"kind": "begun", "rank": rank, "workers": workers, "fit": self._fit})
        begun, man = time.perf_counter(), Postman(post, 0, rank, _PAUSE_SECONDS)
        recorder = Recorder(self._steps, rank, workers, _gpu(), man)
        recorder.samples = self._samples

        def end(record: Record) -> None:
            man.stop()
            took = time.perf_counter() - begun
            post({"kind": "record", "rank": rank, "record": record, "seconds": took})

        result = None
        try:
            with installed(recorder), unchanged(recorder):
                result = self._loop(*configuration)
        except Enough:
            pass
        except BaseException as error:
            end(failure(rank, workers, status_of(error), reason_of(error)))
            raise
        end(recorder.record())
        return result

    def measurement(self, error: BaseException | None = None) -> Measurement:
        """Return what the last fit told, once it has ended; its seconds are those of the loop.

        Args:
            error: what `fit` raised, where it did: it has Ray's words about workers that could
                tell nothing themselves.

        Raises:
            RequestError: no worker has begun to train.
        """
        letters = [] if self._box is None else self._box.take()
        begun = [letter for letter in letters if letter["kind"] == "begun"]
        if not begun:
            said = "".join(f"; Ray says: {words}" for words in _failures(error).values())
            raise RequestError(
                f"the measurement of {self._title}", f"no worker has begun it{said}",
                "give it to a trainer, and call the trainer's fit() before",
            )  # fmt: skip
        restarts = max(int(letter["restarts"]) for letter in begun)
        found = _measurement(letters, int(begun[0]["workers"]), error)
        if not restarts:
            return found
        again = f"of attempt {restarts + 1}: Ray Train began anew {restarts} times"
        return replace(found, reason="; ".join(filter(None, (found.reason, again))))

    def run(self, job: Job, error: BaseException | None = None) -> Run:
        """Return the same as the run of a job; `error` and what is raised as of `measurement`."""
        return self.measurement(error).run(job, "measured by forerun within Ray Train")


def _posting(name: str, loop: str) -> Callable[[Letter], None]:
    """Return what posts a worker's letters; where none arrives, it warns once and training goes on."""
    from ray.exceptions import RayError

    lost: list[Exception] = []

    def lose(error: Exception) -> None:
        lost.append(error)
        warnings.warn(f"forerun: the measurement of {loop} is lost: {error}", stacklevel=3)

    try:
        send = posting(name, _SENT_SECONDS)
    except ValueError as error:  # there is no actor of that name
        lose(error)

    def post(letter: Letter) -> None:
        if lost:
            return
        try:
            send(letter)
        except RayError as error:
            lose(error)

    return post


def _gpu() -> int | None:
    """Return the GPU that Ray Train gave this worker, None where it gave none."""
    import torch

    if not torch.cuda.is_available():
        return None
    from ray.train.torch import get_device

    device = get_device()
    return int(device.index or 0) if device.type == "cuda" else None


def _measurement(
    letters: Sequence[Letter], workers: int, error: BaseException | None
) -> Measurement:
    """Return the measurement of the attempt that letters tell of."""
    told, seconds = Told(), 0.0
    for letter in letters:
        if letter["kind"] == "progress":
            told.progress(letter)
        elif letter["kind"] == "record":
            told.records[int(letter["rank"])] = letter["record"]
            seconds = max(seconds, float(letter["seconds"]))
    records = [told.records[rank] for rank in sorted(told.records)]
    if len(records) == workers and all(record["status"] == "ok" for record in records):
        return merged(records, seconds=seconds)
    said = _failures(error)
    silent = [rank for rank in range(workers) if rank not in told.records]
    wrong = [str(record["reason"]) for record in records if record["status"] != "ok"]
    if silent and not said and all(map(is_secondhand, wrong)):
        seen = told.seen.get(silent[0])
        place = "while starting" if seen is None else seen.place()
        return Measurement(
            "failed", f"worker {silent[0]} of {workers} told nothing of its end; it was last seen"
            f" {place} (give measurement() what fit() raised: Ray's words may say more)",
            seconds=seconds,
        )  # fmt: skip
    return Measurement(*told.cause(workers, said), seconds=seconds)


def _failures(error: BaseException | None) -> Mapping[str, str]:
    return {} if error is None else failures(error)
