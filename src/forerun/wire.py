"""Wire: one versioned JSON shape for the command line, stores and services; a job's key is its hash.

What is not known is null; quantities are in SI base units; quantiles are {"p05", "p50", "p95"}.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from forerun.domain.estimate import Estimate
from forerun.domain.forecast import Forecast, meaning, nearer
from forerun.domain.graph import Graph, Op
from forerun.domain.hardware import Device
from forerun.domain.job import Job
from forerun.domain.measured import Measured
from forerun.domain.plan import Plan
from forerun.domain.recommendation import Option, Recommendation
from forerun.domain.workload import Workload

SCHEMA = "forerun/1"
Json = dict[str, Any]

# What a job is asked about, and what only describes it: prices, notes and sources may change
# without making it another job.
_NOT_IN_KEY = {
    "workload": ("notes", "source", "length", "default_global_batch"),
    "cluster": (
        "name", "dollars_per_hour", "spot_dollars_per_hour", "price_source", "warnings", "region",
        "carbon_kg_per_kwh", "host_memory_bytes", "rented", "least_billed_seconds",
    ),
    "device": ("name", "aliases", "vendor"),
}  # fmt: skip

# Fields that came after keys had been stored, left out at these values: older jobs keep their keys.
_LATER: Mapping[type, Json] = {
    Device: {"measured": None},
    Plan: {
        "stale_bound": 0,
        "servers_with_workers": False,
        "gradient_bits": 0,
        "partitions": 1,
        "offload": "none",
        "offload_activations": False,
    },
    Workload: {"sparse_fraction": None, "lora_rank": 0, "lora_targets": ""},
    Graph: {"frozen": 0.0, "quantized": 0.0},
}


_AS_IT_IS = (str, int, bool, NoneType)


def clean(value: Any) -> Any:
    """Return a value as plain JSON: dataclasses by field, arrays as lists, NaN and infinities as None.

    An operation states only what differs from the default; a device leaves out its sources.
    """
    kind = type(value)
    if kind in _AS_IT_IS:  # the usual ones first
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if kind is dict or isinstance(value, Mapping):
        return {str(k): clean(v) for k, v in value.items()}
    if kind is tuple or kind is list:
        return [clean(v) for v in value]
    if isinstance(value, str | int):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, Measured):
        return clean({**value.to_dict(), "about": {}})
    if isinstance(value, Op):
        return {n: clean(v) for n, default in _OP_FIELDS if (v := getattr(value, n)) != default}
    if is_dataclass(value):
        data = {f.name: clean(getattr(value, f.name)) for f in fields(value)}
        if isinstance(value, Device):
            data.pop("facts")
        usual = _LATER.get(type(value), {})
        return {name: v for name, v in data.items() if name not in usual or v != usual[name]}
    if hasattr(value, "tolist"):  # NumPy scalars and arrays
        return clean(value.tolist())
    if isinstance(value, Sequence | set | frozenset):
        return [clean(v) for v in value]
    raise TypeError(f"{type(value).__name__} has no JSON form")


_OP_FIELDS = [(f.name, f.default if f.default is not MISSING else None) for f in fields(Op)]


def exact(value: Any) -> Any:
    """Return an object as plain JSON of which `read` makes the same: as `clean`, with NaN and infinities as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, Mapping):
        return {str(k): exact(v) for k, v in value.items()}
    if is_dataclass(value) and not isinstance(value, Measured | Op | Device):
        return {f.name: exact(getattr(value, f.name)) for f in fields(value)}
    return [exact(v) for v in value] if isinstance(value, list | tuple) else clean(value)


def read(kind: type, data: Any) -> Any:
    """Return the object of a dataclass that `clean` or `exact` wrote. Raises KeyError, TypeError or ValueError."""
    reader = _reader(kind)
    return data if reader is None else reader(data)


@cache
def _reader(kind: Any) -> Callable[[Any], Any] | None:
    """Return what makes a value of a kind from JSON, None where JSON has that kind itself."""
    if kind is Measured:
        return Measured.from_dict
    if kind is float:
        return lambda value: float(value) if isinstance(value, str) else value
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind, localns={"Measured": Measured})
        readers = {f.name: _reader(hints[f.name]) or (lambda value: value) for f in fields(kind)}
        return lambda data: kind(**{name: readers[name](v) for name, v in data.items()})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    of = get_args(kind)
    inner = _reader(of[0]) if of else None
    if get_origin(kind) is tuple and len({*of} - {...}) > 1:
        each = [_reader(one) or (lambda value: value) for one in of]
        return lambda values: tuple(read(v) for read, v in zip(each, values, strict=True))
    if get_origin(kind) is Mapping and (item := _reader(of[1])) is not None:
        return lambda values: {name: item(value) for name, value in values.items()}
    if get_origin(kind) is tuple:
        return tuple if inner is None else lambda values: tuple(map(inner, values))
    if inner is not None and NoneType in of:
        return lambda value: None if value is None else inner(value)
    return None


def dumps(value: Any, indent: int | None = 2) -> str:
    """Return strict JSON text; NaN and infinities become null."""
    return json.dumps(clean(value), indent=indent, allow_nan=False)


