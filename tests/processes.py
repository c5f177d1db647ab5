"""Processes that tests start, and those that may be left of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def profiling(campaign: Path, store: Path, *words: str, **variables: str) -> subprocess.Popen[str]:
    """Start `forerun profile`, one thread a worker; what it says is read from its stderr."""
    command = [sys.executable, "-m", "forerun", "profile", str(campaign), "--store", str(store)]
    return subprocess.Popen(
        [*command, *words], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
    )  # fmt: skip


def alive(marker: str) -> list[int]:
    """Return processes whose environment or command line holds a marker."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            text = (path / "environ").read_bytes() + (path / "cmdline").read_bytes()
        except OSError:
            continue
        if marker.encode() in text and int(path.name) != os.getpid():
            found.append(int(path.name))
    return found
