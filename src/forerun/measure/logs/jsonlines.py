"""JSON lines: one record a line, as loggers of one's own, W&B and HuggingFace's state write them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from forerun.errors import RequestError
from forerun.measure.logs.files import bytes_of, head_of, lines_of, mapping_of, written_s
from forerun.measure.logs.series import LogSeries, SeriesBuilder, clock_resolution, column_of, put
from forerun.measure.logs.text import Ending, event_in, iso_seconds

_EPOCH_2001 = 1e9  # seconds since 1970 of a clock that is a date rather than a duration
_MILLISECONDS = 1e11  # a date in milliseconds is above this
_MOST = 1 << 1000  # whole numbers beyond are no float
_STATE = {"max_steps": "total_steps", "num_train_epochs": "total_epochs"}


def accepts(path: Path) -> bool:
    """Return whether a file begins as JSON records, one a line, or as HuggingFace's state."""
    head = head_of(path).lstrip(b"\xef\xbb\xbf \t\r\n") if path.is_file() else b""
    return head.startswith(b"{") and (
        bool(mapping_of(_json(head.splitlines()[0])))
        or path.suffix in (".jsonl", ".ndjson")
        or b'"log_history"' in bytes_of(path)
    )


def _json(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def read(path: Path, pattern: str = "") -> tuple[LogSeries, ...]:
    """Return the one run of a file of JSON records. Raises RequestError."""
    gathered, ending, bad, good = SeriesBuilder(), Ending(), 0, 0
    data = bytes_of(path)
    state = mapping_of(_json(data)) if b'"log_history"' in data else {}
    if isinstance(state.get("log_history"), list):
        # The batch of the Trainer's state is of one process, so it stays out.
        for key, name in _STATE.items():
            if isinstance(state.get(key), int | float) and 0 < state[key] < _MOST:
                gathered.facts[name] = float(state[key])
        for record in state["log_history"]:
            add_record(gathered, mapping_of(record))
    else:
        for line in filter(str.strip, lines_of(path)):
            record = _json(line)
            if record is None:
                bad += 1
                ending.line(line)
                continue
            good += 1
            if isinstance(record, dict):
                add_record(gathered, record)
                ending.went_on()
    notes = (f"{bad:,} lines are no JSON records, and are left out",) if bad else ()
    return (series_of(path, "json", gathered, ending, good, notes),)


def series_of(
    path: Path, reader: str, gathered: SeriesBuilder, ending: Ending, records: int,
    notes: tuple[str, ...],
) -> LogSeries:  # fmt: skip
    """Return the series of so many records that were gathered. Raises RequestError where none has a step or an epoch."""
    columns = gathered.columns()
    if not {"step", "epoch"} & set(columns):
        asked = f"reading {path}"
        todo = "name them step, global_step, iteration or epoch, or give --pattern"
        raise RequestError(asked, f"none of its {records:,} records has a step or an epoch", todo)
    elapsed = columns.pop("elapsed_s", np.array([]))
    times = columns.get("time_s", elapsed)
    times = np.where(times > _MILLISECONDS, times / 1000, times)
    known = times[np.isfinite(times)]
    if len(times):
        columns["time_s"] = times
    return LogSeries(
        name=path.stem, reader=reader, paths=(str(path),), columns=columns, facts=gathered.facts,
        status=ending.status, reason=ending.reason, resolution_s=clock_resolution(times),
        absolute=len(known) > 0 and bool(np.median(known) > _EPOCH_2001),
        written_s=written_s(path), notes=notes,
    )  # fmt: skip


def add_record(gathered: SeriesBuilder, record: Mapping[str, Any]) -> None:
    """Add what a record says under its keys: numbers, and times as texts."""
    row: dict[str, float] = {}
    for key, value in _flat(record):
        if not isinstance(value, str):
            put(row, key, value)
        elif column_of(key) == ("time_s", 1.0):
            row["time_s"] = iso_seconds(value)
        elif key in ("event", "message", "msg", "phase"):
            gathered.event(event_in(value))
    if not gathered.is_summary(row) and ("step" in row or "epoch" in row):
        gathered.row({k: v for k, v in row.items() if v == v})


def _flat(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float | str]]:
    for key, value in record.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and len(prefix) < 100:
            yield from _flat(value, f"{name}/")
        elif isinstance(value, str):
            yield name, value
        elif isinstance(value, float) or (type(value) is int and abs(value) < _MOST):
            yield name, float(value)
