"""Evaluate: splits, metrics and the leaderboard; how good forecasts are, and on which rows."""

from forerun.evaluate.evaluation import ALL_TABLES, Evaluation, Score
from forerun.evaluate.judge import evaluate, starting
from forerun.evaluate.leaderboard import LeaderboardRow, leaderboard
from forerun.evaluate.splits import Split, parse_split, rows_where
from forerun.tables.conditions import Condition, parse_condition

__all__ = [
    "ALL_TABLES", "Condition", "Evaluation", "LeaderboardRow", "Score", "Split",
    "evaluate", "leaderboard", "parse_condition", "parse_split", "rows_where", "starting",
]  # fmt: skip
