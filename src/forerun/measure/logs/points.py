"""Points: scalars that were logged one by one, joined into rows by their step."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

from forerun.measure.logs.keys import column_of
from forerun.measure.logs.series import EVALUATION, RESTART, Gathered

Point = tuple[str, float, float, float]  # key, value, seconds since 1970, step
_FACTS = ("total_steps", "total_epochs", "steps_per_epoch", "devices")
# A word of a key that says its score is of an evaluation: val_loss, eval/accuracy, Loss/test.
_AXES = ("step", "epoch", "time_s")
_EVALUATED = re.compile(r"(?:^|[/_.])(?:val|valid|validation|eval|evaluation|test)(?:[/_.]|$)")
_SPARSE = 0.5  # of the rows: scores that come with every row tell nothing apart
_SAME_AXIS = 0.5  # of the highest step: a key that never comes so far counts something else


def add_points(points: Sequence[Point], gathered: Gathered) -> tuple[str, ...]:
    """Add the points of one writer, in the order of their times; return what was left out.

    A key whose step falls back begins a new session: the job was started again. Keys that count
    epochs beside keys that count steps are not on the same axis, and are left out.
    """
    kept, other = _one_axis(sorted(points, key=lambda p: p[2]))
    counts = Counter(key for key, *_ in kept)
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
        _put(row, key, value)
    _flush(rows, gathered)
    return other


def _one_axis(points: Sequence[Point]) -> tuple[list[Point], tuple[str, ...]]:
    """Return the points whose keys count the same steps, and the other keys."""
    highest: dict[str, float] = {}
    counts = Counter(key for key, *_ in points)
    for key, _, _, step in points:
        highest[key] = max(step, highest.get(key, -math.inf))
    top = max(highest.values(), default=0.0)
    # A key logged once (a setting, a last score) tells nothing of the axis, and does no harm.
    other = {k for k, step in highest.items() if step < _SAME_AXIS * top and counts[k] > 1}
    return [p for p in points if p[0] not in other and (counts[p[0]] > 1 or p[3] >= 0)], tuple(
        sorted(other)
    )


def _flush(rows: dict[float, dict[str, float]], gathered: Gathered) -> None:
    """Hand over the rows of one session, each with what is known to have come before it."""
    scored = [
        [bool(_EVALUATED.search(name.lower())) for name in row if name not in _AXES]
        for row in rows.values()
    ]
    # A row has the time of its first point: a score that came later was computed after that.
    own = [bool(keys) and keys[0] for keys in scored]
    later = [False, *(any(keys) and not keys[0] for keys in scored)]
    told = [a or b for a, b in zip(own, later, strict=False)]
    sparse = sum(told) <= _SPARSE * len(told)
    for row, evaluated in zip(rows.values(), told, strict=True):
        if evaluated and sparse:
            gathered.event(EVALUATION)
        for name in _FACTS:
            if name in row:
                gathered.facts[name] = row.pop(name)
        gathered.row(row)
    rows.clear()


def _put(row: dict[str, float], key: str, value: float) -> None:
    """Put a scalar into a row by the column that its key means; the first of a step counts."""
    column, factor = column_of(key) or (key, 1.0)
    if column in ("step", "time_s", "elapsed_s"):
        return  # the point says both itself
    if column == "steps_per_s":
        column, value = "step_time_s", 1 / value if value > 0 else math.nan
    row.setdefault(column, value * factor)
