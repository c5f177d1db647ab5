"""The leaderboard page: a Board as Markdown, a table for each split, with how it was made."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from forerun.evaluate.board import Board, Section
from forerun.evaluate.entries import Entry
from forerun.evaluate.evaluation import ENOUGH_ANSWERED, Score
from forerun.evaluate.leaderboard import judged_rows
from forerun.evaluate.markdown import cell, number, percent, quantities

NONE, NOT_RUN = "none", "not run"
_FITTING = re.compile(r"^cannot be fitted: (fitting .*?: )?")
_COUNT = re.compile(r"\d[\d,.]*")

HOW_TO_READ = """\
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


def board_page(board: Board, made: Sequence[str] = ()) -> str:
    """Return the page; made: paragraphs on how it came about, after the explanation."""
    blocks = ["# Leaderboard", HOW_TO_READ, *made, *_best(board)]
    for section in board.sections:
        blocks += section_blocks(board, section)
    return "\n\n".join((*blocks, *_reasons(board))) + "\n"


def _best(board: Board) -> list[str]:
    """Return the best predictor of each table and split, beside its target where there is one."""
    tables = list(dict.fromkeys(t for section in board.sections for t in section.splits))
    rows = [
        [section.title, *(_best_cell(board, section, table) for table in tables)]
        for section in board.sections
    ]
    return ["## The best of each", markdown(["split", *tables], rows)]


def _best_cell(board: Board, section: Section, table: str) -> str:
    split = section.splits.get(table)
    name = board.best(table, split) if split else ""
    score = board.score_of(name, table, split or "")
    text = "" if score is None else f"{name} {number(score.median_ape)}"
    target = section.targets.get(table)
    if target is None:
        return text
    met = "no figure" if score is None else "met" if score.median_ape <= target else "missed"
    return f"{text} (target {target:g}: {met})".strip()


def section_blocks(board: Board, section: Section) -> list[str]:
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


def judged(board: Board, table: str, split: str) -> str:
    """Return how many rows of which time a table's predictors are judged on: `538 runs`."""
    scores = _scores(board, table, split)
    rows = judged_rows(list(scores.values()))
    spoken = sorted({q for s in scores.values() for q in s.quantities})
    return f"{rows:,} {' or '.join(f'{q}s' for q in spoken)}".strip() if rows else ""


def figure(board: Board, predictor: str, table: str, split: str) -> str:
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


def _scores(board: Board, table: str, split: str) -> Mapping[str, Score]:
    found = {name: board.score_of(name, table, split) for name in board.predictors}
    return {name: score for name, score in found.items() if score is not None}


def _spoken(board: Board, table: str, split: str) -> set[str]:
    return {q for s in _scores(board, table, split).values() for q in s.quantities}


def _entries(board: Board, section: Section) -> list[Entry]:
    found = [
        board.of(name, table, split)
        for name in board.predictors
        for table, split in section.splits.items()
    ]
    return [entry for entry in found if entry is not None]


def _seconds(board: Board, predictor: str, section: Section) -> float:
    return sum(e.seconds for e in _entries(board, section) if e.key.predictor == predictor)


def _stopped(board: Board, section: Section) -> list[str]:
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


def _notes(board: Board, section: Section) -> list[str]:
    said: dict[str, None] = {}
    for entry in _entries(board, section):
        for note in entry.notes:
            said[f"* {entry.key.table}: {note}"] = None
    return ["\n".join(said)] if said else []


def _reasons(board: Board) -> list[str]:
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


def _unfit(board: Board, section: Section) -> Iterator[tuple[Entry, str]]:
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


def reason_lines(board: Board, section: Section) -> list[str]:
    """Return why predictors have no figure that counts: `ernest on cmdare: ...`."""
    found: dict[tuple[str, str], list[str]] = {}
    for entry, reason in _unfit(board, section):
        found.setdefault((entry.key.predictor, reason), []).append(entry.key.table)
    return [f"{who} on {', '.join(where)}: {why}" for (who, why), where in found.items()]
