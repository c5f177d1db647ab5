"""Row problems: rows that teach nothing as they stand, each with its own reason."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from forerun.arrays import BoolArray
from forerun.domain.forecast import Forecasts, is_none
from forerun.domain.plan_columns import PROBLEMS, WORLD
from forerun.domain.run import STATUSES
from forerun.tables.jobs import Runs
from forerun.tables.schema import COLUMNS
from forerun.tables.suspects.flags import Kind, Raised, Texts, numbers_text

_POSITIVE = (
    "step_time_s",
    "samples_per_s",
    "tokens_per_s",
    "epoch_time_s",
    "time_to_train_s",
    "memory_gb",
)
_TIMES = ("step_time_s", "samples_per_s", "tokens_per_s")
# The same fault seen with dp stated, and with dp to be derived from the devices.
_NOT_MULTIPLIED = (PROBLEMS[WORLD].partition("{")[0], "not divisible by tp x pp x cp")


def problem_flags(runs: Runs, forecasts: Forecasts) -> Iterator[Raised]:
    """Yield the flags of rows that are no job, or hold no figure to learn from."""
    jobs, n = runs.jobs, len(runs)
    unread = np.zeros(n, dtype=bool)
    if runs.table.problems is not None:
        unread = ~is_none(runs.table.problems)
        yield _reasons(Kind.CELL, runs.table.problems, unread, "")
    for kind, reasons, column in (
        (Kind.WORKLOAD, jobs.workload_problem, "workload"),
        (Kind.CLUSTER, jobs.cluster_problem, "device"),
        (Kind.PLAN, jobs.plan_problem, "plan"),
    ):
        if reasons is None:
            continue
        rows = ~is_none(reasons) & ~unread
        uneven = rows & _uneven(reasons) if kind is Kind.PLAN else np.zeros(n, dtype=bool)
        yield _reasons(Kind.DEVICES, reasons, uneven, column)
        yield _reasons(kind, reasons, rows & ~uneven, column)
    silent = jobs.resolved & ~forecasts.answered
    yield _reasons(Kind.WORKLOAD, forecasts.declined, silent, "workload")
    yield from _statuses(runs)
    yield from _figures(runs, unread)


def placement_flags(runs: Runs) -> Iterator[Raised]:
    """Yield the flags of rows whose devices lie unevenly on their nodes, nobody says how."""
    table = runs.table
    devices, nodes = table.numbers("devices"), table.numbers("nodes")
    with np.errstate(invalid="ignore", divide="ignore"):
        left = np.mod(devices, nodes)
    row = np.flatnonzero(runs.jobs.resolved & (left > 0) & (table.texts("placement") == ""))
    yield Raised(
        Kind.PLACEMENT, row, "devices", numbers_text(devices[row]),
        numbers_text(nodes[row], "nodes to divide it, else where they lie"),
        "correct one of the counts, or give a placement (as 8-8-7-7); it is kept",
    )  # fmt: skip


def _reasons(kind: Kind, reasons: Texts, rows: BoolArray, column: str) -> Raised:
    """Return the flags of rows by their reasons, each distinct reason read once."""
    row = np.flatnonzero(rows)
    distinct, position = np.unique(reasons[row].astype(str), return_inverse=True)
    read = [_read(reason, column) for reason in distinct.tolist()]
    columns, found, advice = (
        np.array([r[i] for r in read] + [""], dtype=object)[position] for i in range(3)
    )
    return Raised(
        kind, row, columns, found, "", advice, void=kind in (Kind.CELL, Kind.DEVICES),
        out_step=True, out_memory=True,
    )  # fmt: skip


def _uneven(reasons: Texts) -> BoolArray:
    """Return which rows have a plan that does not multiply to the devices, (n,)."""
    distinct, position = np.unique(reasons.astype(str), return_inverse=True)
    uneven = [any(words in reason for words in _NOT_MULTIPLIED) for reason in distinct.tolist()]
    return np.array(uneven, dtype=bool)[position]


def _read(reason: str, column: str) -> tuple[str, str, str]:
    """Return (column, what was found, what to do) of a reason, which says `found; what to do`."""
    found, mark, advice = reason.rpartition("; ")
    if not mark:
        found, advice = reason, "mend the row"
    named = next((w for w in re.findall(r"[a-z_]+", reason) if w in COLUMNS), column)
    blank = column == "plan" and advice.startswith(f"fill {named}")
    return (named if not column or named in found or blank else column), found, advice


def _statuses(runs: Runs) -> Iterator[Raised]:
    status = runs.status
    unknown = np.flatnonzero(~np.isin(status.astype(str), STATUSES))
    yield Raised(
        Kind.STATUS, unknown, "status", status[unknown], "one of ok oom failed timeout",
        "write one of them", out_step=True,
    )  # fmt: skip
    for word, said, advice in (
        ("oom", "it ran out of memory: no time to learn", "it teaches where memory ends"),
        ("failed", "it failed: no time to learn", "nothing, or mend its status"),
        ("timeout", "it was stopped: its time is a lower bound", "nothing, or give its step time"),
    ):
        ended = np.flatnonzero(status == word)
        yield Raised(Kind.ENDED, ended, "status", said, "", advice, out_step=True)


def _figures(runs: Runs, unread: BoolArray) -> Iterator[Raised]:
    ok = runs.status == "ok"
    table = runs.table
    wrong = unread.copy()
    for column in _POSITIVE:
        values = table.numbers(column)
        bad = ok & ~np.isnan(values) & ~((values > 0) & np.isfinite(values))
        wrong |= bad
        row = np.flatnonzero(bad)
        times = column in _TIMES
        yield Raised(
            Kind.CELL, row, column, numbers_text(values[row]), "a number above zero",
            "correct it, or leave it blank", void=True, out_step=times,
            out_memory=column == "memory_gb",
        )  # fmt: skip
    row = np.flatnonzero(ok & np.isnan(runs.step_seconds()) & ~wrong)
    yield Raised(
        Kind.UNMEASURED, row, "step_time_s", "no step time: neither step_time_s nor a rate with"
        " global_batch", "", "fill in step_time_s to teach time", out_step=True,
    )  # fmt: skip
