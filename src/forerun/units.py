"""Units: SI base units inside, and readable units at the doors."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from forerun.errors import RequestError

GIGA = 1e9
TERA = 1e12
SECONDS_PER_HOUR = 3600.0
SECONDS_PER_DAY = 86400.0
JOULES_PER_KWH = 3.6e6

_DURATION_SECONDS = {
    "ms": 1e-3, **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), SECONDS_PER_DAY),
    **dict.fromkeys(("w", "week", "weeks"), 604800.0),
}  # fmt: skip
_COUNT_SUFFIX = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
# Commas group thousands; a decimal comma is refused rather than read as a factor of ten.
GROUPED = re.compile(r"[+-]?\d{1,3}(,\d{3})+(?![\d,])")
_PART = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-z]+)[\s,]*", re.IGNORECASE)


def parse_duration(text: str, asked: str = "duration") -> float:
    """Return seconds from text such as `24h`, `1d12h`, `90 min` or `1:30:00`. Raises RequestError."""
    hint = "write a number with a unit, for example 90min, 24h or 1d12h"
    raw = str(text).strip().lower()
    if re.fullmatch(r"\d+:[0-5]\d(:[0-5]\d)?", raw):
        fields = [float(f) for f in raw.split(":")]
        fields += [0.0] * (3 - len(fields))
        seconds = fields[0] * 3600 + fields[1] * 60 + fields[2]
    else:
        position, seconds = 0, 0.0
        while position < len(raw):
            part = _PART.match(raw, position)
            if part is None or part[2] not in _DURATION_SECONDS:
                raise RequestError(f"{asked} {text!r}", f"{text!r} is not a duration", hint)
            seconds += float(part[1]) * _DURATION_SECONDS[part[2]]
            position = part.end()
    if not (0 < seconds < math.inf):
        found = "a duration must be above zero" if seconds <= 0 else "longer than can be counted"
        raise RequestError(f"{asked} {text!r}", found, hint)
    return seconds


MOST_COUNT = 1e30  # of anything: squares of larger ones pass what a float holds


def parse_count(text: str | float, asked: str = "count", such: str = "300, 2.5M or 15T") -> float:
    """Return a positive number from text such as `300`, `1.5e12`, `15T` or `2.5M`. Raises RequestError."""
    raw = str(text).strip().lower().replace("_", "")
    if GROUPED.match(raw):
        raw = raw.replace(",", "")
    match = re.fullmatch(r"([0-9]+\.?[0-9]*(?:e[+-]?[0-9]+)?|\.[0-9]+)\s*([kmbgt]?)", raw)
    hint = f"write a positive number, for example {such}"
    if match is None:
        raise RequestError(f"{asked} {text!r}", "not a positive number", hint)
    value = float(match[1]) * _COUNT_SUFFIX[match[2]]
    if not (0 < value <= MOST_COUNT):
        found = f"the number must be above zero and at most {MOST_COUNT:g}"
        raise RequestError(f"{asked} {text!r}", found, hint)
    return value


_SIZE = re.compile(r"([0-9]*\.?[0-9]+)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def parse_bytes(text: str | float, asked: str = "memory") -> float:
    """Return bytes from text such as `256GB`, `1.5 TiB` or `256`, which are GB. Raises RequestError."""
    match = _SIZE.fullmatch(str(text).strip())
    value = 0.0
    if match is not None:
        step, powers = 1024.0 if match[3] else 1000.0, {"k": 1, "m": 2, "g": 3, "t": 4}
        value = float(match[1]) * step ** powers[match[2].lower() or "g"]
    if value <= 0:
        hint = "write a number with a unit, for example 256GB or 1TiB"
        raise RequestError(f"{asked} {text!r}", "not an amount of memory", hint)
    return value


def parse_dollars(text: str | float, asked: str = "budget") -> float:
    """Return dollars from text such as `5000`, `$5,000` or `5k`. Raises RequestError."""
    number = str(text).strip().lower().removeprefix("$").removesuffix("usd")
    return parse_count(number, asked, "5000, 12.50, $5,000 or 5k")


def digits(value: float, count: int) -> str:
    """Return a number with some significant digits, no large one as a power of ten."""
    text = f"{value:.{count}g}"
    return f"{value:,.0f}" if "e+" in text else text


def above(write: Callable[[float, int], str], value: float, limit: float) -> tuple[str, str]:
    """Return a number above a limit and the limit as text, with a digit more where both read alike."""
    for more in (0, 1):
        if (high := write(value, more)) != (low := write(limit, more)):
            return high, low
    return f"just over {write(limit, 0)}", write(limit, 0)


def format_seconds(seconds: float, more: int = 0) -> str:
    """Return a duration with a unit a person reads at a glance, and `more` digits than usual."""
    if not math.isfinite(seconds):
        return "unknown"
    if 0 < abs(seconds) < 0.5e-9:
        return "<0.001 us"
    for limit, scale, unit in (
        (1e-3, 1e6, "us"),
        (1.0, 1e3, "ms"),
        (120.0, 1.0, "s"),
        (7200.0, 1 / 60, "min"),
        (172800.0, 1 / 3600, "h"),
    ):
        if abs(seconds) < limit:
            return f"{digits(seconds * scale, 3 + more)} {unit}"
    days, more = seconds / SECONDS_PER_DAY, 1 + more
    return f"{days:,.{more}f} days" if days < 1000 else f"{days / 365.25:,.{more}f} years"


def format_bytes(count: float) -> str:
    """Return bytes in decimal units (1 GB = 1e9 bytes)."""
    if not math.isfinite(count):
        return "unknown"
    for scale, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(count) >= scale:
            return f"{digits(count / scale, 3)} {unit}"
    return f"{count:.0f} B"


def format_dollars(dollars: float, more: int = 0) -> str:
    """Return dollars with cents below 100 and thousands separators above; `more` digits."""
    if not math.isfinite(dollars):
        return "no price"
    return f"${dollars:,.{more + (2 if abs(dollars) < 100 else 0)}f}"


def format_kwh(kilowatt_hours: float) -> str:
    """Return energy in kWh with four significant digits and thousands separators."""
    if not math.isfinite(kilowatt_hours):
        return "unknown"
    return f"{digits(kilowatt_hours, 4) if kilowatt_hours < 1e3 else f'{kilowatt_hours:,.0f}'} kWh"


def format_probability(probability: float) -> str:
    """Return a probability with two digits, rounded down; near its ends <0.01 and >0.99."""
    if not math.isfinite(probability):
        return "unknown"
    if probability < 0.01:
        return "<0.01"
    if probability >= 0.995:
        return ">0.99"
    return f"{math.floor(100 * probability + 1e-9) / 100:.2f}"


def chance_text(what: str, probability: float) -> str:
    """Return `P(what) = 0.87`, or `P(what) > 0.99` near the ends."""
    text = format_probability(probability)
    sign = text[0] if text[0] in "<>" else "="
    return f"P({what}) {sign} {text.lstrip('<>')}"


def format_percent(share: float, decimals: int = 0) -> str:
    """Return a share as `61.5 %`."""
    return f"{100 * share:.{decimals}f} %"


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun: `1 run`, `2,400 runs`; `plural` where it is not noun + s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def format_count(count: float) -> str:
    """Return a count with a metric suffix (8.03B, 312M, 4.1k)."""
    for scale, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(count) >= scale:
            return f"{digits(count / scale, 4)}{suffix}"
    return f"{count:.4g}"
