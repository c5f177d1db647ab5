"""Kineto: Chrome traces of torch.profiler as runs: steps, their parts, exposed communication."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.errors import RequestError
from forerun.measure.logs.files import bytes_of, head_of, mapping_of, written_s
from forerun.measure.logs.series import Fact, LogSeries

_MICROSECOND = 1e-6
PARTS = ("input", "forward", "backward", "sync", "optimizer", "other")
# The runs table's columns of parts; what no part claims ("other") has none.
_COLUMNS = {name: f"{name}_time_s" for name in PARTS if name != "other"}
_STEP = re.compile(r"ProfilerStep#(\d+)$")
_KERNEL_COMM = re.compile(r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"
                          r"|nvshmem|deep_?ep", re.IGNORECASE)  # fmt: skip
_HOST_COMM = re.compile(r"^(?:gloo|mpi|ucc|xccl|hccl):")
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_FORMS = (".json", ".json.gz", ".trace", ".trace.gz")
Step = tuple[float, float]


@dataclass(frozen=True)
class RankTrace:
    """One rank: begin and end of each step in seconds, and its parts in seconds.

    `parts` has, beside PARTS, `comm`: all communication, hidden or not.
    """

    rank: str
    steps: Mapping[int, Step]
    parts: Mapping[int, Mapping[str, float]]
    world: int
    device: str
    on_device: bool


def united(begins: FloatArray, ends: FloatArray) -> FloatArray:
    """Return the union of spans as disjoint ones in order, (m, 2)."""
    if not len(begins):
        return np.zeros((0, 2))
    order = np.argsort(begins, kind="stable")
    begins, reach = begins[order], np.maximum.accumulate(ends[order])
    first = np.flatnonzero(np.r_[True, begins[1:] > reach[:-1]])
    return np.column_stack([begins[first], reach[np.r_[first[1:] - 1, len(begins) - 1]]])


def contains(spans: FloatArray, times: FloatArray) -> NDArray[np.bool_]:
    """Return which of times (n,) lie in one of disjoint spans (m, 2) in order."""
    if not len(spans):
        return np.zeros(len(times), dtype=bool)
    at = np.searchsorted(spans[:, 0], times, side="right") - 1
    inside: NDArray[np.bool_] = (at >= 0) & (times < spans[np.maximum(at, 0), 1])
    return inside


def divided(
    steps: Mapping[int, Step], groups: Mapping[str, FloatArray]
) -> dict[int, dict[str, float]]:
    """Return how much of each step each group takes; the first that claims a moment has it.

    Args:
        steps: begin and end by number.
        groups: disjoint spans (n, 2) by name, in the order of their claims; what none claims is
            `other`, and all of `sync`, claimed by others or not, is `comm`.
    """
    bounds = [np.array(list(steps.values())), *groups.values()]
    edges = np.unique(np.concatenate([spans.ravel() for spans in bounds]))
    length, middle = np.diff(edges), (edges[1:] + edges[:-1]) / 2
    held = np.array([contains(spans, middle) for spans in groups.values()])
    owner = np.where(held.any(axis=0), held.argmax(axis=0), len(groups))
    names, comm = [*groups, "other"], held[[*groups].index("sync")]
    result = {}
    for number, (begin, end) in steps.items():
        inside = (middle >= begin) & (middle < end)
        seconds = np.bincount(owner[inside], length[inside], len(names)).tolist()
        result[number] = dict(zip(names, seconds, strict=True))
        result[number]["comm"] = float(length[inside & comm].sum())
    return result


def read_trace(path: Path) -> RankTrace:
    """Return one rank's trace. Raises RequestError where it is no whole JSON, or no trace."""
    try:
        found = json.loads(bytes_of(path))
    except (ValueError, RecursionError) as error:
        raise RequestError(
            f"reading {path}", f"it is no whole JSON: {error}",
            "let the profiler finish writing, or write the trace again",
        ) from None  # fmt: skip
    meta = mapping_of(found)
    listed = meta.get("traceEvents") if meta else found
    if not isinstance(listed, list):
        raise RequestError(
            f"reading {path}",
            "it has no traceEvents",
            "give what a profiler wrote as a Chrome trace (torch: profile.export_chrome_trace)",
        )
    events = _Events([e for e in listed if _is_span(e)])
    steps = events.steps()
    job = mapping_of(meta.get("distributedInfo"))
    rank, world = job.get("rank"), job.get("world_size")
    devices = meta.get("deviceProperties")
    names = (
        {str(mapping_of(d).get("name", "")) for d in devices} if isinstance(devices, list) else {""}
    )
    return RankTrace(
        path.name if rank is None else str(rank), steps, divided(steps, events.groups()) if steps else {},
        world if isinstance(world, int) and world > 0 else 0,
        names.pop() if len(names) == 1 else "", events.on_device,
    )  # fmt: skip


def _is_span(event: Any) -> bool:
    event = mapping_of(event)
    ts, dur = event.get("ts"), event.get("dur")
    numbers = isinstance(ts, int | float) and isinstance(dur, int | float)
    return event.get("ph") == "X" and numbers and 0 <= dur < 1e15 and abs(ts) < 1e18


