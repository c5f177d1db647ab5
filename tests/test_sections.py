"""Sections: a YAML file's mapping points at the line of what is wrong in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.errors import RequestError
from forerun.sections import read_section


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
