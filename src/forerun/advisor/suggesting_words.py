"""SuggestingWords: a suggested run in words: which job it is, and why it is worth making."""

from __future__ import annotations

import numpy as np

from forerun.advisor.explaining import UNKNOWN
from forerun.predictors.laws.law_rows import LawRows
from forerun.search.run_prices import DOLLARS
from forerun.search.suggestion import NextRun, Suggestion
from forerun.tables import Jobs, Table
from forerun.units import format_dollars, format_percent, format_seconds

# What tells jobs apart beside workload, cluster and batch.
_TELL_APART = (
    "dataset_size", "sync", "parameter_servers", "learning_rate", "precision", "framework",
    "seq_len", "image_size", "micro_batch", "tp", "pp", "zero_stage", "recompute",
)  # fmt: skip
_MOST_TOLD = 3
_NOTHING = 0.005
_MOST_LOG = np.log(1000.0)
_TELLING = 0.1  # of the doubt: what a run tells less of is not said


def reason(jobs: Jobs, found: Suggestion, run: NextRun, table: Table) -> str:
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
        said.append(_settles(jobs, found, run, table))
    if found.goal == "accuracy" and not run.tells:
        about, settled = run.about[0], format_percent(run.about[1])
        what = "it" if about == run.row else label(jobs, about, table)
        said.append(f"settles {settled} of the doubt about {what}")
    telling = [(UNKNOWN.get(s, s), v) for s, v in run.tells.items() if v >= _TELLING][:2]
    if telling:
        tells = " and ".join(f"{words} ({format_percent(share)})" for words, share in telling)
        said.append(f"{'' if said else 'of what is asked it '}tells {tells}")
    said.append(
        f"leaves an error of {error_words(run.error)} on"
        f" {'the job chosen now' if found.goal == 'decision' else 'what is asked'}"
    )
    return "; ".join(said)


def error_words(sigma: float) -> str:
    """Return a standard deviation of logs as an error in per cent; none is told beyond x1,000."""
    return format_percent(np.expm1(sigma), 1) if sigma < _MOST_LOG else "x1,000 or more"


def _settles(jobs: Jobs, found: Suggestion, run: NextRun, table: Table) -> str:
    """Return what a run settles of the job chosen now, and of the rival that it tells most of."""
    about, chosen = run.about[0], found.chosen
    share = format_percent(run.of_chosen)
    of_chosen = f"settles {share} of the doubt about the job chosen now"
    if run.row == chosen or jobs_equal(jobs, run.row, chosen):
        return f"is the job chosen now, and settles {share} of the doubt about it"
    if about == chosen or jobs_equal(jobs, about, chosen):
        return of_chosen
    settled = format_percent(run.about[1])
    same = run.row == about or jobs_equal(jobs, run.row, about)
    other = "" if same else f" {label(jobs, about, table)}"
    if run.of_chosen < _NOTHING:
        rest = "of which it tells nothing more"
        if same:
            return f"settles {settled} of the doubt about itself, a rival of the job chosen now, {rest}"
        return f"settles {settled} of the doubt about{other}, a rival of the job chosen now, {rest}"
    return f"{of_chosen} and {settled} of that about {'itself, its rival' if same else f'its rival{other}'}"


def jobs_equal(jobs: Jobs, a: int, b: int) -> bool:
    """Return whether two rows are one job, so far as they are resolved."""
    return bool(jobs.resolved[[a, b]].all()) and jobs[a] == jobs[b]


def label(jobs: Jobs, i: int, table: Table) -> str:
    """Return a job in a few words: workload, cluster, batch, and what else differs in the table."""
    if jobs.resolved[i]:
        job = jobs[i]
        text = f"{job.workload.name} on {job.cluster.name}, batch {job.plan.global_batch:,}"
    else:
        rows = LawRows(jobs.take(np.array([i])))
        name, device = rows.kinds[0][0][:2]
        machines, size = float(rows.machines[0]), rows.size("global_batch")[0]
        place = f"{machines:g} x {device}" if device else f"{machines:g} devices"
        batch = f", batch {size:,.0f}" if np.isfinite(size) else ""
        text = f"{name or 'a job'} on {place}{batch}"
    return ", ".join(
        (text, *(f"{n} {table.texts(n)[i]}" for n in _varying(table) if table.texts(n)[i]))
    )


def _varying(table: Table) -> list[str]:
    """Return the columns of a few that have more than one value in a table."""
    return [name for name in _TELL_APART if name in table and len(set(table.texts(name))) > 1][
        :_MOST_TOLD
    ]
