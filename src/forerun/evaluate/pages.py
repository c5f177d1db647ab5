"""The accuracy page: an Evaluation as Markdown that says how it was made and what it means.

Markdown: scores as tables, and each figure as text; "" for a figure that does not exist.

The leaderboard page: a Scoreboard as Markdown, a table for each split, with how it was made.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import expm1, floor, isfinite

from forerun.evaluate.evaluation import ALL_TABLES, ENOUGH_ANSWERED, Evaluation, Score
from forerun.evaluate.leaderboard import BoardSection, LeaderboardEntry, Scoreboard, judged_rows

Column = tuple[str, Callable[[Score], str]]


def markdown_table(scores: Iterable[Score], columns: Sequence[Column]) -> str:
    """Return scores as a Markdown table; rows that do not count stand in brackets."""
    lines = [
        "| " + " | ".join(name for name, _ in columns) + " |",
        "|---" + "|---:" * (len(columns) - 1) + "|",
    ]
    for score in scores:
        cells = [read(score) for _, read in columns]
        if score.table == ALL_TABLES and not score.group:
            cells[0] = f"**{cells[0]}**"
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def cell(text: str) -> str:
    """Return a text as it can stand in a cell."""
    return text.replace("|", "\\|").replace("\n", " ")


def number(value: float, form: str = "{:.1f}") -> str:
    """Return a figure in a form."""
    return form.format(value) if isfinite(value) else ""


def percent(share: float) -> str:
    """Return a share as a percentage."""
    return number(100 * share, "{:.0f} %")


def answered(score: Score) -> str:
    """Return the share answered, rounded down: 89.9 % is not the 90 % from which it counts."""
    share = score.share_answered
    return f"{floor(100 * share + 1e-9)} %" if isfinite(share) else ""


def quantities(score: Score) -> str:
    """Return the time that the errors are of, as `run`, or `step 12, run 30` where they are of two."""
    if len(score.quantities) < 2:
        return "".join(score.quantities)
    return ", ".join(f"{name} {rows:,}" for name, rows in score.quantities.items())


def _name(score: Score) -> str:
    return score.table if score.counts or not score.comparable else f"({score.table})"


def inside(score: Score) -> str:
    """Return the percentage inside the band, with the interval that its rows support."""
    if score.coverage != score.coverage:
        return ""
    low, high = 100 * score.coverage_low, 100 * score.coverage_high
    return f"{100 * score.coverage:.0f} ({low:.0f}-{high:.0f})"


def bias_percent(score: Score) -> str:
    """Return the median of forecast over measured less one, in percent."""
    bias = score.bias_log_ratio
    return f"{100 * expm1(bias):+.0f}" if bias == bias else ""


def detected(score: Score) -> str:
    """Return F1 of out-of-memory with precision and recall."""
    if not score.oom_rows:
        return ""
    return (
        f"{number(score.oom_f1, '{:.2f}')} ({number(score.oom_precision, '{:.2f}')} /"
        f" {number(score.oom_recall, '{:.2f}')})"
    )


def regretted(score: Score) -> str:
    """Return median, mean and worst regret in percent."""
    if not score.regret_picked:
        return ""
    return " / ".join(
        number(100 * v, "{:.0f}")
        for v in (score.regret_median, score.regret_mean, score.regret_worst)
    )


TIME: tuple[Column, ...] = (
    ("table", _name),
    ("rows", lambda s: f"{s.comparable:,}"),
    ("answered", answered),
    ("mean %", lambda s: number(s.mape)),
    ("median %", lambda s: number(s.median_ape)),
    ("90th %", lambda s: number(s.p90_ape)),
    ("bias %", bias_percent),
    ("rank", lambda s: number(s.tau, "{:.2f}")),
    ("inside %", inside),
    ("width", lambda s: number(s.width, "{:.1f}x")),
)
STOPPED_HELP = """\
A run that was stopped tells a lower bound of its time and no time; it is in no figure above. An
answer *below* the bound is wrong, by what it lacks of it; one above is right."""
STOPPED: tuple[Column, ...] = (
    ("table", lambda s: s.table),
    ("stopped", lambda s: f"{s.censored:,}"),
    ("answered", lambda s: f"{s.censored_answered:,}"),
    ("below", lambda s: percent(s.share_short)),
    ("short by, median %", lambda s: number(s.censored_short_ape)),
    ("mean % of all", lambda s: number(s.censored_mape)),
    ("95 % below too", lambda s: f"{s.censored_below:,}"),
)
PLAN: tuple[Column, ...] = (
    ("table", lambda s: s.table),
    ("peak rows", lambda s: f"{s.memory_rows:,}" if s.memory_rows else ""),
    ("peak median %", lambda s: number(s.memory_median_ape)),
    ("out of memory", lambda s: f"{s.oom_happened:,} of {s.oom_rows:,}" if s.oom_rows else ""),
    ("F1 (precision / recall)", detected),
    ("runs at all, F1", lambda s: number(s.refused_f1, "{:.2f}") if s.refused_rows else ""),
    ("jobs", lambda s: f"{s.regret_groups:,}" if s.regret_groups else ""),
    ("picked", lambda s: f"{s.regret_picked:,}" if s.regret_groups else ""),
    ("crashed", lambda s: f"{s.regret_crashed:,}" if s.regret_groups else ""),
    ("regret % median / mean / worst", regretted),
)  # fmt: skip
DISTANCE: tuple[Column, ...] = (
    ("distance", lambda s: s.group),
    *(
        column
        for column in TIME
        if column[0] in ("rows", "mean %", "median %", "inside %", "width")
    ),
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
    own = f"the training_rows rows of the split `{evaluation.split}`"
    other = ", ".join(evaluation.fitted_on)
    training_runs = [other] if evaluation.split == "whole" else [own, other] if other else [own]
    said = (
        f"Predictors were fitted on {' and on '.join(training_runs)}; no judged row is among its own"
        " training_runs."
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


NONE, NOT_RUN = "none", "not run"
_FITTING = re.compile(r"^cannot be fitted: (fitting .*?: )?")
_COUNT = re.compile(r"\d[\d,.]*")

LEADERBOARD_HELP = """\
Every table holds runs that others measured and published. A table is divided by itself: a predictor
learns from one side and is judged on the other, whose times are kept from the fit. A figure is the
**median absolute error in percent** of the measured time, and behind it, small, the share of
measured times inside the stated 5-95 % band, which ought to be 90. **Bold** is the best of a table.
A figure in [brackets] answered less than 90 % of the judged rows; the share stands beside it, and it
does not count. "none" is a predictor that could not answer, for a reason that is listed at the end.

