"""Campaign fields: times, shares, counts, steps and budgets of a campaign file, each checked."""

from __future__ import annotations

from typing import Any

from forerun.errors import RequestError
from forerun.measure.campaign import Budget
from forerun.measure.task import Steps
from forerun.sections import Section
from forerun.units import parse_count, parse_dollars, parse_duration

STEPS = ("warmup", "least", "most", "half_width", "seconds", "epochs")


def budget(top: Section) -> Budget:
    """Return the budget, without limits where none is given."""
    if "budget" not in top.values:
        return Budget()
    section = top.section("budget")
    section.only(("time", "dollars"))
    dollars = section.values.get("dollars")
    return Budget(
        duration(section, "time", 0.0) or None,
        None if dollars is None else section.checked(lambda: parse_dollars(str(dollars))),
    )


def steps(top: Section) -> Steps:
    """Return how long each run is measured."""
    if "steps" not in top.values:
        return Steps()
    section = top.section("steps")
    section.only(STEPS)
    given: dict[str, Any] = {
        name: whole(section, name, section.values[name], 0)
        for name in ("warmup", "least", "most", "epochs") if name in section.values
    }  # fmt: skip
    if "half_width" in section.values:
        given["half_width"] = share(section, "half_width")
    if "seconds" in section.values:
        given["seconds"] = duration(section, "seconds", Steps().seconds)
    if "least" in given:
        given.setdefault("most", max(given["least"], Steps().most))
    elif "most" in given:
        given["least"] = min(given["most"], Steps().least)
    return section.checked(lambda: Steps(**given))


def share(section: Section, name: str) -> float:
    """Return a share that is written as 0.03 or 3%."""
    text = str(section.values[name]).strip()
    number = text.removesuffix("%")
    try:
        return float(number) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        raise section.error(name, f"{text!r} is no share", "write 3% or 0.03") from None


def duration(section: Section, name: str, default: float) -> float:
    """Return seconds of a field that is written as 90, 90s or 2h, or the default."""
    if name not in section.values:
        return default
    value = section.values[name]
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = f"{value}s"
    return section.checked(lambda: parse_duration(str(value), name))


def whole(section: Section, name: str, value: object, lowest: int) -> int:
    """Return a value as a whole number, `lowest` at least."""
    zero = str(value).strip() in ("0", "0.0")
    try:
        number = 0.0 if zero else parse_count(str(value), name)
    except RequestError as error:
        raise section.error(name, f"{value!r}: {error.found}", error.next_step) from None
    if not number.is_integer() or number < lowest or isinstance(value, bool):
        raise section.error(
            name, f"{value!r} is not a whole number from {lowest}",
            f"write {name}: {max(lowest, 1)}, or more",
        )  # fmt: skip
    return int(number)


def number(section: Section, name: str, value: object) -> float:
    """Return a value as a number from 0."""
    return Section(section.path, section.name, {name: value}, section.lines).number(name)


def several(value: object) -> list[Any]:
    """Return a value as a list; a single one is a list of itself."""
    return list(value) if isinstance(value, list | tuple) else [value]
