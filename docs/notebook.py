"""Runs examples/first_steps.ipynb and writes what its cells print today into it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).resolve().parents[1] / "examples" / "first_steps.ipynb"
_MOST_SECONDS = 120  # of one cell


def executed(path: Path = NOTEBOOK) -> Any:
    """Return a notebook with the outputs of its cells, run in its own folder. Raises CellExecutionError."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(
        notebook, timeout=_MOST_SECONDS, record_timing=False, resources=resources
    ).execute()
    notebook.metadata.pop("language_info", None)  # names the Python of this machine
    return notebook


if __name__ == "__main__":
    import nbformat

    nbformat.write(executed(), NOTEBOOK)
    print(f"wrote examples/{NOTEBOOK.name}")