class _Events:
    """A trace's complete events, as columns."""

    def __init__(self, events: list[Any]) -> None:
        self.names = [str(e.get("name", "")) for e in events]
        cats = np.array([str(e.get("cat", "")).lower() for e in events], dtype=object)
        self.begins = np.array([float(e["ts"]) for e in events]) * _MICROSECOND
        self.ends = self.begins + np.array([float(e["dur"]) for e in events]) * _MICROSECOND
        self.links = [_link(e) for e in events]
        self.device = np.isin(cats, _ON_DEVICE)
        self.echo = cats == "gpu_user_annotation"
        self.on_device = bool((cats == "kernel").any())

    def steps(self) -> dict[int, Step]:
        """Return begin and end of each step by the host's marks."""
        found: dict[int, Step] = {}
        for i, name in enumerate(self.names):
            match = _STEP.search(name)
            if match is not None and not self.echo[i]:
                found.setdefault(int(match[1]), (self.begins[i], self.ends[i]))
        return found

    def groups(self) -> dict[str, FloatArray]:
        """Return spans by part: the device's work, or without one the host's, by the host's phase.

        A kernel is of the phase in which the host launched it, an operation of that in which it
        began. Communication is that of the device's kernels, or of the host's own threads.
        """
        loading = self._named("enumerate(DataLoader)")
        if self.on_device:
            comm = self.device & self._which(_KERNEL_COMM.search)
            work = self.device & ~comm
            launches = {
                link: self.begins[i]
                for i, link in enumerate(self.links)
                if link is not None and not self.device[i]
            }
            begun = np.array([launches.get(link, np.nan) for link in self.links], dtype=np.float64)
        else:
            comm, begun = self._which(_HOST_COMM.search), self.begins
            work = self._which(lambda name: name.startswith("aten::")) & ~contains(loading, begun)
        stepping = contains(self._named("Optimizer.step#"), begun)
        backward = contains(self._named("autograd::engine::evaluate_function"), begun) & ~stepping
        return {
            "optimizer": self._spans(work & stepping),
            "backward": self._spans(work & backward),
            "forward": self._spans(work & ~backward & ~stepping),
            "sync": self._spans(comm),
            "input": loading,
        }

    def _which(self, test: Callable[[str], object]) -> NDArray[np.bool_]:
        return np.array([bool(test(name)) for name in self.names], dtype=bool)

    def _spans(self, chosen: NDArray[np.bool_]) -> FloatArray:
        return united(self.begins[chosen], self.ends[chosen])

    def _named(self, start: str) -> FloatArray:
        return self._spans(self._which(lambda name: name.startswith(start)))


def _link(event: Mapping[str, Any]) -> Any:
    """Return what ties a kernel to the call that launched it, None where nothing does."""
    link = mapping_of(event.get("args")).get("correlation")
    return link if isinstance(link, int | str) else None


def accepts(path: Path) -> bool:
    """Return whether a path is a trace, or a folder with traces directly in it."""
    if path.is_dir():
        return next(_traces(path), None) is not None
    return path.is_file() and _is_trace(path)


def _is_trace(path: Path) -> bool:
    head = head_of(path).lstrip()
    if b'"traceEvents"' in head or (head[:1] == b"[" and b'"ph"' in head):
        return True
    # A trace may begin with long descriptions of the devices.
    return path.name.endswith(_FORMS) and head[:1] == b"{" and b'"traceEvents"' in bytes_of(path)


def _traces(folder: Path) -> Iterator[Path]:
    return (
        p for p in sorted(folder.iterdir())
        if p.is_file() and p.name.endswith(_FORMS) and _is_trace(p)
    )  # fmt: skip


def read(path: Path, pattern: str = "") -> tuple[LogSeries, ...]:
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
        columns[f"{part}_time_s"] = values.mean(axis=0)
    facts: dict[str, Fact] = {}
    if len(worlds := {rank.world for rank in ranks if rank.world}) == 1:
        facts["devices"] = float(worlds.pop())
    if len(devices := {rank.device for rank in ranks if rank.device}) == 1:
        facts["device"] = devices.pop()
    on = "kernels" if any(rank.on_device for rank in ranks) else "operations of the CPU"
    notes.append(f"parts of a step by {on}, {len(ranks)} of {ranks[0].world or len(ranks)} ranks")
    if not columns["comm_time_s"].any():
        notes.append("no communication is in the trace")
    return (LogSeries(
        name=path.name.split(".")[0], reader="kineto", paths=tuple(map(str, files)),
        columns=columns, facts=facts, resolution_s=_MICROSECOND, written_s=written_s(*files),
        parts={part: float(np.median(columns[name])) for part, name in _COLUMNS.items()},
        notes=tuple(notes),
    ),)  # fmt: skip


def _ranks(path: Path) -> tuple[Sequence[RankTrace], list[Path], list[str]]:
    """Return the trace of each rank; in a folder, files that cannot be read are noted."""
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
        if before := by_rank.get(trace.rank):
            steps, parts = {**before.steps, **trace.steps}, {**before.parts, **trace.parts}
            trace = replace(trace, steps=steps, parts=parts)
        by_rank[trace.rank] = trace
    if not by_rank:
        raise RequestError(f"reading {path}", "; ".join(notes), "write the traces again")
    return list(by_rank.values()), files, notes
