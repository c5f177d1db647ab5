"""Rows: logged runs as rows of the runs table, with what the log does not say given or blank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from forerun.arrays import FloatArray
from forerun.errors import RequestError
from forerun.measure.logs.files import read_logs
from forerun.measure.logs.series import LogSeries
from forerun.measure.logs.speed import speeds_of
from forerun.measure.logs.steady import Intervals, intervals_of
from forerun.tables.table import Table, canonical_names
from forerun.units import format_seconds

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
    """Return the runs that are logged in a path as rows of the runs table.

    Args:
        path: a log file, a folder of them, or a tracking store.
        reader: a reader's name; "" lets the content decide.
        pattern: for plain logs, a regular expression with named groups.
        target: a metric's name and the value at which training is done.
        given: columns that the log does not say, e.g. workload="resnet50", cluster="1x8xv100-16gb",
            global_batch=256; what is given wins over what the log says.

    Raises:
        RequestError: the path cannot be read, has no step, or two given columns are one.
    """
    return runs_of(read_logs(path, reader=reader, pattern=pattern), given, target)


def runs_of(
    series: LogSeries | Iterable[LogSeries], given: Mapping[str, Any] | None = None,
    target: Target | None = None,
) -> Table:  # fmt: skip
    """Return a row of the runs table for each series. Raises as `read_runs`."""
    every = (series,) if isinstance(series, LogSeries) else tuple(series)
    stated = _stated(given or {})
    return Table.from_rows([{**_row(one, target, stated), **stated} for one in every], "the logs")


def _stated(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return given columns in the schema's names, numbers as numbers; blanks are left out."""
    kept = {name: value for name, value in given.items() if value not in (None, "")}
    if not kept:
        return {}
    names = canonical_names(list(kept), "the given columns")
    one = Table.from_columns(
        {n: [v] for n, v in zip(names, kept.values(), strict=True)}, "the given columns"
    )
    return one.row(0)


