"""Wire: one versioned JSON shape for the command line, stores and services; a job's key is its hash.

JSON has no NaN and no infinity: what is not known is null. Quantities are in SI base units and
carry their unit in their name; a quantity with quantiles is {"p05", "p50", "p95"}.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from forerun.domain.estimate import Estimate
from forerun.domain.forecast import Forecast, meaning, nearer
from forerun.domain.graph import Block, Graph, Op, OpKind, Phase, Shard
from forerun.domain.hardware import Cluster, Device, Link
from forerun.domain.job import Job
from forerun.domain.measured import Measured
from forerun.domain.objective import Objective
from forerun.domain.plan import Plan
from forerun.domain.recommendation import Option, Recommendation
from forerun.domain.workload import LayerShape, Length, Workload
from forerun.errors import RequestError

SCHEMA = "forerun/1"
Json = dict[str, Any]

# What a job is asked about, and what only describes it: prices, notes and sources may change
# without making it another job.
_NOT_IN_KEY = {
    "workload": ("notes", "source", "length", "default_global_batch"),
    "cluster": (
        "name", "dollars_per_hour", "spot_dollars_per_hour", "price_source", "warnings", "region",
        "carbon_kg_per_kwh",
    ),
    "device": ("name", "aliases", "vendor"),
}  # fmt: skip


def clean(value: Any) -> Any:
    """Return a value as plain JSON: arrays as lists, NaN and infinities as None."""
    if isinstance(value, Mapping):
        return {str(k): clean(v) for k, v in value.items()}
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool | int) or value is None:
        return value
    if hasattr(value, "tolist"):  # NumPy scalars and arrays
        return clean(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Sequence | set | frozenset):
        return [clean(v) for v in value]
    raise TypeError(f"{type(value).__name__} has no JSON form")


def dumps(value: Any, indent: int | None = 2) -> str:
    """Return strict JSON text; NaN and infinities become null."""
    return json.dumps(clean(value), indent=indent, allow_nan=False)


def quantiles(row: Sequence[float]) -> Json | None:
    """Return quantiles by name, or None where they are not known."""
    if not math.isfinite(row[1]):
        return None
    return {"p05": clean(row[0]), "p50": clean(row[1]), "p95": clean(row[2])}


def job_to_wire(job: Job) -> Json:
    """Return a job whole: the operation graph, the cluster's figures and the plan."""
    return {
        "schema": SCHEMA,
        "workload": workload_to_wire(job.workload),
        "cluster": cluster_to_wire(job.cluster),
        "plan": job.plan.as_dict(),
    }


