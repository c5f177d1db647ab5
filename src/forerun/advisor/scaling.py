"""Scaling: the same question on fewer and more nodes, as a curve with its band and the measured runs on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from forerun.advisor.answer import Answer, plan_fields
from forerun.charts import Chart, Series
from forerun.errors import ForerunError
from forerun.tables.jobs import row_step_samples
from forerun.tables.measured import measured_seconds

if TYPE_CHECKING:
    from forerun.advisor.advisor import Advisor, PlanLike

_FURTHER, _LEAST_NODES = 4, 8  # up to so many times the nodes asked for, and at least so many


def scaling_chart(
    advisor: Advisor, answer: Answer, plan: PlanLike = None, global_batch: int | None = None,
    micro_batch: int | None = None,
) -> Chart:  # fmt: skip
    """Return the rate of an answer's question on 1, 2, 4 ... nodes, and of the runs that the predictor learned from.

    plan, global_batch, micro_batch: as they were asked; the number of replicas follows the nodes. Where a plan is not legal, or does
    not fit, the curve has no point. Runs are those of the same workload on the same device.
    """
    job, fields = answer.job, {**plan_fields(plan)}
    fields.pop("dp", None)
    most = max(_LEAST_NODES, _FURTHER * job.cluster.nodes)
    counts = {2**i for i in range(most.bit_length()) if not job.cluster.placement}
    found = {job.cluster.devices: answer}
    for nodes in sorted(counts - {job.cluster.nodes}):
        try:
            one = advisor.predict(
                job.workload, job.cluster.of_nodes(nodes), fields, length=answer.length,
                global_batch=global_batch, micro_batch=micro_batch,
            )  # fmt: skip
        except ForerunError:
            continue
        found[one.job.cluster.devices] = one
    unit = "tokens" if job.workload.seq_len else "samples"
    each = max(job.workload.seq_len, 1)
    devices = sorted(found)
    rates = [found[n].throughput["samples_per_second"] * each for n in devices]
    steps = [found[n].step_seconds for n in devices]
    low, high = (
        [rate * step[1] / step[edge] for rate, step in zip(rates, steps, strict=True)] for edge in (2, 0)
    )
    ideal = [rates[0] * n / devices[0] for n in devices]
    series = [
        Series("forecast", "line", devices, rates, low, high),
        Series(f"linear from {devices[0]:,}", "dashed", devices, ideal),
    ]
    where, measured = measured_rates(advisor, answer)
    if len(where):
        series.append(Series("measured", "points", where.tolist(), (measured * each).tolist()))
    title = f"{job.workload.name} on {job.cluster.device.id}, {job.cluster.devices_per_node} a node"
    return Chart(title, "devices", f"{unit} a second", tuple(series), "xy")


def measured_rates(advisor: Advisor, answer: Answer) -> tuple[Any, Any]:
    """Return devices and samples a second, (n,) each, of the given runs of an answer's workload on its device."""
    runs = advisor.runs
    if runs is None:
        return np.zeros(0), np.zeros(0)
    jobs, table, job = runs.jobs, runs.table, answer.job
    names = np.array([*(w.name for w in jobs.workloads), ""], dtype=object)[jobs.workload_index]
    places = np.array([*(c.device.id for c in jobs.clusters), ""], dtype=object)[jobs.cluster_index]
    same = (names == job.workload.name) & (places == job.cluster.device.id)
    devices = jobs.per_cluster("devices", np.nan)
    rates = row_step_samples(table) / measured_seconds(runs, "step").seconds
    kept = same & np.isfinite(devices) & np.isfinite(rates)
    return devices[kept], rates[kept]
