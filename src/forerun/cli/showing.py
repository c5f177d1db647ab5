"""Showing: an answer and its parts as tables for a person, every number with its unit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from forerun.advisor import Answer
from forerun.cli.chances import show_limits, show_source
from forerun.cli.screen import Screen
from forerun.domain.workload import Length, Workload
from forerun.predictors.starts import known_words
from forerun.units import (
    format_bytes,
    format_count,
    format_dollars,
    format_kwh,
    format_percent,
    format_probability,
    format_seconds,
)


def show_answer(screen: Screen, answer: Answer) -> None:
    """Write one prediction."""
    job, estimate = answer.job, answer.estimate
    device = job.cluster.device
    screen.title(f"{job.workload.name} on {job.cluster.name}")
    screen.line(f"plan    {job.plan}, global batch {job.plan.global_batch:,}")
    screen.line(f"as      {workload_text(job.workload)}")
    screen.line(f"length  {length_text(answer.length)}: {estimate.steps:,.0f} steps")
    screen.line()
    rows = [
        ("step", *map(format_seconds, answer.step_seconds)),
        ("run", *map(format_seconds, estimate.run_seconds)),
        ("cost", *map(format_dollars, estimate.dollars)),
        ("energy", *map(format_kwh, estimate.kilowatt_hours)),
        ("memory", *map(format_bytes, answer.forecast.peak_bytes)),
    ]
    screen.table(("", "5 %", "median", "95 %"), rows)
    screen.line()
    screen.line(
        f"fits    probability {format_probability(estimate.fit_probability)} in the"
        f" {format_bytes(device.memory_bytes)} of each {device.id}"
    )
    show_limits(screen, answer.chance, answer.limits)
    screen.line(f"speed   {throughput(answer)}")
    screen.line(f"price   {price_text(answer)}")
    show_source(screen, answer.forecast, known_words(answer.start))
    screen.items("notes", answer.notes)
    screen.items("warnings", answer.warnings)


def workload_text(workload: Workload) -> str:
    """Return what of the workload moves an answer most: `bf16, sequences of 8,192 tokens, adamw`."""
    words = [workload.precision]
    if workload.sample == "image" and workload.image_size:
        words.append(f"images of {workload.image_size:,} pixels a side")
    elif workload.seq_len:
        words.append(f"sequences of {workload.seq_len:,} tokens")
    words.append(workload.optimizer)
    words.append(workload.framework or "any framework")
    if workload.task != "pretrain":
        words.append(workload.task)
    return ", ".join(words)


def length_text(length: Length) -> str:
    """Return how long the job is, and who says so."""
    return f"{format_count(length.count)} {length.unit} ({length.source})"


def throughput(answer: Answer) -> str:
    """Return samples (and tokens) in a second, of the whole cluster."""
    rate = answer.samples_per_second
    if not math.isfinite(rate):
        return "unknown"
    tokens = answer.job.workload.seq_len
    more = f", {format_count(rate * tokens)} tokens/s" if tokens else ""
    return f"{format_count(rate)} samples/s{more}"


def price_text(answer: Answer) -> str:
    """Return the hourly price with its market and source."""
    price = answer.dollars_per_hour
    if price is None:
        return "none is known; give --price"
    market = "spot" if answer.estimate.spot else "on demand"
    return f"{format_dollars(price)} an hour {market} ({answer.job.cluster.price_source})"


def show_parts(
    screen: Screen,
    title: str,
    parts: Iterable[tuple[str, float]],
    write: Callable[[float], str],
) -> None:
    """Write parts with their share of the whole, largest first, and the whole."""
    parts = list(parts)
    whole = sum(value for _, value in parts) or math.nan
    rows = [
        (name, write(value), format_percent(value / whole, 1), screen.bar(value / whole))
        for name, value in parts
    ]
    screen.table(
        ("part", "amount", "share", ""), [*rows, ("all", write(whole), "100.0 %", "")], title
    )


def ranged(row: Sequence[float], write: Callable[[float], str]) -> str:
    """Return the median with its 5 to 95 % range."""
    if not math.isfinite(row[1]):
        return write(row[1])
    return f"{write(row[1])} ({write(row[0])} to {write(row[2])})"
