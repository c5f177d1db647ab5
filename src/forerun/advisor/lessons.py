"""Lessons: what runs say as a whole: where they hold, how little a few tell, what would tell most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from forerun.advisor.findings import Finding
from forerun.contracts import Predictor
from forerun.domain.comparison import scope_of
from forerun.predictors.starts import SHIPPED, known_by
from forerun.tables import Runs
from forerun.tables.suspects import Flags
from forerun.units import counted

_FEW = 2
_ASKED = 32  # runs whose open causes are looked at
_LOOKED = 256  # runs whose forecasts before and after are looked at
_SOURCES = 3
_PECULIAR = "machines, software versions, network, tuning"
# What kind of run speaks of which causes of error (see `domain.comparison`); any run at all speaks
# of the others.
_DEVICES, _MICRO, _LAYOUT = ("link", "scale"), ("host",), ("plan", "case", "schedule")


def lessons(
    predictor: Predictor, runs: Runs, flags: Flags, found: Sequence[Finding], before: Predictor
) -> tuple[str, ...]:
    """Return what runs say as a whole, in sentences; none for predictors that name no constants.

    Args:
        predictor: what was fitted.
        runs, flags: what it was fitted on, and which rows taught nothing.
        found: what it learned.
        before: what it was fitted from.
    """
    rows = np.flatnonzero(flags.teaches_step & runs.jobs.resolved)
    if not found or not len(rows):
        return ()
    said = [_place(runs, rows), _moved(before, predictor, runs, rows)]
    if len(rows) <= _FEW:
        said.append(_few(len(rows), found, known_by(predictor).get("start") == SHIPPED))
    said.append(_next_run(predictor, runs, rows))
    return tuple(filter(None, said))


def _moved(before: Predictor, predictor: Predictor, runs: Runs, rows: NDArray[np.int64]) -> str:
    """Return how far the forecasts of the runs' own jobs went in all, and how they lie now."""
    some = runs.take(rows[np.unique(np.linspace(0, len(rows) - 1, _LOOKED).astype(int))])
    measured = some.step_seconds()
    old, new = (p.predict(some.jobs).seconds[:, 1] for p in (before, predictor))
    told = np.isfinite(old) & np.isfinite(new) & np.isfinite(measured)
    if not told.any():
        return ""
    low, middle, high = np.quantile(new[told] / old[told], (0.0, 0.5, 1.0))
    left = np.exp(np.median(np.abs(np.log(new[told] / measured[told]))))
    span = f" ({low:.3g}x to {high:.3g}x)" if high > 1.005 * low else ""
    return (
        f"moved: forecasts of these runs' jobs moved by {middle:.3g}x in the median{span}, to"
        f" {left:.3g}x off what was measured; constants that are not identified share in it, each"
        " by a little"
    )


def _place(runs: Runs, rows: NDArray[np.int64]) -> str:
    """Return what becomes of whatever is peculiar to where the runs were made."""
    names = sorted(set(runs.table.texts("source")[rows].tolist()))
    if len(names) == 1:
        where = f"one place ({names[0]})" if names[0] else "one place (no source is named)"
        return (
            f"setting: the runs come from {where}, so what is peculiar to it ({_PECULIAR}) is part"
            " of what was learned, and answers are for that place"
        )
    shown = ", ".join(name or "not named" for name in names[:_SOURCES])
    more = f" and {len(names) - _SOURCES} more" if len(names) > _SOURCES else ""
    return (
        f"setting: the runs come from {len(names)} places (source: {shown}{more}), so what is"
        f" peculiar to each ({_PECULIAR}) is set aside, and answers are for a place not seen yet"
    )


def _few(count: int, found: Sequence[Finding], shipped: bool) -> str:
    told = [finding.words for finding in found if finding.identified]
    rest = len(found) - len(told)
    moved = f"moved {counted(len(told), 'constant')} ({'; '.join(told[:_SOURCES])})"
    if not told:
        moved = "settled no constant"
    kept = "what is shipped" if shipped else "their priors"
    words = "one run tells" if count == 1 else f"{count} runs tell"
    return (
        f"few: {words} little: {'it' if count == 1 else 'they'} {moved}, and the other {rest} that"
        f" {'it rests' if count == 1 else 'they rest'} on stay at {kept}; a slow device, a slow"
        " network and a bad day look alike in so few"
    )


def _next_run(predictor: Predictor, runs: Runs, rows: NDArray[np.int64]) -> str:
    """Return which kind of further run would teach most, by what is left open of these."""
    some = rows[np.unique(np.linspace(0, len(rows) - 1, _ASKED).astype(int))]
    open_by = _open(predictor.predict(runs.jobs.take(some)).causes)
    if not open_by:
        return ""
    plans = runs.jobs.plans.take(rows)
    devices = np.unique(runs.jobs.per_cluster("devices")[rows])
    micro = np.unique(plans.micro_batch)
    layout = np.unique(np.stack([plans.tp, plans.pp, plans.cp, plans.zero_stage, plans.recompute]),
                       axis=1)  # fmt: skip
    kinds = (
        (len(devices) == 1, _DEVICES, f"on another number of devices (all had {devices[0]:.0f})"),
        (len(micro) == 1, _MICRO, f"with another micro-batch (all had {micro[0]})"),
        (layout.shape[1] == 1, _LAYOUT, "with another plan (all had the same tp, pp, zero_stage)"),
    )
    left = [
        (sum(open_by.get(cause, 0.0) for cause in causes), words)
        for alike, causes, words in kinds if alike
    ]  # fmt: skip
    words = max(left)[1] if left else "unlike these in plan or number of devices"
    if len(devices) == 1 and devices[0] == 1:
        words = "on several devices: these say nothing of links"
    memory = "" if np.isfinite(runs.table.numbers("memory_gb")[rows]).any() else (
        "; fill in memory_gb, or nothing is learned of memory"
    )  # fmt: skip
    return f"next: a run {words} would teach most{memory}"


def _open(causes: Mapping[str, NDArray[np.float64]]) -> dict[str, float]:
    """Return the mean share of the log variance by the scope of its cause."""
    whole = np.maximum(np.sum(list(causes.values()), axis=0), 1e-300) if causes else np.ones(1)
    shares: dict[str, float] = {}
    for cause, variance in causes.items():
        scope = scope_of(cause)
        shares[scope] = shares.get(scope, 0.0) + float(np.mean(variance / whole))
    return shares
