"""Replicas on a Ray cluster answer what the service answers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import forerun
from forerun.errors import RequestError, UnknownNameError
from forerun.server.ray_serve import app
from forerun.server.tokens import create_token
from tests.needs import require
from tests.server.conftest import JOB

SCRIPT = """
import json, os, sys
import ray
from ray import serve
from forerun.client import Client
from forerun.server.ray_serve import app

folder, port, token = sys.argv[1], int(sys.argv[2]), os.environ["TOKEN"]
ray.init(num_cpus=2, include_dashboard=False, logging_level="error")
serve.start(http_options={"host": "127.0.0.1", "port": port})
serve.run(app({"tokens": folder + "/tokens.json", "store": folder + "/runs.db", "replicas": "2"}), name="forerun")
states = serve.status().applications["forerun"].deployments["forerun"].replica_states
with Client(f"127.0.0.1:{port}", token) as client:
    answers = [client.predict("resnet50", "1x8xa100-sxm-80gb", framework="pytorch").to_json() for _ in range(8)]
    try:
        client.predict("resnet51", "1x8xa100-sxm-80gb")
    except Exception as error:
        refused = str(error)
with Client(f"127.0.0.1:{port}") as client:
    try:
        client.ask("version")
    except Exception as error:
        stranger = str(error)
serve.shutdown()
ray.shutdown()
print("FOUND " + json.dumps([states, answers, refused, stranger]))
"""


@pytest.mark.parametrize("arguments", [{}, {"local": "no"}, {"tokens": ""}])
def test_a_cluster_is_not_open_to_all(arguments: dict[str, str]) -> None:
    with pytest.raises(RequestError, match="give tokens=FILE"):
        app(arguments)


def test_an_argument_that_there_is_not_is_named() -> None:
    with pytest.raises(UnknownNameError, match="did you mean replicas"):
        app({"replica": "2"})


@pytest.mark.slow
def test_two_replicas_answer_as_the_functions_do(tmp_path: Path) -> None:
    require("ray", find_spec("grpc_reflection") is not None, "pip install 'forerun[ray]'")
    token = create_token(tmp_path / "tokens.json", ["predict", "read"], 1)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), str(port)], capture_output=True, text=True, check=False,
        env={**os.environ, "RAY_AUTH_MODE": "disabled", "TOKEN": token}, timeout=300,
    )  # fmt: skip
    assert "FOUND " in done.stdout, done.stderr[-3000:]
    states, answers, refused, stranger = json.loads(
        done.stdout.partition("FOUND ")[2].splitlines()[0]
    )
    assert states == {"RUNNING": 2}
    own = forerun.predict(**JOB).to_json()
    assert all(answer == json.loads(json.dumps(own)) for answer in answers)
    assert "did you mean resnet50" in refused
    assert "no token" in stranger
