"""Files of workloads that are sent: they are read in a process that may open nothing, and asked by name."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forerun.advisor import Advisor
from forerun.errors import RequestError
from forerun.server import uploads
from forerun.server.app import make_app
from forerun.server.front import Front
from forerun.server.limits import ServerLimits
from forerun.server.questions import Questions
from forerun.settings import load_settings
from tests.server.conftest import Client, Reply, serving
from tests.server.test_refusals import problem

CLUSTER = {"cluster": "1x8xa100-sxm-80gb", "framework": "pytorch", "steps": 10}
CONFIG = {"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8,
          "intermediate_size": 1024, "vocab_size": 1000}  # fmt: skip
SPEC = "transformer: {layers: 2, hidden: 64, heads: 4, vocab: 100, seq_len: 32}\n"
JSON, YAML, ONNX = "application/json", "application/yaml", "application/octet-stream"


@pytest.fixture(scope="module")
def client(advisor: Advisor, tmp_path_factory: Any) -> Iterator[Client]:
    limits, place = ServerLimits(), tmp_path_factory.mktemp("store") / "runs.db"
    with serving(
        Front(make_app(Questions(advisor, load_settings(), str(place)), limits), limits)
    ) as one:
        yield one


def send(client: Client, kind: str, body: Any, query: str = "") -> Reply:
    return client.request("POST", f"/v1/workloads{query}", body, Content_Type=kind)


def network(location: str = "") -> bytes:
    """Return a product of two matrices as ONNX; location: where its weights are said to lie."""
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    shape = [64, 2048]
    weights = helper.make_tensor("w", 1, shape, b"\0" * (64 * 2048 * 4), raw=True)
    if location:
        weights.ClearField("raw_data")
        weights.data_location = onnx.TensorProto.EXTERNAL
        weights.external_data.add(key="location", value=location)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
        [helper.make_tensor_value_info("x", 1, [8, 64])], [helper.make_tensor_value_info("y", 1, [8, 2048])], [weights],
    )  # fmt: skip
    return bytes(helper.make_model(graph).SerializeToString())


def test_each_form_is_kept_and_asked_by_its_name(client: Client) -> None:
    for kind, body in ((JSON, json.dumps(CONFIG)), (YAML, SPEC), (ONNX, network())):
        reply = send(client, kind, body)
        assert reply.status == 200, reply.body
        name = reply.json["upload"]
        assert name.startswith("upload:")
        again = send(client, kind, body)
        assert again.json["upload"] == name
        got = client.get(f"/v1/workloads/{name}")
        assert got.body == reply.body
        assert client.get(f"/v1/workloads/{name}", If_None_Match=got.headers["etag"]).status == 304
        answer = client.post("/v1/predict", {"workload": name, **CLUSTER})
        assert answer.status == 200, answer.body
        params = sum(
            op.get("params", 0) * op.get("repeat", 1)
            for op in reply.json["workload"]["graph"]["ops"]
        )
        assert answer.json["workload"]["params"] == params > 0


def test_an_upload_is_what_the_same_fields_in_a_question_are(client: Client) -> None:
    name = send(client, JSON, json.dumps(CONFIG), "?seq_len=1024").json["upload"]
    sent = client.post("/v1/predict", {"workload": name, **CLUSTER}).json
    asked = {"workload": {"config": CONFIG}, "seq_len": 1024, **CLUSTER}
    assert sent == client.post("/v1/predict", asked).json


def test_a_name_and_sizes_are_given_in_the_query(client: Client) -> None:
    named = send(client, YAML, SPEC, "?name=my-net&precision=fp16").json["workload"]
    assert (named["name"], named["precision"]) == ("my-net", "fp16")
    for query, word in (("?seq_len=0", "seq_len"), ("?seq_len=x", "seq_len"), ("?name=%3Cscript%3E", "name"),
                        ("?precision=fp99", "precision"), ("?name=..%2F..%2Fx", "name"), ("?optimizer=x", "optimizer")):  # fmt: skip
        assert word in problem(send(client, JSON, json.dumps(CONFIG), query), 400)


def bomb(width: int = 9, depth: int = 12) -> str:
    """Return YAML whose aliases make billions of parts of few lines."""
    lines = [f"a0: &a0 [{', '.join(['x'] * width)}]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * width)}]" for i in range(1, depth)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("kind", "body", "word"),
    [
        (JSON, b"", "cannot be read"), (JSON, b"{", "JSONDecodeError"), (JSON, b"[1]", "object"), (JSON, b'{"a": NaN, "b": Infinity}', "hidden_size"),
        (JSON, b"[" * 200_000, "cannot be read"), (JSON, b'{"hidden_size": 1' + b"0" * 5000 + b"}", "cannot be read"),
        (JSON, b'{"hidden_size": 1e999}', "hidden_size"), (JSON, b"\xff\xfe", "cannot be read"), (JSON, b"\0" * 1000, "cannot be read"),
        (YAML, b"a: [1", "YAML"), (YAML, bomb(), "aliases"), (YAML, b"!!python/object/apply:os.system [id]", "YAML"),
        (YAML, b"&a [*a]", "mapping"), (YAML, b"[" * 5_000, "deep"), (YAML, b"totals: {params: 1, gmacs: .inf}", "finite"),
        (YAML, b"x: 1", "transformer"), (YAML, b"name: a\nname: b", "already"), (YAML, b"- !!binary x", "YAML"),
        (YAML, b"transformer: {layers: 1000000000000000, hidden: 8, heads: 8, vocab: 8, seq_len: 8}", "layers"),
        (ONNX, b"", "ONNX"), (ONNX, b"\x80\x04\x95\x1c\x00.", "ONNX"), (ONNX, b"PK\x03\x04" + b"\0" * 100, "ONNX"),
        (ONNX, b"\x3a\xff\xff\xff\xff\x07" + b"\x0a" * 5000, "ONNX"), (ONNX, b"\x3b" * 200_000, "ONNX"),
    ],
)  # fmt: skip
def test_a_hostile_file_is_a_problem(kind: str, body: Any, word: str) -> None:
    content, start = body.encode() if isinstance(body, str) else body, time.monotonic()
    with pytest.raises(RequestError, match=word):
        uploads._read(uploads.FORMS[kind], content)
    assert time.monotonic() - start < 20


def test_a_hostile_file_reaches_its_sender_as_a_problem(client: Client) -> None:
    for kind, body, word in (
        (JSON, b"\0" * 1000, "cannot be read"),
        (YAML, bomb(), "aliases"),
        (ONNX, b"PK\x03\x04", "ONNX"),
    ):
        assert word in problem(send(client, kind, body), 400)


def test_only_known_forms_are_read(client: Client) -> None:
    for kind in ("text/plain", "", "application/x-pickle", "multipart/form-data; boundary=x"):
        problem(send(client, kind, SPEC), 415)


def test_no_weights_are_looked_for_where_a_file_says_they_lie(
    client: Client, tmp_path: Path
) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"\0" * 64 * 2048 * 4)
    sent = [send(client, ONNX, network(place)).json for place in (str(file), "../../nowhere", "")]
    assert sent[0]["upload"] == sent[1]["upload"] == sent[2]["upload"]


def test_a_name_that_nobody_uploaded_is_a_problem(client: Client) -> None:
    name = f"upload:{'0' * 32}"
    problem(client.get(f"/v1/workloads/{name}"), 404)
    assert "upload" in problem(client.post("/v1/predict", {"workload": name, **CLUSTER}), 400)
    for wrong in ("upload:", "upload:x", f"upload:{'0' * 31}/", f"upload:{'0' * 32}\n"):
        problem(client.post("/v1/predict", {"workload": wrong, **CLUSTER}), 400)


ATTACKS = ("open('/etc/passwd')", "open('/tmp/forerun-was-here', 'w')", "__import__('socket').socket()",
           "bytearray(8 << 30)", "(print('x' * (80 << 20), flush=True))")  # fmt: skip


def test_what_reads_a_file_has_no_files_network_or_memory(tmp_path: Path) -> None:
    """The process is as a file that takes it over would find it; the last attack fills its output."""
    code = f"""
