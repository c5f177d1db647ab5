"""Measured: the one figure of each run that a forecast can be compared with, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.domain.forecast import is_none
from forerun.tables.jobs import Runs, flop_rate_seconds, row_step_samples, throughput_seconds


@dataclass(frozen=True)
class MeasuredTimes:
    """What was measured in one quantity: seconds (NaN: not comparable), by what, why not, and bounds."""

    seconds: FloatArray
    origin: NDArray[np.object_]
    reason: NDArray[np.object_]
    censored: NDArray[np.bool_]

    @property
    def comparable(self) -> NDArray[np.bool_]:
        """Which rows can be compared, (n,)."""
        return ~np.isnan(self.seconds)


def measured_seconds(runs: Runs, quantity: str) -> MeasuredTimes:
    """Return measured seconds of a `step`, an `epoch` or a whole `run`; a step by the first of `_steps`."""
    status, table = runs.status, runs.table
    sources: list[tuple[str, FloatArray]]
    if quantity == "epoch":
        sources = [("epoch", table.numbers("epoch_time_s"))]
    elif quantity == "run":
        sources = [("whole run", table.numbers("time_to_train_s"))]
    else:
        sources = _steps(runs)
    seconds = np.full(len(runs), np.nan)
    origin = np.full(len(runs), "", dtype=object)
    for name, values in sources:
        take = np.isnan(seconds) & (status == "ok") & np.isfinite(values) & (values > 0)
        seconds[take] = values[take]
        origin[take] = name
    return MeasuredTimes(seconds, origin, _reasons(runs, seconds, quantity), status == "timeout")


def _steps(runs: Runs) -> list[tuple[str, FloatArray]]:
    table = runs.table
    batch = row_step_samples(table)
    stated = table.numbers("step_time_s")
    with np.errstate(divide="ignore", invalid="ignore"):
        epoch_steps = dataset_size(runs) / batch
        samples = table.numbers("samples_to_target")
        run_steps = np.where(
            np.isnan(samples), table.numbers("epochs_to_target") * epoch_steps, samples / batch
        )
        return [
            ("step", stated), ("throughput", throughput_seconds(table)),
            ("flops rate", flop_rate_seconds(runs.jobs, table)),
            ("epoch", table.numbers("epoch_time_s") / epoch_steps),
            ("whole run", table.numbers("time_to_train_s") / run_steps),
        ]  # fmt: skip


def samples_to_target(runs: Runs) -> FloatArray:
    """Return the samples until each run that ended reached its target, (n,), NaN where it does not say.

    Epochs count the row's or the workload's dataset, else the one that other runs of the workload imply.
    """
    stated, epochs = (runs.table.numbers(f"{unit}_to_target") for unit in ("samples", "epochs"))
    dataset, workload = dataset_size(runs), runs.table.groups(("workload",))[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        implied = np.where((stated > 0) & (epochs > 0), stated / epochs, np.nan)
    for code in np.unique(workload[np.isfinite(implied)]):
        mine = workload == code
        dataset = np.where(mine & np.isnan(dataset), np.nanmedian(implied[mine]), dataset)
    samples = np.where(stated > 0, stated, epochs * dataset)
    return np.where(runs.ended & (samples > 0) & np.isfinite(samples), samples, np.nan)


def dataset_size(runs: Runs) -> FloatArray:
    """Return samples in an epoch (n,): as the row says, else as its workload does."""
    stated = runs.table.numbers("dataset_size")
    usual = runs.jobs.per_workload("dataset_size", 0.0)
    return np.where(np.isnan(stated), np.where(usual > 0, usual, np.nan), stated)


def _reasons(runs: Runs, seconds: FloatArray, quantity: str) -> NDArray[np.object_]:
    """Return why a row cannot be compared, first cause first."""
    table, status = runs.table, runs.status
    reasons = np.full(len(runs), None, dtype=object)
    missing = np.isnan(seconds)

    def blame(rows: NDArray[np.bool_], reason: str) -> None:
        open_rows = missing & rows & is_none(reasons)
        reasons[open_rows] = reason

    for name in ("oom", "failed"):
        blame(status == name, f"ended {name}: no time")
    blame(status == "timeout", "stopped early: its time is a lower bound")
    has = {name: ~np.isnan(table.numbers(name)) for name in (
        "samples_per_s", "tokens_per_s", "tflops_per_device", "epoch_time_s", "time_to_train_s",
        "global_batch",
    )}  # fmt: skip
    if quantity == "step":
        rated = has["samples_per_s"] | has["tokens_per_s"]
        blame(rated & ~has["global_batch"], "a rate without a batch size")
        blame(has["tokens_per_s"], "tokens a second without a sequence length")
        blame(has["tflops_per_device"], "a FLOP rate without batch size, devices or FLOPs")
        blame(has["epoch_time_s"], "an epoch time without dataset size or batch size")
        blame(has["time_to_train_s"], "a whole run without the samples or epochs that it took")
    blame(np.ones(len(runs), dtype=bool), f"no {quantity} time measured")
    return reasons
