"""Contents: which rows of several tables tell of one and the same measurement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.domain.plan_columns import NAMES
from forerun.tables import Runs
from forerun.tables.measured import measured_seconds

ENDED = ("oom", "failed", "timeout")  # statuses of runs that may leave no figure
DIGITS = 5  # significant ones in which two tables agree on one measurement
FEWEST = 4  # a table that states so few agrees with a finer one within what it rounded off
# What may be stated of a run, in the order in which it is read.
_STATED = ("step_time_s", "samples_per_s", "tokens_per_s", "tflops_per_device", "epoch_time_s",
           "time_to_train_s", "samples_to_target", "memory_gb")  # fmt: skip


def content_codes(parts: Sequence[Runs]) -> list[IntArray]:
    """Return a number for each row of each part, equal where the rows tell of one measurement.

    Such rows agree in workload, device, devices, global batch and status, and in the measured figure
    as far as both tables state it, to `DIGITS` digits, or `FEWEST` where a table rounds to so many:
    what two tables both state of one run. Rows that ended without a figure agree in their whole plan
    instead. -1 where nothing was measured.
    """
    columns = [np.concatenate(column) for column in zip(*map(identity_columns, parts), strict=True)]
    figure, status = columns[-1].astype(np.float64), columns[-2].astype(str)
    ended = np.isin(status, ENDED)
    code = np.zeros(len(figure), dtype=np.int64)
    for column in columns[:-1]:
        code = joined(code, column)
    plans = [
        np.concatenate([np.asarray(getattr(p.jobs.plans, name)) for p in parts]) for name in NAMES
    ]
    for column in plans:
        code = joined(code, np.where(ended, column, -1))
    code = _agreeing(code, figure, np.concatenate([rounded_off(p) for p in parts]))
    code = np.where(ended | (figure >= 0), code, -1)
    return np.split(code, np.cumsum([len(p) for p in parts])[:-1])


def _agreeing(code: IntArray, figure: FloatArray, share: FloatArray) -> IntArray:
    """Return codes (n,) equal where these are and where the figures agree.

    share: what rounding took off each figure at most, as a share of it, (n,). Two figures agree where
    one number rounds to both.
    """
    measured = figure > 0
    code = joined(code, np.sign(figure))  # what ended without a figure agrees with its like alone
    log = np.log(np.where(measured, figure, 1.0))
    reach = np.where(measured, share * (1.0 - 1e-6), 0.0)
    order = np.lexsort((log, code))
    lower, group = (log - reach)[order], code[order]
    # The furthest reach of those before in the same group: it starts anew with each group. Reaches
    # are counted by rank, in whole numbers, so that no offset of a group rounds them.
    reaches, rank = np.unique((log + reach)[order], return_inverse=True)
    offset = group * (len(reaches) + 1)
    furthest = reaches[np.maximum.accumulate(rank + offset) - offset]
    apart = np.r_[True, (group[1:] != group[:-1]) | (lower[1:] > furthest[:-1] + 1e-12)]
    result = np.empty(len(code), dtype=np.int64)
    result[order] = np.cumsum(apart[: len(code)])
    return result


def rounded_off(runs: Runs) -> FloatArray:
    """Return what rounding took off each row's figure at most, as a share of it, (n,)."""
    stated, digits = stated_digits(runs)
    with np.errstate(divide="ignore"):
        lead = stated / 10.0 ** np.floor(np.log10(np.where(stated > 0, stated, 1.0)))
    return np.where(stated > 0, 0.5 * 10.0 ** (1.0 - digits) / np.maximum(lead, 1.0), 0.0)


def stated_digits(runs: Runs) -> tuple[FloatArray, IntArray]:
    """Return the figure that each row states (NaN: none) and in how many digits its table does, (n,).

    A table's column is as fine as nine in ten of its figures: one figure may end in zeros by chance.
    """
    stated, digits = np.full(len(runs), np.nan), np.full(len(runs), DIGITS)
    for name in _STATED:
        values = runs.table.numbers(name)
        here = np.isnan(stated) & (values > 0)
        if not here.any():
            continue
        stated[here] = values[here]
        few = np.abs(_rounded(values[here], FEWEST) / values[here] - 1.0) < 1e-9
        digits[here] = FEWEST if few.mean() > 0.9 else DIGITS
    return stated, digits


def joined(code: IntArray, column: NDArray[Any]) -> IntArray:
    """Return codes (n,) that are equal where these are and where the column is."""
    values = column.astype(str) if column.dtype == object else column
    _, inverse = np.unique(values, return_inverse=True)
    pairs = code * (int(inverse.max(initial=0)) + 1) + inverse
    return np.asarray(np.unique(pairs, return_inverse=True)[1], dtype=np.int64)


def identity_columns(runs: Runs) -> tuple[NDArray[Any], ...]:
    """Return what two tables both state of one run, columns (n,).

    They are workload, device, devices, global batch, status and the measured figure, -1 where there
    is none.
    """
    table, jobs = runs.table, runs.jobs
    ids = np.array([c.device.id for c in jobs.clusters] + [""], dtype=object)
    counts = np.array([float(c.devices) for c in jobs.clusters] + [np.nan])
    known = jobs.cluster_index >= 0
    device = np.where(known, ids[jobs.cluster_index], _lowered(table.texts("device")))
    devices = np.where(known, counts[jobs.cluster_index], table.numbers("devices"))
    batch = table.numbers("global_batch")
    return (
        _lowered(table.texts("workload")), device, np.nan_to_num(devices, nan=-1.0),
        np.nan_to_num(batch, nan=-1.0), runs.status, _figure(runs),
    )  # fmt: skip


def _figure(runs: Runs) -> FloatArray:
    """Return the first measured figure of each row (n,), -1 where there is none."""
    figure = measured_seconds(runs, "step").seconds
    for name in ("epoch_time_s", "time_to_train_s", "samples_to_target", "memory_gb",
                 "samples_per_s", "tokens_per_s", "tflops_per_device"):  # fmt: skip
        values = runs.table.numbers(name)
        figure = np.where(np.isnan(figure) & (values > 0), values, figure)
    return np.where(np.isnan(figure), -1.0, figure)


def _rounded(values: FloatArray, digits: int) -> FloatArray:
    exponent = np.floor(np.log10(np.where(values > 0, values, 1.0)))
    scale = 10.0 ** (exponent - digits + 1)
    return np.where(values > 0, np.round(values / scale) * scale, values)


def _lowered(texts: NDArray[np.object_]) -> NDArray[np.object_]:
    return np.array([str(t).strip().lower() for t in texts], dtype=object)
