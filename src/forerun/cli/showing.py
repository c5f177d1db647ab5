"""Showing: an answer and its parts as tables for a person, every number with its unit.

Chances in words: limits that are kept, rivals that are beaten, and how far the answer is sure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from forerun.advisor import Answer
from forerun.cli.screen import Screen
from forerun.domain.forecast import Forecast, meaning, nearer
from forerun.domain.objective import Limits
from forerun.domain.recommendation import ALL, BUDGET, DEADLINE, Option, Recommendation
from forerun.domain.workload import Length, Workload
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


def show_limits(screen: Screen, chance: Mapping[str, float], limits: Limits) -> None:
    """Write the probabilities of keeping the limits; nothing where there are none."""
    words = limits_text(chance, limits)
    if words:
        screen.line(f"limits  {words}")


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


def show_source(screen: Screen, forecast: Forecast, constants: str = "") -> None:
    """Write who answered, how far from what was measured, and what would bring it nearer.

    constants: which ones the predictor has, in words.
    """
    screen.line(f"source  {source_text(forecast, constants)}")
    closer = nearer_text(forecast)
    if closer:
        screen.line(f"nearer  {closer}")


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
    return tuple(words for _, words in _limit_columns(limits))


def limit_cells(chance: Mapping[str, float], limits: Limits) -> tuple[str, ...]:
    """Return the probabilities under `limit_headers`."""
    return tuple(format_probability(chance[name]) for name, _ in _limit_columns(limits))


def _limit_columns(limits: Limits) -> list[tuple[str, str]]:
    """Return (name of the probability, words of its column) for each limit."""
    asked = ((DEADLINE, "in time", limits.deadline_seconds),
             (BUDGET, "in budget", limits.budget_dollars))  # fmt: skip
    return [(name, words) for name, words, limit in asked if limit is not None]


def rivals(found: Recommendation) -> list[tuple[str, str]]:
    """Return the next best options in words, each with the probability that the best beats it."""
    aim = BETTER[found.compared_by]
    named = []
    if found.runner_up is not None:
        named.append((f"{found.runner_up.job.cluster.name}, the closest rival elsewhere",
                      found.runner_up))  # fmt: skip
    if found.next_layout is not None:
        plan = found.next_layout.job.plan
        named.append((f"{plan}, the next best layout here", found.next_layout))
    unknown = float("nan")
    return [
        (words, chance_text(f"best is {aim}", option.beaten.get(found.compared_by, unknown)))
        for words, option in named
    ]


def beaten(option: Option, found: Recommendation) -> str:
    """Return the probability that the best beats an option in what was asked; "" for itself."""
    best = found.best
    if best is None or (option.job == best.job and option.estimate.spot == best.estimate.spot):
        return ""
    return format_probability(option.beaten.get(found.compared_by, float("nan")))


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
