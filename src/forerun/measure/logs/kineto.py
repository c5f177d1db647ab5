"""Kineto: Chrome traces of torch.profiler as runs: steps, their parts, exposed communication.

Trace: one rank's Chrome trace: its steps, and who had each moment of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.errors import RequestError
from forerun.measure.logs.opening import bytes_of, head_of, written_s
from forerun.measure.logs.series import Fact, LogSeries

_MICROSECOND = 1e-6


def united(begins: Sequence[float] | FloatArray, ends: Sequence[float] | FloatArray) -> FloatArray:
    """Return the union of spans as disjoint ones in order, (m, 2)."""
    if not len(begins):
        return np.zeros((0, 2))
    spans = np.column_stack([np.asarray(begins, float), np.asarray(ends, float)])
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    reach = np.maximum.accumulate(spans[:, 1])
    first = np.flatnonzero(np.r_[True, spans[1:, 0] > reach[:-1]])
    last = np.r_[first[1:] - 1, len(spans) - 1]
    return np.column_stack([spans[first, 0], reach[last]])


def without(spans: FloatArray, taken: FloatArray) -> FloatArray:
    """Return what of disjoint spans (n, 2) lies in none of other disjoint spans (m, 2)."""
    if not len(spans) or not len(taken):
        return spans
    begins, ends = list[float](), list[float]()
    j = 0
    for begin, end in spans:
        while j and taken[j - 1, 1] > begin:
            j -= 1
        while j < len(taken) and taken[j, 1] <= begin:
            j += 1
        at, k = begin, j
        while k < len(taken) and taken[k, 0] < end:
            if taken[k, 0] > at:
                begins.append(at)
                ends.append(taken[k, 0])
            at = max(at, taken[k, 1])
            k += 1
        if at < end:
            begins.append(at)
            ends.append(end)
    return np.column_stack([begins, ends]) if begins else np.zeros((0, 2))


def within(spans: FloatArray, begin: float, end: float) -> float:
    """Return how much of disjoint spans (n, 2) lies between two times."""
    if not len(spans):
        return 0.0
    return float(
        np.clip(np.minimum(spans[:, 1], end) - np.maximum(spans[:, 0], begin), 0, None).sum()
    )


def contains(spans: FloatArray, times: FloatArray) -> NDArray[np.bool_]:
    """Return which of times (n,) lie in one of disjoint spans (m, 2) in order."""
    if not len(spans):
        return np.zeros(len(times), dtype=bool)
    at = np.searchsorted(spans[:, 0], times, side="right") - 1
    inside: NDArray[np.bool_] = (at >= 0) & (times < spans[np.maximum(at, 0), 1])
    return inside


def divided(
    steps: Mapping[int, tuple[float, float]], groups: Mapping[str, FloatArray], rest: str
) -> dict[int, dict[str, float]]:
    """Return for each step how much of it each group takes; the first group that claims a time has it.

    Args:
        steps: begin and end by number.
        groups: disjoint spans (n, 2) by name, in the order of their claims.
        rest: the name of what no group claims.
    """
    taken = np.zeros((0, 2))
    own: dict[str, FloatArray] = {}
    for name, spans in groups.items():
        own[name] = without(spans, taken)
        both = np.concatenate([taken, spans])
        taken = united(both[:, 0], both[:, 1])
    result = {}
    for number, (begin, end) in steps.items():
        parts = {name: within(spans, begin, end) for name, spans in own.items()}
        parts[rest] = max(0.0, end - begin - sum(parts.values()))
        result[number] = parts
    return result


PARTS = ("input", "forward", "backward", "sync", "optimizer", "other")
_STEP = re.compile(r"ProfilerStep#(\d+)$")
_KERNEL_COMM = re.compile(r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"
                          r"|nvshmem|deep_?ep", re.IGNORECASE)  # fmt: skip
_HOST_COMM = re.compile(r"^(?:gloo|mpi|ucc|xccl|hccl):")
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_ON_HOST = ("cpu_op", "user_annotation", "operator")
Step = tuple[float, float]


@dataclass(frozen=True)
class RankTrace:
    """One rank: begin and end of each step in seconds, and its parts in seconds.

    `parts` has, beside PARTS, `comm`: all communication, hidden or not.
    """

    rank: str
    steps: Mapping[int, Step]
    parts: Mapping[int, Mapping[str, float]]
    world: int = 0
    device: str = ""
    on_device: bool = False

    def joined(self, other: RankTrace) -> RankTrace:
        """Return this rank with the steps of another of its files."""
        return replace(
            self, steps={**self.steps, **other.steps}, parts={**self.parts, **other.parts}
        )


def read_trace(path: Path) -> RankTrace:
    """Return one rank's trace.

    Raises:
        RequestError: it is no whole JSON, or no Chrome trace.
    """
    data, whole = bytes_of(path)
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        cut = "" if whole else " (the gzip file is cut)"
        raise RequestError(
            f"reading {path}", f"it is no whole JSON{cut}: {error}",
            "let the profiler finish writing, or write the trace again",
        ) from None  # fmt: skip
    events = found.get("traceEvents") if isinstance(found, dict) else found
    if not isinstance(events, list):
        raise RequestError(
            f"reading {path}",
            "it has no traceEvents",
            "give what a profiler wrote as a Chrome trace (torch: profile.export_chrome_trace)",
        )
    spans = _Events(events)
    meta: Mapping[str, Any] = found if isinstance(found, dict) else {}
    steps = spans.steps()
    return RankTrace(
        rank=_rank(meta, path), steps=steps, parts=spans.parts(steps), world=_world(meta),
        device=_device(meta), on_device=spans.on_device,
    )  # fmt: skip


def _rank(meta: Mapping[str, Any], path: Path) -> str:
    told = meta.get("distributedInfo")
    rank = told.get("rank") if isinstance(told, dict) else None
    return path.name if rank is None else str(rank)


def _world(meta: Mapping[str, Any]) -> int:
    told = meta.get("distributedInfo")
    world = told.get("world_size") if isinstance(told, dict) else None
    return world if isinstance(world, int) and world > 0 else 0


def _device(meta: Mapping[str, Any]) -> str:
    told = meta.get("deviceProperties")
    names = {str(d.get("name", "")) for d in told if isinstance(d, dict)} if isinstance(told, list) else set()  # fmt: skip
    return names.pop() if len(names) == 1 else ""


class _Events:
    """A trace's complete events, as columns."""

    def __init__(self, events: list[Any]) -> None:
        kept = [e for e in events if _is_span(e)]
        self.names = [str(e.get("name", "")) for e in kept]
        self.cats = np.array([str(e.get("cat", "")).lower() for e in kept], dtype=object)
        self.threads = np.array([f"{e.get('pid')}/{e.get('tid')}" for e in kept], dtype=object)
        self.begins = np.array([float(e["ts"]) for e in kept]) * _MICROSECOND
        self.ends = self.begins + np.array([float(e["dur"]) for e in kept]) * _MICROSECOND
        self.links = [_link(e) for e in kept]
        self.device = np.isin(self.cats, _ON_DEVICE)
        self.on_device = bool((self.cats == "kernel").any())

    def steps(self) -> dict[int, Step]:
        """Return begin and end of each step by the host's marks."""
        found: dict[int, Step] = {}
        for i, name in enumerate(self.names):
            match = _STEP.search(name)
            if match is not None and self.cats[i] != "gpu_user_annotation":
                found.setdefault(int(match[1]), (self.begins[i], self.ends[i]))
        return found

    def parts(self, steps: Mapping[int, Step]) -> dict[int, dict[str, float]]:
        """Return the seconds of each part of each step, and of all communication."""
        work, comm = self._on_device() if self.on_device else self._on_host()
        groups = {**work, "sync": comm, "input": self._named("enumerate(DataLoader)")}
        result = divided(steps, groups, "other")
        for number, (begin, end) in steps.items():
            result[number]["comm"] = within(comm, begin, end)
        return result

    def _spans(self, chosen: Any) -> FloatArray:
        index = np.flatnonzero(np.asarray(chosen, dtype=bool))
        return united(self.begins[index], self.ends[index])

    def _named(self, start: str) -> FloatArray:
        return self._spans([n.startswith(start) for n in self.names])

    def _phases(self) -> tuple[FloatArray, FloatArray]:
        """Return the host's times within the optimizer's step, and within backward."""
        return self._named("Optimizer.step#"), self._named("autograd::engine::evaluate_function")

    def _on_device(self) -> tuple[dict[str, FloatArray], FloatArray]:
        """Return the device's work by the phase of the host that launched it, and communication."""
        comm = np.array(
            [d and _KERNEL_COMM.search(n) is not None
             for d, n in zip(self.device, self.names, strict=True)], dtype=bool,
        )  # fmt: skip
        launches = {
            link: self.begins[i]
            for i, link in enumerate(self.links)
            if link is not None and not self.device[i]
        }
        launched = np.array([launches.get(link, np.nan) for link in self.links], dtype=np.float64)
        optimizer, backward = self._phases()
        work = self.device & ~comm
        stepping, back = contains(optimizer, launched), contains(backward, launched)
        return {
            "optimizer": self._spans(work & stepping),
            "backward": self._spans(work & back & ~stepping),
            "forward": self._spans(work & ~back & ~stepping),
        }, self._spans(comm)

    def _on_host(self) -> tuple[dict[str, FloatArray], FloatArray]:
        """Return the host's operations by phase, and the spans of its communication threads."""
        comm = np.array([_HOST_COMM.search(n) is not None for n in self.names], dtype=bool)
        computing = np.array([n.startswith("aten::") for n in self.names], dtype=bool)
        optimizer, backward = self._phases()
        loading = self._named("enumerate(DataLoader)")
        stepping, back = contains(optimizer, self.begins), contains(backward, self.begins)
        loaded = contains(loading, self.begins)
        work = computing & ~loaded
        return {
            "optimizer": self._spans(work & stepping),
            "backward": self._spans(work & back & ~stepping),
            "forward": self._spans(work & ~back & ~stepping),
        }, self._spans(comm)


def _is_span(event: Any) -> bool:
    if not isinstance(event, dict) or event.get("ph") != "X":
        return False
    ts, dur = event.get("ts"), event.get("dur")
    return (
        isinstance(ts, int | float) and isinstance(dur, int | float) and 0 <= dur < 1e15
        and abs(ts) < 1e18
    )  # fmt: skip


def _link(event: Mapping[str, Any]) -> Any:
    """Return what ties a kernel to the call that launched it, None where nothing does."""
    told = event.get("args")
    if not isinstance(told, dict):
        return None
    link = told.get("correlation")
    return link if isinstance(link, int | str) else None


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
