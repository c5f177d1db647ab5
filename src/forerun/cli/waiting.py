"""Waiting: a line on a terminal that says what is being done and for how long; nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def waiting(words: str) -> Iterator[Callable[[str], None]]:
    """Show what is done on stderr, with the time that it takes, where that is a terminal.

    The line is gone when it is done. Yields what puts other words in their place.
    """
    if not sys.stderr.isatty():
        yield lambda words: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    shown = Progress(
        SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
    with shown:
        task = shown.add_task(words, total=None)
        yield lambda words: shown.update(task, description=words)
