"""Paths that lead nowhere, files without an end, and small files that would grow: refused in words."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run

CLUSTER = ("--cluster", "8xa100-sxm-80gb")
VIT = {
    "model_type": "vit", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "image_size": [224, 224], "patch_size": [16, 16],
}  # fmt: skip


@pytest.fixture
def loop(tmp_path: Path) -> str:
    """Return a link that leads to itself."""
    first, second = tmp_path / "a.csv", tmp_path / "b.csv"
    first.symlink_to(second)
    second.symlink_to(first)
    return str(first)


@pytest.mark.parametrize(
    "command",
    [("evaluate", "--runs", "{}"), ("predict", "--table", "{}"), ("predict", "{}", *CLUSTER),
     ("predict", "resnet50", *CLUSTER, "--catalog", "{}"), ("eta", "{}"),
     ("runs", "import", "{}", "--store", "{}.db"), ("profile", "{}", "--dry-run")],
)  # fmt: skip
def test_a_path_that_cannot_be_reached_is_the_users_to_correct(
    forerun: Run, command: tuple[str, ...], loop: str
) -> None:
    for name in (loop, "a" * 300 + ".csv"):
        done = forerun(*(word.format(name) for word in command))
        assert done.code == 2, done.err
        assert "next: " in done.err


@pytest.mark.parametrize(
    "command",
    [("predict", "--table", "/dev/zero"), ("devices", "--catalog", "/dev/zero"),
     ("evaluate", "--runs", "/dev/zero"), ("profile", "/dev/zero", "--dry-run")],
)  # fmt: skip
def test_a_device_is_no_file(forerun: Run, command: tuple[str, ...]) -> None:
    done = forerun(*command)
    assert done.code == 2
    assert "it is a device and no file" in done.err


def test_what_may_not_be_read_or_written_is_told(jobs: Path, tmp_path: Path) -> None:
    """The rights of files hold for the user, and for root without the capability to pass them by."""
    bounds = "-dac_override,-dac_read_search"
    drop = [shutil.which("setpriv") or "", f"--bounding-set={bounds}", f"--inh-caps={bounds}"]
    if os.geteuid() == 0 and not drop[0]:
        pytest.skip("root reads everything here")
    shut, mute = tmp_path / "shut", tmp_path / "mute.csv"
    shut.mkdir()
    mute.write_text(jobs.read_text())
    for path in (shut, mute):
        path.chmod(0)
    commands = (
        ("predict", "--table", f"{shut}/x.csv"), ("predict", "--table", str(mute)),
        ("predict", str(shut), *CLUSTER), ("fit", "--runs", str(shut), "--out", "m.json"),
        ("eta", str(shut)), ("runs", "list", "--store", f"{shut}/s.db"),
        ("predict", "--table", str(jobs), "--out", f"{shut}/o.csv"),
        ("predict", "resnet50", *CLUSTER, "--catalog", str(mute)),
    )  # fmt: skip
    words = [*drop[: 3 * (os.geteuid() == 0)], sys.executable, "-c", IN_TURN, json.dumps(commands)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    finally:
        for path in (shut, mute):
            path.chmod(0o700)
    for command, (code, said) in zip(commands, json.loads(done.stdout), strict=True):
        assert code == 2, (command, said)
        assert "next: " in said


# One process carries out all: it starts once, and drops its rights once.
IN_TURN = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from forerun.cli import main

found = []
for command in json.loads(sys.argv[1]):
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as said:
        code = main(command, standalone_mode=False)
    found.append((code, said.getvalue()))
print(json.dumps(found))
"""


def test_a_pipe_is_read(forerun: Run, jobs: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    child = os.fork()
    if not child:
        pipe.write_text(jobs.read_text())
        os._exit(0)
    done = forerun("predict", "--table", str(pipe), "--json")
    os.waitpid(child, 0)
    assert len(done.json()["rows"]) == 6


def test_aliases_that_multiply_are_refused_at_once(forerun: Run, tmp_path: Path) -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [
        f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]"
        for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    path = tmp_path / "bomb.yaml"
    path.write_text("\n".join([*lines, "workloads: *i", "devices: *i", ""]))
    for command in (("devices", "--catalog", str(path)), ("predict", str(path), *CLUSTER),
                    ("profile", str(path), "--dry-run")):  # fmt: skip
        done = forerun(*command)
        assert done.code == 2
        assert "its aliases make" in done.err


def test_a_configuration_may_list_the_sides_of_an_image(forerun: Run, tmp_path: Path) -> None:
    seconds = []
    for sides in ([224, 224], 224):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({**VIT, "image_size": sides}))
        done = forerun("predict", str(path), *CLUSTER, "--json")
        assert done.code == 0, done.err
        seconds.append(done.json()["step_seconds"])
    assert seconds[0] == seconds[1]
    path.write_text(json.dumps({**VIT, "image_size": [224, 448]}))
    done = forerun("predict", str(path), *CLUSTER)
    assert done.code == 2
    assert "its sides differ" in done.err


def test_an_ending_in_capitals_is_that_ending(forerun: Run, jobs: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    out = tmp_path / "answers.PARQUET"
    assert forerun("predict", "--table", str(jobs), "--out", str(out)).code == 0
    assert out.read_bytes()[:4] == b"PAR1"
