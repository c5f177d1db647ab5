"""Rows: logged runs as rows of the runs table, with what the log does not say given or blank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from forerun.arrays import FloatArray
from forerun.errors import RequestError
from forerun.measure.logs.files import read_logs
from forerun.measure.logs.series import LogSeries
from forerun.measure.logs.steady import Intervals, intervals_of, segments_of, slower_or_faster
from forerun.tables.table import Table, canonical_names
from forerun.units import counted, format_seconds

Target = tuple[str, float]
_SMOOTHED = 5  # rows whose median is held against the target: one lucky row reaches nothing
_MEDIANS = ("samples_per_s", "tokens_per_s", "sync_time_s", "tflops_per_device")
_PARTS = ("input", "forward", "backward", "optimizer", "comm")
# What one log says once and the runs table has a column for.
_FACTS = ("device", "devices", "global_batch", "micro_batch", "grad_accum", "seq_len", "tp", "pp",
          "dataset_size", "precision", "optimizer", "dataset")  # fmt: skip


def read_runs(
    path: str | Path, *, reader: str = "", pattern: str = "", target: Target | None = None,
    **given: Any,
) -> Table:  # fmt: skip
    """Return logged runs as a runs table; `given` columns win over the log's. Raises RequestError."""
    return runs_of(read_logs(path, reader=reader, pattern=pattern), given, target)


def runs_of(
    series: LogSeries | Iterable[LogSeries], given: Mapping[str, Any] | None = None,
    target: Target | None = None,
) -> Table:  # fmt: skip
    """Return a row of the runs table for each series. Raises as `read_runs`."""
    every = (series,) if isinstance(series, LogSeries) else tuple(series)
    stated = {name: value for name, value in (given or {}).items() if value not in (None, "")}
    if stated:
        names = canonical_names(list(stated), "the given columns")
        columns = {n: [v] for n, v in zip(names, stated.values(), strict=True)}
        stated = Table.from_columns(columns, "the given columns").row(0)
    return Table.from_rows([{**_row(one, target, stated), **stated} for one in every], "the logs")


def _row(series: LogSeries, target: Target | None, stated: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "source": f"log ({series.reader})", "ref": ", ".join(series.paths[:3]),
        "status": series.status,
        **{name: series.facts[name] for name in _FACTS if name in series.facts},
    }  # fmt: skip
    notes = [*series.notes, *([f"ended with: {series.reason}"] if series.reason else ())]
    if "global_batch" not in stated and np.isfinite(batch := _batch(series, notes)):
        row["global_batch"] = batch
    try:
        intervals = intervals_of(series)
    except RequestError as error:
        if series.status == "ok":
            raise
        return {**row, "note": "; ".join([*notes, error.found])}
    row.update(_timed(series, intervals, notes))
    # Rates of each device count for the cluster where its size is known.
    known = {**row, **stated}
    for name in (*_MEDIANS, *(f"{part}_time_s" for part in _PARTS)):
        if series.has(name):
            row[name] = _median(series.numbers(name))
    devices = known.get("devices")
    for name in ("tokens_per_s", "samples_per_s"):
        each = f"{name}_per_device"
        if name in row or not series.has(each):
            continue
        if devices:
            row[name] = _median(series.numbers(each)) * float(devices)
        else:
            notes.append(f"{name} is logged for one device; give the number of devices to have it")
    step, whole = row.get("step_time_s"), known.get("global_batch")
    if "samples_per_s" not in row and step and whole:
        row["samples_per_s"] = float(whole) / step
    if series.has("memory_gb"):
        row["memory_gb"] = float(np.nanmax(series.numbers("memory_gb")))
    if target is not None:
        row.update(_reached(series, target, {**row, **stated}, notes))
    row["note"] = "; ".join(notes)
    return row


