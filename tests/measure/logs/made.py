"""Logs made for the tests: plain ones, event files by the published formats, stores and traces."""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

START = 1_750_000_000.0


def stamp(seconds: float) -> str:
    """Return a time as Python's logging writes it."""
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]


def plain(
    path: Path, steps: Iterable[int], seconds: float | Sequence[float] = 0.5, start: float = START,
    total: int = 1000, more: Mapping[int, str] | None = None, append: bool = False,
) -> float:  # fmt: skip
    """Write a plain log of rows at `steps`; return the time of the last one.

    `seconds` are those of a step, one or one a row; `more` is said before the row of a step.
    """
    lines, now, before = [], start, None
    for i, step in enumerate(steps):
        each = seconds if isinstance(seconds, float | int) else seconds[i]
        if before is not None:
            now += each * max(step - before, 1)
        before = step
        if more and step in more:
            lines.append(f"{stamp(now)} INFO {more[step]}")
        loss = 0.2 + 3 * np.exp(-step / 200)
        lines.append(f"{stamp(now)} INFO step {step}/{total} loss={loss:.4f}")
    with path.open("a" if append else "w") as stream:
        stream.write("\n".join(lines) + "\n")
    return now


def _crc(data: bytes) -> int:
    """CRC-32C bit by bit, by its definition; not the table of the code that is tested."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 * (value & 1))
    return value ^ 0xFFFFFFFF


def record(body: bytes) -> bytes:
    """Return a TFRecord."""

    def masked(data: bytes) -> int:
        crc = _crc(data)
        return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF

    length = struct.pack("<Q", len(body))
    return length + struct.pack("<I", masked(length)) + body + struct.pack("<I", masked(body))


def event(step: int, time: float, tensor: bool = False, **scalars: float) -> bytes:
    """Return a TensorBoard Event as bytes, written by the protobuf library from its definition."""
    message = _event_class()()
    message.wall_time, message.step = time, step
    for tag, number in scalars.items():
        value = message.summary.value.add()
        value.tag = tag.replace("__", "/")
        if tensor:
            value.tensor.dtype = 1
            value.tensor.float_val.append(number)
        else:
            value.simple_value = number
    return bytes(message.SerializeToString())


_CLASSES: dict[str, Any] = {}


def _event_class() -> Any:
    """Return the Event class, defined as in tensorflow's event.proto and summary.proto."""
    if "Event" in _CLASSES:
        return _CLASSES["Event"]
    import pytest

    pytest.importorskip("google.protobuf", reason="the event files are written by protobuf")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    F = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="event_of_tests.proto", package="t", syntax="proto3"
    )
    fields: dict[str, list[tuple[str, int, int, str, bool]]] = {
        "Tensor": [("dtype", 1, F.TYPE_INT32, "", False), ("float_val", 5, F.TYPE_FLOAT, "", True)],
        "Value": [("tag", 1, F.TYPE_STRING, "", False), ("simple_value", 2, F.TYPE_FLOAT, "", False),
                  ("tensor", 8, F.TYPE_MESSAGE, ".t.Tensor", False)],
        "Summary": [("value", 1, F.TYPE_MESSAGE, ".t.Value", True)],
        "Event": [("wall_time", 1, F.TYPE_DOUBLE, "", False), ("step", 2, F.TYPE_INT64, "", False),
                  ("file_version", 3, F.TYPE_STRING, "", False),
                  ("summary", 5, F.TYPE_MESSAGE, ".t.Summary", False)],
    }  # fmt: skip
    for name, members in fields.items():
        described = file.message_type.add(name=name)
        for member, number, kind, of, repeated in members:
            described.field.add(
                name=member, number=number, type=kind, type_name=of or None,
                label=F.LABEL_REPEATED if repeated else F.LABEL_OPTIONAL,
            )  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    _CLASSES["Event"] = message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Event"))
    return _CLASSES["Event"]


