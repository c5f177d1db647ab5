"""What forerun evaluate shows on a screen: errors, memory and choice, distance, reasons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from forerun.cli.screen import Screen
from forerun.evaluate import ALL_TABLES, Evaluation, Score, leaderboard
from forerun.evaluate.pages import (
    STOPPED,
    Column,
    answered,
    bias_percent,
    inside,
    number,
    percent,
    quantities,
)
from forerun.units import counted

_MOST_REASONS = 12
_LEGEND = (
    "error: mean of |forecast - measured| / measured; bias: median of forecast over measured, less"
    " one; rank: Kendall's tau, 1 is the measured order; inside: share within the 5-95 % band, in"
    " brackets what so few rows support; width: the band's upper over its lower edge; distance: 0"
    " beside measured runs, 1 physics alone"
)


def show(screen: Screen, found: Evaluation) -> None:
    """Write an evaluation."""
    alone = len(found.tables) == 1
    scores = [s for s in found.scores if not (alone and s.table == ALL_TABLES)]
    _columns(screen, scores, _TIME, _title(found))
    uncounted = [s for s in scores if s.comparable and not s.counts]
    if uncounted:
        screen.line("below 90 % answered a line does not count")
    for table, dropped in found.identical.items():
        named = ", ".join(f"{rows:,} of {other}" for other, rows in dropped.items())
        screen.line(f"not taught, since {table} holds the same measurement: {named} rows")
    for table, notes in found.notes.items():
        for note in notes:
            screen.line(f"{table}: {note}" if not alone else note)
    _standings(screen, found)
    stopped = [s for s in scores if s.censored]
    _columns(screen, stopped, (*_NAMED, *STOPPED[1:]), _STOPPED_TITLE)
    chosen = [s for s in scores if s.memory_rows or s.oom_rows or s.regret_groups]
    _columns(screen, chosen, _PLAN, "memory, and the plan that would have been chosen")
    _columns(
        screen, [s for s in found.by_workload if s.oom_rows], _OOM, "out of memory by workload"
    )
    _columns(screen, found.by_distance, _DISTANCE, "by distance from what was measured")
    for predictor in found.predictors:
        _reasons(screen, found.of(predictor))
    screen.line()
    screen.line(_LEGEND)


def _title(found: Evaluation) -> str:
    folds = sorted(set(found.folds.values()))
    text = f"split {found.split}, {' or '.join(map(str, folds))} fold"
    text += "s" if folds != [1] else ""
    text += f", seed {found.seed}, start from {found.start or 'the predictors as given'}"
    if found.fitted_on:
        text += f"; fitted on {', '.join(found.fitted_on)} too"
    if found.faster_half:
        text += f"; times of the faster half by {', '.join(found.faster_half)}"
    return text


def _columns(
    screen: Screen, scores: Iterable[Score], columns: Sequence[Column], title: str
) -> None:
    """Write scores as a table, less the columns that are blank in all rows."""
    scores = list(scores)
    cells = [[read(score) for score in scores] for _, read in columns]
    used = [i for i, column in enumerate(cells) if any(column)]
    rows = zip(*(cells[i] for i in used), strict=True)
    if not scores:
        return
    if columns is not _TIME:
        screen.line()
    screen.table([columns[i][0] for i in used], rows, title)


def _standings(screen: Screen, found: Evaluation) -> None:
    if len(found.predictors) < 2:
        return
    screen.line()
    screen.table(
        ("place", "predictor", "median %", "tables", "counted"),
        [
            (s.place, s.predictor, number(s.median_ape), s.tables, s.counted)
            for s in leaderboard(found)
        ],
        "on the tables where every predictor answered at least 90 %",
    )


def _reasons(screen: Screen, total: Score) -> None:
    predictor = total.predictor
    screen.items(f"declined by {predictor}", _lines(total.declined))
    screen.items("not comparable", _lines(total.not_comparable))
    if total.floor_clamped:
        screen.line(f"{predictor}: {total.floor_clamped:,} forecasts raised to their floor")
    if total.floor_violations or total.silent:
        screen.line(
            f"{predictor} breaks its contract: {total.floor_violations} forecasts below their"
            f" floor, {total.silent} without answer or reason"
        )


def _lines(reasons: Mapping[str, int]) -> list[str]:
    """Return reasons with their counts, most frequent first; the rare ones are added up."""
    ranked = sorted(reasons.items(), key=lambda item: -item[1])
    lines = [f"{counted(n, 'row')}: {reason}" for reason, n in ranked[:_MOST_REASONS]]
    rest = ranked[_MOST_REASONS:]
    if rest:
        lines.append(
            f"{counted(sum(n for _, n in rest), 'row')}: {counted(len(rest), 'rarer reason')} (see --json)"
        )
    return lines


_NAMED: tuple[Column, ...] = (
    ("predictor", lambda s: s.predictor),
    ("table", lambda s: s.table),
    ("group", lambda s: s.group),
)
_TIME: tuple[Column, ...] = (
    *_NAMED,
    ("judged by", lambda s: "" if set(s.quantities) <= {"step"} else quantities(s)),
    ("rows", lambda s: f"{s.comparable:,}"),
    ("answered", answered),
    ("error %", lambda s: number(s.mape)),
    ("median %", lambda s: number(s.median_ape)),
    ("p90 %", lambda s: number(s.p90_ape)),
    ("bias %", bias_percent),
    ("rank", lambda s: number(s.tau, "{:.2f}")),
    ("of plans", lambda s: number(s.tau_plans, "{:.2f}")),
    ("inside 5-95 %", inside),
    ("width", lambda s: number(s.width, "{:.2f}x")),
    ("mean width", lambda s: number(s.width_mean, "{:.2f}x")),
    ("counts", lambda s: "" if s.counts else "no"),
)
_STOPPED_TITLE = (
    "runs that were stopped: their time is a lower bound, an answer below it is wrong; none is in a"
    " figure above"
)
_DETECTION: tuple[Column, ...] = (
    ("out of memory", lambda s: f"{s.oom_happened:,} of {s.oom_rows:,}" if s.oom_rows else ""),
    ("precision", lambda s: number(s.oom_precision, "{:.2f}")),
    ("recall", lambda s: number(s.oom_recall, "{:.2f}")),
    ("F1", lambda s: number(s.oom_f1, "{:.2f}")),
    ("F1 runs at all", lambda s: number(s.refused_f1, "{:.2f}") if s.refused_rows else ""),
)
_OOM: tuple[Column, ...] = (*_NAMED[:2], ("workload", lambda s: s.group), *_DETECTION)
_PLAN: tuple[Column, ...] = (
    *_NAMED,
    ("peaks", lambda s: f"{s.memory_rows:,}" if s.memory_rows else ""),
    ("memory error %", lambda s: number(s.memory_median_ape)),
    *_DETECTION,
    ("jobs", lambda s: f"{s.regret_groups:,}" if s.regret_groups else ""),
    ("picked", lambda s: f"{s.regret_picked:,}" if s.regret_groups else ""),
    ("crashed", lambda s: f"{s.regret_crashed:,}" if s.regret_groups else ""),
    ("regret median", lambda s: percent(s.regret_median)),
    ("mean", lambda s: percent(s.regret_mean)),
    ("worst", lambda s: percent(s.regret_worst)),
)
_DISTANCE: tuple[Column, ...] = (
    *_NAMED[:2],
    ("distance", lambda s: s.group),
    *(column for column in _TIME if column[0] in ("rows", "median %", "inside 5-95 %", "width",
                                                   "mean width")),
)  # fmt: skip
