"""Screen: tables for a person: rich ones on a terminal, plain aligned text when piped."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from forerun.settings import Settings

if TYPE_CHECKING:
    from rich.console import Console

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
        """Write one line."""
        click.echo(text)

    def prose(self, text: str) -> None:
        """Write a sentence; a terminal gets it broken between words, what is piped in one line."""
        if self._console is None:
            click.echo(text)
            return
        from textwrap import wrap

        for piece in wrap(text, self._console.width, subsequent_indent="  "):
            click.echo(piece)

    def items(self, title: str, lines: Iterable[str]) -> None:
        """Write a titled list, nothing where it is empty."""
        lines = list(lines)
        if lines:
            self.title(title)
            for text in lines:
                click.echo(f"  - {text}")

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
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for header, numeric in zip(headers, right, strict=True):
            table.add_column(header, justify="right" if numeric else "left", overflow="fold")
        for row in cells:
            table.add_row(*(Text(cell) for cell in row))
        self._console.print(table)

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


def _numeric(cell: str) -> bool:
    return not cell or cell[0].isdigit() or (cell[0] in "$-+.<>" and cell[1:2].isdigit())
