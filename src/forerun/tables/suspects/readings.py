"""Readings: the step time that each measured column implies, and the units it may be in by mistake.

All in logs: a guess is the factor by which a column's implied step time would be off if the column
held that unit. Rows where a guess means nothing have NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from forerun.arrays import FloatArray
from forerun.tables.jobs import Runs

THOUSAND, MINUTE, HOUR = np.log(1e3), np.log(60.0), np.log(3600.0)


@dataclass(frozen=True)
class Guess:
    """A unit that a column may hold by mistake.

    Attributes:
        unit: what it looks like.
        advice: how to mend it.
        log_factor: (n,) log of implied over true step seconds, NaN where it cannot be.
        reluctance: log factor by which it must explain a value better than others do.
        clear: whether so large a factor alone is proof; else only beside rows that agree.
        swapped: whether the column holds the inverse quantity.
    """

    unit: str
    advice: str
    log_factor: FloatArray
    reluctance: float = 0.0
    clear: bool = True
    swapped: bool = False


@dataclass(frozen=True)
class Reading:
    """One measured column: (n,) logs of the step seconds (or bytes) it implies; NaN where blank."""

    column: str
    unit: str
    values: FloatArray
    log_implied: FloatArray
    guesses: tuple[Guess, ...]


@dataclass(frozen=True)
class Sizes:
    """Logs of what turns one quantity into another, (n,), NaN where not known."""

    batch: FloatArray
    devices: FloatArray
    seq_len: FloatArray
    epoch_steps: FloatArray
    passes: FloatArray
    predicted: FloatArray


def sizes_of(runs: Runs, log_predicted: FloatArray) -> Sizes:
    """Return the sizes of n runs; log_predicted (n,) is physics' log step seconds."""
    jobs, table = runs.jobs, runs.table
    batch = _log(table.numbers("global_batch"))
    dataset = _log(table.numbers("dataset_size"))
    known = np.array([w.dataset_size for w in jobs.workloads] + [0.0])[jobs.workload_index]
    dataset = np.where(np.isnan(dataset), _log(known), dataset)
    devices = np.array([float(c.devices) for c in jobs.clusters] + [np.nan])[jobs.cluster_index]
    length = np.array([float(w.seq_len) for w in jobs.workloads] + [np.nan])[jobs.workload_index]
    seq_len = _log(table.numbers("seq_len"))
    seq_len = np.where(np.isnan(seq_len), _log(length), seq_len)
    plans = jobs.plans
    passes = _log(plans.global_batch / (plans.micro_batch.astype(np.float64) * plans.dp))
    return Sizes(batch, _log(devices), seq_len, dataset - batch, passes, log_predicted)


