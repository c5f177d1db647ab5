"""Kineto: Chrome traces of torch.profiler as runs: steps, their parts, exposed communication."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.errors import RequestError
from forerun.measure.logs.files import bytes_of, head_of, mapping_of, written_s
from forerun.measure.logs.series import Fact, LogSeries

_MICROSECOND = 1e-6
_STEP = re.compile(r"ProfilerStep#(\d+)$")
_KERNEL_COMM = re.compile(r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"
                          r"|nvshmem|deep_?ep", re.IGNORECASE)  # fmt: skip
_HOST_COMM = re.compile(r"^(?:gloo|mpi|ucc|xccl|hccl):")
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_FORMS = (".json", ".json.gz", ".trace", ".trace.gz")


Steps = dict[int, dict[str, float]]  # columns by the step's number


def contains(spans: FloatArray, times: FloatArray) -> NDArray[np.bool_]:
    """Return which of times (n,) lie in one of disjoint spans (m, 2) in order."""
    if not len(spans):
        return np.zeros(len(times), dtype=bool)
    at = np.searchsorted(spans[:, 0], times, side="right") - 1
    inside: NDArray[np.bool_] = (at >= 0) & (times < spans[np.maximum(at, 0), 1])
    return inside


def divided(
    steps: Mapping[int, tuple[float, float]], groups: Mapping[str, FloatArray]
) -> dict[int, dict[str, float]]:
    """Return the columns of each step (begin, end); a moment is of the first group of spans that claims it."""
    bounds = [np.array(list(steps.values())), *groups.values()]
    edges = np.unique(np.concatenate([spans.ravel() for spans in bounds]))
    length, middle = np.diff(edges), (edges[1:] + edges[:-1]) / 2
    held = np.array([contains(spans, middle) for spans in groups.values()])
    owner = np.where(held.any(axis=0), held.argmax(axis=0), len(groups))
    comm, result = held[[*groups].index("sync")], {}
    for number, (begin, end) in steps.items():
        inside = (middle >= begin) & (middle < end)
        seconds = np.bincount(owner[inside], length[inside], len(groups) + 1).tolist()
        names = (f"{name}_time_s" for name in (*groups, "other"))
        result[number] = {
            "time_s": end, "step_time_s": end - begin, **dict(zip(names, seconds, strict=True)),
            "comm_time_s": float(length[inside & comm].sum()),
        }  # fmt: skip
    return result


def read_trace(path: Path) -> tuple[str, Steps, dict[str, Fact], bool]:
    """Return (rank, steps, facts, whether it has kernels) of a trace. Raises RequestError."""
    asked = f"reading {path}"
    try:
        found = json.loads(bytes_of(path))
    except (ValueError, RecursionError) as error:
        todo = "let the profiler finish writing, or write the trace again"
        raise RequestError(asked, f"it is no whole JSON: {error}", todo) from None
    meta = mapping_of(found)
    listed = meta.get("traceEvents") if meta else found
    if not isinstance(listed, list):
        todo = "give what a profiler wrote as a Chrome trace (torch: profile.export_chrome_trace)"
        raise RequestError(asked, "it has no traceEvents", todo)
    events = [event for event in map(mapping_of, listed) if _is_span(event)]
    names = [str(event.get("name", "")) for event in events]
    cats = np.array([str(event.get("cat", "")).lower() for event in events], dtype=object)
    begins = np.array([float(event["ts"]) for event in events]) * _MICROSECOND
    ends = begins + np.array([float(event["dur"]) for event in events]) * _MICROSECOND
    steps: dict[int, tuple[float, float]] = {}
    for name, cat, begin, end in zip(names, cats, begins, ends, strict=True):
        if cat != "gpu_user_annotation" and (match := _STEP.search(name)):  # no echo on the device
            steps.setdefault(int(match[1]), (float(begin), float(end)))
    facts: dict[str, Fact] = {}
    job, devices = mapping_of(meta.get("distributedInfo")), meta.get("deviceProperties")
    rank, world = job.get("rank"), job.get("world_size")
    if isinstance(world, int) and world > 0:
        facts["devices"] = float(world)
    devices = map(mapping_of, devices) if isinstance(devices, list) else ()
    kinds = {str(device.get("name", "")) for device in devices}
    if len(kinds) == 1:
        facts["device"] = kinds.pop()
    columns = divided(steps, _parts(events, names, cats, begins, ends)) if steps else {}
    return path.name if rank is None else str(rank), columns, facts, bool((cats == "kernel").any())


def _is_span(event: Mapping[str, Any]) -> bool:
    ts, dur = event.get("ts"), event.get("dur")
    if not (isinstance(ts, int | float) and isinstance(dur, int | float)):
        return False
    return event.get("ph") == "X" and 0 <= dur < 1e15 and abs(ts) < 1e18


def _parts(
    events: Sequence[Mapping[str, Any]], names: Sequence[str], cats: NDArray[np.object_],
    begins: FloatArray, ends: FloatArray,
) -> dict[str, FloatArray]:  # fmt: skip
    """Return spans by part: the device's work by the phase of its launch, or the host's by its begin."""

    def which(test: Callable[[str], object]) -> NDArray[np.bool_]:
        return np.array([bool(test(name)) for name in names], dtype=bool)

    def spans(chosen: NDArray[np.bool_]) -> FloatArray:  # their union, as disjoint ones in order
        if not chosen.any():
            return np.zeros((0, 2))
        order = np.flatnonzero(chosen)[np.argsort(begins[chosen], kind="stable")]
        begin, reach = begins[order], np.maximum.accumulate(ends[order])
        first = np.flatnonzero(np.r_[True, begin[1:] > reach[:-1]])
        return np.column_stack([begin[first], reach[np.r_[first[1:] - 1, len(begin) - 1]]])

    def named(start: str) -> FloatArray:
        return spans(which(lambda name: name.startswith(start)))

    loading = named("enumerate(DataLoader)")
    if (cats == "kernel").any():
        device = np.isin(cats, _ON_DEVICE)
        comm = device & which(_KERNEL_COMM.search)
        work = device & ~comm
        links = [mapping_of(event.get("args")).get("correlation") for event in events]
        links = [link if isinstance(link, int | str) else None for link in links]
        launches = {link: begins[i] for i, link in enumerate(links) if not device[i]}
        launches.pop(None, None)
        begun = np.array([launches.get(link, np.nan) for link in links], dtype=np.float64)
    else:
        comm, begun = which(_HOST_COMM.search), begins
        work = which(lambda name: name.startswith("aten::")) & ~contains(loading, begun)
    stepping = contains(named("Optimizer.step#"), begun)
    backward = contains(named("autograd::engine::evaluate_function"), begun) & ~stepping
    return {
        "optimizer": spans(work & stepping), "backward": spans(work & backward),
        "forward": spans(work & ~backward & ~stepping), "sync": spans(comm), "input": loading,
    }  # fmt: skip


def accepts(path: Path) -> bool:
    """Return whether a path is a trace, or a folder with traces directly in it."""
    return any(_traces(path)) if path.is_dir() else path.is_file() and _is_trace(path)


def _is_trace(path: Path) -> bool:
    head = head_of(path).lstrip()
    if b'"traceEvents"' in head or (head[:1] == b"[" and b'"ph"' in head):
        return True
    # A trace may begin with long descriptions of the devices.
    return path.name.endswith(_FORMS) and head[:1] == b"{" and b'"traceEvents"' in bytes_of(path)


def _traces(folder: Path) -> Iterator[Path]:
    files = (p for p in sorted(folder.iterdir()) if p.is_file() and p.name.endswith(_FORMS))
    return filter(_is_trace, files)


def read(path: Path, pattern: str = "") -> tuple[LogSeries, ...]:
    """Return one run, of a trace or of a folder's, which are its ranks. Raises RequestError."""
    by_rank: dict[str, Steps] = {}
    facts: dict[str, Fact] = {}
    files, notes, on = [], [], "operations of the CPU"
    for file in _traces(path) if path.is_dir() else [path]:
        try:
            rank, steps, own, has_kernels = read_trace(file)
        except RequestError as error:
            if not path.is_dir():
                raise
            notes.append(f"{file.name} is left out: {error.found}")
            continue
        files.append(file)
        by_rank.setdefault(rank, {}).update(steps)
        facts |= own
        on = "kernels" if has_kernels else on
    if not by_rank:
        raise RequestError(f"reading {path}", "; ".join(notes), "write the traces again")
    ranks = list(by_rank.values())
    numbers = sorted(set.intersection(*map(set, ranks)))
    if not numbers:
        found = "no ProfilerStep# mark is in it" + " that all its ranks share" * (len(ranks) > 1)
        todo = (
            "profile with torch.profiler.profile(schedule=...) and call its step() after each step"
        )
        raise RequestError(f"reading {path}", found, todo)
    columns: dict[str, FloatArray] = {"step": np.array(numbers, dtype=np.float64) + 1}
    for name in ranks[0][numbers[0]]:
        values = np.array([[of[number][name] for number in numbers] for of in ranks])
        join = np.median if name == "step_time_s" else np.mean
        columns[name] = values[0] if name == "time_s" else join(values, axis=0)
    world = facts.get("devices", len(ranks))
    notes.append(f"parts of a step by {on}, {len(ranks)} of {world:g} ranks")
    if not columns["comm_time_s"].any():
        notes.append("no communication is in the trace")
    return (LogSeries(
        name=path.name.split(".")[0], reader="kineto", paths=tuple(map(str, files)),
        columns=columns, facts=facts, resolution_s=_MICROSECOND, written_s=written_s(*files),
        notes=tuple(notes),
    ),)  # fmt: skip
