"""Markdown: scores as tables, and each figure as text; "" for a figure that does not exist."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import expm1, floor, isfinite

from forerun.evaluate.evaluation import ALL_TABLES, Score

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
