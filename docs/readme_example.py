"""Writes README.md anew with what its recommendation prints today, from the command that it shows."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import tempfile
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"
_START, _END = "$ forerun recommend ", "\n...\n```"


def printed(command: str) -> str:
    """Return what a command prints, as far as the closest rival; files go to a folder of no use."""
    from forerun.cli import main

    here, said = Path.cwd(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(said):
        os.chdir(folder)
        try:
            main(shlex.split(command)[1:], standalone_mode=False)
        finally:
            os.chdir(here)
    lines = said.getvalue().rstrip().splitlines()
    last = next(i for i, line in enumerate(lines) if line.startswith("beats "))
    return "\n".join(line.rstrip() for line in lines[: last + 1])


def renewed(text: str) -> str:
    """Return the README's text with its example as it is printed today."""
    start = text.index(_START)
    first, end = text.index("\n", start), text.index(_END, start)
    return f"{text[:first]}\n\n{printed(text[start + 2 : first])}{text[end:]}"


if __name__ == "__main__":
    README.write_text(renewed(README.read_text(encoding="utf-8")), encoding="utf-8")
    print("wrote README.md")
