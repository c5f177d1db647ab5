"""Length: how long a logged job is in the unit that its log counts, as told or as logged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forerun.errors import RequestError
from forerun.measure.logs.progress import Marks
from forerun.measure.logs.series import LogSeries


@dataclass(frozen=True)
class Ask:
    """How long the job is, one of these; all None leaves it to the log.

    `steps_per_epoch`, `global_batch`, `seq_len` and `dataset_size` turn one into another where
    the log does not.
    """

    steps: float | None = None
    epochs: float | None = None
    tokens: float | None = None
    samples: float | None = None
    steps_per_epoch: float | None = None
    global_batch: float | None = None
    seq_len: float | None = None
    dataset_size: float | None = None


@dataclass(frozen=True)
class Total:
    """The count at which the job is done, and who says so."""

    total: float
    source: str


def length_of(series: LogSeries, marks: Marks, ask: Ask) -> Total:
    """Return a job's length in the unit of its marks.

    Raises:
        RequestError: nobody says it, or it cannot be turned into that unit.
    """
    told = {n: v for n in ("steps", "epochs", "tokens", "samples") if (v := getattr(ask, n))}
    if len(told) > 1:
        raise RequestError(
            "the job's length", f"{' and '.join(told)} are given", "give one of them"
        )
    if told:
        unit, count = next(iter(told.items()))
        return Total(_in_unit(series, marks, ask, unit, count), f"{count:,.6g} {unit}, as given")
    return _logged(series, marks, ask)


def _logged(series: LogSeries, marks: Marks, ask: Ask) -> Total:
    if marks.unit == "steps" and np.isfinite(series.fact("total_steps")):
        return Total(series.fact("total_steps"), "the log says")
    epochs = series.fact("total_epochs")
    if np.isfinite(epochs):
        return Total(
            _in_unit(series, marks, ask, "epochs", epochs), f"the log says {epochs:g} epochs"
        )
    raise RequestError(
        f"when {series.name} will be done", "the log does not say how long the job is",
        "give --total-steps, --epochs, --tokens or --samples",
    )  # fmt: skip


def _in_unit(series: LogSeries, marks: Marks, ask: Ask, unit: str, count: float) -> float:
    """Return a length in the unit that the log counts."""
    if unit == marks.unit:
        return count
    if marks.unit == "epochs":
        raise RequestError(
            f"a job of {count:,.6g} {unit}", "the log counts epochs alone", "give --epochs"
        )
    per_step, missing = _per_step(series, ask, unit)
    if not per_step > 0:
        raise RequestError(
            f"a job of {count:,.6g} {unit}", f"the log does not say how many {unit} a step has",
            f"give {missing}, or --total-steps",
        )  # fmt: skip
    return count / per_step


def _per_step(series: LogSeries, ask: Ask, unit: str) -> tuple[float, str]:
    """Return how many samples, tokens or epochs a step has, and what to give where nobody says."""
    batch = ask.global_batch or _slope(series, "samples") or _known(series, "global_batch")
    if unit == "samples":
        return batch, "--global-batch"
    if unit == "tokens":
        tokens = _slope(series, "tokens")
        sequence = ask.seq_len or _known(series, "seq_len")
        return tokens or batch * sequence, "--global-batch and --seq-len"
    length = ask.steps_per_epoch or _known(series, "steps_per_epoch")
    size = ask.dataset_size or _known(series, "dataset_size")
    if not length and batch and size:
        length = np.ceil(size / batch)
    epochs = _slope(series, "epoch") or (1 / length if length else 0.0)
    return epochs, "--steps-per-epoch"


def _known(series: LogSeries, name: str) -> float:
    """Return a number of the log, 0 where it says none."""
    column = series.numbers(name)
    known = column[np.isfinite(column)]
    value = float(known[-1]) if len(known) else series.fact(name)
    return value if np.isfinite(value) and value > 0 else 0.0


def _slope(series: LogSeries, name: str) -> float:
    """Return how much of a column a step adds, 0 where the log does not say."""
    steps, values = series.numbers("step"), series.numbers(name)
    both = np.isfinite(steps) & np.isfinite(values)
    ahead, more = np.diff(steps[both]), np.diff(values[both])
    each = more[ahead > 0] / ahead[ahead > 0]
    slope = float(np.median(each)) if len(each) else 0.0
    return slope if slope > 0 else 0.0