def _timed(series: LogSeries, intervals: Intervals, notes: list[str]) -> dict[str, Any]:
    unit, rows = intervals.marks.unit, intervals.steady_rows
    steps = intervals.steps[rows]
    speed = intervals.work_seconds[rows] / steps
    row: dict[str, Any] = {}
    notes += intervals.marks.notes
    if unit == "epochs":
        row["epoch_time_s"] = _median(speed)
        notes.append("the log counts epochs, so a step's time is not known")
    else:
        logged = series.numbers("step_time_s")
        if series.has("step"):  # its own step times, from the warm-up's end on
            steps_at, warm = series.numbers("step"), intervals.end[intervals.warm]
            late = steps_at > (warm.max() if len(warm) else np.nanmin(steps_at))
            kept = logged[late & (logged > 0)]
            logged = kept if np.isfinite(kept).any() else logged
        # A change of speed is no spread.
        about = (speed / intervals.reference[rows] - 1) * np.sqrt(steps)
        spread = float(np.std(about, ddof=1)) if len(about) > 1 else float("nan")
        row["step_time_s"] = _median(logged if np.isfinite(logged).any() else speed)
        row["step_std_s"] = spread * _median(speed)
        row["measured_steps"] = float(steps.sum())
    if intervals.warm.any():
        notes.append(f"warm-up ({intervals.steps[intervals.warm].sum():,.6g} {unit}) left out")
    for kind, members in intervals.pauses_by_kind().items():
        seconds = format_seconds(intervals.pause_seconds[members].sum())
        notes.append(f"{counted(len(members), kind)} left out, {seconds} in all")
    for word, restart in (("restart", True), ("halt", False)):
        gaps = [gap for gap in intervals.gaps if gap.restart is restart]
        if gaps:
            redone = sum(gap.redone for gap in gaps)
            again = f", {redone:,.0f} {unit} done again" if redone else ""
            away = format_seconds(sum(gap.seconds for gap in gaps))
            notes.append(f"{counted(len(gaps), word)}, {away} away{again}")
    for before, after in pairwise(segments_of(intervals)):
        notes.append(
            f"from {unit[:-1]} {before.end:,.6g} on, {unit} take"
            f" {format_seconds(after.step_seconds)}, {slower_or_faster(before, after)}"
        )
    return row


def _batch(series: LogSeries, notes: list[str]) -> float:
    column = series.numbers("global_batch")
    known = column[np.isfinite(column)]
    if len(known):
        if known.min() != known.max():
            change = f"from {known[0]:g} to {known[-1]:g}"
            notes.append(f"the batch changes {change}; the last one counts")
        return float(known[-1])
    each = series.per_step("samples")
    if len(each) and np.allclose(each, each[-1], rtol=1e-6):
        return float(each[-1])
    return series.fact("global_batch")


def _reached(
    series: LogSeries, target: Target, stated: Mapping[str, Any], notes: list[str]
) -> dict[str, Any]:
    metric, value = target
    curve = series.numbers(metric)
    rows = np.flatnonzero(np.isfinite(curve))
    if not len(rows):
        names = ", ".join(n for n in series.columns if n not in ("event", "time_s", "step"))
        asked = f"the target {metric}={value:g}"
        why = f"the log {series.name} has no {metric!r}"
        raise RequestError(asked, why, f"name one of its numbers: {names}")
    ends = range(1, len(rows) + 1)
    smooth = np.array([np.median(curve[rows[max(0, i - _SMOOTHED) : i]]) for i in ends])
    falls = smooth[0] > value
    met = np.flatnonzero(smooth <= value if falls else smooth >= value)
    found: dict[str, Any] = {"target": f"{metric} {'<=' if falls else '>='} {value:g}"}
    if not len(met):
        best = smooth.min() if falls else smooth.max()
        notes.append(f"{found['target']} was not reached; the best was {best:g}")
        return found
    samples, step, epoch = (series.numbers(n)[rows[met[0]]] for n in ("samples", "step", "epoch"))
    if not np.isfinite(samples):
        samples = step * float(stated.get("global_batch") or np.nan)
    if np.isfinite(samples):
        found["samples_to_target"] = float(samples)
    else:
        notes.append(f"{found['target']} at step {step:,.0f}; give the global batch")
    if np.isfinite(epoch):
        found["epochs_to_target"] = float(epoch)
    return found


def _median(values: FloatArray) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else float("nan")
