"""Waiting: a line on a terminal that says what is being done and for how long; nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def waiting(words: str) -> Iterator[None]:
    """Show what is done on stderr, with the time that it takes, where that is a terminal.

    The line is gone when it is done.
    """
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    shown = Progress(
        SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
    with shown:
        shown.add_task(words, total=None)
        yield
