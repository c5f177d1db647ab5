"""Seeing: --plot and --html, and what writes an answer to the screen, as a picture and as a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forerun.charts import Chart, check_drawing, image
from forerun.cli.inputs import FILE, writable, write_text
from forerun.cli.options import together
from forerun.cli.printing import echo, visible
from forerun.errors import RequestError

if TYPE_CHECKING:
    from forerun.cli.showing import Screen

PICTURES = (".png", ".svg", ".pdf")
_TERMINAL = Path("-")

seeing_options = together(
    click.option(
        "--plot", type=FILE, is_flag=False, flag_value="-", metavar="[FILE.png]",
        help="Draw the answer: as a PNG, SVG or PDF file, or without a file in the terminal.",
    ),
    click.option("--html", type=FILE, metavar="FILE.html", help="Write a self-contained page."),
)  # fmt: skip


class Outputs:
    """Where an answer goes: the screen or JSON, and the files of --plot and --html (taken out of the options).

    Raises:
        RequestError: a file cannot be written, or a plot and JSON would share the screen.
        MissingExtraError: a picture is asked for without the library that draws it.
    """

    def __init__(self, options: dict[str, Any], as_json: bool) -> None:
        self._plot, self._html = options.pop("plot"), options.pop("html")
        self._as_json = as_json
        writable(self._html, (".html", ".htm"))
        if self._plot == _TERMINAL and as_json:
            raise RequestError(
                "--plot with --json", "both would be written to the screen",
                "name a picture: --plot FILE.png",
            )  # fmt: skip
        if self._plot not in (None, _TERMINAL):
            writable(self._plot, PICTURES)
            check_drawing(f"drawing {self._plot}")

    def __bool__(self) -> bool:
        return self._plot is not None or self._html is not None

    def write(
        self, screen: Screen, show: Callable[[Screen], None], json: Callable[[], None],
        charts: Callable[[], Sequence[Chart]],
    ) -> None:  # fmt: skip
        """Write the answer that `show` writes to a screen, or `json` as JSON; `charts` are made where they are drawn."""
        drawn = charts() if self else ()
        if self._as_json:
            json()
        else:
            show(screen)
        if self._html is not None:
            from forerun.cli.report import answer_page

            write_text(self._html, visible(answer_page(show, drawn)))
        if self._plot == _TERMINAL:
            for chart in drawn:
                echo(f"\n{chart.text(screen.columns)}")
        elif self._plot is not None:
            write_text(self._plot, image(drawn, self._plot.suffix[1:].lower()))
        if not self._as_json:
            for file in (self._html, self._plot):
                if file not in (None, _TERMINAL):
                    echo(f"written to {file}")
