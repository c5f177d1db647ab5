"""Progress: messages of long computations for a listener, such as a command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Self

_LISTENER: ContextVar[Callable[[str], None] | None] = ContextVar("listener", default=None)


class TrainingStep(str):
    """A message about a step of a training, with its number `done`, how many there are, `of`, and its loss."""

    done: int
    of: int
    loss: float

    def __new__(cls, words: str, done: int, of: int, loss: float) -> Self:  # noqa: D102
        self = super().__new__(cls, words)
        self.done, self.of, self.loss = done, of, loss
        return self

    def __getnewargs__(self) -> Any:
        """Return the arguments of an equal one: messages go from process to process."""
        return str(self), self.done, self.of, self.loss


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