def _log(values: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(values)
    return np.where(np.isfinite(logs), logs, np.nan)


def step_readings(runs: Runs, sizes: Sizes) -> tuple[Reading, ...]:
    """Return the reading of each column that tells a step time, those with no value left out."""
    table = runs.table
    measured = np.where(runs.status == "ok", 1.0, np.nan)
    made: tuple[tuple[str, str, FloatArray, Mapping[str, Guess]], ...] = (
        ("step_time_s", "s", np.zeros(len(runs)), _time_guesses(sizes)),
        ("samples_per_s", "samples/s", sizes.batch, _rate_guesses(sizes, "samples")),
        ("tokens_per_s", "tokens/s", sizes.batch + _log(table.numbers("seq_len")), _rate_guesses(sizes, "tokens")),
        ("epoch_time_s", "s", -sizes.epoch_steps, _epoch_guesses(sizes)),
    )  # fmt: skip
    found = []
    for column, unit, scale, guesses in made:
        values = table.numbers(column) * measured
        logs = _log(values)
        if np.isnan(logs).all():
            continue
        implied = scale - logs if column.endswith("per_s") else scale + logs
        found.append(Reading(column, unit, values, implied, tuple(guesses.values())))
    return tuple(found)


def memory_reading(runs: Runs) -> Reading | None:
    """Return the reading of memory_gb as bytes, None where it has no value."""
    values = runs.table.numbers("memory_gb")
    logs = _log(values)
    if np.isnan(logs).all():
        return None
    n = len(runs)
    guesses = tuple(
        Guess(unit, f"divide by {text}", np.full(n, np.log(factor)))
        for unit, text, factor in (
            ("MiB or MB", "953.7 (MiB) or 1000 (MB)", 1e3), ("kB", "1e6", 1e6),
            ("bytes", "1e9", 1e9),
        )
    )  # fmt: skip
    return Reading("memory_gb", "GB", values, logs + np.log(1e9), guesses)


def _constant(n: int, unit: str, factor: float, advice: str, reluctance: float = 0.0) -> Guess:
    return Guess(unit, advice, np.full(n, factor), reluctance)


def _time_guesses(sizes: Sizes) -> Mapping[str, Guess]:
    n = len(sizes.batch)
    swapped = sizes.batch - 2.0 * sizes.predicted
    return {
        "ms": _constant(n, "ms", THOUSAND, "divide by 1000"),
        "us": _constant(n, "us", 2 * THOUSAND, "divide by 1e6"),
        "ns": _constant(n, "ns", 3 * THOUSAND, "divide by 1e9"),
        "minutes": _constant(n, "minutes", -MINUTE, "multiply by 60"),
        "hours": _constant(n, "hours", -HOUR, "multiply by 3600"),
        "sixty": _constant(n, "seconds times 60", MINUTE, "divide by 60", reluctance=0.3),
        "epoch": Guess(
            "the time of an epoch", "name the column epoch_time_s, or divide by the steps of an"
            " epoch", sizes.epoch_steps, 0.2,
        ),
        "sample": Guess(
            "the time of one sample", "multiply by global_batch", -sizes.batch, 0.2, False
        ),
        "pass": Guess(
            "the time of one micro-batch", "multiply by the micro-batches of a step",
            -sizes.passes, 0.0, False,
        ),
        "device": Guess(
            "the time divided by the devices", "multiply by devices", -sizes.devices, 0.1, False
        ),
        "rate": Guess("samples per second", "name the column samples_per_s", swapped, 0.3, swapped=True),
        "tokens": Guess(
            "tokens per second", "name the column tokens_per_s", swapped + sizes.seq_len, 0.3,
            swapped=True,
        ),
    }  # fmt: skip


def _rate_guesses(sizes: Sizes, what: str) -> Mapping[str, Guess]:
    n = len(sizes.batch)
    found = {
        "device": Guess(
            f"{what}/s of one device", "multiply by devices: the column is of the whole cluster",
            sizes.devices, 0.0, False,
        ),
        "thousands": _constant(n, f"thousand {what}/s", THOUSAND, "multiply by 1000"),
        "millions": _constant(n, f"million {what}/s", 2 * THOUSAND, "multiply by 1e6"),
        "minute": _constant(n, f"{what} per minute", -MINUTE, "divide by 60"),
        "hour": _constant(n, f"{what} per hour", -HOUR, "divide by 3600"),
    }  # fmt: skip
    if what == "samples":
        found["batches"] = Guess("batches/s", "multiply by global_batch", sizes.batch, 0.1, False)
        found["tokens"] = Guess("tokens/s", "name the column tokens_per_s", -sizes.seq_len, 0.1)
        found["step"] = Guess(
            "the step time in s", "name the column step_time_s",
            sizes.batch - 2.0 * sizes.predicted, 0.3, swapped=True,
        )  # fmt: skip
    else:
        found["samples"] = Guess("samples/s", "name the column samples_per_s", sizes.seq_len, 0.1)
    return found


def _epoch_guesses(sizes: Sizes) -> Mapping[str, Guess]:
    n = len(sizes.batch)
    return {
        "ms": _constant(n, "ms", THOUSAND, "divide by 1000"),
        "minutes": _constant(n, "minutes", -MINUTE, "multiply by 60"),
        "hours": _constant(n, "hours", -HOUR, "multiply by 3600"),
        "step": Guess("the time of a step", "name the column step_time_s", -sizes.epoch_steps, 0.2),
    }