def _row(series: LogSeries, target: Target | None, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return one run's row."""
    row: dict[str, Any] = {
        "source": f"log ({series.reader})", "ref": ", ".join(series.paths[:3]),
        "status": series.status,
    }  # fmt: skip
    row.update({name: series.facts[name] for name in _FACTS if name in series.facts})
    notes = list(series.notes)
    if series.reason:
        notes.append(f"ended with: {series.reason}")
    batch = _batch(series, stated, notes)
    if batch == batch:
        row["global_batch"] = batch
    try:
        intervals = intervals_of(series)
    except RequestError as error:
        if series.status == "ok":
            raise
        notes.append(error.found)
        return {**row, "note": "; ".join(notes)}
    row.update(_timed(series, intervals, notes))
    _rates(row, series, {**row, **stated}, notes)
    for part in _PARTS:
        if series.has(f"{part}_time_s"):
            row[f"{part}_time_s"] = _median(series.numbers(f"{part}_time_s"))
    if series.has("memory_gb"):
        row["memory_gb"] = float(np.nanmax(series.numbers("memory_gb")))
    if target is not None:
        row.update(_reached(series, target, {**row, **stated}, notes))
    row["note"] = "; ".join(notes)
    return row


def _timed(series: LogSeries, intervals: Intervals, notes: list[str]) -> dict[str, Any]:
    """Return the step's time as the median of steady steps, and say what was left out."""
    notes += intervals.marks.notes
    steady = intervals.steady if intervals.steady.any() else ~intervals.warm
    steady = steady if steady.any() else np.ones(len(intervals), dtype=bool)
    row: dict[str, Any] = {}
    if intervals.marks.unit == "epochs":
        row["epoch_time_s"] = _median((intervals.work_seconds / intervals.steps)[steady])
        notes.append("the log counts epochs, so a step's time is not known")
    else:
        speed = (intervals.work_seconds / intervals.steps)[steady]
        logged = _logged(series, intervals)
        row["step_time_s"] = _median(speed) if logged is None else logged
        about = speed / intervals.reference[steady] - 1  # a change of speed is no spread
        row["step_std_s"] = _spread(about * np.sqrt(intervals.steps[steady])) * _median(speed)
        row["measured_steps"] = float(intervals.steps[steady].sum())
    notes += _left_out(intervals)
    notes += speeds_of(intervals).words(intervals.marks.unit)
    return row


def _logged(series: LogSeries, intervals: Intervals) -> float | None:
    """Return the median of the log's own step times over steady rows, None where it has none."""
    if not series.has("step_time_s") or not series.has("step"):
        return None
    steps, times = series.numbers("step"), series.numbers("step_time_s")
    warm = intervals.end[intervals.warm]
    first = steps <= (warm.max() if len(warm) else np.nanmin(steps))
    kept = times[~first & np.isfinite(times) & (times > 0)]
    return _median(kept) if len(kept) else _median(times[np.isfinite(times)])


def _left_out(intervals: Intervals) -> list[str]:
    """Return what the step's time does not count: warm-up, pauses, gaps."""
    texts = []
    if intervals.warm.any():
        steps = intervals.steps[intervals.warm].sum()
        texts.append(f"warm-up ({steps:,.6g} {intervals.marks.unit}) left out")
    paused = np.flatnonzero(intervals.paused)
    kinds: dict[str, list[float]] = {}
    for i in paused:
        kinds.setdefault(intervals.kind(int(i)), []).append(float(intervals.pause_seconds[i]))
    for kind, seconds in kinds.items():
        texts.append(f"{len(seconds):,} {kind}s left out, {format_seconds(sum(seconds))} in all")
    for restart, word in ((True, "restart"), (False, "halt")):
        gaps = [g for g in intervals.gaps if g.restart is restart]
        if gaps:
            redone = sum(g.redone for g in gaps)
            again = f", {redone:,.0f} {intervals.marks.unit} done again" if redone else ""
            away = format_seconds(sum(g.seconds for g in gaps))
            texts.append(f"{len(gaps)} {word}{'s' if len(gaps) > 1 else ''}, {away} away{again}")
    return texts


def _batch(series: LogSeries, stated: Mapping[str, Any], notes: list[str]) -> float:
    """Return the batch that the log says, the last where it changes; NaN where it says none."""
    if "global_batch" in stated:
        return float("nan")
    column = series.numbers("global_batch")
    known = column[np.isfinite(column)]
    if len(known):
        if known.min() != known.max():
            notes.append(
                f"the batch changes from {known[0]:g} to {known[-1]:g}; the last one counts"
            )
        return float(known[-1])
    samples, steps = series.numbers("samples"), series.numbers("step")
    both = np.isfinite(samples) & np.isfinite(steps)
    if both.sum() >= 2:
        ahead, more = np.diff(steps[both]), np.diff(samples[both])
        each = more[ahead > 0] / ahead[ahead > 0]
        if len(each) and np.allclose(each, each[-1], rtol=1e-6):
            return float(each[-1])
    return series.fact("global_batch")


def _rates(
    row: dict[str, Any], series: LogSeries, known: Mapping[str, Any], notes: list[str]
) -> None:
    """Add the log's rates; one of each device counts for the cluster where its size is known."""
    for name in _MEDIANS:
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
    step, batch = row.get("step_time_s"), known.get("global_batch")
    if "samples_per_s" not in row and step and batch:
        row["samples_per_s"] = float(batch) / step


def _reached(
    series: LogSeries, target: Target, known: Mapping[str, Any], notes: list[str]
) -> dict[str, Any]:
    """Return the samples (and epochs) until a metric first reached its target."""
    metric, value = target
    curve = series.numbers(metric)
    rows = np.flatnonzero(np.isfinite(curve))
    if not len(rows):
        names = ", ".join(n for n in series.columns if n not in ("event", "time_s", "step"))
        raise RequestError(
            f"the target {metric}={value:g}", f"the log {series.name} has no {metric!r}",
            f"name one of its numbers: {names}",
        )  # fmt: skip
    smooth = _smoothed(curve[rows])
    falls = smooth[0] > value
    met = np.flatnonzero(smooth <= value if falls else smooth >= value)
    text = f"{metric} {'<=' if falls else '>='} {value:g}"
    if not len(met):
        best = smooth.min() if falls else smooth.max()
        notes.append(f"{text} was not reached; the best was {best:g}")
        return {"target": text}
    at = rows[met[0]]
    found: dict[str, Any] = {"target": text}
    samples = series.numbers("samples")[at]
    if not np.isfinite(samples) and known.get("global_batch"):
        samples = series.numbers("step")[at] * float(known["global_batch"])
    if np.isfinite(samples):
        found["samples_to_target"] = float(samples)
    else:
        notes.append(f"{text} at step {series.numbers('step')[at]:,.0f}; give the global batch")
    if np.isfinite(series.numbers("epoch")[at]):
        found["epochs_to_target"] = float(series.numbers("epoch")[at])
    return found


def _smoothed(curve: FloatArray) -> FloatArray:
    """Return the median of the last rows up to each, (n,)."""
    return np.array(
        [np.median(curve[max(0, i + 1 - _SMOOTHED) : i + 1]) for i in range(len(curve))]
    )


def _median(values: FloatArray) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else float("nan")


def _spread(values: FloatArray) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")
