"""The README's recommendation, of the whole catalogue: apart, so that nothing else waits for it."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_readme_s_recommendation_is_what_is_printed_today(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Constants and prices that change change it: `python docs/readme_example.py` writes it anew."""
    monkeypatch.setenv("HOME", str(tmp_path))
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text == runpy.run_path(str(ROOT / "docs" / "readme_example.py"))["renewed"](text)
