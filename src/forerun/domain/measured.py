"""Measured: what a probe found of one device and framework: curves of operations, calls, and links."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from typing import Any

import numpy as np

from forerun.arrays import FloatArray
from forerun.errors import RequestError


@dataclass(frozen=True)
class Curve:
    """Seconds of one call of an operation on a grid of sizes, in C order.

    axes: increasing values of each size. spread: range of repeats over their median.
    """

    axes: tuple[tuple[float, ...], ...]
    seconds: tuple[float, ...]
    spread: float = field(default=0.0, compare=False)

    def __post_init__(self) -> None:
        count = int(np.prod([len(axis) for axis in self.axes]))
        rising = all(
            all(a < b for a, b in itertools.pairwise(axis)) and axis[0] > 0 for axis in self.axes
        )
        sound = np.isfinite(self.seconds).all() and min(self.seconds, default=0.0) > 0
        if not self.axes or not rising or len(self.seconds) != count or not sound:
            raise RequestError(
                f"a curve of {len(self.seconds)} seconds over {[len(a) for a in self.axes]} sizes",
                "it needs a positive time at each point of its sizes, and sizes that increase",
                "measure again (forerun probe), or correct the curve",
            )

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Curve:
        """Return a curve of plain values. Raises KeyError, TypeError, ValueError or RequestError."""
        axes = tuple(tuple(map(float, axis)) for axis in data["axes"])
        return Curve(axes, tuple(map(float, data["seconds"])), float(data.get("spread", 0.0)))

    @cached_property
    def _logs(self) -> FloatArray:
        logs: FloatArray = np.log(np.asarray(self.seconds, dtype=np.float64))
        return logs.reshape([len(a) for a in self.axes])

    def at(self, *sizes: Any) -> FloatArray:
        """Return seconds at sizes, arrays of one shape: straight lines between logarithms.

        Proportional beyond the largest size measured, constant below the smallest.
        """
        found: FloatArray = np.zeros(np.broadcast_shapes(*(np.shape(s) for s in sizes)))
        lower, share = [], []
        for axis, size in zip(self.axes, sizes, strict=True):
            logs, sought = np.log(axis), np.log(np.maximum(size, 1e-300))
            found = found + np.maximum(sought - logs[-1], 0.0)
            last = len(axis) - 1
            place = np.clip(np.searchsorted(logs, sought, side="right") - 1, 0, max(last - 1, 0))
            step = logs[np.minimum(place + 1, last)] - logs[place]
            part = (sought - logs[place]) / np.where(step > 0, step, np.inf)
            lower.append(place)
            share.append(np.clip(part, 0.0, 1.0))
        for corner in itertools.product((0, 1), repeat=len(self.axes)):
            weight: Any = 1.0
            index = []
            for up, place, part, axis in zip(corner, lower, share, self.axes, strict=True):
                weight = weight * (part if up else 1.0 - part)
                index.append(np.minimum(place + up, len(axis) - 1))
            found = found + weight * self._logs[tuple(index)]
        return np.exp(found)


def sound_numbers(values: Mapping[Any, Any]) -> dict[str, float]:
    """Return values as numbers. Raises ValueError for what is negative or not finite."""
    numbers = {str(name): float(value) for name, value in values.items()}
    for name, number in numbers.items():
        if not (np.isfinite(number) and number >= 0):
            raise ValueError(f"{name} is {number}")
    return numbers


_BY_RANKS = ("all_reduces", "rested")  # fields of an `Exchange`


@dataclass(frozen=True)
class Exchange:
    """What processes meet when they talk over one kind of link.

    Attributes:
        latency_seconds: of each of the 2 (K - 1) steps of an all-reduce among K.
        bytes_per_second: at which a ring carries a buffer, a process and direction.
        call_seconds: of a collective, whatever its size and ranks.
        busy_seconds_per_byte: of the processor's time for a byte of the buffer.
        send_latency_seconds, send_bytes_per_second: of a message from one process to another.
        all_reduces: seconds by the bytes of the buffer, for each number of ranks.
        rested: the same after a pause, where links let some bytes through at once (token buckets).
    """

    latency_seconds: float
    bytes_per_second: float
    call_seconds: float = 0.0
    busy_seconds_per_byte: float = 0.0
    send_latency_seconds: float = 0.0
    send_bytes_per_second: float = 0.0
    all_reduces: Mapping[int, Curve] = field(default_factory=dict)
    rested: Mapping[int, Curve] = field(default_factory=dict)

    def spared_seconds(self, size: float, ranks: float) -> float:
        """Return by how much an all-reduce is faster after a pause."""
        if ranks <= 1 or not self.rested:
            return 0.0
        tried = sorted(self.rested)
        found = []
        for k in tried:
            # A link's bucket is as large for many ranks as for few, and for all larger buffers.
            known = np.clip(size, self.rested[k].axes[0][0], self.rested[k].axes[0][-1])
            found.append(float(self.all_reduces[k].at(known) - self.rested[k].at(known)))
        return max(float(np.interp(ranks, tried, found)), 0.0)

    def all_reduce_seconds(self, size: float, ranks: float) -> float:
        """Return the seconds of an all-reduce of `size` bytes among ranks.

        Beyond those tried it grows by a ring's steps and volume (Patarasuk and Yuan 2009).
        """
        if ranks <= 1:
            return 0.0
        if not self.all_reduces:
            moved = 2.0 * (ranks - 1.0) / ranks * size
            steps = 2.0 * (ranks - 1.0) * self.latency_seconds
            return self.call_seconds + steps + moved / self.bytes_per_second
        tried = sorted(self.all_reduces)
        found = [float(self.all_reduces[k].at(size)) for k in tried]
        if tried[0] <= ranks <= tried[-1]:
            return float(np.interp(ranks, tried, found))
        near = tried[0] if ranks < tried[0] else tried[-1]
        whole = found[tried.index(near)]
        fixed = min(self.all_reduces[near].seconds[0], whole)
        steps = (ranks - 1.0) / (near - 1.0)
        return fixed * steps + (whole - fixed) * steps * near / ranks

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Exchange:
        """Return an exchange of plain values. Raises as `Curve.from_dict` does."""
        values = dict(data)
        curves = {
            name: {int(k): Curve.from_dict(c) for k, c in values.pop(name, {}).items()}
            for name in _BY_RANKS
        }
        if any(ranks < 2 for held in curves.values() for ranks in held):
            raise ValueError("an all-reduce takes two ranks or more")
        if not set(curves["rested"]) <= set(curves["all_reduces"]):
            raise ValueError("rested all-reduces need all-reduces of as many ranks")
        given: dict[str, Any] = {**sound_numbers(values), **curves}
        return Exchange(**given)


@dataclass(frozen=True)
class Update:
    """Seconds of an optimizer's step, and more for each parameter tensor and each parameter."""

    step_seconds: float
    tensor_seconds: float
    parameter_seconds: float


