"""Bars: progress bars of tqdm in a log: which of several counts steps, and bars for each epoch."""

from __future__ import annotations

from forerun.measure.logs.matched import Row
from forerun.measure.logs.series import EVALUATION, Fact

_DONE = 0.95  # of its length: a bar that begins again from there was finished


class Bars:
    """Keeps the longest bar as the one of training; a shorter one within it is an evaluation.

    A bar that begins again after its end is the next epoch's, so its steps go on.
    """

    def __init__(self) -> None:
        self._length = 0.0
        self._offset = 0.0
        self._last = 0.0
        self._finished = 0

    def row(self, row: Row) -> int:
        """Turn a bar's row into one of the whole job; return the event where it is another bar."""
        length, count = row.pop("total_steps", 0.0), row.get("step", 0.0)
        if length < self._length:
            return EVALUATION
        if length > self._length:
            self._length, self._offset, self._finished = length, 0.0, 0
        elif count < self._last and self._last >= _DONE * length:
            self._offset += length
            self._finished += 1
        self._last = count
        row["step"] = self._offset + count
        return 0

    def facts(self, facts: dict[str, Fact]) -> dict[str, Fact]:
        """Return facts with the length that the bars tell: of the job, or of an epoch."""
        if not self._length:
            return facts
        epochs = facts.get("total_epochs")
        if self._finished or isinstance(epochs, float):
            told: dict[str, Fact] = {"steps_per_epoch": self._length}
            if isinstance(epochs, float):
                told["total_steps"] = self._length * epochs
            return {**told, **facts}
        return {"total_steps": self._length, **facts}
