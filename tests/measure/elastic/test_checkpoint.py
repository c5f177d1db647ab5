"""Checkpoints: the newest whole one serves, a torn one never, and a disk without room keeps the older."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from forerun.measure.elastic.checkpoint import (
    checkpoint_path,
    last_generation,
    newest_checkpoint,
    read_checkpoint,
    write_checkpoint,
)


def write(folder: Path, generation: int, step: int) -> Path:
    path = checkpoint_path(folder, generation, step)
    write_checkpoint(path, {"weights": torch.full((100,), float(step)), "steps": step})
    return path


def test_the_two_newest_states_are_kept_and_read_back(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) is None
    paths = [write(tmp_path, *at) for at in ((1, 90), (1, 100), (2, 95))]
    assert sorted(tmp_path.iterdir()) == paths[1:], "a later group goes on from an earlier step"
    assert newest_checkpoint(tmp_path) == paths[2]
    assert last_generation(tmp_path) == 2
    state = read_checkpoint(paths[2])
    assert state["steps"] == 95
    assert torch.equal(state["weights"], torch.full((100,), 95.0))


@pytest.mark.parametrize("harm", ["torn", "changed", "emptied"])
def test_a_state_that_is_not_whole_is_never_used(tmp_path: Path, harm: str) -> None:
    older, newer = write(tmp_path, 1, 10), write(tmp_path, 1, 20)
    data = bytearray(newer.read_bytes())
    if harm == "changed":
        data[len(data) // 2] ^= 1
    newer.write_bytes({"torn": data[:-7], "changed": data, "emptied": b""}[harm])
    assert newest_checkpoint(tmp_path) == older
    with pytest.raises(ValueError, match="torn or was changed"):
        read_checkpoint(newer)


@pytest.fixture
def no_room() -> Iterator[None]:
    """No file of this process grows beyond 100 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_without_room_leaves_the_older_states_alone(tmp_path: Path, request: pytest.FixtureRequest) -> None:  # fmt: skip
    kept = [write(tmp_path, 1, 10), write(tmp_path, 1, 20)]
    request.getfixturevalue("no_room")
    with pytest.raises(OSError, match=r"too large|No space"):
        write(tmp_path, 1, 30)
    assert sorted(tmp_path.iterdir()) == kept
    assert newest_checkpoint(tmp_path) == kept[1]
