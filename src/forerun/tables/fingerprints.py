"""Fingerprints: which rows of several tables are one measurement, and which runs constants were fitted to."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.domain.plan import NAMES
from forerun.errors import RequestError
from forerun.tables import Runs, Table
from forerun.tables.measured import measured_seconds

ENDED = ("oom", "failed", "timeout")  # statuses of runs that may leave no figure
DIGITS = 5  # significant ones in which two tables agree on one measurement
FEWEST = 4  # a table that states so few agrees with a finer one within what it rounded off
# What may be stated of a run, in the order in which it is read.
_STATED = ("step_time_s", "samples_per_s", "tokens_per_s", "tflops_per_device", "epoch_time_s",
           "time_to_train_s", "samples_to_target", "memory_gb")  # fmt: skip


def content_codes(parts: Sequence[Runs]) -> list[IntArray]:
    """Return a number for each row of each part, equal where the rows are one measurement.

    Such rows agree in `identity_columns` and, as far as it was rounded, in the figure; those that ended
    without one in their whole plan instead. -1 where nothing was measured.
    """
    stated, plan, figure, ended = _identity(parts)
    code = _code([*stated, *plan])
    code = _agreeing(code, figure, np.concatenate([rounded_off(p) for p in parts]))
    code = np.where(ended | (figure >= 0), code, -1)
    return np.split(code, np.cumsum([len(p) for p in parts])[:-1])


def _identity(
    parts: Sequence[Runs],
) -> tuple[list[NDArray[Any]], list[NDArray[Any]], FloatArray, BoolArray]:
    """Return (what is stated, the plan of runs that ended, the figure, which ended) of all rows."""
    *stated, figure = (np.concatenate(c) for c in zip(*map(identity_columns, parts), strict=True))
    ended = np.isin(stated[-1].astype(str), ENDED)
    plans = (np.concatenate([getattr(p.jobs.plans, name) for p in parts]) for name in NAMES)
    return (
        stated, [np.where(ended, column, -1) for column in plans], figure.astype(np.float64), ended,
    )  # fmt: skip


def _code(columns: Sequence[NDArray[Any]]) -> IntArray:
    """Return codes (n,) that are equal where all columns are."""
    table = Table({str(i): column for i, column in enumerate(columns)}, len(columns[0]))
    return table.groups(list(table.columns))[1]


def _agreeing(code: IntArray, figure: FloatArray, share: FloatArray) -> IntArray:
    """Return codes (n,) equal where these are and one number rounds, by so large a share, to both figures."""
    measured = figure > 0
    code = _code([code, np.sign(figure)])  # what ended without a figure agrees with its like alone
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
    """Return the figure that each row states (NaN: none) and in how many digits its table does, (n,)."""
    stated, digits = np.full(len(runs), np.nan), np.full(len(runs), DIGITS)
    for name in _STATED:
        values = runs.table.numbers(name)
        here = np.isnan(stated) & (values > 0)
        if not here.any():
            continue
        stated[here] = values[here]
        scale = 10.0 ** (np.floor(np.log10(values[here])) - FEWEST + 1)
        few = np.abs(np.round(values[here] / scale) * scale / values[here] - 1.0) < 1e-9
        digits[here] = FEWEST if few.mean() > 0.9 else DIGITS  # a zero may end one by chance
    return stated, digits


def identity_columns(runs: Runs) -> tuple[NDArray[Any], ...]:
    """Return workload, device, devices, global batch, status and measured figure, -1 of none, (n,) each."""
    table, jobs = runs.table, runs.jobs
    known, ids = jobs.cluster_index >= 0, jobs.per_cluster("device.id", "").astype(object)
    device = np.where(known, ids, _lowered(table.texts("device")))
    devices = np.where(known, jobs.per_cluster("devices", np.nan), table.numbers("devices"))
    batch = table.numbers("global_batch")
    figure = measured_seconds(runs, "step").seconds  # else the first that is measured of these
    for name in (*_STATED[4:], *_STATED[1:4]):
        values = table.numbers(name)
        figure = np.where(np.isnan(figure) & (values > 0), values, figure)
    return (
        _lowered(table.texts("workload")), device, np.nan_to_num(devices, nan=-1.0),
        np.nan_to_num(batch, nan=-1.0), runs.status, np.nan_to_num(figure, nan=-1.0),
    )  # fmt: skip


def _lowered(texts: NDArray[np.object_]) -> NDArray[np.object_]:
    return np.array([str(t).strip().lower() for t in texts], dtype=object)


Codes = NDArray[np.uint64]

# Of 10,000 judged rows and as many fitted ones, one pair in 200 tables looks alike by chance.
BYTES = 5
# What rounding takes off a figure at most, as a share of it, by the digits in which it is stated.
_MOST_OFF = {digits: 0.5 * 10.0 ** (1 - digits) for digits in (FEWEST, DIGITS)}
CELL = _MOST_OFF[DIGITS]  # of the log of a figure: as fine as figures of most digits allow


def fingerprints(runs: Runs) -> Codes:
    """Return a number for each run, (n,); 0 where nothing was measured.

    It holds what was run, in how many digits the table states its figure, and in which cell the
    figure's log lies; `seen` looks a run up in every cell that rounding may have led to.
    """
    figure, digits = identity_columns(runs)[-1].astype(np.float64), stated_digits(runs)[1]
    return _coded(_asked(runs), digits, _cells(figure))


def _cells(figure: FloatArray, further: FloatArray | float = 0.0) -> IntArray:
    """Return the cell of figures moved by so much of their log, (n,); 0 of what is no figure."""
    log = np.log(np.where(figure > 0, figure, 1.0))
    return np.where(figure > 0, np.floor((log + further) / CELL), 0.0).astype(np.int64)


def _asked(runs: Runs) -> Codes:
    """Return a number for what was run and how it ended, (n,); 0 where nothing was measured."""
    stated, plan, figure, ended = _identity([runs])
    measured = np.flatnonzero(ended | (figure >= 0))
    # A text is made once for all rows that it is true of.
    kind = _code([*stated, figure > 0, *plan])
    _, first, index = np.unique(kind[measured], return_index=True, return_inverse=True)
    found = np.zeros(len(first), dtype=np.uint64)
    for j, i in enumerate(measured[first].tolist()):
        workload, device, devices, batch, status = (column[i] for column in stated)
        words = [workload, device, f"{devices:.0f}", f"{batch:.0f}", status,
                 "timed" if figure[i] > 0 else "ended"]  # fmt: skip
        text = "|".join(map(str, [*words, *([c[i] for c in plan] if ended[i] else [])])).encode()
        found[j] = int.from_bytes(blake2b(text, digest_size=8).digest(), "little") or 1
    codes = np.zeros(len(runs), dtype=np.uint64)
    codes[measured] = found[index]
    return codes


def _coded(asked: Codes, digits: IntArray, cells: IntArray) -> Codes:
    """Return numbers of `BYTES` bytes for what was run and a cell of a grid, 0 where the first is 0."""
    # The shape of the grid, whose figures are stated in so many digits, is a part of the number.
    mixed = _stirred(
        asked ^ _stirred(cells.astype(np.uint64) * np.uint64(16) + digits.astype(np.uint64))
    )
    return np.where(asked > 0, np.maximum(mixed >> np.uint64(64 - 8 * BYTES), 1), 0).astype(
        np.uint64
    )


def _stirred(values: Codes) -> Codes:
    """Return whole numbers that depend on every bit of these, one to one (the end of splitmix64)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def packed(codes: Codes) -> str:
    """Return fingerprints as base64 text, each once, sorted, `BYTES` bytes each."""
    distinct = np.unique(codes[codes > 0]).astype("<u8")
    return base64.b64encode(distinct.view(np.uint8).reshape(-1, 8)[:, :BYTES].tobytes()).decode()


