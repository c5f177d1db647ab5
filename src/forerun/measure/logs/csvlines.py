"""CSV lines: a header and a row a step, as Lightning's and Keras's CSVLogger and loggers of one's own write them."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from forerun.errors import RequestError
from forerun.measure.logs.files import bytes_of, head_of, is_text, lines_of
from forerun.measure.logs.jsonlines import add_record, series_of
from forerun.measure.logs.series import (
    EVALUATED,
    EVALUATION,
    RESTART,
    LogSeries,
    SeriesBuilder,
    column_of,
)
from forerun.measure.logs.text import Ending
from forerun.units import counted

_LIGHTNING = "metrics.csv"  # of its CSVLogger, which counts steps from 0
_FALLS = 0.1  # of its rows: a time that falls more often is no clock, but that of a step
Record = dict[str, float | str]


def accepts(path: Path) -> bool:
    """Return whether a file begins with a header that names a step or an epoch, or a folder has Lightning's."""
    file = _file(path)
    head = head_of(file) if file.is_file() else b""
    first = head.decode("utf-8-sig", errors="replace").splitlines()[:1]
    return is_text(head) and bool(first) and _is_header(_cells(first[0]))


def read(path: Path, pattern: str = "") -> tuple[LogSeries, ...]:
    """Return the one run of a CSV log. Raises RequestError."""
    path = _file(path)
    lines = list(lines_of(path))
    if bytes_of(path)[-1:] not in (b"\n", b"\r"):
        lines.pop()  # it is still being written
    gathered, ending = SeriesBuilder(), Ending()
    records, begins, notes = _records(lines, ending)
    ends: dict[float, float] = {}  # the last step of each epoch
    for i, record in enumerate(records):
        gathered.event(RESTART if i in begins - {0} else 0)
        count = {c[0]: k for k in record if (c := column_of(k)) and c[0] in ("step", "epoch")}
        scores = [EVALUATED.search(key.lower()) for key in record if key not in count.values()]
        if scores and all(scores):  # its step may be another count
            gathered.event(EVALUATION)
            continue
        if path.name == _LIGHTNING and "step" in count:
            record[count["step"]] = float(record[count["step"]]) + 1
        if len(count) == 2:
            ends[float(record[count["epoch"]])] = float(record[count["step"]])
        add_record(gathered, record)
    if len(ends) > 1 and all(epoch.is_integer() for epoch in ends):
        over = [*ends.values()][:-1]
        spans = len(over) - 1
        gathered.facts["steps_per_epoch"] = (over[-1] - over[0]) / spans if spans else over[0]
    found = series_of(path, "csv", gathered, ending, len(records), tuple(notes))
    if not (found.has("time_s") or found.has("step_time_s")):
        raise RequestError(
            f"reading {path}", f"its {counted(len(found), 'row')} say no time, so that no speed is known",
            "log a time too, as time, elapsed or step_time (in Lightning: the callback ThroughputMonitor, or"
            " self.log('elapsed', seconds since the start))",
        )  # fmt: skip
    return (found,)


def _records(lines: Sequence[str], ending: Ending) -> tuple[list[Record], set[int], list[str]]:
    """Return the rows, those with which sessions begin (the header is written again), and notes."""
    header, bad = list[str](), 0
    records, begins = list[Record](), set[int]()
    for line in lines:
        cells = _cells(line)
        if _is_header(cells):
            header = cells
            begins.add(len(records))
        elif len(cells) == len(header):
            records.append({h: _value(c) for h, c in zip(header, cells, strict=True) if c})
        else:
            bad += 1
            ending.line(line)
    notes = [f"{bad:,} lines have other cells than the header, and are left out"] if bad else []
    for name in (name for name in dict.fromkeys(header) if column_of(name) == ("time_s", 1.0)):
        values = [v for record in records if isinstance(v := record.get(name), float)]
        if len(values) > 2 and np.mean(np.diff(values) < 0) > _FALLS:
            records = [
                {"step_time_s" if k == name else k: v for k, v in r.items()} for r in records
            ]
            notes.append(f"{name} often falls from row to row: it is read as the seconds of a step")
    return records, begins, notes


def _file(path: Path) -> Path:
    return path / _LIGHTNING if path.is_dir() else path


def _is_header(cells: Sequence[str]) -> bool:
    """Return whether a line's cells are names, of a step or an epoch among others."""
    named = {column[0] for column in map(column_of, cells) if column is not None}
    words = all(isinstance(_value(cell), str) for cell in cells)
    return len(cells) > 1 and words and bool(named & {"step", "epoch"})


def _cells(line: str) -> list[str]:
    with suppress(csv.Error):
        mark = max(",;\t", key=line.count)
        return [cell.strip() for cell in next(csv.reader([line], delimiter=mark), [])]
    return []


def _value(cell: str) -> float | str:
    with suppress(ValueError):
        return float(cell)
    return cell