@dataclass(frozen=True)
class Measured:
    """What a probe measured of one device with one framework.

    Attributes:
        curves: seconds by `precision/operation`: products (`matmul.forward`, `.dgrad`, `.wgrad`; sizes:
            rows, columns, depth), convolutions, attention (tokens, head, heads), what moves elements, by
            the framework's name or its class (sizes: elements, width of a row), and `memory`: one
            element read and written, by the bytes gone through in turn.
        forward_call_seconds, backward_call_seconds: of the framework for each operation.
        cold_call_seconds: by which an operation takes longer where none of its kind ran since a pause.
        gradient_seconds: to keep one parameter tensor's gradient.
        step_seconds: of a step beside its operations.
        batch_seconds, sample_seconds: of the loader for a batch, and for each of its samples.
        message_seconds, message_byte_seconds: of one side of a push to a parameter server and its answer,
            and for each byte of both; 0 where they were not measured.
        replica_seconds, replica_tensor_seconds, replica_parameter_seconds: of keeping replicas alike
            beside all-reduces, for a step, a parameter tensor and a parameter.
        together, hosts_together: how much slower each of n processes on a host, or n hosts, is.
        co_running: how much slower each of n threads multiplies by the same weights (sizes: bytes of the
            weights, threads); None where a core or less was there.
        links: `intra` and `inter`, where they were measured.
        jitter_seconds: standard deviation of the time of a piece of work beyond its share.
        rested_work_seconds: by which work after a pause is done sooner than its share of a core lets it,
            at most, as where a quota is kept by the period.
        sureness: 1 where nothing disturbed the measurement, towards 0 on a busy machine.
        about: where, when and with which versions; `threads` and `cpu_share` it was measured on.
    """

    curves: Mapping[str, Curve]
    forward_call_seconds: float = 0.0
    backward_call_seconds: float = 0.0
    cold_call_seconds: float = 0.0
    gradient_seconds: float = 0.0
    step_seconds: float = 0.0
    batch_seconds: float = 0.0
    sample_seconds: float = 0.0
    message_seconds: float = 0.0
    message_byte_seconds: float = 0.0
    updates: Mapping[str, Update] = field(default_factory=dict)
    replica_seconds: float = 0.0
    replica_tensor_seconds: float = 0.0
    replica_parameter_seconds: float = 0.0
    together: tuple[float, ...] = (1.0,)
    hosts_together: tuple[float, ...] = (1.0,)
    co_running: Curve | None = None
    links: Mapping[str, Exchange] = field(default_factory=dict)
    jitter_seconds: float = 0.0
    rested_work_seconds: float = 0.0
    sureness: float = 1.0
    about: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def threads(self) -> float:
        """Threads of an operation while it was timed; 0 where `about` does not say."""
        return self._number("threads")

    @property
    def cores(self) -> float:
        """Cores that the process got, a part of one under a quota; 0 where `about` does not say."""
        return self._number("cpu_share") if self.threads <= 1.0 else self.threads

    def _number(self, name: str) -> float:
        try:
            value = float(self.about.get(name) or 0.0)
        except ValueError:
            return 0.0
        return value if math.isfinite(value) and value > 0 else 0.0

    def curve(self, precision: str, names: Sequence[str]) -> Curve | None:
        """Return the first curve among names in this precision, else in fp32; None if there is none."""
        asked = (f"{number}/{name}" for number in (precision, "fp32") for name in names)
        return next((self.curves[name] for name in asked if name in self.curves), None)

    def slowdown(self, processes: float, hosts: float) -> float:
        """Return how much slower a process is with so many on its host, on so many hosts."""
        return _between(self.together, processes) * _between(self.hosts_together, hosts)

    def thread_slowdown(self, weight_bytes: Any, threads: Any) -> FloatArray:
        """Return how much slower each of so many threads is, all of them at the same weights; 1 of no measurement.

        C_muladd(H) over C_muladd(1) of Yan et al. 2015. Beyond the threads measured it goes on as their power.
        """
        if self.co_running is None:
            return np.ones(np.broadcast_shapes(np.shape(weight_bytes), np.shape(threads)))
        sizes, counts = self.co_running.axes
        within = np.minimum(threads, counts[-1])
        found = self.co_running.at(np.clip(weight_bytes, sizes[0], sizes[-1]), within)
        beyond = np.log(np.maximum(threads, counts[-1])) / np.log(counts[-1])
        return np.asarray(found**beyond)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as `from_dict` reads them."""
        return dict(_plain(self))

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Measured:
        """Return what `to_dict` wrote. Raises RequestError for a field not known, missing, or no positive number."""
        try:
            values = dict(data)
            curves = {str(k): Curve.from_dict(c) for k, c in values.pop("curves").items()}
            updates = {
                str(k): Update(**sound_numbers(v)) for k, v in values.pop("updates", {}).items()
            }
            links = {str(k): Exchange.from_dict(v) for k, v in values.pop("links", {}).items()}
            if values.get("co_running") is not None:
                values["co_running"] = Curve.from_dict(values["co_running"])
            co_running = values.pop("co_running", None)
            about = {str(k): str(v) for k, v in values.pop("about", {}).items()}
            together, hosts = (
                tuple(sound_numbers(dict(enumerate(values.pop(name, (1.0,))))).values())
                for name in ("together", "hosts_together")
            )
            return Measured(
                curves, updates=updates, co_running=co_running, links=links, about=about,
                together=together, hosts_together=hosts, **sound_numbers(values),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RequestError(
                "figures that a probe measured", f"a part is missing or wrong: {error!r}",
                "measure again (forerun probe), or correct the file",
            ) from None  # fmt: skip


def _plain(value: Any) -> Any:
    """Return a value as mappings, lists and numbers; what is usual of a few fields is left out."""
    if is_dataclass(value):
        held = {f.name: getattr(value, f.name) for f in fields(value)}
        return {n: _plain(v) for n, v in held.items() if n not in _USUAL or v != _USUAL[n]}
    if isinstance(value, Mapping):
        return {str(key): _plain(held) for key, held in value.items()}
    return [_plain(held) for held in value] if isinstance(value, tuple) else value


_USUAL: Mapping[str, Any] = {"sureness": 1.0, "rested": {}, "co_running": None}


def _between(values: tuple[float, ...], count: float) -> float:
    if len(values) == 1:
        return values[0]
    if count > len(values):
        return values[-1] + (values[-1] - values[-2]) * (count - len(values))
    return float(np.interp(count, np.arange(1, len(values) + 1), values))
