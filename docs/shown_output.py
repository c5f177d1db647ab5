"""Writes README.md and docs/cookbook.md anew with what each `$ forerun` command in them prints today."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/cookbook.md")
# A block of one command, what it prints, and "..." where that is shown as far as its last line.
_BLOCK = re.compile(
    r"```\n\$ (forerun (?:[^\n]*\\\n)*[^\n]*)\n\n((?:(?!```).)+?)(\n\.\.\.)?\n```", re.S
)


def shown(text: str) -> list[str]:
    """Return the commands of a page whose output it shows."""
    return [match[1] for match in _BLOCK.finditer(text)]


def printed(command: str) -> str:
    """Return what a command prints in a folder that has `examples`. Raises SystemExit where it fails."""
    from forerun.cli import main

    said, errors = io.StringIO(), io.StringIO()
    with _elsewhere(), contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors):
        words = shlex.split(command.replace("\\\n", " "))
        code = main(words[1:], standalone_mode=False)
    if code:
        raise SystemExit(f"{command}\nends with {code}: {errors.getvalue()}")
    return "\n".join(line.rstrip() for line in said.getvalue().rstrip().splitlines())


@contextlib.contextmanager
def _elsewhere() -> Iterator[None]:
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "examples").symlink_to(ROOT / "examples")
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(here)


def renewed(text: str, only: str = "") -> str:
    """Return a page with what its commands, or only one of them, print today.

    What is shown in part ends, as before, with the first line that begins with the word of its last.
    """

    def block(match: re.Match[str]) -> str:
        command, before, cut = match.groups()
        if only and command != only:
            return match[0]
        lines = printed(command).splitlines()
        if cut:
            word = before.splitlines()[-1].split()[0]
            last = next(i for i, line in enumerate(lines) if line.split()[:1] == [word])
            lines = lines[: last + 1]
        output = "\n".join(lines)
        return f"```\n$ {command}\n\n{output}{cut or ''}\n```"

    return _BLOCK.sub(block, text)


if __name__ == "__main__":
    for page in PAGES:
        path = ROOT / page
        path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"wrote {page}")
