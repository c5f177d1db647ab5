"""The working directory of elastic tests, which holds what they train as the module `elastic_toys`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.measure.elastic.toys import TOYS

pytest.importorskip("torch", reason="training needs the extra torch")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory."""
    (tmp_path / "elastic_toys.py").write_text(TOYS)
    monkeypatch.chdir(tmp_path)
    return tmp_path
