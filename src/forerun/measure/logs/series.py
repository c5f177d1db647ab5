"""LogSeries: what a training log says, as columns over its steps, and what it says only once."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np

from forerun import packaged
from forerun.arrays import FloatArray

Fact = float | str

# What a log may say between two steps, as bits of the column `event`.
EVALUATION, CHECKPOINT, RESTART = 1, 2, 4
_FACTS = ("total_steps", "total_epochs", "steps_per_epoch", "devices")
_LARGEST = 1e15  # steps, tokens, seconds: a number above is a slip or noise


_RATES = ("samples_per_s", "tokens_per_s", "steps_per_s")
_TIMES = ("step_time_s", "data_time_s", "sync_time_s", "eval_seconds", "elapsed_s")
_PER_SECOND = re.compile(r"_?(?:per_(?:second|sec|s)|/s(?:ec(?:ond)?)?)$")
_PER_DEVICE = re.compile(r"[_/]per[_/](?:device|gpu)$")
_PHASE = re.compile(r"^(?:train|training|perf|performance|throughput|timers?)[/.]")


@cache
def vocabulary() -> dict[str, Any]:
    """Return the tables of patterns.yaml."""
    found: dict[str, Any] = packaged.table(__file__, "patterns.yaml")
    return found


@cache
def _spellings(kind: str) -> dict[str, str]:
    kinds = dict.fromkeys(_RATES, "rate") | dict.fromkeys(_TIMES, "time") | {"memory_gb": "memory"}
    keys: dict[str, str] = vocabulary()["keys"]
    return {
        spelling: column
        for column, text in keys.items()
        if kinds.get(column, "plain") == kind
        for spelling in text.split()
    }


@lru_cache(maxsize=4096)
def column_of(key: str) -> tuple[str, float] | None:
    """Return the column of a logger's key and the factor to its unit, by the key's end; None where unknown."""
    plain = key.strip().lower().lstrip("_").replace("-", "_").replace(" ", "_")
    plain = _PHASE.sub("", re.sub(r"\((\w+)\)$", r"_\1", plain))
    if plain in _spellings("plain"):
        return _spellings("plain")[plain], 1.0
    rate = _PER_DEVICE.sub("", plain)
    per_device = "_per_device" if rate != plain else ""
    if rate == "throughput_tps":  # torchtitan's, which is of one device
        return "tokens_per_s_per_device", 1.0
    stem = _PER_SECOND.sub("", rate)
    if stem != rate:
        column = _spellings("rate").get(stem)
        return None if column is None else (column + per_device, 1.0)
    stem, _, unit = plain.rpartition("_")
    times = {"time": "time_s", "timestamp": "time_s"}
    seconds, gigabytes = vocabulary()["seconds"], vocabulary()["gigabytes"]
    if unit in seconds and (column := times.get(stem) or _spellings("time").get(stem)):
        return column, seconds[unit]
    if unit in gigabytes and stem in _spellings("memory"):
        return "memory_gb", gigabytes[unit]
    # A plain `step` counts steps, and was found above.
    return (_spellings("time")[plain], 1.0) if plain in _spellings("time") else None


def put(row: dict[str, float], key: str, value: float) -> None:
    """Add a logged number to a row under its column, in its unit; the first one counts."""
    column, factor = column_of(key) or (key, 1.0)
    if column == "steps_per_s":
        column, value = "step_time_s", 1 / value if value > 0 else float("nan")
    row.setdefault(column, value * factor)


@dataclass(frozen=True, eq=False)
class LogSeries:
    """One run's log. A column (n,) has NaN where the log does not say.

    Attributes:
        columns: `step` (optimizer steps done), `epoch` (passes done, with its fraction), `time_s`
            (the log's clock), `samples`, `tokens`, `event` (bits), and others of the runs table.
        facts: what it says once, by column, `total_steps`, `total_epochs`, `steps_per_epoch` ...
        absolute: whether `time_s` counts from 1970 (UTC) rather than from the log's beginning.
        written_s: when the newest of the files was written, seconds since 1970; NaN if unknown.
    """

    name: str
    reader: str
    paths: tuple[str, ...]
    columns: Mapping[str, FloatArray]
    facts: Mapping[str, Fact] = field(default_factory=dict)
    status: str = "ok"
    reason: str = ""
    absolute: bool = False
    resolution_s: float = 0.0
    written_s: float = float("nan")
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def numbers(self, name: str) -> FloatArray:
        """Return a column (n,), NaN where the log does not say, or says what cannot be."""
        column = self.columns.get(name)
        if column is None:
            return np.full(len(self), np.nan)
        return np.where(np.abs(column) < _LARGEST, column, np.nan)

    def has(self, name: str) -> bool:
        """Return whether a column has any number in it."""
        return bool(np.isfinite(self.numbers(name)).any())

    def per_step(self, name: str) -> FloatArray:
        """Return how much each step adds to a column, where both are known (m,)."""
        steps, values = self.numbers("step"), self.numbers(name)
        both = np.isfinite(steps) & np.isfinite(values)
        ahead, more = np.diff(steps[both]), np.diff(values[both])
        return np.asarray(more[ahead > 0] / ahead[ahead > 0])

    def fact(self, name: str) -> float:
        """Return a number that the log says once, NaN where it does not."""
        value = self.facts.get(name, np.nan)
        return float(value) if not isinstance(value, str) else np.nan


class SeriesBuilder:
    """Rows and facts as a reader meets them; rows of the same step, one after another, are one."""

    def __init__(self) -> None:
        self._rows: list[dict[str, float]] = []
        self.facts: dict[str, Fact] = {}
        self._event = 0

    def event(self, bits: int) -> None:
        """Keep the events of a line (bits); the next row gets them."""
        self._event |= bits

    def is_summary(self, values: Mapping[str, float]) -> bool:
        """Return whether a record is of a whole run, whose time is kept; note one of an evaluation."""
        if "eval_seconds" in values or "eval_loss" in values:
            self.event(EVALUATION)
        if "train_runtime" in values:
            self.facts["train_seconds"] = values["train_runtime"]
        return "train_runtime" in values

    def row(self, values: Mapping[str, float]) -> None:
        """Add a row, or add what it says to the last one where that speaks of the same step."""
        values = {name: float(v) for name, v in values.items()}
        self.facts.update({name: values.pop(name) for name in _FACTS if name in values})
        last = self._rows[-1] if self._rows and not self._event else {}
        axis = next((name for name in ("step", "epoch") if name in last or name in values), "")
        if axis in last and values.get(axis, last[axis]) == last[axis]:  # it may name no step
            last |= {**values, **last}
            return
        if self._event:
            values["event"] = float(self._event)
            self._event = 0
        self._rows.append(values)

    def columns(self) -> dict[str, FloatArray]:
        """Return the rows as columns (n,)."""
        names = dict.fromkeys(name for row in self._rows for name in row)
        return {
            name: np.array([row.get(name, np.nan) for row in self._rows], dtype=np.float64)
            for name in names
        }


def clock_resolution(times: Sequence[float] | FloatArray) -> float:
    """Return the smallest difference that a clock's readings (n,) show, at most 1 s, in seconds."""
    known = np.asarray(times, dtype=np.float64)
    known = known[np.isfinite(known)]
    for resolution in (1.0, 0.1, 0.01, 0.001) if len(known) else ():
        scaled = known / resolution
        if np.all(np.abs(scaled - np.round(scaled)) < 1e-3):
            return resolution
    return 0.0


_SAME_TIME = 0.5  # of the shorter log: two that overlap by more are ranks, not sessions


def joined(parts: Sequence[LogSeries]) -> LogSeries:
    """Return one series of a job's logs in order; of ranks, which overlap, the longest is read."""
    if len(parts) == 1:
        return parts[0]
    kept: list[LogSeries] = []
    notes: list[str] = []
    for part in sorted(parts, key=len, reverse=True):
        if any(_overlap(part, other) > _SAME_TIME for other in kept):
            notes.append(f"{part.name} was written at the same time as another, so it is not read")
        else:
            kept.append(part)
    kept.sort(key=list(parts).index)
    if all(part.absolute for part in kept):
        kept.sort(key=lambda part: _span(part)[0])
    else:
        notes.append("the logs have no dates: they are taken in the given order, gaps unknown")
        at = 0.0
        for i, part in enumerate(kept):
            begin, end = _span(part)
            if end >= begin:
                columns = {**part.columns, "time_s": part.numbers("time_s") - begin + at}
                kept[i], at = replace(part, columns=columns), at + end - begin
    names = dict.fromkeys(n for part in kept for n in (*part.columns, "event"))
    columns = {n: np.concatenate([part.numbers(n) for part in kept]) for n in names}
    columns["event"] = np.nan_to_num(columns["event"])
    for begin in np.cumsum([len(part) for part in kept[:-1]]):
        columns["event"][begin] = int(columns["event"][begin]) | RESTART
    facts = {k: v for part in kept for k, v in part.facts.items()}
    last = kept[-1]
    return replace(
        last, paths=tuple(p for part in kept for p in part.paths), columns=columns, facts=facts,
        written_s=max((p.written_s for p in kept if p.written_s == p.written_s), default=np.nan),
        resolution_s=max(part.resolution_s for part in kept),
        absolute=all(part.absolute for part in kept),
        notes=tuple(dict.fromkeys((*(n for part in kept for n in part.notes), *notes))),
    )  # fmt: skip


def _span(part: LogSeries) -> tuple[float, float]:
    times = part.numbers("time_s")
    known = times[np.isfinite(times)]
    return (float(known.min()), float(known.max())) if len(known) else (math.inf, -math.inf)


def _overlap(part: LogSeries, other: LogSeries) -> float:
    """Return the share of the shorter log's time that lies within the other's; 0 without dates."""
    (begin, end), (other_begin, other_end) = _span(part), _span(other)
    length = min(end - begin, other_end - other_begin)
    shared = max(0.0, min(end, other_end) - max(begin, other_begin))
    return shared / length if part.absolute and other.absolute and length > 0 else 0.0


Scalar = tuple[str, float, float, float]  # key, value, seconds since 1970, step
_AXIS_COLUMNS = (("step", 1.0), ("time_s", 1.0), ("elapsed_s", 1.0))
# A word of a key that says its score is of an evaluation: val_loss, eval/accuracy, Loss/test.
_AXES = ("step", "epoch", "time_s")
EVALUATED = re.compile(
    r"(?:^|[/_.])(?:val|valid|validate|validation|eval|evaluation|test)(?:[/_.]|$)"
)
_SPARSE = 0.5  # of the rows: scores that come with every row tell nothing apart
_SAME_AXIS = 0.5  # of the highest step: a key that never comes so far counts something else


def add_scalars(points: Sequence[Scalar], gathered: SeriesBuilder) -> list[str]:
    """Add one writer's points by time; a step that falls back begins a session. Return notes on what was left out."""
    counts, highest = Counter(key for key, *_ in points), dict[str, float]()
    for key, _, _, step in points:
        highest[key] = max(step, highest.get(key, -math.inf))
    axis = _SAME_AXIS * max(highest.values(), default=0.0)
    # A key logged once (a setting, a last score) tells nothing of the axis, and does no harm.
    other = sorted(key for key, step in highest.items() if step < axis and counts[key] > 1)
    kept = [p for p in points if p[0] not in other and (counts[p[0]] > 1 or p[3] >= 0)]
    kept.sort(key=lambda point: point[2])
    rows: dict[float, dict[str, float]] = {}
    reached: dict[str, float] = {}
    by_epoch = bool(kept) and all(key.startswith(("epoch_", "epoch/")) for key, *_ in kept)
    for key, value, time, step in kept:
        if step < reached.get(key, -math.inf):
            _flush(rows, gathered)
            gathered.event(RESTART)
            reached.clear()
        reached[key] = step
        # A last score, logged once without a step, is written as one of step 0: no row of its own.
        if counts[key] == 1 and step not in rows and step < max(reached.values()):
            continue
        row = rows.setdefault(step, {"epoch" if by_epoch else "step": step, "time_s": time})
        if column_of(key) not in _AXIS_COLUMNS:
            put(row, key, value)
    _flush(rows, gathered)
    return [f"{key} is logged by another count than steps, and left out" for key in other]


def _flush(rows: dict[float, dict[str, float]], gathered: SeriesBuilder) -> None:
    scored = [
        [bool(EVALUATED.search(name.lower())) for name in row if name not in _AXES]
        for row in rows.values()
    ]
    # A row has the time of its first point: a score that came later was computed after that.
    own = [bool(keys) and keys[0] for keys in scored]
    later = [False, *(any(keys) and not keys[0] for keys in scored)]
    scores = [a or b for a, b in zip(own, later, strict=False)]
    sparse = sum(scores) <= _SPARSE * len(scores)
    for row, evaluated in zip(rows.values(), scores, strict=True):
        if evaluated and sparse:
            gathered.event(EVALUATION)
        gathered.row(row)
    rows.clear()
