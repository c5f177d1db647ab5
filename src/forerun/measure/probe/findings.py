"""Findings: what workers measured, made into a catalogue's device and its links."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping, Sequence
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


def measured_of(found: Mapping[str, Any], about: Mapping[str, str]) -> Measured:
    """Return what one probe found, a CPU's own seconds made seconds of the wall clock."""
    share = float(found["cpu_share"])
    curves = {}
    for name, curve in found["curves"].items():
        seconds = np.array(curve["seconds"]) / share
        if found.get("threads", 1) > 1 and name.endswith("/memory"):
            # Threads that for a moment share a core wait for one another for milliseconds, which
            # small footprints show most: none is slower than a larger one.
            seconds = np.minimum.accumulate(seconds[::-1])[::-1]
        curves[name] = Curve(
            tuple(tuple(map(float, axis)) for axis in curve["axes"]),
            tuple(map(float, seconds)), float(curve["spread"]),
        )  # fmt: skip
    costs = {name: seconds / share for name, seconds in found["framework"].items()}
    updates = {n: Update(*(s / share for s in u)) for n, u in found["updates"].items()}
    groups = found.get("groups", {})
    replicas = next((g["replicas"] for g in groups.values() if g["replicas"]), [0.0, 0.0])
    memory = next((c.seconds for name, c in curves.items() if name.endswith("/memory")), (0.0,))
    slower = {name: tuple(group["together"]) for name, group in groups.items()}
    return Measured(
        curves, updates=updates, replica_seconds=replicas[0] / share,
        replica_tensor_seconds=replicas[1] / share,
        replica_parameter_seconds=_BUCKET_PASSES * memory[len(memory) // 2],
        together=slower.get("intra") or (1.0,), hosts_together=slower.get("inter") or (1.0,),
        co_running=Curve.from_dict(found["co_running"]) if found.get("co_running") else None,
        links={name: exchange_of(group, share) for name, group in groups.items()},
        jitter_seconds=float(found["jitter_seconds"]),
        rested_work_seconds=float(found.get("rested_work_seconds", 0.0)), sureness=sureness(found),
        about=about, **costs,
    )  # fmt: skip


def exchange_of(group: Mapping[str, Any], share: float) -> Exchange:
    """Return the all-reduces and messages of a group of ranks as latencies and rates."""
    calls = {int(ranks): points for ranks, points in group["all_reduces"].items()}
    most = max(calls)
    fixed, rate = fitted(calls[most], most)
    call, latency = 0.0, fixed / (2.0 * (most - 1))
    if len(calls) > 1:  # what grows with the number of ranks, and what does not
        few = fitted(calls[min(calls)], min(calls))[0]
        latency = max((fixed - few) / (2.0 * (most - min(calls))), 0.0)
        call = max(fixed - 2.0 * (most - 1) * latency, 0.0)
    small, large = calls[most][0], calls[most][-1]
    busy = max(large[2] - small[2], 0.0) / large[0] / share
    sent = (0.0, 0.0)  # seconds of a small message, bytes/s of a large one
    if len(messages := group["messages"]) > 1:
        (_, first), (size, last) = messages[0], messages[-1]
        sent = first, size / max(last - first, 1e-9)
    curves = {  # a larger buffer is never faster, whatever the noise of the small
        ranks: _by_size([p[0] for p in points], np.maximum.accumulate([p[1] for p in points]))
        for ranks, points in calls.items()
    }
    rested = {
        ranks: _rested(group["rested"][str(ranks)], curve) for ranks, curve in curves.items()
        if len(group.get("rested", {}).get(str(ranks), ())) > 1
    }  # fmt: skip
    return Exchange(latency, rate, call, busy, *sent, all_reduces=curves, rested=rested)


def _by_size(sizes: Sequence[float], seconds: Any) -> Curve:
    return Curve((tuple(map(float, sizes)),), tuple(map(float, seconds)))


def _rested(points: Sequence[Sequence[float]], steady: Curve) -> Curve:
    """Return what a buffer adds to one of no size, never more than when one follows the other."""
    sizes, walls = np.array(points).T
    seconds = steady.seconds[0] + np.maximum.accumulate(walls - walls[0])
    return _by_size(sizes, np.minimum(seconds, steady.at(sizes)))


def device_entry(
    found: Mapping[str, Any], name: str, precisions: Sequence[str], place: str
) -> dict[str, Any]:
    """Return the fields of a device in a catalogue file. Raises UnsatisfiedError: too little was timed."""
    main = precisions[0]
    missing = [n for n in NEEDED if f"{main}/{n}" not in found["curves"]]
    refused = next((n for n in missing if f"{main}/{n}" in found["refused"]), None)
    if refused is not None:
        why = f"{refused} was not timed: {found['refused'][f'{main}/{refused}']}"
        todo = "see that nothing else uses it, or name another of the precisions first (--dtypes)"
        raise UnsatisfiedError("a measured device", why, todo)
    if missing:
        busy = f": {busy_text(found)}; probe when it is quiet" if is_busy(found) else ""
        asked, why = f"a device measured in {found['seconds']:.0f} s", ", ".join(missing) + busy
        todo = f"give it more time: --seconds {math.ceil(found['seconds'] / 30.0) * 60}"
        raise UnsatisfiedError(asked, f"there was no time for {why}", todo)
    day = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    version = found["fingerprint"].get("forerun", "")
    about = {
        "source": f"forerun probe {version}, {day}, {place}",
        "date": day,
        "probe": version,
        **{name: str(value) for name, value in found["fingerprint"].items()},
        "threads": str(found["threads"]),
        **{
            name: f"{found[name]:.3f}"
            for name in ("cpu_share", "cpu_share_spread", "spread", "got_share")
        },
        "not_measured": ", ".join([*found["left_out"], *found["refused"]]),
    }
    measured = measured_of(found, about)
    peaks = {p: peak for p in precisions if (peak := best_flops(measured, p))}
    size = {"fp64": 8.0, "fp32": 4.0}.get(main, 2.0)
    # Reading and writing what no cache holds.
    rate = _rounded(2.0 * size / measured.curves[f"{main}/memory"].seconds[-1] / GIGA)
    fp32 = peaks.get("fp32", max(peaks.values()))
    gpu = str(found["fingerprint"].get("gpu", ""))
    absent = [p for p in ("fp32", "bf16", "fp16") if p not in peaks]
    unknown = [f"{f}=not measured" for f in ("watts", "link_gb_per_s", "host_gb_per_s")]
    unknown += [f"{p}_tflops=not measured: as fp32" for p in absent]
    entry: dict[str, Any] = {
        "name": gpu or f"{found['fingerprint'].get('cpu', 'CPU')}, {place}",
        "kind": "gpu" if gpu else "cpu", "generation": "probed",
        "memory_gb": _rounded(found["memory_bytes"] / GIGA), "memory_gb_per_s": rate,
        **{f"{p}_tflops": _rounded(peak / TERA) for p, peak in peaks.items()}, "watts": 0,
        "link_gb_per_s": 0, "host_gb_per_s": rate, "devices_per_node": 1, "source": about["source"],
        **{f"{p}_tflops": _rounded(fp32 / TERA) for p in absent},
    }  # fmt: skip
    if (across := measured.links.get("inter")) is not None:
        entry["node_gb_per_s"] = _rounded(across.bytes_per_second / GIGA)
    entry["field_sources"] = ";".join(unknown)
    # Four digits, as far as they were ever sure.
    figures = json.loads(json.dumps(measured.to_dict()), parse_float=lambda t: _rounded(float(t)))
    return {"id": name, **entry, "measured": figures}


def best_flops(measured: Measured, precision: str) -> float:
    """Return the highest FLOP/s among the matrix products of a precision; 0 where none was timed."""
    found = (measured.curves.get(f"{precision}/matmul.{role}") for role in ROLES)
    flops = (
        (np.prod(list(product(*c.axes)), axis=1) * 2.0, c.seconds) for c in found if c is not None
    )
    return max((float((work / seconds).max()) for work, seconds in flops), default=0.0)


def warnings_of(found: Mapping[str, Any]) -> list[str]:
    """Return what a reader must know before relying on the figures."""
    again = "probe again when it is quiet"
    warnings = []
    if is_busy(found):
        fastest = "the fastest of a few repeats" if found.get("threads", 1) > 1 else "so disturbed"
        warnings.append(f"{busy_text(found)}; figures are {fastest}, and bands are wider: {again}")
    if found["spread"] > BUSY_SPREAD:
        apart = f"{100 * found['spread']:.0f} % apart"
        warnings.append(f"repeats lie {apart}, as on a busy machine: {again}")
    if found["cpu_share_spread"] > BUSY_SPREAD:
        warnings.append(
            f"a process gets {found['cpu_share']:.2f} of a core, give or take "
            f"{50 * found['cpu_share_spread']:.0f} %: other processes take the rest by turns"
        )
    if left := ", ".join(found["left_out"]):
        warnings.append(
            f"no time was left for {left}; figures of their class serve; give --seconds more"
        )
    for name, why in found["refused"].items():
        warnings.append(f"{name} could not be timed: {why}; figures of its class serve")
    return warnings


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
