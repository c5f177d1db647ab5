"""Evaluate: splits, metrics and the leaderboard; how good forecasts are, and on which rows."""

from forerun.evaluate.accuracy import accuracy_page
from forerun.evaluate.evaluation import ALL_TABLES, Evaluation, Score
from forerun.evaluate.join import join_runs
from forerun.evaluate.judge import evaluate
from forerun.evaluate.leaderboard import Standing, leaderboard
from forerun.evaluate.splits import FORMS, Split, parse_split

__all__ = [
    "ALL_TABLES", "FORMS", "Evaluation", "Score", "Split", "Standing", "accuracy_page", "evaluate",
    "join_runs", "leaderboard", "parse_split",
]  # fmt: skip
