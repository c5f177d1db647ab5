"""Joined: several log files of one job as one series, in the order in which they were written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from forerun.errors import RequestError
from forerun.measure.logs.series import RESTART, LogSeries

_SAME_TIME = 0.5  # of the shorter log: two that overlap by more are ranks, not sessions


def joined(parts: Sequence[LogSeries]) -> LogSeries:
    """Return one series of a job's logs: each begins where the job was started again.

    Logs that were written at the same time are those of ranks; the longest of them is read.

    Raises:
        RequestError: none is given.
    """
    if not parts:
        raise RequestError("joining logs", "none is given", "name at least one")
    if len(parts) == 1:
        return parts[0]
    kept, notes = _sessions(list(parts))
    if all(part.absolute for part in kept):
        kept.sort(key=_begin)
    else:
        notes.append("the logs have no dates: they are taken in the given order, gaps unknown")
        kept = _in_a_row(kept)
    names = dict.fromkeys(n for part in kept for n in (*part.columns, "event"))
    columns = {n: np.concatenate([part.numbers(n) for part in kept]) for n in names}
    begin = 0
    for part in kept[:-1]:
        begin += len(part)
        event = columns["event"][begin]
        columns["event"][begin] = (int(event) if np.isfinite(event) else 0) | RESTART
    facts = {k: v for part in kept for k, v in part.facts.items()}
    last = kept[-1]
    return replace(
        last, paths=tuple(p for part in kept for p in part.paths), columns=columns, facts=facts,
        written_s=max((p.written_s for p in kept if p.written_s == p.written_s), default=np.nan),
        resolution_s=max(part.resolution_s for part in kept),
        absolute=all(part.absolute for part in kept),
        notes=tuple(dict.fromkeys((*(n for part in kept for n in part.notes), *notes))),
    )  # fmt: skip


def _begin(part: LogSeries) -> float:
    times = part.numbers("time_s")
    known = times[np.isfinite(times)]
    return float(known[0]) if len(known) else float("inf")


def _end(part: LogSeries) -> float:
    times = part.numbers("time_s")
    known = times[np.isfinite(times)]
    return float(known[-1]) if len(known) else float("-inf")


def _sessions(parts: list[LogSeries]) -> tuple[list[LogSeries], list[str]]:
    """Return the parts that follow one another; of those written at once the longest."""
    kept: list[LogSeries] = []
    left_out = []
    for part in sorted(parts, key=len, reverse=True):
        if part.absolute and any(_overlap(part, other) > _SAME_TIME for other in kept):
            left_out.append(part.name)
        else:
            kept.append(part)
    kept.sort(key=parts.index)
    if not left_out:
        return kept, []
    return kept, [f"written at the same time as another, so not read: {', '.join(left_out)}"]


def _overlap(part: LogSeries, other: LogSeries) -> float:
    """Return the share of a log's time that lies within another's."""
    if not other.absolute:
        return 0.0
    begin, end = max(_begin(part), _begin(other)), min(_end(part), _end(other))
    length = min(_end(part) - _begin(part), _end(other) - _begin(other))
    return max(0.0, end - begin) / length if length > 0 else 0.0


def _in_a_row(parts: list[LogSeries]) -> list[LogSeries]:
    """Return parts whose clocks go on from one another."""
    shifted, at = list[LogSeries](), 0.0
    for part in parts:
        times = part.numbers("time_s")
        if not np.isfinite(times).any():
            shifted.append(part)
            continue
        begin = float(np.nanmin(times))
        columns = {**part.columns, "time_s": times - begin + at}
        at += float(np.nanmax(times)) - begin
        shifted.append(replace(part, columns=columns))
    return shifted
