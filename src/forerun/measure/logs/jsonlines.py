"""JSON lines: one record a line, as loggers of one's own, W&B and HuggingFace's state write them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from forerun.errors import RequestError
from forerun.measure.logs.keys import column_of
from forerun.measure.logs.opening import bytes_of, head_of, lines_of, written_s
from forerun.measure.logs.said import Ending, event_in
from forerun.measure.logs.series import EVALUATION, Gathered, LogSeries, clock_resolution
from forerun.measure.logs.stamps import iso_seconds

_FACTS = ("total_steps", "total_epochs", "steps_per_epoch", "devices")
_EPOCH_2001 = 1e9  # seconds since 1970 of a clock that is a date rather than a duration
_MILLISECONDS = 1e11  # a date in milliseconds is above this


def accepts(path: Path) -> bool:
    """Return whether a file begins as JSON records, one a line, or as HuggingFace's state."""
    if not path.is_file():
        return False
    head = head_of(path).lstrip(b"\xef\xbb\xbf \t\r\n")
    if not head.startswith(b"{"):
        return False
    first = head.splitlines()[0].strip()
    try:
        return isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return path.suffix in (".jsonl", ".ndjson") or b'"log_history"' in bytes_of(path)[0]


def read_json(path: Path, pattern: str = "") -> tuple[LogSeries, ...]:
    """Return the one run of a file of JSON records.

    Raises:
        RequestError: no record has a step, or the file is no JSON.
    """
    whole = _state(path)
    facts: dict[str, Any] = {}
    ending, odd = Ending(), _Count()
    records: Iterable[Any]
    if whole is not None:
        records = whole["log_history"]
        facts = _state_facts(whole)
    else:
        records = _records(path, ending, odd)
    gathered = Gathered()
    gathered.facts.update(facts)
    for record in records:
        if isinstance(record, Mapping):
            _add(gathered, record)
            ending.went_on()
    columns = gathered.columns()
    if not {"step", "epoch"} & set(columns):
        raise RequestError(
            f"reading {path}", f"none of its {odd.good:,} records has a step or an epoch",
            "name them step, global_step, iteration or epoch, or give --pattern",
        )  # fmt: skip
    columns, absolute = _clock(columns)
    notes = () if not odd.bad else (f"{odd.bad:,} lines are no JSON records, and are left out",)
    return (LogSeries(
        name=path.stem, reader="json", paths=(str(path),), columns=columns, facts=gathered.facts,
        status=ending.status, reason=ending.reason, absolute=absolute,
        resolution_s=clock_resolution(columns.get("time_s", ())),
        written_s=written_s(path), notes=notes,
    ),)  # fmt: skip


class _Count:
    good = bad = 0


def _state(path: Path) -> dict[str, Any] | None:
    """Return HuggingFace's trainer_state.json, None where it is another kind of file."""
    data, _ = bytes_of(path)
    if b'"log_history"' not in data:
        return None
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("log_history"), list) else None


def _state_facts(state: Mapping[str, Any]) -> dict[str, float]:
    """Return what the Trainer's state says once; its batch is of one process, so it stays out."""
    wanted = {"max_steps": "total_steps", "num_train_epochs": "total_epochs"}
    return {
        name: float(state[key])
        for key, name in wanted.items()
        if isinstance(state.get(key), int | float) and state[key] > 0
    }


def _records(path: Path, ending: Ending, odd: _Count) -> Iterator[Any]:
    """Yield the records of a file, one a line; a line that is none may tell how the job ended."""
    for line in lines_of(path):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            odd.bad += 1
            ending.line(line)
            continue
        odd.good += 1
        yield record


def _add(gathered: Gathered, record: Mapping[str, Any]) -> None:
    """Add one record: a row of a step, an evaluation, or facts."""
    row: dict[str, float] = {}
    for key, value in _flat(record):
        column, factor = column_of(key) or (key, 1.0)
        if isinstance(value, str):
            if column == "time_s":
                row["time_s"] = iso_seconds(value)
            elif key in ("event", "message", "msg", "phase"):
                gathered.event(event_in(value))
            continue
        if column == "steps_per_s":
            column, value = "step_time_s", 1 / value if value > 0 else math.nan
        row.setdefault(column, value * factor)
    for name in _FACTS:
        if name in row:
            gathered.facts[name] = row.pop(name)
    if "eval_seconds" in row or "eval_loss" in row:
        gathered.event(EVALUATION)
    if "train_runtime" in row:
        gathered.facts["train_seconds"] = row["train_runtime"]
        return
    if "step" in row or "epoch" in row:
        gathered.row({k: v for k, v in row.items() if v == v})


def _flat(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield numbers and texts of a record by key; nested keys are joined by slashes."""
    for key, value in record.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and len(prefix) < 100:
            yield from _flat(value, f"{name}/")
        elif isinstance(value, bool):
            continue
        elif isinstance(value, int | float):
            try:
                yield name, float(value)
            except OverflowError:
                continue
        elif isinstance(value, str):
            yield name, value


def _clock(columns: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return columns whose `time_s` is in seconds, and whether it counts from 1970."""
    import numpy as np

    columns = dict(columns)
    elapsed = columns.pop("elapsed_s", None)
    if "time_s" not in columns and elapsed is not None:
        columns["time_s"] = elapsed
    if "time_s" not in columns:
        return columns, False
    times = columns["time_s"]
    times = np.where(times > _MILLISECONDS, times / 1000, times)
    columns["time_s"] = times
    known = times[np.isfinite(times)]
    return columns, bool(len(known)) and bool(np.median(known) > _EPOCH_2001)
