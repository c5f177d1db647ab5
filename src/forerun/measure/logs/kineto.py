"""Kineto: Chrome traces of torch.profiler as runs: steps, their parts, exposed communication."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from forerun.errors import RequestError
from forerun.measure.logs.opening import bytes_of, head_of, written_s
from forerun.measure.logs.series import Fact, FloatArray, LogSeries
from forerun.measure.logs.trace import PARTS, RankTrace, read_trace

_MICROSECOND = 1e-6
_FORMS = (".json", ".json.gz", ".trace", ".trace.gz")
# The runs table's columns of parts; what no part claims ("other") has none.
_COLUMNS = {name: f"{name}_time_s" for name in PARTS if name != "other"}


def accepts(path: Path) -> bool:
    """Return whether a path is a trace, or a folder with traces directly in it."""
    if path.is_dir():
        return next(_traces(path), None) is not None
    return path.is_file() and _is_trace(path)


def _is_trace(path: Path) -> bool:
    head = head_of(path).lstrip()
    if b'"traceEvents"' in head:
        return True
    if head[:1] == b"[" and b'"ph"' in head:
        return True
    # A trace may begin with long descriptions of the devices.
    return path.name.endswith(_FORMS) and head[:1] == b"{" and b'"traceEvents"' in bytes_of(path)[0]


def _traces(folder: Path) -> Iterator[Path]:
    return (
        p for p in sorted(folder.iterdir())
        if p.is_file() and p.name.endswith(_FORMS) and _is_trace(p)
    )  # fmt: skip


def read_traces(path: Path, pattern: str = "") -> tuple[LogSeries, ...]:
    """Return one run: of a trace, or of a folder's traces, which are its ranks.

    A step's time is the median over ranks, each of its parts the mean over ranks.

    Raises:
        RequestError: a trace is no whole JSON, or has no `ProfilerStep#` marks.
    """
    ranks, files, notes = _ranks(path)
    steps = sorted(set.intersection(*(set(rank.steps) for rank in ranks)))
    if not steps:
        raise RequestError(
            f"reading {path}",
            "no ProfilerStep# mark is in it" + (" that all its ranks share" if len(ranks) > 1 else ""),
            "profile with torch.profiler.profile(schedule=...) and call its step() after each step",
        )  # fmt: skip
    lengths = [[rank.steps[s][1] - rank.steps[s][0] for s in steps] for rank in ranks]
    columns: dict[str, FloatArray] = {
        "step": np.array(steps, dtype=np.float64) + 1,
        "time_s": np.array([ranks[0].steps[s][1] for s in steps]),
        "step_time_s": np.median(lengths, axis=0),
    }
    for part in (*PARTS, "comm"):
        values = np.array([[rank.parts[s][part] for s in steps] for rank in ranks])
        columns[_COLUMNS.get(part, f"{part}_time_s")] = values.mean(axis=0)
    parts = {part: float(np.median(columns[name])) for part, name in _COLUMNS.items()}
    return (LogSeries(
        name=path.name.split(".")[0], reader="kineto", paths=tuple(map(str, files)),
        columns=columns, facts=_facts(ranks), parts=parts, resolution_s=_MICROSECOND,
        written_s=written_s(*files), notes=(*notes, *_said(ranks)),
    ),)  # fmt: skip


def _ranks(path: Path) -> tuple[list[RankTrace], list[Path], list[str]]:
    """Return the trace of each rank; in a folder, files that cannot be read are told, and left out."""
    if not path.is_dir():
        return [read_trace(path)], [path], []
    by_rank: dict[str, RankTrace] = {}
    files, notes = [], []
    for file in _traces(path):
        try:
            trace = read_trace(file)
        except RequestError as error:
            notes.append(f"{file.name} is left out: {error.found}")
            continue
        files.append(file)
        known = by_rank.get(trace.rank)
        by_rank[trace.rank] = trace if known is None else known.joined(trace)
    if not by_rank:
        raise RequestError(f"reading {path}", "; ".join(notes), "write the traces again")
    return list(by_rank.values()), files, notes


def _facts(ranks: Sequence[RankTrace]) -> dict[str, Fact]:
    """Return what the traces say of the job: its processes, and the device where all are alike."""
    facts: dict[str, Fact] = {}
    worlds = {rank.world for rank in ranks if rank.world}
    if len(worlds) == 1:
        facts["devices"] = float(worlds.pop())
    devices = {rank.device for rank in ranks if rank.device}
    if len(devices) == 1:
        facts["device"] = devices.pop()
    return facts


def _said(ranks: Sequence[RankTrace]) -> list[str]:
    on = "kernels" if any(rank.on_device for rank in ranks) else "operations of the CPU"
    notes = [f"parts of a step by {on}, {len(ranks)} of {ranks[0].world or len(ranks)} ranks"]
    if all(p["comm"] == 0 for rank in ranks for p in rank.parts.values()):
        notes.append("no communication is in the trace")
    return notes
