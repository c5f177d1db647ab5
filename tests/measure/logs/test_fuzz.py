"""Fuzz: whatever stands in a log, it is read or refused in words; nothing else happens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from forerun.errors import ForerunError
from forerun.measure.logs import JobLength, LogSeries, eta_of, read_logs, runs_of
from tests.measure.logs import made

# A failure is shown as it was drawn: shrinking takes minutes, and the numbers are few.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
T = TypeVar("T")
QUIET = settings(
    max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None,
    phases=PHASES, report_multiple_bugs=False,
)  # fmt: skip
FRAGMENTS = st.sampled_from([
    "step", "10", "/", "1000", "loss", "=", ":", "nan", "1e400", "-5", "time", "ms", "s", " ", "%|",
    "[00:10<00:20, 4it/s]", "Epoch", "{'loss': 1.0, 'epoch': 0.1}", "{'", "}", "iteration", "|", "\r",
    "2026-01-01 10:00:00", "9999-99-99 99:99:99", "\x1b[31m", "Traceback (most recent call last):",
    "CUDA out of memory", "resuming from step 99999999999999999999", "\u0663", "elapsed time per"
    " iteration (ms): 0", "1,000", "eval", "saved",
])  # fmt: skip
NUMBERS = st.one_of(st.floats(), st.integers(-5, 50).map(float))


def attempt(path: Path) -> None:
    """Read a path, make its rows and its ETA; only an error in three parts may come of it."""
    for one in in_words(lambda: read_logs(path)) or ():
        in_words(lambda one=one: runs_of(one))
        in_words(lambda one=one: eta_of(one, JobLength(steps=1e6)))


def in_words(call: Callable[[], T]) -> T | None:
    """Return what a call returns, None where it is refused in words; any other error passes."""
    refused: ForerunError
    try:
        return call()
    except ForerunError as error:
        refused = error
    assert all((refused.asked, refused.found, refused.next_step))
    return None


@given(data=st.binary(max_size=600))
@QUIET
def test_bytes(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(data)
    attempt(path)


@given(lines=st.lists(st.lists(FRAGMENTS, max_size=8).map("".join), max_size=12))
@QUIET
def test_lines_of_logs_in_any_order(tmp_path: Path, lines: list[str]) -> None:
    path = tmp_path / "x.log"
    path.write_text("\n".join(lines))
    attempt(path)


@given(at=st.integers(0, 900), byte=st.integers(0, 255), cut=st.integers(0, 1000))
@QUIET
def test_a_changed_and_cut_event_file(tmp_path: Path, at: int, byte: int, cut: int) -> None:
    path = made.event_file(tmp_path / "events.out.tfevents.1.h", range(1, 12))
    data = bytearray(path.read_bytes())
    data[at % len(data)] = byte
    path.write_bytes(bytes(data[: max(cut, 30)]))
    attempt(path)


@given(body=st.binary(max_size=80))
@QUIET
def test_whole_records_of_any_bytes(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "events.out.tfevents.1.h"
    path.write_bytes(made.record(body) + made.record(made.event(1, 1.0, loss=1.0)))
    attempt(path)


VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=5) | st.integers(-(10**400), 10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
KEYS = st.sampled_from(["step", "global_step", "time", "_timestamp", "_runtime", "loss", "epoch", "step_time_ms",
                        "max_steps", "it/s", "event", "x"])  # fmt: skip


@given(rows=st.lists(st.dictionaries(KEYS, VALUES, max_size=5), max_size=10))
@QUIET
def test_json_lines_of_any_values(tmp_path: Path, rows: list[dict[str, object]]) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    attempt(path)


@given(events=st.lists(st.dictionaries(
    st.sampled_from(["ph", "name", "ts", "dur", "cat", "args", "tid"]),
    VALUES | st.sampled_from(["X", "ProfilerStep#3", "kernel", "gloo:x", {"correlation": [1]}]), max_size=7,
), max_size=6), info=VALUES)  # fmt: skip
@QUIET
def test_traces_of_any_values(tmp_path: Path, events: list[object], info: object) -> None:
    path = tmp_path / "x.json"
    path.write_text(
        json.dumps({"traceEvents": events, "distributedInfo": info, "deviceProperties": info})
    )
    attempt(path)


@given(
    rows=st.lists(
        st.tuples(NUMBERS, NUMBERS, NUMBERS, st.sampled_from([0.0, 1.0, 4.0])), max_size=40
    )
)
@settings(max_examples=150, deadline=None, phases=PHASES, report_multiple_bugs=False)
def test_rows_of_any_numbers(rows: list[tuple[float, ...]]) -> None:
    table = np.array(rows, dtype=float).reshape(-1, 4)
    columns = dict(zip(("step", "time_s", "step_time_s", "event"), table.T, strict=True))
    for clocked in (True, False):
        kept = columns if clocked else {k: v for k, v in columns.items() if k != "time_s"}
        series = LogSeries("x", "test", (), kept, absolute=clocked)
        in_words(lambda s=series: runs_of(s))
        in_words(lambda s=series: eta_of(s, JobLength(steps=1e6)))


@pytest.mark.parametrize("text", ["\x00" * 100, "{" * 5000, "[" * 5000, "step 1 loss " * 2000])
def test_hostile_shapes(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    attempt(path)
