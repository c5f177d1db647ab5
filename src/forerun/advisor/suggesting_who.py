"""SuggestingWho: whose next runs are suggested, where nobody named a predictor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from forerun import registry
from forerun.advisor.advisor import Advisor
from forerun.errors import RequestError
from forerun.tables import Table
from forerun.units import format_percent

# Who is asked, in this order, where physics does not know what the runs are of.
_BY_LABEL, _ENOUGH = ("hierarchical", "goodput", "ernest"), 0.9


def who_answers(
    first: Advisor | None, files: Sequence[Path], catalog_files: Sequence[str], asked: Table
) -> tuple[Advisor | None, str]:
    """Return the advisor whose predictor answers most of the jobs asked, and what is said of it.

    For who names no predictor: physics, unless it does not know these workloads and devices; then
    those that learn runs by their labels, what states its joint errors first.

    Args:
        first: physics that has learned from the files; None where they teach it nothing.
        files: of runs. catalog_files: the user's own devices and prices.
        asked: jobs whose answers matter.
    """
    best, most = first, 0.0 if first is None else _answered(first, asked)
    for name in _BY_LABEL:
        if most >= _ENOUGH or name not in registry.names("predictors"):
            continue
        try:
            other = Advisor(catalog_files, name).fit(*files)
        except RequestError:  # too few runs for this one
            continue
        if _answered(other, asked) > most:
            best, most = other, _answered(other, asked)
    if best is first or best is None:
        return first, ""
    return best, (
        f"{best.predictor.name} answers {format_percent(most)} of the jobs asked, and physics"
        " fewer; name another with --predictor"
    )


def _answered(advisor: Advisor, asked: Table) -> float:
    """Return the share of jobs that a predictor answers."""
    from forerun.workloads.rows import jobs_from_table

    jobs = jobs_from_table(asked, advisor.catalog)
    return float(np.isfinite(advisor.predictor.predict(jobs).seconds[:, 1]).mean())
