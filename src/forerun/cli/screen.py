"""Screen: text and tables for a person, that fit a terminal; plain lines when piped."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from forerun.settings import Settings

_BAR_WIDTH = 24
_GAP = 2  # between two columns


@contextmanager
def waiting(words: str, plain: bool = False) -> Iterator[Callable[[str], None]]:
    """Show what is done on stderr, with the time that it takes, where that is a terminal.

    The line is gone when it is done. Yields what puts other words in their place; elsewhere it
    writes them as lines where `plain`, else nothing.
    """
    if not sys.stderr.isatty():
        yield lambda words: click.echo(words, err=True) if plain else None
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


class Screen:
    """Where a command writes its answer.

    Args:
        settings: `color` is read: auto, always or never.
    """

    def __init__(self, settings: Settings) -> None:
        wanted = settings.text("color")
        plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        terminal = wanted == "always" or (wanted == "auto" and sys.stdout.isatty() and not plain)
        self._width = shutil.get_terminal_size().columns if terminal else 0  # 0: no terminal

    def title(self, text: str) -> None:
        """Write a heading."""
        if self._width:
            click.echo(click.style(text, bold=True), color=True)
        else:
            click.echo(text)

    def line(self, text: str = "") -> None:
        """Write one line; a terminal that is too narrow gets it broken between words.

        What follows stands under the text behind the line's label (`price   ...`).
        """
        label = re.match(r"\S+ {2,}", text)
        self._broken(text, " " * (len(label[0]) if label else 2))

    def _broken(self, text: str, indent: str) -> None:
        """Write text in lines that fit, all but the first indented; piped text stays one line."""
        if self._width and len(text) > self._width:
            text = textwrap.fill(
                text, self._width, subsequent_indent=indent, break_on_hyphens=False
            )
        click.echo(text)

    def labelled(self, rows: Iterable[tuple[str, str]], width: int = 8) -> None:
        """Write lines of a label and a text; nothing for a text that is ""."""
        for label, text in rows:
            if text:
                self.line(f"{label:<{width}}{text}")

    def items(self, title: str, lines: Iterable[str]) -> None:
        """Write a titled list, nothing where it is empty."""
        lines = list(lines)
        if lines:
            self.title(title)
            for text in lines:
                self._broken(f"  - {text}", "    ")

    def table(self, headers: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> None:
        """Write a table; cells that look like numbers are set to the right.

        On a terminal that is too narrow, wide columns of text stand above and below their row.
        """
        cells = [[str(c) for c in row] for row in rows]
        if title:
            self.title(title)
        right = [
            bool(cells) and all(_numeric(row[i]) for row in cells) for i in range(len(headers))
        ]
        if not self._width:
            click.echo("\n".join(plain_lines(headers, cells, right)))
            return
        kept = _kept(headers, cells, right, self._width)
        stacked = [_stacked(headers[i], cells, i) for i in kept]
        depth = max(map(len, stacked))
        heads = list(zip(*([""] * (depth - len(words)) + words for words in stacked), strict=True))
        lines = plain_lines(
            heads[0], [*heads[1:], *([row[i] for i in kept] for row in cells)],
            [right[i] for i in kept],
        )  # fmt: skip
        if 0 not in kept and headers[0]:
            click.echo(headers[0])
        rule = "\N{BOX DRAWINGS LIGHT HORIZONTAL}" * max(map(len, lines))
        click.echo("\n".join((*lines[:depth], rule)))
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
        return ("\N{FULL BLOCK}" if self._width else "#") * full


def plain_lines(
    headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]
) -> list[str]:
    """Return aligned lines, two spaces between columns and none at the end."""
    grid = [list(headers), *rows]
    widths = [max(len(row[i]) for row in grid) for i in range(len(headers))]
    return [
        (" " * _GAP)
        .join(
            cell.rjust(width) if numeric else cell.ljust(width)
            for cell, width, numeric in zip(row, widths, right, strict=True)
        )
        .rstrip()
        for row in grid
    ]


def _kept(
    headers: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool], width: int
) -> list[int]:
    """Return the columns that stand side by side on a terminal of a width.

    All of them where they fit, or where there is no number; else the widest columns of text leave
    the row one by one, and numbers never: a number in two lines cannot be read.
    """
    kept = list(range(len(headers)))
    narrow = [
        max(map(len, (*_stacked(headers[i], cells, i), *(r[i] for r in cells)))) for i in kept
    ]
    while sum(narrow[i] + _GAP for i in kept) - _GAP > width and any(right):
        texts = [i for i in kept if not right[i]]
        if not texts:
            break
        kept.remove(max(texts, key=lambda i: narrow[i]))
    return kept or list(range(len(headers)))


def _stacked(header: str, cells: Sequence[Sequence[str]], i: int) -> list[str]:
    """Return a header's words in lines, as few as keep to the width of column i where they can."""
    width = max((len(text) for text in (*header.split(), *(row[i] for row in cells))), default=1)
    return textwrap.wrap(header, max(width, 1), break_on_hyphens=False) or [""]


# A number, with what may stand before it, its unit behind it, and the other end of its range.
_NUMBER = re.compile(
    r"[-+$<>]*[\d.][\d.,]*(e[-+]?\d+)?( ?[%A-Za-z/]{1,8})?"
    r"((-| to )[-+$<>\d.,e]+( ?[%A-Za-z/]{1,8})?|( \(.*\)))?"
)


def _numeric(cell: str) -> bool:
    return not cell or _NUMBER.fullmatch(cell) is not None
