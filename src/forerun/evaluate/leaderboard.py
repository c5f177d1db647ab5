"""Leaderboard: predictors in order, on the rows that all of them answered their share of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forerun.evaluate.evaluation import ENOUGH_ANSWERED, Evaluation, Score


@dataclass(frozen=True, slots=True)
class Standing:
    """One predictor's place.

    Attributes:
        median_ape: geometric mean over the common tables of its median error, percent.
        tables: common tables: those in which every predictor's figures count.
        counted: tables in which its own figures count: answered 90 % of the rows that the
            predictors are judged on (`judged_rows`).
        coverage: mean over the common tables of the share inside its 5-95 % band.
    """

    place: int
    predictor: str
    median_ape: float
    coverage: float
    tables: int
    counted: int


def leaderboard(evaluation: Evaluation) -> tuple[Standing, ...]:
    """Return the predictors, best first.

    Only tables in which every predictor answered at least 90 % of the rows are compared, so that
    declining the hard ones does not help; a geometric mean, so that no table outweighs the rest.
    A predictor without a figure comes last.
    """
    totals = evaluation.totals()
    rows_of = {t: judged_rows([s for s in totals if s.table == t]) for t in evaluation.tables}
    counted = {
        p: {s.table for s in totals if s.predictor == p and _counts(s, rows_of[s.table])}
        for p in evaluation.predictors
    }
    common = set.intersection(*counted.values()) if counted else set()
    rows = []
    for predictor in evaluation.predictors:
        mine = [s for s in totals if s.predictor == predictor and s.table in common]
        # An error of exactly zero would make the mean zero whatever the other tables say.
        errors = np.array([max(s.median_ape, 1e-6) for s in mine])
        error = float(np.exp(np.log(errors).mean())) if len(mine) else float("nan")
        coverage = float(np.mean([s.coverage for s in mine])) if mine else float("nan")
        rows.append((error, predictor, coverage, len(mine)))
    rows.sort(key=lambda row: (np.isnan(row[0]), row[0], row[1]))
    return tuple(
        Standing(place, predictor, error, coverage, tables, len(counted[predictor]))
        for place, (error, predictor, coverage, tables) in enumerate(rows, start=1)
    )


def judged_rows(scores: Sequence[Score]) -> int:
    """Return on how many rows of one table predictors are compared.

    Where all answer in one quantity, those with a measured time in it. Where one answers the step
    and another the run, those with any time: an error is a share of the time either way, but who
    answers in a quantity that a row does not tell has not answered that row.
    """
    spoken = {quantity for s in scores for quantity in s.quantities}
    if len(spoken) > 1:
        return max(s.timed_rows for s in scores)
    return max((s.comparable for s in scores if s.quantities or not spoken), default=0)


def _counts(score: Score, rows: int) -> bool:
    return rows > 0 and score.answered / rows >= ENOUGH_ANSWERED
