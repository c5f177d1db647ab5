"""Writers at once, a killed one, a locked store, a full disk: no confirmed run is ever lost."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from forerun.errors import RequestError
from forerun.store import open_store
from forerun.store.sql_store import SqlStore
from forerun.tables import Table
from tests.needs import require_root
from tests.store.postgres import Server

# A process that adds runs and prints a key when the store has confirmed it.
WRITER = """
import sys
from forerun.store import open_store
from forerun.tables import Table

place, name, calls, rows = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with open_store(place) as store:
    for call in range(calls):
        told = [f"{name}-{call}"] * rows
        table = Table.from_columns({"workload": told, "own": [str(i) for i in range(rows)]})
        print(*store.add_table(table).keys, flush=True)
"""


def writer(place: str, name: str, calls: int, rows: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, place, name, str(calls), str(rows)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_several_processes_write_at_once_and_none_is_lost(place: str) -> None:
    processes = [writer(place, f"w{i}", 20, 5) for i in range(3)]
    keys = set()
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        keys |= set(out.split())
    assert len(keys) == 300
    with open_store(place) as store:
        assert set(store.table(provenance=True).texts("run_key")) == keys


def test_several_processes_may_make_the_store_at_once(tmp_path: Path) -> None:
    place = str(tmp_path / "new.db")
    processes = [writer(place, f"w{i}", 1, 1) for i in range(3)]
    for process in processes:
        assert process.communicate(timeout=120)[1] == ""
    with open_store(place) as store:
        assert store.count() == 3


def test_threads_share_one_store(store: SqlStore) -> None:
    def add(i: int) -> None:
        for j in range(5):
            store.add_table(Table.from_columns({"workload": [f"{i}-{j}"]}))
            store.runs(workload=f"{i}-{j}")

    threads = [threading.Thread(target=add, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.count() == 20


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_child_opens_its_own_connections(store: SqlStore) -> None:
    store.add_table(Table.from_columns({"workload": ["parent"]}))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            store.add_table(Table.from_columns({"workload": ["child"]}))
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    store.add_table(Table.from_columns({"workload": ["parent again"]}))
    assert sorted(store.table().texts("workload")) == ["child", "parent", "parent again"]


def test_a_killed_writer_leaves_whole_calls_only(place: str) -> None:
    """Killed by signal 9 in the midst of its calls, at several moments."""
    confirmed: set[str] = set()
    for round_, wait in enumerate((0.0, 0.04)):
        process = writer(place, f"r{round_}", 1000, 50)
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
        rest, _ = process.communicate(timeout=60)
        # The last line may have been cut off; every whole one was confirmed.
        whole = [*lines, *rest.split("\n")[:-1]]
        confirmed |= {key for line in whole for key in line.split()}
    with open_store(place) as store:
        table = store.table(provenance=True)
        assert confirmed <= set(table.texts("run_key")), "a confirmed run is gone"
        calls, counts = np.unique(table.texts("workload").astype(str), return_counts=True)
        assert len(calls) >= 4
        assert set(counts) == {50}, "half of a call was kept"
        store.add_table(Table.from_columns({"workload": ["after"]}))


HOLDER = """
import sys, time
from forerun.store import open_store
from forerun.tables import Table

with open_store(sys.argv[1]) as store, store._database.writing() as connection:
    from forerun.store.writing import add_rows, origins_of
    table = Table.from_columns({"workload": ["held"] * 3000, "own": [str(i) for i in range(3000)]})
    table, origins = origins_of(table, [f"k{i}" for i in range(3000)])
    add_rows(connection, table, None, origins)
    print("held", flush=True)
    time.sleep(600)
"""


@contextmanager
def holder(place: str) -> Iterator[subprocess.Popen[str]]:
    """Yield a process in the midst of a transaction, its rows written and not confirmed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, place], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_store_that_another_writer_holds_is_told_and_freed_by_its_end(place: str) -> None:
    with open_store(place, wait_seconds=0.3) as store:
        store.add_table(Table.from_columns({"workload": ["before"]}))
        with holder(place) as process:
            assert store.count() == 1, "a reader waits for a writer"
            clash = Table.from_columns({"workload": ["mine"]})
            with pytest.raises(
                RequestError, match=r"locked it for more than 0.3 s; nothing of this"
            ):
                store.add_table(clash, keys=["k7"])
            process.kill()  # in mid-write: the power is cut
            process.wait()
        # PostgreSQL's server notices in its own time; SQLite's lock ended with the process.
        with open_store(place, wait_seconds=20) as patient:
            assert patient.add_table(clash, keys=["k7"]).new == 1
        assert sorted(store.table().texts("workload")) == ["before", "mine"]


def test_a_lock_that_ends_in_time_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with open_store(str(path), wait_seconds=20) as store:
        other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        timer = threading.Timer(0.3, lambda: other.execute("ROLLBACK"))
        timer.start()
        assert store.add_table(Table.from_columns({"workload": ["a"]})).new == 1
        timer.join()
        other.close()


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """Yield a folder on a disk of its own."""
    require_root()
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    subprocess.run(mount, check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(path: Path) -> None:
    """Write a file until not a byte more fits on its disk."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while True:
            os.write(file, b"x" * 4096)
    os.close(file)


def rows(n: int, name: str) -> Table:
    return Table.from_columns({"workload": [name] * n, "own": [f"{i:0100}x" for i in range(n)]})


def test_a_full_disk_is_told_and_what_was_stored_is_intact(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 3_000_000) as disk:
        place = str(disk / "runs.db")
        with open_store(place) as store:
            store.add_table(rows(500, "before"))
        with open_store(place) as store:  # anew: the last one to close gave back its log's space
            assert store.count() == 500
            fill(disk / "filler")
            with pytest.raises(RequestError, match=r"the disk is full; nothing of this call.*free"):
                store.add_table(rows(300, "no room"))
            assert store.count(workload="before") == len(store.table()) == 500
        (disk / "filler").unlink()
        with open_store(place) as store:
            with pytest.raises(RequestError, match="the disk is full"):
                store.add_table(rows(20_000, "too many"))
            assert store.count() == 500
        with open_store(place) as store:  # the log of what failed fills the disk, and is used again
            store.add_table(rows(300, "after"))
            assert store.count(workload="before") == 500
            assert store.count() == 800
            with store._database.reading() as connection:
                checked = connection.exec_driver_sql("PRAGMA integrity_check").scalar()
        assert checked == "ok"


def test_a_new_store_on_a_full_disk_is_told(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 100_000) as disk:
        fill(disk / "filler")
        with pytest.raises(RequestError, match="disk"):
            open_store(str(disk / "runs.db"))


def test_a_text_beyond_an_index_of_the_server_is_told(postgres: Server) -> None:
    with open_store(postgres.empty_place()) as store:
        noise = np.random.default_rng(0).integers(33, 126, 9000).astype(np.uint8).tobytes().decode()
        with pytest.raises(RequestError, match="too long for an index of the server"):
            store.add_table(Table.from_columns({"workload": [noise]}))
        assert store.count() == 0
