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