import socket, sys
from forerun.server import uploads
uploads._confine()
for attack in {ATTACKS!r}:
    try:
        eval(attack)
        print("done", attack, file=sys.stderr)
    except (OSError, MemoryError) as error:
        print("refused", type(error).__name__, file=sys.stderr)
"""
    with (tmp_path / "out").open("wb") as file:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdout=file,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert [line.split()[0] for line in done.stderr.splitlines()[: len(ATTACKS)]] == [
        "refused"
    ] * len(ATTACKS)
    assert (tmp_path / "out").stat().st_size <= 64 << 20


def test_a_reader_that_runs_on_is_ended(client: Client, monkeypatch: Any) -> None:
    monkeypatch.setattr(uploads, "_WALL_SECONDS", 0.05)
    assert "smaller" in problem(send(client, YAML, SPEC), 400)
    assert client.get("/v1/health").status == 200


def test_uploads_are_listed_newest_first_and_the_oldest_make_room(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forerun.server.questions._KEPT_UPLOADS", 2)
    names = [
        send(client, YAML, SPEC.replace("hidden: 64", f"hidden: {64 * n}")).json["upload"]
        for n in (3, 4, 5)
    ]
    assert [row["upload"] for row in client.get("/v1/uploads").json["uploads"]] == names[:0:-1]
    assert client.post("/v1/predict", {"workload": names[2], **CLUSTER}).status == 200
    unknown = {"workload": f"upload:{'0' * 32}", **CLUSTER}
    assert "POST it to /v1/workloads" in problem(client.post("/v1/predict", unknown), 400)
    assert "no such upload" in problem(
        client.post("/v1/predict", {"workload": "upload:abc", **CLUSTER}), 400
    )
