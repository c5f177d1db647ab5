"""The accuracy page: an Evaluation as Markdown that says how it was made and what it means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from forerun.evaluate.evaluation import Evaluation, Score
from forerun.evaluate.markdown import (
    DISTANCE,
    PLAN,
    STOPPED,
    STOPPED_HELP,
    TIME,
    cell,
    markdown_table,
    percent,
)

MOST_REASONS = 40

HOW_TO_READ = """\
Each run was measured and published by others; nobody's simulation is among them. A forecast is
made from what was known before the run started (workload, machines, plan, batch), and then
compared with the clock. *Error* is the absolute difference as a share of
the measured time: its mean, its median (half of the rows are better), and its 90th percentile (one
row in ten is worse). *Bias* is the median of forecast over measured, less one: below zero means
too optimistic. *Rank* is Kendall's tau of seconds per sample within a workload: 1 is the right
order, 0 is chance. *Inside* is the share of measured times that fell within the stated 5-95 %
band, which ought to be 90 %, with the interval that this many rows support; *width* is the band's
upper over its lower edge, so that a wide band cannot pass for a good one. *Answered* is the share
of comparable rows that got a forecast; the others were declined with a reason, listed at the end.
A line in brackets answered less than 90 % and does not count."""

MEMORY_HELP = """\
*Peak* is the median error of the predicted peak bytes of a device. *F1* is out-of-memory foreseen
(probability of fitting below one half) against out-of-memory that happened, plans left out
that it takes to be impossible; *runs at all* is the same with these. *Regret* is the price of taking the plan that was predicted fastest, of those that fit with a
probability of 90 %, instead of the one measured fastest, among runs that differ in nothing but the
plan: median, mean and worst over the picks that ran, and next to it in how many jobs a pick ran
out of memory or failed. Ties are broken at random, twenty times over."""

DISTANCE_HELP = """\
*Distance* says how far a question lies from what was measured, and every forecast carries it: 0 is
beside a measured run, 1 is physics with nothing measured, more lies beyond. The band has to grow
with it, and to hold as many measured times at every distance."""

# Priors are not blind where they were chosen with a table in sight, whatever is left out of a fit.
PRIORS_SEEN = (
    "Some priors of the analytic predictor were read off simple models of public runs, or set after"
    " a look at them, so that it is not wholly blind to these;"
    " `predictors/analytic/constants.py` says which came from where."
)


def accuracy_page(
    evaluation: Evaluation, *, command: str, version: str, commit: str = "", note: str = ""
) -> str:
    """Return the page docs/accuracy.md.

    Args:
        evaluation: its scores.
        command: what a reader runs to get the same page.
        version: of the package; commit: of the source, "" where not known.
        note: a paragraph of the caller's own after the first one.
    """
    blocks = ["# Accuracy", HOW_TO_READ, _honest(evaluation)]
    if note:
        blocks.append(note)
    blocks.append(_provenance(evaluation, command, version, commit))
    notes = [f"* {table}: {note}" for table, said in evaluation.notes.items() for note in said]
    if notes:
        blocks.append("\n".join(notes))
    for predictor in evaluation.predictors:
        blocks += predictor_sections(evaluation, predictor)
    return "\n\n".join(blocks) + "\n"


def _honest(evaluation: Evaluation) -> str:
    said = _fitted(evaluation)
    if evaluation.start.startswith("shipped"):
        return (
            f"{said} They started from the {evaluation.start}, which were learned from public runs:"
            " a table that is among these is not blind; `--start priors` judges it blind."
        )
    return f"{said} {PRIORS_SEEN}"


def _fitted(evaluation: Evaluation) -> str:
    if evaluation.split == "whole" and not evaluation.fitted_on:
        return (
            "**Nothing on this page was fitted to these tables by the command that wrote it.** The"
            " predictors answer from data sheets and stated constants, and every row of every table"
            " is judged."
        )
    own = f"the teaching rows of the split `{evaluation.split}`"
    other = ", ".join(evaluation.fitted_on)
    teachers = [other] if evaluation.split == "whole" else [own, other] if other else [own]
    said = (
        f"Predictors were fitted on {' and on '.join(teachers)}; no judged row is among its own"
        " teachers."
    )
    dropped = sum(sum(rows.values()) for rows in evaluation.identical.values())
    if dropped:
        said += f" {dropped:,} rows of other tables told of judged measurements and taught nothing."
    if evaluation.faster_half:
        said += (
            " Times are taught and judged on the measured faster half of the rows that share"
            f" {', '.join(evaluation.faster_half)}."
        )
    return said


def _provenance(evaluation: Evaluation, command: str, version: str, commit: str) -> str:
    source = f", commit {commit}" if commit else ""
    return (
        f"Made by forerun {version}{source}, seed {evaluation.seed}, split `{evaluation.split}`,"
        f" with:\n\n```\n{command}\n```"
    )


def predictor_sections(evaluation: Evaluation, predictor: str) -> list[str]:
    """Return the blocks on one predictor: times, memory and choice, distance, reasons."""
    scores = [s for s in evaluation.totals() if s.predictor == predictor]
    total = evaluation.of(predictor)
    judged = [s for s in scores if s.comparable] + [total]
    blocks = [
        f"## {predictor}",
        _sentence(total),
        markdown_table(judged, TIME),
    ]
    stopped = [s for s in (*scores, total) if s.censored_answered]
    if stopped:
        blocks += ["### Stopped runs", STOPPED_HELP, markdown_table(stopped, STOPPED)]
    memory = [s for s in (*scores, total) if s.memory_rows or s.oom_rows or s.regret_groups]
    if memory:
        blocks += ["### Memory and choice of plan", MEMORY_HELP, markdown_table(memory, PLAN)]
    table = total.table if len(evaluation.tables) > 1 else evaluation.tables[0]
    bins = [s for s in evaluation.by_distance if (s.predictor, s.table) == (predictor, table)]
    if bins:
        blocks += ["### By distance", DISTANCE_HELP, markdown_table(bins, DISTANCE)]
    odd = [s for s in scores if s.suspicious]
    if odd:
        named = ", ".join(f"{s.table} {s.suspicious}" for s in odd)
        blocks.append(
            f"Measured below the physical floor (the row or the floor is wrong): {named} rows."
        )
    blocks += _reasons("Declined", "a reason for each", total.rows,
                       [(s.table, s.declined) for s in scores])  # fmt: skip
    blocks += _reasons("Not comparable", "no forecast was scored", total.rows,
                       [(s.table, s.not_comparable) for s in scores])  # fmt: skip
    return blocks


def _sentence(total: Score) -> str:
    """Return one paragraph over all tables."""
    raised = total.floor_clamped
    floor = f"{raised:,} forecasts were raised to their physical floor"
    floor += f" ({percent(raised / total.rows)} of all rows)." if total.rows else "."
    if total.floor_violations:
        floor += f" **{total.floor_violations} lie below it: a defect.**"
    silent = f" **{total.silent} rows are unanswered without a reason: a defect.**"
    return (
        f"{total.rows:,} rows, {total.comparable:,} of them comparable,"
        f" {percent(total.share_answered)} of these answered; median error"
        f" {total.median_ape:.1f} %. {floor}" + (silent if total.silent else "")
    )


def _reasons(
    title: str, said: str, rows: int, tables: Sequence[tuple[str, Mapping[str, int]]]
) -> list[str]:
    """Return the heading and table of reasons with counts, most frequent first."""
    counts: Counter[str] = Counter()
    where: dict[str, dict[str, None]] = {}
    for table, reasons in tables:
        for reason, count in reasons.items():
            counts[reason] += count
            where.setdefault(reason, {})[table] = None
    if not counts:
        return []
    lines = ["| rows | tables | reason |", "|---:|---|---|"]
    common = counts.most_common()
    for reason, count in common[:MOST_REASONS]:
        lines.append(f"| {count:,} | {', '.join(where[reason])} | {cell(reason)} |")
    rest = common[MOST_REASONS:]
    if rest:
        lines.append(f"| {sum(c for _, c in rest):,} | | {len(rest)} rarer reasons |")
    share = percent(sum(counts.values()) / rows) if rows else "no"
    return [f"### {title}", f"{share} of all rows; {said}.", "\n".join(lines)]
