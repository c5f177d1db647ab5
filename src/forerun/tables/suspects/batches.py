"""Batches: global batches that the plan does not multiply to, or that are left blank."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from forerun.tables.jobs import Runs
from forerun.tables.suspects.flags import Kind, Raised, numbers_text
from forerun.tables.table import Table

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


def batch_flags(runs: Runs) -> Iterator[Raised]:
    """Yield the flags of batches that do not multiply out, and of those that are assumed.

    Rows whose job cannot be read are left aside: they have their own reason.
    """
    jobs = runs.jobs
    # `runs_from_table` fills a blank batch in; the labels are the cells as they were given.
    given = runs.table if jobs.labels is None else jobs.labels
    batch, micro, passes = (
        _stated(given, name) for name in ("global_batch", "micro_batch", "grad_accum")
    )
    resolved, plans = jobs.resolved, jobs.plans
    inner = plans.micro_batch.astype(np.float64) * plans.dp
    whole = plans.global_batch % np.maximum(inner, 1.0) == 0
    yield _accumulations(runs, inner, resolved & micro & batch & passes)
    yield _uneven(runs, np.where(micro, inner, plans.dp), micro, resolved & batch & ~whole)
    yield _assumed(inner, np.flatnonzero(resolved & micro & ~batch & ~passes))


def _stated(given: Table, name: str) -> BoolArray:
    """Return which rows state a count, in a cell of its own or in that of the plan, (n,)."""
    texts, position = np.unique(given.texts("plan").astype(str), return_inverse=True)
    named = np.array([name in text for text in texts.tolist()], dtype=bool)[position]
    return np.asarray(named | ~np.isnan(given.numbers(name)))


def _accumulations(runs: Runs, inner: FloatArray, stated: BoolArray) -> Raised:
    """Return the flags of accumulations that are not global_batch / (micro_batch x dp)."""
    passes, implied = runs.table.numbers("grad_accum"), runs.jobs.plans.global_batch / inner
    row = np.flatnonzero(stated & ~np.isnan(passes) & (passes != implied))
    return Raised(
        Kind.ACCUMULATION, row, "grad_accum", numbers_text(passes[row]),
        numbers_text(implied[row], "= global_batch / (micro_batch x dp)"),
        "correct one of them; the batch columns are used, not grad_accum",
    )  # fmt: skip


def _uneven(runs: Runs, inner: FloatArray, micro: BoolArray, uneven: BoolArray) -> Raised:
    """Return the flags of batches that are no multiple of micro_batch x dp, or of dp alone."""
    # A stated accumulation has its own flag.
    row = np.flatnonzero(uneven & ~(micro & ~np.isnan(runs.table.numbers("grad_accum"))))
    expected = [
        f"a multiple of {size:.10g} = {'micro_batch x dp' if by_micro else 'dp'}"
        for size, by_micro in zip(inner[row].tolist(), micro[row].tolist(), strict=True)
    ]
    return Raised(
        Kind.ACCUMULATION, row, "global_batch",
        numbers_text(runs.jobs.plans.global_batch[row].astype(np.float64), "samples"),
        np.array(expected, dtype=object),
        "correct one of them; the last micro-batch is taken as smaller",
    )  # fmt: skip


def _assumed(inner: FloatArray, row: NDArray[np.int64]) -> Raised:
    """Return the flags of blank batches that are taken as one pass of every device."""
    return Raised(
        Kind.BATCH, row, "global_batch", "blank",
        numbers_text(inner[row], "= micro_batch x dp, which is taken"),
        "fill it in, or grad_accum",
    )  # fmt: skip