def event_file(
    path: Path, steps: Iterable[int], seconds: float = 0.5, start: float = START
) -> Path:
    """Write an event file with a loss and a throughput at each step."""
    version = _event_class()()
    version.wall_time, version.file_version = start, "brain.Event:2"
    body = record(version.SerializeToString())
    for i, step in enumerate(steps):
        now = start + i * seconds
        body += record(event(step, now, train__loss=5.0 / (1 + step), samples_per_second=100.0))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)
    return path


def mlflow_folder(root: Path, steps: int = 40, seconds: float = 0.5, status: int = 3) -> Path:
    """Write a run as MLflow's file store does."""
    run = root / "mlruns" / "1" / "abc123"
    (run / "metrics" / "train").mkdir(parents=True)
    (run / "params").mkdir()
    (run / "meta.yaml").write_text(f"run_name: calm-fox\nrun_id: abc123\nstatus: {status}\n")
    (run / "params" / "global_batch_size").write_text("64")
    (run / "params" / "batch_size").write_text("8")
    rows = [(int((START + i * seconds) * 1000), 3.0 / (i + 1), i) for i in range(steps)]
    text = "".join(f"{t} {v} {s}\n" for t, v, s in rows)
    (run / "metrics" / "train" / "loss").write_text(text)
    return root / "mlruns"


def mlflow_database(path: Path, steps: int = 40, seconds: float = 0.5) -> Path:
    """Write two runs, one failed, as MLflow's SQLite store does (its columns that are read)."""
    with sqlite3.connect(path) as database:
        database.executescript(
            "CREATE TABLE runs (run_uuid TEXT, name TEXT, status TEXT, start_time INTEGER);"
            "CREATE TABLE metrics (key TEXT, value REAL, timestamp INTEGER, run_uuid TEXT,"
            " step INTEGER, is_nan BOOLEAN);"
            "CREATE TABLE params (key TEXT, value TEXT, run_uuid TEXT);"
        )
        for run, status in (("r1", "FINISHED"), ("r2", "FAILED")):
            database.execute("INSERT INTO runs VALUES (?, ?, ?, 1)", (run, f"name-{run}", status))
            rows = [
                ("loss", 3.0 / (i + 1), int((START + i * seconds) * 1000), run, i, 0)
                for i in range(steps)
            ]
            database.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", rows)
    database.close()
    return path


def trace(path: Path, rank: int = 0, world: int = 2, device: bool = True, steps: int = 6) -> Path:
    """Write a Kineto trace: steps of 100 us with known parts.

    Of each step: 10 us input; 20 forward; 30 backward; communication from 50 to 80, of which 10 lie
    under backward; 10 optimizer; 10 left.
    """
    events: list[dict[str, Any]] = []
    link = 0

    def add(name: str, cat: str, at: float, dur: float, tid: int = 1, **args: Any) -> None:
        events.append({"ph": "X", "name": name, "cat": cat, "ts": at, "dur": dur, "pid": 1,
                       "tid": tid, "args": args})  # fmt: skip

    for s in range(steps):
        base = 1000.0 + 100.0 * s
        add(f"ProfilerStep#{s + 3}", "user_annotation", base, 100.0)
        add("enumerate(DataLoader)#_Iter.__next__", "user_annotation", base, 10.0)
        add("autograd::engine::evaluate_function: X", "cpu_op", base + 30, 30.0, 2)
        add("Optimizer.step#SGD.step", "user_annotation", base + 80, 10.0)
        work = (("gemm", 10, 20, 1), ("gemm_bwd", 30, 30, 2), ("sgd", 80, 10, 1))
        for name, at, dur, tid in work:
            link += 1
            if device:
                add("cudaLaunchKernel", "cuda_runtime", base + at, 1.0, tid, correlation=link)
                add(name, "kernel", base + at, dur, 7, correlation=link)
            else:
                add(f"aten::{name}", "cpu_op", base + at, dur, tid)
        if device:
            add("ncclDevKernel_AllReduce_Sum_f32", "kernel", base + 50, 30.0, 20, correlation=0)
        else:
            add("gloo:all_reduce", "user_annotation", base + 50, 30.0, 9)
    content: dict[str, Any] = {
        "schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world},
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}] if device else [],
        "traceEvents": events,
    }  # fmt: skip
    path.write_text(json.dumps(content))
    return path