def job_from_wire(data: Mapping[str, Any]) -> Job:
    """Return the job of `job_to_wire`.

    Raises:
        RequestError: another schema, a part that is missing or of the wrong kind, or a plan that
            is not legal.
    """
    if data.get("schema") != SCHEMA:
        raise RequestError(
            "reading a job", f"its schema is {data.get('schema')!r}", f"write it as {SCHEMA}"
        )
    try:
        return Job(
            workload_from_wire(data["workload"]),
            cluster_from_wire(data["cluster"]),
            Plan(**data["plan"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RequestError(
            "reading a job", f"a part is missing or wrong: {error}", f"write it as {SCHEMA}"
        ) from None


def job_key(job: Job) -> str:
    """Return the job's key: the SHA-256 of its canonical JSON, 64 hexadecimal digits.

    Prices, notes and sources take no part, so a price list that changes leaves every key as it is.
    """
    data = job_to_wire(job)
    for name in _NOT_IN_KEY["workload"]:
        data["workload"].pop(name)
    for name in _NOT_IN_KEY["cluster"]:
        data["cluster"].pop(name)
    for name in _NOT_IN_KEY["device"]:
        data["cluster"]["device"].pop(name)
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def workload_to_wire(workload: Workload) -> Json:
    """Return a workload whole; operations state only what differs from the default."""
    data = {f.name: getattr(workload, f.name) for f in fields(Workload) if f.name != "graph"}
    data["shape"] = asdict(workload.shape)
    data["length"] = None if workload.length is None else asdict(workload.length)
    data["graph"] = {
        "ops": [_op_to_wire(op) for op in workload.graph.ops],
        "unknown": workload.graph.unknown,
    }
    return dict(clean(data))


def workload_from_wire(data: Mapping[str, Any]) -> Workload:
    """Return the workload of `workload_to_wire`. Raises KeyError or TypeError where it is not."""
    values = dict(data)
    graph = values.pop("graph")
    ops = tuple(_op_from_wire(op) for op in graph["ops"])
    values["shape"] = LayerShape(**values["shape"])
    values["length"] = None if values["length"] is None else Length(**values["length"])
    values["notes"] = tuple(values["notes"])
    return Workload(graph=Graph(ops, tuple(graph["unknown"])), **values)


_OP_FIELDS = fields(Op)
_OP_ENUMS = {"kind": OpKind, "phase": Phase, "block": Block, "shard": Shard}


def _op_to_wire(op: Op) -> Json:
    return {f.name: v for f in _OP_FIELDS if (v := getattr(op, f.name)) != f.default}


def _op_from_wire(data: Mapping[str, Any]) -> Op:
    values = dict(data)
    for name, enum in _OP_ENUMS.items():
        if name in values:
            values[name] = enum(values[name])
    for name in ("shape", "dims", "inputs"):
        if name in values:
            values[name] = tuple(values[name])
    return Op(**values)


def cluster_to_wire(cluster: Cluster) -> Json:
    """Return a cluster whole, without the sources of the device's figures."""
    data = {f.name: getattr(cluster, f.name) for f in fields(Cluster)}
    device = {f.name: getattr(cluster.device, f.name) for f in fields(Device)}
    device.pop("facts")
    measured = device.pop("measured")
    if measured is not None:  # what is known by its data sheet alone keeps its key
        device["measured"] = {**measured.to_dict(), "about": {}}
    data.update(device=device, intra=asdict(cluster.intra), inter=asdict(cluster.inter))
    return dict(clean(data))


def cluster_from_wire(data: Mapping[str, Any]) -> Cluster:
    """Return the cluster of `cluster_to_wire`. Raises KeyError or TypeError where it is not."""
    values = dict(data)
    device = dict(values["device"])
    device["aliases"] = tuple(device["aliases"])
    if device.get("measured") is not None:
        device["measured"] = Measured.from_dict(device["measured"])
    values["device"] = Device(**device)
    for name in ("intra", "inter"):
        values[name] = Link(**values[name])
    for name in ("placement", "warnings"):
        values[name] = tuple(values[name])
    return Cluster(**values)


def job_summary(job: Job) -> Json:
    """Return what a reader needs to know a job by: names, sizes, the plan and the key."""
    workload, cluster = job.workload, job.cluster
    about = ("name", "params", "family", "seq_len", "image_size", "precision", "optimizer",
             "framework", "dataset", "dataset_size", "task", "source")  # fmt: skip
    where = ("name", "nodes", "devices_per_node", "devices", "provider", "instance_type", "region",
             "placement", "dollars_per_hour", "spot_dollars_per_hour", "price_source")  # fmt: skip
    return {
        "workload": {name: getattr(workload, name) for name in about},
        "cluster": {
            **{name: getattr(cluster, name) for name in where},
            "device": cluster.device.id,
            "device_memory_bytes": cluster.device.memory_bytes,
            "intra": asdict(cluster.intra),
            "inter": asdict(cluster.inter),
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
        "parts": forecast.parts,
        "memory_parts": forecast.memory_parts,
        "predictor": forecast.predictor,
        "distance": forecast.distance,
        "distance_means": meaning(forecast.distance, forecast.distance_parts),
        "distance_parts": forecast.distance_parts,
        "nearer": nearer(forecast.distance, forecast.distance_parts),
        "declined": forecast.declined,
        "samples_to_target": (
            None if forecast.samples_to_target is None else quantiles(forecast.samples_to_target)
        ),
    }


def estimate_to_wire(estimate: Estimate) -> Json:
    """Return an estimate: the whole run's seconds, dollars, kWh and kg of CO2."""
    return {
        "steps": estimate.steps,
        "run_seconds": quantiles(estimate.run_seconds),
        "dollars": quantiles(estimate.dollars),
        "kilowatt_hours": quantiles(estimate.kilowatt_hours),
        "co2_kg": quantiles(estimate.co2_kg),
        "market": "spot" if estimate.spot else "on-demand",
    }


def option_to_wire(option: Option) -> Json:
    """Return an option: the job, its estimate, by how much it misses which limit, and chances.

    `chance` has the probabilities of `fits`, of the `deadline` and the `budget` where they are
    given, and of `all` of these; `beaten_by_best` those that the best option is better in `time`,
    `cost`, `energy` or at the `knee`.
    """
    forecast = option.estimate.forecast
    return {
        "job": job_summary(option.job),
        **({} if forecast is None else forecast_to_wire(forecast)),
        **estimate_to_wire(option.estimate),
        "fits": option.estimate.fit_probability,
        "dollars_per_hour": option.dollars_per_hour,
        "warnings": option.warnings,
        "misses": option.misses,
        "chance": option.chance,
        "beaten_by_best": option.beaten,
    }


def objective_to_wire(objective: Objective) -> Json:
    """Return what is minimised, under which limits."""
    return asdict(objective)


def recommendation_to_wire(found: Recommendation) -> Json:
    """Return a recommendation with every refused group of jobs and the counts of each stage."""
    return {
        "objective": objective_to_wire(found.objective),
        "best": None if found.best is None else option_to_wire(found.best),
        "front": [option_to_wire(option) for option in found.front],
        "alternatives": [option_to_wire(option) for option in found.alternatives],
        "runner_up": None if found.runner_up is None else option_to_wire(found.runner_up),
        "next_layout": None if found.next_layout is None else option_to_wire(found.next_layout),
        "refused": [
            {
                "job": {"cluster": r.cluster, "plan": r.plan},
                "reason": r.reason,
                "count": r.count,
                "limit": r.limit,
            }
            for r in found.refused
        ],
        "not_searched": found.not_searched,
        "near_misses": [option_to_wire(option) for option in found.near_misses],
        "assumptions": found.assumptions,
        "prices_as_of": found.prices_as_of,
        "counts": {
            "considered": found.considered,
            "legal": found.legal,
            "fitting": found.fitting,
            "qualified": found.qualified,
            "refused": found.refused_counts,
        },
        "seconds_taken": found.seconds_taken,
    }
