"""Failing: what an exception in a worker means for its run, in words and as a status."""

from __future__ import annotations

import traceback

_OUT_OF_MEMORY = (
    "out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory",
    "std::bad_alloc", "unable to allocate",
)  # fmt: skip
# A worker whose neighbour died says one of these: the neighbour's reason is the run's.
_SECONDHAND = (
    "connection closed by peer", "connection reset by peer", "broken pipe", "socket closed",
    "connection refused", "timed out waiting for clients", "remote process exited", "gloo",
)  # fmt: skip


def status_of(error: BaseException) -> str:
    """Return oom where memory ran out, failed otherwise."""
    name = type(error).__name__
    if isinstance(error, MemoryError) or name == "OutOfMemoryError":
        return "oom"
    text = str(error).lower()
    plain = isinstance(error, RuntimeError | OSError) and any(w in text for w in _OUT_OF_MEMORY)
    return "oom" if plain else "failed"


def reason_of(error: BaseException) -> str:
    """Return an exception in one line: its kind, its words, and the line of code it came from."""
    words = " ".join(str(error).split())[:300]
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "site-packages" not in f.filename and "forerun" not in f.filename]
    place = f" ({own[-1].filename.rpartition('/')[2]}:{own[-1].lineno})" if own else ""
    return f"{type(error).__name__}{': ' if words else ''}{words}{place}"


def is_secondhand(reason: str) -> bool:
    """Whether a reason only says that another worker went away."""
    text = reason.lower()
    return any(words in text for words in _SECONDHAND)
