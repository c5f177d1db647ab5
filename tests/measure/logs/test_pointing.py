"""A caret stands under the character that is meant, whatever the line holds."""

from __future__ import annotations

import re

import pytest

from forerun.errors import RequestError
from forerun.measure.logs.patterns import own_pattern, pointed


@pytest.mark.parametrize(
    ("line", "column", "under"),
    [
        ("name: x", 6, "      ^"),
        ("a\tb: c", 2, " \t^"),  # a terminal makes of both tabs the same
        ("日本 x", 3, "     ^"),  # two cells a letter
        ("e\N{COMBINING ACUTE ACCENT}x", 2, " ^"),  # a letter of two characters in one cell
        ("ab", 2, "  ^"),  # behind the last one
    ],
)
def test_a_caret_stands_under_the_character(line: str, column: int, under: str) -> None:
    assert pointed(line, column) == f"    {line}\n    {under}"
    assert pointed(line, column, "12") == f"    12 | {line}\n       | {under}"


def test_a_long_line_is_shown_around_the_character() -> None:
    shown, caret = pointed("x" * 500 + "!" + "y" * 500, 500).splitlines()
    assert shown[caret.index("^")] == "!"
    assert len(shown) < 110


def test_what_cannot_be_printed_has_something_in_its_place() -> None:
    assert pointed("a\x1b[31mb", 1) == "    a\N{REPLACEMENT CHARACTER}[31mb\n     ^"


@pytest.mark.parametrize(
    ("pattern", "caret", "todo"),
    [
        (r"step (?P<step>\d+", 5, "close the bracket"),
        (r"\d+ (?<step>\d+)", 5, "write a named group as (?P<step>...)"),
        (r"a\q(?P<step>\d+)", 1, "leave the backslash out"),
    ],
)
def test_an_expression_is_told_as_it_was_written_with_the_place_of_its_mistake(
    pattern: str, caret: int, todo: str
) -> None:
    with pytest.raises(RequestError, match=re.escape(f"--pattern '{pattern}'")) as caught:
        own_pattern(pattern)
    _, shown, under = caught.value.found.splitlines()
    assert shown == f"    {pattern}"
    assert under == " " * (4 + caret) + "^"
    assert todo in caught.value.next_step
