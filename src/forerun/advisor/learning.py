"""Learning: a predictor is shown runs, less what looks wrong in them, and every such row is named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from forerun.advisor.models import predictor_of
from forerun.contracts import Predictor
from forerun.domain.forecast import QUANTITIES
from forerun.errors import RequestError
from forerun.predictors.laws.law_rows import measured
from forerun.predictors.starts import SHIPPED, known_by
from forerun.tables import Runs
from forerun.tables.suspects import KINDS, POLICY, Flags, Kind, cleaned, suspects
from forerun.units import counted

# Who learns from runs of workloads and devices that are known alone; the others go by labels.
_BY_PHYSICS = ("analytic", "residual", "constant-mfu")


class LearningError(RequestError):
    """Runs that teach nothing; `flags` says of each row why."""

    def __init__(self, asked: str, found: str, next_step: str, flags: Flags) -> None:
        super().__init__(asked, found, next_step)
        self.flags = flags


def flags_of(runs: Runs, predictor: Predictor | None = None) -> Flags:
    """Return what looks wrong in runs, against what physics expects of them.

    Args:
        runs: facts, as they were given.
        predictor: whose physics counts, where it is analytic; else that of the priors, which have
            seen no run.
    """
    if predictor is None or predictor.name != "analytic":
        predictor = predictor_of("analytic", start="priors")
    return suspects(runs, predictor.predict(runs.jobs))


def taught(predictor: Predictor, runs: Runs) -> tuple[Predictor, Flags]:
    """Return the predictor that has learned from the runs, and what was flagged in them.

    Figures that a flag leaves out are not shown to the predictor (see `suspects.POLICY`).

    Raises:
        LearningError: the runs cannot teach it; where none teaches a time, the flags say why.
    """
    flags = flags_of(runs, predictor)
    clean = cleaned(runs, flags)
    by_label = predictor.name not in _BY_PHYSICS
    if by_label:
        told = [np.isfinite(measured(clean, quantity)) for quantity in QUANTITIES]
        flags = replace(flags, by_label=np.any(told, axis=0))
    try:
        return predictor.fit(clean), flags
    except RequestError as error:
        if by_label or flags.teaches_step.any():
            raise LearningError(error.asked, error.found, error.next_step, flags) from None
        found = f"none of them teaches a step time: {_why_none(flags)}"
        raise LearningError(
            f"learning from {counted(len(runs), 'run')}", found, _next(flags), flags
        ) from None


def known_already(predictor: Predictor, runs: Runs) -> int:
    """Return how many runs have taught a predictor's shipped constants before: they count twice."""
    from forerun.evaluate.start import seen_by

    if known_by(predictor).get("start") != SHIPPED:
        return 0
    return seen_by(type(predictor), runs) or 0


def _why_none(flags: Flags) -> str:
    """Return why no row is left, by what was found first in each."""
    if flags.wholes:
        return "; ".join(flags.wholes)
    out = flags.out_step
    first = np.unique(flags.row[out], return_index=True)[1]
    kinds, counts = np.unique(flags.kind[out][first], return_counts=True)
    order = np.argsort(-counts, kind="stable")
    said = (f"{counts[i]:,} {KINDS[kinds[i]]} ({POLICY[KINDS[kinds[i]]][0]})" for i in order)
    return ", ".join(said)


def _next(flags: Flags) -> str:
    if flags.rows_with(flags.of(Kind.ENDED)).all():
        return (
            "add a run that ended ok, with step_time_s; runs out of memory say where memory ends,"
            " and teach no time"
        )
    return (
        "mend the rows: `forerun fit --flags FILE.csv` lists every one with its reason; or let who"
        " learns from labels alone learn from them: --predictor auto"
    )
