"""Driver: processes of this machine that train in groups, which are formed anew as workers come, go and fail."""

from __future__ import annotations

import fcntl
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from typing import Self

from forerun.errors import RequestError
from forerun.measure.elastic.channel import Message, MessageChannel
from forerun.measure.elastic.checkpoint import last_generation, newest_checkpoint
from forerun.measure.elastic.job import TrainingJob
from forerun.measure.hosts import Host, check_hosts, free_port, local_host
from forerun.measure.processes import MARK, RUNNER, end_all, import_path

# Where a worker is: importing, waiting for an order, told its place, in that place, training, done, dead.
STARTING, WAITING, FORMING, PLACED, TRAINING, ENDED, GONE = range(7)
_START_SECONDS = 120.0  # for imports and the training function's own preparations
_GRACE_SECONDS = 5.0  # beyond the limit at which workers notice a peer that hangs
_LAST = "generation"  # the file of the last one
_MOST_DEATHS = 5  # of workers without a step in between: then no further one would live


@dataclass(eq=False)
class _Member:
    number: int
    host: Host
    process: subprocess.Popen[bytes]
    channel: MessageChannel
    state: int = STARTING
    rank: int = 0
    step: int = -1  # after which it stopped
    trained: bool = False  # whether it holds the weights of the training
    why: str = ""  # it stopped
    noticed: bool = False
    leaving: bool = False


