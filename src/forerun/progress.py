"""Progress: what a long computation says of itself, to whoever listens, such as a command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_LISTENER: ContextVar[Callable[[str], None] | None] = ContextVar("listener", default=None)


def report_progress(words: str) -> None:
    """Pass on what is done now, where somebody listens."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(words)


@contextmanager
def progress_to(listener: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """Let a listener have what computations within the block say of themselves; the block gets it too."""
    token = _LISTENER.set(listener)
    try:
        yield listener
    finally:
        _LISTENER.reset(token)