def unpacked(text: str) -> Codes:
    """Return what `packed` wrote. Raises RequestError where it did not write it."""
    try:
        raw = np.frombuffer(base64.b64decode(text, validate=True), dtype=np.uint8)
        wide = np.zeros((len(raw) // BYTES, 8), dtype=np.uint8)
        wide[:, :BYTES] = raw.reshape(-1, BYTES)
    except ValueError as error:
        raise RequestError(
            "reading the runs that constants were fitted to", f"they cannot be unpacked ({error})",
            "refit the constants with `make constants`",
        ) from None  # fmt: skip
    return np.asarray(wide.view("<u8").reshape(-1), dtype=np.uint64)


def seen(runs: Runs, rows: Mapping[str, str]) -> NDArray[np.bool_]:
    """Return which runs are among the fitted ones, (n,); rows: packed fingerprints by table."""
    known = np.concatenate([*map(unpacked, rows.values()), np.zeros(0, dtype=np.uint64)])
    figure = identity_columns(runs)[-1].astype(np.float64)
    own, asked = rounded_off(runs), _asked(runs)
    found = np.zeros(len(runs), dtype=bool)
    for digits, off in _MOST_OFF.items():
        reach = (own + off) * (1.0 + 1e-6)
        first, last = _cells(figure, -reach), _cells(figure, reach)
        for step in range(int((last - first).max(initial=0)) + 1):
            codes = _coded(asked, np.full(len(runs), digits), np.minimum(first + step, last))
            found |= (codes > 0) & np.isin(codes, known)
    return found
