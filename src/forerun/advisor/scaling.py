"""Scaling: the same question on fewer and more nodes, as a curve with its band and the measured runs on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from forerun.advisor.answer import Answer, plan_fields
from forerun.arrays import FloatArray
from forerun.charts import Chart, Series
from forerun.errors import ForerunError
from forerun.tables.jobs import row_step_samples
from forerun.tables.measured import measured_seconds

if TYPE_CHECKING:
    from forerun.advisor.advisor import Advisor, PlanLike

_FURTHER, _LEAST_NODES = 4, 8  # up to so many times the nodes asked for, and at least so many
_ALIKE = ("name", "seq_len", "image_size", "precision", "task")


def scaling_chart(
    advisor: Advisor, answer: Answer, plan: PlanLike = None, global_batch: int | None = None,
    micro_batch: int | None = None,
) -> Chart:  # fmt: skip
    """Return the rate of an answer's question on 1, 2, 4 ... nodes, and of the runs that the predictor learned from.

    plan, global_batch, micro_batch: as they were asked; the number of replicas follows the nodes. Where a plan is
    not legal, or does not fit, the curve has no point. Runs are those of `measured_rates`.
    """
    job, fields = answer.job, {**plan_fields(plan)}
    fields.pop("dp", None)
    most = max(_LEAST_NODES, _FURTHER * job.cluster.nodes)
    counts = {2**i for i in range(most.bit_length()) if not job.cluster.placement}
    found = {job.cluster.devices: answer}
    for nodes in counts - {job.cluster.nodes}:
        place = job.cluster.of_nodes(nodes)
        try:
            found[place.devices] = advisor.predict(
                job.workload, place, fields, length=answer.length, global_batch=global_batch, micro_batch=micro_batch
            )  # fmt: skip
        except ForerunError:
            continue
    unit, each = ("tokens", job.workload.seq_len) if job.workload.seq_len else ("samples", 1)
    devices = sorted(found)
    rates = np.array([found[n].throughput["samples_per_second"] * each for n in devices])
    steps = np.array([found[n].step_seconds for n in devices])
    low, high = (rates * steps[:, 1] / steps[:, edge] for edge in (2, 0))
    ideal = rates[0] * np.array(devices) / devices[0]
    series = [
        Series("forecast", "line", devices, rates.tolist(), low.tolist(), high.tolist()),
        Series(f"linear from {devices[0]:,}", "dashed", devices, ideal.tolist()),
    ]
    where, measured = measured_rates(advisor, answer)
    if len(where):
        series.append(Series("measured", "points", where.tolist(), (measured * each).tolist()))
    title = f"Scaling of {job.workload.name} on {job.cluster.device.id}, {job.cluster.devices_per_node} a node"
    return Chart(title, "devices", f"{unit} a second", tuple(series), "xy", devices)


def measured_rates(advisor: Advisor, answer: Answer) -> tuple[FloatArray, FloatArray]:
    """Return devices and samples a second, (n,) each, of the given runs of an answer's workload on its device.

    They are of its size, precision and task, and of the framework where one is asked for.
    """
    runs, job = advisor.runs, answer.job
    if runs is None:
        return np.zeros(0), np.zeros(0)
    names = [*_ALIKE, *(["framework"] if job.workload.framework else [])]
    asked = [getattr(job.workload, name) for name in names]
    alike = [[getattr(w, name) for name in names] == asked for w in runs.jobs.workloads]
    there = [c.device.id == job.cluster.device.id for c in runs.jobs.clusters]
    devices = runs.jobs.per_cluster("devices", np.nan)
    rates = row_step_samples(runs.table) / measured_seconds(runs, "step").seconds
    kept = np.isfinite(devices) & np.isfinite(rates)
    kept &= np.array([*alike, False])[runs.jobs.workload_index]
    kept &= np.array([*there, False])[runs.jobs.cluster_index]
    return devices[kept], rates[kept]
