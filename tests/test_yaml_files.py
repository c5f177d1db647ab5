"""Sections: a YAML file's mapping points at the line of what is wrong in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.errors import RequestError
from forerun.yaml_files import read_section


def test_a_wrong_field_is_told_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: a\nsteps:\n  warmup: -1\n")
    top = read_section(path, "campaign", "a campaign")
    with pytest.raises(RequestError, match=r"mine\.yaml, line 3, steps\.warmup") as error:
        top.section("steps").number("warmup")
    assert "not below zero" in error.value.found


@pytest.mark.parametrize(("text", "words"), [("- a\n", "not a mapping"), ("a: [\n", "not YAML")])
def test_a_file_of_another_form_is_told_by_what_it_should_be(
    tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(RequestError, match=words) as error:
        read_section(path, "campaign", "a campaign")
    assert error.value.asked.startswith("campaign ")


def test_fields_that_are_merged_may_be_given_anew(tmp_path: Path) -> None:
    path = tmp_path / "merged.yaml"
    path.write_text("b: &b {x: 1}\na:\n  mid: &m {<<: *b, x: 2}\ntop: {<<: *m, x: 3}\n")
    section = read_section(path, "the file", "a thing")
    assert section.values == {"b": {"x": 1}, "a": {"mid": {"x": 2}}, "top": {"x": 3}}
    path.write_text("a:\n  x: 1\n  x: 2\n")
    with pytest.raises(RequestError, match=r"line 3, column 3: the field 'x' is there already, in"):
        read_section(path, "the file", "a thing")


@pytest.mark.parametrize("text", ["!!map [1]", "!!timestamp y", "!!bool y", "!!float _", "!!int x"])
def test_what_is_tagged_as_what_it_is_not_is_told_with_its_place(text: str, tmp_path: Path) -> None:
    path = tmp_path / "tagged.yaml"
    path.write_text(f"a: {text}\n")
    with pytest.raises(RequestError, match="it is not YAML: line 1, column 4: "):
        read_section(path, "the file", "a thing")


@pytest.mark.parametrize(
    ("text", "place", "meant"),
    [
        ('a:\n  b: "x\\q"\n', "line 2, column 9: found unknown escape character 'q'", "q"),
        ("a: {b: 1\nc: 2\n", "line 2, column 2: expected ',' or '}'", ":"),
        ("\ufeffa: b: c\n", "line 1, column 5: mapping values are not allowed here", ":"),
        ("a: *x\n", "line 1, column 4: found undefined alias 'x'", "*"),
        ("a: 2026-13-45\n", "line 1, column 4: not a valid timestamp", "2"),
    ],
)
def test_a_file_that_is_no_yaml_is_shown_where_it_is_wrong(
    text: str, place: str, meant: str, tmp_path: Path
) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(text.encode())
    with pytest.raises(RequestError) as caught:
        read_section(path, "campaign", "a campaign")
    said, shown, caret = caught.value.found.splitlines()
    assert place in said
    assert shown[caret.index("^")] == meant


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"a: \xe9\n", "it is not text in UTF-8"), (b"a: x\x01\n", "#x0001"), (b"[" * 9999, "nested")],
)
def test_bytes_that_are_no_yaml_are_refused(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(content)
    with pytest.raises(RequestError, match=words):
        read_section(path, "campaign", "a campaign")
