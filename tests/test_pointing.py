"""A caret stands under the character that is meant, whatever the line holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from forerun.errors import RequestError
from forerun.measure.logs.patterns import own_pattern
from forerun.pointing import pointed
from forerun.sections import read_section


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
    ("text", "place", "line", "meant", "todo"),
    [
        ('a:\n  b: "日本\\q"\n', "line 2, column 10", '  b: "日本\\q"', "q", "double the backslash"),
        ("a: 1\n\tb: 2\n", "line 2, column 1", "\tb: 2", "\t", "indent with spaces"),
        ("a: {b: 1\nc: 2\n", "line 2, column 2", "c: 2", ":", "write } where it ends, for what begins in line 1"),
        ("a: 1\r\nb: c: d\r\n", "line 2, column 5", "b: c: d", ":", "colon in quotes"),
        ("\ufeffa: b: c\n", "line 1, column 5", "a: b: c", ":", "colon in quotes"),
        ("a: *x\n", "line 1, column 4", "a: *x", "*", "quotes"),
        ("a: 2026-13-45\n", "line 1, column 4", "a: 2026-13-45", "2", "correct the line"),
        ("a: 1\nb: 2\na: 3\n", "line 3, column 1", "a: 3", "a", "keep one of them"),
        ("a: x\x01\n", "line 1, column 5", "a: x\N{REPLACEMENT CHARACTER}", "\N{REPLACEMENT CHARACTER}", "remove"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_yaml_is_shown_where_it_is_wrong(
    text: str, place: str, line: str, meant: str, todo: str, tmp_path: Path
) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(text.encode())
    with pytest.raises(RequestError) as caught:
        read_section(path, "campaign", "a campaign")
    said, shown, caret = caught.value.found.splitlines()
    assert place in said
    assert shown.endswith(f"| {line}")
    at = caret.index("^") - sum(c in "日本" for c in line)  # two cells each
    assert shown[at] == meant
    assert todo in caught.value.next_step


def test_bytes_that_are_no_text_are_named_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes("a: 1\nb: é".encode() + b"\xe9\n")
    with pytest.raises(RequestError, match=r"line 2, column 5: the byte 0xe9; save it in UTF-8"):
        read_section(path, "campaign", "a campaign")


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
