"""Showing: an answer and its parts for a person: limits, rivals, sources, every number with its unit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from forerun.advisor import Answer
from forerun.cli.screen import Screen
from forerun.domain.forecast import Forecast, meaning, nearer
from forerun.domain.objective import Limits
from forerun.domain.recommendation import ALL, BUDGET, DEADLINE, Option, Recommendation
from forerun.domain.workload import Workload
from forerun.predictors.starts import known_words
from forerun.units import (
    chance_text,
    format_bytes,
    format_count,
    format_dollars,
    format_kwh,
    format_percent,
    format_probability,
    format_seconds,
)

BETTER = {"time": "faster", "cost": "cheaper", "energy": "thriftier", "knee": "nearer the knee"}


def limits_text(chance: Mapping[str, float], limits: Limits) -> str:
    """Return the probabilities of keeping the limits in words; "" where there are none."""
    words = []
    if limits.deadline_seconds is not None:
        within = format_seconds(limits.deadline_seconds)
        words.append(chance_text(f"within {within}", chance[DEADLINE]))
    if limits.budget_dollars is not None:
        most = format_dollars(limits.budget_dollars)
        words.append(chance_text(f"for at most {most}", chance[BUDGET]))
    if words:
        words.append(chance_text("all, and it fits", chance[ALL]))
    return "; ".join(words)


def source_text(forecast: Forecast, constants: str = "") -> str:
    """Return who answered, with which constants, and how far from what was measured."""
    who = f"predictor {forecast.predictor}" + (f" ({constants})" if constants else "")
    if not math.isfinite(forecast.distance):
        return who
    return (
        f"{who}, distance {forecast.distance:.2f} from what was measured:"
        f" {meaning(forecast.distance, forecast.distance_parts)}"
    )


def nearer_text(forecast: Forecast) -> str:
    """Return what would bring the answer nearer to what was measured; "" where nothing would."""
    closer = nearer(forecast.distance, forecast.distance_parts)
    return f"with {'; '.join(closer)}" if closer else ""


def limit_headers(limits: Limits) -> tuple[str, ...]:
    """Return the headers of columns for the limits that there are."""
    asked = (limits.deadline_seconds, "in time"), (limits.budget_dollars, "in budget")
    return tuple(header for limit, header in asked if limit is not None)


def limit_cells(chance: Mapping[str, float], limits: Limits) -> tuple[str, ...]:
    """Return the probabilities under `limit_headers`."""
    asked = (limits.deadline_seconds, DEADLINE), (limits.budget_dollars, BUDGET)
    return tuple(format_probability(chance[name]) for limit, name in asked if limit is not None)


def rivals(found: Recommendation) -> list[tuple[str, str]]:
    """Return the next best options in words, each with the probability that the best beats it."""
    named: list[tuple[str, Option]] = []
    if (other := found.runner_up) is not None:
        named.append((f"{other.job.cluster.name}, the closest rival elsewhere", other))
    if (other := found.next_layout) is not None:
        named.append((f"{other.job.plan}, the next best layout here", other))
    by, aim = found.compared_by, BETTER[found.compared_by]
    return [
        (words, chance_text(f"best is {aim}", option.beaten.get(by, math.nan)))
        for words, option in named
    ]


def beaten(option: Option, found: Recommendation) -> str:
    """Return the probability that the best beats an option in what was asked; "" for itself."""
    best = found.best
    if best is None or (option.job == best.job and option.estimate.spot == best.estimate.spot):
        return ""
    return format_probability(option.beaten.get(found.compared_by, math.nan))


def price_text(one: Answer | Option, advice: str) -> str:
    """Return the hourly price with its market and source, or what to do where none is known."""
    price, source = one.dollars_per_hour, one.job.cluster.price_source
    if price is None:
        return f"none is known; {advice}"
    market = "spot" if one.estimate.spot else "on demand"
    return f"{format_dollars(price)} an hour {market}{f' ({source})' if source else ''}"


def show_answer(screen: Screen, answer: Answer) -> None:
    """Write one prediction."""
    job, estimate, length = answer.job, answer.estimate, answer.length
    device, forecast = job.cluster.device, answer.forecast
    screen.title(f"{job.workload.name} on {job.cluster.name}")
    long = f"{format_count(length.count)} {length.unit} ({length.source})"
    screen.labelled([
        ("plan", f"{job.plan}, global batch {job.plan.global_batch:,}"),
        ("as", workload_text(job.workload)),
        ("length", f"{long}: {estimate.steps:,.0f} steps"),
    ])  # fmt: skip
    screen.line()
    rows = [
        ("step", *map(format_seconds, answer.step_seconds)),
        ("run", *map(format_seconds, estimate.run_seconds)),
        ("cost", *map(format_dollars, estimate.dollars)),
        ("energy", *map(format_kwh, estimate.kilowatt_hours)),
        ("memory", *map(format_bytes, forecast.peak_bytes)),
    ]
    screen.table(("", "5 %", "median", "95 %"), rows)
    screen.line()
    fits = (
        f"{format_probability(estimate.fit_probability)} in the {format_bytes(device.memory_bytes)}"
    )
    screen.labelled([
        ("fits", f"probability {fits} of each {device.id}"),
        ("limits", limits_text(answer.chance, answer.limits)),
        ("speed", _speed(answer)),
        ("price", price_text(answer, "give --price")),
        ("source", source_text(forecast, known_words(answer.start))),
        ("nearer", nearer_text(forecast)),
    ])  # fmt: skip
    screen.items("notes", answer.notes)
    screen.items("warnings", answer.warnings)


def workload_text(workload: Workload) -> str:
    """Return what of the workload moves an answer most: `bf16, sequences of 8,192 tokens, adamw`."""
    words = [workload.precision]
    if workload.sample == "image" and workload.image_size:
        words.append(f"images of {workload.image_size:,} pixels a side")
    elif workload.seq_len:
        words.append(f"sequences of {workload.seq_len:,} tokens")
    words += [workload.optimizer, workload.framework or "any framework"]
    if workload.task != "pretrain":
        words.append(workload.task)
    return ", ".join(words)


def _speed(answer: Answer) -> str:
    """Return samples (and tokens) in a second, of the whole cluster."""
    rate, tokens = answer.samples_per_second, answer.job.workload.seq_len
    if not math.isfinite(rate):
        return "unknown"
    more = f", {format_count(rate * tokens)} tokens/s" if tokens else ""
    return f"{format_count(rate)} samples/s{more}"


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
