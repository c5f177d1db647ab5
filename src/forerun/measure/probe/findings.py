"""Findings: what workers measured, made into a catalogue's device and its links."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from forerun.domain.measured import Curve, Exchange, Measured, Update
from forerun.errors import UnsatisfiedError
from forerun.measure.probe.collectives import fitted
from forerun.measure.probe.grids import ROLES
from forerun.measure.probe.machine import BUSY_SPREAD, busy_text, is_busy, sureness
from forerun.measure.probe.worker import NEEDED
from forerun.units import GIGA, TERA


def catalogue_text(entry: Mapping[str, Any]) -> str:
    """Return a catalogue file with one device (`device_entry`), as `--catalog` reads it."""
    import yaml

    fields = {name: value for name, value in entry.items() if name != "id"}
    text: str = yaml.safe_dump(
        {"devices": {entry["id"]: fields}}, default_flow_style=None, sort_keys=False, width=10**9
    )
    return f"# {entry['source']}. Read it with --catalog, or set `catalog` to it.\n{text}"


# Passes over a gradient beside its all-reduce: into its bucket, the division by K, and out again.
_BUCKET_PASSES = 3.0
_PRECISIONS = ("fp64", "fp32", "bf16", "fp16")


def measured_of(found: Mapping[str, Any], about: Mapping[str, str]) -> Measured:
    """Return what one probe found, in seconds of the wall clock.

    A CPU's operations are timed in its own seconds; the share of the clock that a process gets
    makes them seconds of the wall.
    """
    share = float(found["cpu_share"])
    curves = {
        name: Curve(
            tuple(tuple(float(v) for v in axis) for axis in c["axes"]),
            tuple(s / share for s in c["seconds"]),
            float(c["spread"]),
        )
        for name, c in found["curves"].items()
    }
    if found.get("threads", 1) > 1:
        curves |= {n: _cached(c) for n, c in curves.items() if n.endswith("/memory")}
    costs = {name: seconds / share for name, seconds in found["framework"].items()}
    updates = {n: Update(*(s / share for s in u)) for n, u in found["updates"].items()}
    groups = found.get("groups", {})
    replicas = next((g["replicas"] for g in groups.values() if g["replicas"]), [0.0, 0.0])
    memory = next((c for name, c in curves.items() if name.endswith("/memory")), None)
    pass_seconds = memory.seconds[len(memory.seconds) // 2] if memory is not None else 0.0
    alone = {name: tuple(group["together"]) or (1.0,) for name, group in groups.items()}
    return Measured(
        curves,
        updates=updates,
        replica_seconds=replicas[0] / share,
        replica_tensor_seconds=replicas[1] / share,
        replica_parameter_seconds=_BUCKET_PASSES * pass_seconds,
        together=alone.get("intra", (1.0,)),
        hosts_together=alone.get("inter", (1.0,)),
        links={name: exchange_of(group, share) for name, group in groups.items()},
        jitter_seconds=float(found["jitter_seconds"]),
        sureness=sureness(found),
        about=about,
        **costs,
    )


def exchange_of(group: Mapping[str, Any], share: float) -> Exchange:
    """Return the all-reduces and messages of a group of ranks as latencies and rates.

    With a second number of ranks, what grows with them is told from what does not.
    """
    calls = {int(ranks): points for ranks, points in group["all_reduces"].items()}
    most = max(calls)
    fixed, rate = fitted(calls[most], most)
    call, latency = 0.0, fixed / (2.0 * (most - 1))
    if len(calls) > 1:
        few = fitted(calls[min(calls)], min(calls))[0]
        step = max((fixed - few) / (2.0 * (most - min(calls))), 0.0)
        call, latency = max(fixed - 2.0 * (most - 1) * step, 0.0), step
    large = calls[most][-1]
    small = calls[most][0]
    busy = max(large[2] - small[2], 0.0) / large[0] / share
    sent = (0.0, 0.0)  # seconds of a small message, bytes/s of a large one
    if len(messages := group["messages"]) > 1:
        (_, first), (size, last) = messages[0], messages[-1]
        sent = first, size / max(last - first, 1e-9)
    curves = {ranks: _by_size(points) for ranks, points in calls.items()}
    rested = {
        ranks: _rested(group["rested"][str(ranks)], curve) for ranks, curve in curves.items()
        if len(group.get("rested", {}).get(str(ranks), ())) > 1
    }  # fmt: skip
    return Exchange(latency, rate, call, busy, *sent, all_reduces=curves, rested=rested)


def _cached(curve: Curve) -> Curve:
    """Return seconds by footprint, of which none is slower than a larger one.

    Threads that for a moment share a core wait for one another for milliseconds, which the wall clock
    of a small footprint shows most.
    """
    least = np.minimum.accumulate(curve.seconds[::-1])[::-1]
    return replace(curve, seconds=tuple(map(float, least)))


def _by_size(points: Sequence[Sequence[float]]) -> Curve:
    """Return seconds by bytes; a larger buffer is never faster, whatever the noise of the small."""
    seconds = np.maximum.accumulate([point[1] for point in points])
    return Curve((tuple(float(point[0]) for point in points),), tuple(map(float, seconds)))


def _rested(points: Sequence[Sequence[float]], steady: Curve) -> Curve:
    """Return seconds by bytes of an all-reduce to which nothing was sent just before.

    What a buffer adds to one of no size, never more than when one follows the other.
    """
    sizes = np.array([point[0] for point in points])
    walls = np.array([point[1] for point in points])
    seconds = steady.seconds[0] + np.maximum.accumulate(walls - walls[0])
    seconds = np.minimum(seconds, steady.at(sizes))
    return Curve((tuple(map(float, sizes)),), tuple(map(float, seconds)))


def device_entry(
    found: Mapping[str, Any], name: str, precisions: Sequence[str], version: str, place: str
) -> dict[str, Any]:
    """Return the fields of a device in a user's catalogue file, `measured` last.

    Raises:
        UnsatisfiedError: too little was measured in the time given.
    """
    main = precisions[0]
    missing = [n for n in NEEDED if f"{main}/{n}" not in found["curves"]]
    refused = next((n for n in missing if f"{main}/{n}" in found["refused"]), None)
    if refused is not None:
        raise UnsatisfiedError(
            "a measured device", f"{refused} was not timed: {found['refused'][f'{main}/{refused}']}",
            "see that nothing else uses it, or name another of the precisions first (--dtypes)",
        )  # fmt: skip
    if missing:
        raise UnsatisfiedError(
            f"a device measured in {found['seconds']:.0f} s",
            f"there was no time for {', '.join(missing)}"
            + (f": {busy_text(found)}" if is_busy(found) else ""),
            f"{'probe when it is quiet, or ' if is_busy(found) else ''}give it more time: --seconds"
            f" {_enough_seconds(found, len(missing))}",
        )  # fmt: skip
    about = _about(found, version, place)
    measured = measured_of(found, about)
    peaks = {p: peak for p in precisions if (peak := best_flops(measured, p))}
    rate = memory_rate(measured, precisions[0])
    fp32 = peaks.get("fp32", max(peaks.values()))
    across = measured.links.get("inter")
    gpu = str(found["fingerprint"].get("gpu", ""))
    entry: dict[str, Any] = {
        "name": gpu or f"{found['fingerprint'].get('cpu', 'CPU')}, {place}",
        "kind": "gpu" if gpu else "cpu",
        "generation": "probed",
        "memory_gb": _rounded(found["memory_bytes"] / GIGA),
        "memory_gb_per_s": _rounded(rate / GIGA),
        **{f"{p}_tflops": _rounded(v / TERA) for p, v in peaks.items() if p in _PRECISIONS},
        "watts": 0,
        "link_gb_per_s": 0,
        "host_gb_per_s": _rounded(rate / GIGA),
        "devices_per_node": 1,
        "source": about["source"],
    }
    for precision in ("fp32", "bf16", "fp16"):
        entry.setdefault(f"{precision}_tflops", _rounded(fp32 / TERA))
    if across is not None:
        entry["node_gb_per_s"] = _rounded(across.bytes_per_second / GIGA)
    entry["field_sources"] = ";".join(
        f"{field}=not measured" for field in ("watts", "link_gb_per_s", "host_gb_per_s")
    )
    absent = [p for p in ("fp32", "bf16", "fp16") if p not in peaks]
    entry["field_sources"] += "".join(f";{p}_tflops=not measured: as fp32" for p in absent)
    return {"id": name, **entry, "measured": rounded(measured.to_dict())}


def _enough_seconds(found: Mapping[str, Any], missing: int) -> int:
    """Return in how many seconds what every step needs might be timed, from what was so far."""
    timed = len(NEEDED) - missing
    longer = len(NEEDED) / timed if timed else 2.0 * len(NEEDED)
    return math.ceil(1.5 * longer * float(found["seconds"]) / 60.0) * 60


def _about(found: Mapping[str, Any], version: str, place: str) -> dict[str, str]:
    """Return where the figures come from, for a reader of the file."""
    day = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    figures = {name: f"{found[name]:.3f}" for name in ("cpu_share", "cpu_share_spread", "spread")}
    launch = {"launch_seconds": f"{found['launch_seconds']:.3g}"} if found["launch_seconds"] else {}
    return {
        "source": f"forerun probe {version}, {day}, {place}",
        "date": day,
        "probe": version,
        **{name: str(value) for name, value in found["fingerprint"].items()},
        "threads": str(found["threads"]),
        **figures,
        "got_share": f"{found.get('got_share', 1.0):.3f}",
        "not_measured": ", ".join([*found["left_out"], *found["refused"]]),
        **launch,
    }


def best_flops(measured: Measured, precision: str) -> float:
    """Return the highest FLOP/s among the matrix products of a precision; 0 where none was timed."""
    found = (measured.curves.get(f"{precision}/matmul.{role}") for role in ROLES)
    curves = [curve for curve in found if curve is not None]
    flops = [2.0 * np.prod(list(product(*curve.axes)), axis=1) for curve in curves]
    rates = [float((n / curve.seconds).max()) for n, curve in zip(flops, curves, strict=True)]
    return max(rates, default=0.0)


def memory_rate(measured: Measured, precision: str) -> float:
    """Return bytes/s of reading and writing what no cache holds."""
    size = {"fp64": 8.0, "fp32": 4.0}.get(precision, 2.0)
    return 2.0 * size / measured.curves[f"{precision}/memory"].seconds[-1]


def warnings_of(found: Mapping[str, Any]) -> list[str]:
    """Return what a reader must know before relying on the figures."""
    again = "probe again when it is quiet"
    warnings = []
    if is_busy(found):
        fastest = "the fastest of a few repeats" if found.get("threads", 1) > 1 else "so disturbed"
        warnings.append(f"{busy_text(found)}; figures are {fastest}, and bands are wider: {again}")
    if found["spread"] > BUSY_SPREAD:
        warnings.append(
            f"repeats lie {100 * found['spread']:.0f} % apart, as on a busy machine: {again}"
        )
    if found["cpu_share_spread"] > BUSY_SPREAD:
        warnings.append(
            f"a process gets {found['cpu_share']:.2f} of a core, give or take "
            f"{50 * found['cpu_share_spread']:.0f} %: other processes take the rest by turns"
        )
    if found["left_out"]:
        warnings.append(
            f"no time was left for {', '.join(found['left_out'])}; figures of their class serve; give"
            " --seconds more"
        )
    warnings += [
        f"{name} could not be timed: {why}; figures of its class serve"
        for name, why in found["refused"].items()
    ]
    return warnings


def rounded(value: Any) -> Any:
    """Return a tree with its numbers at four digits, as far as they were ever sure."""
    if isinstance(value, Mapping):
        return {k: rounded(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(v) for v in value]
    return _rounded(value) if isinstance(value, float) else value


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
