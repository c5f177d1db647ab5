"""Worker: a process apart from the service that carries out its tasks, each in a process of its own."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Self

from forerun.errors import RequestError
from forerun.measure.processes import MARK, RUNNER, end_all
from forerun.server.task_kinds import KINDS
from forerun.store import open_store

_LOG = logging.getLogger("forerun.server")
_POLL_SECONDS = 0.2
_GRACE_SECONDS = 20.0  # for a task to end its own processes in order
_AWAY_SECONDS = 2.0  # until a store that did not answer is asked again
_MOST_ATTEMPTS = 3  # of a task whose process dies: then it is the task that kills it
_BACKOFF_SECONDS = 5.0  # between starts of workers that end at once


class TaskWorker:
    """Takes tasks of a store in turn. command: the words of a process that carries one out, by its id and turn."""

    def __init__(self, where: str, slot: int, command: Callable[[str, str], list[str]]) -> None:
        self._store, self._slot, self._command = open_store(where), slot, command
        self._by = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._service = int(os.environ.get(RUNNER, "0"))  # 0: it was started by hand, and stays
        self._stopped = False

    def work(self) -> None:
        """Carry out tasks until a signal asks for the end, or the service is gone and no task is under way."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        place = f"the worker {self._slot} of tasks on {socket.gethostname()}"
        with self._store, ExitStack() as held:
            # One that outlived its service may have the place still: it ends with its task.
            while not self._is_over and not self._holds(held, place):
                time.sleep(_POLL_SECONDS)
            while not self._is_over:
                try:
                    if not any(map(self._took, self._store.tasks.open())):
                        time.sleep(_POLL_SECONDS)
                except RequestError as error:
                    _LOG.error("tasks wait for the store: %s", error)
                    time.sleep(_AWAY_SECONDS)

    def _stop(self, number: int, frame: Any) -> None:
        self._stopped = True

    @property
    def _is_over(self) -> bool:
        return self._stopped or self._service not in (0, os.getppid())

    def _holds(self, held: ExitStack, what: str) -> bool:
        with suppress(RequestError):
            held.enter_context(self._store.tasks.database.alone(what))
            return True
        return False

    def _took(self, key: str) -> bool:
        """Carry a task out, unless somebody else does; one whose worker died is settled first."""
        if self._is_over:
            return False
        with ExitStack() as held:
            # Held before it is begun and until it has ended: what runs and is not held is nobody's.
            if not self._holds(held, f"the task {key}"):
                return False
            turn = self._store.tasks.turn(key)
            if turn.state == "running":
                self._settle(key, turn.worker, "the process that carried it out is gone")
            elif turn.state == "waiting" and self._store.tasks.claim(key, self._by):
                self._carry(key)
            return True

    def _carry(self, key: str) -> None:
        mark = secrets.token_hex(16)
        process = subprocess.Popen(
            self._command(key, self._by), env={**os.environ, MARK: mark, RUNNER: str(os.getpid())},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        last = 0.0  # when it is killed, once it was asked to end
        while process.poll() is None:
            if last and time.monotonic() > last:
                break
            if not last and (self._stopped or self._is_cancelled(key)):
                process.terminate()
                last = time.monotonic() + _GRACE_SECONDS
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_SECONDS)
        end_all([process], mark)
        code = process.returncode
        how = f"signal {-code}" if code and code < 0 else f"exit code {code}"
        while True:
            try:
                return self._settle(key, self._by, f"its process ended with {how}")
            except RequestError:  # the store is away: another worker settles it if this one goes
                if self._is_over:
                    return None
                time.sleep(_AWAY_SECONDS)

    def _is_cancelled(self, key: str) -> bool:
        with suppress(RequestError):  # the store is away: what runs goes on
            turn = self._store.tasks.turn(key)
            return bool(turn.cancel) or turn.worker != self._by
        return False

    def _settle(self, key: str, by: str, why: str) -> None:
        """Let a task whose process has ended, without a word of its own, wait again or end."""
        tasks, turn = self._store.tasks, self._store.tasks.turn(key)
        if turn.state != "running" or turn.worker != by:
            return
        if turn.cancel:
            tasks.end(key, by, "cancelled")
        elif self._stopped:
            tasks.wait(key, by, "the service was stopped; it goes on when it runs again", died=False)  # fmt: skip
        elif KINDS[turn.what].resumes and turn.attempts < _MOST_ATTEMPTS:
            tasks.wait(key, by, f"{why}; it goes on from what is kept")
        else:
            kept = "what it measured is kept; " if KINDS[turn.what].resumes else ""
            todo = f"{kept}ask for it again, after a look at the service's log"
            problem = {"asked": f"the task {key} ({turn.what})", "found": why, "next": todo}
            tasks.end(key, by, "failed", problem=problem)


class Workers:
    """The workers of a service, begun again where one dies. commands: the words of each. variables: of them all."""

    def __init__(self, commands: Sequence[list[str]], variables: Mapping[str, str]) -> None:
        # Who they work for is told: it may be gone before they have started.
        self._commands = commands
        self._environment = {**os.environ, **variables, RUNNER: str(os.getpid())}
        self._over = threading.Event()
        self._watching = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        """Start them."""
        self._processes = [(self._start(words), time.monotonic()) for words in self._commands]
        self._watching.start()
        # The server heeds a SIGTERM, and raises it again once it has ended: these are to end first.
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        return self

    def __exit__(self, *error: object) -> None:
        """Ask them to end, and wait for that: what they carry out waits for the next service."""
        self._over.set()
        self._watching.join()
        for process, _ in self._processes:
            process.terminate()
        for process, _ in self._processes:
            try:
                process.wait(_GRACE_SECONDS + 5)
            except subprocess.TimeoutExpired:
                process.kill()

    def _start(self, words: list[str]) -> subprocess.Popen[bytes]:
        # In a session of its own: Ctrl-C in a terminal is the service's to pass on.
        return subprocess.Popen(words, env=self._environment, stdin=subprocess.DEVNULL, start_new_session=True)  # fmt: skip

    def _watch(self) -> None:
        while not self._over.wait(_POLL_SECONDS):
            for i, (process, begun) in enumerate(self._processes):
                code = process.poll()
                if code is not None and time.monotonic() - begun > _BACKOFF_SECONDS:
                    _LOG.error("a worker of tasks ended with %s; another one starts", code)
                    self._processes[i] = (self._start(self._commands[i]), time.monotonic())
