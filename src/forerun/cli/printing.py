"""Printing: text for a terminal without the characters that would steer it, whoever wrote them."""

from __future__ import annotations

import re
import time

import click

STARTED = time.monotonic()  # of the command line, which imports this first
# Control characters but the line feed and the tab, marks that turn the direction of writing, and
# halves of characters, as of file names that are no UTF-8.
_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def visible(text: str) -> str:
    r"""Return a text with such characters written out: \u001b. JSON stays the same JSON."""
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def echo(text: object = "", nl: bool = True, err: bool = False) -> None:
    """Print a text, on stderr with `err`, and with `nl` a line feed."""
    click.echo(visible(str(text)), nl=nl, err=err)
