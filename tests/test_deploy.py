"""The container's start script waits, makes one token and serves; its files pass their linters."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from forerun import Client
from tests.needs import require
from tests.store.postgres import Server, _demote, binary, server

ROOT = Path(__file__).parents[1]
START = ROOT / "deploy" / "start.sh"


def stub(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a container: `forerun` and `python3` on the path, and a user that is not root."""
    commands, state = tmp_path / "bin", tmp_path / "state"
    commands.mkdir()
    state.mkdir()
    stub(commands, "forerun", f'exec "{sys.executable}" -u -m forerun "$@"')
    stub(commands, "python3", f'exec "{sys.executable}" "$@"')
    stub(commands, "id", "echo 10001")  # the tests may run as root
    kept = {n: v for n, v in os.environ.items() if n.startswith(("PYTHON", "LD_"))}
    return {
        **kept, "PATH": f"{commands}:/usr/bin:/bin", "HOME": str(tmp_path), "FORERUN_STATE": str(state),
        "FORERUN_HOST": "127.0.0.1", "FORERUN_PORT": "0",
    }  # fmt: skip


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    with server() as running:
        yield running


def control(running: Server, *words: str) -> None:
    """Stop or start the database."""
    command = [binary("pg_ctl") or "", "-D", str(running.folder / "data"), "-w", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, **_demote())  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_waits_for_the_database_makes_one_token_and_serves(
    postgres: Server, variables: dict[str, str], tmp_path: Path
) -> None:
    state, password = tmp_path / "state", tmp_path / "password"
    password.write_text("secret\n")
    where = f"postgresql://forerun@/postgres?host={quote(str(postgres.folder))}"
    given = {**variables, "FORERUN_STORE": where, "PGPASSWORD_FILE": str(password)}
    control(postgres, "-m", "fast", "stop")
    lines: list[str] = []
    tokens = ""
    for started in range(2):
        with subprocess.Popen(
            [str(START), "--workers", "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=given
        ) as process:  # fmt: skip
            assert process.stdout is not None
            clock = threading.Timer(100, process.kill)
            clock.start()
            lines = []
            for line in process.stdout:
                lines.append(line)
                if "waiting for the store" in line and not started:
                    words = f"-k {postgres.folder} -c listen_addresses=''"
                    control(postgres, "-l", str(postgres.folder / "log"), "-o", words, "start")
                if "forerun answers on" in line:
                    break
            assert lines, "it ended without a word"
            url = lines[-1].partition("http://")[2].split()[0]
            token = (state / "first-token").read_text().strip()
            with Client(url, token) as client:
                assert client.runs()["store"].startswith("postgresql")
                assert client.ask("version")["versions"]["forerun"]
            process.terminate()
            process.wait(20)
            clock.cancel()
        text = "".join(lines)
        assert ("waiting for the store" in text, "a first token" in text) == (
            not started,
            not started,
        )
        assert token.split("_")[2] not in text
        assert not tokens or tokens == (state / "tokens.json").read_text()
        tokens = (state / "tokens.json").read_text()
    assert {
        path.stat().st_mode & 0o077 for path in (state / "first-token", state / "tokens.json")
    } == {0}


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"id": "echo 0"}, 2, "does not run as root"),
        ({"FORERUN_STATE": "/nonexistent"}, 2, "cannot be written"),
        ({"FORERUN_STORE": "postgresql://forerun@127.0.0.1:1/none", "FORERUN_WAIT_SECONDS": "0"}, 3, "no store after 0 s"),
    ],
)  # fmt: skip
def test_it_says_why_it_does_not_start(
    variables: dict[str, str], tmp_path: Path, change: dict[str, str], code: int, words: str
) -> None:
    if "id" in change:
        stub(tmp_path / "bin", "id", change.pop("id"))
    done = subprocess.run(
        [str(START)], capture_output=True, text=True, check=False, env={**variables, **change}, timeout=100
    )  # fmt: skip
    assert (done.returncode, words in done.stderr) == (code, True), done.stderr
    assert not list((tmp_path / "state").iterdir())


@pytest.mark.parametrize(
    ("need", "words"),
    [
        ("shellcheck", ["shellcheck", "deploy/start.sh"]),
        ("hadolint", ["hadolint", "deploy/Containerfile"]),
        ("check-jsonschema", ["check-jsonschema", "--builtin-schema", "vendor.compose-spec", "deploy/compose.yaml"]),
    ],
)  # fmt: skip
def test_its_files_pass_their_linters(need: str, words: list[str]) -> None:
    command = shutil.which(words[0], path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    require(need, command is not None, f"pip install {need}")
    done = subprocess.run(
        [str(command), *words[1:]], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_secret_stands_in_them() -> None:
    text = "".join(
        (ROOT / "deploy" / name).read_text() for name in ("compose.yaml", "Containerfile")
    )
    assert "POSTGRES_PASSWORD:" not in text
    assert "USER 10001" in text
