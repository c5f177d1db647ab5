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

from forerun.domain.plan_columns import NAMES
from forerun.errors import RequestError
from forerun.evaluate.contents import DIGITS, ENDED, identity_columns
from forerun.tables import Runs

# Of 10,000 judged rows and as many that taught, one pair in 10,000 tables looks alike by chance.
BYTES = 5


def fingerprints(runs: Runs) -> NDArray[np.uint64]:
    """Return a number for each run, (n,), equal where two tell of one measurement; 0 where none."""
    workload, device, devices, batch, status, figure = identity_columns(runs)
    plans = np.stack([np.asarray(getattr(runs.jobs.plans, name)) for name in NAMES], axis=1)
    ended = np.isin(status.astype(str), ENDED)
    codes = np.zeros(len(runs), dtype=np.uint64)
    for i in np.flatnonzero(ended | (figure >= 0)):
        words = [str(workload[i]), str(device[i]), f"{devices[i]:.0f}", f"{batch[i]:.0f}",
                 str(status[i]), f"{figure[i]:.{DIGITS - 1}e}"]  # fmt: skip
        if ended[i]:
            words += map(str, plans[i].tolist())
        digest = blake2b("|".join(words).encode(), digest_size=BYTES).digest()
        codes[i] = int.from_bytes(digest, "little")
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
    codes = fingerprints(runs)
    return np.asarray((codes > 0) & np.isin(codes, np.concatenate(known or [codes[:0]])))
