"""SuggestingWho: whose next runs are suggested: who learned, or whose terms first runs would teach."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forerun.advisor.advisor import Advisor
from forerun.advisor.made_runs import MadeRuns
from forerun.advisor.suggesting_tables import evenly
from forerun.advisor.table_plans import planned
from forerun.contracts import Predictor
from forerun.errors import RequestError
from forerun.predictors.laws.ernest import Ernest
from forerun.search.law_beliefs import taught_by
from forerun.tables import Table
from forerun.workloads.rows import jobs_from_table

_FEW, _MANY = 20, 1500


def why_unanswered(advisor: Advisor, asked: Table) -> str:
    """Return why an advisor's predictor answers none of the jobs; "" where it answers any."""
    reasons: list[str] = []
    # A few tell it in most cases.
    for rows in (evenly(np.arange(len(asked)), _FEW), evenly(np.arange(len(asked)), _MANY)):
        part = asked.take(rows)
        jobs = jobs_from_table(part, advisor.catalog, advisor.meanings.labels.read)
        plans = planned(advisor.predictor, jobs, part)
        forecasts = advisor.predictor.predict(plans.jobs)
        if not len(part) or np.isfinite(forecasts.seconds[:, 1]).any():
            return ""
        reasons = [str(reason) for reason in forecasts.declined if reason]
    return reasons[0] if reasons else "it declines them"


def first_runs(
    catalog_files: Sequence[str], name: str, why: str, candidates: Table
) -> tuple[Advisor, list[str]] | None:
    """Return who designs the first runs of jobs that nobody answers yet, and what is said of it.

    A design needs no times: Ernest's terms, of devices and size, are what any law of such jobs
    would need to be told first.

    Args:
        catalog_files: the user's own devices and prices.
        name: who does not answer, and `why`.
        candidates: that could be run.

    Returns:
        None where no candidate says on how many devices it runs.
    """
    advisor = Advisor(catalog_files, Ernest.name)
    features = Ernest().linear_features(jobs_from_table(candidates, advisor.catalog))
    if not np.isfinite(features).all(axis=1).any():
        return None
    return advisor, [
        f"{name} does not answer yet: {why}",
        f"so these are first runs by the terms of {Ernest.name} (devices and size), which takes"
        f" {Ernest.needed}, for each workload and device",
    ]


def saved_words(predictor: Predictor, made: MadeRuns | None) -> list[str]:
    """Return what is said of a saved model that is given without the runs that taught it."""
    known = taught_by(predictor)
    lead = f"what the model has learned{f' ({known})' if known else ''} counts"
    if made is None:
        return [
            f"{lead}, but it was saved without the jobs that were run: give them with --runs too, or"
            " fit it again, so that none is suggested again"
        ]
    return [lead, *filter(None, [made.note])]


def reason_of(error: RequestError) -> str:
    """Return a refusal as part of a sentence."""
    return f"{error.found}; {error.next_step}"
