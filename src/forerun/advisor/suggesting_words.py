"""SuggestingWords: a suggested run in words: which job it is, and why it is worth making."""

from __future__ import annotations

import numpy as np

from forerun.advisor.explaining import UNKNOWN
from forerun.predictors.laws.law_rows import LawRows
from forerun.search.run_prices import DOLLARS
from forerun.search.suggestion import NextRun, Suggestion
from forerun.tables import Jobs
from forerun.units import format_dollars, format_percent, format_seconds

_TELLING = 0.1  # of the doubt: what a run tells less of is not said


def reason(jobs: Jobs, found: Suggestion, run: NextRun) -> str:
    """Return in words why a run is suggested."""
    if found.goal == "design":
        name, times = run.term
        if np.isinf(times):
            return f"without it {name} could not be told from the other terms"
        return f"without it the variance of {name} would be {times:.2g} times as large"
    said = []
    if found.goal == "decision":
        saved = format_dollars(run.gain) if found.objective == DOLLARS else format_seconds(run.gain)
        said.append(
            f"changes the choice in {format_percent(run.changes)} of what it may show, which saves"
            f" {saved} on average"
        )
        about = run.about[0]
        what = "it" if run.row == about or jobs_equal(jobs, run.row, about) else label(jobs, about)
        said.append(f"settles {format_percent(run.about[1])} of the doubt about {what}")
    if found.goal == "accuracy" and not run.tells:
        said.append(
            f"settles {format_percent(run.about[1])} of the doubt about {label(jobs, run.about[0])}"
        )
    telling = [(UNKNOWN.get(s, s), v) for s, v in run.tells.items() if v >= _TELLING][:2]
    if telling:
        tells = " and ".join(f"{words} ({format_percent(share)})" for words, share in telling)
        said.append(f"{'' if said else 'of what is asked it '}tells {tells}")
    said.append(f"leaves an error of {format_percent(np.expm1(run.error), 1)} on what is asked")
    return "; ".join(said)


def jobs_equal(jobs: Jobs, a: int, b: int) -> bool:
    """Return whether two rows are one job, so far as they are resolved."""
    return bool(jobs.resolved[[a, b]].all()) and jobs[a] == jobs[b]


def label(jobs: Jobs, i: int) -> str:
    """Return a job in a few words: workload, cluster, batch."""
    if jobs.resolved[i]:
        job = jobs[i]
        return f"{job.workload.name} on {job.cluster.name}, batch {job.plan.global_batch:,}"
    rows = LawRows(jobs.take(np.array([i])))
    kinds, index = rows.kinds
    name, device = kinds[int(index[0])][:2]
    machines, batch = float(rows.machines[0]), float(rows.size("global_batch")[0])
    place = f"{machines:g} x {device}" if device else f"{machines:g} devices"
    size = f", batch {batch:,.0f}" if np.isfinite(batch) else ""
    if not size and np.isfinite(rows.size("dataset_size")[0]):
        size = f", dataset {float(rows.size('dataset_size')[0]):,.4g}"
    return f"{name or 'a job'} on {place}{size}"