def quantiles(row: Sequence[float]) -> Json | None:
    """Return quantiles by name, or None where they are not known."""
    if not math.isfinite(row[1]):
        return None
    return {"p05": clean(row[0]), "p50": clean(row[1]), "p95": clean(row[2])}


def job_key(job: Job) -> str:
    """Return the job's key: the SHA-256 of its canonical JSON without prices, notes and sources, in hexadecimal."""
    cluster = _without(clean(job.cluster), "cluster")
    cluster["device"] = _without(cluster["device"], "device")
    parts = {"cluster": cluster, "plan": clean(job.plan), "schema": SCHEMA}
    text = f'{_canonical(parts)[:-1]},"workload":{_workload_text(job.workload)}}}'
    return hashlib.sha256(text.encode()).hexdigest()


def _workload_text(workload: Workload) -> str:
    """Return the canonical JSON of a workload, written once and kept as long as the workload."""
    kept = vars(workload)
    if "_text" not in kept:
        kept["_text"] = _canonical(_without(clean(workload), "workload"))
    return str(kept["_text"])


def _without(data: Json, part: str) -> Json:
    return {name: value for name, value in data.items() if name not in _NOT_IN_KEY[part]}


def _canonical(data: Json) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


def fields_of(value: object, names: str) -> Json:
    """Return some attributes of a value by name; `names` has spaces between them."""
    return {name: getattr(value, name) for name in names.split()}


def job_summary(job: Job) -> Json:
    """Return what a reader needs to know a job by: names, sizes, the plan and the key."""
    workload, cluster = job.workload, job.cluster
    about = """name params family seq_len image_size precision optimizer framework dataset
        dataset_size task source"""
    where = """name nodes devices_per_node devices provider instance_type region placement
        dollars_per_hour spot_dollars_per_hour price_source"""
    return {
        "workload": fields_of(workload, about),
        "cluster": {
            **fields_of(cluster, where),
            "device": cluster.device.id,
            "device_memory_bytes": cluster.device.memory_bytes,
            "intra": clean(cluster.intra),
            "inter": clean(cluster.inter),
        },
        "plan": job.plan.as_dict(),
        "key": job_key(job),
    }


def forecast_to_wire(forecast: Forecast) -> Json:
    """Return a forecast: quantiles, parts, and how far it is from what was measured."""
    return {
        "quantity": forecast.quantity,
        f"{forecast.quantity}_seconds": quantiles(forecast.seconds),
        "floor_seconds": forecast.floor_seconds,
        "peak_bytes": quantiles(forecast.peak_bytes),
        "fits": forecast.fit_probability,
        **fields_of(forecast, "parts memory_parts predictor distance"),
        "distance_means": meaning(forecast.distance, forecast.distance_parts),
        "distance_parts": forecast.distance_parts,
        "nearer": nearer(forecast.distance, forecast.distance_parts),
        "staleness": forecast.staleness,
        "nearest": forecast.nearest,
        "declined": forecast.declined,
        "samples_to_target": (
            None if forecast.samples_to_target is None else quantiles(forecast.samples_to_target)
        ),
    }


def estimate_to_wire(estimate: Estimate) -> Json:
    """Return an estimate: the run's seconds of steps and of the wall, dollars, kWh and kg of CO2."""
    return {
        "steps": estimate.steps, "run_seconds": quantiles(estimate.run_seconds),
        "wall_seconds": quantiles(estimate.wall_seconds), "start_seconds": estimate.start_seconds,
        "goodput": estimate.goodput, "dollars": quantiles(estimate.dollars),
        "kilowatt_hours": quantiles(estimate.kilowatt_hours), "co2_kg": quantiles(estimate.co2_kg),
        "market": "spot" if estimate.spot else "on-demand",
    }  # fmt: skip


def _option(option: Option | None) -> Json | None:
    if option is None:
        return None
    forecast = option.estimate.forecast
    return {
        "job": job_summary(option.job), **({} if forecast is None else forecast_to_wire(forecast)),
        **estimate_to_wire(option.estimate), **option.throughput,
        "fits": option.estimate.fit_probability,
        **fields_of(option, "dollars_per_hour warnings misses chance"),
        "beaten_by_best": option.beaten,
    }  # fmt: skip


def recommendation_to_wire(found: Recommendation) -> Json:
    """Return a recommendation with every refused group of jobs and the counts of each stage."""
    return {
        "objective": clean(found.objective),
        "best": _option(found.best),
        "front": [_option(one) for one in found.front],
        "alternatives": [_option(one) for one in found.alternatives],
        "runner_up": _option(found.runner_up),
        "next_layout": _option(found.next_layout),
        "refused": [
            {"job": {"cluster": r.cluster, "plan": r.plan}, "reason": r.reason, "count": r.count,
             "limit": r.limit}
            for r in found.refused
        ],
        "not_searched": found.not_searched,
        "own_machines": found.own_machines,
        "near_misses": [_option(one) for one in found.near_misses],
        "assumptions": found.assumptions,
        "prices_as_of": found.prices_as_of,
        "counts": {
            **fields_of(found, "considered legal fitting qualified"),
            "refused": found.refused_counts,
        },
        "seconds_taken": found.seconds_taken,
    }  # fmt: skip
