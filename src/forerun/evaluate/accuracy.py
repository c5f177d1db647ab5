"""The accuracy page: an Evaluation as Markdown that says how it was made and what it means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import expm1

from forerun.evaluate.evaluation import ALL_TABLES, Evaluation, Score

MOST_REASONS = 40

_HOW_TO_READ = """\
Each row below is one published table of measured training runs; nobody's simulation is among
them. A forecast is made for every run from what was known before it started (workload, machines,
plan, batch), and then compared with the clock. *Error* is the absolute difference as a share of
the measured time: its mean, its median (half of the rows are better), and its 90th percentile (one
row in ten is worse). *Bias* is the median of forecast over measured, less one: below zero means
too optimistic. *Rank* is Kendall's tau of seconds per sample within a workload: 1 is the right
order, 0 is chance. *Inside* is the share of measured times that fell within the stated 5-95 %
band, which ought to be 90 %, with the interval that this many rows support; *width* is the band's
upper over its lower edge, so that a wide band cannot pass for a good one. *Answered* is the share
of comparable rows that got a forecast; the others were declined with a reason, listed at the end.
A line in brackets answered less than 90 % and does not count."""

_MEMORY = """\
*Peak* is the median error of the predicted peak bytes of a device. *F1* is out-of-memory foreseen
(probability of fitting below one half) against out-of-memory that happened. *Regret* is the price
of taking the plan that was predicted fastest instead of the one measured fastest, among runs that
differ in nothing but the plan: median, mean and worst over the picks that ran, and next to it how
many picks ran out of memory or failed. Ties are broken at random."""

Column = tuple[str, Callable[[Score], str]]


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
    blocks = ["# Accuracy", _HOW_TO_READ, _honest(evaluation)]
    if note:
        blocks.append(note)
    blocks.append(_provenance(evaluation, command, version, commit))
    for predictor in evaluation.predictors:
        blocks += _of_predictor(evaluation, predictor)
    return "\n\n".join(blocks) + "\n"


def _honest(evaluation: Evaluation) -> str:
    if evaluation.split == "whole" and not evaluation.fitted_on:
        return (
            "**Nothing on this page was fitted to these tables by the command that wrote it.** The"
            " predictors answer as they are installed, from data sheets and stated constants, and"
            " every row of every table is judged. Some of those constants were read off simple models of public"
            " runs, so the analytic lines of vtrain, ultrascale, timm, pytorch_gpu_benchmark,"
            " profet, mlperf, pollux, sia, gavel and tf_benchmarks are not blind; `predictors/analytic/constants.py` says"
            " which constants came from where."
        )
    fitted = f" and on {', '.join(evaluation.fitted_on)}" if evaluation.fitted_on else ""
    return (
        f"Predictors were fitted on the teaching rows of the split `{evaluation.split}`{fitted};"
        " no judged row is among its own teachers."
    )


def _provenance(evaluation: Evaluation, command: str, version: str, commit: str) -> str:
    source = f", commit {commit}" if commit else ""
    return (
        f"Made by forerun {version}{source}, seed {evaluation.seed}, split `{evaluation.split}`,"
        f" with:\n\n```\n{command}\n```"
    )


def _of_predictor(evaluation: Evaluation, predictor: str) -> list[str]:
    scores = [s for s in evaluation.totals() if s.predictor == predictor]
    total = evaluation.of(predictor)
    judged = [s for s in scores if s.comparable] + [total]
    blocks = [
        f"## {predictor}",
        _sentence(total),
        markdown_table(judged, _TIME),
    ]
    memory = [s for s in (*scores, total) if s.memory_rows or s.oom_rows or s.regret_groups]
    if memory:
        blocks += ["### Memory and choice of plan", _MEMORY, markdown_table(memory, _PLAN)]
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
    floor += f" ({_percent(raised / total.rows)} of all rows)." if total.rows else "."
    if total.floor_violations:
        floor += f" **{total.floor_violations} lie below it: a defect.**"
    silent = f" **{total.silent} rows are unanswered without a reason: a defect.**"
    return (
        f"{total.rows:,} rows, {total.comparable:,} of them comparable,"
        f" {_percent(total.share_answered)} of these answered; median error"
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
        lines.append(f"| {count:,} | {', '.join(where[reason])} | {_cell(reason)} |")
    rest = common[MOST_REASONS:]
    if rest:
        lines.append(f"| {sum(c for _, c in rest):,} | | {len(rest)} rarer reasons |")
    share = _percent(sum(counts.values()) / rows) if rows else "no"
    return [f"### {title}", f"{share} of all rows; {said}.", "\n".join(lines)]


def markdown_table(scores: Iterable[Score], columns: Sequence[Column]) -> str:
    """Return scores as a Markdown table; rows that do not count stand in brackets."""
    lines = [
        "| " + " | ".join(name for name, _ in columns) + " |",
        "|---" + "|---:" * (len(columns) - 1) + "|",
    ]
    for score in scores:
        cells = [read(score) for _, read in columns]
        if score.table == ALL_TABLES:
            cells[0] = f"**{cells[0]}**"
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _number(value: float, form: str = "{:.1f}") -> str:
    return form.format(value) if value == value else ""


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share == share else ""


def _name(score: Score) -> str:
    return score.table if score.counts or not score.comparable else f"({score.table})"


def _inside(score: Score) -> str:
    if score.coverage != score.coverage:
        return ""
    low, high = 100 * score.coverage_low, 100 * score.coverage_high
    return f"{100 * score.coverage:.0f} ({low:.0f}-{high:.0f})"


def _bias(score: Score) -> str:
    bias = score.bias_log_ratio
    return f"{100 * expm1(bias):+.0f}" if bias == bias else ""


def _oom(score: Score) -> str:
    if not score.oom_rows:
        return ""
    return (
        f"{_number(score.oom_f1, '{:.2f}')} ({_number(score.oom_precision, '{:.2f}')} /"
        f" {_number(score.oom_recall, '{:.2f}')})"
    )


def _regret(score: Score) -> str:
    if not score.regret_picked:
        return ""
    return " / ".join(
        _number(100 * v, "{:.0f}")
        for v in (score.regret_median, score.regret_mean, score.regret_worst)
    )


_TIME: tuple[Column, ...] = (
    ("table", _name),
    ("rows", lambda s: f"{s.comparable:,}"),
    ("answered", lambda s: _percent(s.share_answered)),
    ("mean %", lambda s: _number(s.mape)),
    ("median %", lambda s: _number(s.median_ape)),
    ("90th %", lambda s: _number(s.p90_ape)),
    ("bias %", _bias),
    ("rank", lambda s: _number(s.tau, "{:.2f}")),
    ("inside %", _inside),
    ("width", lambda s: _number(s.width, "{:.1f}x")),
)
_PLAN: tuple[Column, ...] = (
    ("table", lambda s: s.table),
    ("peak rows", lambda s: f"{s.memory_rows:,}" if s.memory_rows else ""),
    ("peak median %", lambda s: _number(s.memory_median_ape)),
    ("out of memory", lambda s: f"{s.oom_happened:,} of {s.oom_rows:,}" if s.oom_rows else ""),
    ("F1 (precision / recall)", _oom),
    ("jobs", lambda s: f"{s.regret_groups:,}" if s.regret_groups else ""),
    ("picked", lambda s: f"{s.regret_picked:,}" if s.regret_groups else ""),
    ("crashed", lambda s: f"{s.regret_crashed:,}" if s.regret_groups else ""),
    ("regret % median / mean / worst", _regret),
)  # fmt: skip