class ElasticWorkers:
    """The most workers of a job, of which a group trains and the others wait; one driver a folder.

    hosts: where they are started, evenly. All of them see the folder.

    `form` gives a group its place, `take` what its workers report; both replace workers that died.
    `generation` counts groups, `dataset_size` samples of an epoch (0 before a worker said so). Messages have
    `is`: step, metric, saved, unsaved, stopped, lost, hang, ended.
    """

    def __init__(self, job: TrainingJob, folder: str | Path, hosts: Sequence[Host] = ()) -> None:
        self.job, self.folder = job, Path(folder).absolute()
        self.hosts = check_hosts(hosts or [local_host()])
        self.states = self.folder / "states"
        self.generation = 0
        self._members: list[_Member] = []
        self._events: deque[Message] = deque()
        self._selector = selectors.DefaultSelector()
        self._mark = uuid.uuid4().hex
        self._deaths = self._started = self.dataset_size = 0
        self._formed = self._closing = self._moving = False
        self._answer: Message | None = None  # of the one that was asked to save
        self._last_at = 0.0  # when the last step ended, seconds since 1970
        self._heard = time.monotonic()

    def __enter__(self) -> Self:
        """Take the folder and start the workers. Raises RequestError where another driver has it."""
        try:
            self.states.mkdir(parents=True, exist_ok=True)
            self._lock = (self.folder / "driver.lock").open("a+")
            terms = json.dumps(self.job.terms(self.states))
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (self.folder / "terms.json").write_text(terms)
        except BlockingIOError:
            self._lock.seek(0)
            found = f"{self._lock.read().strip() or 'another process'} trains in it"
            self._lock.close()
            raise self._error(found, "wait for its end, or name another folder") from None
        except OSError as error:
            raise self._error(str(error), "name a folder that can be written") from None
        self._lock.truncate(0)
        self._lock.write(f"process {os.getpid()} on {socket.gethostname()}")
        self._lock.flush()
        self.generation = last_generation(self.states)
        with suppress(
            OSError, ValueError
        ):  # a group may have saved no state before its driver was killed
            self.generation = max(self.generation, int((self.folder / _LAST).read_text()))
        for _ in range(max(self.job.workers)):
            self._start()
        return self

    def __exit__(self, *error: object) -> None:
        """End every process."""
        self._closing = True
        end_all([m.process for m in self._members], self._mark)
        for member in self._members:
            member.channel.close()
        self._selector.close()
        self._lock.close()

    @property
    def available(self) -> int:
        """How many workers could train now."""
        return sum(m.state in (WAITING, PLACED, TRAINING) and not m.noticed for m in self._members)

    def take(self, seconds: float) -> Message | None:
        """Return what was reported next, None where nothing was in so many seconds.

        Raises:
            RequestError: the training function failed, or workers die one after another.
        """
        self._until(lambda: bool(self._events), seconds)
        silent = time.monotonic() - self._heard
        training = any(m.state == TRAINING for m in self._members)
        if not self._events and training and silent > self.job.hang_seconds + _GRACE_SECONDS:
            self._heard = time.monotonic()
            self._events.append({"is": "hang", "generation": self.generation, "seconds": silent})
        return self._events.popleft() if self._events else None

    def form(self, workers: int, batch: int) -> int:
        """Let the group stop after its step, and another begin from there; return how many workers it has.

        A group that lost workers goes on with the others: with the weights of one that survived, else with
        the newest whole checkpoint. Fewer workers than asked train where no more are alive; on a disk
        without room only those that have the weights. Raises as `take`.
        """
        self.pause()
        load = self._saved_state()
        for member in self._members:
            if member.noticed and member.state in (WAITING, PLACED):
                self._dismiss(member)
        while True:
            group = self._chosen(min(workers, batch), load)
            self.generation += 1
            with suppress(OSError):  # a full disk
                (self.folder / _LAST).write_text(str(self.generation))
            for rank, member in enumerate(group):
                member.state, member.rank = FORMING, rank
                place = {"rank": rank, "workers": len(group), "batch": batch, "load": load}
                member.channel.send("form", generation=self.generation, **place)
            self._until(partial(_none_is, FORMING, group), _START_SECONDS)
            self._kill([m for m in group if m.state == FORMING])
            if all(m.state == PLACED for m in group):
                break
        meet = {"address": group[0].host.address, "port": free_port(group[0].host)}
        for member in self._members:
            member.trained = member in group  # what others hold will be out of date
        for member in group:
            member.state = TRAINING
            member.channel.send("go", generation=self.generation, **meet)
        self._formed, self._heard, self._moving = True, time.monotonic(), self._last_at > 0
        return len(group)

    def finish(self) -> None:
        """Stop after the step under way, write the state, and let the training functions return."""
        self.pause()
        self._saved_state()
        self._closing = True
        for member in self._members:
            if member.state in (WAITING, PLACED):
                member.state = WAITING
                member.channel.send("end")
        self._until(partial(_none_is, WAITING, self._members), self.job.hang_seconds)

    def _start(self) -> None:
        ours, theirs = Pipe()
        there = [m.host for m in self._members if m.state != GONE]
        host, self._started = min(self.hosts, key=there.count), self._started + 1
        words = [sys.executable, "-m", "forerun.measure.elastic.worker", str(theirs.fileno())]
        variables = {
            "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **os.environ, MARK: self._mark,
            RUNNER: str(os.getpid()), "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": import_path(os.environ.get("PYTHONPATH", "")),
            **({"GLOO_SOCKET_IFNAME": host.interface} if host.interface else {}),
        }  # fmt: skip
        with self._log(self._started).open("wb") as log:
            process = subprocess.Popen(
                host.command([*words, str(self.folder / "terms.json")]), env=variables, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip
        theirs.close()
        member = _Member(self._started, host, process, MessageChannel(ours))
        self._members.append(member)
        self._selector.register(ours, selectors.EVENT_READ, member)

    def _log(self, number: int) -> Path:
        return self.folder / f"worker-{number}.log"

    def _note(self, member: _Member, message: Message) -> None:
        kind, self._heard = message["is"], time.monotonic()
        message["worker"] = member.number
        if kind == "stopped":
            member.state, member.step, member.why = WAITING, int(message["step"]), message["why"]
            member.trained, self.dataset_size = bool(message["trained"]), int(message["samples"])
            member.noticed = member.noticed or bool(message["noticed"])
        elif kind == "here" and message["generation"] == self.generation:
            member.state, member.trained = PLACED, True
        elif kind == "notice":
            member.noticed = True
            if member.state == WAITING and any(m.state == TRAINING for m in self._members):
                self._dismiss(member)
        elif kind == "step":
            if message["generation"] == self.generation and self._moving:
                self._moving = False
                message["pause_seconds"] = message["at"] - message["seconds"] - self._last_at
            self._deaths, self._last_at = 0, float(message["at"])
        elif kind in ("saved", "unsaved"):
            self._answer = message
        elif kind == "ended":
            member.state = ENDED
        elif kind == "failed":
            found = f"worker {member.number}: {message['reason']}"
            raise self._error(found, f"correct it (log: {self._log(member.number)})")
        if kind in ("step", "metric", "saved", "unsaved", "ended") or (
            kind == "stopped" and message["why"] not in ("ready", "asked")
        ):
            self._events.append(message)

    def _dismiss(self, member: _Member) -> None:
        member.leaving, member.state = True, ENDED
        member.channel.send("leave")

    def _bury(self, member: _Member) -> None:
        """Note that a worker is dead, and start another in its place."""
        before, member.state = member.state, GONE
        member.channel.close()
        with suppress(subprocess.TimeoutExpired):
            member.process.wait(_GRACE_SECONDS)
        member.process.kill()  # where it has closed its connection and lives
        code = member.process.wait()
        if self._closing or (before == ENDED and not member.leaving):
            return
        if not member.leaving:
            self._deaths += 1
            why = f"ended with exit status {code}"
            if code < 0:
                why = f"was killed by signal {-code} ({signal.Signals(-code).name})"
            if self._deaths >= _MOST_DEATHS:
                found = f"{self._deaths} workers died without a step between, the last {why}"
                raise self._error(found, f"see {self._log(member.number)}")
            event = {"is": "lost", "worker": member.number, "why": why}
            event |= {"generation": self.generation, "trained": before == TRAINING}
            self._events.append(event)
        self._start()

    def _until(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Note messages until something holds, or for so many seconds; return whether it does."""
        until = time.monotonic() + seconds
        while not holds():
            if (left := until - time.monotonic()) <= 0:
                return False
            for key, _ in self._selector.select(left):
                try:
                    while (message := key.data.channel.receive(0.0)) is not None:
                        self._note(key.data, message)
                except EOFError:
                    self._selector.unregister(key.fileobj)
                    self._bury(key.data)
        return True

    def _kill(self, members: Sequence[_Member]) -> None:
        """Kill workers, and see to it that it is noted."""
        for member in members:
            with suppress(ProcessLookupError):
                os.killpg(member.process.pid, signal.SIGKILL)
        self._until(lambda: all(m.state == GONE for m in members), _GRACE_SECONDS)

    def pause(self) -> None:
        """Let the group stop after the step under way, and end who does not; `form` does so too."""
        training = [m for m in self._members if m.state == TRAINING]
        for member in training:
            if member.rank == 0:
                member.channel.send("pause", generation=self.generation)
        # Where some have stopped, the others have noticed it by their next reduction.
        broken = any(m.state == WAITING and m.why == "lost" for m in self._members)
        seconds = _GRACE_SECONDS if broken else self.job.hang_seconds + _GRACE_SECONDS
        self._until(partial(_none_is, TRAINING, training), seconds)
        self._kill([m for m in training if m.state == TRAINING])

    def _saved_state(self) -> str:
        """Return where the state is from which a group goes on, "" where the disk has no room for it."""
        while True:
            holders = [m for m in self._members if m.trained and m.state == WAITING]
            if not holders and (path := newest_checkpoint(self.states)) is not None:
                return str(path)
            if not holders:  # a new training begins with the weights of any worker
                self._until(lambda: any(m.state == WAITING for m in self._members), _START_SECONDS)
                holders = [m for m in self._members if m.state == WAITING] or self._nobody()
            source = max(holders, key=lambda m: (m.step, -m.rank))
            self._answer = None
            source.channel.send("save")
            answered = partial(self._has_answered, source)
            if not self._until(answered, self.job.hang_seconds):
                self._kill([source])
            elif self._answer is not None and self._answer["is"] == "saved":
                source.rank = -1  # it comes first
                return str(self._answer["path"])
            elif self._answer is not None and source.trained:
                return ""
            elif self._answer is not None:
                raise self._error(self._answer["why"], "free space, or name another folder")

    def _has_answered(self, source: _Member) -> bool:
        return self._answer is not None or source.state == GONE

    def _nobody(self) -> list[_Member]:
        found = f"no worker was ready after {_START_SECONDS:g} s"
        raise self._error(found, f"see {self._log(1)}")

    def _error(self, found: str, next_step: str) -> RequestError:
        return RequestError(f"training {self.job.entry} in {self.folder}", found, next_step)

    def _chosen(self, workers: int, load: str) -> list[_Member]:
        """Return who is in the next group: who holds the state first, then those that wait."""

        def ready() -> list[_Member]:
            some = [m for m in self._members if m.state in (WAITING, PLACED) and not m.noticed]
            if not load:
                last = max((m.step for m in some), default=0)
                some = [m for m in some if m.trained and m.why != "oom" and m.step == last]
            return sorted(some, key=lambda m: (not m.trained, m.rank, m.number))

        def is_enough() -> bool:
            starts = any(m.state == STARTING for m in self._members)
            # A training that runs does not wait for a worker that starts, unless nobody is left.
            enough = 1 if self._formed else workers
            return len(ready()) >= enough or not starts or not load

        self._until(is_enough, _START_SECONDS)
        return (ready() or self._nobody())[:workers]


def _none_is(state: int, members: Sequence[_Member]) -> bool:
    return all(member.state != state for member in members)