*CPU s* is what a predictor took for all fits and answers of a table of figures, on one core.
*Judged* says how many rows of which time: a step, an epoch or a whole run. Where one predictor
answers the step and another the run, errors are shares of the same measurement either way; all are
held to the rows that have any time, and whoever answers in a quantity that a row does not tell has
not answered that row.

`interpolation:COLUMN` and `extrapolation:COLUMN=VALUE` are the Ray study's (Filippini and
Ardagna): the first judges every second of the sorted distinct values, **from the smallest on**, so
that the smallest is always judged, and nothing below it teaches: a part of this interpolation is
extrapolation, and its rows are counted below each table. `between:COLUMN` judges every second value
and never the ends. The second judges rows with a column strictly above its bound.

A run that was stopped has no time but a lower bound of one. It is judged apart and from one side: an
answer below the bound is wrong, by what it lacks of it; an answer above is right. No stopped run is
among the judged rows of the figures above."""


def board_page(board: Scoreboard, made: Sequence[str] = ()) -> str:
    """Return the page; made: paragraphs on how it came about, after the explanation."""
    blocks = ["# Leaderboard", LEADERBOARD_HELP, *made, *_best(board)]
    for section in board.sections:
        blocks += section_blocks(board, section)
    return "\n\n".join((*blocks, *_missing_figures(board))) + "\n"


def _best(board: Scoreboard) -> list[str]:
    """Return the best predictor of each table and split, beside its target where there is one."""
    tables = list(dict.fromkeys(t for section in board.sections for t in section.splits))
    rows = [
        [section.title, *(_best_cell(board, section, table) for table in tables)]
        for section in board.sections
    ]
    return ["## The best of each", markdown(["split", *tables], rows)]


def _best_cell(board: Scoreboard, section: BoardSection, table: str) -> str:
    split = section.splits.get(table)
    name = board.best(table, split) if split else ""
    score = board.score_of(name, table, split or "")
    text = "" if score is None else f"{name} {number(score.median_ape)}"
    target = section.targets.get(table)
    if target is None:
        return text
    met = "no figure" if score is None else "met" if score.median_ape <= target else "missed"
    return f"{text} (target {target:g}: {met})".strip()


def section_blocks(board: Scoreboard, section: BoardSection) -> list[str]:
    """Return the heading, table, stopped runs and notes of one split."""
    tables = list(section.splits)
    head = ["predictor", *tables, "CPU s"]
    rows = [["*judged*", *(judged(board, t, section.splits[t]) for t in tables), ""]]
    own = [section.splits[t] for t in tables]
    if len(set(own)) > 1:
        rows.append(["*split*", *(f"`{text.partition(':')[2] or text}`" for text in own), ""])
    for name in board.predictors:
        cells = [figure(board, name, t, section.splits[t]) for t in tables]
        rows.append([name, *cells, number(_seconds(board, name, section))])
    blocks = [f"## {section.title}", markdown(head, rows)]
    return [*blocks, *_stopped(board, section), *_notes(board, section)]


def judged(board: Scoreboard, table: str, split: str) -> str:
    """Return how many rows of which time a table's predictors are judged on: `538 runs`."""
    scores = _scores(board, table, split)
    rows = judged_rows(list(scores.values()))
    spoken = sorted({q for s in scores.values() for q in s.quantities})
    return f"{rows:,} {' or '.join(f'{q}s' for q in spoken)}".strip() if rows else ""


