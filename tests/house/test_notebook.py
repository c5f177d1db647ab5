"""The notebook of first steps runs, and its cells print what it shows."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="pip install nbclient ipykernel")
pytest.importorskip("nbclient", reason="pip install nbclient ipykernel")
pytest.importorskip("ipykernel", reason="pip install nbclient ipykernel")
pytest.importorskip("pandas", reason="pip install pandas")

WRITER = runpy.run_path(str(Path(__file__).resolve().parents[2] / "docs" / "notebook.py"))


def texts(notebook: Any) -> list[str]:
    """Return what each cell of code prints; a failure of a cell is no text."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return ["".join(output["text"] for output in cell.outputs) for cell in cells]


def test_the_notebook_prints_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Constants and prices that change change it: `python docs/notebook.py` writes it anew."""
    monkeypatch.setenv("HOME", str(tmp_path))
    shown = nbformat.read(WRITER["NOTEBOOK"], as_version=4)
    assert len(texts(shown)) == 5
    assert all(texts(shown))
    assert texts(WRITER["executed"]()) == texts(shown)


def test_a_cell_that_fails_is_told(tmp_path: Path) -> None:
    from nbclient.exceptions import CellExecutionError

    broken = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")])
    nbformat.write(broken, tmp_path / "broken.ipynb")
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        WRITER["executed"](tmp_path / "broken.ipynb")
