"""An artifact keeps its content's hash and what made it; changed content is never given out."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from forerun.errors import RequestError, UnknownNameError
from forerun.store.sql_store import SqlStore

BODY = b"\x00model\xff" * 100


def test_content_comes_back_with_what_made_it(store: SqlStore) -> None:
    made = store.artifacts.put(
        "mlp.json", BODY, kind="model", runs=["k1", "k2"], seed=7, commit="abc", command="fit"
    )
    assert made.digest == hashlib.sha256(BODY).hexdigest()
    assert store.artifacts.read("mlp.json") == store.artifacts.read(made.digest[:8]) == BODY
    found = store.artifacts.get("mlp.json")
    assert found == made
    assert (found.kind, found.seed, found.commit, found.command) == ("model", 7, "abc", "fit")
    assert (found.size_bytes, set(found.runs), found.path) == (len(BODY), {"k1", "k2"}, "")


def test_the_newest_of_a_name_is_meant_and_the_same_is_kept_once(store: SqlStore) -> None:
    for body in ("old", "new", "new"):
        store.artifacts.put("plot", body, kind="plot")
    store.artifacts.put("note", "text")
    assert store.artifacts.read("plot") == b"new"
    assert [a.size_bytes for a in store.artifacts.every("plot")] == [3, 3]
    assert len(store.artifacts.every()) == 3


def test_a_file_may_stay_where_it_is(store: SqlStore, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_bytes(BODY)
    made = store.artifacts.put("report", file, keep=False)
    assert made.path == str(file)
    assert store.artifacts.read("report") == BODY
    file.write_bytes(b"other")
    with pytest.raises(RequestError, match="has changed since it was stored"):
        store.artifacts.read("report")
    file.unlink()
    with pytest.raises(RequestError, match="no such file"):
        store.artifacts.read("report")


def test_what_is_not_there_is_told(store: SqlStore, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="no such artifact"):
        store.artifacts.get("plot")
    with pytest.raises(RequestError, match="no such file"):
        store.artifacts.put("x", tmp_path / "absent")
    with pytest.raises(RequestError, match="it is no file"):
        store.artifacts.put("x", b"bytes", keep=False)
    with pytest.raises(RequestError, match="at most 64 bits"):
        store.artifacts.put("x", b"bytes", seed=2**64)
