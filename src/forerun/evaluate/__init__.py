"""Evaluate: splits, metrics and the leaderboard; how good forecasts are, and on which rows."""

from forerun.evaluate.accuracy import accuracy_page
from forerun.evaluate.evaluation import ALL_TABLES, Evaluation, Score
from forerun.evaluate.filters import rows_where
from forerun.evaluate.folds import Fold, folds_of
from forerun.evaluate.join import join_runs
from forerun.evaluate.judge import evaluate
from forerun.evaluate.leaderboard import Standing, leaderboard
from forerun.evaluate.splits import FORMS, SHOTS, Split, parse_split, with_shots
from forerun.evaluate.start import starting
from forerun.tables.conditions import Condition, parse_condition

__all__ = [
    "ALL_TABLES", "FORMS", "SHOTS", "Condition", "Evaluation", "Fold", "Score", "Split", "Standing",
    "accuracy_page", "evaluate", "folds_of", "join_runs", "leaderboard", "parse_condition",
    "parse_split", "rows_where", "starting", "with_shots",
]  # fmt: skip
