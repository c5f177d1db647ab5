"""What the service needs fails, and comes back: nothing is lost or half written, and it goes on by itself."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from forerun.advisor import Advisor
from forerun.errors import RequestError
from forerun.server import uploads
from forerun.server.app import make_app
from forerun.server.front import AuditLog, Front
from forerun.server.limits import ServerLimits
from forerun.server.questions import Questions
from forerun.settings import load_settings
from forerun.store import open_store
from tests.needs import require_root
from tests.server.conftest import JOB, Client, serving
from tests.server.test_refusals import problem
from tests.store import postgres


def runs(name: str, n: int = 3) -> dict[str, Any]:
    """Return the body that keeps n runs of a name of one's own."""
    row = {"workload": "resnet50", "device": "t4", "step_time_s": 0.2, "notes": name}
    return {"rows": [{**row, "global_batch": i + 1} for i in range(n)]}


@contextmanager
def service(advisor: Advisor, place: str, audit: AuditLog | None = None) -> Iterator[Client]:
    limits = ServerLimits()
    app = make_app(Questions(advisor, load_settings(), place), limits)
    with serving(Front(app, limits, None, audit)) as client:
        yield client


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder on a file system of its own, of a megabyte."""
    require_root()
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def filled(folder: Path) -> Iterator[None]:
    """Within it a file system has no byte left."""
    try:
        with (folder / "ballast").open("wb", buffering=0) as file:
            while file.write(b"\0" * 4096) == 4096:
                pass
    except OSError:
        pass
    yield
    (folder / "ballast").unlink()


def test_a_full_disk_under_the_store_loses_nothing(advisor: Advisor, small_disk: Path) -> None:
    with service(advisor, str(small_disk / "runs.db")) as client:
        assert client.post("/v1/runs", runs("before")).status == 200
        with filled(small_disk):
            reply = client.post("/v1/runs", runs("during", 200))
            assert "full" in problem(reply, 503)
            assert reply.headers["retry-after"]
            assert client.post("/v1/predict", JOB).status == 200
            assert client.get("/v1/runs").json["count"] == 3
        assert client.post("/v1/runs", runs("after")).status == 200
        notes = {row["notes"] for row in client.get("/v1/runs?limit=1000").json["runs"]}
        assert notes == {"before", "after"}


def test_a_full_disk_under_the_audit_log_keeps_whole_lines(
    advisor: Advisor, small_disk: Path
) -> None:
    file = small_disk / "audit.jsonl"
    with service(advisor, "", AuditLog(file, model="analytic", prices="x" * 900)) as client:
        assert client.post("/v1/predict", JOB).status == 200
        with filled(small_disk):
            met = [
                client.post("/v1/predict", JOB) for _ in range(8)
            ]  # the last page has room for some
            assert "audit" in problem(met[-1], 503)
        assert client.post("/v1/predict", JOB).status == 200
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(lines) == 2 + sum(reply.status == 200 for reply in met)


def test_an_audit_log_that_was_moved_away_is_begun_anew(advisor: Advisor, tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    with service(advisor, "", AuditLog(file)) as client:
        client.post("/v1/predict", JOB)
        file.rename(tmp_path / "audit.1")
        client.post("/v1/predict", JOB)
    assert (
        len(file.read_text().splitlines())
        == len((tmp_path / "audit.1").read_text().splitlines())
        == 1
    )


def test_a_store_that_is_removed_takes_no_run_and_goes_on_when_it_is_back(
    advisor: Advisor, tmp_path: Path
) -> None:
    place, away = tmp_path / "runs.db", tmp_path / "away"
    with service(advisor, str(place)) as client:
        assert client.post("/v1/runs", runs("before")).status == 200
        with open_store(str(place)) as store:
            assert store.count() == 3
        away.mkdir()
        for file in tmp_path.glob("runs.db*"):
            file.rename(away / file.name)
        assert "removed" in problem(client.post("/v1/runs", runs("during")), 503)
        problem(client.get("/v1/runs"), 503)
        problem(client.get("/v1/ready"), 503)
        assert client.get("/v1/health").status == 200
        for file in away.iterdir():
            file.rename(tmp_path / file.name)
        assert client.get("/v1/ready").status == 200
        assert client.post("/v1/runs", runs("after")).json["files"][0]["new"] == 3
        assert client.get("/v1/runs").json["count"] == 6


def test_a_store_that_is_replaced_is_the_one_that_answers(advisor: Advisor, tmp_path: Path) -> None:
    place, other = tmp_path / "runs.db", tmp_path / "other.db"
    with open_store(str(other)):
        pass
    with service(advisor, str(place)) as client:
        client.post("/v1/runs", runs("old"))
        for file in tmp_path.glob("runs.db*"):
            file.unlink()
        other.rename(place)
        assert client.get("/v1/runs").json["count"] == 0
        assert client.post("/v1/runs", runs("new", 2)).status == 200
    with open_store(str(place)) as store:
        assert store.count() == 2


def test_a_store_that_others_lock_answers_later(
    advisor: Advisor, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("forerun.server.questions._STORE_SECONDS", 0.3)
    place = tmp_path / "runs.db"
    with service(advisor, str(place)) as client:
        client.post("/v1/runs", runs("before"))
        lock = sqlite3.connect(place, isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        assert "locked" in problem(client.post("/v1/runs", runs("during")), 503)
        assert client.get("/v1/runs").json["count"] == 3  # readers do not wait
        lock.execute("ROLLBACK")
        lock.close()
        assert client.post("/v1/runs", runs("after")).status == 200
        assert client.get("/v1/runs").json["count"] == 6


@pytest.mark.parametrize(
    "content", [b"", b"SQLite format 3\0" + b"x" * 5000, b"not a database" * 500]
)
def test_a_store_that_cannot_be_opened_is_tried_again(
    advisor: Advisor, tmp_path: Path, content: bytes
) -> None:
    place = tmp_path / "folder" / "runs.db"
    if content:
        place.parent.mkdir()
        place.write_bytes(content)
    with service(advisor, str(place)) as client:
        problem(client.get("/v1/ready"), 503)
        problem(client.post("/v1/runs", runs("during")), 503)
        place.parent.mkdir(exist_ok=True)
        place.unlink(missing_ok=True)
        assert client.post("/v1/runs", runs("after")).status == 200
        assert client.get("/v1/ready").status == 200


def test_postgresql_may_go_away_and_return(advisor: Advisor) -> None:
    with postgres.server() as server, service(advisor, server.new_place()) as client:
        assert client.post("/v1/runs", runs("before")).status == 200
        with server.stopped():
            for _ in range(2):
                assert "does not answer" in problem(client.post("/v1/runs", runs("during")), 503)
                problem(client.get("/v1/ready"), 503)
            assert client.post("/v1/predict", JOB).status == 200
        assert client.get("/v1/ready").status == 200
        assert client.post("/v1/runs", runs("after")).status == 200
        notes = {row["notes"] for row in client.get("/v1/runs?limit=1000").json["runs"]}
        assert notes == {"before", "after"}


def test_a_killed_reader_of_an_upload_is_a_problem(
    advisor: Advisor, tmp_path: Path, monkeypatch: Any
) -> None:
    def killed(command: Any, **given: Any) -> Any:
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        os.kill(process.pid, signal.SIGKILL)
        return subprocess.CompletedProcess(command, process.wait())

    with service(advisor, str(tmp_path / "r.db")) as client:
        monkeypatch.setattr(uploads.subprocess, "run", killed)
        problem(
            client.request("POST", "/v1/workloads", "x: 1", Content_Type="application/yaml"), 400
        )
        assert client.get("/v1/health").status == 200


def test_a_question_that_breaks_leaves_the_threads_at_work(
    advisor: Advisor, tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    def broken(*_: Any) -> bytes:
        raise SystemExit(3)

    with service(advisor, str(tmp_path / "r.db")) as client:
        monkeypatch.setattr(Questions, "runs", broken)
        for _ in range(5):
            assert client.get("/v1/runs").status == 500
        assert client.post("/v1/predict", JOB).status == 200


def test_a_service_that_is_killed_has_kept_what_it_confirmed(tmp_path: Path) -> None:
    """Killed by signal 9 while runs are posted; each post is there whole or not at all."""
    place, confirmed = str(tmp_path / "runs.db"), []
    command = [sys.executable, "-u", "-m", "forerun", "serve", "--port", "0", "--store", place]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(re.findall(r":(\d+)/", process.stdout.readline())[0])

        def post(worker: int) -> None:
            for i in range(10_000):
                try:
                    reply = Client(port).post("/v1/runs", runs(f"{worker}-{i}", 20))
                except OSError:
                    return
                if reply.status == 200:
                    confirmed.append(f"{worker}-{i}")

        threads = [threading.Thread(target=post, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        while len(confirmed) < 6:
            assert any(thread.is_alive() for thread in threads)
        process.kill()
        for thread in threads:
            thread.join(30)
    with open_store(place) as store:
        notes = store.table().texts("notes").tolist()
    counts = {name: notes.count(name) for name in set(notes)}
    assert set(confirmed) <= set(counts)
    assert set(counts.values()) == {20}


def without_override() -> None:
    """Leave a process of root the rights that file modes give it: no CAP_DAC_OVERRIDE and _READ_SEARCH."""
    drop_from_bounding_set = 24
    for capability in (1, 2):
        assert ctypes.CDLL(None).prctl(drop_from_bounding_set, capability, 0, 0, 0) == 0


def test_a_store_that_it_may_not_open_costs_no_answer(tmp_path: Path) -> None:
    """Served by a process that the modes of the store's folder shut out, until it is opened to all."""
    require_root()
    folder, nobody = tmp_path / "kept", 65534
    folder.mkdir(0o700)
    os.chown(folder, nobody, nobody)
    words = ("serve", "--port", "0", "--workers", "0", "--store", str(folder / "runs.db"))
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "forerun", *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, preexec_fn=without_override,  # noqa: PLW1509 (it starts no thread)
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            client = Client(int(re.findall(r":(\d+)/", process.stdout.readline())[0]))
            assert client.post("/v1/predict", JOB).status == 200
            assert client.get("/v1/health").status == 200
            assert "runs.db" in problem(client.get("/v1/ready"), 503)
            problem(client.post("/v1/runs", runs("first")), 503)
            folder.chmod(0o777)
            assert client.get("/v1/ready").status == 200
            assert client.post("/v1/runs", runs("first")).json["files"][0]["new"] == 3
        finally:
            process.terminate()


def test_an_audit_log_that_cannot_be_opened_starts_nothing(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="audit log"):
        AuditLog(tmp_path / "none" / "audit.jsonl")
