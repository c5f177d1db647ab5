"""Stamps: the times that lines of a plain log begin with, as seconds since 1970."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from functools import lru_cache

_WITHIN = 160  # characters at a line's beginning in which its time stands
_FULL = re.compile(
    r"(\d{4})[-/](\d\d)[-/](\d\d)[T ,_]\s?(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"
    r"\s?(Z\b|UTC\b|GMT\b|[+-]\d\d:?\d\d\b)?"
)
_GLOG = re.compile(r"^\W{0,2}[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?")
_SHORT = re.compile(
    r"^\W{0,3}(\d\d)[/-](\d\d)(?:[/-](\d\d))? (\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"
)
_CLOCK = re.compile(r"^\W{0,3}(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(?=[\s\]),|])")
_DAY = 86400.0


class Stamps:
    """Reads the time of each line of one log, from its first line on.

    A stamp without a zone is of this machine's zone, as the loggers write it. A stamp without a
    date goes on to the next day where it falls back by more than half a day; it counts from the
    first day's midnight (`absolute` stays False).
    """

    def __init__(self) -> None:
        self.absolute = False
        self._day = 0.0
        self._last = math.nan

    def read(self, line: str) -> float:
        """Return the line's time in seconds, NaN where it has none."""
        head = line[:_WITHIN]
        match = _FULL.search(head)
        if match is not None:
            return self._full(match)
        match = _GLOG.search(head) or _SHORT.search(head)
        if match is not None:
            return self._dated(match)
        match = _CLOCK.search(head)
        if match is None or self.absolute:
            return math.nan
        return self._clock(match)

    def _full(self, match: re.Match[str]) -> float:
        zone = (
            (match[8] or "").replace("UTC", "+0000").replace("GMT", "+0000").replace("Z", "+0000")
        )
        try:
            moment = datetime(*(int(match[i]) for i in range(1, 7)))  # type: ignore[arg-type]
        except ValueError:
            return math.nan
        seconds = _seconds(moment, zone.replace(":", ""))
        self.absolute = self.absolute or not math.isnan(seconds)
        return seconds + _fraction(match[7])

    def _dated(self, match: re.Match[str]) -> float:
        """Read month and day; the year is this one, or the last where that is in the future."""
        groups = match.groups()
        short = len(groups) == 7
        month, day, year = int(groups[0]), int(groups[1]), groups[2] if short else None
        hour, minute, second = (int(g) for g in groups[3 if short else 2 : 6 if short else 5])
        now = datetime.now()
        try:
            moment = datetime(
                2000 + int(year) if year else now.year, month, day, hour, minute, second
            )
            if year is None and (moment - now).days > 1:
                moment = moment.replace(year=now.year - 1)
        except ValueError:
            return math.nan
        self.absolute = True
        return _seconds(moment, "") + _fraction(groups[-1])

    def _clock(self, match: re.Match[str]) -> float:
        hour, minute, second = (int(match[i]) for i in (1, 2, 3))
        if hour > 23 or minute > 59 or second > 59:
            return math.nan
        now = hour * 3600.0 + minute * 60 + second + _fraction(match[4])
        if now + self._day < self._last - _DAY / 2:
            self._day += _DAY
        self._last = now + self._day
        return self._last


@lru_cache(maxsize=64)
def _minute(year: str, month: str, day: str, hour: str, minute: str, zone: str) -> float:
    """Return the seconds since 1970 of a minute, NaN where there is none such."""
    for utc in ("UTC", "GMT", "Z"):
        zone = zone.replace(utc, "+0000")
    try:
        moment = datetime(int(year), int(month), int(day), int(hour), int(minute))
    except ValueError:
        return math.nan
    return _seconds(moment, zone.replace(":", ""))


def _fraction(digits: str | None) -> float:
    return float(f"0.{digits}") if digits else 0.0


def _seconds(moment: datetime, zone: str) -> float:
    try:
        if not zone:
            return moment.timestamp()
        offset = int(zone[1:3]) * 3600 + int(zone[3:5]) * 60
        return moment.replace(tzinfo=UTC).timestamp() - (offset if zone[0] == "+" else -offset)
    except (ValueError, OverflowError, OSError):
        return math.nan


def iso_seconds(text: str) -> float:
    """Return the seconds since 1970 of a time in ISO 8601, NaN where it is none.

    Without a zone it is of this machine's zone.
    """
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        return math.nan
