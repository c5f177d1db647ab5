"""The ETA on a screen and as JSON: what is done, what is left, what it costs, and whether in time."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from forerun import wire
from forerun.cli.screen import Screen
from forerun.errors import UnsatisfiedError
from forerun.units import (
    SECONDS_PER_HOUR,
    chance_text,
    format_dollars,
    format_percent,
    format_probability,
    format_seconds,
)

if TYPE_CHECKING:
    from forerun.measure.logs import Eta

_SHORTLY = 1800.0  # seconds between a band's ends, below which its times are told to the second
_LIKELY = 0.5  # above it a person should hear of a deadline, also below the asked confidence


def show_eta(
    screen: Screen, eta: Eta, per_hour: float | None, deadline_s: float | None, price_source: str
) -> None:
    """Write an answer for a person."""
    unit = eta.unit
    screen.title(eta.name)
    screen.line(
        f"now       {unit[:-1]} {eta.done:,.6g} of {eta.total:,.6g}, {format_percent(eta.share, 1)}"
        f" ({eta.length})"
    )
    now = eta.outlook.speeds.now
    since = f" since {unit[:-1]} {now.begin:,.6g}" if len(eta.outlook.speeds.segments) > 1 else ""
    screen.line(f"speed     {format_seconds(eta.outlook.step_seconds)} a {unit[:-1]}{since}")
    if eta.share >= 1:
        screen.line("left      nothing: it is done")
    else:
        p05, p50, p95 = eta.remaining_seconds
        screen.line(
            f"left      {format_seconds(p50)} (90 %: {format_seconds(p05)} to {format_seconds(p95)})"
        )
        if eta.finish_s is not None:
            fine = eta.finish_s[2] - eta.finish_s[0] < _SHORTLY
            early, middle, late = (_clock(seconds, fine) for seconds in eta.finish_s)
            screen.line(f"done at   {middle} (90 %: {early} to {late})")
    screen.line(f"so far    {format_seconds(eta.elapsed_seconds)}{_away(eta)}")
    for text in _pauses(eta):
        screen.line(f"pauses    {text}")
    if per_hour is not None:
        so_far, rest = _dollars(eta, per_hour)
        screen.line(
            f"cost      {format_dollars(so_far)} so far, {format_dollars(rest[1])} left (90 %:"
            f" {format_dollars(rest[0])} to {format_dollars(rest[2])}), at"
            f" {format_dollars(per_hour)} an hour ({price_source})"
        )
    if deadline_s is not None:
        screen.line(f"deadline  {_deadline(eta, deadline_s)}")
    screen.items("notes", eta.notes)
    screen.items("unknown", eta.unknown)


def _deadline(eta: Eta, deadline_s: float) -> str:
    """Return whether a deadline, so many seconds from now on, will be met or was, in words."""
    if eta.share >= 1:
        late = eta.last_s - (eta.now_s + deadline_s)
        if not math.isfinite(late):
            return "it is done; when, the log does not say"
        return f"it was done {format_seconds(abs(late))} {'too late' if late > 0 else 'before'}"
    missed = eta.missed(deadline_s)
    if deadline_s <= 0:
        return f"it passed {format_seconds(-deadline_s)} ago: {chance_text('missed', missed)}"
    word = "it will probably be late: " if missed > _LIKELY else ""
    return f"in {format_seconds(deadline_s)}: {word}{chance_text('missed', missed)}"


def alert_of(eta: Eta, deadline_s: float | None, confidence: float) -> UnsatisfiedError | None:
    """Return the alert where the deadline will be missed with this confidence, else None."""
    if deadline_s is None or eta.share >= 1:
        return None
    missed = eta.missed(deadline_s)
    if missed < confidence:
        return None
    _, middle, last = eta.remaining_seconds
    if deadline_s <= 0:
        return UnsatisfiedError(
            f"done by {_clock(eta.now_s + deadline_s, fine=False)}",
            f"that passed {format_seconds(-deadline_s)} ago, and {format_seconds(middle)} are left"
            f"{_ends(eta)}",
            f"give a deadline that lies ahead: it will be kept with 95 % at --deadline"
            f" {math.ceil(last)}s",
        )
    return UnsatisfiedError(
        f"done within {format_seconds(deadline_s)}",
        f"it will be missed with probability {format_probability(missed)}: {format_seconds(middle)}"
        f" are left, {format_seconds(middle - deadline_s)} too many{_ends(eta)}",
        "add devices or end earlier; `forerun recommend --deadline` says which cluster would do",
    )


def _ends(eta: Eta) -> str:
    """Return when the job will be done, as the end of a sentence; "" where no date is known."""
    if eta.finish_s is None:
        return ""
    early, middle, late = eta.finish_s
    fine = late - early < _SHORTLY
    return (
        f"; it ends at {_clock(middle, fine)} (90 %: {_clock(early, fine)} to {_clock(late, fine)})"
    )


def eta_json(eta: Eta, per_hour: float | None, deadline_s: float | None) -> dict[str, Any]:
    """Return an answer as JSON; what is not known is null."""
    speeds = eta.outlook.speeds
    so_far, rest = _dollars(eta, per_hour) if per_hour is not None else (None, None)
    return {
        "schema": wire.SCHEMA,
        "kind": "eta",
        "log": eta.name,
        "unit": eta.unit,
        "done": eta.done,
        "total": eta.total,
        "total_from": eta.length,
        "share": eta.share,
        "status": eta.status,
        "reason": eta.reason,
        "step_seconds": eta.outlook.step_seconds,
        "speeds": [
            {"begin": s.begin, "end": s.end, "step_seconds": s.step_seconds} for s in speeds.segments
        ],
        "remaining_seconds": wire.quantiles(eta.remaining_seconds),
        "finish": None if eta.finish_s is None else dict(
            zip(("p05", "p50", "p95"), map(_iso, eta.finish_s), strict=True)
        ),
        "elapsed_seconds": eta.elapsed_seconds,
        "away_seconds": eta.away_seconds,
        "redone": eta.redone,
        "restarts": sum(gap.restart for gap in eta.intervals.gaps),
        "pauses": [
            {
                "kind": p.kind, "seen": len(p.at), "seconds": float(p.seconds.mean()),
                "every": p.period, "to_come": p.expected(eta.done, eta.total),
            }
            for p in eta.outlook.pauses
        ],
        "dollars_so_far": so_far,
        "dollars_left": None if rest is None else wire.quantiles(rest),
        "deadline_seconds": deadline_s,
        "missed_probability": None if deadline_s is None else eta.missed(deadline_s),
        "notes": list(eta.notes),
        "unknown": list(eta.unknown),
    }  # fmt: skip


def _clock(seconds: float, fine: bool) -> str:
    """Return a time of this machine's zone, to the minute, or to the second."""
    moment = datetime.fromtimestamp(seconds).astimezone()
    return moment.isoformat(" ", "seconds" if fine else "minutes")


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _away(eta: Eta) -> str:
    if not eta.intervals.gaps:
        return ""
    return f", and {format_seconds(eta.away_seconds)} away between sessions"


def _pauses(eta: Eta) -> list[str]:
    """Return what is said of each kind of pause that takes a hundredth of the job's time or more."""
    said = []
    for pauses in eta.outlook.pauses:
        if pauses.seconds.sum() < 0.01 * eta.elapsed_seconds:
            continue
        every = f" every {pauses.period:,.6g} {eta.unit}" if pauses.period == pauses.period else ""
        coming = pauses.expected(eta.done, eta.total)
        said.append(
            f"{len(pauses.at)} of kind {pauses.kind}{every}, {format_seconds(float(pauses.seconds.mean()))}"
            f" each; about {coming:,.0f} to come"
        )
    return said


def _dollars(eta: Eta, per_hour: float) -> tuple[float, tuple[float, float, float]]:
    """Return what the job cost so far (gaps between sessions left out), and what is left of it."""
    p05, p50, p95 = eta.remaining_seconds
    each = per_hour / SECONDS_PER_HOUR
    return eta.elapsed_seconds * each, (p05 * each, p50 * each, p95 * each)
