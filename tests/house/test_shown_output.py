"""What the README and the cookbook show of commands' output is what they print today."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
WRITER: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "shown_output.py"))
SHOWN = [
    (page, command)
    for page in WRITER["PAGES"]
    for command in WRITER["shown"]((ROOT / page).read_text(encoding="utf-8"))
]


@pytest.mark.parametrize(("page", "command"), SHOWN, ids=[command for _, command in SHOWN])
def test_a_command_prints_what_the_page_shows(
    page: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Constants and prices that change change it: `python docs/shown_output.py` writes it anew."""
    monkeypatch.setenv("HOME", str(tmp_path))
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text == WRITER["renewed"](text, command)


def test_the_cookbook_answers_ten_questions_each_with_its_output() -> None:
    text = (ROOT / "docs" / "cookbook.md").read_text(encoding="utf-8")
    questions = text.split("\n## ")[1:]
    assert len(questions) == 10
    for question in questions:
        assert WRITER["shown"](question), f"no output is shown: {question.splitlines()[0]}"


def test_an_output_that_differs_is_found() -> None:
    block = "```\n$ forerun --version\n\n{}\n```"
    now = WRITER["renewed"](block.format("forerun 0.0"))
    assert now != block.format("forerun 0.0")
    assert WRITER["renewed"](now) == now


def test_a_command_that_fails_is_no_output() -> None:
    with pytest.raises(SystemExit, match="no such workload"):
        WRITER["printed"]("forerun predict no-such-model --cluster 1x8xa100-sxm-80gb")
