"""Pointing: a line of somebody's text, with a caret under the character that is meant."""

from __future__ import annotations

import unicodedata

_BEFORE, _AFTER = 60, 30  # characters that are shown of a long line, around the one that is meant


def pointed(line: str, column: int, label: str = "") -> str:
    """Return a line of text, and below it a caret under one of its characters.

    Args:
        line: without its end.
        column: of the character, from 0; the line's length points behind its last one.
        label: what stands before the line, e.g. its number.
    """
    line, column = _clipped(line, column)
    head = f"    {label} | " if label else "    "
    blank = " " * (len(head) - 2) + "| " if label else head
    # Tabs stay tabs, so that whatever a terminal makes of them is the same in both lines.
    under = "".join(c if c == "\t" else " " * _width(c) for c in line[:column])
    shown = "".join(
        c if c == "\t" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line
    )
    return f"{head}{shown}\n{blank}{under}^"


def _clipped(line: str, column: int) -> tuple[str, int]:
    """Return the part of a long line that is shown, and the column in it."""
    first = max(column - _BEFORE, 0)
    before = "..." if first else ""
    after = "..." if len(line) > column + _AFTER else ""
    return f"{before}{line[first : column + _AFTER]}{after}", column - first + len(before)


def _width(character: str) -> int:
    """Return how many cells of a terminal a character takes."""
    if unicodedata.combining(character):
        return 0
    if character.isprintable():
        return 2 if unicodedata.east_asian_width(character) in "WF" else 1
    return 1  # shown by another in its place
