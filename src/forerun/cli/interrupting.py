"""Interrupting: a signal that asks for the end lets what is under way be ended in order."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from types import FrameType
from typing import Any, TypeVar

from forerun.cli.printing import echo

Command = TypeVar("Command", bound=Callable[..., Any])
_PATIENCE_SECONDS = 20.0  # for the order; a signal after that ends it at once
# Ctrl-C, what `kill` and a scheduler send, and a terminal that was closed.
_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class Interrupted(KeyboardInterrupt):
    """A signal asked for the end; its exit code is the shells': 130 for Ctrl-C, 143 for SIGTERM."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


def orderly(notice: str) -> Callable[[Command], Command]:
    """Return what makes a command end in order on a signal: it prints `notice` and sets the code."""

    def made(command: Command) -> Command:
        @wraps(command)
        def run(*arguments: Any, **named: Any) -> Any:
            try:
                with interruptible():
                    return command(*arguments, **named)
            except Interrupted as error:
                try:
                    echo(notice, err=True)
                except (OSError, ValueError):  # the terminal is gone
                    silence(sys.stdout, sys.stderr)
                sys.exit(error.exit_code)

        return run  # type: ignore[return-value]

    return made


def silence(*streams: Any) -> None:
    """Point streams at nothing, so that the interpreter's last flush cannot fail."""
    for stream in streams:
        with suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise Interrupted in the block where a signal asks for the end."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    first: list[float] = []

    def handle(number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if first and now - first[0] < _PATIENCE_SECONDS:
            return
        first[:] = [now]
        raise Interrupted(number)

    before = {}
    for number in _SIGNALS:
        if signal.getsignal(number) not in (signal.SIG_IGN, None):
            before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            # What is left to do after a signal is to exit; a second one must not change the code.
            signal.signal(number, signal.SIG_IGN if first else handler)
