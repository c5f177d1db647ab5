"""Starts: what a predictor knows before anybody's runs: its priors, or constants shipped with it.

A kind of predictor that brings constants of its own has `shipped()`, which makes one with them, and
may have `shipped_made()`, which says how they were made (None where a package holds none after all),
and `shipped_rows()`, the fingerprints of the runs that taught them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forerun import registry
from forerun.contracts import Predictor
from forerun.errors import RequestError, UnknownNameError
from forerun.predictors.options import configured, read_spec
from forerun.units import counted

PRIORS, SHIPPED = "priors", "shipped"
STARTS = (SHIPPED, PRIORS)


def has_shipped(kind: Any) -> bool:
    """Return whether a kind of predictor comes with constants that runs have taught."""
    if not hasattr(kind, "shipped"):
        return False
    return not hasattr(kind, "shipped_made") or kind.shipped_made() is not None


def shipped_made(name: str) -> Mapping[str, Any]:
    """Return how the constants of a registered predictor were made; empty where it has none."""
    kind = registry.load("predictors", name)
    return dict(kind.shipped_made() or {}) if hasattr(kind, "shipped_made") else {}


def started(name: str, start: str = "") -> Predictor:
    """Return a registered predictor as it starts.

    Args:
        name: of the predictor, with options where wanted (`generic:mode=faithful`).
        start: one of `STARTS`; "" for shipped constants where it has any.

    Raises:
        UnknownNameError: no such predictor, or no such start.
        RequestError: shipped constants are asked for and there are none, or they cannot be read.
    """
    if start and start not in STARTS:
        raise UnknownNameError("start", start, STARTS)
    kind, values = read_spec(name)
    has = start != PRIORS and has_shipped(kind)
    if start == SHIPPED and not has:
        raise nothing_shipped([name])
    if values or not has:
        return configured(kind, values)
    made: Predictor = kind.shipped()
    return made


def nothing_shipped(names: Sequence[str]) -> RequestError:
    """Return the error for shipped constants of predictors that have none."""
    return RequestError(
        "--start shipped", f"{', '.join(names)} comes without constants of its own",
        "leave --start out, or name a predictor that has them",
    )  # fmt: skip


def known_by(predictor: Predictor) -> dict[str, Any]:
    """Return which constants answer, for JSON: `start`, one of `STARTS`, and `fitted_runs`.

    Both are left out where a predictor does not say.
    """
    start = getattr(predictor, "start", "")
    return {"start": start, "fitted_runs": getattr(predictor, "fitted_runs", 0)} if start else {}


def known_words(known: Mapping[str, Any]) -> str:
    """Return what `known_by` returned in words: `shipped constants, fitted to 12 runs`; or ""."""
    if not known:
        return ""
    words = "shipped constants" if known["start"] == SHIPPED else known["start"]
    return (
        f"{words}, fitted to {counted(known['fitted_runs'], 'run')}"
        if known["fitted_runs"]
        else words
    )
