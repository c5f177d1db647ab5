"""Progress: messages of long computations for a listener, such as a command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_LISTENER: ContextVar[Callable[[str], None] | None] = ContextVar("listener", default=None)


def report_progress(words: str) -> None:
    """Give a message to the listener, where there is one."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(words)


def present_listener() -> Callable[[str], None] | None:
    """Return the listener of the present block, None where there is none."""
    return _LISTENER.get()


@contextmanager
def progress_to(listener: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """Give a listener the messages of computations within the block, and yield it."""
    token = _LISTENER.set(listener)
    try:
        yield listener
    finally:
        _LISTENER.reset(token)
