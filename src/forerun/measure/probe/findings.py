"""Findings: what workers measured, made into a catalogue's device and its links.

Files: a probed device as a user's catalogue file, YAML that a person can read.
"""

from __future__ import annotations

import datetime
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from forerun.domain.measured import Curve, Exchange, Measured, Update
from forerun.errors import UnsatisfiedError
from forerun.measure.probe.collectives import fitted
from forerun.measure.probe.machine import BUSY_SPREAD, busy_text, is_busy, sureness
from forerun.measure.probe.worker import NEEDED
from forerun.units import GIGA, TERA


def catalogue_text(entry: Mapping[str, Any]) -> str:
    """Return a catalogue file with one device, as `--catalog` reads it: short figures first.

    entry: what `findings.device_entry` returns.
    """
    import yaml

    fields = {k: v for k, v in entry.items() if k not in ("id", "measured")}
    out = io.StringIO()
    out.write(f"# {entry['source']}. Read it with --catalog, or set `catalog` to it.\n")
    out.write(f"devices:\n  {yaml.safe_dump(str(entry['id'])).splitlines()[0]}:\n")
    for name, value in fields.items():
        out.write(f"    {name}: {_flow(yaml, value)}\n")
    out.write("    # Seconds by size; see docs/probe.md.\n    measured:\n")
    for name, value in entry["measured"].items():
        if isinstance(value, Mapping) and value:
            out.write(f"      {name}:\n")
            for key, inner in value.items():
                out.write(f"        {_flow(yaml, key)}: {_flow(yaml, inner)}\n")
        else:
            out.write(f"      {name}: {_flow(yaml, value)}\n")
    return out.getvalue()


def _flow(yaml: Any, value: Any) -> str:
    """Return a value on one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10**9, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


# Passes over a gradient beside its all-reduce: into its bucket, the division by K, and out again.
_BUCKET_PASSES = 3.0
# What figures of a busy machine are: of one thread, and of several.
_BUSY_FIGURES = (
    "figures are those of a machine so busy", "figures are the fastest of a few repeats"
)  # fmt: skip
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
    messages = group["messages"]
    sent = _line(messages) if len(messages) > 1 else (0.0, 0.0)
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


def _line(points: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return (seconds of a small message, bytes/s of a large one)."""
    smallest, largest = points[0], points[-1]
    return smallest[1], largest[0] / max(largest[1] - smallest[1], 1e-9)


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
    machine = found["fingerprint"]
    return {
        "source": f"forerun probe {version}, {day}, {place}",
        "date": day,
        "probe": version,
        **{k: str(v) for k, v in machine.items()},
        "threads": str(found["threads"]),
        "cpu_share": f"{found['cpu_share']:.3f}",
        "cpu_share_spread": f"{found['cpu_share_spread']:.3f}",
        "spread": f"{found['spread']:.3f}",
        "got_share": f"{found.get('got_share', 1.0):.3f}",
        "not_measured": ", ".join([*found["left_out"], *found["refused"]]),
        **({"launch_seconds": f"{found['launch_seconds']:.3g}"} if found["launch_seconds"] else {}),
    }


def best_flops(measured: Measured, precision: str) -> float:
    """Return the highest FLOP/s among the matrix products of a precision; 0 where none was timed."""
    best = 0.0
    for role in ("forward", "dgrad", "wgrad"):
        curve = measured.curves.get(f"{precision}/matmul.{role}")
        if curve is None:
            continue
        seconds = iter(curve.seconds)
        for rows in curve.axes[0]:
            for columns in curve.axes[1]:
                for depth in curve.axes[2]:
                    best = max(best, 2.0 * rows * columns * depth / next(seconds))
    return best


def memory_rate(measured: Measured, precision: str) -> float:
    """Return bytes/s of reading and writing what no cache holds."""
    size = {"fp64": 8.0, "fp32": 4.0}.get(precision, 2.0)
    curve = measured.curves[f"{precision}/memory"]
    return 2.0 * size / curve.seconds[-1]


def warnings_of(found: Mapping[str, Any]) -> list[str]:
    """Return what a reader must know before relying on the figures."""
    warnings = []
    if is_busy(found):
        warnings.append(
            f"{busy_text(found)}; {_BUSY_FIGURES[found.get('threads', 1) > 1]}, and bands are wider for"
            " it: probe again when it is quiet"
        )
    if found["spread"] > BUSY_SPREAD:
        other = "" if is_busy(found) else "the machine is busy with other work; "
        warnings.append(
            f"repeats lie {100 * found['spread']:.0f} % apart: {other}probe again when it is quiet"
        )
    if found["cpu_share_spread"] > BUSY_SPREAD:
        warnings.append(
            f"a process gets {found['cpu_share']:.2f} of a core, give or take "
            f"{50 * found['cpu_share_spread']:.0f} %: other processes take the rest by turns"
        )
    if found["left_out"]:
        few = ", ".join(found["left_out"][:4])
        more = len(found["left_out"]) - 4
        warnings.append(
            f"no time was left for {few}{f' and {more} more' if more > 0 else ''}; figures of their "
            "class serve; give --seconds more"
        )
    for name, why in list(found["refused"].items())[:4]:
        warnings.append(f"{name} could not be timed: {why}; figures of its class serve")
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
