"""Start: what a predictor knows before it is fitted: its priors, or the constants shipped with it.

Shipped constants were learned from published runs. Whoever judges on one of these must not start
from them, so that they are taken only where they know none of the judged runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forerun import registry
from forerun.contracts import Predictor
from forerun.predictors.starts import PRIORS, SHIPPED, has_shipped, nothing_shipped
from forerun.tables import Runs
from forerun.tables.fingerprints import seen


def starting(
    names: Sequence[str], start: str = "", judged: Mapping[str, Runs] | None = None
) -> tuple[list[Predictor], str]:
    """Return predictors as they start, and that start in words.

    Args:
        names: registered predictors; some bring constants of their own, see `predictors.starts`.
        start: `shipped` or `priors`. "" takes shipped constants, unless a judged run taught one of them
            or it is not known who did: then all predictors start from their priors.
        judged: the runs that they will be judged on, by table.

    Raises:
        UnknownNameError: no such predictor.
        RequestError: the shipped constants are asked for and there are none, or they cannot be
            read.
    """
    kinds = {name: registry.load("predictors", name) for name in names}
    has = [name for name, kind in kinds.items() if has_shipped(kind)]
    if start == SHIPPED and not has:
        raise nothing_shipped(names)
    if start == PRIORS or not has:
        return [kind() for kind in kinds.values()], PRIORS
    reason = _taught_already([kinds[name] for name in has], judged or {})
    if reason and not start:
        return [kind() for kind in kinds.values()], f"{PRIORS} ({reason})"
    made = [kind.shipped() if name in has else kind() for name, kind in kinds.items()]
    said = f"shipped constants of {', '.join(has)}"
    return made, f"{said} ({reason}: not blind)" if reason else said


def seen_by(kind: Any, runs: Runs) -> int | None:
    """Return how many runs taught the constants that a kind ships; None where it does not say."""
    if not hasattr(kind, "shipped_rows"):
        return None
    return int(seen(runs, kind.shipped_rows()).sum())


def _taught_already(kinds: Sequence[Any], judged: Mapping[str, Runs]) -> str:
    """Return which judged runs taught the constants that kinds ship, in words; "" where none did."""
    rows = sum(len(runs) for runs in judged.values())
    for kind in kinds:
        counts = [seen_by(kind, runs) for runs in judged.values()]
        if None in counts:
            return f"{kind.name} does not say which runs taught its shipped constants"
        most = sum(count or 0 for count in counts)
        if most:
            return f"{most:,} of {rows:,} judged rows taught the shipped constants"
    return ""
