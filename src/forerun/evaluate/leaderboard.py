"""Leaderboard: predictors in order, on the rows that all of them answered their share of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forerun.evaluate.evaluation import Evaluation


@dataclass(frozen=True, slots=True)
class Standing:
    """One predictor's place.

    Attributes:
        median_ape: geometric mean over the common tables of its median error, percent.
        tables: common tables: those in which every predictor's figures count.
        counted: tables in which its own figures count.
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
    counted = {p: {s.table for s in totals if s.predictor == p and s.counts}
               for p in evaluation.predictors}  # fmt: skip
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
