"""LogSeries: what a training log says, as columns over its steps, and what it says only once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from forerun.arrays import FloatArray

Fact = float | str

# What a log may say between two steps, as bits of the column `event`.
EVALUATION, CHECKPOINT, RESTART = 1, 2, 4
_LARGEST = 1e15  # steps, tokens, seconds: a number above is a slip or noise


@dataclass(frozen=True, eq=False)
class LogSeries:
    """One run's log. A column (n,) has NaN where the log does not say; nothing is guessed.

    Attributes:
        name: of the run, from the file or the tracking store.
        reader: who read it.
        paths: the files it came from.
        columns: by name, each (n,): `step` (optimizer steps done), `epoch` (passes done, with its
            fraction), `time_s` (seconds of the log's clock), `step_time_s`, `samples` and `tokens`
            (since the start), `samples_per_s` and `tokens_per_s` (whole cluster),
            `tokens_per_s_per_device`, `global_batch`, `memory_gb`, `loss`, `event` (bits of what
            was said since the row before), and the log's other numbers by their own names.
        facts: what it says once, by the runs table's columns and `total_steps`, `total_epochs`,
            `steps_per_epoch`, `resumed_step`.
        parts: seconds of a step by part, where a trace tells them.
        status: ok, oom, failed or timeout, of the log's end.
        reason: the words behind a status that is not ok.
        absolute: whether `time_s` counts from 1970 (UTC) rather than from the log's beginning.
        resolution_s: the clock's smallest difference, in seconds.
        written_s: when the newest of the files was written, seconds since 1970; NaN if unknown.
        notes: what a reader of the figures should know.
    """

    name: str
    reader: str
    paths: tuple[str, ...]
    columns: Mapping[str, FloatArray]
    facts: Mapping[str, Fact] = field(default_factory=dict)
    parts: Mapping[str, float] = field(default_factory=dict)
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

    def says(self, name: str) -> bool:
        """Return whether a column has any number in it."""
        return bool(np.isfinite(self.numbers(name)).any())

    def fact(self, name: str) -> float:
        """Return a number that the log says once, NaN where it does not."""
        value = self.facts.get(name, np.nan)
        return float(value) if not isinstance(value, str) else np.nan

    def noted(self, *notes: str) -> LogSeries:
        """Return the series with further notes."""
        return replace(self, notes=(*self.notes, *notes))


class Gathered:
    """Rows and facts as a reader meets them; rows of the same step, one after another, are one."""

    def __init__(self) -> None:
        self._rows: list[dict[str, float]] = []
        self.facts: dict[str, Fact] = {}
        self._event = 0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def last(self) -> Mapping[str, float]:
        """The newest row."""
        return self._rows[-1] if self._rows else {}

    def event(self, bits: int) -> None:
        """Remember what was said; the next row gets it."""
        self._event |= bits

    def row(self, values: Mapping[str, float]) -> None:
        """Add a row, or add what it says to the last one where that speaks of the same step."""
        values = {name: float(v) for name, v in values.items()}
        same = bool(self._rows) and not self._event and _same_step(self._rows[-1], values)
        if same:
            for name, value in values.items():
                self._rows[-1].setdefault(name, value)
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


def _same_step(before: Mapping[str, float], now: Mapping[str, float]) -> bool:
    """Return whether two rows speak of one step: the same number, or the newer has none."""
    for name in ("step", "epoch"):
        if name in before or name in now:
            return before.get(name) == now.get(name) or (name not in now and name in before)
    return False


def clock_resolution(times: Sequence[float] | FloatArray) -> float:
    """Return the smallest difference that a clock's readings (n,) show, at most 1 s, in seconds."""
    known = np.asarray(times, dtype=np.float64)
    known = known[np.isfinite(known)]
    for resolution in (1.0, 0.1, 0.01, 0.001):
        scaled = known / resolution
        if len(known) and np.all(np.abs(scaled - np.round(scaled)) < 1e-3):
            return resolution
    return 0.0
