"""Checkpoints: a training's states in a folder, each whole or not at all; the two newest are kept."""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

_HEAD = b"forerun state 1\n"
_DIGEST_BYTES = 32
_KEPT = 2
_NAME = re.compile(r"state-(\d+)-(\d+)\.pt")


def checkpoint_path(folder: Path, generation: int, step: int) -> Path:
    """Return where the state after a step lies; names sort by age, generations first."""
    return folder / f"state-{generation:06d}-{step:012d}.pt"


def last_generation(folder: Path) -> int:
    """Return the last generation that a file of the folder names, 0 where none does."""
    return max((int(found[1]) for path in _files(folder) if (found := _NAME.match(path.name))), default=0)  # fmt: skip


def write_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Write a state, and remove all but the two newest. Raises OSError, and then leaves all as it was.

    Once this returns, the disk has it: the file is written under another name, flushed, and moved.
    """
    import torch

    stream = io.BytesIO()
    torch.save(dict(state), stream)
    content = stream.getbuffer()
    partial = path.with_name(f".{path.name}")
    try:
        with partial.open("wb") as file:
            file.write(_HEAD + hashlib.sha256(content).digest())
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        with suppress(OSError):
            partial.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    for old in (*_files(path.parent)[:-_KEPT], *path.parent.glob(".state-*.pt")):
        with suppress(OSError):
            old.unlink()


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the newest state that is whole, None where there is none; a torn one is passed over."""
    return next((path for path in reversed(_files(folder)) if _content(path) is not None), None)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return a state. Raises ValueError where the file is not whole."""
    import torch

    content = _content(path)
    if content is None:
        raise ValueError(f"{path} is torn or was changed")
    state: dict[str, Any] = torch.load(io.BytesIO(content), weights_only=True)
    return state


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("state-*.pt") if _NAME.fullmatch(path.name))


def _content(path: Path) -> bytes | None:
    try:
        data = path.read_bytes()
    except OSError:
        return None
    begin = len(_HEAD) + _DIGEST_BYTES
    digest, content = data[len(_HEAD) : begin], data[begin:]
    whole = data.startswith(_HEAD) and hashlib.sha256(content).digest() == digest
    return content if whole else None
