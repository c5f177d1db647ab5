"""Fingerprints: which runs taught constants, kept in a few bytes each, so that none is judged on.

A fingerprint is of what `contents.identity_columns` holds of a run, so that the same measurement in
another table, with other columns beside it, has the same one.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from forerun.domain.plan_columns import NAMES
from forerun.errors import RequestError
from forerun.evaluate.contents import (
    DIGITS,
    ENDED,
    FEWEST,
    identity_columns,
    stated_digits,
)
from forerun.tables import Runs

# Of 10,000 judged rows and as many that taught, one pair in 10,000 tables looks alike by chance.
BYTES = 5


def fingerprints(runs: Runs) -> NDArray[np.uint64]:
    """Return a number for each run, (n,), equal where two tell of one measurement; 0 where none.

    The figure counts in as many digits as its table states, see `contents.stated_digits`.
    """
    return _hashed(runs, lambda figure, digits: [f"{figure:.{digits - 1}e}"])[:, 0]


def _spellings(figure: float, digits: int) -> list[str]:
    """Return how a figure may stand in a table that states more digits, or fewer."""
    if digits == DIGITS:
        # A tie may have been rounded either way.
        near = (figure * (1.0 + 1e-9), figure * (1.0 - 1e-9))
        return [f"{figure:.{DIGITS - 1}e}", *(f"{x:.{FEWEST - 1}e}" for x in near)]
    unit = 10.0 ** (math.floor(math.log10(figure)) - DIGITS + 1) if figure > 0 else 0.0
    # Below a power of ten digits are ten times as fine.
    steps = (*range(-5, 6), *(k / 10.0 for k in range(-5, 0)))
    finer = (figure + k * unit for k in steps)
    return [f"{figure:.{FEWEST - 1}e}", *(f"{x:.{DIGITS - 1}e}" for x in finer)]


def _hashed(runs: Runs, spelled: Callable[[float, int], list[str]]) -> NDArray[np.uint64]:
    """Return numbers of each run by the ways to spell its figure, (n, ways); 0 where there is none."""
    workload, device, devices, batch, status, figure = identity_columns(runs)
    plans = np.stack([np.asarray(getattr(runs.jobs.plans, name)) for name in NAMES], axis=1)
    ended, digits = np.isin(status.astype(str), ENDED), stated_digits(runs)[1]
    ways: dict[int, list[int]] = {}
    for i in np.flatnonzero(ended | (figure >= 0)).tolist():
        words = [str(workload[i]), str(device[i]), f"{devices[i]:.0f}", f"{batch[i]:.0f}",
                 str(status[i])]  # fmt: skip
        plan = list(map(str, plans[i].tolist())) if ended[i] else []
        ways[i] = [
            int.from_bytes(
                blake2b("|".join([*words, text, *plan]).encode(), digest_size=BYTES).digest(),
                "little",
            )
            for text in spelled(float(figure[i]), int(digits[i]))
        ]
    codes = np.zeros((len(runs), max(map(len, ways.values()), default=1)), dtype=np.uint64)
    for i, found in ways.items():
        codes[i, : len(found)] = found
    return codes


def packed(codes: NDArray[np.uint64]) -> str:
    """Return fingerprints as base64 text, each once, sorted, `BYTES` bytes each."""
    distinct = np.unique(codes[codes > 0]).astype("<u8")
    return base64.b64encode(distinct.view(np.uint8).reshape(-1, 8)[:, :BYTES].tobytes()).decode()


def unpacked(text: str) -> NDArray[np.uint64]:
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
    known = [unpacked(text) for text in rows.values()]
    codes = _hashed(runs, _spellings)
    found = (codes > 0) & np.isin(codes, np.concatenate(known or [codes[:0, 0]]))
    return np.asarray(found.any(axis=1))
