"""Pages: an evaluation or a leaderboard as tables of figures, for a screen and as Markdown."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import expm1, floor, isfinite
from pathlib import Path
from typing import NamedTuple

import numpy as np

from forerun.charts import Chart, Series
from forerun.evaluate.evaluation import ALL_TABLES, ENOUGH_ANSWERED, Evaluation, Score
from forerun.evaluate.leaderboard import (
    BoardSection,
    Scoreboard,
    judged_rows,
    leaderboard,
    most_frequent,
)
from forerun.evaluate.scoring import Sheet
from forerun.packaged import filled

Column = tuple[str, Callable[[Score], str]]
MOST_REASONS = 20
_DRAWN = 500  # rows of a predictor in its chart, evenly taken
NONE, NOT_RUN = "none", "not run"


class PageSection(NamedTuple):
    """A table of texts under a title, with how to read it."""

    title: str
    help: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]], side: str = "---:") -> str:
    """Return a Markdown table; side: how cells behind the first are set, numbers to the right."""
    lines = ["| " + " | ".join(head) + " |", "|---" + f"|{side}" * (len(head) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def cell(text: str) -> str:
    """Return a text as it can stand in a cell."""
    return text.replace("|", "\\|").replace("\n", " ")


def number(value: float, form: str = "{:.1f}") -> str:
    """Return a figure, "" for one that does not exist."""
    return form.format(value) if isfinite(value) else ""


def percent(share: float) -> str:
    """Return a share as a percentage."""
    return number(100 * share, "{:.0f} %")


def answered(score: Score) -> str:
    """Return the share answered, rounded down: 89.9 % is not the 90 % from which it counts."""
    share = score.share_answered
    return f"{floor(100 * share + 1e-9)} %" if isfinite(share) else ""


def inside(score: Score) -> str:
    """Return the percentage inside the band, with the interval that its rows support."""
    if not isfinite(score.coverage):
        return ""
    low, high = 100 * score.coverage_low, 100 * score.coverage_high
    return f"{100 * score.coverage:.0f} ({low:.0f}-{high:.0f})"


def detected(score: Score) -> str:
    """Return F1 of out-of-memory, with precision and recall where both exist."""
    precision, recall = score.oom_precision, score.oom_recall
    parts = f" ({precision:.2f} / {recall:.2f})" if isfinite(precision + recall) else ""
    return f"{score.oom_f1:.2f}{parts}" if isfinite(score.oom_f1) else ""


def regretted(score: Score) -> str:
    """Return median, mean and worst regret in percent."""
    figures = (score.regret_median, score.regret_mean, score.regret_worst)
    text = " / ".join(number(100 * value, "{:.0f}") for value in figures)
    return text if score.regret_picked else ""


def _quantities(score: Score) -> str:
    """Return the time that errors are of, as `run`, or `step 12, run 30` where they are of two."""
    if len(score.quantities) < 2:
        return "".join(score.quantities)
    return ", ".join(f"{name} {rows:,}" for name, rows in score.quantities.items())


_NAMED: tuple[Column, ...] = (
    ("table", lambda s: s.table if s.counts or not s.comparable else f"({s.table})"),
    ("group", lambda s: s.group),
)
_TIME: tuple[Column, ...] = (
    ("judged by", lambda s: "" if set(s.quantities) <= {"step"} else _quantities(s)),
    ("rows", lambda s: f"{s.comparable:,}"), ("answered", answered),
    ("mean %", lambda s: number(s.mape)), ("median %", lambda s: number(s.median_ape)),
    ("90th %", lambda s: number(s.p90_ape)),
    ("bias %", lambda s: number(100 * expm1(s.bias_log_ratio), "{:+.0f}")),
    ("rank", lambda s: number(s.tau, "{:.2f}")),
    ("of plans", lambda s: number(s.tau_plans, "{:.2f}")), ("inside %", inside),
    ("width", lambda s: number(s.width, "{:.2f}x")),
    ("mean width", lambda s: number(s.width_mean, "{:.2f}x")),
)  # fmt: skip
_STOPPED: tuple[Column, ...] = (
    ("stopped", lambda s: f"{s.censored:,}"), ("answered", lambda s: f"{s.censored_answered:,}"),
    ("below", lambda s: percent(s.share_short)),
    ("short by, median %", lambda s: number(s.censored_short_ape)),
    ("mean % of all", lambda s: number(s.censored_mape)),
    ("95 % below too", lambda s: f"{s.censored_below:,}"),
)  # fmt: skip
_MEMORY: tuple[Column, ...] = (
    ("peak rows", lambda s: f"{s.memory_rows:,}" if s.memory_rows else ""),
    ("peak median %", lambda s: number(s.memory_median_ape)),
    ("out of memory", lambda s: f"{s.oom_happened:,} of {s.oom_rows:,}" if s.oom_rows else ""),
    ("F1 (precision / recall)", detected),
    ("runs at all, F1", lambda s: number(s.refused_f1, "{:.2f}") if s.refused_rows else ""),
    ("jobs", lambda s: f"{s.regret_groups:,}" if s.regret_groups else ""),
    ("picked", lambda s: f"{s.regret_picked:,}" if s.regret_groups else ""),
    ("crashed", lambda s: f"{s.regret_crashed:,}" if s.regret_groups else ""),
    ("regret % median / mean / worst", regretted),
)
_SAMPLES: tuple[Column, ...] = (
    ("rows", lambda s: f"{s.samples_rows:,}"), ("answered", lambda s: f"{s.samples_answered:,}"),
    ("median %", lambda s: number(s.samples_median_ape)),
    ("inside %", lambda s: percent(s.samples_coverage)),
)  # fmt: skip
_COST: tuple[Column, ...] = (
    ("rows", lambda s: f"{s.cost_rows:,}"), ("answered", lambda s: f"{s.cost_answered:,}"),
    ("median %", lambda s: number(s.cost_median_ape)),
    ("rank over the table", lambda s: number(s.cost_tau, "{:.2f}")),
    ("of all times", lambda s: number(s.tau_overall, "{:.2f}")),
)  # fmt: skip
_IN_DISTANCE = ("rows", "mean %", "median %", "inside %", "width")


def _scored(title: str, columns: Sequence[Column], scores: Sequence[Score]) -> list[PageSection]:
    """Return a section of scores, less the columns that are blank in all rows; [] without scores."""
    cells = [[read(score) for score in scores] for _, read in columns]
    used = [i for i, column in enumerate(cells) if any(column)]
    rows = [[cells[i][k] for i in used] for k in range(len(scores))]
    return [PageSection(title, "", [columns[i][0] for i in used], rows)] if scores else []


def sections(found: Evaluation, predictor: str = "") -> list[PageSection]:
    """Return the tables of an evaluation, of one predictor or of all of them beside one another."""
    alone = len(found.tables) == 1
    named = _NAMED if predictor else (("predictor", lambda s: s.predictor), *_NAMED)
    wanted = (predictor,) if predictor else found.predictors

    def mine(scores: Sequence[Score]) -> list[Score]:
        return [s for s in scores if s.predictor in wanted]

    scores = [s for s in mine(found.scores) if not (alone and s.table == ALL_TABLES)]
    memory = [s for s in scores if s.memory_rows or s.oom_rows or s.regret_groups]
    pooled = found.tables[0] if alone else ALL_TABLES
    bins = [s for s in mine(found.by_distance) if s.table == pooled]
    near = [("distance", named[-1][1]), *(c for c in _TIME if c[0] in _IN_DISTANCE)]
    samples = _scored("Samples until the target", (*named, *_SAMPLES),
                      [s for s in scores if s.samples_answered])  # fmt: skip
    # What answers samples alone is judged by these first.
    first = samples if not any(s.answered or s.censored_answered for s in scores) else []
    blocks = [
        *first,
        *_scored("", (*named, *_TIME), [s for s in scores if s.comparable] or scores),
        *_scored("Stopped runs", (*named, *_STOPPED),
                 [s for s in scores if s.censored_answered]),
        *_scored("Memory and choice of plan", (*named, *_MEMORY), memory),
        *([] if first else samples),
        *_scored("Cost of whole runs", (*named, *_COST), [s for s in scores if s.cost_answered]),
        *_scored("Out of memory by workload", (*named, *_MEMORY[2:5]),
                 [s for s in mine(found.by_workload) if s.oom_rows]),
        *_scored("By distance", (*named[:-2], *near), bins),
    ]  # fmt: skip
    for name in wanted:
        totals = [s for s in found.totals() if s.predictor == name]
        by = "" if predictor else f" by {name}"
        blocks += _reasons(f"Declined{by}", [(s.table, s.declined) for s in totals])
        blocks += _reasons(f"Not comparable{by}", [(s.table, s.not_comparable) for s in totals])
    if len(wanted) > 1:
        places = [
            (str(s.place), s.predictor, number(s.median_ape), str(s.tables), str(s.counted))
            for s in leaderboard(found)
        ]
        title = "On the tables where every predictor answered at least 90 %"
        head = ("place", "predictor", "median %", "tables", "counted")
        blocks.insert(1, PageSection(title, "", head, places))
    return blocks


def _reasons(title: str, tables: Sequence[tuple[str, Mapping[str, int]]]) -> list[PageSection]:
    """Return reasons with their counts and tables, the most frequent first."""
    counts: Counter[str] = Counter()
    where: dict[str, dict[str, None]] = {}
    for table, reasons in tables:
        counts.update(reasons)
        for reason in reasons:
            where.setdefault(reason, {})[table] = None
    common = counts.most_common()
    rows = [(f"{n:,}", ", ".join(where[why]), cell(why)) for why, n in common[:MOST_REASONS]]
    if rest := common[MOST_REASONS:]:
        rows.append((f"{sum(n for _, n in rest):,}", "", f"{len(rest)} rarer reasons"))
    return [PageSection(title, "", ("rows", "tables", "reason"), rows)] if rows else []


def summary(found: Evaluation, predictor: str) -> str:
    """Return one paragraph on a predictor over all tables, defects included."""
    total = found.of(predictor)
    text = (
        f"{total.rows:,} rows, {total.comparable:,} of them comparable,"
        f" {percent(total.share_answered) or 'none'} of these answered"
        + (f"; median error {total.median_ape:.1f} %." if isfinite(total.median_ape) else ".")
    )
    if total.samples_answered:
        share = percent(total.samples_answered / total.samples_rows)
        samples = f"{total.samples_rows:,} rows state samples until their target, {share} of these answered"
        times = f"Times: {text}" if total.answered else "It answers no times."
        text = f"{samples}; median error {total.samples_median_ape:.1f} %. {times}"
    if total.floor_clamped:
        share = percent(total.floor_clamped / total.rows)
        text += f" {total.floor_clamped:,} forecasts were raised to their physical floor ({share} of all rows)."
    if total.suspicious:
        mine = [s for s in found.totals() if s.predictor == predictor and s.suspicious]
        where = ", ".join(f"{s.table} {s.suspicious:,}" for s in mine)
        text += f" {total.suspicious:,} times were measured below their physical floor ({where}):"
        text += " the row or the floor is wrong."
    if total.floor_violations:
        text += f" **{total.floor_violations} forecasts lie below their physical floor: a defect.**"
    if total.silent:
        text += f" **{total.silent} rows are unanswered without a reason: a defect.**"
    return text


def setting(found: Evaluation) -> str:
    """Return how an evaluation was made: split, folds, seed, start, and what was fitted."""
    folds = " or ".join(map(str, sorted(set(found.folds.values()))))
    text = f"split {found.split}, {folds} fold{'' if folds == '1' else 's'}, seed {found.seed}"
    text += f", start from {found.start or 'the predictors as given'}"
    if found.fitted_on:
        text += f"; fitted on {', '.join(found.fitted_on)} too"
    if found.faster_half:
        text += f"; times of the faster half by {', '.join(found.faster_half)}"
    return text


def forecast_chart(judged: Mapping[str, Sheet]) -> Chart:
    """Return the forecasts of each predictor over what was measured, with bands; right ones are on the line."""
    series, ends = [], [math.inf, 0.0]
    for predictor, rows in judged.items():
        kept = rows.timed & np.isfinite(rows.seconds).all(axis=1)
        x, (low, y, high) = rows.measured[kept], rows.seconds[kept].T
        if len(x):
            ends = [min(ends[0], x.min(), y.min()), max(ends[1], x.max(), y.max())]
            every = slice(None, None, -(-len(x) // _DRAWN))
            columns = (column[every].tolist() for column in (x, y, low, high))
            series.append(Series(predictor, "points", *columns))
    line = Series("as measured", "dashed", ends, ends)
    return Chart(
        "Forecast against measured", "measured seconds", "forecast seconds", (*series, line), "xy"
    )


def notes(found: Evaluation) -> list[str]:
    """Return what must be known of how each table was divided, and what was left out of its fit."""
    lines = [f"{table}: {note}" for table, texts in found.notes.items() for note in texts]
    for table, dropped in found.identical.items():
        named = ", ".join(f"{rows:,} of {other}" for other, rows in dropped.items())
        lines.append(f"{table}: not fitted, since it holds the same measurement: {named} rows")
    return lines


_FITTING = re.compile(r"^cannot be fitted: (fitting .*?: )?")
_COUNT = re.compile(r"\d[\d,.]*")


def board_page(board: Scoreboard, made: Sequence[str] = ()) -> str:
    """Return the page; made: paragraphs on how it came about, after the explanation."""
    blocks = list(made)
    for section in board.sections:
        for title, text, head, rows in board_sections(board, section):
            blocks += [f"## {title}" if title else "", text, markdown(head, rows)]
        blocks.append("\n".join(f"* {note}" for note in board_notes(board, section)))
    title, text, head, rows = unfit(board)
    if rows:
        blocks += [f"## {title}", text, markdown(head, rows, "---")]
    template = Path(__file__).with_name("leaderboard.md.j2")
    return filled(template, blocks=list(filter(None, blocks)))


def board_sections(
    board: Scoreboard, section: BoardSection, bold: str = "**{}**", small: str = " <sub>{}</sub>"
) -> list[PageSection]:
    """Return the figures of one split, a line for each predictor, and its stopped runs."""
    tables, splits = list(section.splits), list(section.splits.values())
    rows = [["*judged*", *(_judged(board, t, s) for t, s in section.splits.items()), ""]]
    if len(set(splits)) > 1:
        rows.append(["*split*", *(f"`{text.partition(':')[2] or text}`" for text in splits), ""])
    for name in board.predictors:
        entries = [board.of(name, t, s) for t, s in section.splits.items()]
        cells = [figure(board, name, t, s, bold, small) for t, s in section.splits.items()]
        rows.append([name, *cells, number(sum(e.seconds for e in entries if e is not None))])
    blocks = [PageSection(section.title, "", ["predictor", *tables, "CPU s"], rows)]
    counts = {
        t: max((s.censored for s in board.scores(t, section.splits[t])), default=0) for t in tables
    }
    stopped = [t for t in tables if counts[t]]
    if stopped:
        text = (
            "Stopped runs: share of the answered that lie below their bound, and by how much"
            f" (median). Judged: {', '.join(f'{t} {counts[t]:,}' for t in stopped)}."
        )
        lines = [
            [name, *(_stopped_figure(board.score_of(name, t, section.splits[t])) for t in stopped)]
            for name in board.predictors
        ]
        blocks.append(PageSection("", text, ["predictor", *stopped], lines))
    return blocks


def _judged(board: Scoreboard, table: str, split: str) -> str:
    """Return how many rows of which time a table's predictors are judged on: `538 runs`."""
    scores = board.scores(table, split)
    rows, spoken = judged_rows(scores), sorted({q for s in scores for q in s.quantities})
    return f"{rows:,} {' or '.join(f'{q}s' for q in spoken)}".strip() if rows else ""


