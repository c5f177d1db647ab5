"""Training: a Ray trainer of one's own is measured: `TorchTrainer(measured(train_loop), ...)`."""

from __future__ import annotations

import time
import uuid
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import update_wrapper
from typing import Any

from forerun.domain.job import Job, Run
from forerun.errors import RequestError
from forerun.measure.failures import is_peer_lost, reason_of, status_of
from forerun.measure.measurement import Measurement, Record, merged
from forerun.measure.progress import slowest_place
from forerun.measure.ray.failures import WorkerReports, failures
from forerun.measure.ray.worker import Mailbox, Message, ProgressSender, Send, own_ray_gpu, sender
from forerun.measure.recorder import Enough, Recorder, current, installed
from forerun.measure.task import Steps
from forerun.measure.worker import failure, unchanged

_PAUSE_SECONDS = 2.0  # between two messages of a worker
_SEND_SECONDS = 30.0  # that a message may take


class MeasuredLoop:
    """A training function for Ray Train that does what `loop` does, and is measured.

    ```python
    loop = measured(train_loop)
    TorchTrainer(loop, scaling_config=ScalingConfig(num_workers=2)).fit()
    loop.measurement().step_seconds
    ```

    `samples` are those of a step of all workers; `steps` ends the loop early.
    """

    def __init__(self, loop: Callable[..., Any], samples: int = 0, steps: Steps | None = None) -> None:  # fmt: skip
        update_wrapper(self, loop)
        self._loop, self._samples, self._steps = loop, samples, steps
        self._title = str(getattr(loop, "__name__", "the training function"))
        self._mailbox: Mailbox | None = None
        self._name = f"forerun-{uuid.uuid4().hex}"
        self._fit = ""  # which one the workers belong to
        self._away = False  # this is a worker's copy

    def __getstate__(self) -> dict[str, Any]:
        """Return what travels to workers, at the begin of a fit: only then is there surely a cluster."""
        self._begin_fit()
        return {**self.__dict__, "_mailbox": None, "_away": True}

    def _begin_fit(self) -> None:
        if not self._away:
            self._mailbox = self._mailbox or Mailbox(self._name, keeps=True)
            self._fit = uuid.uuid4().hex

    def __call__(self, *configuration: Any) -> Any:
        """Carry out the loop in a worker of Ray Train, and send its record."""
        if current() is not None:  # a runner measures already
            return self._loop(*configuration)
        from ray import train

        self._begin_fit()  # here where a trainer of no workers trains in the driver itself
        context = train.get_context()
        rank, workers = int(context.get_world_rank()), int(context.get_world_size())
        send = _lossy_sender(self._name, self._title)
        send({"kind": "begun", "rank": rank, "workers": workers, "fit": self._fit})
        begun, reporter = time.perf_counter(), ProgressSender(send, 0, rank, _PAUSE_SECONDS)
        recorder = Recorder(self._steps, rank, workers, own_ray_gpu(), reporter)
        recorder.samples = self._samples

        def end(record: Record) -> None:
            reporter.stop()
            seconds = time.perf_counter() - begun
            send({"kind": "record", "rank": rank, "record": record, "seconds": seconds})

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
        """Return the last fit's measurement, which raised `error`, if any. Raises RequestError where none began."""
        messages = [] if self._mailbox is None else self._mailbox.take()
        begun = [message for message in messages if message["kind"] == "begun"]
        if not begun:
            reason = ("" if error is None else "; Ray's error: " + "; ".join(failures(error).values()))  # fmt: skip
            asked = f"the measurement of {self._title}"
            todo = "give it to a trainer, and call the trainer's fit() before"
            raise RequestError(asked, f"no worker has begun it{reason}", todo)
        found = _measurement(messages, int(begun[0]["workers"]), error)
        restarts = max(int(message["restarts"]) for message in begun)
        if not restarts:
            return found
        again = f"of attempt {restarts + 1}: Ray Train restarted it {restarts} times"
        return replace(found, reason="; ".join(filter(None, (found.reason, again))))

    def run(self, job: Job, error: BaseException | None = None) -> Run:
        """Return `measurement(error)` as the run of a job."""
        return self.measurement(error).run(job, "measured by forerun within Ray Train")


measured = MeasuredLoop


def _lossy_sender(name: str, loop: str) -> Send:
    """Return what sends a worker's messages; where none arrives, it warns once and training goes on."""
    from ray.exceptions import RayError

    raw: Send | None = None
    lost = False

    def send(message: Message) -> None:
        nonlocal raw, lost
        if lost:
            return
        try:
            raw = raw or sender(name, _SEND_SECONDS)
            raw(message)
        except (RayError, ValueError) as error:  # ValueError: there is no actor of that name
            lost = True
            warnings.warn(f"forerun: the measurement of {loop} is lost: {error}", stacklevel=2)

    return send


def _measurement(messages: Sequence[Message], workers: int, error: BaseException | None) -> Measurement:  # fmt: skip
    reports, seconds = WorkerReports(), 0.0
    for message in messages:
        if message["kind"] != "begun":
            reports.add(message)
        if message["kind"] == "record":
            seconds = max(seconds, float(message["seconds"]))
    if (finished := reports.finished(workers)) is not None:
        return merged(finished, seconds=seconds)
    errors = {} if error is None else failures(error)
    silent = [rank for rank in range(workers) if rank not in reports.records]
    wrong = [str(r["reason"]) for r in reports.records.values() if r["status"] != "ok"]
    if silent and not errors and all(map(is_peer_lost, wrong)):
        # Ray ends the workers that are left, so those that were well may be silent too.
        place = slowest_place([reports.progress.get(rank) for rank in silent])
        ranks = ", ".join(map(str, silent))
        reason = f"no record came from worker {ranks} of {workers}, last seen {place}"
        more = " (give measurement() what fit() raised: Ray may know more)"
        return Measurement("failed", reason + more, seconds=seconds)
    return Measurement(*reports.cause(workers, errors), seconds=seconds)
