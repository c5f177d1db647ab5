"""Quantities: seconds of a step, an epoch or a whole run, and what turns one into another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from forerun.arrays import FloatArray
from forerun.domain.forecast import QUANTITIES, Forecasts, is_none
from forerun.domain.plan import step_samples
from forerun.predictors.laws.law_rows import LawRows, measured
from forerun.tables import COLUMNS, Jobs, Runs

# Columns that say how a job is laid on devices.
LAYOUT = [
    name for name, column in COLUMNS.items()
    if column.group == "plan" and name not in ("global_batch", "task")
]  # fmt: skip
_COLUMNS = {
    "step": ("step_time_s", "samples_per_s", "tokens_per_s", "tflops_per_device"),
    "epoch": ("epoch_time_s",), "run": ("time_to_train_s",),
}  # fmt: skip


def timed_quantities(runs: Runs) -> list[str]:
    """Return the quantities that runs time: the step first, unless more than half of the timed runs time none."""
    counts = {name: int(np.isfinite(measured(runs, name)).sum()) for name in QUANTITIES}
    timed = np.any([np.isfinite(measured(runs, name)) for name in QUANTITIES], axis=0).sum()
    order = sorted((name for name in QUANTITIES if counts[name]), key=lambda name: -counts[name])
    if 2 * counts["step"] >= timed and "step" in order:
        order.sort(key=lambda name: name != "step")
    return order


def only(runs: Runs, quantity: str) -> Runs:
    """Return the runs with no other time than that of a quantity."""
    blank = np.full(len(runs), np.nan)
    others = [c for name in QUANTITIES if name != quantity for c in _COLUMNS[name]]
    gone = {name: blank for name in others if name in runs.table}
    return replace(runs, table=runs.table.with_columns(**gone)) if gone else runs


def with_steps(runs: Runs) -> Runs:
    """Return the runs with step_time_s, from times of epochs and whole runs where it is missing."""
    step = runs.step_seconds()
    for quantity in ("epoch", "run"):
        with np.errstate(divide="ignore", invalid="ignore"):
            implied = measured(runs, quantity) / steps_in(runs.jobs, quantity)
        step = np.where(np.isnan(step), implied, step)
    stated = runs.table.numbers("step_time_s")
    gained = np.isfinite(step) & ~np.isfinite(runs.step_seconds())
    if not gained.any():
        return runs
    return replace(runs, table=runs.table.with_columns(step_time_s=np.where(gained, step, stated)))


def steps_in(jobs: Jobs, quantity: str) -> FloatArray:
    """Return optimizer steps in a quantity of each job (n,), NaN where the row does not say."""
    if quantity == "step":
        return np.ones(len(jobs))
    rows = LawRows(jobs)
    dataset = rows.size("dataset_size")
    batch = step_samples(rows.size("global_batch"), rows.replicas, rows.sync)
    with np.errstate(divide="ignore", invalid="ignore"):
        epoch = dataset / batch
        if quantity == "epoch":
            return np.asarray(epoch)
        labels = rows.labels
        steps = labels.numbers("steps")
        for samples in (
            labels.numbers("samples"), labels.numbers("epochs") * dataset,
            labels.numbers("samples_to_target"),
            labels.numbers("epochs_to_target") * dataset,
        ):  # fmt: skip
            steps = np.where(np.isnan(steps), samples / batch, steps)
    return np.where(steps > 0, steps, np.nan)


def in_quantity(forecasts: Forecasts, jobs: Jobs, quantity: str) -> Forecasts:
    """Return forecasts of a quantity from those of another; rows that cannot be turned decline."""
    if forecasts.quantity == quantity:
        return forecasts
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = steps_in(jobs, quantity) / steps_in(jobs, forecasts.quantity)
    lost = np.isnan(factor) & forecasts.answered
    declined = forecasts.declined.copy()
    words = "an epoch" if quantity == "epoch" else f"a {quantity}"
    declined[lost] = f"the row does not say how many steps {words} has"
    factor = np.where(is_none(declined), factor, np.nan)
    return replace(
        forecasts, quantity=quantity, declined=declined,
        seconds=forecasts.seconds * factor[:, None],
        floor_seconds=forecasts.floor_seconds * factor,
        parts={name: values * factor for name, values in forecasts.parts.items()},
    )  # fmt: skip