def figure(
    board: Scoreboard, predictor: str, table: str, split: str,
    bold: str = "**{}**", small: str = " <sub>{}</sub>",
) -> str:  # fmt: skip
    """Return one predictor's figure: error, coverage, share; bold where it is the best."""
    entry = board.of(predictor, table, split)
    if entry is None:
        return NOT_RUN
    if entry.score is None or entry.reason or not entry.score.answered:
        return NONE
    score, share = entry.score, board.shares(table, split)[predictor]
    error = number(score.median_ape)
    within = small.format(number(100 * score.coverage, "{:.0f}"))
    if share < ENOUGH_ANSWERED:
        return f"[{error}{within} at {percent(share)}]"
    if board.best(table, split) == predictor:
        error = bold.format(error)
    several = len({q for s in board.scores(table, split) for q in s.quantities}) > 1
    other = f" ({_quantities(score)})" if several else ""
    return f"{error}{within}{f' at {percent(share)}' if share < 0.995 else ''}{other}"


def _stopped_figure(score: Score | None) -> str:
    """Return how many stopped runs were answered below their bound: `34 % of 112, by 20 %`."""
    if score is None or not score.censored_answered:
        return NONE
    text = f"{percent(score.share_short)} of {score.censored_answered:,}"
    return f"{text}, by {number(score.censored_short_ape)} %" if score.censored_short else text


