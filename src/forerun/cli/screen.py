"""Screen: tables for a person: rich ones on a terminal, plain aligned text when piped.

Waiting: a line on a terminal that says what is being done and for how long; nothing elsewhere.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from forerun.settings import Settings

if TYPE_CHECKING:
    from rich.console import Console

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


_BAR_WIDTH = 24


class Screen:
    """Where a command writes its answer.

    Args:
        settings: `color` is read: auto, always or never.
    """

    def __init__(self, settings: Settings) -> None:
        wanted = settings.text("color")
        plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        terminal = sys.stdout.isatty() and not plain
        self._console: Console | None = None
        if wanted == "always" or (wanted == "auto" and terminal):
            from rich.console import Console

            self._console = Console(force_terminal=True, highlight=False)

    def title(self, text: str) -> None:
        """Write a heading."""
        if self._console is None:
            click.echo(text)
        else:
            from rich.markup import escape

            self._console.print(f"[bold]{escape(text)}[/bold]")

    def line(self, text: str = "") -> None:
        """Write one line; a terminal that is too narrow gets it broken between words.

        What follows stands under the text behind the line's label (`price   ...`).
        """
        label = re.match(r"\S+ {2,}", text)
        self._broken(text, " " * (len(label[0]) if label else 2))

    def _broken(self, text: str, indent: str) -> None:
        """Write text in lines that fit, all but the first indented; piped text stays one line."""
        if self._console is None or len(text) <= self._console.width:
            click.echo(text)
            return
        from textwrap import wrap

        lines = wrap(text, self._console.width, subsequent_indent=indent, break_on_hyphens=False)
        click.echo("\n".join(lines))

    def items(self, title: str, lines: Iterable[str]) -> None:
        """Write a titled list, nothing where it is empty."""
        lines = list(lines)
        if lines:
            self.title(title)
            for text in lines:
                self._broken(f"  - {text}", "    ")

    def table(self, headers: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> None:
        """Write a table; cells that look like numbers are set to the right."""
        cells = [[str(c) for c in row] for row in rows]
        if title:
            self.title(title)
        right = [
            bool(cells) and all(_numeric(row[i]) for row in cells) for i in range(len(headers))
        ]
        if self._console is None:
            for line in plain_lines(headers, cells, right):
                click.echo(line)
            return
        kept = _kept(headers, cells, right, self._console.width)
        if len(kept) < len(headers):
            self._tall(headers, cells, right, kept)
            return
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for header, numeric in zip(headers, right, strict=True):
            table.add_column(header, justify="right" if numeric else "left", overflow="fold")
        for row in cells:
            table.add_row(*(Text(cell) for cell in row))
        self._console.print(table)

    def _tall(
        self, headers: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool],
        kept: Sequence[int],
    ) -> None:  # fmt: skip
        """Write a table whose wide columns of text stand above and below the other cells."""
        stacked = [_stacked(headers[i], max(len(row[i]) for row in cells)) for i in kept]
        depth = max(map(len, stacked))
        heads = list(zip(*([""] * (depth - len(words)) + words for words in stacked), strict=True))
        lines = plain_lines(
            heads[0], [*heads[1:], *([row[i] for i in kept] for row in cells)],
            [right[i] for i in kept],
        )  # fmt: skip
        if 0 not in kept and headers[0]:
            click.echo(headers[0])
        click.echo(
            "\n".join((*lines[:depth], "\N{BOX DRAWINGS LIGHT HORIZONTAL}" * max(map(len, lines))))
        )
        for row, line in zip(cells, lines[depth:], strict=True):
            if 0 not in kept:
                self._broken(row[0], "  ")
            click.echo(line)
            for i in range(1, len(headers)):
                if i not in kept and row[i]:
                    self._broken(f"    {headers[i]}: {row[i]}", "      ")

    def bar(self, share: float) -> str:
        """Return a bar for a share between 0 and 1."""
        full = round(max(0.0, min(share, 1.0)) * _BAR_WIDTH)
        return ("\N{FULL BLOCK}" if self._console else "#") * full


def plain_lines(
    headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]
) -> list[str]:
    """Return aligned lines, two spaces between columns and none at the end."""
    grid = [list(headers), *rows]
    widths = [max(len(row[i]) for row in grid) for i in range(len(headers))]
    return [
        "  ".join(
            cell.rjust(width) if numeric else cell.ljust(width)
            for cell, width, numeric in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in grid
    ]


_RICH_GAP, _GAP = 3, 2  # between two columns of a terminal's table, and of a plain or tall one


def _kept(
    headers: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool], width: int
) -> list[int]:
    """Return the columns that stand side by side on a terminal of a width.

    All of them where they fit, or where there is no number; else the widest columns of text leave
    the row one by one, and numbers never: a number in two lines cannot be read.
    """
    every = list(range(len(headers)))
    full = [max(len(row[i]) for row in (headers, *cells)) for i in every]
    if not any(right) or not cells or sum(full) + _RICH_GAP * len(every) <= width:
        return every
    kept = every.copy()
    narrow = [max(_longest_word(headers[i]), *(len(row[i]) for row in cells)) for i in every]
    while len(kept) == len(every) or sum(narrow[i] + _GAP for i in kept) - _GAP > width:
        texts = [i for i in kept if not right[i]]
        if not texts:
            break
        kept.remove(max(texts, key=lambda i: narrow[i]))
    return kept if kept else every


def _stacked(header: str, width: int) -> list[str]:
    """Return a header's words in lines, as few as keep to the width of the cells where they can."""
    lines: list[str] = []
    for word in header.split(" "):
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _longest_word(text: str) -> int:
    return max((len(word) for word in text.split()), default=0)


# A number, with what may stand before it, its unit behind it, and the other end of its range.
_NUMBER = re.compile(
    r"[-+$<>]*[\d.][\d.,]*(e[-+]?\d+)?( ?[%A-Za-z/]{1,8})?"
    r"((-| to )[-+$<>\d.,e]+( ?[%A-Za-z/]{1,8})?|( \(.*\)))?"
)


def _numeric(cell: str) -> bool:
    return not cell or _NUMBER.fullmatch(cell) is not None
