"""Choice: with runs given and nobody named, the runs choose who answers which question."""

from forerun.predictors.choice.auto import Auto

__all__ = ["Auto"]