def board_notes(board: Scoreboard, section: BoardSection) -> list[str]:
    """Return what must be known of how the tables of a split were divided."""
    entries = board.entries_of(section)
    return list(dict.fromkeys(f"{e.key.table}: {note}" for e in entries for note in e.notes))


def unfit(board: Scoreboard) -> PageSection:
    """Return why predictors have no figure that counts, by predictor, the same reason once."""
    found: dict[tuple[str, str], tuple[str, dict[str, None]]] = {}
    for entry in (entry for section in board.sections for entry in board.entries_of(section)):
        key, score = entry.key, entry.score
        why = f"a defect of the predictor: {entry.reason}" if entry.defect else entry.reason
        share = board.shares(key.table, key.split).get(key.predictor, 0.0)
        if not why and score is not None and share < ENOUGH_ANSWERED:
            why = most_frequent(score.declined or score.not_comparable)
        if why:
            why = _FITTING.sub("", why)
            same = (key.predictor, _COUNT.sub("#", why))
            found.setdefault(same, (why, {}))[1][f"{key.table} ({key.split})"] = None
    rows = [[who, "; ".join(places), cell(why)] for (who, _), (why, places) in found.items()]
    return PageSection(
        "Why a figure is missing or does not count",
        "Numbers in a reason are those of its first place.",
        ["predictor", "where", "reason"], rows,
    )  # fmt: skip
