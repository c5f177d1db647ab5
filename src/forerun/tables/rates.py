"""Rates: the seconds of a step that a row states as a rate of samples, tokens or operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from forerun.arrays import FloatArray
from forerun.domain.plan import RECOMPUTE
from forerun.tables.table import Table

if TYPE_CHECKING:
    from forerun.tables.jobs import Jobs


def throughput_seconds(table: Table) -> FloatArray:
    """Return global_batch / samples_per_s, else the same of tokens, NaN where not stated, (n,)."""
    batch = table.numbers("global_batch")
    with np.errstate(divide="ignore", invalid="ignore"):
        samples = batch / table.numbers("samples_per_s")
        tokens = batch * table.numbers("seq_len") / table.numbers("tokens_per_s")
    return np.where(np.isnan(samples), tokens, samples)


def flop_rate_seconds(jobs: Jobs, table: Table) -> FloatArray:
    """Return the step that tflops_per_device implies, NaN where the FLOPs are not known, (n,)."""
    rate = table.numbers("tflops_per_device") * 1e12 * table.numbers("devices")
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(counted_flops(jobs, table) * table.numbers("global_batch") / rate)


def counted_flops(jobs: Jobs, table: Table) -> FloatArray:
    """Return the FLOPs of one sample that a stated rate counts, NaN where not known, (n,).

    A row that says `recompute` full counts the second forward, as Narayanan et al. 2021 do
    (equation 3: 96 s l h^2 (1 + s/6h + V/16lh)); where the row has the shape, that equation is
    used, else the workload's own FLOPs.
    """
    full = jobs.plans.recompute == RECOMPUTE.index("full")
    graphs = [w.graph for w in jobs.workloads]
    forward = np.array([g.forward_flops for g in graphs] + [np.nan])[jobs.workload_index]
    backward = np.array([g.backward_flops for g in graphs] + [np.nan])[jobs.workload_index]
    own = forward * (1 + full) + backward
    s, layers, h, vocab = (table.numbers(name) for name in ("seq_len", "layers", "hidden", "vocab"))
    with np.errstate(divide="ignore", invalid="ignore"):
        published = 96 * s * layers * h * h * (1 + s / (6 * h) + vocab / (16 * layers * h))
    return np.where(full & np.isfinite(published), published, own)
