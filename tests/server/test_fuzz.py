"""Requests that schemathesis makes of the OpenAPI document, and of what it forbids, to a service of its own process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import Client

pytestmark = pytest.mark.skipif(
    find_spec("schemathesis") is None, reason="pip install schemathesis (it is in the extra dev)"
)
# A body may be of the schema's form and name no device. A POST without a type of content is refused before its path
# is looked at, since a page could send it.
OUT = "positive_data_acceptance,unsupported_method"


@contextmanager
def service(folder: Path) -> Iterator[tuple[int, int]]:
    """Yield the port and the process of a service whose standard error stays empty."""
    command = [sys.executable, "-u", "-m", "forerun", "serve", "--port", "0", "--store", str(folder / "runs.db"),
               "--cache", "1000000", "--audit", str(folder / "audit.jsonl")]  # fmt: skip
    with (folder / "log").open("wb") as log, subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=log, text=True
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            yield int(re.findall(r":(\d+)/", process.stdout.readline())[0]), process.pid
        finally:
            process.terminate()
    assert "Traceback" not in (folder / "log").read_text()


def fuzz(port: int, folder: Path, examples: int, phases: str, seed: int) -> None:
    url = f"http://127.0.0.1:{port}/v1/openapi.json"
    paths = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()", "run", url,
         "--max-examples", str(examples), "--request-timeout", "150", "--exclude-checks", OUT, "--phases", phases,
         "--seed", str(seed), "--generation-database", "none"],
        capture_output=True, text=True, cwd=folder, env={**os.environ, "PYTHONPATH": paths}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def memory(process: int) -> float:
    """Return what a process holds in memory, in MB."""
    lines = Path(f"/proc/{process}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", lines)[0]) / 1e3


def test_every_route_answers_as_it_is_described(tmp_path: Path) -> None:
    with service(tmp_path) as (port, _):
        fuzz(port, tmp_path, 10, "examples,fuzzing", 1)
        assert Client(port).get("/v1/ready").status == 200


@pytest.mark.slow
def test_many_requests_of_every_kind_leave_no_memory_behind(tmp_path: Path) -> None:
    held: list[float] = []
    with service(tmp_path) as (port, process):
        for seed in range(6):
            fuzz(port, tmp_path, 100, "examples,coverage,fuzzing", seed)
            held.append(memory(process))
    assert held[-1] < held[2] * 1.1 + 10, held


def test_another_method_is_answered_with_those_that_there_are(client: Client) -> None:
    for path, methods in (
        ("/v1/workloads", "GET, POST"),
        ("/v1/runs", "GET, POST"),
        ("/v1/version", "GET"),
        ("/v1/predict", "POST"),
    ):
        reply = client.request("DELETE", path)
        assert (reply.status, reply.headers["allow"]) == (405, methods)


def test_the_document_has_no_reference_that_leads_nowhere(client: Client) -> None:
    found = client.get("/v1/openapi.json").json

    def look(part: Any) -> None:
        if isinstance(part, dict):
            if isinstance(name := part.get("$ref"), str):
                assert name.startswith("#/components/schemas/")
                assert name.rpartition("/")[2] in found["components"]["schemas"]
            part = list(part.values())
        for inner in part if isinstance(part, list) else ():
            look(inner)

    look(found)