def figure(board: Scoreboard, predictor: str, table: str, split: str) -> str:
    """Return one predictor's figure: error, coverage, share; bold where it is the best."""
    entry = board.of(predictor, table, split)
    if entry is None:
        return NOT_RUN
    if entry.score is None or entry.reason or not entry.score.answered:
        return NONE
    score, share = entry.score, board.shares(table, split)[predictor]
    error, inside = (
        number(score.median_ape),
        f" <sub>{number(100 * score.coverage, '{:.0f}')}</sub>",
    )
    if share < ENOUGH_ANSWERED:
        return f"[{error}{inside} at {percent(share)}]"
    if board.best(table, split) == predictor:
        error = f"**{error}**"
    other = f" ({quantities(score)})" if len(_spoken(board, table, split)) > 1 else ""
    return f"{error}{inside}{f' at {percent(share)}' if share < 0.995 else ''}{other}"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]], side: str = "---:") -> str:
    """Return a Markdown table; side: how cells behind the first are set, numbers to the right."""
    lines = ["| " + " | ".join(head) + " |", "|---" + f"|{side}" * (len(head) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _scores(board: Scoreboard, table: str, split: str) -> Mapping[str, Score]:
    found = {name: board.score_of(name, table, split) for name in board.predictors}
    return {name: score for name, score in found.items() if score is not None}


def _spoken(board: Scoreboard, table: str, split: str) -> set[str]:
    return {q for s in _scores(board, table, split).values() for q in s.quantities}


def _entries(board: Scoreboard, section: BoardSection) -> list[LeaderboardEntry]:
    found = [
        board.of(name, table, split)
        for name in board.predictors
        for table, split in section.splits.items()
    ]
    return [entry for entry in found if entry is not None]


def _seconds(board: Scoreboard, predictor: str, section: BoardSection) -> float:
    return sum(e.seconds for e in _entries(board, section) if e.key.predictor == predictor)


def _stopped(board: Scoreboard, section: BoardSection) -> list[str]:
    """Return the table of runs that were stopped: share answered below, and by how much."""
    tables = [
        table for table, split in section.splits.items()
        if any(s.censored for s in _scores(board, table, split).values())
    ]  # fmt: skip
    if not tables:
        return []
    rows = []
    for name in board.predictors:
        found = [board.score_of(name, table, section.splits[table]) for table in tables]
        rows.append([name, *map(stopped_figure, found)])
    said = (
        "Stopped runs: share of the answered that lie below their bound, and by how much (median)."
    )
    counts = ", ".join(
        f"{table} {max(s.censored for s in _scores(board, table, section.splits[table]).values()):,}"
        for table in tables
    )
    return [f"{said} Judged: {counts}.", markdown(["predictor", *tables], rows)]


def stopped_figure(score: Score | None) -> str:
    """Return how many stopped runs were answered below their bound: `34 % of 112, by 20 %`."""
    if score is None or not score.censored_answered:
        return NONE
    text = f"{percent(score.share_short)} of {score.censored_answered:,}"
    return f"{text}, by {number(score.censored_short_ape)} %" if score.censored_short else text


def _notes(board: Scoreboard, section: BoardSection) -> list[str]:
    said: dict[str, None] = {}
    for entry in _entries(board, section):
        for note in entry.notes:
            said[f"* {entry.key.table}: {note}"] = None
    return ["\n".join(said)] if said else []


def _missing_figures(board: Scoreboard) -> list[str]:
    """Return why predictors have no figure that counts, by predictor, the same reason once."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for section in board.sections:
        for entry, reason in _unfit(board, section):
            why = _FITTING.sub("", reason)
            where = f"{entry.key.table} ({entry.key.split})"
            found.setdefault((entry.key.predictor, _COUNT.sub("#", why)), {})[f"{where}\n{why}"] = (
                None
            )
    if not found:
        return []
    rows = []
    for (who, _), places in found.items():
        first = next(iter(places)).partition("\n")[2]
        rows.append([who, "; ".join(p.partition("\n")[0] for p in places), cell(first)])
    return ["## Why a figure is missing or does not count",
            "Numbers in a reason are those of its first place.",
            markdown(["predictor", "where", "reason"], rows, "---")]  # fmt: skip


def _unfit(board: Scoreboard, section: BoardSection) -> Iterator[tuple[LeaderboardEntry, str]]:
    """Yield the entries without a figure that counts, and why."""
    for entry in _entries(board, section):
        reason = entry.reason
        if entry.defect:
            reason = f"a defect of the predictor: {reason}"
        share = board.shares(entry.key.table, entry.key.split).get(entry.key.predictor, 0.0)
        if not reason and entry.score is not None and share < ENOUGH_ANSWERED:
            reasons = entry.score.declined or entry.score.not_comparable
            reason = max(reasons, key=lambda text: reasons[text]) if reasons else ""
        if reason:
            yield entry, reason


def reason_lines(board: Scoreboard, section: BoardSection) -> list[str]:
    """Return why predictors have no figure that counts: `ernest on cmdare: ...`."""
    found: dict[tuple[str, str], list[str]] = {}
    for entry, reason in _unfit(board, section):
        found.setdefault((entry.key.predictor, reason), []).append(entry.key.table)
    return [f"{who} on {', '.join(where)}: {why}" for (who, why), where in found.items()]
