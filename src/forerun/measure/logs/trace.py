"""Trace: one rank's Chrome trace: its steps, and who had each moment of them.

A moment belongs to the first that claims it: computation that hides communication is computation;
communication with no computation beside it is `sync` (exposed, with its waiting for others); then
input, and what is left is `other` (the host between operations, or a device that waits for it).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from forerun.errors import RequestError
from forerun.measure.logs.opening import bytes_of
from forerun.measure.logs.series import FloatArray
from forerun.measure.logs.spans import contains, divided, united, within

PARTS = ("input", "forward", "backward", "sync", "optimizer", "other")
_STEP = re.compile(r"ProfilerStep#(\d+)$")
_KERNEL_COMM = re.compile(r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"
                          r"|nvshmem|deep_?ep", re.IGNORECASE)  # fmt: skip
_HOST_COMM = re.compile(r"^(?:gloo|mpi|ucc|xccl|hccl):")
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_ON_HOST = ("cpu_op", "user_annotation", "operator")
_MICROSECOND = 1e-6
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
