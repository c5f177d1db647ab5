"""Shots: the few runs of a group that is left out which teach all the same, and their repeats."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from forerun.errors import RequestError
from forerun.evaluate.splits import Split
from forerun.tables import Table, configurations
from forerun.tables.conditions import parse_condition
from forerun.tables.rates import throughput_seconds

Index = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]

_TIMES = ("step_time_s", "samples_per_s", "tokens_per_s", "tflops_per_device", "epoch_time_s",
          "time_to_train_s")  # fmt: skip


def seconds_of(table: Table) -> FloatArray:
    """Return the time that each row states: a step's, else an epoch's, else a run's, (n,)."""
    found = np.full(len(table), np.nan)
    for times in (
        table.numbers("step_time_s"), throughput_seconds(table), table.numbers("epoch_time_s"),
        table.numbers("time_to_train_s"),
    ):  # fmt: skip
        found = np.where(np.isnan(found) & (times > 0), times, found)
    return found


def run_costs(table: Table) -> FloatArray:
    """Return what each run cost, (n,), infinite where that cannot be told.

    Dollars where every timed row states its price an hour; else device-seconds. Equal numbers of
    steps are compared: a row of a step counts with one step.
    """
    seconds = seconds_of(table)
    price = table.numbers("price_usd_per_hour")
    devices = table.numbers("devices")
    timed = np.isfinite(seconds)
    rate = price if timed.any() and np.all(price[timed] > 0) else devices
    return np.where(np.isfinite(seconds * rate), seconds * rate, np.inf)


def shots_of(
    split: Split, table: Table, groups: Index, rng: np.random.Generator
) -> tuple[BoolArray, BoolArray]:
    """Return the rows that are given and the exact repeats of them, (n,) each.

    `split.count` configurations of each group are given, one measurement of each: at random, or
    the cheapest (`run_costs`). Only runs that ended well, have a time, and meet the conditions.

    Args:
        split: a few-shot split.
        table: n rows.
        groups: the group of each row, (n,).
        rng: draws them, or breaks ties.

    Raises:
        RequestError: a condition names no column, or no row of the table may be given.
    """
    useful = np.flatnonzero(_useful(table) & _allowed(split.conditions, table))
    if not len(useful):
        raise RequestError(
            f"--split {split}", "no row that ended with a time may be a shot"
            + (f": none meets {' and '.join(split.conditions)}" if split.conditions else ""),
            "loosen the conditions" if split.conditions else "give runs with times",
        )  # fmt: skip
    config = configurations(table)[1]
    drawn = rng.permutation(useful)
    if split.shots == "cheapest":
        drawn = drawn[np.argsort(run_costs(table)[drawn], kind="stable")]
    # One row of each configuration, the first drawn; of these, the first `count` of each group.
    one = np.sort(np.unique(config[drawn], return_index=True)[1])
    drawn = drawn[one]
    order = drawn[np.argsort(groups[drawn], kind="stable")]
    starts = np.flatnonzero(np.r_[True, groups[order][1:] != groups[order][:-1]])
    turn = np.arange(len(order)) - np.repeat(starts, np.diff(np.r_[starts, len(order)]))
    given = np.zeros(len(table), dtype=bool)
    given[order[turn < split.count]] = True
    return given, np.isin(config, config[given]) & ~given


def _useful(table: Table) -> BoolArray:
    timed = np.any([np.isfinite(table.numbers(name)) for name in _TIMES], axis=0)
    texts = table.texts("status")
    ended = {text: text.strip().lower() in ("", "ok") for text in set(texts.tolist())}
    ok = np.fromiter((ended[text] for text in texts.tolist()), dtype=bool, count=len(texts))
    return np.asarray(timed & ok)


def _allowed(conditions: Sequence[str], table: Table) -> BoolArray:
    allowed = np.ones(len(table), dtype=bool)
    for text in conditions:
        allowed &= parse_condition(text).holds(table)
    return allowed
