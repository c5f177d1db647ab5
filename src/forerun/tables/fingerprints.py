"""Fingerprints: which runs taught constants, kept in a few bytes each, so that none is judged on.

A fingerprint is of what `contents.identity_columns` holds of a run, so that the same measurement in
another table, with other columns beside it, has the same one.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.domain.plan_columns import NAMES
from forerun.errors import RequestError
from forerun.tables import Runs
from forerun.tables.contents import (
    DIGITS,
    ENDED,
    FEWEST,
    identity_columns,
    joined,
    rounded_off,
    stated_digits,
)

Codes = NDArray[np.uint64]

# Of 10,000 judged rows and as many that taught, one pair in 200 tables looks alike by chance.
BYTES = 5
# What rounding takes off a figure at most, as a share of it, by the digits in which it is stated.
_MOST_OFF = {digits: 0.5 * 10.0 ** (1 - digits) for digits in (FEWEST, DIGITS)}
CELL = _MOST_OFF[DIGITS]  # of the log of a figure: as fine as figures of most digits allow


def fingerprints(runs: Runs) -> Codes:
    """Return a number for each run, (n,); 0 where nothing was measured.

    It tells what was run, in how many digits the table states its figure (`contents.stated_digits`),
    and in which cell the figure's log lies: two tables rarely state a run in one quantity and as
    finely, so that `seen` looks it up in every cell that what they rounded off may have led to.
    """
    figure, digits = identity_columns(runs)[-1].astype(np.float64), stated_digits(runs)[1]
    return _coded(_asked(runs), digits, _cells(figure))


def _cells(figure: FloatArray, further: FloatArray | float = 0.0) -> IntArray:
    """Return the cell of figures moved by so much of their log, (n,); 0 of what is no figure."""
    log = np.log(np.where(figure > 0, figure, 1.0))
    return np.where(figure > 0, np.floor((log + further) / CELL), 0.0).astype(np.int64)


def _asked(runs: Runs) -> Codes:
    """Return a number for what was run and how it ended, (n,); 0 where nothing was measured."""
    workload, device, devices, batch, status, figure = identity_columns(runs)
    plans = np.stack([np.asarray(getattr(runs.jobs.plans, name)) for name in NAMES], axis=1)
    ended = np.isin(status.astype(str), ENDED)
    told = np.flatnonzero(ended | (figure >= 0))
    # A sentence is made once for all rows that it is true of.
    asked = [workload, device, devices, batch, status, figure > 0]
    asked += [np.where(ended, column, -1) for column in plans.T]
    kind = np.zeros(len(runs), dtype=np.int64)
    for column in asked:
        kind = joined(kind, column)
    _, first, index = np.unique(kind[told], return_index=True, return_inverse=True)
    found = np.zeros(len(first), dtype=np.uint64)
    for j, i in enumerate(told[first].tolist()):
        words = [str(workload[i]), str(device[i]), f"{devices[i]:.0f}", f"{batch[i]:.0f}",
                 str(status[i]), "timed" if figure[i] > 0 else "ended"]  # fmt: skip
        plan = list(map(str, plans[i].tolist())) if ended[i] else []
        text = "|".join([*words, *plan]).encode()
        found[j] = int.from_bytes(blake2b(text, digest_size=8).digest(), "little") or 1
    codes = np.zeros(len(runs), dtype=np.uint64)
    codes[told] = found[index]
    return codes


def _coded(asked: Codes, digits: IntArray, cells: IntArray) -> Codes:
    """Return numbers of `BYTES` bytes for what was run and a cell of a grid, 0 where asked is 0."""
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
            "reading the runs that taught constants", f"they cannot be unpacked ({error})",
            "refit the constants with `make constants`",
        ) from None  # fmt: skip
    return np.asarray(wide.view("<u8").reshape(-1), dtype=np.uint64)


def seen(runs: Runs, rows: Mapping[str, str]) -> NDArray[np.bool_]:
    """Return which runs are among those that taught, (n,).

    Args:
        runs: facts.
        rows: packed fingerprints by table.

    Raises:
        RequestError: these cannot be read.
    """
    known = np.concatenate([*map(unpacked, rows.values()), np.zeros(0, dtype=np.uint64)])
    figure, own, asked = (
        identity_columns(runs)[-1].astype(np.float64),
        rounded_off(runs),
        _asked(runs),
    )
    found = np.zeros(len(runs), dtype=bool)
    for digits, off in _MOST_OFF.items():
        reach = (own + off) * (1.0 + 1e-6)
        first, last = _cells(figure, -reach), _cells(figure, reach)
        for step in range(int((last - first).max(initial=0)) + 1):
            codes = _coded(asked, np.full(len(runs), digits), np.minimum(first + step, last))
            found |= (codes > 0) & np.isin(codes, known)
    return found
